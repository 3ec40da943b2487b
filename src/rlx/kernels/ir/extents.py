"""Sizes and strides of a kernel: numbers known now, or names of index parameters that the caller passes."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import INDEX, Value

Extent = int | str


class Extents:
    """Declares each named extent as a parameter when it is first asked for."""

    def __init__(self, builder: KernelBuilder) -> None:
        self._builder = builder
        self._named: dict[str, Value] = {}

    def __call__(self, extent: Extent) -> Value:
        if isinstance(extent, int):
            return self._builder.const(extent, INDEX)
        if extent not in self._named:
            self._named[extent] = self._builder.index(extent)
        return self._named[extent]


def total(k: KernelBuilder, sizes: Sequence[Value]) -> Value:
    """The number of elements of these sizes."""
    count: Value = k.as_index(1)
    for size in sizes:
        count = count * size
    return count


def clipped_id(k: KernelBuilder, given: Value, size: Value | int) -> Value:
    """A place on an axis for any id: negative ones count from the end, and what is outside is at the nearer end."""
    place = k.cast(given, DType.I64)
    return k.max(k.min(k.select(place < 0, place + size, place), size - 1), 0)


def unflatten(place: Value, sizes: Sequence[Value]) -> list[Value]:
    """The index along each axis of a row-major position."""
    indices: list[Value] = []
    for size in reversed(sizes[1:]):
        indices.append(place % size)
        place = place // size
    return [place, *reversed(indices)] if sizes else []
