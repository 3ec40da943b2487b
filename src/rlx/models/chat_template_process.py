"""Asking the process in which chat templates run (`rlx.models.chat_template_worker`): one for all templates, started
when it is first needed and kept; ended, and another one started, when a template goes over its bounds.

>>> ask("{{ 1 + 1 }}", {}, seconds=2.0)
'2'
"""

from __future__ import annotations

import atexit
import importlib.util
import marshal
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import rlx
from rlx.errors import FormatError, RlxError
from rlx.models.chat_template_protocol import ANSWER, BAD_SOURCE, MAX_BYTES, MAX_SECONDS, NO_MEMORY, REQUEST, TEXT

# A start takes some 0.1 s; on a machine that is busy with other things, longer.
_START_SECONDS = 60.0
# Text of 2**24 characters, and a little for errors.
_MAX_ANSWER = (4 << 24) + 4096
_START = (
    "import marshal, sys; sys.path[:] = marshal.load(sys.stdin.buffer); "
    "from rlx.models.chat_template_worker import main; main()"
)


class _Ended(Exception):
    """The process is gone, and did not answer."""


class _Worker:
    """A process that answers one request at a time."""

    def __init__(self) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise RlxError("jinja2 is needed for chat templates; pip install 'rlx[llm]'")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # In a group of its own Ctrl-C does not reach it.
                process_group=0 if os.name == "posix" else None,
            )
        except (OSError, ValueError) as error:
            raise RlxError(f"chat templates run in a process of their own, which did not start: {error}") from None
        self._is_ready, self.answered = False, 0
        with suppress(OSError):
            self._requests.write(marshal.dumps([str(Path(rlx.__file__).parent.parent), *sys.path]))
            self._requests.flush()

    @property
    def _requests(self) -> BinaryIO:
        assert self._process.stdin is not None
        return cast(BinaryIO, self._process.stdin)

    @property
    def _answers(self) -> BinaryIO:
        assert self._process.stdout is not None
        return cast(BinaryIO, self._process.stdout)

    def ask(self, request: bytes, seconds: float) -> tuple[bytes, str]:
        """Kind and text of an answer; `_Ended` if there is none, `TimeoutError` if it takes longer than this."""
        if not self._is_ready:
            try:
                self._within(_START_SECONDS, None)
            except (_Ended, TimeoutError):
                raise RlxError(
                    f"chat templates run in a process of their own, which did not start; see what "
                    f"`{sys.executable} -c 'import rlx.models.chat_template_worker'` says"
                ) from None
            self._is_ready = True
        answer = self._within(seconds, REQUEST.pack(len(request)) + request)
        self.answered += 1
        return answer

    def _within(self, seconds: float, request: bytes | None) -> tuple[bytes, str]:
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            self._process.kill()

        # Whatever the process does, reading ends when it does.
        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            if request is not None:
                self._requests.write(request)
                self._requests.flush()
            return self._read()
        except (OSError, ValueError, _Ended):
            if is_late.is_set():
                raise TimeoutError from None
            raise _Ended from None
        finally:
            timer.cancel()

    def _read(self) -> tuple[bytes, str]:
        head = self._answers.read(ANSWER.size)
        if len(head) < ANSWER.size:
            raise _Ended
        kind, size = ANSWER.unpack(head)
        if size > _MAX_ANSWER:
            raise _Ended
        text = self._answers.read(size)
        if len(text) < size:
            raise _Ended
        return kind, text.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.kill()
        self.let_go()
        self._process.wait()

    def let_go(self) -> None:
        """Close the pipes of a process that, after a fork, is another one's."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


_lock = threading.Lock()
_worker: _Worker | None = None


def start() -> None:
    """Begin to start the process, so that it is there when a template is rendered."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = _Worker()


def ask(source: str, arguments: Mapping[str, object] | None, seconds: float) -> str:
    """What a template renders with these arguments, which are text, numbers, lists and mappings; without arguments it
    is only checked. A template that is none is a `FormatError`, whatever else goes wrong an `RlxError`."""
    global _worker
    request = marshal.dumps(cast(Any, (source, arguments)))
    limit = time.monotonic() + seconds
    with _lock:
        while True:
            worker = _worker = _Worker() if _worker is None else _worker
            was_new, started = not worker.answered, time.monotonic()
            try:
                kind, text = worker.ask(request, max(limit - started, 0.05))
            except TimeoutError:
                worker.close()
                _worker = None
                raise RlxError(f"chat template: it runs longer than {MAX_SECONDS:g} seconds") from None
            except _Ended:
                kind, text = NO_MEMORY, ""
            except BaseException:
                # A start that failed, or Ctrl-C in the middle of an answer: the next one must not be taken for it.
                worker.close()
                _worker = None
                raise
            if kind != NO_MEMORY:
                break
            worker.close()
            _worker = None
            if was_new:
                raise RlxError(f"chat template: it needs more than {MAX_BYTES >> 20} MB of memory")
            # An earlier template may have used the memory up: this one gets a process of its own.
    if kind == TEXT:
        return text
    raise (FormatError if kind == BAD_SOURCE else RlxError)(_with_prefix(text))


def _with_prefix(text: str) -> str:
    return text if text.startswith("chat template: ") else f"chat template: {text}"


def _stop() -> None:
    global _worker
    if _worker is not None:
        _worker.close()
        _worker = None


def _after_fork() -> None:
    """In a forked child: the process is the parent's, and nobody is left who could release the lock."""
    global _worker, _lock
    _lock = threading.Lock()
    if _worker is not None:
        _worker.let_go()
        _worker._process.returncode = 0
        _worker = None


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
