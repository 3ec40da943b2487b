"""Householder's QR: reflections that clear a matrix below its diagonal, and the basis that they make."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.matrix_strips import VECTORS, Strip, are_doubles, copy_matrix, each_matrix, strips_of
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.factor_steps import ReflectedBasis, Reflectors


@op_kernel(Reflectors, kind="factorize", supports=are_doubles)
def reflectors(site: OpSite) -> None:
    """Column by column: the reflection that clears it below the diagonal, then its effect on all columns behind it."""
    k, (a,), (packed, scales) = site.k, site.inputs, site.outputs
    rows, columns = a.dims[-2:]
    with each_matrix(site, a) as place:
        copy_matrix(site, place, a, packed)
        with k.loop("step", 0, scales.dims[-1]) as step:
            scale = _reflection(site, place, step)
            k.store(scales.buffer, scales.at(*place, step), scale)
            strips_of(site, step + 1, columns, lambda strip: _reflect(place, packed, rows, step, scale, packed, strip))


def _reflection(site: OpSite, place: Sequence[Value], step: Value) -> Value:
    """Leaves v below the diagonal of a column, the length of what was there on it, and gives the scale; 0 if there is
    nothing to clear. All is done in units of the largest element, so that no square overflows or gets lost."""
    k, packed = site.k, site.outputs[0]
    rows = packed.dims[-2]
    zero = k.const(0.0, DType.F64)

    def at(row: Value) -> Value:
        return packed.at(*place, row, step)

    head = k.load(packed.buffer, at(step))
    with k.fold("i", step + 1, rows, init=[zero]) as highest:
        highest.next(k.max(highest.values[0], k.abs(k.load(packed.buffer, at(highest.index)))))

    def clear() -> list[Value]:
        unit = k.max(highest.results[0], k.abs(head))
        start = head / unit
        with k.fold("i", step + 1, rows, init=[start * start]) as squares:
            part = k.load(packed.buffer, at(squares.index)) / unit
            squares.next(squares.values[0] + part * part)
        length = k.sqrt(squares.results[0])
        # The other sign than the head has: their difference is then exact enough to divide by.
        turned = k.select(k.bitcast(head, DType.I64) < 0, length, -length)
        with k.loop("i", step + 1, rows) as i:
            k.store(packed.buffer, at(i), k.load(packed.buffer, at(i)) / unit / (start - turned))
        k.store(packed.buffer, at(step), unit * turned)
        return [(turned - start) / turned]

    (scale,) = k.choose(k.ne(highest.results[0], 0.0), clear, lambda: [zero])
    return scale


def _reflect(
    place: Sequence[Value], packed: Slab, rows: Value, step: Value, scale: Value, matrix: Slab, strip: Strip
) -> None:
    """Columns of `matrix` without scale·v·(vᵀ·column), where v is the reflection of a step."""
    k = strip.k

    def direction(i: Value) -> Value:
        return strip.same(k.load(packed.buffer, packed.at(*place, i, step)))

    top = strip.load(matrix, *place, step)
    with k.fold("i", step + 1, rows, init=top) as fold:
        v = direction(fold.index)
        known = strip.load(matrix, *place, fold.index)
        fold.next(*(s + v * x for s, x in zip(fold.values, known)))
    shares = [s * strip.same(scale) for s in fold.results]
    strip.store(matrix, [*place, step], [x - s for x, s in zip(top, shares)])
    with k.loop("i", step + 1, rows) as i:
        v = direction(i)
        known = strip.load(matrix, *place, i)
        strip.store(matrix, [*place, i], [x - v * s for x, s in zip(known, shares)])


@op_kernel(ReflectedBasis, kind="factorize", supports=are_doubles)
def reflected_basis(site: OpSite) -> None:
    """Columns of the identity, reflected by the last reflection first. Those of a block go their own way; reflections
    that begin below all of them leave them as they are."""
    k, (packed, scales), (basis,) = site.k, site.inputs, site.outputs
    lead, (rows, columns) = basis.dims[:-2], basis.dims[-2:]
    width = VECTORS * site.machine.lanes(DType.F64)
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", total(k, lead) * blocks) as block:
        place = unflatten(block // blocks, lead)
        first = block % blocks * width
        end = k.min(first + width, columns)
        count = k.min(scales.dims[-1], end)

        def build(strip: Strip) -> None:
            with k.loop("i", 0, rows) as i:
                unit = [_is_at(strip, c, i) for c in strip.firsts]
                strip.store(basis, [*place, i], unit)
            with k.loop("back", 0, count) as back:
                step = count - 1 - back
                scale = k.load(scales.buffer, scales.at(*place, step))
                _reflect(place, packed, rows, step, scale, basis, strip)

        strips_of(site, first, end, build)


def _is_at(strip: Strip, column: Value, i: Value) -> Value:
    """1 in the lane that is column i, else 0."""
    k = strip.k
    lane = strip.same(column) + k.iota(DType.I64, strip.lanes)
    one = k.const(1.0, DType.F64)
    return k.select(k.eq(lane, strip.same(i)), strip.same(one), 0.0)
