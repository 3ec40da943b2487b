"""Rules for elementwise ops: arithmetic, comparisons, conversions, functions of one number, bits.

f16 and bf16 are computed in f32 and rounded once. What XLA leaves open (conversions of numbers that do not fit,
division of integers by 0) is written out as docs/semantics.md says.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes

from rlx.backends.xla.stablehlo import Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value
from rlx.ir.dtype import DType
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.bits import Bitcast, BitUnary, Predicate
from rlx.ops.pointwise.complex_numbers import Imag, MakeComplex, Real
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation

Kinds = tuple[Kind, ...]

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "rem": "remainder",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shift_left": "shift_left",
    "shift_right": "shift_right_arithmetic",
    "shift_right_logical": "shift_right_logical",
    "nextafter": "chlo.next_after",
}
_UNARY = {
    "tanh": "tanh",
    "exp": "exponential",
    "log": "log",
    "sqrt": "sqrt",
    "cbrt": "cbrt",
    "neg": "negate",
    "abs": "abs",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tan",
    "atan": "chlo.atan",
    "round": "round_nearest_even",
    "floor": "floor",
    "ceil": "ceil",
    "expm1": "exponential_minus_one",
    "log1p": "log_plus_one",
    "erf": "chlo.erf",
    "erfc": "chlo.erfc",
}


def narrow(dtype: DType) -> bool:
    """Whether a float is too short to compute in."""
    return dtype.is_float and dtype.size_bytes < 4


def in_accumulator(block: Block, values: list[Value], compute: Callable[..., Value]) -> Value:
    """What a function gives for values of one type, computed in the type that sums are held in."""
    dtype = values[0].dtype
    if not narrow(dtype):
        return compute(*values)
    return block.convert(compute(*(block.convert(v, DType.F32) for v in values)), dtype)


def has_binary(op: Binary) -> bool:
    return op.kind.value in _BINARY


@rule(Binary)
def _binary(e: Emitter, op: Binary, operands: list[Value], kinds: Kinds) -> Value:
    block, kind = e.block, op.kind.value
    a, b = block.together(*operands)
    name = _BINARY[kind]
    if kind in ("div", "rem") and a.dtype.is_int:
        return _integer_division(block, name, a, b)
    if kind == "shift_right" and not a.dtype.is_signed:
        name = "shift_right_logical"
    if kind == "nextafter":
        return block.op(name, [a, b], a.kind)
    if kind == "div" and a.dtype.is_float:
        return in_accumulator(block, [a, b], lambda a, b: _exact_quotient(block, a, b))
    return in_accumulator(block, [a, b], lambda a, b: block.op(name, [a, b], a.kind))


def _exact_quotient(block: Block, a: Value, b: Value) -> Value:
    """A division that stays one. XLA multiplies by the reciprocal where one number divides many, which is not the
    rounded quotient: x / 3 * 3 would be less than x, and a quantiser would clip its largest element. It looks for a
    broadcast, so the divisor is chosen by the dividend, in a way that changes nothing: NaN by NaN is NaN too."""
    number = block.compare("EQ", a, a)
    return block.op("divide", [a, block.select(number, b, block.full(math.nan, b.kind))], a.kind)


def _integer_division(block: Block, name: str, a: Value, b: Value) -> Value:
    """0 for a divisor of 0; the smallest number by -1 wraps, as a product with -1 does."""
    zero = block.compare("EQ", b, 0)
    is_wrapping = block.compare("EQ", b, -1) if a.dtype.is_signed else None
    safe = block.select(zero if is_wrapping is None else block.binary("or", zero, is_wrapping), 1, b)
    result = block.op(name, [a, safe], a.kind)
    if is_wrapping is not None:
        negated = block.unary("negate", a) if name == "divide" else block.full(0, a.kind)
        result = block.select(is_wrapping, negated, result)
    return block.select(zero, 0, result)


@rule(Compare)
def _compare(e: Emitter, op: Compare, operands: list[Value], kinds: Kinds) -> Value:
    a, b = e.block.together(*operands)
    return e.block.compare(op.kind.value.upper(), a, b)


@rule(Where)
def _where(e: Emitter, op: Where, operands: list[Value], kinds: Kinds) -> Value:
    condition, a, b = e.block.together(*operands)
    return e.block.select(truth(e.block, condition), a, b)


def truth(block: Block, x: Value) -> Value:
    """Whether numbers are not 0."""
    return x if x.dtype is DType.BOOL else block.compare("NE", x, 0)


@rule(Cast)
def _cast(e: Emitter, op: Cast, operands: list[Value], kinds: Kinds) -> Value:
    return cast(e.block, operands[0], op.to)


def cast(block: Block, x: Value, to: DType) -> Value:
    """x converted, as the op `Cast` defines it."""
    if x.dtype is to:
        return x
    if x.dtype.is_complex:
        if to.is_complex:
            return block.convert(x, to)
        x = block.op("real", [x], x.kind.with_dtype(x.dtype.real))
        if x.dtype is to:
            return x
    if to is DType.BOOL:
        return truth(block, block.convert(x, DType.F32) if x.dtype.is_storage else x)
    if to.is_complex:
        part = cast(block, x, to.real)
        return block.op("complex", [part, block.full(0, part.kind)], part.kind.with_dtype(to))
    if x.dtype.is_float and to.is_int:
        return _float_to_int(block, block.convert(x, DType.F32) if narrow(x.dtype) else x, to)
    if x.dtype is DType.BOOL and to.is_storage:
        x = block.convert(x, DType.I32)
    return block.convert(x, to)


def _float_to_int(block: Block, x: Value, to: DType) -> Value:
    """Toward zero; what does not fit becomes the end of the range, NaN 0."""
    info = ml_dtypes.iinfo(to.numpy)
    low, high = block.compare("LE", x, float(info.min)), block.compare("GE", x, float(info.max))
    odd = block.binary("or", block.binary("or", low, high), block.compare("NE", x, x))
    # XLA converts to four bits only by way of eight.
    step = DType.I8 if to in (DType.I4, DType.U4) else to
    inside = block.convert(block.select(odd, 0.0, x), step)
    limited = block.select(low, int(info.min), block.select(high, int(info.max), inside))
    return block.convert(limited, to)


@rule(Real, Imag)
def _part(e: Emitter, op: Real | Imag, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.op(op.mnemonic, operands, kinds[0])


@rule(MakeComplex)
def _make_complex(e: Emitter, op: MakeComplex, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.op("complex", e.block.together(*operands), kinds[0])


def has_activation(op: Activation) -> bool:
    # XLA's complex functions beside these are not those of C.
    return op.kind.value in _UNARY or op.kind.value == "trunc"


@rule(Activation)
def _activation(e: Emitter, op: Activation, operands: list[Value], kinds: Kinds) -> Value:
    block, kind = e.block, op.kind.value
    (x,) = operands
    if x.dtype.is_int:
        if kind == "neg" or (kind == "abs" and x.dtype.is_signed):
            return block.unary(_UNARY[kind], x)
        return x
    if kind == "trunc":
        return in_accumulator(block, [x], lambda x: _trunc(block, x))
    return in_accumulator(block, [x], lambda x: block.unary(_UNARY[kind], x))


def _trunc(block: Block, x: Value) -> Value:
    """The floor of the size, with the sign of x, which a zero keeps too."""
    size = block.unary("floor", block.unary("abs", x))
    width = x.dtype.size_bytes * 8
    code = DType.of(f"u{width}")
    sign = block.op(
        "and", [_bits(block, x, code), block.full(1 << (width - 1), x.kind.with_dtype(code))], x.kind.with_dtype(code)
    )
    return _bits(block, block.binary("or", _bits(block, size, code), sign), x.dtype)


def _bits(block: Block, x: Value, to: DType) -> Value:
    return block.op("bitcast_convert", [x], x.kind.with_dtype(to))


@rule(Predicate)
def _predicate(e: Emitter, op: Predicate, operands: list[Value], kinds: Kinds) -> Value:
    block, kind = e.block, op.kind.value
    (x,) = operands
    if x.dtype.is_complex:
        parts = [block.op(p, [x], x.kind.with_dtype(x.dtype.real)) for p in ("real", "imag")]
        answers = [_asked(block, kind, p) for p in parts]
        return block.binary("and" if kind == "isfinite" else "or", *answers)
    return _asked(block, kind, x)


def _asked(block: Block, kind: str, x: Value) -> Value:
    if kind == "isnan":
        return block.compare("NE", x, x)
    if kind == "signbit":
        return block.compare("LT", _bits(block, x, DType.of(f"i{x.dtype.size_bytes * 8}")), 0)
    wide = block.convert(x, DType.F32) if narrow(x.dtype) else x
    if kind == "isfinite":
        return block.op("is_finite", [wide], wide.kind.with_dtype(DType.BOOL))
    return block.compare("EQ", block.unary("abs", wide), math.inf)


@rule(BitUnary)
def _bit_unary(e: Emitter, op: BitUnary, operands: list[Value], kinds: Kinds) -> Value:
    name = {"not": "not", "popcount": "popcnt", "clz": "count_leading_zeros"}[op.kind.value]
    return e.block.unary(name, operands[0])


@rule(Bitcast)
def _bitcast(e: Emitter, op: Bitcast, operands: list[Value], kinds: Kinds) -> Value:
    """XLA reads no bits of complex numbers, so these are pairs of parts first, and afterwards."""
    block, (x,) = e.block, operands
    if x.dtype.is_complex:
        real = x.dtype.real
        parts = [block.op(p, [x], x.kind.with_dtype(real)) for p in ("real", "imag")]
        x = block.concat([block.reshape(p, (*p.dims, 1)) for p in parts], x.kind.rank)
        return _rebits(block, x, kinds[0])
    if kinds[0].dtype.is_complex:
        real = kinds[0].dtype.real
        pairs = _rebits(block, x, Kind((*kinds[0].dims, 2), real))
        parts = [block.reshape(block.narrow(pairs, len(kinds[0].dims), i, 1), kinds[0].dims) for i in (0, 1)]
        return block.op("complex", parts, kinds[0])
    return _rebits(block, x, kinds[0])


def _rebits(block: Block, x: Value, to: Kind) -> Value:
    """The bits of x as another type, whatever axes hold the parts of an element: by way of bytes if need be."""
    if x.kind == to:
        return x
    have, want = _width(x.dtype), _width(to.dtype)
    count = to.size
    if have == want:
        flat = block.op("bitcast_convert", [block.reshape(x, (count,))], Kind((count,), to.dtype))
    elif have > want:
        ratio = have // want
        flat = block.op("bitcast_convert", [block.reshape(x, (x.kind.size,))], Kind((x.kind.size, ratio), to.dtype))
    else:
        flat = block.op("bitcast_convert", [block.reshape(x, (count, want // have))], Kind((count,), to.dtype))
    return block.reshape(flat, to.dims)


def _width(dtype: DType) -> int:
    return 4 if dtype in (DType.I4, DType.U4, DType.F4E2M1) else dtype.size_bytes * 8
