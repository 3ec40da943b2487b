"""Factorisations of complex matrices, each by one thread: LU, the reflections of QR and their basis, and the reductions
to Hessenberg and bidiagonal form, which go on in real numbers or in `schur`."""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, numbers, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import are_doubles, each_matrix
from rlx.kernels.cpu.ops.numbers import Number
from rlx.kernels.cpu.ops.pair_matrices import (
    VECTORS,
    Parts,
    flat,
    grouped,
    reflect_columns,
    reflect_rows,
    reflection,
)
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.pair_steps import Hessenberg, PairBasis, PairBidiagonal, PairLu, PairReflectors

# Columns that are eliminated before all others are looked at.
PANEL = 16


@op_kernel(PairLu, kind="factorize", supports=are_doubles)
def pair_lu(site: OpSite) -> None:
    """Panel by panel: its columns one after the other, then U = L⁻¹ A and A -= L U for the columns behind it."""
    k, a, (re, im, pivots, permutation) = site.k, site.inputs, site.outputs
    rows, columns = re.dims[-2:]
    steps = pivots.dims[-1]
    with each_matrix(site, re) as place:
        matrix = Parts(site, (re, im), place)
        matrix.copy(Parts(site, a, place), rows, columns)
        with k.loop("i", 0, rows) as i:
            k.store(permutation.buffer, permutation.at(*place, i), k.cast(i, DType.I32))

        def exchange(i: Value, j: Value) -> None:
            def swap(c: Value, lanes: int, mask: Value | None) -> None:
                one, other = (matrix.at(row, c, lanes=lanes, mask=mask) for row in (i, j))
                matrix.put((i, c), other, mask)
                matrix.put((j, c), one, mask)

            matrix.each(0, columns, swap)
            ids = [permutation.at(*place, row) for row in (i, j)]
            for to, value in zip(ids, [k.load(permutation.buffer, at) for at in reversed(ids)]):
                k.store(permutation.buffer, to, value)

        def eliminate(step: Value, end: Value) -> None:
            with k.fold("i", step, rows, init=[k.const(-1.0, DType.F64), step]) as fold:
                best, where = fold.values
                size = numbers.modulus(k, matrix.at(fold.index, step))
                # NaN is larger than any.
                is_better = ~(size <= best) & k.eq(best, best)
                fold.next(k.select(is_better, size, best), k.select(is_better, fold.index, where))
            pivot = fold.results[1]
            k.store(pivots.buffer, pivots.at(*place, step), k.cast(pivot, DType.I32))
            with k.when(k.ne(pivot, step)):
                exchange(step, pivot)
            head = matrix.at(step, step)
            with k.when(k.ne(head[0], 0.0) | k.ne(head[1], 0.0)), k.loop("i", step + 1, rows) as i:
                factor = numbers.divide(k, matrix.at(i, step), head)
                matrix.put((i, step), factor)

                def subtract(c: Value, lanes: int, mask: Value | None) -> None:
                    known, x = (matrix.at(row, c, lanes=lanes, mask=mask) for row in (step, i))
                    matrix.put((i, c), numbers.multiply_subtract(k, numbers.splat(k, factor, lanes), known, x), mask)

                matrix.each(step + 1, end, subtract)

        with k.loop("panel", 0, steps, PANEL) as first:
            end = k.min(first + PANEL, steps)
            with k.loop("step", first, end) as step:
                eliminate(step, end)

            def follow(places: list[Value], lanes: int, mask: Value | None) -> None:
                with k.loop("i", first, rows) as i:
                    start = flat([matrix.at(i, c, lanes=lanes, mask=mask) for c in places])
                    with k.fold("p", first, k.min(i, end), init=start) as fold:
                        factor = numbers.splat(k, matrix.at(i, fold.index), lanes)
                        known = [matrix.at(fold.index, c, lanes=lanes, mask=mask) for c in places]
                        sums = grouped(fold.values, 2)
                        fold.next(*flat([numbers.multiply_subtract(k, factor, y, x) for x, y in zip(sums, known)]))
                    for c, value in zip(places, grouped(fold.results, 2)):
                        matrix.put((i, c), value, mask)

            matrix.strips(end, columns, follow)


@op_kernel(PairReflectors, kind="factorize", supports=are_doubles)
def pair_reflectors(site: OpSite) -> None:
    k, a, outputs = site.k, site.inputs, site.outputs
    rows, columns = a[0].dims[-2:]
    with each_matrix(site, a[0]) as place:
        matrix, scales = (Parts(site, outputs[i : i + 2], place) for i in (0, 2))
        matrix.copy(Parts(site, a, place), rows, columns)
        with k.loop("step", 0, outputs[2].dims[-1]) as step:
            scale, beta = reflection(matrix, lambda i: (i, step), step, rows, conj=False)
            scales.put((step,), scale)
            matrix.put((step, step), (beta, k.const(0.0, DType.F64)))
            _to_columns(matrix, step, step, numbers.conjugate(scale), rows, columns)


