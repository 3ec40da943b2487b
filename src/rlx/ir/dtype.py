"""Element types: `DType`, its promotion rules, and `Element` (a dtype with FP8 flavour and saturation).

`DType.of` accepts what users write (`"f32"`, `"float32"`, `np.float32`, a NumPy dtype); `str(DType.F32)` is `f32`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from rlx.errors import DTypeError
from rlx.ir.words import nearest


class DType(enum.Enum):
    """One element type. The value is the name used in the text of programs."""

    BOOL = "bool"
    I4 = "i4"
    U4 = "u4"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    F4E2M1 = "f4e2m1"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"

    numpy: np.dtype[Any]
    # What NumPy asks objects for: np.zeros(3, DType.F32) works, and np.dtype("float32") == DType.F32.
    dtype: np.dtype[Any]
    size_bytes: int
    is_float: bool
    is_complex: bool
    is_int: bool
    is_signed: bool
    is_storage: bool

    # The facts are plain attributes, filled below: they are read for every node that is built.

    def __str__(self) -> str:
        # `value` is a property that is looked up each time.
        return str(self._value_)

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __call__(self, value: Any) -> Any:
        """`value` as an array of this type, as NumPy's scalar types do it: `rnp.float32(0.1)`."""
        from rlx.ir.array_functions import array_functions

        return array_functions().asarray(value, dtype=self)

    def __getattr__(self, name: str) -> Any:
        """`numpy` and `dtype` of the types that ml_dtypes has, which is loaded when one of them is used."""
        if name not in ("numpy", "dtype") or self not in _ML_DTYPES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        import ml_dtypes

        for dtype, known_as in _ML_DTYPES.items():
            dtype.numpy = dtype.dtype = np.dtype(getattr(ml_dtypes, known_as))
        return self.numpy

    # Enum hashes by name through Python code; identity is the same thing and several times faster.
    __hash__ = object.__hash__

    @property
    def is_inexact(self) -> bool:
        """Float or complex."""
        return self.is_float or self.is_complex

    @property
    def kind(self) -> str:
        """NumPy's letter: b, i, u, f or c; V for those that NumPy lacks."""
        return str(self.numpy.kind)

    @property
    def itemsize(self) -> int:
        """Bytes of an element in an array, which keeps even types of 4 bits one to a byte."""
        return int(self.numpy.itemsize)

    @property
    def promotion_rank(self) -> int:
        return _RANK[self]

    @property
    def accumulator(self) -> DType:
        """The type that sums of this type are held in: f16, bf16 and smaller floats accumulate in f32."""
        return DType.F32 if self.is_float and self.size_bytes < 4 else self

    @property
    def real(self) -> DType:
        """The type of the real part."""
        return {DType.C64: DType.F32, DType.C128: DType.F64}.get(self, self)

    @property
    def complex(self) -> DType:
        """The complex type whose parts have this type."""
        if self.is_complex:
            return self
        return DType.C128 if self is DType.F64 else DType.C64

    def promote(self, other: DType) -> DType:
        """The type of `a + b`; symmetric, see `promote`."""
        return promote(self, other)

    @staticmethod
    def of(value: DTypeLike) -> DType:
        """The DType meant by a name, a NumPy dtype or scalar type, or a DType."""
        if isinstance(value, DType):
            return value
        if value is float:
            return _default_float
        if value is complex:
            return _default_float.complex
        found = _lookup(value)
        if found is None:
            kind = getattr(value, "kind", "")
            if kind in ("U", "S", "O"):
                what = "objects" if kind == "O" else "text"
                raise DTypeError(f"arrays hold numbers and bools, not {what} (dtype {value})")
            names = " ".join(d.value for d in DType)
            raise DTypeError(f"unknown dtype {value!r}{nearest(value, _BY_NAME)}; use one of: {names}")
        return found


def integer_limits(dtype: DType) -> Any:
    """`min` and `max` of an integer type, also of 4 bits."""
    import ml_dtypes

    return ml_dtypes.iinfo(dtype.numpy)


def float_limits(dtype: DType) -> Any:
    """What `np.finfo` says, of every float type."""
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)


DTypeLike = DType | str | type | np.dtype[Any]

