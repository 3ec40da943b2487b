"""Progress: on a terminal, from the first second on, and nowhere else."""

import io
import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.cli import main, waiting
from rlx.cli.waiting import Waiting
from rlx.models.pull_progress import ProgressBar

MODEL = next(Path(rlx.__file__).parent.joinpath("models/data").glob("*.gguf"))


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "_STEP_SECONDS", 0.01)


def shown_within(seconds, stream):
    limit = time.monotonic() + seconds
    while not stream.getvalue() and time.monotonic() < limit:
        time.sleep(0.01)
    return stream.getvalue()


def test_waiting_is_shown_and_cleared(impatient):
    screen = Screen()
    with Waiting("loading x", screen):
        assert "\rloading x  0 s" in shown_within(20, screen)
    assert screen.getvalue().endswith("\r\033[K")


def test_short_things_and_pipes_are_silent(impatient, monkeypatch):
    pipe, screen = io.StringIO(), Screen()
    with Waiting("loading x", pipe):
        time.sleep(0.05)
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 100.0)
    with Waiting("loading x", screen):
        pass
    assert pipe.getvalue() == screen.getvalue() == ""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["generate", MODEL, "one two", "--max-tokens", "2"], "loading"),
        (["chat", MODEL, "one two", "--max-tokens", "2"], "loading"),
        (["perplexity", MODEL, "--text", "one two three four"], "reading  [####"),
        (["explain", MODEL], "compiling"),
        (["quantize", MODEL, "out.gguf", "--type", "Q8_0"], "100%"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_show_what_takes_long(words, wanted, impatient, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlx.models.tokenizer.Tokenizer.chat_template", "{{ messages[0].content }}", raising=False)
    assert main([str(word) for word in words]) in (0, 1)
    assert wanted not in capsys.readouterr().err
    (tmp_path / "out.gguf").unlink(missing_ok=True)
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    main([str(word) for word in words])
    assert wanted in screen.getvalue()


def test_logprobs_and_samples_as_json(capsys):
    code = main(["generate", str(MODEL), "one two", "--max-tokens", "3", "--json", "--logprobs", "2"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0 and len(answer["logprobs"]) == len(answer["token_ids"]) == 3
    first = answer["logprobs"][0]
    assert first["token_id"] == answer["token_ids"][0] and len(first["top"]) == 2
    assert np.isclose(first["logprob"], first["top"][0]["logprob"]) and isinstance(first["token"], str)
    words = ["generate", str(MODEL), "one two", "--max-tokens", "3", "--n", "2", "--temperature", "1", "--seed", "1"]
    main([*words, "--json"])
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert len(answers) == 2 and answers[0]["token_ids"] != answers[1]["token_ids"]
    main(words)
    assert capsys.readouterr().out == "\n\n".join(a["text"] for a in answers) + "\n"
    assert main(["generate", str(MODEL), "one two", "--logprobs", "2"]) == 1
    assert "--logprobs is for --json" in capsys.readouterr().err


@pytest.mark.parametrize("columns, has_bar", [(40, False), (100, True)])
def test_progress_stays_on_one_line_of_a_terminal(columns, has_bar, impatient):
    """A line that is broken by the terminal cannot be drawn over."""
    termios, fcntl = pytest.importorskip("termios"), pytest.importorskip("fcntl")
    here, there = os.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(there, "w") as terminal, os.fdopen(here, "rb", buffering=0) as screen:
        with ProgressBar(terminal) as bar:
            bar("a-model-with-a-long-name.gguf", 5_000_000, 10_000_000)
        shown = screen.read(1000).decode()
        assert ("[###" in shown) == has_bar and " 50%" in shown
        assert all(len(line) < columns for line in shown.split("\r"))
        with Waiting("loading " + "x" * 200, terminal):
            waited = screen.read(1000).decode()
        assert 10 < max(len(line) for line in waited.split("\r")) < columns
