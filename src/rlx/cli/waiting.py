"""What is being done and for how long, on a terminal's stderr, from the first second on; silence everywhere else."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from rlx.models.pull_progress import fitting

# What ends sooner needs no explanation.
_QUIET_SECONDS = 1.0
_STEP_SECONDS = 0.25


class Waiting:
    """`with Waiting("loading model.gguf"):` shows `loading model.gguf  3 s` until the block ends."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        started, is_shown = time.monotonic(), False
        wait = _QUIET_SECONDS
        while not self._ended.wait(wait):
            wait, is_shown = _STEP_SECONDS, True
            self._stream.write("\r" + fitting(f"{self._what}  {time.monotonic() - started:.0f} s", self._stream))
            self._stream.flush()
        if is_shown:
            self._stream.write("\r\033[K")
            self._stream.flush()
