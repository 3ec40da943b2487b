"""Where each value of an integer program lies in the arena, decided before anything runs.

Values that are never alive together share bytes, and steps that read each element before they overwrite it work in
place. `lower_bound` is the largest number of bytes that are alive at one step; no plan of the same order needs less.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlx.backends.cortex_m.c_sequences import scratch_bytes
from rlx.quantized import (
    Add,
    AddConstant,
    Clamp,
    Interpolate,
    LayerNorm,
    Lookup,
    MaxPool,
    MeanPool,
    Mul,
    Program,
    Rescale,
    Softmax,
)
from rlx.quantized.steps import Step

ALIGNMENT = 4
_TRIES = 300


@dataclass(frozen=True)
class Arena:
    """The offset of every value, the size of all, and what no plan can undercut.

    `scratch` has the offset of what a step needs beside its values, by the number of the value that it gives.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int
    scratch: Mapping[int, int] = field(default_factory=dict)


class _Life(NamedTuple):
    """A value from the step that writes it to the last one that reads it."""

    size: int
    first: int
    last: int


@dataclass
class _Buffer:
    """A place, and the values that lie there one after the other, each made of the one before it."""

    lives: list[_Life]
    offset: int = 0

    def size_at(self, time: int) -> int:
        return max((v.size for v in self.lives if v.first <= time <= v.last), default=0)

    def conflicts(self, offset: int, other: _Buffer) -> int | None:
        """The lowest offset behind what is in the way of this buffer at `offset`; None if nothing of `other` is."""
        ends = [
            other.offset + b.size
            for a in self.lives
            for b in other.lives
            if a.first <= b.last
            and b.first <= a.last
            and offset < other.offset + b.size
            and other.offset < offset + a.size
        ]
        return max(ends, default=None)


def plan_arena(program: Program) -> Arena:
    """The plan with the smallest arena that some hundred orders of placing give; the same each time."""
    buffer_of = _buffers(program)
    scratch = {
        time: _Buffer([_Life(_aligned(size), time, time)])
        for time, step in enumerate(program.steps, 1)
        if (size := scratch_bytes(step))
    }
    buffers = list({id(b): b for b in [*buffer_of, *scratch.values()]}.values())
    bound = max(sum(b.size_at(t) for b in buffers) for t in range(len(program.steps) + 1))
    order = sorted(buffers, key=lambda b: (-max(v.size for v in b.lives), b.lives[0].first))
    shuffle = random.Random(0).shuffle
    best, offsets = _place(order), [b.offset for b in buffers]
    for _ in range(_TRIES):
        if best == bound:
            break
        shuffle(order)
        size = _place(order)
        if size < best:
            best, offsets = size, [b.offset for b in buffers]
    place = {id(b): offset for b, offset in zip(buffers, offsets)}
    offsets_of = tuple(place[id(b)] for b in buffer_of)
    return Arena(offsets_of, best, bound, {time: place[id(b)] for time, b in scratch.items()})


def last_uses(program: Program) -> list[int]:
    """The last step that reads each value, counted from 1; the result is read after all of them."""
    # A value that nobody reads is alive while it is written.
    last_use = list(range(len(program.values)))
    for time, step in enumerate(program.steps, 1):
        for i in step.inputs:
            last_use[i] = time
    last_use[-1] = len(program.steps)
    return last_use


def _buffers(program: Program) -> list[_Buffer]:
    """The buffer of every value. Step number n reads its inputs and writes its result at time n + 1."""
    last_use = last_uses(program)
    found = [_Buffer([_Life(_aligned(program.input.size_bytes), 0, last_use[0])])]
    for time, step in enumerate(program.steps, 1):
        life = _Life(_aligned(step.out.size_bytes), time, last_use[time])
        taken = next((i for i in step.inputs if _in_place(program, step, i) and last_use[i] == time), None)
        if taken is None:
            found.append(_Buffer([life]))
        else:
            found[taken].lives.append(life)
            found.append(found[taken])
    return found


def _in_place(program: Program, step: Step, index: int) -> bool:
    """Whether the result may lie where the operand is: elements are read before something is written over them."""
    operand = program.values[index]
    if isinstance(step, Clamp | Rescale | Add | AddConstant | Mul | Lookup | Interpolate | Softmax | LayerNorm):
        return operand.dtype is step.out.dtype and step.inputs.count(index) == 1
    # A window lies at or behind the place of its result, in rows and in columns.
    return isinstance(step, MaxPool | MeanPool) and step.padding == ((0, 0), (0, 0))


def _place(order: Sequence[_Buffer]) -> int:
    """Put each buffer at the lowest offset that is free during its life."""
    placed: list[_Buffer] = []
    for buffer in order:
        offset = 0
        while ends := [end for other in placed if (end := buffer.conflicts(offset, other)) is not None]:
            # Anything lower is in somebody's way too, except behind a smaller one of them.
            offset = min(ends)
        buffer.offset = offset
        placed.append(buffer)
    return max((b.offset + v.size for b in placed for v in b.lives), default=0)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
