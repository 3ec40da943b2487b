"""Expressions as data: the DAG that the compiler hands to a kernel maker, and its lowering.

Op names are the mnemonics of MIR. Nodes of f16 and bf16 are computed in f32 and rounded where they leave the kernel, or
where a `cast` asks for it; every other dtype is computed in itself.

>>> x = operand(0, DType.F32)
>>> apply("mul", x, apply("sigmoid", x)).dtype
DType.F32
>>> apply("div", x, reduce("sum", x)).dtype  # x as parts of the sum of its row
DType.F32
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import FLOATS, INTS, SHORT_FLOATS, Literal, Value
from rlx.kernels.math import exact_math, vector_inverse, vector_math


@dataclass(frozen=True, eq=False, slots=True)
class Expr:
    """An op on other nodes, or a leaf with its `value`: the number of an `operand`, the axis of an `index`, the extent
    of a `size`, a `literal`. The value of a `reduce` is how it joins, that of a `gather` the operand that it reads."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    value: Literal | str = 0


def operand(number: int, dtype: DType) -> Expr:
    """The kernel's operand with this number."""
    return Expr("operand", (), dtype, number)


def literal(value: Literal, dtype: DType) -> Expr:
    return Expr("literal", (), dtype, value)


def index(axis: int, dtype: DType = DType.I64) -> Expr:
    """The element's own index along an axis of the index space: MIR's iota. An i32 wraps."""
    return Expr("index", (), dtype, axis)


def size(extent: Extent) -> Expr:
    """A size of the index space, or another number that the caller passes, as an i64."""
    return Expr("size", (), DType.I64, extent)


def reduce(kind: str, x: Expr) -> Expr:
    """`x` joined along the row by one of `JOINS`: one value per row, the same for all of its elements."""
    if kind not in JOINS or compute_dtype(x.dtype) not in JOINS[kind][1]:
        raise OpError(f"reduce by {kind} of {x.dtype} has no lowering; kinds: {' '.join(JOINS)}")
    return Expr("reduce", (x,), x.dtype, kind)


def gather(number: int, dtype: DType, offset: Expr, exists: Expr | None = None) -> Expr:
    """The kernel's operand with this number, `offset` elements further on; 0 where `exists` is false."""
    if offset.dtype is not DType.I64 or (exists is not None and exists.dtype is not DType.BOOL):
        raise DTypeError(f"gather: an i64 offset and a bool are needed, got {offset.dtype}, {exists and exists.dtype}")
    return Expr("gather", (offset,) if exists is None else (offset, exists), dtype, number)


def apply(op: str, *args: Expr, to: DType | None = None) -> Expr:
    """An op on expressions; `to` is the dtype of a `cast` or `bitcast`."""
    if not can_lower(op, *(a.dtype for a in args)):
        raise OpError(f"{op} on {', '.join(str(a.dtype) for a in args)} has no lowering; known: {' '.join(expr_ops())}")
    if op in ("cast", "bitcast"):
        if to is None:
            raise OpError(f"{op} needs the dtype to convert to")
        return Expr(op, args, to)
    operands = args[1:] if op == "where" else args
    if any(a.dtype is not operands[0].dtype for a in operands):
        raise DTypeError(f"{op}: operands must have one dtype, got {' and '.join(str(a.dtype) for a in operands)}")
    return Expr(op, args, DType.BOOL if op in _PREDICATES else operands[0].dtype)


def can_lower(op: str, *dtypes: DType) -> bool:
    """Whether an op on operands of these dtypes can be part of an expression."""
    if op in ("cast", "bitcast"):
        return len(dtypes) == 1 and compute_dtype(dtypes[0]) in _ANY
    if op == "where":
        return len(dtypes) == 3 and dtypes[0] is DType.BOOL and compute_dtype(dtypes[1]) in _ANY
    if op not in _LOWERINGS:
        return False
    arity, domain, _ = _LOWERINGS[op]
    return len(dtypes) == arity and compute_dtype(dtypes[0]) in domain


def expr_ops() -> list[str]:
    return sorted([*_LOWERINGS, "where", "cast", "bitcast"])


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which values of `dtype` are computed."""
    return DType.F32 if dtype in SHORT_FLOATS else dtype


def topological(roots: Sequence[Expr], is_known: Callable[[Expr], bool] = lambda node: False) -> list[Expr]:
    """Every node once, operands first, without those below known ones; without recursion, as chains can be long."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not is_known(node):
                stack.extend((arg, False) for arg in reversed(node.args))
    return order


def uniform_nodes(roots: Sequence[Expr]) -> list[Expr]:
    """Nodes that are computed from passed numbers and literals alone: they are the same for every element."""
    uniform: dict[Expr, bool] = {}
    for node in topological(roots):
        uniform[node] = all(uniform[a] for a in node.args) if node.args else node.op in ("size", "literal")
    return [node for node, is_uniform in uniform.items() if is_uniform and node.args]


