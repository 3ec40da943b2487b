"""The operations of kernels: which there are, what operands they take, and the types of their results.

`infer` answers for all of them; what they mean, where it could be doubted, `loop_ir` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import (
    ALL,
    BITS,
    FLOATS,
    INDEX,
    INTS,
    NUMBERS,
    SHORT_FLOATS,
    SIGNED,
    Attr,
    ValueType,
)

# Ops on operands of one type; `legalize` expands those of the last two groups for every target.
ARITHMETIC: dict[str, tuple[int, frozenset[DType]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max"), (2, NUMBERS)),
    "rem": (2, INTS),
    **dict.fromkeys(("and", "or", "xor"), (2, BITS)),
    **dict.fromkeys(("shl", "shr"), (2, INTS)),
    **dict.fromkeys(("neg", "abs"), (1, SIGNED)),
    "not": (1, BITS),
    **dict.fromkeys(("sqrt", "floor", "ceil", "trunc", "round"), (1, FLOATS)),
    "fma": (3, FLOATS),
    # x * 2**n, rounded once, for x between 2**-24 and 2**24 and whole n no larger than 1.5 times the exponent's bias.
    "scale2": (2, FLOATS),
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCTIONS: dict[str, str] = {f"reduce_{op}": op for op in ("add", "mul", "min", "max", "and", "or")}
MATH: dict[str, int] = dict.fromkeys(
    ("exp", "exp_negative", "expm1", "log", "log1p", "tanh", "erf", "erfc", "normal_cdf", "sin", "cos", "tan", "atan"),
    1,
) | {"pow": 2, "fmod": 2}


def infer(op: str, args: Sequence[ValueType], attr: Attr = None) -> ValueType:
    """The result type of `op`, or a `DTypeError`/`OpError` that says what was wanted.

    >>> str(infer("lt", [ValueType(DType.F32, 8)] * 2))
    'boolx8'
    """
    return _inferred(op, tuple(args), attr)


# A kernel has thousands of operations, of a few dozen kinds.
@lru_cache(4096)
def _inferred(op: str, args: tuple[ValueType, ...], attr: Attr) -> ValueType:
    if op in ARITHMETIC:
        arity, domain = ARITHMETIC[op]
        return _same_type(op, args, arity, domain)
    if op in MATH:
        return _same_type(op, args, MATH[op], FLOATS)
    if op in COMPARISONS:
        domain = NUMBERS | {DType.BOOL} if op in ("eq", "ne") else NUMBERS
        return _same_type(op, args, 2, domain).with_dtype(DType.BOOL)
    if op in REDUCTIONS:
        return _same_type(op, args, 1, ARITHMETIC[REDUCTIONS[op]][1]).with_lanes(1)
    if op not in _SPECIAL:
        raise OpError(f"kernel op {op!r} is unknown; known: {' '.join(sorted(op_names()))}")
    return _SPECIAL[op](args, attr)


def op_names() -> set[str]:
    return {*ARITHMETIC, *MATH, *COMPARISONS, *REDUCTIONS, *_SPECIAL}


def _same_type(op: str, args: Sequence[ValueType], arity: int, domain: frozenset[DType]) -> ValueType:
    if len(args) != arity:
        raise OpError(f"{op} takes {arity} operands, got {len(args)}")
    if any(a != args[0] for a in args):
        raise DTypeError(f"{op}: operands must have one type, got {_names(args)}; cast or splat first")
    if args[0].dtype not in domain:
        accepted = " ".join(d.value for d in DType if d in domain)
        hint = "; cast to f32 first" if args[0].dtype in SHORT_FLOATS else ""
        raise DTypeError(f"{op} is not defined on {args[0].dtype}, only on {accepted}{hint}")
    return args[0]


def _names(types: Sequence[ValueType]) -> str:
    return " and ".join(map(str, types))


def _infer_select(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 3 or args[0].dtype is not DType.BOOL or args[1] != args[2]:
        raise DTypeError(f"select takes a bool and two operands of one type, got {_names(args)}")
    if args[0].lanes not in (1, args[1].lanes):
        raise DTypeError(f"select: the condition has {args[0].lanes} lanes, the operands {args[1].lanes}")
    return args[1]


def _infer_cast(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or not isinstance(attr, DType):
        raise OpError("cast takes one operand and the dtype to cast to")
    if attr not in ALL:
        raise DTypeError(f"cast: {attr} has no kernel values")
    source = args[0].dtype
    if (attr in SHORT_FLOATS and source is not DType.F32) or (source in SHORT_FLOATS and attr is not DType.F32):
        raise DTypeError(f"cast: {args[0].dtype} to {attr} must go through f32")
    return args[0].with_dtype(attr)


def _infer_bitcast(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or not isinstance(attr, ValueType):
        raise OpError("bitcast takes one operand and the type to read it as")
    if args[0].size_bytes != attr.size_bytes or DType.BOOL in (args[0].dtype, attr.dtype):
        raise DTypeError(f"bitcast: {args[0]} cannot be read as {attr}; both need the same number of bits and no bool")
    return attr


def _infer_splat(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or args[0].lanes != 1 or not isinstance(attr, int) or attr < 1:
        raise OpError(f"splat takes a scalar and a positive lane count, got {_names(args)} and {attr}")
    return args[0].with_lanes(attr)


def _infer_extract(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or not isinstance(attr, int) or not 0 <= attr < args[0].lanes:
        raise OpError(f"extract takes a vector and a lane below its lane count, got {_names(args)} and {attr}")
    return args[0].with_lanes(1)


def _infer_shuffle(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 2 or args[0] != args[1] or not isinstance(attr, tuple) or not attr:
        raise OpError(f"shuffle takes two vectors of one type and lane numbers, got {_names(args)} and {attr}")
    if not all(isinstance(lane, int) and 0 <= lane < 2 * args[0].lanes for lane in attr):
        raise OpError(f"shuffle: lanes of two {args[0]} are 0..{2 * args[0].lanes - 1}, got {attr}")
    return args[0].with_lanes(len(attr))


def _infer_iota(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if args or not isinstance(attr, ValueType) or attr.dtype not in INTS:
        raise OpError(f"iota takes no operand and an integer vector type, got {attr}")
    return attr


def _infer_lane_mask(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or args[0] != INDEX or not isinstance(attr, int) or attr < 1:
        raise OpError(f"lane_mask takes a count (i64) and a positive lane count, got {_names(args)} and {attr}")
    return ValueType(DType.BOOL, attr)


def _infer_lookup(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 2 or args[0].dtype is not DType.F32 or args[1] != args[0].with_dtype(DType.I32):
        raise DTypeError(f"lookup takes a vector of f32 and as many i32, got {_names(args)}")
    if args[0].lanes & (args[0].lanes - 1):
        raise OpError(f"lookup: the number of lanes must be a power of two, got {args[0]}")
    return args[0]


def _infer_byte_lookup(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if len(args) != 1 or args[0].dtype is not DType.U8:
        raise DTypeError(f"byte_lookup takes bytes (u8), got {_names(args)}")
    if not isinstance(attr, tuple) or len(attr) != 16 or not all(isinstance(b, int) and 0 <= b < 256 for b in attr):
        raise OpError(f"byte_lookup: the table has 16 bytes, got {attr}")
    return args[0]


def _infer_dot4(args: Sequence[ValueType], attr: Attr) -> ValueType:
    is_known = [a.dtype for a in args] in ([DType.I32, DType.U8, DType.I8], [DType.I32, DType.I8, DType.I8])
    if not is_known or any(a.lanes != 4 * args[0].lanes for a in args[1:]):
        raise DTypeError(f"dot4 takes i32xN, u8x4N or i8x4N, and i8x4N, got {_names(args)}")
    return args[0]


def _infer_byte_pairs(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if [a.dtype for a in args] != [DType.U8, DType.I8] or args[0].lanes != args[1].lanes or args[0].lanes % 2:
        raise DTypeError(f"byte_pairs takes u8x2N and i8x2N, got {_names(args)}")
    return ValueType(DType.I16, args[0].lanes // 2)


def _infer_add_pairs(args: Sequence[ValueType], attr: Attr) -> ValueType:
    if [a.dtype for a in args] != [DType.I32, DType.I16] or args[1].lanes != 2 * args[0].lanes:
        raise DTypeError(f"add_pairs takes i32xN and i16x2N, got {_names(args)}")
    return args[0]


def _infer_dot2(args: Sequence[ValueType], attr: Attr) -> ValueType:
    wanted = ([DType.F32, DType.BF16, DType.BF16], [DType.I32, DType.I16, DType.I16])
    if [a.dtype for a in args] not in wanted or any(a.lanes != 2 * args[0].lanes for a in args[1:]):
        raise DTypeError(f"dot2 takes f32xN, bf16x2N and bf16x2N, or i32xN and two i16x2N, got {_names(args)}")
    return args[0]


def _infer_quotient(args: Sequence[ValueType], attr: Attr) -> ValueType:
    return _same_type("quotient", args, 2, FLOATS)


def _infer_exp2(args: Sequence[ValueType], attr: Attr) -> ValueType:
    return _same_type("exp2", args, 1, frozenset({DType.F32}))


# select(c, a, b) | cast(x) {dtype} | bitcast(x) {type} | splat(x) {lanes} | extract(v) {lane} |
# shuffle(a, b) {lanes of a then b} | iota {type}: 0 1 2 .. | lane_mask(n) {lanes}: lane < n |
# lookup(table, i): lane i of the table for every lane, of i only the low bits that number the lanes |
# byte_lookup(i) {table of 16 bytes}: the entry that the low four bits of each byte number |
# dot4(sum, a, b): sum[i] + a[4i]*b[4i] + .. + a[4i+3]*b[4i+3] for i32 sums of u8 a and i8 b, as the instructions
# of x86 (vpdpbusd) and Arm (usdot) have it, or of i8 a and b (Arm's sdot, WebGPU): products and sums of four are exact,
# the whole wraps |
# byte_pairs(a, b): a[2i]*b[2i] + a[2i+1]*b[2i+1] as i16 for u8 a and i8 b, the nearest that 16 bits hold, as x86 has it
# (pmaddubsw) |
# add_pairs(sum, a): sum[i] + a[2i] + a[2i+1] for i32 sums of i16 a (x86's pmaddwd with ones) |
# dot2(sum, a, b): sum[i] + a[2i]*b[2i] + a[2i+1]*b[2i+1] for f32 sums of bf16 a and b: products are exact, the two
# additions round, in any order, and a number below the smallest normal one may count as 0, as in x86 (vdpbf16ps); or
# for i32 sums of i16 a and b, which wrap (x86's pmaddwd, vpdpwssd) |
# exp2(x): 2**x to the last bits but one, as machines have an instruction for it |
# quotient(a, b): a / b to the last bits but one where that is faster, for functions that are no better themselves
_SPECIAL: dict[str, Callable[[Sequence[ValueType], Attr], ValueType]] = {
    "exp2": _infer_exp2,
    "quotient": _infer_quotient,
    "select": _infer_select,
    "cast": _infer_cast,
    "bitcast": _infer_bitcast,
    "splat": _infer_splat,
    "extract": _infer_extract,
    "shuffle": _infer_shuffle,
    "iota": _infer_iota,
    "lane_mask": _infer_lane_mask,
    "lookup": _infer_lookup,
    "byte_lookup": _infer_byte_lookup,
    "dot4": _infer_dot4,
    "byte_pairs": _infer_byte_pairs,
    "add_pairs": _infer_add_pairs,
    "dot2": _infer_dot2,
}
