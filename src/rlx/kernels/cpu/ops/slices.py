"""Windows at places that are known at run time only: reading one, and storing one over the operand."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import along, are_native, run_length, strips
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.shape.dynamic_slices import DynamicSlice, DynamicUpdateSlice


def _is_native(op: Op, operands: Sequence[Shape]) -> bool:
    return are_native(*operands)


@op_kernel(DynamicSlice, kind="slice", supports=_is_native, strided={0})
def dynamic_slice(site: OpSite) -> None:
    x, *starts = site.inputs
    (y,) = site.outputs
    _move(site, x, y, y, starts, reads_window=True)


@op_kernel(DynamicUpdateSlice, kind="update", supports=_is_native, strided={1}, updates=0)
def dynamic_update_slice(site: OpSite) -> None:
    """The result lies over x, of which only the window changes."""
    _, update, *starts = site.inputs
    (y,) = site.outputs
    _move(site, update, y, update, starts, reads_window=False)


def _starts(k: KernelBuilder, whole: Slab, window: Slab, starts: Sequence[Slab]) -> list[Value]:
    """Where the window begins along each axis: negative starts count from the end, and the window lies inside."""
    found = []
    for given, size, extent in zip(starts, whole.dims, window.dims):
        start = k.cast(k.load(given.buffer, given.offset), DType.I64)
        start = k.select(start < 0, start + size, start)
        found.append(k.max(k.min(start, size - extent), 0))
    return found


def _move(site: OpSite, source: Slab, to: Slab, window: Slab, given: Sequence[Slab], reads_window: bool) -> None:
    """Copy all of the window, rows of as many of the last axes as lie side by side on both sides."""
    k = site.k
    whole = source if reads_window else to
    dims, sizes = window.shape.dims, whole.shape.dims
    inner = 0
    # An axis joins those behind it if the window covers these.
    while inner < len(dims) and all(a == b for a, b in zip(dims[len(dims) - inner :], sizes[len(dims) - inner :])):
        inner += 1
    inner = min(inner, max(1, min(run_length(site, source), run_length(site, to))), len(dims))
    split = len(dims) - inner
    # The sizes of a window are those of an axis or less; symbolic ones that are not must not leave the operand.
    extents = [k.min(w, s) for w, s in zip(window.dims, whole.dims)]
    length = total(k, extents[split:])
    step_from, step_to = (slab.strides[-1] if dims and dims[-1] != 1 else k.as_index(1) for slab in (source, to))
    with strips(k, total(k, extents[:split]), length) as (row, start, stop):
        starts = _starts(k, whole, window, given)
        place = unflatten(row, extents[:split])
        moved = [i + s for i, s in zip(place, starts)] + list(starts[split:])
        read_at, write_at = (moved, place) if reads_window else (place, moved)
        read_from, write_to = source.at(*read_at), to.at(*write_at)

        def copy(i: Value, lanes: int, mask: Value | None) -> None:
            loaded = k.load(source.buffer, read_from + step_from * i, lanes=lanes, stride=step_from, mask=mask)
            k.store(to.buffer, write_to + step_to * i, loaded, stride=step_to, mask=mask)

        along(k, site.machine, [to.shape.dtype], start, stop, copy)