def is_simple(node: Expr) -> bool:
    """Whether a node is one instruction or so, or none."""
    return not node.args or node.op in _SIMPLE


def passed_number(extent: str, dtype: DType) -> Expr:
    """A number of a float dtype that the caller passes by its bits, as `bits_of` gives them."""
    bits = size(extent)
    if dtype.size_bytes < DType.I64.size_bytes:
        bits = apply("cast", bits, to=DType.of(f"u{8 * dtype.size_bytes}"))
    return apply("bitcast", bits, to=dtype)


def bits_of(number: float, dtype: DType) -> int:
    """The bits of a float, as an i64."""
    kind = f"u{dtype.size_bytes}" if dtype.size_bytes < DType.I64.size_bytes else "i8"
    return int(np.asarray(number, dtype.numpy).view(kind))


def lower_expr(
    k: KernelBuilder,
    roots: Sequence[Expr],
    operands: Sequence[Value],
    lanes: int = 1,
    indices: Sequence[Value] = (),
    extents: Callable[[Extent], Value] | None = None,
) -> list[Value]:
    """Append the computation of `roots` and give their values, each in its node's own dtype.

    `indices` are the element's place in the index space, `extents` the parameters by name; scalars are splat.
    """
    values: dict[Expr, Value] = {}
    for node in topological(roots):
        if node.op == "index":
            values[node] = k.cast(indices[int(node.value)], node.dtype)
        elif node.op == "operand":
            values[node] = k.cast(operands[int(node.value)], compute_dtype(node.dtype))
        elif node.op == "size" and extents is not None:
            assert not isinstance(node.value, float)
            values[node] = extents(node.value)
        else:
            values[node] = lower_node(k, node, [values[a] for a in node.args])
    return [k.splat(k.cast(values[root], root.dtype), lanes) for root in roots]


def lower_node(k: KernelBuilder, node: Expr, args: Sequence[Value]) -> Value:
    """The value of a literal or of an op on values of the dtypes they are computed in, in such a dtype again."""
    kind = compute_dtype(node.dtype)
    match node.op:
        case "literal":
            assert not isinstance(node.value, str)
            return k.const(k.const(node.value, node.dtype).literal, kind)
        case "cast":
            return k.cast(k.cast(args[0], node.dtype), kind)
        case "bitcast":
            return k.cast(k.bitcast(k.cast(args[0], node.args[0].dtype), node.dtype), kind)
        case "where":
            return k.select(*args)
        case "exp" if _is_below_maximum(node.args[0]):
            return k.op("exp_negative", args[0])
    return _LOWERINGS[node.op][2](k, *args)


def _is_below_maximum(node: Expr) -> bool:
    """Whether a value is x - max(x) along the row, as in softmax: never positive, for which exp is cheaper."""
    if node.op != "sub" or node.args[1].op != "reduce":
        return False
    x, maximum = node.args
    return maximum.value == "max" and maximum.args[0] is x and compute_dtype(x.dtype) in FLOATS


def _plain(op: str) -> Callable[..., Value]:
    return lambda k, *args: k.op(op, *args)


def _identity(k: KernelBuilder, x: Value) -> Value:
    return x


def _divide(k: KernelBuilder, a: Value, b: Value) -> Value:
    """x / 0 is 0 for integers; the smallest integer over -1 wraps to itself."""
    if a.dtype in FLOATS:
        return a / b
    quotient = a / _safe_divisor(k, b)
    if b.dtype.is_signed:
        quotient = k.select(k.eq(b, -1), -a, quotient)
    return k.select(k.eq(b, 0), 0, quotient)


def _remainder(k: KernelBuilder, a: Value, b: Value) -> Value:
    """The sign of the dividend; integers: 0 for a divisor of 0, as the safe divisor 1 gives it."""
    if a.dtype in FLOATS:
        return k.op("fmod", a, b)
    return a % _safe_divisor(k, b)


def _power(k: KernelBuilder, a: Value, b: Value) -> Value:
    return k.op("pow", a, b) if a.dtype in FLOATS else exact_math.integer_power(k, a, b)


def _safe_divisor(k: KernelBuilder, b: Value) -> Value:
    trap = k.eq(b, 0) | k.eq(b, -1) if b.dtype.is_signed else k.eq(b, 0)
    return k.select(trap, 1, b)


def _shift(op: str) -> Callable[..., Value]:
    def shift(k: KernelBuilder, a: Value, b: Value) -> Value:
        """A shift by a negative amount, or by the width or more, gives 0, or the sign for a right shift."""
        bits = 8 * a.dtype.size_bytes
        is_over = b >= bits
        if b.dtype.is_signed:
            is_over = is_over | (b < 0)
        shifted = k.op(op, a, k.select(is_over, 0, b))
        over: Value | int = a >> (bits - 1) if op == "shr" and a.dtype.is_signed else 0
        return k.select(is_over, over, shifted)

    return shift


