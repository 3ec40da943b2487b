"""The element types of safetensors: bits per element and, where NumPy (with ml_dtypes) has it, the dtype."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8


class ElementType(NamedTuple):
    """One type; `dtype` is None for types that cannot be looked at as an array. The order is that of the writer."""

    name: str
    bits: int
    dtype: np.dtype[np.generic] | None

    def __str__(self) -> str:
        return self.name


def _type(name: str, dtype: npt.DTypeLike) -> ElementType:
    kind = np.dtype(dtype)
    return ElementType(name, 8 * kind.itemsize, kind)


_ALL = [
    _type("BOOL", np.bool_),
    ElementType("F4", 4, np.dtype(ml_dtypes.float4_e2m1fn)),
    ElementType("F6_E2M3", 6, None),
    ElementType("F6_E3M2", 6, None),
    _type("U8", np.uint8),
    _type("I8", np.int8),
    _type("F8_E5M2", ml_dtypes.float8_e5m2),
    _type("F8_E4M3", ml_dtypes.float8_e4m3fn),
    _type("F8_E8M0", ml_dtypes.float8_e8m0fnu),
    _type("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
    _type("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
    _type("I16", np.int16),
    _type("U16", np.uint16),
    _type("F16", np.float16),
    _type("BF16", ml_dtypes.bfloat16),
    _type("I32", np.int32),
    _type("U32", np.uint32),
    _type("F32", np.float32),
    _type("C64", np.complex64),
    _type("F64", np.float64),
    _type("I64", np.int64),
    _type("U64", np.uint64),
]
TYPES: dict[str, ElementType] = {t.name: t for t in _ALL}
ORDER: dict[str, int] = {name: place for place, name in enumerate(TYPES)}
_TYPES_BY_DTYPE = {t.dtype: t for t in _ALL if t.dtype is not None}


def type_of_dtype(dtype: np.dtype[np.generic]) -> ElementType:
    found = _TYPES_BY_DTYPE.get(dtype.newbyteorder("="))
    if found is None:
        known = " ".join(str(d) for d in _TYPES_BY_DTYPE)
        raise FormatError(f"safetensors cannot store {dtype} arrays; convert to one of: {known}")
    return found


def decode(place: str, kind: ElementType, raw: U8, count: int) -> npt.NDArray[np.generic]:
    """The elements in little-endian bytes, flat; a view where an element is a whole number of bytes."""
    if kind.dtype is None:
        raise FormatError(f"{place}: there are no arrays of {kind}; data() gives the packed bytes")
    if kind.bits == 4:
        codes = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count]
        return codes.view(kind.dtype)
    if kind.name == "BOOL" and (raw > 1).any():
        raise FormatError(f"{place}: BOOL bytes must be 0 or 1, got {raw.max()}")
    return raw.view(kind.dtype.newbyteorder("<"))


def encode(kind: ElementType, values: npt.NDArray[np.generic]) -> U8:
    """The bytes of an array."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if kind.bits == 4:
        codes = flat.view(np.uint8)
        if codes.size % 2:
            raise FormatError(f"safetensors: F4 arrays need an even number of elements, got {codes.size}")
        return np.bitwise_or(codes[0::2] & 15, codes[1::2] << 4, dtype=np.uint8)
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8)
