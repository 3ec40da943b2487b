"""How large an element-wise region may become."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from rlx.compile.claims.region_encode import REGION_MAX_INPUTS, REGION_MAX_STEPS

_T = TypeVar("_T")


@dataclass(frozen=True)
class FusionLimits:
    """Most steps and most inputs of one region."""

    max_elementwise_steps: int = REGION_MAX_STEPS
    max_elementwise_inputs: int = REGION_MAX_INPUTS

    # What the metadata of a device kernel holds.
    GPU_NATIVE: ClassVar[FusionLimits]
    # Code generated for each region takes any of them.
    UNBOUNDED: ClassVar[FusionLimits]

    def allows(self, steps: int, inputs: int) -> bool:
        return steps <= self.max_elementwise_steps and inputs <= self.max_elementwise_inputs


FusionLimits.GPU_NATIVE = FusionLimits()
FusionLimits.UNBOUNDED = FusionLimits(2**32 - 1, 2**32 - 1)

_active: ContextVar[FusionLimits] = ContextVar("fusion_limits", default=FusionLimits.GPU_NATIVE)


def active_fusion_limits() -> FusionLimits:
    """The limits of the compile that is going on, for passes that are given none."""
    return _active.get()


def with_fusion_limits(limits: FusionLimits, fn: Callable[[], _T]) -> _T:
    """The result of `fn()`, with `limits` active while it runs."""
    token = _active.set(limits)
    try:
        return fn()
    finally:
        _active.reset(token)
