"""Any command line, with any bytes: an answer, a usage message or one line on stderr, and never a traceback."""

import argparse
import contextlib
import functools
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.cli import COMMANDS, UNEXPECTED, _parser, main
from rlx.errors import RlxError
from rlx.formats.gguf import write_gguf
from rlx.formats.onnx import FLOAT, OnnxGraph, OnnxValue, make_node, write_onnx
from rlx.formats.safetensors import write_safetensors

MODEL = next(Path(rlx.__file__).parent.joinpath("models/data").glob("*.gguf"))
ODD = [
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "-x",
        "--x=y",
        "%s",
        "%",
        "{}",
        "\\",
        "'",
        '"',
        "*",
        "?",
        "~",
        "~nobody",
        "..",
        "/",
        "//",
    ),
    *("\n", "\t", "\0", "\x1b[2J", "\ud800", "\udcff", "\udcc3\udc28", "ü", "字", "\U0001f600", "a" * 300, "b" * 5000),
    *(
        "0",
        "1",
        "-1",
        "2",
        "1e9",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "0x10",
        "٣",
        "1_0",
        "9" * 30,
        "9" * 5000,
        "1.5",
        "True",
    ),
    *(
        "Q4_K",
        "Q8_0",
        "q8_0",
        "F16",
        "IQ2_S",
        "f32",
        "q8",
        "int8",
        "cpu",
        "reference",
        "tpu",
        "show",
        "clear",
        "objects",
    ),
    *("smollm2", "smolm2", "minilm", "org/name", "org/name/file.gguf", "a/b/c/d", "nosuch.gguf", "./x", "hello world"),
]


@functools.cache
def own_words(command):
    """The options, subcommands and choices of a command, read from its parser."""
    pending, found = [_parser([command])._subparsers._group_actions[0].choices[command]], []
    while pending:
        for action in pending.pop()._actions:
            found += action.option_strings
            found += [str(choice) for choice in action.choices or ()]
            if isinstance(action.choices, dict):
                pending += [p for p in action.choices.values() if isinstance(p, argparse.ArgumentParser)]
    return sorted({*found})


OPTIONS = sorted({word for command in COMMANDS for word in own_words(command) if word.startswith("--")})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "model.gguf").write_bytes(MODEL.read_bytes())
    (folder / "cut.gguf").write_bytes(MODEL.read_bytes()[:5000])
    write_gguf(folder / "other.gguf", {"general.architecture": "test"}, {"w": np.ones((4, 64), "f4")})
    (folder / "empty").touch()
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "text.txt").write_text("some words\nmore words\n", encoding="utf-8")
    (folder / "latin.txt").write_bytes("gr\xfc\xdfe".encode("latin-1"))
    (folder / "bad.json").write_text("{")
    (folder / "g.rlx").write_text("mir @g(%x: f32[2,3]) {\n  %0: f32[2,3] = relu(%x)\n  return %0\n}\n")
    (folder / "bad.rlx").write_text("mir @g(%x: f32[2,3]) {\n  %0 = nonsense(%x)\n")
    (folder / os.fsdecode(b"name\xff.gguf")).write_bytes(MODEL.read_bytes()[:100])
    x, y = OnnxValue("x", FLOAT, ("n",)), OnnxValue("y", FLOAT, ("n",))
    write_onnx(folder / "m.onnx", OnnxGraph("g", [make_node("Relu", ["x"], ["y"])], {}, [x], [y]))
    (folder / "bad.onnx").write_bytes(b"\x3a\x08not onnx")
    (folder / "dir").mkdir()
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text('{"model_type": "llama"}')
    write_safetensors(folder / "hf" / "model.safetensors", {"w": np.ones(3, "f4")})
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture
def harmless(place, monkeypatch, tmp_path):
    """Nothing is fetched, measured or deleted, and files are written into a folder of this test."""

    def refuse(*args, **options):
        raise RlxError("not in this test")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("rlx.models.pull._download_wheel", refuse)
    monkeypatch.setattr("rlx.models.pull._cached", lambda name, model: None)
    monkeypatch.setattr("rlx.cli.bench._measured", refuse)
    monkeypatch.setattr("rlx.cli.cache.clear", lambda folder: None)
    monkeypatch.setattr("rlx.cli.serve.model_server", refuse)
    for what in ("cli.serve_web.page_server", "cli.tune._tune", "cli.splat._view", "cli.splat._train"):
        monkeypatch.setattr(f"rlx.{what}", refuse)
    for what in ("distributed.launch.launch", "train.train_char_gpt", "finetune.finetune"):
        monkeypatch.setattr(f"rlx.{what}", refuse)
    monkeypatch.chdir(tmp_path)
    for file in place.iterdir():
        (tmp_path / file.name).symlink_to(file)


