"""The CPU kernel of products with matrices in blocks; rows of blocks are dealt out as those of `kernels_products`."""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.loop_ir import Value
from rlx.sparse import kernel_numbers as numbers
from rlx.sparse.kernel_numbers import Pattern
from rlx.sparse.kernels_products import Place, Row, balanced_rows, for_columns
from rlx.sparse.ops_blocks import BsrMatMul

# Rows of a block whose sums are held in registers at once.
ROWS = 8


@op_kernel(BsrMatMul, kind="sparse", supports=lambda op, operands: max(operands[0].dims[1:]) <= ROWS)
def bsr_matmul(site: OpSite) -> None:
    k, (values, indices, indptr, x) = site.k, site.inputs
    r, c = (int(n) for n in values.shape.dims[1:])
    pattern = Pattern(k, indices, indptr)
    columns = x.dims[0] // c
    place = pattern.selects_from(columns)
    width = k.as_index(r * c) * (x.dims[1] if len(x.dims) == 2 else 1)
    with balanced_rows(site, pattern, width, columns) as row:
        if len(x.dims) == 1:
            _block_row(site, row, place)
        else:
            for_columns(site, x, lambda *columns: _block_row_of_columns(site, row, place, *columns), vectors=1)


def _block_row(site: OpSite, row: Row, place: Place) -> None:
    """One row of blocks times a vector: a row of a block is a vector of its columns, where these fit into one."""
    k, (values, _, _, x), (y,) = site.k, site.inputs, site.outputs
    r, c = (int(n) for n in values.shape.dims[1:])
    lanes = c if c in (2, 4, 8) and c <= site.machine.lanes(x.buffer.dtype) else 1
    zero = numbers.zero(k, x, lanes)
    parts = len(zero)
    with k.fold("block", row.start, row.stop, init=list(zero) * r) as fold:
        source = place(fold.index) * c
        known = [numbers.load(k, x, x.at(source + j), lanes) for j in range(0, c, lanes)]
        sums: list[Value] = []
        for i in range(r):
            total = fold.values[i * parts : (i + 1) * parts]
            for j, part in enumerate(known):
                value = numbers.load(k, values, values.at(fold.index, i, j * lanes), lanes)
                total = numbers.multiply_add(k, value, part, total)
            sums += total
        fold.next(*sums)
    for i in range(r):
        total = tuple(k.reduce("add", part) for part in fold.results[i * parts : (i + 1) * parts])
        numbers.store(k, y, y.at(row.number * r + i), total)


def _block_row_of_columns(
    site: OpSite, row: Row, place: Place, first: Value, lanes: int, count: int, mask: Value | None
) -> None:
    """One row of blocks times one vector of columns of X."""
    assert count == 1
    k, (values, _, _, x), (y,) = site.k, site.inputs, site.outputs
    r, c = (int(n) for n in values.shape.dims[1:])
    zero = numbers.zero(k, x, lanes)
    parts = len(zero)
    with k.fold("block", row.start, row.stop, init=list(zero) * r) as fold:
        source = place(fold.index) * c
        totals = [fold.values[i * parts : (i + 1) * parts] for i in range(r)]
        for j in range(c):
            known = numbers.load(k, x, x.at(source + j, first), lanes, mask)
            for i in range(r):
                value = numbers.splat(k, numbers.load(k, values, values.at(fold.index, i, j)), lanes)
                totals[i] = numbers.multiply_add(k, value, known, totals[i])
        fold.next(*(part for total in totals for part in total))
    for i in range(r):
        numbers.store(k, y, y.at(row.number * r + i, first), fold.results[i * parts : (i + 1) * parts], mask)
