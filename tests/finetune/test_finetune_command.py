"""`rlx finetune` from a file to an adapter: it learns, goes on bit by bit after kill -9, and says what is wrong."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_decoders import one_layer_file

import rlx
from models.random_directories import FAMILIES, random_directory
from rlx import train
from rlx.cli import main
from rlx.finetune import trainable_decoder
from rlx.formats import mapped_file
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors
from rlx.models.model_files import open_decoder

pytest.importorskip("tokenizers")

SOURCE = Path(rlx.__file__).parents[1]
TEXT = "the cat sat on the mat and the dog sat on the log. " * 12
SMALL = ["--lora", "2", "--target", "q_proj", "--length", "16", "--save-every", "2", "--rate", "0.02"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a text, and a whole run of 8 steps."""
    folder = tmp_path_factory.mktemp("finetune")
    one_layer_file(folder / "model.gguf")
    (folder / "text.txt").write_text(TEXT)
    before = (folder / "model.gguf").read_bytes()
    assert main(command(folder, "whole", 8)) == 0
    assert (folder / "model.gguf").read_bytes() == before, "the base must stay as it is, bit for bit"
    return folder


def command(folder, out, steps, *more):
    paths = ["--data", str(folder / "text.txt"), "--out", str(folder / out), "--steps", str(steps)]
    return ["finetune", str(folder / "model.gguf"), *paths, *SMALL, *more]


def bytes_of(folder):
    """The adapter, the last checkpoint, and the losses."""
    _, last = train.checkpoint_files(folder)[-1]
    rows = [(row["step"], row["loss"]) for row in train.read_metrics(folder / "metrics.jsonl")]
    return (folder / "adapter_model.safetensors").read_bytes(), last.name, last.read_bytes(), rows


def test_it_learns_and_what_it_writes_is_used(place, capsys):
    losses = [row["loss"] for row in train.read_metrics(place / "whole" / "metrics.jsonl")]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.2
    assert {file.name for file in (place / "whole").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "loss.png",
        "metrics.jsonl",
        "settings.json",
        "step-00000008.safetensors",
    }
    model = str(place / "model.gguf")
    perplexities = []
    for adapter in ([], ["--adapter", str(place / "whole")]):
        assert main(["perplexity", model, "--text", TEXT[:120], "--json", *adapter]) == 0
        perplexities.append(json.loads(capsys.readouterr().out)["perplexity"])
    assert perplexities[1] < 0.9 * perplexities[0]
    assert main(["generate", model, "the cat", "--max-tokens", "3", "--adapter", str(place / "whole")]) == 0
    assert main(["convert", model, str(place / "merged.gguf"), "--adapter", str(place / "whole"), "--type", "F32"]) == 0
    assert main(["convert", str(place / "whole"), str(place / "lora.gguf"), "--base", model]) == 0
    capsys.readouterr()
    ids = list(range(3, 40))
    wanted = rlx.load(model, device="reference", adapter=place / "whole").logits(ids)
    for path, adapter in ((place / "merged.gguf", None), (place / "model.gguf", place / "lora.gguf")):
        found = rlx.load(path, device="reference", adapter=adapter).logits(ids)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


