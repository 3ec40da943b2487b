"""Sizes and strides of a kernel: numbers known now, or names of index parameters that the caller passes."""

from __future__ import annotations

from rlx.kernels.builder import KernelBuilder
from rlx.kernels.loop_ir import INDEX, Value

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
