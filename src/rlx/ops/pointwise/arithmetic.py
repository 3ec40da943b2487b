"""Elementwise functions of two or three operands: `Binary(kind)`, `Compare(kind)`, `Where`, `Clamp`.

Operands broadcast as in NumPy. The ops take operands of one dtype; the constructors (`add`, `maximum`, ...) promote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, attribute_type, op, op_family
from rlx.ir.shape import Shape, broadcast_dims
from rlx.ir.words import Words
from rlx.ops.define.operands import convert, dtype_of, keep_weak, promote_operands, require_dtype, require_same_dtype
from rlx.ops.define.rules import batch_pointwise, unbroadcast
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec

__all__ = [
    "Binary",
    "BinaryOp",
    "Clamp",
    "CmpOp",
    "Compare",
    "Where",
    "add",
    "and_",
    "atan2",
    "binary",
    "clamp",
    "compare",
    "copysign",
    "div",
    "eq",
    "floordiv",
    "ge",
    "gt",
    "hypot",
    "le",
    "logaddexp",
    "lt",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "ne",
    "nextafter",
    "or_",
    "pow_",
    "rem",
    "shift_left",
    "shift_right",
    "shift_right_logical",
    "sub",
    "where",
    "xor",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class BinaryOp(Words):
    """The elementwise functions of two operands. The first seven are those of the seed documents."""

    Add = "add"
    Sub = "sub"
    Mul = "mul"
    Div = "div"
    Max = "max"
    Min = "min"
    Pow = "pow"
    Rem = "rem"
    FloorDiv = "floordiv"
    Atan2 = "atan2"
    Hypot = "hypot"
    LogAddExp = "logaddexp"
    NextAfter = "nextafter"
    CopySign = "copysign"
    And = "and"
    Or = "or"
    Xor = "xor"
    ShiftLeft = "shift_left"
    ShiftRight = "shift_right"
    ShiftRightLogical = "shift_right_logical"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow", "%": "rem", "//": "floordiv"}


class _Definition(NamedTuple):
    """What one kind means: NumPy definition, decomposition, and the classes of dtype it accepts (f i b c)."""

    formula: Callable[[Array, Array], Array]
    decompose: Callable[[Any, Any], Any] | None = None
    accepts: str = "f"
    low: float = -2.0
    high: float = 2.0


def _nonzero(b: Array) -> Array:
    """Divisors with 0 replaced by 1, in their own dtype."""
    return np.where(b == 0, b.dtype.type(1), b)


def _divide(a: Array, b: Array) -> Array:
    """IEEE for floats. Integers truncate toward zero, as hardware does; x / 0 gives 0 instead of a trap."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    safe = _nonzero(b)
    quotient = np.floor_divide(a, safe)
    inexact = quotient * safe != a
    quotient = quotient + (inexact & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(0), quotient)


def _remainder(a: Array, b: Array) -> Array:
    """Sign of the dividend (C and jax.lax.rem); x rem 0 is NaN for floats, 0 for integers."""
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a.dtype.type(0), np.fmod(a, _nonzero(b)))


def _floor_divide(a: Array, b: Array) -> Array:
    """The floor of the exact quotient, not of the rounded one: 1 // 0.1 is 9, as 0.1 is a little more than 1/10."""
    if a.dtype.kind not in "iu":
        return np.floor_divide(a, b)
    return np.where(b == 0, a.dtype.type(0), np.floor_divide(a, _nonzero(b)))


def _power(a: Array, b: Array) -> Array:
    """Integers wrap; a negative integer exponent gives the truncated quotient 1 / a^|b|, and 0 for a = 0."""
    if a.dtype.kind not in "iu":
        # Beside one exponent for all, NumPy takes short cuts (x * x, sqrt) that differ in the last bit and at -inf.
        dims = np.broadcast_shapes(a.shape, b.shape)
        each = np.broadcast_to(a, dims).reshape(-1), np.array(np.broadcast_to(b, dims)).reshape(-1)
        return np.asarray(np.power(*each)).reshape(dims)
    zero, one = a.dtype.type(0), a.dtype.type(1)
    result = np.power(a, np.where(b < 0, zero, b))
    if a.dtype.kind == "u":
        return result
    # Only 1 and -1 have a reciprocal that does not truncate to 0.
    reciprocal = np.where(np.abs(a) == 1, np.where(b % 2 == 0, one, a), zero)
    return np.where(b < 0, reciprocal, result)