_NUMPY: dict[DType, Any] = {
    DType.BOOL: np.bool_,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.I16: np.int16,
    DType.U16: np.uint16,
    DType.I32: np.int32,
    DType.U32: np.uint32,
    DType.I64: np.int64,
    DType.U64: np.uint64,
    DType.F16: np.float16,
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.C64: np.complex64,
    DType.C128: np.complex128,
}

# The names that ml_dtypes gives to the types which NumPy lacks. NumPy keeps 4-bit types one to a byte; packed forms are
# described by QuantScheme, not by DType.
_ML_DTYPES: dict[DType, str] = {
    DType.I4: "int4",
    DType.U4: "uint4",
    DType.F4E2M1: "float4_e2m1fn",
    DType.F8E4M3: "float8_e4m3fn",
    DType.F8E5M2: "float8_e5m2",
    DType.BF16: "bfloat16",
}

# Ranks of the seed documents, with the wider integers and the storage types slotted in.
_RANK: dict[DType, int] = {
    DType.BOOL: 0,
    DType.I4: 1,
    DType.U4: 1,
    DType.I8: 1,
    DType.U8: 1,
    DType.F4E2M1: 1,
    DType.F8E4M3: 1,
    DType.F8E5M2: 1,
    DType.I16: 2,
    DType.U16: 2,
    DType.BF16: 2,
    DType.F16: 3,
    DType.I32: 4,
    DType.U32: 4,
    DType.I64: 5,
    DType.U64: 5,
    DType.F32: 6,
    DType.F64: 7,
    DType.C64: 8,
    DType.C128: 9,
}

_SIGNED_INTS = (DType.I4, DType.I8, DType.I16, DType.I32, DType.I64)
_UNSIGNED_INTS = (DType.U4, DType.U8, DType.U16, DType.U32, DType.U64)
_FLOATS = (DType.F4E2M1, DType.F8E4M3, DType.F8E5M2, DType.BF16, DType.F16, DType.F32, DType.F64)
# Types that hold data but on which no arithmetic is defined; they promote away at once.
# Floats of one byte that tensor cores multiply.
BYTE_FLOATS = frozenset({DType.F8E4M3, DType.F8E5M2})
_STORAGE = (DType.I4, DType.U4, DType.F4E2M1, DType.F8E4M3, DType.F8E5M2)

for _d in DType:
    if _d in _NUMPY:
        _d.numpy = _d.dtype = np.dtype(_NUMPY[_d])
    _d.size_bytes = _d.numpy.itemsize if _d in _NUMPY else 2 if _d is DType.BF16 else 1
    _d.is_float = _d in _FLOATS
    _d.is_complex = _d in (DType.C64, DType.C128)
    _d.is_int = _d in _SIGNED_INTS or _d in _UNSIGNED_INTS
    _d.is_signed = _d in _SIGNED_INTS or _d.is_float or _d.is_complex
    _d.is_storage = _d in _STORAGE

_BY_NAME: dict[str, DType] = {d.value: d for d in DType} | {d.numpy.name: d for d in _NUMPY}
_BY_NAME |= {name: d for d, name in _ML_DTYPES.items()}
_BY_NAME |= {"bool_": DType.BOOL, "float8_e4m3": DType.F8E4M3, "f4": DType.F32, "f8": DType.F64, "f2": DType.F16}
# The words of C and of other libraries, and Python's own types.
_BY_NAME |= {"half": DType.F16, "single": DType.F32, "float": DType.F32, "double": DType.F64, "int": DType.I32}
_BY_NAME |= {"fp16": DType.F16, "fp32": DType.F32, "fp64": DType.F64, "complex": DType.C64, "bfloat": DType.BF16}


# What a float without a type of its own is; see `default_float`.
_default_float = DType.F32


