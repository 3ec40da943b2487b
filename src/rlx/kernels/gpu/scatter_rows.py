"""Scatter of whole rows on GPUs, as the gradient of an embedding is: a block for each update.

The block of the first update of a row of x brings all of them, in the order of the op, and blocks of later updates of
the same row do nothing; so no two blocks write one place, nothing is atomic, and results are the same in every run. To
find the others, threads look through the ids, each through a part of them.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.scatter import Scatter
from rlx.kernels.cpu.ops.strips import run_length
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Kernel, Value
from rlx.ops.shape.indexing import ScatterNd

THREADS = 128


def is_row_scatter(site: OpSite) -> bool:
    """Updates of whole rows of x, which are told apart by their first axes."""
    op = site.op
    if not isinstance(op, ScatterNd) or op.batch_dims or op.axes != tuple(range(len(op.axes))):
        return False
    # Rows lie side by side in the updates, too.
    return 0 < len(site.outputs[0].dims) - len(op.axes) <= max(1, run_length(site, site.inputs[2]))


def scatter_rows_kernel(site: OpSite) -> Kernel:
    """The kernel of a site for which `is_row_scatter` holds."""
    scatter, k = Scatter(site), site.k
    count = total(k, scatter.points)
    part = k.ceildiv(count, THREADS)

    def row(point: Value) -> Value:
        """Where the row of an update begins, or -1 if it goes nowhere."""
        offset, exists = scatter.place(unflatten(point, scatter.points))
        return offset if exists is None else k.select(exists, offset, -1)

    found = k.shared("found", DType.I32, THREADS)
    earlier = k.shared("earlier", DType.I32, THREADS)
    with k.parallel("update", count) as update, k.threads("thread", THREADS) as thread:
        own = row(update)
        zero, one = (k.const(n, DType.I32) for n in (0, 1))
        start = thread * part
        with k.fold("point", start, k.min(start + part, count), init=[zero, zero]) as fold:
            is_same = k.eq(row(fold.index), own)
            before = k.select(is_same & (fold.index < update), one, zero)
            fold.next(fold.values[0] | k.select(is_same, one, zero), fold.values[1] | before)
        k.store(found, thread, fold.results[0])
        k.store(earlier, thread, fold.results[1])
        k.barrier()
        with k.fold("other", 0, THREADS, init=[zero]) as fold:
            fold.next(fold.values[0] | k.load(earlier, fold.index))
        is_first = k.eq(fold.results[0], 0) & (own >= 0)
        with k.when(is_first), k.loop("other", 0, THREADS) as other, k.when(k.ne(k.load(found, other), 0)):
            first = other * part
            with k.loop("point", first, k.min(first + part, count)) as point, k.when(k.eq(row(point), own)):
                source = scatter.updates.at(*unflatten(point, scatter.points))
                with k.loop("column", thread, scatter.length, THREADS) as column:
                    goal = own + scatter.y.offset + column
                    scatter.move(goal, source + scatter.step * column, 1, None)
    return k.build()
