"""`window_gradient` and `pixel_matmul` by loops: one iteration for each element of the result."""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.lowered.window_gradients import PIECE, PixelMatMul, WindowGradient


@op_kernel(WindowGradient, kind="conv", supports=lambda op, operands: compute_dtype(operands[0].dtype) in FLOATS)
def window_gradient(site: OpSite) -> None:
    k, op, (x, dy), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, WindowGradient)
    acc, channels = y.buffer.dtype, x.dims[3]
    pixels = total(k, dy.dims[:3])
    with k.parallel("element", total(k, y.dims)) as number:
        part, row, o = unflatten(number, y.dims)
        tap, c = row // channels, row % channels
        taps = (tap // op.window[1], tap % op.window[1])
        start = part * op.run
        with k.fold("pixel", start, k.min(start + op.run, pixels), init=[k.const(0, acc)]) as fold:
            image, p, q = unflatten(fold.index, dy.dims[:3])

            def place(at: Value, axis: int) -> tuple[Value, Value]:
                found = at * op.stride[axis] + taps[axis] * op.dilation[axis] - op.padding[axis]
                return found, (found >= 0) & (found < x.dims[1 + axis])

            (i, has_row), (j, has_column) = place(p, 0), place(q, 1)
            is_there = has_row & has_column
            seen = k.load(x.buffer, x.at(image, k.select(is_there, i, 0), k.select(is_there, j, 0), c))
            product = k.fma(k.cast(seen, acc), k.cast(k.load(dy.buffer, dy.at(image, p, q, o)), acc), fold.values[0])
            fold.next(k.select(is_there, product, fold.values[0]))
        k.store(y.buffer, y.at(part, row, o), fold.results[0])


@op_kernel(PixelMatMul, kind="conv", supports=lambda op, operands: compute_dtype(operands[0].dtype) in FLOATS)
def pixel_matmul(site: OpSite) -> None:
    k, op, (x, dy), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, PixelMatMul)
    acc = y.buffer.dtype
    images, _, pixels = x.dims
    pieces = k.ceildiv(pixels, PIECE)
    with k.parallel("element", total(k, y.dims)) as number:
        part, c, o = unflatten(number, y.dims)
        start = part * op.run
        with k.fold("piece", start, k.min(start + op.run, images * pieces), init=[k.const(0, acc)]) as outer:
            image, first = outer.index // pieces, outer.index % pieces * PIECE
            with k.fold("pixel", first, k.min(first + PIECE, pixels), init=[outer.values[0]]) as fold:
                a = k.cast(k.load(x.buffer, x.at(image, c, fold.index)), acc)
                b = k.cast(k.load(dy.buffer, dy.at(image, o, fold.index)), acc)
                fold.next(k.fma(a, b, fold.values[0]))
            outer.next(fold.results[0])
        k.store(y.buffer, y.at(part, c, o), outer.results[0])
