"""A progress bar on a terminal's stderr, and silence everywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO, TypeAlias

# Called with what is being done, how much is done and how much there is (0: not known).
Progress: TypeAlias = Callable[[str, int, int], None]

_WIDTH = 30
# Where a terminal does not say how wide it is.
_USUAL_COLUMNS = 80


def fitting(line: str, stream: TextIO) -> str:
    """A line cut so that it stays on one line of a terminal: what goes beyond it could not be drawn over."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file at all
        columns = 0
    return line[: max(columns or _USUAL_COLUMNS, 2) - 1]


class ProgressBar:
    """`Progress` that draws on one line: `model.gguf  [#####     ]  51 %  48 of 94 MB`."""

    def __init__(self, stream: TextIO | None = None, unit: str = "MB", scale: int = 1_000_000) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._unit, self._scale = unit, scale
        self._on = self._stream.isatty()
        self._last = 0.0
        self._drawn = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        finished = total > 0 and done >= total
        # Ten pictures a second are enough, and the last one always.
        if not self._on or (now - self._last < 0.1 and not finished):
            return
        self._last = now
        self._draw(self._line(what, done, total))

    def _line(self, what: str, done: int, total: int) -> str:
        if total <= 0:
            return f"{what}  {done // self._scale} {self._unit}"
        part = min(done / total, 1.0)
        bar = ("#" * round(part * _WIDTH)).ljust(_WIDTH)
        behind = f"{part:4.0%}  {done // self._scale} of {total // self._scale} {self._unit}"
        line = f"{what}  [{bar}] {behind}"
        # Where there is no room for both, the numbers say more.
        return line if fitting(line, self._stream) == line else f"{what}  {behind}"

    def _draw(self, line: str) -> None:
        shown = fitting(line, self._stream)
        self._stream.write("\r" + shown.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(shown)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """Leave a clean line behind."""
        if self._drawn:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()
