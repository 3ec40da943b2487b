"""Values as bytes with a dtype: how programs in other languages and files hand over tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.errors import BindingError
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape

Buffer = bytes | bytearray | memoryview


def from_bytes(what: str, data: Buffer, dtype: DType | str, declared: Shape) -> np.ndarray[Any, Any]:
    """The array that `data` holds, in the declared shape and type.

    Floats of another width are converted; all other types must be the declared one. One symbolic size is found from
    the number of bytes.
    """
    given = DType.of(dtype)
    if given is not declared.dtype and not (given.is_float and declared.dtype.is_float):
        raise BindingError(f"{what} is declared {declared}, got bytes of {given}; convert them first")
    size = given.numpy.itemsize
    length = memoryview(data).nbytes
    count, rest = divmod(length, size)
    if rest:
        raise BindingError(f"{what}: {length} bytes are no whole number of {given} values ({size} bytes)")
    flat = np.frombuffer(data, given.numpy)
    return flat.reshape(_dims(what, declared, count)).astype(declared.dtype.numpy, copy=False)


def _dims(what: str, declared: Shape, count: int) -> tuple[int, ...]:
    """The shape of `count` values."""
    known = math.prod(d for d in declared.dims if isinstance(d, int))
    unknown = [d for d in declared.dims if not isinstance(d, int)]
    if len(unknown) > 1:
        raise BindingError(f"{what} is declared {declared}: bytes tell one size at most; pass an array to run()")
    if (not unknown and count != known) or (unknown and (known == 0 or count % known)):
        raise BindingError(f"{what} is declared {declared}, got {count} values")
    return tuple(d if isinstance(d, int) else count // known for d in declared.dims)


def to_bytes(array: np.ndarray[Any, Any]) -> tuple[bytes, str]:
    """The bytes of an array in row-major order, and the name of its dtype."""
    return np.ascontiguousarray(array).tobytes(), str(DType.of(array.dtype))
