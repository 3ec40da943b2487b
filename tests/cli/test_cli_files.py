"""The command line: the frame, and the commands that read and write files."""

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import rlx
from rlx.cli import COMMANDS, main
from rlx.formats.gguf import open_gguf, quantize, write_gguf
from rlx.formats.safetensors import write_safetensors
from rlx.knobs import knobs


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.gguf"
    metadata = {"general.architecture": "test", "tokens": [str(i) for i in range(50)], "long": "x" * 500}
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    write_gguf(path, metadata, {"blk.0.w": weights, "blk.0.norm": np.ones(64, np.float32)})
    return path


def run(capsys, *args):
    """Exit code, output and messages of a command."""
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_the_commands(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for name in ("inspect", "pull", "quantize", "cache"):
        assert f"\n    {name}" in out and COMMANDS[name] in out


def test_compile_lists_its_own_options_only(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compile", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--option" in out and not any(f"--{name}" in out for name in ("part", "topology", "gpu", "max-cycles"))


@pytest.mark.parametrize("command", ["inspect", "pull", "quantize", "cache"])
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"examples:\n  rlx {command}" in out and "--json" in out


@pytest.mark.parametrize("args", [["nonsense"], ["inspect"], ["quantize", "a", "b"], ["pull"], ["pull", "--nonsense"]])
def test_wrong_usage_is_2(args):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "word, hint", [("explian", "did you mean explain?"), ("genrate", "did you mean generate?"), ("xyzzy", "rlx --help")]
)
def test_a_command_that_does_not_exist_is_answered_with_one_that_does(word, hint, capsys):
    with pytest.raises(SystemExit) as stop:
        main([word, "tiny"])
    message = capsys.readouterr().err
    assert stop.value.code == 2 and f"there is no command '{word}'; " in message and hint in message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux alone has a device that is always full")
def test_streams_that_are_closed_or_full():
    command = f"{sys.executable} -m rlx generate tiny ROMEO: --max-tokens 2"
    closed = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(["bash", "-c", f"{command} >/dev/full"], capture_output=True, text=True)
    assert (full.returncode, full.stderr) == (1, "rlx generate: no space left on device\n")


def test_a_sound_file_that_is_missing_is_told_before_a_model_is_fetched(capsys):
    code, _, err = run(capsys, "transcribe", "no-such.wav", "--model", "no/such-model")
    assert code == 1 and "no-such.wav: there is no such file" in err


def test_warnings_are_one_line_without_code():
    command = [sys.executable, "-m", "rlx", "generate", "tiny", "ROMEO:", "--max-tokens", "400"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith("rlx generate: the context of 256 tokens is full") and done.stderr.count("\n") == 1


def test_a_text_may_follow_options(capsys):
    words = ["generate", "tiny", "--max-tokens", "2", "Once upon a time"]
    assert main(words) == 0
    after = capsys.readouterr().out
    assert main([*words[:2], words[-1], *words[2:4]]) == 0
    assert capsys.readouterr().out == after
    for more in (["another"], ["--prompt", "another"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *more])
    with pytest.raises(SystemExit, match="2"):
        main(["perplexity", "tiny", "book.txt"])


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"rlx {rlx.__version__}\n"


def test_inspect_gguf(model, capsys):
    code, out, _ = run(capsys, "inspect", model)
    assert code == 0
    assert "GGUF version 3, little endian" in out and "general.architecture  test" in out
    assert "['0', '1', '2', '3', '4', '5', ... (50 items)]" in out and "... (500 characters)" in out
    assert "blk.0.w     F32  4x64  1,024 bytes" in out
    assert "2 tensors (2 F32), 320 parameters, 0.0 MB" in out
    _, out, _ = run(capsys, "inspect", model, "--tensors", "*.norm", "--full")
    assert "blk.0.w" not in out and "blk.0.norm" in out and "'49'" in out and "x" * 500 in out
    _, out, _ = run(capsys, "inspect", model, "--no-tensors")
    assert "blk" not in out and "2 tensors" in out


def test_inspect_as_json(model, capsys):
    _, out, _ = run(capsys, "inspect", model, "--json")
    document = json.loads(out)
    assert document["metadata"]["tokens"] == {"length": 50, "first": ["0", "1", "2", "3", "4", "5"]}
    assert document["tensors"][0] | {"offset": 0} == {
        "name": "blk.0.w",
        "type": "F32",
        "shape": [4, 64],
        "nbytes": 1024,
        "offset": 0,
    }
    assert (document["parameters"], document["bytes"], document["types"]) == (320, 1280, {"F32": 2})
    _, out, _ = run(capsys, "inspect", model, "--json", "--full")
    assert len(json.loads(out)["metadata"]["tokens"]) == 50


def test_inspect_a_folder(tmp_path, capsys):
    write_safetensors(tmp_path / "model.safetensors", {"w": np.zeros((2, 3), np.float16)}, {"format": "pt"})
    (tmp_path / "config.json").write_text('{"model_type": "bert", "layers": [1, 2]}')
    _, out, _ = run(capsys, "inspect", tmp_path)
    assert "safetensors, 1 file" in out and "config.model_type  bert" in out and "w  F16  2x3  12 bytes" in out
    (tmp_path / "config.json").write_text("[]")
    code, _, err = run(capsys, "inspect", tmp_path)
    assert code == 1 and "a JSON object is needed, got list" in err


def test_inspect_graphs(tmp_path, capsys):
    g = rlx.Graph("hello")
    g.set_outputs([rlx.relu(g.input("x", (1, 4), "f32"))])
    (tmp_path / "g.txt").write_text(str(g))
    rlx.save_graph(g, tmp_path / "g.bin")
    rlx.save_graph(g, tmp_path / "g.json")
    for name in ("g.txt", "g.bin", "g.json"):
        assert run(capsys, "inspect", tmp_path / name)[:2] == (0, f"{g}\n")
    _, out, _ = run(capsys, "inspect", tmp_path / "g.txt", "--json")
    assert json.loads(out)["format"] == "rlx.graph"


def test_what_is_no_model(tmp_path, capsys):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "y.gguf").write_bytes(b"GGUF")
    for path, message in [
        (tmp_path / "x", "not GGUF, safetensors or the text of a graph"),
        (tmp_path / "y.gguf", "version needs 4 bytes"),
        (tmp_path / "z", "there is no such file or directory"),
    ]:
        code, out, err = run(capsys, "inspect", path)
        assert (code, out) == (1, "") and err.startswith("rlx inspect: ") and message in err


def test_quantize(model, tmp_path, capsys):
    target = tmp_path / "q.gguf"
    code, out, _ = run(capsys, "quantize", model, target, "--type", "q8_0")
    assert code == 0 and "1 Q8_0, 1 F32" in out
    with open_gguf(model) as before, open_gguf(target) as after:
        wanted = quantize(before.tensors["blk.0.w"].array(), "Q8_0")
        assert after.tensors["blk.0.w"].data().tobytes() == wanted.tobytes()
    code, _, err = run(capsys, "quantize", model, target, "--type", "Q4_0")
    assert code == 1 and "exists already" in err
    code, out, _ = run(capsys, "quantize", model, target, "--type", "Q4_0", "--force", "--json")
    assert code == 0 and json.loads(out)["tensors"] == {"Q4_0": 1, "F32": 1}
    code, _, err = run(capsys, "quantize", model, model, "--type", "Q4_0", "--force")
    assert code == 1 and "exists already" in err
    code, _, err = run(capsys, "quantize", model, tmp_path / "n", "--type", "IQ2_S")
    assert code == 1 and "can be read but not written" in err and not (tmp_path / "n").exists()


def test_pull_of_a_name_that_is_none(capsys):
    code, out, err = run(capsys, "pull", "nonsense")
    assert (code, out) == (1, "") and err.startswith("rlx pull: ") and "known are smollm2, minilm" in err


def test_a_reader_that_goes_away(model):
    """`rlx inspect ... | head` ends without a traceback."""
    command = f"{sys.executable} -m rlx inspect {model} --full --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{" and done.stderr == ""


def test_a_command_loads_no_more_than_it_needs(model):
    code = (
        "import sys; from rlx.cli import main; main(['inspect', sys.argv[1]]);"
        "assert not {'llvmlite', 'tokenizers', 'jinja2', 'rlx.ops', 'rlx.runtime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=True, capture_output=True)


def test_commands_take_graphs_as_text_and_as_saved(tmp_path, capsys):
    """Both under the same ending. Weights that nobody has values for are an error where they would be written."""
    g = rlx.Graph("dense")
    g.set_outputs([rlx.relu(g.input("x", ("B", 8), "f32") @ g.param("w", (8, 4), "f32"))])
    (tmp_path / "text.rlx").write_text(str(g))
    rlx.save_graph(g, tmp_path / "saved.rlx")
    for name in ("text", "saved"):
        graph = tmp_path / f"{name}.rlx"
        code, out, _ = run(capsys, "explain", graph)
        assert code == 0 and out.startswith("cpu: @dense")
        made = tmp_path / f"{name}-amd"
        code, _, _ = run(capsys, "export", "rocm", graph, made, "--option", "arch=gfx942")
        assert code == 0 and sorted(f.name for f in made.iterdir()) == ["gfx942.hsaco", "kernels.md"]
        code, _, _ = run(capsys, "export", "cpu", graph, tmp_path / f"{name}.rlxc", "--option", "weights=none")
        assert code == 0
        code, _, err = run(capsys, "export", "cpu", graph, tmp_path / "no.rlxc")
        assert code == 1 and "a graph has no values for its params (w)" in err and not (tmp_path / "no.rlxc").exists()
    (tmp_path / "rubbish.rlx").write_bytes(b"\xff\xfe\x00")
    for command in (["explain"], ["export", "rocm"], ["inspect"]):
        code, _, err = run(capsys, *command, tmp_path / "rubbish.rlx", *(["o"] if command[0] == "export" else []))
        assert code == 1 and "nor a file of rlx.save_graph" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal(command, capsys, monkeypatch):
    """Sentences are broken at its width; names and examples, which are indented, may be longer."""
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert all(len(line) <= 60 for line in text.splitlines() if not line.startswith(" "))
    module = importlib.import_module(f"rlx.cli.{command.replace('-', '_')}")
    indented = [line for line in (module.__doc__ or "").splitlines() if line.startswith("  ")]
    assert all(line.rstrip() in text for line in indented)


def test_commands_run_on_the_device_that_the_environment_names(monkeypatch, capsys):
    monkeypatch.setenv("RLX_BACKEND", "nope")
    knobs.reset()
    try:
        assert main(["generate", "tiny", "ROMEO:", "--max-tokens", "1"]) == 1
        assert "there is no device 'nope'" in capsys.readouterr().err
        assert main(["generate", "tiny", "ROMEO:", "--max-tokens", "1", "--device", "cpu"]) == 0
    finally:
        monkeypatch.undo()
        knobs.reset()


def test_an_export_of_many_files_names_their_folder(tmp_path, capsys):
    g = rlx.Graph("scores")
    g.set_outputs([rlx.nn.softmax(g.input("x", ("B", 4)))])
    (tmp_path / "scores.rlx").write_text(str(g))
    code, out, _ = run(capsys, "export", "web", tmp_path / "scores.rlx", tmp_path / "page")
    count = len(list((tmp_path / "page").iterdir()))
    assert code == 0 and count > 4 and out.startswith(f"{tmp_path / 'page'}, {count} files: page ")
    code, out, _ = run(capsys, "compile", tmp_path / "scores.rlx", tmp_path / "scores.rlxc")
    assert code == 0 and out.startswith(f"{tmp_path / 'scores.rlxc'}: ")


@pytest.mark.parametrize("command", ["inspect", "explain"])
@pytest.mark.parametrize("form", ["text", "binary"])
def test_files_of_graphs_are_read_by_a_process_that_has_built_none(command, form, tmp_path):
    g = rlx.Graph("scores")
    g.set_outputs([rlx.nn.softmax(g.input("x", ("B", 4)))])
    if form == "text":
        (tmp_path / "scores.rlx").write_text(str(g))
    else:
        rlx.save_graph(g, tmp_path / "scores.rlx")
    found = subprocess.run(
        [sys.executable, "-m", "rlx", command, str(tmp_path / "scores.rlx")], capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (0, "") and "@scores" in found.stdout
