"""Loss scaling: the loss is multiplied before and the gradients divided after, so that small gradients survive in f16.

A dynamic scale is as large as possible: it is halved when gradients overflow, which skips that step, and doubled after
`growth_interval` good steps in a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx import tree
from rlx.errors import OpError

__all__ = ["DynamicScale", "LossScale"]


class DynamicScale:
    """Settings of a scale that follows the gradients."""

    def __init__(self, initial: float = 2.0**15, factor: float = 2.0, growth_interval: int = 2000) -> None:
        if initial <= 0 or factor <= 1 or growth_interval < 1:
            raise OpError(
                "DynamicScale: initial must be positive, factor above 1 and growth_interval 1 or more, "
                f"got {initial}, {factor} and {growth_interval}"
            )
        self.initial, self.factor, self.growth_interval = initial, factor, growth_interval


class LossScale(NamedTuple):
    """The part of a training state that a dynamic scale needs."""

    scale: Any
    good_steps: Any


def start_scale(setting: DynamicScale | float | None) -> LossScale | None:
    if not isinstance(setting, DynamicScale):
        return None
    return LossScale(np.array(setting.initial, np.float32), np.zeros((), np.int32))


def scale_of(held: LossScale | None, setting: DynamicScale | float | None) -> Any:
    """The factor of this step, or None."""
    if not isinstance(setting, DynamicScale):
        return setting
    if held is None:
        raise OpError("make_step: with a DynamicScale the state needs one too: init_state(..., loss_scale=scale)")
    return held.scale


def all_finite(gradients: Any) -> Any:
    """Whether no gradient has overflown; one bool for all."""
    finite = [rnp.all(rnp.isfinite(g)) for g in tree.leaves(gradients)]
    result = finite[0]
    for one in finite[1:]:
        result = rnp.logical_and(result, one)
    return result


def next_scale(setting: DynamicScale, held: LossScale, good: Any) -> LossScale:
    steps = rnp.where(good, held.good_steps + 1, 0)
    grows = steps >= setting.growth_interval
    grown = rnp.where(grows, held.scale * setting.factor, held.scale)
    scale = rnp.where(good, grown, rnp.maximum(held.scale / setting.factor, 1.0))
    # Twice as much would not be a number any more.
    return LossScale(rnp.where(rnp.isfinite(scale), scale, held.scale), rnp.where(grows, 0, steps))
