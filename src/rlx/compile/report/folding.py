"""Equal parts of a program told once: thirty layers with the same kernels are one run of kernels, thirty times.

    fold("a b c d b c d b c d e".split())     ->    a, (b c d) x 3, e

Positions are compared by signatures; what else differs (the layer's number, its weights) is for the reader to know.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

# The longest run that is looked for, in kernels.
LONGEST = 96
# Positions that a run has to save, to be worth reading about.
LEAST_SAVED = 4


class Run(NamedTuple):
    """`length` positions from `start`, `times` times one after the other."""

    start: int
    length: int
    times: int = 1

    @property
    def saved(self) -> int:
        """How many positions need not be told."""
        return self.length * (self.times - 1)

    @property
    def stop(self) -> int:
        return self.start + self.length * self.times


def fold(signatures: Sequence[Hashable]) -> list[Run]:
    """Runs that cover all positions in order: the one that saves most is found first, then those beside it."""
    numbers: dict[Hashable, int] = {}
    text = [numbers.setdefault(s, len(numbers)) for s in signatures]
    return _fold(text, 0)


def _fold(text: Sequence[int], offset: int) -> list[Run]:
    best = Run(0, len(text))
    for period in range(1, min(LONGEST, len(text) // 2) + 1):
        for start, ahead in enumerate(_equal_ahead(text, period)):
            run = Run(start, period, 1 + ahead // period)
            if run.saved > max(best.saved, LEAST_SAVED - 1):
                best = run
    if not text:
        return []
    if best.times == 1:
        return [Run(offset, len(text))]
    middle = best._replace(start=best.start + offset)
    return [*_fold(text[: best.start], offset), middle, *_fold(text[best.stop :], offset + best.stop)]


def _equal_ahead(text: Sequence[int], period: int) -> list[int]:
    """For each position how many positions from there on equal the one `period` later."""
    found = [0] * len(text)
    for i in range(len(text) - period - 1, -1, -1):
        found[i] = found[i + 1] + 1 if text[i] == text[i + period] else 0
    return found


def stand_ins(runs: Sequence[Run]) -> list[int]:
    """For each position the one that is shown in its place: itself, or the same in the first round of its run."""
    return [run.start + i % run.length for run in runs for i in range(run.length * run.times)]