class default_float:
    """Make another float type the default: `default_float("f64")` for the process, `with default_float("f64"):` for a
    while. Python's floats by themselves, arrays that are made without a dtype, integers in functions such as `exp`,
    and random numbers then have it; what has a dtype keeps it. Functions are traced again under another default.

    >>> with default_float("f64"):
    ...     print(DType.of(float), DType.of(complex))
    f64 c128
    """

    def __init__(self, dtype: DTypeLike) -> None:
        global _default_float
        chosen = DType.of(dtype)
        if not chosen.is_float or chosen.is_storage:
            raise DTypeError(f"default_float: one of bf16, f16, f32, f64 is needed, got {chosen}")
        self._before, _default_float = _default_float, chosen

    def __enter__(self) -> DType:
        return _default_float

    def __exit__(self, *exception: object) -> None:
        global _default_float
        _default_float = self._before


@cache
def _lookup(value: Any) -> DType | None:
    if isinstance(value, str):
        return _BY_NAME.get(value.lower().strip())
    python_types = {bool: DType.BOOL, int: DType.I32}
    if value in python_types:
        return python_types[value]
    try:
        return _BY_NAME.get(np.dtype(value).name)
    except TypeError:
        # The dtypes of other libraries are objects that print their names: torch.float32.
        module, _, name = str(value).partition(".")
        return _BY_NAME.get(name) if type(value).__module__ == module else None


@cache
def promote(a: DType, b: DType) -> DType:
    """The common type of two operands. Symmetric; never depends on values.

    >>> promote(DType.F16, DType.BF16), promote(DType.I32, DType.F16), promote(DType.U8, DType.I8)
    (DType.F32, DType.F32, DType.I16)
    """
    if a is b:
        return a
    if a is DType.BOOL or b is DType.BOOL:
        return b if a is DType.BOOL else a
    if a.is_complex or b.is_complex:
        return DType.C128 if DType.C128 in (a, b) else DType.C64
    if a.is_float and b.is_float:
        return _promote_floats(a, b)
    if a.is_float or b.is_float:
        number, integer = (a, b) if a.is_float else (b, a)
        if number is DType.F64 or integer in (DType.I64, DType.U64):
            return DType.F64
        return DType.F32
    return _promote_ints(a, b)


def _promote_floats(a: DType, b: DType) -> DType:
    if {a, b} == {DType.F16, DType.BF16} or (a.is_storage and b.is_storage):
        return DType.F32
    if a.is_storage or b.is_storage:
        return b if a.is_storage else a
    return a if a.promotion_rank > b.promotion_rank else b


def _promote_ints(a: DType, b: DType) -> DType:
    if a.is_signed == b.is_signed:
        ladder = _SIGNED_INTS if a.is_signed else _UNSIGNED_INTS
        return max(a, b, key=ladder.index)
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    wanted = max(_SIGNED_INTS.index(signed), _UNSIGNED_INTS.index(unsigned) + 1)
    return _SIGNED_INTS[min(wanted, len(_SIGNED_INTS) - 1)]


class ElementSubtype(enum.StrEnum):
    """How the bytes of an element are to be read beyond its DType."""

    STANDARD = "standard"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


@dataclass(frozen=True)
class Element:
    """Per-element meaning beyond the DType: FP8 bytes stored as u8, and whether conversions saturate."""

    dtype: DType
    subtype: ElementSubtype = ElementSubtype.STANDARD
    is_saturating: bool = False

    @staticmethod
    def new(dtype: DTypeLike) -> Element:
        return Element(DType.of(dtype))

    @staticmethod
    def fp8_e4m3() -> Element:
        return Element(DType.U8, ElementSubtype.FP8_E4M3, True)

    @staticmethod
    def fp8_e5m2() -> Element:
        return Element(DType.U8, ElementSubtype.FP8_E5M2, True)

    def saturating(self) -> Element:
        return replace(self, is_saturating=True)


def scalar_constant_bytes(value: float, dtype: DTypeLike) -> bytes:
    """Little-endian bytes of one element. Integers must be finite, integral and in range.

    >>> scalar_constant_bytes(1.0, "f16").hex()
    '003c'
    """
    dt = DType.of(dtype)
    if dt.is_int:
        info = integer_limits(dt)
        if not math.isfinite(value) or value != int(value) or not info.min <= value <= info.max:
            raise DTypeError(f"{value!r} is not representable as {dt}")
        value = int(value)
    if dt is DType.BOOL:
        value = bool(value)
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dt.numpy).tobytes()
