"""Arrays of other libraries, in and out without a copy: by DLPack, also for the element types that NumPy has not.

    host_array(torch.ones(3, dtype=torch.bfloat16))     # a NumPy array of ml_dtypes.bfloat16 over the same memory

NumPy's own DLPack knows integers, floats and complex numbers. bf16 and the 8-bit floats pass as integers of their
width: the type that a capsule names is changed on the way, its memory is not.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rlx.errors import BindingError
from rlx.ir.dtype import DType

Array = np.ndarray[Any, np.dtype[Any]]

# Codes of DLPack's DLDataTypeCode.
_UINT = 1
_CODES = {DType.BF16: 4, DType.F8E4M3: 10, DType.F8E5M2: 12}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
# Where a capsule has its DLDataType (code, bits), by the name of the capsule: in a DLManagedTensor it is behind data,
# device and rank; a DLManagedTensorVersioned has version, context, deleter and flags before them.
_TYPE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _type_code(capsule: Any) -> Any:
    """The code of the element type in a capsule that nobody has taken yet, to be read and written."""
    name = _name_of(capsule)
    return ctypes.c_uint8.from_address(_pointer_of(capsule, name) + _TYPE_OFFSETS[name])


class _Taken:
    """A capsule as the object that NumPy asks for it."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def from_dlpack(value: Any) -> Array:
    """A NumPy array over the memory of any array with `__dlpack__` that lies on the host."""
    capsule = value.__dlpack__()
    code = _type_code(capsule)
    dtype = _DTYPES.get(code.value)
    if dtype is not None:
        code.value = _UINT
    found = np.from_dlpack(_Taken(capsule, value.__dlpack_device__()))
    return found if dtype is None else found.view(dtype.numpy)


def to_dlpack(array: Array, *, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
    """A capsule for `array`. Consumers of the first DLPack, who cannot be told that it is read only, get a copy."""
    dtype = DType.of(array.dtype)
    if dtype.is_storage and dtype not in _CODES:
        raise BufferError(f"DLPack has no element type {dtype} that other libraries read; cast to f8e4m3, f16 or f32")
    plain = array if dtype not in _CODES else array.view(np.dtype(f"u{dtype.size_bytes}"))
    if max_version is None and not plain.flags.writeable:
        plain = plain.copy()
    capsule = plain.__dlpack__(max_version=max_version, **options)
    if dtype in _CODES:
        _type_code(capsule).value = _CODES[dtype]
    return capsule


def is_foreign(value: Any) -> bool:
    """Whether a value is an array of another library; NumPy's own scalars and arrays of our devices are not."""
    if not hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        return False
    return not type(value).__module__.startswith("rlx.")


def host_array(value: Any) -> Array:
    """`value` as a NumPy array: one of another library by DLPack, everything else as NumPy does it."""
    if isinstance(value, np.ndarray) or not is_foreign(value):
        return np.asarray(value)
    try:
        return from_dlpack(value)
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise BindingError(
            f"an array of {type(value).__module__.partition('.')[0]} cannot be read here: {error}; "
            "bring it to the host first, without a gradient (torch: x.detach().cpu())"
        ) from None
