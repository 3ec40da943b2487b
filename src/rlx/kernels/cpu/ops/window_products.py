"""`window_matmul` in register tiles, or by loops, one iteration for each element of the result; and `channel_windows`,
which multiply nothing but a few taps of every channel."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.tiles import in_vectors
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.window_tiles import WindowTiles, has_tiles
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.lowered.window_products import ChannelWindows, WindowMatMul

# Vectors of channels that one step of `channel_windows` computes.
VECTORS = 4
# Places that are computed together where they see no edge, of so many vectors, and the longest row of taps that is
# written out for them: every weight is read once for all, and registers hold the sums.
PLACES, VECTORS_OF_PLACES, MOST_TAPS = 4, 2, 8


def _are_floats(op: Op, operands: Sequence[Shape]) -> bool:
    return compute_dtype(operands[0].dtype) in FLOATS


@op_kernel(WindowMatMul, kind="conv", supports=_are_floats, strided={1})
def window_matmul(site: OpSite) -> None:
    if has_tiles(site):
        WindowTiles(site).build()
    else:
        _by_elements(site)


def _by_elements(site: OpSite) -> None:
    k, op, (x, w), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, WindowMatMul)
    acc = compute_dtype(x.buffer.dtype)
    channels = x.dims[3]
    with k.parallel("element", total(k, y.dims)) as number:
        image, p, q, o = unflatten(number, y.dims)

        def place(at: Value, tap: Value, axis: int) -> tuple[Value, Value]:
            """The row or column that a tap meets, and whether there is one."""
            spread = at * op.stride[axis] + tap * op.dilation[axis] - op.padding[axis]
            found = spread // op.spread[axis]
            is_there = (spread >= 0) & (found < x.dims[1 + axis])
            return found, is_there if op.spread[axis] == 1 else is_there & k.eq(found * op.spread[axis], spread)

        with k.fold("a", 0, op.window[0], init=[k.const(0, acc)]) as rows:
            row, has_row = place(p, rows.index, 0)
            with k.fold("b", 0, op.window[1], init=[rows.values[0]]) as columns:
                column, has_column = place(q, columns.index, 1)
                tap = (rows.index * op.window[1] + columns.index) * channels
                end = k.select(has_row & has_column, channels, 0)
                with k.fold("c", 0, end, init=[columns.values[0]]) as fold:
                    a = k.cast(k.load(x.buffer, x.at(image, row, column, fold.index)), acc)
                    b = k.cast(k.load(w.buffer, w.at(o, tap + fold.index)), acc)
                    fold.next(k.fma(a, b, fold.values[0]))
                columns.next(fold.results[0])
            rows.next(columns.results[0])
        k.store(y.buffer, y.at(image, p, q, o), k.cast(rows.results[0], y.buffer.dtype))


@op_kernel(ChannelWindows, kind="conv", supports=_are_floats)
def channel_windows(site: OpSite) -> None:
    """A row of the result in each iteration; lanes are channels, and taps beyond the picture are left out."""
    k, op, (x, w), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, ChannelWindows)
    acc = compute_dtype(x.buffer.dtype)
    lanes = site.machine.lanes(acc)
    has_masks = lanes > 1 and all(site.machine.has_masked_access(s.buffer.dtype) for s in (x, w, y))

    def taps_inside(at: Value, axis: int) -> tuple[Value, Value, Value]:
        """What the first tap sees of an axis, and the taps that see something of the picture, as a range."""
        first = at * op.stride[axis] - op.padding[axis]
        dilation = op.dilation[axis]
        begin = k.max((k.as_index(dilation - 1) - first) // dilation, 0)
        end = k.min((x.dims[1 + axis] - first + (dilation - 1)) // dilation, op.window[axis])
        return first, begin, end

    sizes = y.dims[:2]
    with k.parallel("row", total(k, sizes)) as number:
        image, p = unflatten(number, sizes)
        top, begin, end = taps_inside(p, 0)

        def channels(c: Value, width: int, mask: Value | None) -> None:
            pieces = range(max(1, width // lanes)) if mask is None else range(1)
            each = width if mask is not None else min(width, lanes)
            begin_together, end_together = places_inside()
            with k.loop("q", begin_together, end_together, PLACES) as q:
                for n in range(0, len(pieces), VECTORS_OF_PLACES):
                    together(q, c + n * each, len(pieces[n : n + VECTORS_OF_PLACES]), each, mask)
            places(0, begin_together, c, pieces, each, mask)
            places(end_together, y.dims[2], c, pieces, each, mask)

        def places_inside() -> tuple[Value, Value]:
            """The places whose taps are all inside, as many as make whole steps."""
            stride, taps = op.stride[1], op.window[1]
            low = k.min(k.as_index(max(op.padding[1] + stride - 1, 0) // stride), y.dims[2])
            if taps > MOST_TAPS:
                return low, low
            room = x.dims[2] + (op.padding[1] - (taps - 1) * op.dilation[1] - 1 + stride)
            high = k.max(k.min(k.max(room, 0) // stride, y.dims[2]), low)
            return low, low + (high - low) // PLACES * PLACES

        def together(q: Value, c: Value, vectors: int, each: int, mask: Value | None) -> None:
            """Some vectors of channels at neighbouring places, of which no tap is outside."""
            cells = [(place, n) for place in range(PLACES) for n in range(vectors)]
            with k.fold("a", begin, end, init=[k.const(0, ValueType(acc, each))] * len(cells)) as rows:
                line = x.at(image, top + rows.index * op.dilation[0], q * op.stride[1] - op.padding[1], c)
                totals = list(rows.values)
                for b in range(op.window[1]):
                    tap = w.at(rows.index * op.window[1] + b, c)
                    weights = [
                        k.cast(k.load(w.buffer, tap + n * each, lanes=each, mask=mask), acc) for n in range(vectors)
                    ]
                    for number, (place, n) in enumerate(cells):
                        seen = line + x.strides[2] * (b * op.dilation[1] + place * op.stride[1]) + n * each
                        pixel = k.cast(k.load(x.buffer, seen, lanes=each, mask=mask), acc)
                        totals[number] = k.fma(pixel, weights[n], totals[number])
                rows.next(*totals)
            for (place, n), value in zip(cells, rows.results):
                k.store(y.buffer, y.at(image, p, q + place, c) + n * each, k.cast(value, y.buffer.dtype), mask=mask)

        def places(start: Value | int, stop: Value, c: Value, pieces: range, each: int, mask: Value | None) -> None:
            """One place after the other, of which taps may be outside."""
            with k.loop("q", start, stop) as q:
                left, first, last = taps_inside(q, 1)
                with k.fold("a", begin, end, init=[k.const(0, ValueType(acc, each))] * len(pieces)) as rows:
                    line = x.at(image, top + rows.index * op.dilation[0], left, c)
                    with k.fold("b", first, last, init=rows.values) as fold:
                        seen = line + x.strides[2] * (fold.index * op.dilation[1])
                        tap = w.at(rows.index * op.window[1] + fold.index, c)
                        fold.next(
                            *(
                                k.fma(
                                    k.cast(k.load(x.buffer, seen + n * each, lanes=each, mask=mask), acc),
                                    k.cast(k.load(w.buffer, tap + n * each, lanes=each, mask=mask), acc),
                                    value,
                                )
                                for n, value in zip(pieces, fold.values)
                            )
                        )
                    rows.next(*fold.results)
                for n, value in zip(pieces, rows.results):
                    k.store(y.buffer, y.at(image, p, q, c) + n * each, k.cast(value, y.buffer.dtype), mask=mask)

        count, wide = y.dims[3], VECTORS * lanes
        whole = count // wide * wide
        with k.loop("c", 0, whole, wide) as c:
            channels(c, wide, None)
        in_vectors(k, "last", count - whole, lanes, has_masks, lambda c, width, mask: channels(whole + c, width, mask))
