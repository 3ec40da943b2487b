"""Trading time for memory: blocks of a model whose inner values are computed again instead of kept, as many as needed.

    blocks = [rlx.train.block(nn.transformer_block(6, 1536)) for _ in range(6)]
    step = rlx.train.make_step(loss, optimizer, memory=300_000_000)
    print(step.plan(state, batch))        # known before anything runs

Without a limit a block is what it was. With one, the first program that fits is found by planning, not by running.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import rlx
from rlx.errors import TrainingError
from rlx.nn import Layer

__all__ = ["MemoryPlan", "block"]


class MemoryPlan(NamedTuple):
    """What one step needs: `arena_bytes` between its kernels, and its arguments, the state above all."""

    arena_bytes: int
    argument_bytes: int
    # How many of the blocks compute their values again.
    recomputed: int
    blocks: int

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + self.argument_bytes

    def __str__(self) -> str:
        return (
            f"{self.total_bytes / 1e6:.1f} MB: {self.argument_bytes / 1e6:.1f} of arguments, "
            f"{self.arena_bytes / 1e6:.1f} between kernels, {self.recomputed} of {self.blocks} blocks computed again"
        )


class _Choice:
    """How many blocks the program that is being traced computes again, and how many it has met."""

    def __init__(self, recomputed: int) -> None:
        self.recomputed, self.met = recomputed, 0


_choice: ContextVar[_Choice | None] = ContextVar("recomputed_blocks", default=None)


@contextmanager
def recomputing(count: int) -> Iterator[_Choice]:
    """Programs traced inside compute the values of their first `count` blocks again."""
    choice = _Choice(count)
    token = _choice.set(choice)
    try:
        yield choice
    finally:
        _choice.reset(token)


def block(part: Any) -> Any:
    """A function, or a layer, whose inner values `make_step(..., memory=...)` may choose to compute again."""
    if isinstance(part, Layer):
        return part._replace(apply=block(part.apply))
    again = rlx.checkpoint(part)

    @functools.wraps(part)
    def call(*args: Any, **kwargs: Any) -> Any:
        choice = _choice.get()
        if choice is None:
            return part(*args, **kwargs)
        choice.met += 1
        return (again if choice.met <= choice.recomputed else part)(*args, **kwargs)

    return call


def fitting(plan_of: Callable[[int], MemoryPlan], limit: int) -> MemoryPlan:
    """The plan with the fewest blocks computed again that stays within `limit` bytes."""
    first = plan_of(0)
    if first.total_bytes <= limit:
        return first
    best = plan_of(first.blocks)
    if best.total_bytes > limit:
        hint = "use a smaller batch" if first.blocks else "mark parts of the model with rlx.train.block"
        raise TrainingError(f"make_step: {limit / 1e6:.1f} MB are allowed, the least is {best}; {hint}")
    too_few = 0
    while best.recomputed - too_few > 1:
        middle = plan_of((too_few + best.recomputed) // 2)
        if middle.total_bytes <= limit:
            best = middle
        else:
            too_few = middle.recomputed
    return best