def _to_columns(matrix: Parts, first: Value, column: Value, factor: Number, rows: Value, columns: Value) -> None:
    """What the reflection that lies in a column, from row `first` on, does to the columns behind it."""

    def direction(i: Value) -> Number:
        return matrix.at(i, column)

    matrix.strips(column + 1, columns, lambda *strip: reflect_columns(matrix, direction, factor, (first, rows), strip))


@op_kernel(PairBasis, kind="factorize", supports=are_doubles)
def pair_basis(site: OpSite) -> None:
    """Columns of the identity, reflected by the last reflection first; those of a block go their own way."""
    k, inputs, outputs = site.k, site.inputs, site.outputs
    lead, (rows, columns) = outputs[0].dims[:-2], outputs[0].dims[-2:]
    width = VECTORS * site.machine.lanes(DType.F64)
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", total(k, lead) * blocks) as block:
        place = unflatten(block // blocks, lead)
        first = block % blocks * width
        end = k.min(first + width, columns)
        packed, scales, basis = (Parts(site, s, place) for s in (inputs[:2], inputs[2:], outputs))
        count = k.min(inputs[2].dims[-1], end)

        def build(places: list[Value], lanes: int, mask: Value | None) -> None:
            with k.loop("i", 0, rows) as i:
                for c in places:
                    lane = k.splat(c, lanes) + k.iota(DType.I64, lanes) if lanes > 1 else c
                    is_one = k.eq(lane, k.splat(i, lanes))
                    one, zero = (basis.number(x, lanes) for x in (1.0, 0.0))
                    basis.put((i, c), numbers.choose(k, is_one, one, zero), mask)
            with k.loop("back", 0, count) as back:
                step = count - 1 - back
                direction: Callable[[Value], Number] = lambda i: packed.at(i, step)  # noqa: E731
                reflect_columns(basis, direction, scales.at(step), (step, rows), (places, lanes, mask))

        basis.strips(first, end, build)


@op_kernel(Hessenberg, kind="factorize", supports=are_doubles)
def hessenberg(site: OpSite) -> None:
    k, a, outputs = site.k, site.inputs, site.outputs
    count, size = len(a), a[0].dims[-1]
    with each_matrix(site, a[0]) as place:
        matrix, scales, line = (Parts(site, outputs[i * count : (i + 1) * count], place) for i in range(3))
        matrix.copy(Parts(site, a, place), size, size)
        with k.when(size > 0):
            scales.put((size - 1,), scales.number(0.0))
            # No reflection has an element there, and space is a result too.
            line.put((k.as_index(0),), line.number(0.0))
        with k.loop("step", 0, size - 1) as step:
            first = step + 1
            scale, beta = reflection(matrix, lambda i: (i, step), first, size, conj=False)
            scales.put((step,), scale)
            line.put((first,), line.number(1.0))
            with k.loop("i", first + 1, size) as i:
                line.put((i,), matrix.at(i, step))
            matrix.put((first, step), (beta, *matrix.number(0.0)[1:]))
            _to_columns(matrix, first, step, numbers.conjugate(scale), size, size)
            reflect_rows(matrix, line, scale, (k.as_index(0), size), (first, size))


@op_kernel(PairBidiagonal, kind="factorize", supports=are_doubles)
def pair_bidiagonal(site: OpSite) -> None:
    k, a, outputs = site.k, site.inputs, site.outputs
    rows, columns = a[0].dims[-2:]
    diagonal, beside = outputs[4:6]
    with each_matrix(site, a[0]) as place:
        matrix, scales, line = (Parts(site, outputs[i : i + 2], place) for i in (0, 2, 6))
        matrix.copy(Parts(site, a, place), rows, columns)
        with k.loop("step", 0, columns) as step:
            scale, beta = reflection(matrix, lambda i: (i, step), step, rows, conj=False)
            k.store(diagonal.buffer, diagonal.at(*place, step), beta)
            _to_columns(matrix, step, step, numbers.conjugate(scale), rows, columns)
            first = step + 1
            with k.when(first < columns):
                scale, beta = reflection(matrix, lambda j: (step, j), first, columns, conj=True)
                scales.put((step,), scale)
                k.store(beside.buffer, beside.at(*place, step), beta)
                line.put((first,), line.number(1.0))
                line.each(
                    first + 1,
                    columns,
                    lambda j, n, mask: line.put((j,), matrix.at(step, j, lanes=n, mask=mask), mask),
                )
                reflect_rows(matrix, line, scale, (first, rows), (first, columns))
            with k.otherwise():
                scales.put((step,), scales.number(0.0))
                line.put((k.as_index(0),), line.number(0.0))
                k.store(beside.buffer, beside.at(*place, step), 0.0)
