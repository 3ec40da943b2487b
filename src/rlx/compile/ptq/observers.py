"""Calibration methods: from the magnitudes of a value to the largest one that quantisation should not clip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.errors import RlxError

Array = np.ndarray[Any, np.dtype[Any]]

# Codes lie between -LEVELS and LEVELS.
LEVELS = 127
SMALLEST_SCALE = 1e-6


class Observer(ABC):
    """Sees magnitudes, batch by batch, and chooses the largest one that is not clipped."""

    @abstractmethod
    def observe(self, magnitudes: Array) -> None:
        """Take note of some |x|, a flat array of f64."""

    @abstractmethod
    def threshold(self) -> float: ...


class MaxAbs(Observer):
    """The largest magnitude: nothing is clipped."""

    def __init__(self) -> None:
        self._largest = 0.0

    def observe(self, magnitudes: Array) -> None:
        self._largest = max(self._largest, float(magnitudes.max(initial=0.0)))

    def threshold(self) -> float:
        return self._largest


class _Histogram(Observer):
    """Counts of magnitudes in equal bins from 0 on. When a larger value comes, bins are joined in pairs."""

    BINS = 2048

    def __init__(self) -> None:
        self.counts = np.zeros(self.BINS)
        self.limit = 0.0

    def observe(self, magnitudes: Array) -> None:
        largest = float(magnitudes.max(initial=0.0))
        if largest == 0.0:
            self.counts[0] += magnitudes.size
            return
        if self.limit == 0.0:
            self.limit = largest
        while self.limit < largest:
            joined = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([joined, np.zeros(self.BINS // 2)])
            self.limit *= 2
        self.counts += np.histogram(magnitudes, self.BINS, (0.0, self.limit))[0]

    @property
    def width(self) -> float:
        return self.limit / self.BINS

    @property
    def centres(self) -> Array:
        return (np.arange(self.BINS) + 0.5) * self.width

    def last_used(self) -> int:
        """How many bins there are up to the last one with a count."""
        used = np.nonzero(self.counts)[0]
        return int(used[-1]) + 1 if used.size else 0


class Percentile(_Histogram):
    """The magnitude below which `percent` of all lie: a few outliers are clipped."""

    def __init__(self, percent: float = 99.99) -> None:
        if not 0.0 < percent <= 100.0:
            raise RlxError(f"Percentile: needs a number above 0 and up to 100, got {percent}")
        super().__init__()
        self.percent = percent

    def threshold(self) -> float:
        share = np.cumsum(self.counts)
        wanted = share[-1] * self.percent / 100.0
        return float((np.searchsorted(share, wanted) + 1) * self.width)


class MeanSquareError(_Histogram):
    """The threshold with the smallest mean square of rounding and clipping errors."""

    CANDIDATES = 128

    def threshold(self) -> float:
        top = self.last_used() * self.width
        candidates = top * (np.arange(self.CANDIDATES) + 1) / self.CANDIDATES
        return float(candidates[int(np.argmin([self._error(t) for t in candidates]))])

    def _error(self, threshold: float) -> float:
        step = max(threshold / LEVELS, SMALLEST_SCALE)
        rounded = np.minimum(np.rint(self.centres / step), LEVELS) * step
        return float(np.sum(self.counts * (self.centres - rounded) ** 2))


class Entropy(_Histogram):
    """The threshold at which the distribution of the rounded values says most about that of the values: the one with
    the smallest Kullback-Leibler divergence."""

    STRIDE = 8

    def threshold(self) -> float:
        used = self.last_used()
        if used <= LEVELS + 1:
            return used * self.width
        ends = [*range(LEVELS + 1, used, self.STRIDE), used]
        return ends[int(np.argmin([self._divergence(end) for end in ends]))] * self.width

    def _divergence(self, end: int) -> float:
        """Of the first `end` bins, with what is clipped counted in the last, from their form in LEVELS + 1 groups."""
        kept = self.counts[:end]
        wanted = kept.copy()
        wanted[-1] += self.counts[end:].sum()
        group = np.arange(end) * (LEVELS + 1) // end
        totals = np.bincount(group, kept, LEVELS + 1)
        filled = np.bincount(group, kept > 0, LEVELS + 1)
        # A group's count is spread over those of its bins that have one.
        spread = np.where(kept > 0, (totals / np.maximum(filled, 1))[group], 0.0)
        p, q = wanted / wanted.sum(), spread / max(spread.sum(), 1.0)
        # What is clipped may be all that the last bin has.
        seen = p > 0
        return float(np.sum(p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-12))))


METHODS: dict[str, Callable[[], Observer]] = {
    "max_abs": MaxAbs,
    "percentile": Percentile,
    "mse": MeanSquareError,
    "entropy": Entropy,
}
