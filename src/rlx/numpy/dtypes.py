"""Dtypes and constants: the names of element types, promotion, limits.

>>> result_type(int32, float32), result_type(bfloat16, 2.0), result_type(int8, 1.5)
(DType.F32, DType.BF16, DType.F32)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from rlx.errors import DTypeError
from rlx.ir.dtype import DType, DTypeLike, promote
from rlx.ir.tensor import Tensor, is_python_scalar
from rlx.numpy.arguments import convert, operand
from rlx.ops.define.operands import common_dtype, dtype_of

__all__ = [
    "astype",
    "bfloat16",
    "bool_",
    "byte",
    "can_cast",
    "cdouble",
    "complex64",
    "complex128",
    "complex_",
    "complexfloating",
    "csingle",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "finfo",
    "float4_e2m1fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "float_",
    "floating",
    "generic",
    "half",
    "iinfo",
    "inexact",
    "inf",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "intc",
    "integer",
    "intp",
    "iscomplexobj",
    "isdtype",
    "isrealobj",
    "issubdtype",
    "longlong",
    "nan",
    "newaxis",
    "number",
    "pi",
    "promote_types",
    "result_type",
    "short",
    "signedinteger",
    "single",
    "ubyte",
    "uint",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uintc",
    "uintp",
    "ulonglong",
    "unsignedinteger",
    "ushort",
]

bool_ = DType.BOOL
int4, int8, int16, int32, int64 = DType.I4, DType.I8, DType.I16, DType.I32, DType.I64
uint4, uint8, uint16, uint32, uint64 = DType.U4, DType.U8, DType.U16, DType.U32, DType.U64
float4_e2m1fn, float8_e4m3fn, float8_e5m2 = DType.F4E2M1, DType.F8E4M3, DType.F8E5M2
bfloat16, float16, float32, float64 = DType.BF16, DType.F16, DType.F32, DType.F64
complex64, complex128 = DType.C64, DType.C128
# The types of Python integers and of creation functions without dtype=; floats default to float32.
int_, uint = int32, uint32
# Those of `rlx.default_float`, whenever they are asked for.
float_, complex_ = float, complex
# NumPy's C-like names, with fixed widths.
byte, short, intc, intp, longlong = int8, int16, int32, int64, int64
ubyte, ushort, uintc, uintp, ulonglong = uint8, uint16, uint32, uint64, uint64
half, single, double, csingle, cdouble = float16, float32, float64, complex64, complex128

pi, e, inf, nan, euler_gamma = math.pi, math.e, math.inf, math.nan, 0.5772156649015329
newaxis = None

# NumPy's abstract types, for issubdtype.
generic, number, inexact, floating = np.generic, np.number, np.inexact, np.floating
integer, signedinteger, unsignedinteger = np.integer, np.signedinteger, np.unsignedinteger
complexfloating = np.complexfloating

dtype = DType.of


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DType:
    """The dtype of an operation on operands of these two."""
    return promote(DType.of(type1), DType.of(type2))


def _is_dtype(value: Any) -> bool:
    return isinstance(value, DType | str | type | np.dtype)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype in which arrays, scalars and dtypes meet. Python scalars are weak: they only decide the kind."""
    if not arrays_and_dtypes:
        raise DTypeError("result_type: needs at least one array, scalar or dtype")
    # A dtype stands for an array of it; an empty one is enough to ask.
    values = [np.empty(0, DType.of(v).numpy) if _is_dtype(v) else operand(v) for v in arrays_and_dtypes]
    return common_dtype(*values)


