"""CPU kernels of the transpose and of sparse times sparse at given entries."""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.loop_ir import Value
from rlx.sparse import kernel_numbers as numbers
from rlx.sparse.kernel_numbers import Number, Pattern, merged
from rlx.sparse.kernels_products import balanced_rows
from rlx.sparse.ops_masked import CsrMaskedProduct, CsrTranspose


@op_kernel(CsrTranspose, kind="sparse")
def csr_transpose(site: OpSite) -> None:
    """Entries are counted by column, then brought to their places row by row, so that rows of Aᵀ ascend.

    The bounds of Aᵀ are the counters: while entries are placed, bound c + 1 is where the next entry of column c goes.
    Entries that no row has leave those of Aᵀ as they were set first, to 0.
    """
    k, (values, indices, indptr), (yv, yi, yp) = site.k, site.inputs, site.outputs
    pattern, columns = Pattern(k, indices, indptr), yp.dims[0] - 1
    place = pattern.selects_from(columns)
    index = yp.buffer.dtype

    def bound(column: Value) -> Value:
        return numbers.position(k, yp, column)

    def set_bound(column: Value, value: Value) -> None:
        k.store(yp.buffer, column, k.cast(value, index))

    with k.parallel("all", 1):
        with k.loop("column", 0, columns + 1) as column:
            set_bound(column, k.as_index(0))
        with k.loop("entry", 0, pattern.count) as entry:
            numbers.store(k, yv, entry, numbers.zero(k, yv))
            k.store(yi.buffer, entry, k.const(0, index))
            # Two places ahead: after the sums, bound c + 1 is the first place of column c.
            column = place(entry)
            with k.when(column < columns - 1):
                set_bound(column + 2, bound(column + 2) + 1)
        with k.loop("column", 2, columns + 1) as column:
            set_bound(column, bound(column) + bound(column - 1))
        with k.loop("row", 0, pattern.rows) as row:
            start, stop = pattern.readable(row, columns)
            with k.loop("entry", start, stop) as entry:
                column = place(entry)
                goal = k.max(0, k.min(bound(column + 1), pattern.count - 1))
                numbers.store(k, yv, goal, numbers.load(k, values, values.at(entry)))
                k.store(yi.buffer, goal, k.cast(row, index))
                set_bound(column + 1, goal + 1)


@op_kernel(CsrMaskedProduct, kind="sparse")
def csr_masked_product(site: OpSite) -> None:
    """For each entry of a row of A, the row of B that it selects is merged into the row of the result."""
    k, (a, ai, ap, b, bi, bp, ci, cp), (y,) = site.k, site.inputs, site.outputs
    left, right, mask = Pattern(k, ai, ap), Pattern(k, bi, bp), Pattern(k, ci, cp)
    place = left.selects_from(right.rows)
    with balanced_rows(site, left, k.as_index(64), right.rows) as row:
        first, last = mask.span(row.number)
        with k.loop("goal", first, last) as goal:
            numbers.store(k, y, y.at(goal), numbers.zero(k, y))
        with k.loop("entry", row.start, row.stop) as entry:
            factor = numbers.load(k, a, a.at(entry))

            def meet(source: Value, goal: Value, carried: Number) -> Number:
                known = numbers.load(k, y, y.at(goal))
                term = numbers.load(k, b, b.at(source))
                numbers.store(k, y, y.at(goal), numbers.multiply_add(k, factor, term, known))
                return carried

            merged(k, (right, mask), (right.span(place(entry)), (first, last)), (), meet)