def _shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Shifts by a negative amount, or by the width or more, give 0 (or the sign), never something undefined."""

    def shift(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        over = (b >= bits) | (b < 0)
        result = function(a, np.where(over, b.dtype.type(0), b))
        keep_sign = function is np.right_shift and a.dtype.kind == "i"
        saturated = np.right_shift(a, a.dtype.type(bits - 1)) if keep_sign else np.zeros_like(a)
        return np.where(over, saturated, result)

    return shift


def _shift_right_logical(a: Array, b: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), b.view(unsigned)).view(a.dtype)


def _next_after(a: Array, b: Array) -> Array:
    # NumPy's float16 returns a, not b, when the two are zeros of different signs.
    return np.where(a == b, b, np.nextafter(a, b))


def _decompose_floordiv(a: Any, b: Any) -> Any:
    if a.dtype.is_float:
        return _float_floordiv(a, b)
    quotient = div(a, b)
    opposite = xor(lt(a, 0), lt(b, 0))
    return where(and_(opposite, and_(ne(quotient * b, a), ne(b, 0))), quotient - 1, quotient)


def _float_floordiv(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.unary import round_

    remainder = rem(a, b)
    # (a - r) / b is an integer up to rounding; with opposite signs the remainder costs one more.
    quotient = round_(div(a - remainder, b))
    opposite = xor(lt(remainder, 0.0), lt(b, 0.0))
    quotient = where(and_(opposite, ne(remainder, 0.0)), quotient - 1.0, quotient)
    # Keeps the sign of a zero quotient, and the infinities of a division by zero.
    exact = div(a, b)
    return where(eq(b, 0.0), exact, where(eq(quotient, 0.0), copysign(quotient, exact), quotient))


def _decompose_atan2(y: Any, x: Any) -> Any:
    from rlx.ops.pointwise.bits import signbit
    from rlx.ops.pointwise.unary import abs_, atan

    ay, ax = abs_(y), abs_(x)
    big, small = maximum(ay, ax), minimum(ay, ax)
    # Equal sides, infinite ones included, have ratio 1; two zeros have ratio 0.
    ratio = where(eq(big, 0.0), 0.0, where(eq(big, small), 1.0, div(small, big)))
    angle = atan(ratio)
    angle = where(gt(ay, ax), math.pi / 2 - angle, angle)
    angle = where(signbit(x), math.pi - angle, angle)
    return copysign(angle, y)


def _decompose_hypot(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.unary import abs_, sqrt

    # Scaling by the larger side keeps the squares from overflowing.
    a, b = abs_(a), abs_(b)
    big, small = maximum(a, b), minimum(a, b)
    ratio = div(small, where(eq(big, 0.0), 1.0, big))
    infinite = or_(eq(a, math.inf), eq(b, math.inf))
    return where(infinite, math.inf, big * sqrt(1.0 + ratio * ratio))


def _decompose_logaddexp(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.unary import abs_, exp, log1p

    difference = a - b
    # Equal infinities have no difference; the result is then that infinity, and a + b is too. NaN passes the same way.
    return where(ne(difference, difference), a + b, maximum(a, b) + log1p(exp(-abs_(difference))))


def _as_bits(x: Any) -> tuple[Any, int]:
    """The bits of a float tensor as a signed integer, and the width."""
    from rlx.ops.pointwise.bits import bitcast

    width = x.dtype.size_bytes * 8
    return bitcast(x, f"i{width}"), width


def _decompose_nextafter(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.bits import bitcast

    bits, width = _as_bits(a)
    up = lt(a, b)
    # Bits count away from zero; from zero the first step is the smallest denormal of the wanted sign.
    moved = where(eq(gt(a, 0.0), up), bits + 1, bits - 1)
    smallest = convert(1, bits.dtype)
    moved = where(eq(a, 0.0), where(up, smallest, 1 - 2 ** (width - 1)), moved)
    result = where(eq(a, b), b, bitcast(moved, a.dtype))
    return where(or_(ne(a, a), ne(b, b)), math.nan, result)


def _decompose_copysign(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.bits import bitcast

    (size, width), (sign, _) = _as_bits(a), _as_bits(b)
    size = and_(size, 2 ** (width - 1) - 1)
    return bitcast(or_(size, and_(sign, -(2 ** (width - 1)))), a.dtype)


def _decompose_shift_right_logical(a: Any, b: Any) -> Any:
    from rlx.ops.pointwise.bits import bitcast

    if not a.dtype.is_signed:
        return shift_right(a, b)
    unsigned = f"u{a.dtype.size_bytes * 8}"
    # A negative amount reads as a huge one, which gives 0 as it should.
    return bitcast(shift_right(bitcast(a, unsigned), bitcast(b, unsigned)), a.dtype)


_D = _Definition
_DEFINITIONS: dict[str, _Definition] = {
    "add": _D(np.add, accepts="fic"),
    "sub": _D(np.subtract, accepts="fic"),
    "mul": _D(np.multiply, accepts="fic"),
    "div": _D(_divide, accepts="fic", low=0.3, high=3),
    "max": _D(np.maximum, accepts="fib"),
    "min": _D(np.minimum, accepts="fib"),
    "pow": _D(_power, accepts="fi", low=0.3, high=2),
    "rem": _D(_remainder, accepts="fi", low=0.5, high=4),
    "floordiv": _D(_floor_divide, _decompose_floordiv, accepts="fi", low=0.5, high=4),
    "atan2": _D(np.arctan2, _decompose_atan2),
    "hypot": _D(np.hypot, _decompose_hypot),
    "logaddexp": _D(np.logaddexp, _decompose_logaddexp),
    "nextafter": _D(_next_after, _decompose_nextafter),
    "copysign": _D(np.copysign, _decompose_copysign),
    "and": _D(np.bitwise_and, accepts="ib"),
    "or": _D(np.bitwise_or, accepts="ib"),
    "xor": _D(np.bitwise_xor, accepts="ib"),
    "shift_left": _D(_shift(np.left_shift), accepts="i", low=0, high=6),
    "shift_right": _D(_shift(np.right_shift), accepts="i", low=0, high=6),
    "shift_right_logical": _D(_shift(_shift_right_logical), _decompose_shift_right_logical, accepts="i", low=0, high=6),
}
_CLASS_NAMES = {"f": "float", "i": "integer", "b": "bool", "c": "complex"}


def _dtype_class(dtype: DType) -> str:
    if dtype.is_storage:
        return "storage"
    return "c" if dtype.is_complex else "f" if dtype.is_float else "i" if dtype.is_int else "b"


@op_family(BinaryOp)
class Binary(Op):
    """y = f(a, b) elementwise with broadcasting, f given by `kind`. max and min propagate NaN.

    f16, bf16 and f32 are computed in f64 and rounded once; integers wrap around. Integer division truncates toward
    zero and division by zero gives 0; `rem` has the sign of the dividend; shifts by a negative amount, or by the bit
    width or more, give 0 (-1 for `shift_right` of a negative number).
    """

    is_elementwise = True
    precision_class = "elementwise"

    kind: BinaryOp

    @property
    def is_primitive(self) -> bool:
        return _DEFINITIONS[self.kind].decompose is None

    @property
    def derivative_is_zero(self) -> bool:
        return self.kind is BinaryOp.FloorDiv

    def infer(self, a: Shape, b: Shape) -> Shape:
        dtype = require_same_dtype(self, a, b)
        accepts = _DEFINITIONS[self.kind].accepts
        require_dtype(self, _dtype_class(dtype) in accepts, " or ".join(_CLASS_NAMES[c] for c in accepts), a, b)
        return Shape(broadcast_dims(a.dims, b.dims, self.kind), dtype)

    def eval(self, a: Array, b: Array) -> Array:
        formula = _DEFINITIONS[self.kind].formula
        with np.errstate(all="ignore"):
            # The next value depends on the operand's own type, so it is not computed in f64 either.
            if a.dtype.kind in "iub" or self.kind is BinaryOp.NextAfter:
                return np.asarray(formula(*np.broadcast_arrays(a, b)), dtype=a.dtype)
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            return np.asarray(formula(a.astype(wide), b.astype(wide))).astype(a.dtype)

    def decompose(self, a: Any, b: Any) -> Any:
        build = _DEFINITIONS[self.kind].decompose
        assert build is not None
        return build(a, b)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        from rlx.ops.pointwise.binary_derivatives import scaled_by_partial
        from rlx.ops.shape.movement import broadcast_to

        a, b = primals
        parts = [scaled_by_partial(self.kind, i, t, a, b, y) for i, t in enumerate(tangents) if t is not None]
        moving = [p for p in parts if p is not None]
        if not moving:
            return None
        return broadcast_to(moving[0] + moving[1] if len(moving) == 2 else moving[0], y.shape)

    def vjp(self, ct: Any, y: Any, a: Any, b: Any) -> Any:
        from rlx.ops.pointwise.binary_derivatives import scaled_by_partial
        from rlx.ops.pointwise.complex_numbers import conjugate

        at = conjugate(a), conjugate(b), conjugate(y)
        parts = [scaled_by_partial(self.kind, i, ct, *at) for i in (0, 1)]
        return tuple(None if p is None else unbroadcast(p, x.type) for p, x in zip(parts, (a, b)))

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in BinaryOp:
            definition = _DEFINITIONS[kind]
            sweeps = {"f": FLOATS, "i": INTS, "b": ("bool",), "c": COMPLEX}
            for dtype_class in definition.accepts:
                operand = spec(3, 4, low=definition.low, high=definition.high)
                yield sample(cls(kind), operand, operand, dtypes=sweeps[dtype_class])
        signed = spec(8, values=[7, -7, 7, -7, 5, 0, -8, 3])
        divisor = spec(8, values=[2, 2, -2, -2, 0, 3, 4, -3])
        for kind in (BinaryOp.Div, BinaryOp.Rem, BinaryOp.FloorDiv, BinaryOp.Pow):
            yield sample(cls(kind), signed, divisor, dtypes=("i8", "i32", "i64"))
        yield sample(cls("add"), spec(3, 1), spec(4))
        yield sample(cls("mul"), spec(2, 1, 4), spec(3, 1))
        yield sample(cls("sub"), spec(), spec(2, 3))
        yield sample(cls("add"), spec(0, 3), spec(3))
        yield sample(cls("max"), spec(4, distinct=True), spec(4, low=-1.9, high=2.1, distinct=True))
        yield sample(cls("add"), spec("B", 4), spec("B", 1), B=3)
        yield sample(cls("mul"), spec("B", "S"), spec("S"), B=2, S=3)


@attribute_type
class CmpOp(Words):
    """The comparisons."""

    Eq = "eq"
    Ne = "ne"
    Lt = "lt"
    Le = "le"
    Gt = "gt"
    Ge = "ge"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@op_family(CmpOp)
class Compare(Op):
    """y = a ? b as bool, elementwise with broadcasting. NaN is unequal to everything, itself included."""

    is_elementwise = True
    primitive = True
    precision_class = "elementwise"

    kind: CmpOp

    def infer(self, a: Shape, b: Shape) -> Shape:
        dtype = require_same_dtype(self, a, b)
        ordered = self.kind not in (CmpOp.Eq, CmpOp.Ne)
        require_dtype(self, not dtype.is_storage and not (ordered and dtype.is_complex), "comparable", a, b)
        return Shape(broadcast_dims(a.dims, b.dims, self.kind), DType.BOOL)

    def eval(self, a: Array, b: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(_COMPARISONS[self.kind](a, b), dtype=bool)

    jvp = vjp = NoRule("its results are true or false")
    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in CmpOp:
            yield sample(cls(kind), spec(3, 4), spec(4), dtypes=(*FLOATS, *INTS))
            yield sample(cls(kind), spec(3, values=[1.0, np.nan, 2.0]), spec(3, values=[1.0, np.nan, 3.0]))
        yield sample(cls("eq"), spec(3), spec(3), dtypes=("bool", "c64"))
        yield sample(cls("lt"), spec("B", 1), spec("S"), B=2, S=3)


@op("where")
class Where(Op):
    """y = a where condition holds, else b; all three broadcast. A non-bool condition means `condition != 0`."""

    is_elementwise = True
    primitive = True
    precision_class = "elementwise"
    linear_in = (1, 2)

    def infer(self, condition: Shape, a: Shape, b: Shape) -> Shape:
        dtype = require_same_dtype(self, a, b)
        dims = broadcast_dims(broadcast_dims(condition.dims, a.dims, "where"), b.dims, "where")
        return Shape(dims, dtype)

    def eval(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition != 0, a, b)

    def vjp(self, ct: Any, y: Any, condition: Any, a: Any, b: Any) -> Any:
        return None, unbroadcast(where(condition, ct, 0.0), a.type), unbroadcast(where(condition, 0.0, ct), b.type)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4, dtype="bool"), spec(3, 4), spec(3, 4), dtypes=(*FLOATS, *INTS, "bool", "c64"))
        yield sample(cls(), spec(3, 1, dtype="bool"), spec(4), spec())
        yield sample(cls(), spec(3, dtype="i32", low=0, high=1), spec(3), spec(3))
        yield sample(cls(), spec("B", 1, dtype="bool"), spec("B", 4), spec(4), B=3)


@op("clamp")
class Clamp(Op):
    """y = min(max(x, low), high), all broadcasting; NaN propagates."""

    precision_class = "elementwise"

    def infer(self, x: Shape, low: Shape, high: Shape) -> Shape:
        dtype = require_same_dtype(self, x, low, high)
        require_dtype(self, not dtype.is_complex and not dtype.is_storage, "ordered", x, low, high)
        return Shape(broadcast_dims(broadcast_dims(x.dims, low.dims, "clamp"), high.dims, "clamp"), dtype)

    def eval(self, x: Array, low: Array, high: Array) -> Array:
        return np.minimum(np.maximum(x, low), high)

    def decompose(self, x: Any, low: Any, high: Any) -> Any:
        return minimum(maximum(x, low), high)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(values=-0.5), spec(values=0.7))
        yield sample(cls(), spec(5), spec(values=0), spec(values=1), dtypes=INTS)
        yield sample(cls(), spec("B", 4), spec(4, low=-1, high=0), spec(4, low=0, high=1), B=2)


# The sum and the product of bools are bools, as in NumPy.
_OF_BOOLS = {"add": "or", "mul": "and"}


def binary(kind: BinaryOp | str, a: Any, b: Any) -> Any:
    """Any elementwise function of two operands by name: `binary("add", a, b)`."""
    x, y = promote_operands(a, b)
    if kind in _OF_BOOLS and dtype_of(x) is DType.BOOL:
        kind = _OF_BOOLS[kind]
    return keep_weak(Binary(BinaryOp(kind))(x, y), a, b)


def compare(kind: CmpOp | str, a: Any, b: Any) -> Any:
    """A comparison by name: `compare("lt", a, b)`."""
    a, b = promote_operands(a, b)
    return Compare(CmpOp(kind))(a, b)


def _constructor(make: Callable[[str, Any, Any], Any], kind: str) -> Callable[[Any, Any], Any]:
    def build(a: Any, b: Any) -> Any:
        return make(kind, a, b)

    build.__name__ = build.__qualname__ = kind
    build.__doc__ = f"{kind}(a, b), elementwise with broadcasting and promotion; see `Binary` and `Compare`."
    return build


add = _constructor(binary, "add")
sub = _constructor(binary, "sub")
mul = _constructor(binary, "mul")
div = _constructor(binary, "div")
maximum = _constructor(binary, "max")
minimum = _constructor(binary, "min")
pow_ = _constructor(binary, "pow")
rem = _constructor(binary, "rem")
floordiv = _constructor(binary, "floordiv")
atan2 = _constructor(binary, "atan2")
hypot = _constructor(binary, "hypot")
logaddexp = _constructor(binary, "logaddexp")
nextafter = _constructor(binary, "nextafter")
copysign = _constructor(binary, "copysign")
and_ = _constructor(binary, "and")
or_ = _constructor(binary, "or")
xor = _constructor(binary, "xor")
shift_left = _constructor(binary, "shift_left")
shift_right = _constructor(binary, "shift_right")
shift_right_logical = _constructor(binary, "shift_right_logical")
eq = _constructor(compare, "eq")
ne = _constructor(compare, "ne")
lt = _constructor(compare, "lt")
le = _constructor(compare, "le")
gt = _constructor(compare, "gt")
ge = _constructor(compare, "ge")


def mod(a: Any, b: Any) -> Any:
    """The remainder with the sign of the divisor, as Python's %; `rem` has that of the dividend."""
    a, b = promote_operands(a, b)
    remainder = Binary(BinaryOp.Rem)(a, b)
    opposite = xor(lt(remainder, 0), lt(b, 0))
    return where(and_(opposite, ne(remainder, 0)), add(remainder, b), remainder)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where condition holds, else b; the branches are promoted to one dtype. Of two Python numbers it is as weak."""
    x, y = promote_operands(a, b)
    return keep_weak(Where()(condition, x, y), a, b)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x limited to [low, high]."""
    x, low, high = promote_operands(x, low, high)
    return Clamp()(x, low, high)
