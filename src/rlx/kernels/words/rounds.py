"""`rounds_of`: how often an invocation goes through the loops of a kernel, as far as sizes say; `in_long_rounds`: the
same kernel with fewer, each of which does more.

llvmpipe, the Vulkan driver of processors, stops after 65,535 rounds of all loops together, and goes on with what it
has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rlx.ir.dtype import DType
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import (
    Barrier,
    Block,
    For,
    GroupStatement,
    If,
    Kernel,
    Let,
    LoopKind,
    Value,
    child_blocks,
    walk,
)
from rlx.kernels.ir.rewrite import Copier, copy_into
from rlx.kernels.words.ranges import Range, Ranges


def rounds_of(kernel: Kernel, sizes: Sequence[int]) -> int:
    """How many rounds some invocation is sure to do with these sizes for the scalar parameters. Loops are left out
    whose ends come from memory or from the rounds of others, or that end as soon as something is found; of two branches
    the shorter one counts."""
    scalars = [p for p in kernel.params if isinstance(p, Value)]
    return _rounds(kernel.body, _OfSizes(kernel, {p: (size, size) for p, size in zip(scalars, sizes, strict=True)}))


class _OfSizes(Ranges):
    """What follows from sizes alone."""

    def __init__(self, kernel: Kernel, known: Mapping[Value, Range]) -> None:
        super().__init__(kernel, known)
        # Indices of serial loops, and what is computed from them; what follows from that of a thread is that of some.
        self.varying: set[Value] = set()
        for statement in self.statements:
            if isinstance(statement, For) and statement.kind is LoopKind.SERIAL:
                self.varying.update((statement.index, *statement.carried, *statement.results))
            elif isinstance(statement, Let) and not self.varying.isdisjoint(statement.args):
                self.varying.add(statement.result)
        self.made = {s.result: s for s in self.statements if isinstance(s, Let)}

    def unknown(self, dtype: DType) -> Range:
        return None

    def distance(self, start: Value, stop: Value) -> Range:
        """How far a value may lie behind another one, as from `start` to min(start + 64, size)."""
        made = self.made.get(stop)
        if made is not None and made.op == "add" and start in made.args:
            return self.range(made.args[1] if made.args[0] is start else made.args[0])
        if made is not None and made.op == "min":
            known = [d for d in (self.distance(start, a) for a in made.args) if d is not None]
            return (min(d[0] for d in known), min(d[1] for d in known)) if known else None
        first, last = self.range(start), self.range(stop)
        return None if first is None or last is None else (last[0] - first[1], last[1] - first[0])


# Rounds of an innermost loop that become one.
JOINED = 16
# What leaving a loop counts for where rounds are counted.
LEAVING = 2


def in_long_rounds(kernel: Kernel) -> Kernel:
    """The same kernel with the bodies of its innermost loops so many times in a row, the later ones if there is such a
    round; not where all threads have to meet in each of them."""
    return copy_into(kernel, GroupBuilder(kernel.name), _Joiner)


class _Joiner(Copier):
    def loop(self, loop: For) -> None:
        inside = list(walk(loop.body))
        if loop.kind is not LoopKind.SERIAL or any(isinstance(s, For | Barrier | GroupStatement) for s in inside):
            return super().loop(loop)
        if loop.body.again is not None:
            return super().loop(loop)
        k, (start, stop, step) = self.builder, self.news((loop.start, loop.stop, loop.step))
        with k.fold(loop.index.name, start, stop, step * JOINED, self.news(loop.inits)) as fold:
            values = self.round(loop, fold.index, fold.values)
            for number in range(1, JOINED):
                index = fold.index + step * number
                values = k.choose(index < stop, partial(self.round, loop, index, values), partial(tuple, values))
            fold.next(*values)
        self.values.update(zip(loop.results, fold.results))

    def round(self, loop: For, index: Value, carried: Sequence[Value]) -> tuple[Value, ...]:
        self.values[loop.index] = index
        self.values.update(zip(loop.carried, carried))
        return self.block(loop.body)


def _rounds(block: Block, ranges: _OfSizes) -> int:
    total = 0
    for statement in block.statements:
        match statement:
            case If(then=then, otherwise=otherwise):
                sides = [_rounds(then, ranges), _rounds(otherwise, ranges)]
                total += min(sides) if otherwise.statements else sides[0]
            case For(kind=LoopKind.SERIAL, body=body):
                total += _times(statement, ranges) * (1 + _rounds(body, ranges)) + LEAVING
            case _:
                total += sum(_rounds(child, ranges) for child in child_blocks(statement))
    return total


def _times(loop: For, ranges: _OfSizes) -> int:
    if loop.body.again is not None or not ranges.varying.isdisjoint((loop.start, loop.stop)):
        return 0
    distance, step = ranges.distance(loop.start, loop.stop), ranges.range(loop.step)
    if distance is None or step is None or step[0] < 1:
        return 0
    return max(0, -(-distance[1] // step[0]))
