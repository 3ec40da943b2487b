"""`most_rounds`: how often an invocation goes through the loops of a kernel, as far as sizes say; `in_long_rounds`: the
same kernel with fewer, each of which does more.

llvmpipe, the Vulkan driver of processors, stops after 65,535 rounds of all loops together, and goes on with what it
has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlx.ir.dtype import DType
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Barrier, Block, For, GroupStatement, If, Kernel, LoopKind, Value, child_blocks, walk
from rlx.kernels.ir.rewrite import Copier, copy_into
from rlx.kernels.words.ranges import Range, Ranges


def most_rounds(kernel: Kernel, sizes: Sequence[int]) -> int:
    """At most so many, with these sizes for its scalar parameters. Loops whose ends come from memory, or that end as
    soon as something is found, are left out."""
    scalars = [p for p in kernel.params if isinstance(p, Value)]
    ranges = _OfSizes(kernel, {p: (size, size) for p, size in zip(scalars, sizes, strict=True)})
    return _rounds(kernel.body, ranges)


class _OfSizes(Ranges):
    """What follows from sizes alone."""

    def unknown(self, dtype: DType) -> Range:
        return None


# Rounds of an innermost loop that become one.
JOINED = 16


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


def _rounds(block: Block, ranges: Ranges) -> int:
    total = 0
    for statement in block.statements:
        match statement:
            case If(then=then, otherwise=otherwise):
                total += max(_rounds(then, ranges), _rounds(otherwise, ranges))
            case For(kind=LoopKind.SERIAL, body=body):
                total += _times(statement, ranges) * (1 + _rounds(body, ranges))
            case _:
                total += sum(_rounds(child, ranges) for child in child_blocks(statement))
    return total


def _times(loop: For, ranges: Ranges) -> int:
    start, stop, step = (ranges.range(x) for x in (loop.start, loop.stop, loop.step))
    if loop.body.again is not None or start is None or stop is None or step is None or step[0] < 1:
        return 0
    return max(0, -(-(stop[1] - start[0]) // step[0]))
