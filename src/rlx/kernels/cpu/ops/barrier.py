"""`Barrier`: all operands, copied when all are known."""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import STRIP, along, are_native
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.control.recomputation import Barrier


@op_kernel(Barrier, kind="barrier", supports=lambda op, operands: are_native(*operands))
def barrier(site: OpSite) -> None:
    """Every iteration copies a strip of one operand; their strips are numbered one after the other."""
    k = site.k
    sizes = [total(k, x.dims) for x in site.inputs]
    counts = [k.ceildiv(size, STRIP) for size in sizes]
    every = k.as_index(0)
    for count in counts:
        every = every + count
    with k.parallel("strip", every) as number:
        for x, y, size, count in zip(site.inputs, site.outputs, sizes, counts):
            with k.when((number >= 0) & (number < count)):
                _copy(site, x, y, number * STRIP, k.min(number * STRIP + STRIP, size))
            number = number - count


def _copy(site: OpSite, x: Slab, y: Slab, start: Value, stop: Value) -> None:
    def step(i: Value, lanes: int, mask: Value | None) -> None:
        site.k.store(y.buffer, i, site.k.load(x.buffer, x.offset + i, lanes=lanes, mask=mask), mask=mask)

    along(site.k, site.machine, [x.shape.dtype], start, stop, step)