def can_cast(from_: Any, to: DTypeLike, casting: str = "safe") -> bool:
    """Whether `from_` (an array or dtype) may become `to` by the rule: no, equiv, safe, same_kind or unsafe.

    "safe" is what promotion does by itself: `promote_types(from_, to) == to`.

    >>> can_cast("i32", "f32"), can_cast("f64", "f32"), can_cast("f64", "f32", "same_kind")
    (True, False, True)
    """
    source = DType.of(from_) if _is_dtype(from_) else dtype_of(operand(from_))
    target = DType.of(to)
    if casting in ("no", "equiv"):
        return source is target
    if casting == "safe":
        return promote(source, target) is target
    if casting == "same_kind":
        return _kind_rank(source) <= _kind_rank(target)
    if casting == "unsafe":
        return True
    raise DTypeError(f"can_cast: casting must be no, equiv, safe, same_kind or unsafe, got {casting!r}")


def _kind_rank(dtype: DType) -> int:
    return next(i for i, kind in enumerate(_SAME_KIND_ORDER) if _KINDS[kind](dtype))


def astype(x: Any, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Any:
    """`x` converted to `dtype`; values are immutable, so `copy` changes nothing that can be seen."""
    x = operand(x)
    wanted = DType.of(dtype)
    if is_python_scalar(x) or isinstance(x, Tensor):
        return convert(x, wanted)
    from rlx.ops.pointwise.conversion import cast

    return cast(x, wanted)


_KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d is DType.BOOL,
    "signed integer": lambda d: d.is_int and d.is_signed,
    "unsigned integer": lambda d: d.is_int and not d.is_signed,
    "integral": lambda d: d.is_int,
    "real floating": lambda d: d.is_float,
    "complex floating": lambda d: d.is_complex,
    "numeric": lambda d: d is not DType.BOOL,
}
_SAME_KIND_ORDER = ("bool", "unsigned integer", "signed integer", "real floating", "complex floating")


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Whether `dtype` is of `kind`: a dtype, a kind of the array API ("real floating", ...), or a tuple of them.

    >>> isdtype(bfloat16, "real floating"), isdtype(int8, ("bool", "unsigned integer"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    found = DType.of(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind](found)
    if isinstance(kind, str):
        raise DTypeError(f"isdtype: kind must be a dtype or one of {', '.join(_KINDS)}, got {kind!r}")
    return found is DType.of(kind)


_ABSTRACT: dict[type, str] = {
    np.number: "numeric",
    np.integer: "integral",
    np.signedinteger: "signed integer",
    np.unsignedinteger: "unsigned integer",
    np.floating: "real floating",
    np.complexfloating: "complex floating",
}


def issubdtype(arg1: DTypeLike, arg2: Any) -> bool:
    """NumPy's question by type tree: issubdtype(bfloat16, floating) is True."""
    found = DType.of(arg1)
    if arg2 is np.generic:
        return True
    if arg2 is np.inexact:
        return found.is_inexact
    if arg2 in _ABSTRACT:
        return _KINDS[_ABSTRACT[arg2]](found)
    return found is DType.of(arg2)


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype of `x` is complex."""
    return dtype_of(operand(x)).is_complex


def isrealobj(x: Any) -> bool:
    """Whether the dtype of `x` is not complex."""
    return not iscomplexobj(x)


class FloatLimits(NamedTuple):
    """What `finfo` returns: Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        return self.smallest_normal


class IntegerLimits(NamedTuple):
    """What `iinfo` returns."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatLimits:
    """Limits of a float dtype, or of the parts of a complex one.

    >>> finfo(bfloat16).eps
    0.0078125
    """
    found = (DType.of(type) if _is_dtype(type) else dtype_of(type)).real
    if not found.is_float:
        raise DTypeError(f"finfo: needs a float or complex dtype, got {found}; use iinfo for integers")
    info = ml_dtypes.finfo(found.numpy)
    return FloatLimits(
        int(info.bits), float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), found
    )


def iinfo(type: Any, /) -> IntegerLimits:
    """Limits of an integer dtype."""
    found = DType.of(type) if _is_dtype(type) else dtype_of(type)
    if not found.is_int:
        raise DTypeError(f"iinfo: needs an integer dtype, got {found}; use finfo for floats")
    info = ml_dtypes.iinfo(found.numpy)
    return IntegerLimits(int(info.bits), int(info.max), int(info.min), found)
