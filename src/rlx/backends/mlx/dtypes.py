"""Types of elements in MLX, and arrays from the host and back.

f64 is known to its CPU streams only, so ops on it are put there. Types for storage are held as what has their bits:
4-bit integers as 8-bit ones, small floats as their codes. c128 does not exist.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rlx.backends.mlx.device import mx
from rlx.errors import OutOfMemory
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {
    DType.BOOL: "bool_",
    DType.I4: "int8",
    DType.U4: "uint8",
    **{d: d.numpy.name for d in (DType.I8, DType.I16, DType.I32, DType.I64)},
    **{d: d.numpy.name for d in (DType.U8, DType.U16, DType.U32, DType.U64)},
    **dict.fromkeys((DType.F4E2M1, DType.F8E4M3, DType.F8E5M2), "uint8"),
    DType.BF16: "bfloat16",
    DType.F16: "float16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.C64: "complex64",
}
# Floats that are held as codes.
CODED = (DType.F4E2M1, DType.F8E4M3, DType.F8E5M2)

# MLX counts the elements of an axis in 32 bits.
LONGEST = 2**31 - 1


def mlx_type(dtype: DType) -> Any:
    return getattr(mx, _NAMES[dtype])


def objection(shape: Shape) -> str | None:
    """Why MLX has no values of a type."""
    if shape.dtype is DType.C128:
        return "MLX has no complex numbers of double precision; use c64, or the device cpu or xla"
    return None


def as_held(array: Array) -> Array:
    """An array of the host in a type that MLX has, with the same bits."""
    dtype = DType.of(array.dtype)
    if dtype in CODED:
        return array.view(np.uint8)
    if dtype in (DType.I4, DType.U4):
        return array.astype(np.int8 if dtype is DType.I4 else np.uint8)
    return array.view(np.uint16) if dtype is DType.BF16 else array


def to_mlx(array: Array) -> Any:
    """A copy of an array of the host."""
    if not array.size and max(array.shape, default=0) > LONGEST:
        # Nothing is read of it; what its axes are is known elsewhere.
        array = array.reshape(0)
    if max(array.shape, default=0) > LONGEST:
        raise OutOfMemory(f"mlx: axes have up to {LONGEST} elements, got {array.dtype}{list(array.shape)}")
    dtype = DType.of(array.dtype)
    try:
        held = as_held(np.ascontiguousarray(array).reshape(array.shape))
    except MemoryError:
        raise OutOfMemory(f"there is no memory for a copy of {array.dtype}{list(array.shape)}") from None
    if dtype is DType.BF16:
        return mx.view(mx.array(held), mx.bfloat16)
    return mx.array(held, dtype=mlx_type(dtype))


def to_numpy(value: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    """A copy of a value on the host."""
    if dtype is DType.BF16:
        found = np.array(mx.view(value, mx.uint16)).view(ml_dtypes.bfloat16)
    elif dtype in CODED:
        found = np.array(value).view(dtype.numpy)
    else:
        found = np.array(value).astype(dtype.numpy, copy=False)
    return found.reshape(shape)
