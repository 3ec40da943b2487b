"""`window_matmul` in register tiles, or by loops, one iteration for each element of the result; so is `channel_windows`
for the threads of GPUs, while CPUs have `window_maker`."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.window_tiles import WindowTiles, has_tiles
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.lowered.window_products import ChannelWindows, WindowMatMul


def _are_floats(op: Op, operands: Sequence[Shape]) -> bool:
    return compute_dtype(operands[0].dtype) in FLOATS


@op_kernel(WindowMatMul, kind="conv", supports=_are_floats, strided={1})
def window_matmul(site: OpSite) -> None:
    if has_tiles(site):
        WindowTiles(site).build()
    else:
        _by_elements(site)


@op_kernel(ChannelWindows, kind="conv", supports=_are_floats, runs_on=lambda machine: machine.is_gpu)
def channel_windows(site: OpSite) -> None:
    _by_elements(site)


def _by_elements(site: OpSite) -> None:
    k, op, (x, w), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, WindowMatMul | ChannelWindows)
    acc = compute_dtype(x.buffer.dtype)
    spread = op.spread if isinstance(op, WindowMatMul) else (1, 1)
    with k.parallel("element", total(k, y.dims)) as number:
        image, p, q, o = unflatten(number, y.dims)

        def place(at: Value, tap: Value, axis: int) -> tuple[Value, Value]:
            """The row or column that a tap meets, and whether there is one."""
            spread_place = at * op.stride[axis] + tap * op.dilation[axis] - op.padding[axis]
            found = spread_place // spread[axis]
            is_there = (spread_place >= 0) & (found < x.dims[1 + axis])
            return found, is_there if spread[axis] == 1 else is_there & k.eq(found * spread[axis], spread_place)

        def weight(tap: Value, channel: Value) -> Value:
            if isinstance(op, ChannelWindows):
                return w.at(tap, channel)
            return w.at(o, tap * x.dims[3] + channel)

        first, end = (o, o + 1) if isinstance(op, ChannelWindows) else (k.as_index(0), x.dims[3])
        with k.fold("a", 0, op.window[0], init=[k.const(0, acc)]) as rows:
            row, has_row = place(p, rows.index, 0)
            with k.fold("b", 0, op.window[1], init=[rows.values[0]]) as columns:
                column, has_column = place(q, columns.index, 1)
                tap = rows.index * op.window[1] + columns.index
                last = k.select(has_row & has_column, end, first)
                with k.fold("c", first, last, init=[columns.values[0]]) as fold:
                    a = k.cast(k.load(x.buffer, x.at(image, row, column, fold.index)), acc)
                    b = k.cast(k.load(w.buffer, weight(tap, fold.index)), acc)
                    fold.next(k.fma(a, b, fold.values[0]))
                columns.next(fold.results[0])
            rows.next(columns.results[0])
        k.store(y.buffer, y.at(image, p, q, o), k.cast(rows.results[0], y.buffer.dtype))