def line(rng, place):
    files = [p.name for p in place.iterdir()]

    def word():
        kind = rng.random()
        if kind < 0.3:
            return rng.choice(ODD)
        if kind < 0.6:
            return rng.choice(files)
        if kind < 0.7:
            return rng.choice(list(COMMANDS))
        if kind < 0.75:
            return "".join(chr(rng.choice([rng.randrange(1, 128), 0xDC80 + rng.randrange(128)])) for _ in range(4))
        if kind < 0.85:
            return rng.choice(own_words(command))
        return rng.choice(OPTIONS) if kind < 0.95 else f"{rng.choice(OPTIONS)}={rng.choice(ODD)}"

    command = rng.choice(list(COMMANDS))
    words = [word() for _ in range(rng.randrange(0, 7))]
    if rng.random() < 0.9:
        words.insert(0, command)
    return _one_that_runs(rng, files) if rng.random() < 0.5 else words


# Options of their own that commands have, each with a value that is one; most random lines end in a usage message.
OWN = {
    "generate": {"--prompt": "a b", "--file": "text.txt", "--n": "2", "--logprobs": "1", "--top-k": "3", "--stop": "a"},
    "chat": {"--system": "s", "--message": "m", "--temperature": "0.5", "--seed": "1", "--kv-dtype": "f16"},
    "perplexity": {"--text": "a b c d", "--file": "text.txt", "--context": "8", "--threads": "1"},
    "inspect": {"--tensors": "*", "--full": None, "--no-tensors": None},
    "explain": {"--device": "cpu", "--html": "page.html"},
    "quantize": {"--type": "Q8_0", "--force": None},
    "embed": {"--file": "text.txt", "--batch-size": "2", "--out": "v.npy", "--prompt": "p", "--prompt-name": "q"},
    "convert": {"--type": "Q8_0", "--force": None},
    "run": {"--input": "x=v.npy", "--size": "n=2", "--out": "o.npz", "--repeat": "2", "--device": "cpu", "--seed": "1"},
    "serve": {"--port": "0", "--parallel": "2", "--embedder": "hf", "--key-file": "text.txt"},
    "cache": {},
    "pull": {},
}


def _one_that_runs(rng, files):
    command = rng.choice(list(OWN))
    words = [command, rng.choice([*files, *["model.gguf"] * 8])]
    if command == "run":
        words[1] = rng.choice([*files, *["m.onnx"] * 8])
    if command in ("quantize", "convert"):
        words.append(rng.choice(["new.gguf", *files]))
    if command in ("generate", "chat"):
        words += ["--max-tokens", "2"]
    own = {**OWN[command], "--json": None}
    if command == "quantize" and rng.random() < 0.8:
        words += ["--type", "Q8_0"]
    for option in rng.sample(list(own), rng.randrange(0, min(3, len(own)) + 1)):
        words.append(option)
        if own[option] is not None:
            words.append(own[option] if rng.random() < 0.6 else rng.choice([*ODD, *files]))
    return words


