"""A run that is killed at any moment and started again ends bit by bit where an undisturbed one ends."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small_run

from rlx import train, tree

STEPS = 40
SCRIPT = Path(__file__).with_name("small_run.py")


def bytes_of(folder):
    """Every leaf of the last checkpoint."""
    _, file = train.checkpoint_files(folder)[-1]
    state, info = train.load_checkpoint(file, small_run.parts()[1])
    return info.step, {tree.path_text(p): np.asarray(x).tobytes() for p, x in tree.leaves_with_path(state)}


def losses(folder):
    return [(row["step"], row["loss"]) for row in train.read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    small_run.run(folder, STEPS)
    return folder


def start(folder, pause):
    paths = [str(SCRIPT.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(SCRIPT), str(folder), str(STEPS), str(pause)]
    # Where Ctrl-C is ignored around the tests, the run would ignore it too.
    restore = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, preexec_fn=restore)


def run_with_kills(folder, kills, seed, sent=signal.SIGKILL):
    """Send a signal at random moments after the first step was written; then let it end."""
    chance = random.Random(seed)
    done = 0
    for _ in range(kills):
        process = start(folder, pause=0.02)
        journal, rows = folder / "metrics.jsonl", None
        while process.poll() is None:
            if rows is None and journal.is_file():
                rows = journal.read_bytes().count(b"\n")
            elif rows is not None and journal.read_bytes().count(b"\n") != rows:
                break
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(sent)
        done += process.wait() != 0
    assert start(folder, pause=0).wait() == 0
    return done


def test_killed_runs_end_where_undisturbed_ones_end(undisturbed, tmp_path):
    assert run_with_kills(tmp_path, kills=3, seed=5) >= 2, "the run ended before it could be killed"
    assert bytes_of(tmp_path) == bytes_of(undisturbed)
    assert losses(tmp_path) == losses(undisturbed)


def test_interrupted_runs_save_only_whole_states(undisturbed, tmp_path):
    """Ctrl-C comes in the middle of steps too, where the state is half the old and half the new one."""
    assert run_with_kills(tmp_path, kills=2, seed=9, sent=signal.SIGINT) >= 1, "the run ended too early"
    assert bytes_of(tmp_path) == bytes_of(undisturbed)
    assert losses(tmp_path) == losses(undisturbed)


@pytest.mark.long
def test_fifty_kills(undisturbed, tmp_path):
    killed = 0
    for seed in range(10):
        folder = tmp_path / str(seed)
        killed += run_with_kills(folder, kills=5, seed=seed)
        assert bytes_of(folder) == bytes_of(undisturbed)
        assert losses(folder) == losses(undisturbed)
    assert killed >= 40


@pytest.mark.parametrize("stops", [(1,), (7, 23), (16, 17, 18)])
def test_stopped_runs_continue_in_the_middle_of_an_epoch(undisturbed, tmp_path, stops):
    """An epoch has 4 batches of the 70 rows."""
    for steps in (*stops, STEPS):
        small_run.run(tmp_path, steps)
    assert bytes_of(tmp_path) == bytes_of(undisturbed)
    assert losses(tmp_path) == losses(undisturbed)


def test_what_a_killed_run_leaves_is_cleaned_up(undisturbed, tmp_path):
    """A file that was not finished, and half a line of metrics beyond the checkpoint."""
    small_run.run(tmp_path, 8)
    (tmp_path / ".step-00000012.safetensors.0123456789abcdef").write_bytes(b"half")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 9, "loss": 5.0}) + '\n{"step": 10, "lo')
    small_run.run(tmp_path, STEPS)
    assert not list(tmp_path.glob(".step*"))
    assert losses(tmp_path) == losses(undisturbed)
    assert bytes_of(tmp_path) == bytes_of(undisturbed)