def _shift_right_logical(k: KernelBuilder, a: Value, b: Value) -> Value:
    unsigned = DType.of(f"u{8 * a.dtype.size_bytes}")
    return k.bitcast(_shift("shr")(k, k.bitcast(a, unsigned), k.bitcast(b, unsigned)), a.dtype)


def _extreme(op: str) -> Callable[..., Value]:
    logical = {"max": "or", "min": "and"}[op]
    return lambda k, a, b: k.op(logical if a.dtype is DType.BOOL else op, a, b)


def _sign(k: KernelBuilder, x: Value) -> Value:
    if not x.dtype.is_signed:
        return k.min(x, 1)
    return k.select(x > 0, 1, k.select(x < 0, -1, x))


def _absolute(k: KernelBuilder, x: Value) -> Value:
    return k.abs(x) if x.dtype.is_signed else x


def _negate(k: KernelBuilder, x: Value) -> Value:
    return -x if x.dtype.is_signed else ~x + 1


def _rounding(op: str) -> Callable[..., Value]:
    return lambda k, x: k.op(op, x) if x.dtype in FLOATS else x


def _sign_bit(k: KernelBuilder, x: Value) -> Value:
    return k.bitcast(x, DType.of(f"i{8 * x.dtype.size_bytes}")) < 0


_NUMBERS = INTS | FLOATS
_BITS = INTS | {DType.BOOL}
_ANY = _NUMBERS | {DType.BOOL}
_SIMPLE = frozenset(
    {"add", "sub", "mul", "div", "max", "min", "and", "or", "xor", "not", "neg", "abs", "square", "relu", "sqrt"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "where", "cast", "reduce", "gather", "stop_gradient"}
)
_PREDICATES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "signbit"})

# How rows are joined -> (loop op, dtypes it is computed in).
JOINS: dict[str, tuple[str, frozenset[DType]]] = {
    "sum": ("add", _NUMBERS),
    "prod": ("mul", _NUMBERS),
    "max": ("max", _NUMBERS),
    "min": ("min", _NUMBERS),
    "any": ("or", frozenset({DType.BOOL})),
    "all": ("and", frozenset({DType.BOOL})),
}

# op -> (number of operands, dtypes it is computed in, lowering)
_LOWERINGS: dict[str, tuple[int, frozenset[DType], Callable[..., Value]]] = {
    **{op: (2, _NUMBERS, _plain(op)) for op in ("add", "sub", "mul")},
    "div": (2, _NUMBERS, _divide),
    "rem": (2, _NUMBERS, _remainder),
    "max": (2, _ANY, _extreme("max")),
    "min": (2, _ANY, _extreme("min")),
    "pow": (2, _NUMBERS, _power),
    "copysign": (2, FLOATS, vector_math.copysign),
    **{op: (2, _BITS, _plain(op)) for op in ("and", "or", "xor")},
    "shift_left": (2, INTS, _shift("shl")),
    "shift_right": (2, INTS, _shift("shr")),
    "shift_right_logical": (2, INTS, _shift_right_logical),
    **{op: (2, _ANY if op in ("eq", "ne") else _NUMBERS, _plain(op)) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    "not": (1, _BITS, _plain("not")),
    "neg": (1, _NUMBERS, _negate),
    "abs": (1, _NUMBERS, _absolute),
    "sign": (1, _NUMBERS, _sign),
    "square": (1, _NUMBERS, lambda k, x: x * x),
    "relu": (1, _NUMBERS, lambda k, x: k.max(x, 0)),
    **{op: (1, _NUMBERS, _rounding(op)) for op in ("round", "floor", "ceil", "trunc")},
    **{
        op: (1, FLOATS, _plain(op))
        for op in ("exp", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sin", "cos", "tan", "atan", "sqrt")
    },
    **{op: (1, FLOATS, getattr(vector_inverse, op)) for op in ("asin", "acos", "asinh", "acosh", "atanh", "cbrt")},
    "rsqrt": (1, FLOATS, lambda k, x: 1.0 / k.sqrt(x)),
    "recip": (1, FLOATS, lambda k, x: 1.0 / x),
    "sigmoid": (1, FLOATS, vector_math.sigmoid),
    "silu": (1, FLOATS, vector_math.silu),
    "gelu": (1, FLOATS, vector_math.gelu),
    "gelu_approx": (1, FLOATS, vector_math.gelu_approx),
    "isnan": (1, FLOATS, lambda k, x: k.ne(x, x)),
    "isinf": (1, FLOATS, lambda k, x: k.eq(k.abs(x), math.inf)),
    "isfinite": (1, FLOATS, lambda k, x: k.abs(x) < math.inf),
    "signbit": (1, FLOATS, _sign_bit),
    "stop_gradient": (1, _ANY, _identity),
}