def test_killed_runs_end_where_whole_ones_end(place):
    """kill -9 after the first checkpoint; what then goes on has forgotten nothing."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    script = "import sys; from rlx.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", script, *command(place, "killed", 5000)], env=environment)
    ends = time.monotonic() + 120
    while not train.checkpoint_files(place / "killed") and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    reached, _ = train.checkpoint_files(place / "killed")[-1]
    assert not (place / "killed" / "adapter_config.json").exists()
    whole, steps = "whole", 8
    if reached >= steps:
        # It ran on before the signal came; a longer undisturbed run is what it must equal then.
        whole, steps = "longer", reached + 2
        assert main(command(place, whole, steps)) == 0
    assert main(command(place, "killed", steps, "--resume")) == 0
    assert bytes_of(place / "killed") == bytes_of(place / whole)


def failed(capsys, words):
    """The one line that a failing command says."""
    assert main(words) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("rlx ")
    return line


def test_runs_are_not_overwritten_or_mixed(place, capsys):
    assert "there are checkpoints of an earlier run; resume" in failed(capsys, command(place, "whole", 9))
    other = failed(capsys, command(place, "whole", 9, "--resume", "--seed", "5"))
    assert "the run began with seed 0, and now it is 5" in other
    before = bytes_of(place / "whole")
    assert main(command(place, "whole", 8, "--resume")) == 0
    assert bytes_of(place / "whole") == before


def test_wrong_adapters_and_lengths_are_named(place, capsys, tmp_path):
    model = str(place / "model.gguf")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    line = failed(capsys, ["generate", model, "a", "--adapter", str(unfinished)])
    assert "this is no adapter: there is no adapter_config.json; if it is a run that has not ended, resume it" in line
    assert "no linear layer of this model is called 'c_attn'" in failed(
        capsys, [*command(place, "other", 1), "--target", "c_attn"]
    )
    long = failed(capsys, [*command(place, "other", 1), "--length", "300"])
    assert "a length of 300 is more than the 256 tokens" in long
    words = ["--data", str(place / "text.txt"), "--out", str(tmp_path / "x"), "--full", "--length", "16"]
    assert "is quantised, and cannot be trained" in failed(capsys, ["finetune", model, *words])
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    words = ["finetune", model, "--data", str(empty), "--out", str(tmp_path / "x")]
    assert "the file is empty" in failed(capsys, words)
    below_a_file = failed(capsys, command(place, "text.txt/run", 1))
    assert "cannot be written to: Not a directory; choose another one" in below_a_file
    assert "text.txt is a file; a run is written to a folder" in failed(capsys, command(place, "text.txt", 1))
    assert not (tmp_path / "x").exists()


def test_a_full_disk_keeps_the_last_checkpoint(place, capsys, monkeypatch):
    """What comes after checkpoint 8 does not fit."""
    whole = place / "whole"
    before = bytes_of(whole)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(mapped_file.os, "fsync", full)
        line = failed(capsys, command(place, "whole", 8, "--resume"))
    assert "No space left on device" in line
    assert bytes_of(whole) == before
    assert not [file for file in whole.iterdir() if file.name.startswith(".")]


def test_a_loss_that_is_no_number_ends_the_run(place, capsys, tmp_path):
    with open_gguf(place / "model.gguf") as file:
        tensors = dict(file.tensors)
        tensors["output_norm.weight"] = np.full(192, np.nan, np.float32)
        write_gguf(tmp_path / "model.gguf", file.metadata, tensors)
    (tmp_path / "text.txt").write_text(TEXT)
    with rlx.knobs(backend="reference"):
        line = failed(capsys, command(tmp_path, "run", 4))
    assert "the loss is nan at step 1; there is no checkpoint" in line
    assert not (tmp_path / "run" / "adapter_config.json").exists()


def test_full_tuning_writes_a_model(place, tmp_path, capsys):
    base = one_layer_file(tmp_path / "model.gguf", "F32")
    data = ["--data", str(place / "text.txt"), "--out", str(tmp_path / "run")]
    words = ["finetune", str(base), *data, "--full", "--steps", "3", "--length", "16", "--rate", "1e-3", "--json"]
    with rlx.knobs(backend="reference"):
        assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    with open_gguf(base) as old, open_gguf(tmp_path / "run" / "model.gguf") as new:
        assert said["trained"] == sum(int(np.prod(t.shape)) for t in old.tensors.values())
        assert new.metadata["tokenizer.ggml.tokens"] == old.metadata["tokenizer.ggml.tokens"]
        for name, tensor in old.tensors.items():
            assert new.tensors[name].type == tensor.type
            assert not np.array_equal(new.tensors[name].array(), tensor.array()), name
    tuned = rlx.load(tmp_path / "run" / "model.gguf", device="reference").perplexity(TEXT[:60])
    assert tuned < rlx.load(base, device="reference").perplexity(TEXT[:60])


def test_chats_of_a_directory_with_a_template(tmp_path, capsys):
    """The answers of a Hugging Face model follow the template that it comes with."""
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    folder = random_directory(tmp_path / "hf", FAMILIES["llama"] | {"num_hidden_layers": 1}, template=template)
    talk = [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "aaaaaaaa"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    paths = ["--data", str(tmp_path / "chats.jsonl"), "--out", str(tmp_path / "run")]
    words = ["finetune", str(folder), *paths, "--steps", "25", "--length", "64", "--rate", "0.03", "--dora"]
    with rlx.knobs(backend="reference"):
        assert main(words) == 0
    capsys.readouterr()
    tuned = rlx.load(folder, device="reference", adapter=tmp_path / "run")
    assert tuned.chat(talk[:1], max_tokens=6) == "aaaaaa"
    assert rlx.load(folder, device="reference").chat(talk[:1], max_tokens=6) != "aaaaaa"


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_full_tuning_of_a_directory(family, tmp_path, capsys):
    """Weights that files store in another form (1 + w, transposed) come out as the model that was trained."""
    counts = {key: 1 for key in ("num_hidden_layers", "n_layer") if key in FAMILIES[family]}
    folder = random_directory(tmp_path / "hf", FAMILIES[family] | counts)
    (tmp_path / "text.txt").write_text(TEXT)
    data = ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run")]
    words = ["finetune", str(folder), *data, "--full", "--steps", "2", "--length", "16", "--rate", "1e-2"]
    with rlx.knobs(backend="reference"):
        assert main(words) == 0
    capsys.readouterr()
    model = trainable_decoder(open_decoder(folder), None)
    with open_safetensors(train.checkpoint_files(tmp_path / "run")[-1][1]) as file:
        params = {name: np.array(file.tensors[f"params.{name}"].array()) for name in model.params}
    tokens = np.arange(3, 15, dtype=np.int32)
    wanted = np.asarray(rlx.jit(model.logits, device="reference")(params, {}, tokens[None]))[0]
    found = rlx.load(tmp_path / "run" / "model.gguf", device="reference").logits(tokens.tolist())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(found - rlx.load(folder, device="reference").logits(tokens.tolist())).max() > 0.01
