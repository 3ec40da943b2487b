"""Ops on the bits of values: bitwise functions of one operand, bitcast, and predicates such as isnan.

Bitwise functions of two operands are kinds of `Binary` (`and_`, `or_`, `xor`, shifts); the logical ones here take any
dtype and read non-zero as true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import NoRule, Op, attribute_type, op, op_family
from rlx.ir.shape import Shape
from rlx.ir.words import Words
from rlx.ops.define.operands import dims_of, dtype_of, require_dtype
from rlx.ops.define.rules import batch_pointwise
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import and_, eq, lt, ne, or_, shift_right, xor
from rlx.ops.pointwise.unary import abs_
from rlx.ops.shape.movement import reshape

__all__ = [
    "BitUnary",
    "BitUnaryOp",
    "Bitcast",
    "Predicate",
    "PredicateKind",
    "bitcast",
    "clz",
    "isfinite",
    "isinf",
    "isnan",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_",
    "popcount",
    "signbit",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class BitUnaryOp(Words):
    """The bitwise functions of one operand."""

    Not = "not"
    PopCount = "popcount"
    Clz = "clz"


def _unsigned(dtype: DType) -> DType:
    return DType.of(f"u{dtype.size_bytes * 8}")


def _bits_of(x: Array) -> Array:
    """The bits of integers as a new last axis, most significant first."""
    unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    positions = np.arange(x.dtype.itemsize * 8 - 1, -1, -1, dtype=unsigned.dtype)
    return (unsigned[..., None] >> positions) & unsigned.dtype.type(1)


def _popcount(x: Array) -> Array:
    return _bits_of(x).sum(axis=-1).astype(x.dtype)


def _clz(x: Array) -> Array:
    seen = np.logical_or.accumulate(_bits_of(x) != 0, axis=-1)
    return np.logical_not(seen).sum(axis=-1).astype(x.dtype)


def _decompose_not(x: Any) -> Any:
    if x.dtype is DType.BOOL:
        return xor(x, True)
    return xor(x, -1 if x.dtype.is_signed else 2 ** (x.dtype.size_bytes * 8) - 1)


def _repeated(byte: int, width: int) -> int:
    """The number of `width` bits in which every byte is `byte`."""
    return int.from_bytes(bytes([byte]) * (width // 8), "little")


def _decompose_popcount(x: Any) -> Any:
    # Sums of neighbouring fields: pairs of bits, nibbles, bytes; then all bytes into the lowest one.
    dtype, width = x.dtype, x.dtype.size_bytes * 8
    x = bitcast(x, _unsigned(dtype))
    x = x - and_(shift_right(x, 1), _repeated(0x55, width))
    x = and_(x, _repeated(0x33, width)) + and_(shift_right(x, 2), _repeated(0x33, width))
    x = and_(x + shift_right(x, 4), _repeated(0x0F, width))
    step = 8
    while step < width:
        x = x + shift_right(x, step)
        step *= 2
    return bitcast(and_(x, 0xFF), dtype)


def _decompose_clz(x: Any) -> Any:
    # Every bit below the highest one is set; what stays zero are the leading zeros.
    dtype, width = x.dtype, x.dtype.size_bytes * 8
    x = bitcast(x, _unsigned(dtype))
    step = 1
    while step < width:
        x = or_(x, shift_right(x, step))
        step *= 2
    return popcount(bitcast(not_(x), dtype))


class _BitDefinition(NamedTuple):
    formula: Callable[[Array], Array]
    decompose: Callable[[Any], Any]
    bools: bool = False


_BIT_DEFINITIONS: dict[str, _BitDefinition] = {
    "not": _BitDefinition(np.invert, _decompose_not, bools=True),
    "popcount": _BitDefinition(_popcount, _decompose_popcount),
    "clz": _BitDefinition(_clz, _decompose_clz),
}


@op_family(BitUnaryOp)
class BitUnary(Op):
    """y = f(x) on the bits of integers, in the dtype of x.

    `not` flips every bit (of a bool, its only one), `popcount` counts ones, `clz` counts zeros above the highest one.
    """

    precision_class = "elementwise"

    kind: BitUnaryOp

    def infer(self, x: Shape) -> Shape:
        bools = _BIT_DEFINITIONS[self.kind].bools
        ok = (x.dtype.is_int and not x.dtype.is_storage) or (bools and x.dtype is DType.BOOL)
        require_dtype(self, ok, "integer or bool" if bools else "integer", x)
        return x

    def eval(self, x: Array) -> Array:
        return np.asarray(_BIT_DEFINITIONS[self.kind].formula(x), dtype=x.dtype)

    def decompose(self, x: Any) -> Any:
        return _BIT_DEFINITIONS[self.kind].decompose(x)

    jvp = vjp = NoRule("its results are integers")
    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in BitUnaryOp:
            yield sample(cls(kind), spec(3, 4, low=-100, high=100), dtypes=(*INTS, "i16", "u16", "u32", "u64"))
            yield sample(cls(kind), spec(4, values=[0, 1, -1, -128]), dtypes=("i8", "i32", "i64"))
            yield sample(cls(kind), spec("B", 1), dtypes=("i32",), B=2)
        yield sample(cls("not"), spec(3, 2), dtypes=("bool",))
        yield sample(cls("popcount"), spec(0, 2), dtypes=("u8",))


def not_(x: Any) -> Any:
    """Every bit flipped; the negation of a bool."""
    return BitUnary(BitUnaryOp.Not)(x)


def popcount(x: Any) -> Any:
    """How many bits are set, in the dtype of x.

    >>> print(popcount(np.array([0, 7, -1], "i1")))
    [0 3 8]
    """
    return BitUnary(BitUnaryOp.PopCount)(x)


def clz(x: Any) -> Any:
    """How many zero bits lie above the highest set one; the width for 0.

    >>> print(clz(np.array([0, 1, 100, 255], "u1")))
    [8 7 1 0]
    """
    return BitUnary(BitUnaryOp.Clz)(x)


def _width(dtype: DType) -> int:
    """Bits of one element; 4-bit types hold four, whatever NumPy spends on them."""
    return 4 if dtype in (DType.I4, DType.U4, DType.F4E2M1) else dtype.size_bytes * 8


@op("bitcast")
class Bitcast(Op):
    """The same bits read as `to`, little-endian.

    Equal widths keep the dims. A narrower type adds a last axis that counts the parts of one element, the lowest bits
    first; a wider type takes that axis away. 4-bit types count as four bits. bool has no bits to speak of.

    >>> print(Bitcast("u8")(np.array([1.0], "f4")))
    [[  0   0 128  63]]
    """

    primitive = True
    precision_class = "elementwise"

    to: DType

    def infer(self, x: Shape) -> Shape:
        if DType.BOOL in (x.dtype, self.to):
            raise self.fail(f"bool has no defined bits, so it goes through a cast to or from u8; got {x} to {self.to}")
        have, want = _width(x.dtype), _width(self.to)
        if have == want:
            return x.with_dtype(self.to)
        if have > want:
            return Shape((*x.dims, have // want), self.to)
        if not x.dims or not require_equal(x.dims[-1], want // have, self.mnemonic):
            raise self.fail(f"{want // have} elements make one {self.to}, so the last axis needs that size; got {x}")
        return Shape(x.dims[:-1], self.to)

    def eval(self, x: Array) -> Array:
        have, want = _width(DType.of(x.dtype)), _width(self.to)
        if have == want:
            return x.view(self.to.numpy)
        data = _from_bytes(_to_bytes(np.ascontiguousarray(x).reshape(-1), have), self.to, want)
        return data.reshape((*x.shape, have // want) if have > want else x.shape[:-1])

    jvp = vjp = NoRule("bits have no derivative")
    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for to, dtypes in (
            ("i32", ("f32", "u32")),
            ("f32", ("i32",)),
            ("u16", ("f16", "bf16")),
            ("u64", ("f64", "i64", "c64")),
            ("f8e4m3", ("u8",)),
            ("u8", ("i8", "f8e5m2")),
            ("i4", ("u4",)),
        ):
            yield sample(cls(to), spec(3, 4), dtypes=dtypes)
        yield sample(cls("u8"), spec(2, 3), dtypes=("f32", "i64", "f16", "c128"))
        yield sample(cls("u4"), spec(2, 3), dtypes=("u8", "i16"))
        yield sample(cls("f32"), spec(3, 4, low=0, high=60), dtypes=("u8",))
        yield sample(cls("i8"), spec(3, 2, low=0, high=7), dtypes=("u4", "i4"))
        yield sample(cls("f32"), spec(2), dtypes=("c64",))
        yield sample(cls("c64"), spec(3, 2), dtypes=("f32",))
        yield sample(cls("u16"), spec(), dtypes=("f32",))
        yield sample(cls("u8"), spec("B", 0), dtypes=("f32",), B=2)
        yield sample(cls("i32"), spec("B", 4), dtypes=("u8",), B=3)


def _to_bytes(x: Array, width: int) -> Array:
    if width >= 8:
        return x.view(np.uint8)
    pairs = x.view(np.uint8).reshape(-1, 2) & 0x0F
    return pairs[:, 0] | (pairs[:, 1] << 4)


def _from_bytes(data: Array, to: DType, width: int) -> Array:
    if width >= 8:
        return data.view(to.numpy)
    return np.stack([data & 0x0F, data >> 4], axis=-1).reshape(-1).view(to.numpy)


def bitcast(x: Any, dtype: DTypeLike) -> Any:
    """The bits of x read as another dtype; see `Bitcast` for types of different widths."""
    return Bitcast(DType.of(dtype))(x)


def viewed(x: Any, dtype: DTypeLike) -> Any:
    """The bits of x as another dtype, as NumPy's `view` gives them: parts of an element lie along the last axis.

    >>> print(viewed(np.array([1.0, 2.0], "f4"), "u16"))
    [    0 16256     0 16384]
    """
    to, dims = DType.of(dtype), dims_of(x)
    have, want = _width(dtype_of(x)), _width(to)
    if have == want:
        return bitcast(x, to)
    if not dims:
        raise OpError(f"view: an element of {to} is not as wide as one of {dtype_of(x)}, and a scalar has no last axis")
    if have > want:
        return reshape(bitcast(x, to), (*dims[:-1], dims[-1] * (have // want)))
    parts = want // have
    if isinstance(dims[-1], int) and dims[-1] % parts:
        raise ShapeError(f"view: {parts} elements make one {to}, which does not divide the last axis of {dims}")
    return bitcast(reshape(x, (*dims[:-1], dims[-1] // parts, parts)), to)


@attribute_type
class PredicateKind(Words):
    """Questions about one number."""

    IsFinite = "isfinite"
    IsNan = "isnan"
    IsInf = "isinf"
    SignBit = "signbit"


def _decompose_signbit(x: Any) -> Any:
    return lt(bitcast(x, f"i{x.dtype.size_bytes * 8}"), 0)


class _PredicateDefinition(NamedTuple):
    formula: Callable[[Array], Array]
    decompose: Callable[[Any], Any]
    # How the answers for real and imaginary part are joined; None when complex numbers have no answer.
    join: Callable[[Any, Any], Any] | None


_PREDICATES: dict[str, _PredicateDefinition] = {
    "isfinite": _PredicateDefinition(np.isfinite, lambda x: lt(abs_(x), math.inf), and_),
    "isnan": _PredicateDefinition(np.isnan, lambda x: ne(x, x), or_),
    "isinf": _PredicateDefinition(np.isinf, lambda x: eq(abs_(x), math.inf), or_),
    "signbit": _PredicateDefinition(np.signbit, _decompose_signbit, None),
}


@op_family(PredicateKind)
class Predicate(Op):
    """y = whether x is finite, NaN or infinite, or carries a sign (-0.0 and -NaN do). bool; x float or complex.

    A complex number is finite when both parts are, and NaN or infinite when one is; it has no sign.
    """

    precision_class = "elementwise"

    kind: PredicateKind

    def infer(self, x: Shape) -> Shape:
        complex_too = _PREDICATES[self.kind].join is not None
        ok = x.dtype.is_float or (complex_too and x.dtype.is_complex)
        accepted = "float or complex" if complex_too else "float"
        require_dtype(self, ok and not x.dtype.is_storage, accepted, x)
        return x.with_dtype(DType.BOOL)

    def eval(self, x: Array) -> Array:
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        return np.asarray(_PREDICATES[self.kind].formula(wide), dtype=bool)

    def decompose(self, x: Any) -> Any:
        definition = _PREDICATES[self.kind]
        if not x.dtype.is_complex:
            return definition.decompose(x)
        from rlx.ops.pointwise.complex_numbers import imag, real

        assert definition.join is not None
        return definition.join(definition.decompose(real(x)), definition.decompose(imag(x)))

    jvp = vjp = NoRule("its results are true or false")
    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        special = spec(7, values=[0.0, -0.0, -1.5, np.inf, -np.inf, np.nan, -np.nan])
        for kind in PredicateKind:
            yield sample(cls(kind), special)
            yield sample(cls(kind), spec("B", 2), B=3)
            if kind is not PredicateKind.SignBit:
                values = [1 + 1j, complex(np.nan, 1), complex(0, np.inf), complex(-np.inf, np.nan)]
                yield sample(cls(kind), spec(4, values=values), dtypes=COMPLEX)
        yield sample(cls("isnan"), spec(0, 3), dtypes=FLOATS)


def isfinite(x: Any) -> Any:
    """True for numbers that are neither infinite nor NaN."""
    return Predicate(PredicateKind.IsFinite)(x) if dtype_of(x).is_inexact else eq(x, x)


def isnan(x: Any) -> Any:
    """True for NaN."""
    return Predicate(PredicateKind.IsNan)(x) if dtype_of(x).is_inexact else ne(x, x)


def isinf(x: Any) -> Any:
    """True for positive and negative infinity."""
    return Predicate(PredicateKind.IsInf)(x) if dtype_of(x).is_inexact else ne(x, x)


def signbit(x: Any) -> Any:
    """True where the sign is negative: also for -0.0."""
    dtype = dtype_of(x)
    if dtype is DType.BOOL:
        return ne(x, x)
    return lt(x, 0) if dtype.is_int else Predicate(PredicateKind.SignBit)(x)


def truth(x: Any) -> Any:
    """x as bool: non-zero is true."""
    return x if dtype_of(x) is DType.BOOL else ne(x, 0)


def logical_and(a: Any, b: Any) -> Any:
    """True where both are non-zero."""
    return and_(truth(a), truth(b))


def logical_or(a: Any, b: Any) -> Any:
    """True where at least one is non-zero."""
    return or_(truth(a), truth(b))


def logical_xor(a: Any, b: Any) -> Any:
    """True where exactly one is non-zero."""
    return xor(truth(a), truth(b))


def logical_not(x: Any) -> Any:
    """True where x is zero."""
    return not_(truth(x))
