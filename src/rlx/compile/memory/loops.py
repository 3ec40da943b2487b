"""How many bytes a program needs between its kernels with its loops: before a run, also where sizes are symbolic.

A loop has places of its own for carries that go to and fro, and its bodies have arenas. Both lie behind the arena of
the program around it. Bodies run one after the other, and so do loops: the one that needs most counts.

    working_bytes(lir, generator)      # the arena of `lir`, and what its loops need beyond it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlx.compile.memory.packing import ALIGNMENT, aligned
from rlx.ir.dims import dim_max
from rlx.ir.kernel_kind import LOOP
from rlx.ir.op import Op
from rlx.ir.shape import Size
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan

if TYPE_CHECKING:
    from rlx.compile.generators import Generator
    from rlx.ir.lir import LirModule


class LoopNeeds(NamedTuple):
    """A loop: the bytes of each of its carries, whether a body stores it over the one that it was given, and what the
    bodies need, each with its own loops."""

    op: Op
    carries: tuple[Size, ...]
    in_place: tuple[bool, ...]
    bodies: tuple[Size, ...]


def with_loops(arena: Size, loops: Iterable[LoopNeeds]) -> Size:
    """The bytes of an arena and of what lies behind it."""
    most = arena
    for loop in loops:
        end = aligned(arena, ALIGNMENT)
        for size in spare_sizes(loop.op, loop.carries, loop.in_place):
            end = end + aligned(size, ALIGNMENT)
        for body in loop.bodies:
            most = dim_max(most, end + body)
    return most


def spare_sizes(op: Op, carries: Sequence[Size], in_place: Sequence[bool]) -> list[Size]:
    """The places that a loop has beside its results: for carries that are not stored in place, and for a condition."""
    moving = [size for size, stays in zip(carries, in_place, strict=True) if not stays]
    if isinstance(op, Scan):
        # By turns in the result and another place; a whole trajectory is stored row by row, rows of few are copied.
        places = 1 if not op.save_trajectory else 2 if op.num_checkpoints else 0
        return [size for size in moving for _ in range(places)]
    if isinstance(op, While):
        return [*(size for size in moving for _ in range(2)), 1]
    assert isinstance(op, If)
    return [1]


def working_bytes(lir: LirModule, generator: Generator) -> Size:
    """What a program needs between its kernels, its loops included."""
    from rlx.compile.lower.bodies import native_bodies

    graph = lir.as_graph()
    loops = []
    for kernel in lir.kernels:
        if kernel.kind == LOOP:
            node = graph.nodes[kernel.nodes[0]]
            bodies = native_bodies(graph, node, generator)
            moving = bodies[-1]
            count = carry_count(node.op)
            sizes = tuple(moving.as_graph().shape(o).byte_size for o in moving.as_graph().outputs[:count])
            stays = tuple(_is_in_place(moving, number) for number in range(count))
            needs = tuple(working_bytes(body, generator) for body in bodies)
            loops.append(LoopNeeds(node.op, sizes, stays, needs))
    return with_loops(lir.arena_size, loops)


def carry_count(op: Op) -> int:
    """How many of the results of its last body a loop carries on."""
    if isinstance(op, Scan):
        return op.num_carry
    return len(op.body.outputs) if isinstance(op, While) else 0


def _is_in_place(body: LirModule, number: int) -> bool:
    """Whether a result lies in the memory of the operand of its number."""
    graph = body.as_graph()
    output = graph.outputs[number]
    if number not in graph.aliases or graph.outputs.index(output) != number:
        return False
    view = body.buffers.view_aliases.get(output)
    return graph.leaf(graph.aliases[number]).id == (output if view is None else view.root)
