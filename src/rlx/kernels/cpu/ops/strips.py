"""How kernels of one op walk through memory: rows dealt out in strips, strips in vectors.

Strips are cut by the shape alone, so that results do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, contiguous
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import ALL, Const, Value
from rlx.kernels.machines import Machine

# Elements per parallel iteration: some tens of microseconds of memory traffic.
STRIP = 8192

# What is done with some neighbouring elements: the first index, how many, and which of them exist (None: all).
Step = Callable[[Value, int, Value | None], None]


def are_native(*types: Shape) -> bool:
    """Whether kernels can load and store all of these."""
    return all(t.dtype in ALL for t in types)


@contextmanager
def strips(k: KernelBuilder, rows: Value, length: Value, strip: int = STRIP) -> Iterator[tuple[Value, Value, Value]]:
    """Deal out rows of `length` elements; gives (row, start, stop). One iteration has several short rows, or a part of
    a long one."""
    parts = k.ceildiv(length, strip)
    together = k.max(1, k.as_index(strip) // k.max(length, 1))
    with k.parallel("strip", (rows + (together - 1)) // together * parts) as number:
        first = number // parts * together
        start = number % parts * strip
        with k.loop("row", first, k.min(first + together, rows)) as row:
            yield row, start, k.min(start + strip, length)


@contextmanager
def whole_rows(k: KernelBuilder, rows: Value, length: Value, strip: int = STRIP) -> Iterator[Value]:
    """Deal out rows that stay in one piece, short ones together."""
    together = k.max(1, k.as_index(strip) // k.max(length, 1))
    with k.parallel("rows", (rows + (together - 1)) // together) as number:
        first = number * together
        with k.loop("row", first, k.min(first + together, rows)) as row:
            yield row


def columns(
    k: KernelBuilder,
    machine: Machine,
    dtypes: Sequence[DType],
    sizes: tuple[Value, Value, Value],
    step: Callable[[Value, Value, int, Value | None], None],
) -> None:
    """Deal out the columns of [outer, length, inner], neighbours of `inner` in one vector; a step gets the outer index,
    the first inner index, how many columns it has, and which of them exist."""
    outer, length, inner = sizes
    lanes = min(machine.lanes(d) for d in dtypes)
    width = k.max(lanes, k.as_index(STRIP) // k.max(length, 1) // lanes * lanes)
    parts = (inner + (width - 1)) // width
    with k.parallel("part", outer * parts) as number:
        start = number % parts * width
        place = number // parts
        along(k, machine, dtypes, start, k.min(start + width, inner), lambda *found: step(place, *found))


def along(k: KernelBuilder, machine: Machine, dtypes: Sequence[DType], start: Value, stop: Value, step: Step) -> None:
    """Visit start..stop in vectors that fit all of these types: whole ones, then a masked one or single elements."""
    lanes = min(machine.lanes(d) for d in dtypes)
    if lanes == 1:
        with k.loop("i", start, stop) as i:
            step(i, 1, None)
        return
    whole = start + (stop - start) // lanes * lanes
    with k.loop("i", start, whole, lanes) as i:
        step(i, lanes, None)
    if _is_multiple(start, lanes) and _is_multiple(stop, lanes):
        return
    if all(machine.has_masked_access(d) for d in dtypes):
        with k.when(whole < stop):
            step(whole, lanes, k.lane_mask(stop - whole, lanes))
    else:
        with k.loop("i", whole, stop) as i:
            step(i, 1, None)


def _is_multiple(place: Value, lanes: int) -> bool:
    return isinstance(place, Const) and int(place.literal) % lanes == 0


def around(k: KernelBuilder, slab: Slab, axis: int) -> tuple[Value, Value, Value]:
    """The sizes before an axis, of it, and behind it, each as one."""
    return total(k, slab.dims[:axis]), slab.dims[axis], total(k, slab.dims[axis + 1 :])


def is_one(size: Value) -> bool:
    return isinstance(size, Const) and size.literal == 1


def run_length(site: OpSite, slab: Slab) -> int:
    """How many of the last axes of an operand lie in memory without a gap."""
    wanted = [site.size(s) for s in contiguous(slab.shape.dims)]
    count = 0
    for size, stride, gapless in zip(reversed(slab.shape.dims), reversed(slab.strides), reversed(wanted)):
        # Equal sizes are one value of the kernel.
        if size != 1 and stride is not gapless:
            break
        count += 1
    return count