class Bytes(io.TextIOWrapper):
    """Standard input or output as a process has it."""

    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), encoding="utf-8")


def outcome(words, rng):
    """Exit code and messages of a command line."""
    given, out, err = Bytes(rng.choice([b"", b"hello\n", b"\xff\xfe\n", bytes(range(256))])), Bytes(), io.StringIO()
    before = sys.stdin
    sys.stdin = given
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code
            out.flush()
    finally:
        sys.stdin = before
    return code, err.getvalue()


def check(seed, place):
    rng = random.Random(seed)
    words = line(rng, place)
    code, err = outcome(words, rng)
    said = f"seed {seed}: {words!r}: {code}\n{err}"
    assert code in (0, 1, 2), said
    assert UNEXPECTED not in err and "Traceback" not in err, said
    if code == 1:
        assert err.startswith("rlx ") and err.count("\n") == 1 and len(err) < 2000, said


def test_some_command_lines(place, harmless):
    for seed in range(150):
        check(seed, place)


@pytest.mark.long
def test_ten_thousand_command_lines(place, harmless, tmp_path):
    for seed in range(10_000):
        check(seed, place)
        for path in tmp_path.iterdir():
            if not path.is_symlink() and path.is_file():
                path.unlink()


@pytest.mark.parametrize(
    "words",
    [
        [b"generate", b"\xff\xfe.gguf", b"x"],
        [b"inspect", b"\xc3\x28"],
        [b"\xff"],
        [b"perplexity", os.fsencode(MODEL), b"--text", b"\xff\xfe bytes"],
        [b"generate", os.fsencode(MODEL), b"--file", b"/dev/null/x"],
    ],
    ids=ascii,
)
def test_bytes_of_a_real_command_line(words):
    done = subprocess.run([sys.executable, "-m", "rlx", *words], capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 2) and b"Traceback" not in done.stderr and UNEXPECTED.encode() not in done.stderr


def run(capsys, *words):
    code = main([str(word) for word in words])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_errors_say_it_once_and_in_one_line(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    for words, message in [
        (["pull", "smolm2"], "rlx pull: no model is called 'smolm2'; did you mean smollm2? known are smollm2, minilm"),
        (["pull", "a b/c"], "rlx pull: a Hugging Face id is org/name"),
        (["generate", "nosuch.gguf", "x"], "rlx generate: nosuch.gguf: there is no such file or directory"),
        (
            ["inspect", "modell.gguf"],
            "rlx inspect: modell.gguf: there is no such file or directory; did you mean model.gguf?",
        ),
        (["generate", MODEL, "--file", "latin.txt"], "rlx generate: latin.txt: not UTF-8 text: byte 2 is 0xfc"),
        (["generate", MODEL, "--file", "dir"], "rlx generate: dir: a file is needed; this is a directory"),
        (["perplexity", MODEL, "--file", "txt"], "rlx perplexity: txt: there is no such file or directory"),
        (
            ["quantize", "dir", "x.gguf", "--type", "Q8_0"],
            "rlx quantize: dir: a regular file is needed; this is a directory",
        ),
        (["quantize", MODEL, "dir", "--type", "Q8_0"], "rlx quantize: dir is a directory; give the name of a file"),
        (
            ["generate", MODEL, "x", "--temperature", "-1"],
            "rlx generate: temperature must be 0 or more, got -1.0",
        ),
    ]:
        code, out, err = run(capsys, *words)
        assert (code, out) == (1, "") and err.startswith(message) and err.count("\n") == 1, err


def test_input_that_is_no_text(monkeypatch, capsys):
    for command in ("generate", "perplexity", "chat"):
        monkeypatch.setattr("sys.stdin", Bytes(b"\xff\xfe\n"))
        code, out, err = run(capsys, command, MODEL)
        assert (code, out) == (1, "") and "standard input is not UTF-8 text: 0xff is no character" in err
