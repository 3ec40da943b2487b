"""`rlx launch ... rlx finetune --mesh`: adapters trained by several processes, with the losses of one."""

import sys
from pathlib import Path

import numpy as np
import pytest
from many_devices_runs import needs_xla
from test_many_processes import launched
from test_models_on_a_mesh import FIELDS

from rlx import train
from rlx.cli import main
from rlx.formats.safetensors import open_safetensors

pytest.importorskip("tokenizers")
sys.path.insert(0, str(Path(__file__).parents[1]))
from models.random_directories import random_directory

TEXT = "the cat sat on the mat and the dog sat on the log. " * 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a text, and the run of one process on the CPU."""
    folder = tmp_path_factory.mktemp("tuning")
    random_directory(folder / "m", FIELDS)
    (folder / "text.txt").write_text(TEXT)
    assert main(command(folder, "one")[2:]) == 0
    return folder


def command(folder, out, *more):
    options = ["--lora", "4", "--length", "16", "--batch", "4", "--steps", "6", "--save-every", "3", "--rate", "0.02"]
    paths = ["--data", str(folder / "text.txt"), "--out", str(folder / out)]
    return ["-m", "rlx", "finetune", str(folder / "m"), *paths, *options, *more]


def whole(folder, out):
    """The same without an adapter."""
    words = command(folder, out)[2:]
    at = words.index("--lora")
    return [*words[:at], *words[at + 2 :]]


def losses(folder):
    return [row["loss"] for row in train.read_metrics(folder / "metrics.jsonl")]


def agree(one, other):
    np.testing.assert_allclose(losses(other), losses(one), rtol=0, atol=1e-5)
    assert losses(one)[-1] < losses(one)[0] - 0.2
    with (
        open_safetensors(one / "adapter_model.safetensors") as a,
        open_safetensors(other / "adapter_model.safetensors") as b,
    ):
        assert a.tensors.keys() == b.tensors.keys()
        for name, tensor in a.tensors.items():
            np.testing.assert_allclose(b.tensors[name].array(), tensor.array(), rtol=0, atol=2e-4)


pytestmark = needs_xla


def test_two_processes(place):
    told = launched(["-n", "2", "--devices", "2"], *command(place, "two", "--mesh", "data=2,tensor=2"))
    assert "numbers trained" in told and told.count("numbers trained") == 1
    agree(place / "one", place / "two")


@pytest.mark.targets_full
def test_four_processes(place):
    launched(["-n", "4", "--devices", "1"], *command(place, "four", "--mesh", "data=4"))
    agree(place / "one", place / "four")


@pytest.mark.targets_full
def test_all_weights(place):
    """What one process trains whole, two train in parts."""
    options = ["--full", "--rate", "0.002"]
    assert main([*whole(place, "whole"), *options]) == 0
    launched(["-n", "2", "--devices", "2"], "-m", "rlx", *whole(place, "parts"), *options, "--mesh", "fsdp=2,tensor=2")
    np.testing.assert_allclose(losses(place / "parts"), losses(place / "whole"), rtol=0, atol=1e-5)
    assert (place / "parts" / "model.gguf").is_file()
