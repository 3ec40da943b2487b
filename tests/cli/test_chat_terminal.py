"""`rlx chat` on a terminal: Ctrl-C, commands, line editing."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest

import rlx
from rlx.cli import chat as chat_command
from rlx.errors import RlxError

pty = pytest.importorskip("pty")
MODEL = next(Path(rlx.__file__).parent.joinpath("models/data").glob("*.gguf"))
# The prompt is the question, so that the model needs no template of its own.
START = """
import sys
from rlx.cli import main
from rlx.models.tokenizer import Tokenizer
Tokenizer.chat_template = property(
    lambda self: "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}", lambda self, value: None)
sys.exit(main())
"""


class Terminal:
    """A process that believes to talk to a person."""

    def __init__(self, *words, cwd):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "chat", str(MODEL), *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(rlx.__file__).parents[1])},
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text):
        os.write(self.ours, text.encode())

    def wait_for(self, text, seconds=60):
        """What is shown until `text` comes."""
        limit = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < limit, f"{text!r} never came: {self.seen!r}"
            if select.select([self.ours], [], [], 1.0)[0]:
                try:
                    self.seen += os.read(self.ours, 4096).decode("utf-8", "replace")
                except OSError:
                    raise AssertionError(f"{text!r} never came: {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before

    def leave_with(self, key):
        """Press a key; again if it came between the prompt and the moment when keys are listened to."""
        for _ in range(10):
            self.type(key)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Long enough to leave in: a second Ctrl-C on the way out would be one in the middle of something.
                self.process.wait(timeout=10)
                break
        return self.end()

    def end(self):
        code = self.process.wait(timeout=60)
        os.close(self.ours)
        return code


def _take_terminal():
    """In the new process: the terminal on its standard input sends it the signals of the keys."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def terminal(tmp_path):
    started = []

    def start(*words):
        started.append(Terminal(*words, cwd=tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_ctrl_c_ends_the_answer_and_then_the_chat(terminal):
    """The answer is endless: a temperature that never finds the end token, in a context that never fills."""
    chat = terminal("--max-tokens", "1000000", "--temperature", "1.0", "--seed", "1")
    chat.wait_for("> ")
    chat.type("hello\n")
    chat.wait_for("hello\r\n")
    os.read(chat.ours, 1)
    chat.type("\x03")
    chat.wait_for("> ")
    chat.type("/help\n")
    chat.wait_for("Ctrl-C ends an answer")
    chat.wait_for("> ")
    assert chat.leave_with("\x03") == 0


def test_commands_of_a_conversation(terminal, tmp_path):
    chat = terminal("--max-tokens", "3", "--system", "first")
    chat.wait_for("> ")
    chat.type("one\n")
    chat.wait_for("tokens/s]")
    chat.wait_for("> ")
    chat.type("/save talk.json\n")
    chat.wait_for("3 messages written")
    chat.type("/save talk.json\n")
    chat.wait_for("exists already")
    chat.type("/reset\n")
    chat.wait_for("begins anew")
    chat.type("/save after.json\n")
    chat.wait_for("1 messages written")
    chat.type("/system second\n")
    chat.wait_for("begins anew")
    chat.type("/save system.json\n")
    chat.wait_for("1 messages written")
    chat.type("/nonsense\n")
    chat.wait_for("commands are /reset")
    chat.type("two\\\nlines\n")
    chat.wait_for("tokens/s]")
    chat.wait_for("> ")
    chat.type("/save more.json\n")
    chat.wait_for("messages written")
    chat.wait_for("> ")
    chat.type("/exit\n")
    assert chat.end() == 0
    roles = [(m["role"], m["content"]) for m in json.loads((tmp_path / "talk.json").read_text())]
    assert roles[:2] == [("system", "first"), ("user", "one")] and roles[2][0] == "assistant"
    assert json.loads((tmp_path / "after.json").read_text()) == [{"role": "system", "content": "first"}]
    assert json.loads((tmp_path / "system.json").read_text()) == [{"role": "system", "content": "second"}]
    assert json.loads((tmp_path / "more.json").read_text())[1]["content"] == "two\nlines"


def test_lines_can_be_edited_and_found_again(terminal, tmp_path):
    pytest.importorskip("readline")
    chat = terminal("--max-tokens", "1")
    chat.wait_for("> ")
    chat.type("wrld\x1b[D\x1b[D\x1b[Do\n")  # three times left, and the letter that was missing
    chat.wait_for("s]\r\n")
    chat.wait_for("> ")
    chat.type("\x1b[A\n")  # up
    chat.wait_for("s]\r\n")
    chat.wait_for("> ")
    chat.type("/save talk.json\n")
    chat.wait_for("written")
    chat.wait_for("> ")
    assert chat.leave_with("\x04") == 0
    said = [m["content"] for m in json.loads((tmp_path / "talk.json").read_text()) if m["role"] == "user"]
    assert said == ["world", "world"]


def test_the_first_answer_is_prepared_while_its_question_is_typed(monkeypatch, capfd):
    """What fails then is not told before somebody asks."""
    was_prepared = threading.Event()

    class Model:
        def chat_ids(self, messages):
            was_prepared.set()
            raise RlxError("this tokenizer is broken")

        def chat(self, messages, *options, **more):
            self.chat_ids(messages)

    typed = iter(["Who?", "/exit"])

    def wait_and_type():
        assert was_prepared.wait(60)
        return next(typed)

    monkeypatch.setattr(chat_command, "_typed", wait_and_type)
    chat_command.Conversation(Model(), Namespace(system=None, json=False, max_tokens=1, tools=None)).talk()
    assert capfd.readouterr().err == "rlx chat: this tokenizer is broken\n"


def test_ctrl_c_before_the_first_word_forgets_the_question_and_not_the_chat(monkeypatch, capfd):
    class Model:
        asked = 0

        def chat_ids(self, messages):
            raise RlxError("nothing to prepare")

        def chat(self, messages, *options, **more):
            self.asked += 1
            assert [m["content"] for m in messages] == [f"question {self.asked}"]
            raise KeyboardInterrupt

    model, typed = Model(), iter(["question 1", "question 2", "/exit"])
    monkeypatch.setattr(chat_command, "_typed", lambda: next(typed))
    chat_command.Conversation(model, Namespace(system=None, json=False, max_tokens=1, tools=None)).talk()
    assert model.asked == 2 and capfd.readouterr().err.count("[the question is forgotten]") == 2
