"""One line on a terminal that says how a run goes; silence everywhere else."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

__all__ = ["ProgressLine", "duration_text", "memory_bytes"]

_WIDTH = 20


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(7), duration_text(75), duration_text(7300)
    ('7s', '1m 15s', '2h 01m')
    """
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def memory_bytes() -> int | None:
    """What this process has in memory now, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * 4096


class ProgressLine:
    """`120/1000 [###     ]  loss 2.314  12,300 tokens/s  412 MB  1m 20s left`, drawn ten times a second at most."""

    def __init__(self, first: int, total: int, tokens: int | None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.on = self._stream.isatty()
        self._first, self._total, self._tokens = first, total, tokens
        self._started, self._last, self._drawn = time.monotonic(), 0.0, 0

    def show(self, step: int, loss: float) -> None:
        now = time.monotonic()
        if self.on and (now - self._last >= 0.1 or step == self._total):
            self._last = now
            self._draw(self.line(step, loss, now - self._started))

    def line(self, step: int, loss: float, seconds: float) -> str:
        done = max(step - self._first, 1)
        speed = done / max(seconds, 1e-9)
        bar = ("#" * round(_WIDTH * step / max(self._total, 1))).ljust(_WIDTH)
        rate = f"{speed:.3g} steps/s" if self._tokens is None else f"{speed * self._tokens:,.0f} tokens/s"
        memory = memory_bytes()
        used = "" if memory is None else f"  {memory / 1e6:,.0f} MB"
        left = duration_text((self._total - step) / speed)
        return f"{step}/{self._total} [{bar}]  loss {loss:.4g}  {rate}{used}  {left} left"

    def end(self) -> None:
        """Leave the cursor on a line of its own."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = 0

    def note(self, text: str) -> None:
        """A line of its own below the drawn one."""
        if self.on:
            self.end()
            self._stream.write(text + "\n")
            self._stream.flush()

    def _draw(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)
