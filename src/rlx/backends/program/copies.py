"""The kernel that copies a value: for what a body of a loop returns without computing it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rlx.backends.native.code_cache import loader
from rlx.backends.native.kernels import NativeKernel
from rlx.ir.dtype import DType

if TYPE_CHECKING:
    from rlx.kernels.ir.loop_ir import Kernel

# Bytes of one iteration.
CHUNK = 1 << 16
_LANES = 64


def copy_kernel() -> Kernel:
    """y[i] = x[i] for i < n, byte by byte in vectors."""
    from rlx.kernels.ir.builder import KernelBuilder

    k = KernelBuilder("copy")
    x, y, n = k.pointer("x", DType.U8), k.pointer("y", DType.U8, write=True), k.index("n")
    with k.parallel("chunk", k.ceildiv(n, CHUNK)) as chunk:
        start = chunk * CHUNK
        with k.loop("i", start, k.min(start + CHUNK, n), _LANES) as i:
            mask = k.lane_mask(n - i, _LANES)
            k.store(y, i, k.load(x, i, lanes=_LANES, mask=mask), mask=mask)
    return k.build()


@cache
def native_copy() -> NativeKernel:
    return loader().load(copy_kernel())
