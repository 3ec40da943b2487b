"""Schedules: learning rates as functions of the number of updates made so far.

    rate = rlx.optim.warmup_cosine(peak=3e-4, warmup_steps=100, decay_steps=1000)
    rate(0), rate(100), rate(1000)        # 0.0, 3e-4, 0.0

A schedule takes a Python int and gives a Python float, or takes a traced integer and gives a traced scalar in f64, so
that a rate does not depend on the dtype of the parameters. Optimisers convert it; who multiplies by hand does so with
`rlx.numpy.astype(rate(step), "f32")`. An array of steps gives an array, as for a picture of the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError

__all__ = [
    "Schedule",
    "constant",
    "cosine",
    "exponential",
    "join",
    "linear",
    "one_cycle",
    "piecewise_constant",
    "polynomial",
    "warmup_cosine",
]

Schedule = Callable[[Any], Any]


def _schedule(formula: Callable[[Any], Any]) -> Schedule:
    """A schedule from a formula of the step in f64."""

    def rate(step: Any) -> Any:
        result = formula(rnp.asarray(step, dtype="f64"))
        return result if isinstance(result, rlx.Tensor) or np.ndim(result) else float(result)

    return rate


def _require_steps(what: str, name: str, steps: int) -> None:
    if steps <= 0:
        raise OpError(f"{what}: {name} must be a positive number of updates, got {steps}")


def constant(value: float) -> Schedule:
    """Always `value`."""
    return lambda step: value


def polynomial(start: float, end: float, power: float, steps: int, begin: int = 0) -> Schedule:
    """From `start` to `end` during `steps` updates after the first `begin` ones; the rest to go has a power."""
    _require_steps("polynomial", "steps", steps)

    def formula(step: Any) -> Any:
        left = 1.0 - rnp.clip(step - begin, 0.0, float(steps)) / steps
        return (start - end) * (left if power == 1 else left**power) + end

    return _schedule(formula)


def linear(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """From `start` to `end` along a line during `steps` updates after the first `begin` ones; then `end`."""
    return polynomial(start, end, 1, steps, begin)


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """From `start` to `end` along half a cosine during `steps` updates; then `end`."""
    _require_steps("cosine", "steps", steps)

    def formula(step: Any) -> Any:
        share = rnp.minimum(step, float(steps)) / steps
        return end + (start - end) * 0.5 * (1.0 + rnp.cos(math.pi * share))

    return _schedule(formula)


def exponential(
    start: float, steps: int, rate: float, begin: int = 0, staircase: bool = False, end: float | None = None
) -> Schedule:
    """`start` times `rate` for every `steps` updates after the first `begin` ones, at once with `staircase`; `end` is
    where it stops."""
    _require_steps("exponential", "steps", steps)
    if rate <= 0:
        raise OpError(f"exponential: rate must be positive, got {rate}")

    def formula(step: Any) -> Any:
        share = (step - begin) / steps
        value = start * rate ** rnp.maximum(rnp.floor(share) if staircase else share, 0.0)
        if end is None:
            return value
        return rnp.maximum(value, end) if rate < 1 else rnp.minimum(value, end)

    return _schedule(formula)


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after another: each counts from the boundary where the one before ends."""
    if len(schedules) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise OpError(
            f"join: {len(schedules)} schedules need {len(schedules) - 1} boundaries in rising order, got {boundaries}"
        )

    def formula(step: Any) -> Any:
        result = rnp.asarray(schedules[0](step), dtype="f64")
        for boundary, schedule in zip(boundaries, schedules[1:]):
            later = rnp.asarray(schedule(step - boundary), dtype="f64")
            result = rnp.where(step < boundary, result, later)
        return result

    return _schedule(formula)


def warmup_cosine(peak: float, warmup_steps: int, decay_steps: int, start: float = 0.0, end: float = 0.0) -> Schedule:
    """Up from `start` to `peak` along a line, then down to `end` along a cosine; `decay_steps` counts both."""
    if not 0 <= warmup_steps < decay_steps:
        raise OpError(
            f"warmup_cosine: decay_steps is the whole length and must be above warmup_steps, "
            f"got {decay_steps} and {warmup_steps}"
        )
    down = cosine(peak, decay_steps - warmup_steps, end)
    return join([linear(start, peak, warmup_steps), down], [warmup_steps]) if warmup_steps else down


def _positions(what: str, scales: Mapping[int, float]) -> list[tuple[int, float]]:
    if any(factor < 0 for factor in scales.values()):
        raise OpError(f"{what}: the factors must not be negative, got {dict(scales)}")
    return sorted(scales.items())


def piecewise_constant(start: float, scales: Mapping[int, float]) -> Schedule:
    """`start`, multiplied by a factor at each of the given counts: {100: 0.1} is a tenth from update 100 on."""
    pieces = _positions("piecewise_constant", scales)

    def formula(step: Any) -> Any:
        result = rnp.full_like(step, start)
        for boundary, factor in pieces:
            result = rnp.where(step < boundary, result, factor * result)
        return result

    return _schedule(formula)


def one_cycle(
    steps: int,
    peak: float,
    rise: float = 0.3,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
    anneal: str = "cosine",
    fall_end: float = 0.85,
) -> Schedule:
    """Up to `peak` in the share `rise` of `steps`, then down far below the start (Smith and Topin 2019).

    It starts at peak/start_divisor. With anneal="cosine" it ends at peak/(start_divisor·end_divisor); with "linear" it
    is back at the start after the share `fall_end` and ends at peak/(start_divisor·end_divisor).
    """
    _require_steps("one_cycle", "steps", steps)
    if anneal not in ("cosine", "linear"):
        raise OpError(f"one_cycle: anneal must be 'cosine' or 'linear', got {anneal!r}")
    low = peak / start_divisor
    corners = [(0, low), (int(rise * steps), peak)]
    if anneal == "linear":
        corners.append((int(fall_end * steps), low))
    corners.append((steps, low / end_divisor))

    def between(low: float, high: float, share: Any) -> Any:
        return low + (high - low) * (share if anneal == "linear" else 0.5 * (1.0 - rnp.cos(math.pi * share)))

    def formula(step: Any) -> Any:
        result = rnp.full_like(step, corners[0][1])
        for (first, a), (last, b) in pairwise(corners):
            if last > first:
                share = rnp.clip((step - first) / (last - first), 0.0, 1.0)
                result = rnp.where(step < first, result, between(a, b, share))
        return result

    return _schedule(formula)
