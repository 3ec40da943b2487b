"""The commands that run models, on small models written to disk."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from models.tiny_models import BERT, LLAMA, bert_arrays, byte_tokenizer, llama_arrays
from rlx.cli import main
from rlx.compile.generators import generator_for
from rlx.compile.pipeline import STEPS
from rlx.compile.steps import Settings
from rlx.formats.safetensors import write_safetensors
from rlx.models.weight_names import GGUF, HF_DECODERS

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
CONFIG = replace(LLAMA, rope=replace(LLAMA.rope, style="neox"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Hugging Face directory of a small llama."""
    folder = tmp_path_factory.mktemp("llama")
    names = {GGUF[role]: name for role, name in HF_DECODERS["llama"].items()}
    arrays = {}
    for name, array in llama_arrays(CONFIG).items():
        base = name.removesuffix(".weight")
        layer = base.split(".")[1] if base.startswith("blk.") else ""
        pattern = base.replace(f"blk.{layer}.", "blk.{i}.") if layer else base
        arrays[names[pattern].replace("{i}", layer) + ".weight"] = array
    write_safetensors(folder / "model.safetensors", arrays)
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 260,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A Hugging Face directory of a small BERT."""
    folder = tmp_path_factory.mktemp("bert")
    write_safetensors(folder / "model.safetensors", bert_arrays(BERT))
    config = {
        "model_type": "bert",
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "vocab_size": 260,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    return folder


def run(capsys, *words):
    code = main([str(w) for w in words])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_generate_streams_what_json_reports(model, capsys):
    words = ("generate", model, "--prompt", "Hello", "--max-tokens", 6)
    code, out, err = run(capsys, *words)
    assert code == 0 and err == ""
    code, document, _ = run(capsys, *words, "--json")
    answer = json.loads(document)
    assert answer["text"] + "\n" == out
    assert answer["prompt_tokens"] == 5 and len(answer["token_ids"]) <= 6 and answer["tokens_per_second"] > 0


def test_generate_reads_files_and_standard_input(model, capsys, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("Hello", encoding="utf-8")
    _, expected, _ = run(capsys, "generate", model, "--prompt", "Hello", "--max-tokens", 4)
    assert run(capsys, "generate", model, "--file", tmp_path / "prompt.txt", "--max-tokens", 4)[1] == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert run(capsys, "generate", model, "--max-tokens", 4)[1] == expected


def test_the_text_may_follow_the_model(model, capsys):
    for command, option in (("generate", "--prompt"), ("chat", "--message")):
        _, expected, _ = run(capsys, command, model, option, "Hello", "--max-tokens", 4)
        assert run(capsys, command, model, "Hello", "--max-tokens", 4)[1] == expected
        assert run(capsys, command, "--max-tokens", 4, model, "Hello")[1] == expected
        with pytest.raises(SystemExit):
            main([command, str(model), "Hello", option, "Hello"])
        assert "not allowed with argument" in capsys.readouterr().err


def test_chat_keeps_the_conversation(model, capsys, monkeypatch):
    _, one, _ = run(capsys, "chat", model, "--message", "Hi", "--max-tokens", 5)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\nAgain\n"))
    code, out, _ = run(capsys, "chat", model, "--max-tokens", 5, "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0 and first["answer"] + "\n" == one
    prompt = f"[user]Hi[assistant]{first['answer']}[user]Again[assistant]"
    _, expected, _ = run(capsys, "generate", model, "--prompt", prompt, "--max-tokens", 5, "--json")
    assert second["answer"] == json.loads(expected)["text"]


def test_perplexity_in_both_forms(model, capsys):
    words = ("perplexity", model, "--text", "some text to be predicted")
    _, out, _ = run(capsys, *words)
    found = json.loads(run(capsys, *words, "--json")[1])
    assert found["tokens"] == 25
    assert out == f"perplexity {found['perplexity']:.4f} over 25 tokens\n"


def test_embed_in_all_forms(encoder, capsys, tmp_path):
    code, out, err = run(capsys, "embed", encoder, "one", "two texts", "--json")
    found = json.loads(out)
    vectors = np.array(found["vectors"], np.float32)
    assert code == 0 and err == "" and vectors.shape == (2, found["dimension"]) == (2, 24)
    (tmp_path / "lines.txt").write_text("one\ntwo texts\n", encoding="utf-8")
    run(capsys, "embed", encoder, "--file", tmp_path / "lines.txt", "--out", tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, rtol=1e-6)
    _, lines, _ = run(capsys, "embed", encoder, "one", "two texts")
    np.testing.assert_allclose(np.loadtxt(io.StringIO(lines)), vectors, rtol=1e-6)


def test_embed_with_a_model_that_writes_text(model, capsys):
    code, out, _ = run(capsys, "embed", model, "one", "two texts", "--json")
    found = json.loads(out)
    assert code == 0 and found["dimension"] == 32
    np.testing.assert_allclose(np.linalg.norm(found["vectors"], axis=1), 1, rtol=1e-5)
    code, _, err = run(capsys, "embed", model, "one", "--prompt-name", "query")
    assert code == 1 and "this model has no prompt 'query'" in err


def test_explain_models_and_graphs(model, encoder, capsys, tmp_path):
    assert "@llama" in run(capsys, "explain", model)[1]
    assert "@bert" in run(capsys, "explain", encoder)[1]
    (tmp_path / "g.rlx").write_text("mir @g(%x: f32[2,3]) {\n  %0: f32[2,3] = relu(%x)\n  return %0\n}\n")
    assert "relu" in run(capsys, "explain", tmp_path / "g.rlx")[1]
    assert json.loads(run(capsys, "explain", tmp_path / "g.rlx", "--json")[1])
    code, out, _ = run(capsys, "explain", encoder, "--html", tmp_path / "page.html")
    assert code == 0 and out.strip().endswith("page.html") and "<html" in (tmp_path / "page.html").read_text()


def test_explain_shows_steps_and_times(model, capsys, tmp_path):
    lines = run(capsys, "explain", model, "--passes")[1].splitlines()
    for step in STEPS:
        shown = [i for i, line in enumerate(lines) if line.startswith(f"{step.name} ") and "(prepare)" not in line]
        is_run = step.when(Settings(generator=generator_for("cpu"), has_prepare=True, activations="auto"))
        assert [lines[i + 1].strip() for i in shown] == [step.reason] * is_run, step.name
    page = tmp_path / "page.html"
    assert run(capsys, "explain", model, "--html", page, "--profile")[0] == 0
    assert page.read_text().count("class='bar'") > 3
    (tmp_path / "g.rlx").write_text("mir @g(%x: f32[2,3]) {\n  %0: f32[2,3] = relu(%x)\n  return %0\n}\n")
    code, _, err = run(capsys, "explain", tmp_path / "g.rlx", "--profile")
    assert code == 1 and "--profile is for language models" in err


def test_devices_names_the_cpu(capsys):
    assert "cpu" in run(capsys, "devices")[1]
    rows = {row["device"]: row["available"] for row in json.loads(run(capsys, "devices", "--json")[1])}
    assert rows["reference"] is True


@pytest.mark.parametrize("command", ["chat", "generate", "embed", "perplexity", "explain", "devices"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"examples:\n  rlx {command}" in capsys.readouterr().out


def test_errors_are_one_line_and_exit_codes_tell(model, capsys, tmp_path):
    code, out, err = run(capsys, "generate", tmp_path / "no.gguf", "--prompt", "x")
    assert code == 1 and out == "" and "there is no such file" in err and err.count("\n") == 1
    code, _, err = run(capsys, "generate", model, "--prompt", "x" * 96)
    assert code == 1 and "leaves no room in the context of 96" in err
    with pytest.raises(SystemExit) as end:
        main(["generate", str(model), "--top-k", "many"])
    assert end.value.code == 2


def test_functions_in_a_chat(model, capsys, monkeypatch, tmp_path):
    talker, tools = tmp_path / "talker", tmp_path / "functions.json"
    shutil.copytree(model, talker)
    settings = {"eos_token": "</s>", "chat_template": "{# tools [TOOL_CALLS][ARGS] #}" + TEMPLATE}
    (talker / "tokenizer_config.json").write_text(json.dumps(settings))
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "now"}}]))
    words = ["chat", talker, "--tools", tools, "--json", "--temperature", 2, "--seed", 1]
    monkeypatch.setattr("sys.stdin", io.StringIO("When?\nnoon\n\n"))
    code, out, err = run(capsys, *words, "--tool-choice", "now")
    first, second = map(json.loads, out.splitlines())
    assert code == 0 and first["question"] == "When?" and second["question"] == "noon", err
    assert first["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    code, _, err = run(capsys, *words, "--tool-choice", "then", "--message", "When?")
    assert code == 1 and "there is no function 'then'; there is now" in err
