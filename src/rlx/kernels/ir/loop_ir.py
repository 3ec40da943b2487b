"""The loop-level kernel IR: what every kernel is written in and every emitter reads.

A `Kernel` is a named body over typed parameters. The body is structured: loops, branches and loads and stores of
named buffers at element offsets, over SSA values that are scalars or vectors of one element type. There are no
pointer values, so an interpreter can check every access and a text target (WGSL, MSL, C) can print every access.

Meaning, where it could be doubted:

- Integers wrap. `div` and `rem` of integers truncate toward zero; the divisor must not be 0 (nor -1 under the
  smallest integer): who cannot promise that selects around it. `shr` is arithmetic for signed types. A shift by
  the width or more is not allowed.
- Floats follow IEEE, round to nearest even. `fma` is a*b+c with one rounding or two, as the target does it best;
  no other pair of operations is ever contracted. `min` and `max` give NaN if either operand is NaN. `round` is
  half to even. Comparisons with NaN are false, except `ne`.
- `cast` of a float to an integer truncates and saturates, NaN gives 0; a number to bool is `!= 0`; a wider float to a
  narrower one rounds to nearest even. f16 and bf16 are for storage: they cast from and to f32, nothing else.
- A masked-off lane of a load gives `other` and touches no memory; a masked-off lane of a store writes nothing.
- `parallel` iterations are independent: a CPU runs any range of them, a GPU runs one block each.
- `rlx.kernels.ir.groups` adds roles, asynchronous operations, phases, fragments and exchange between threads.
- `threads` iterations are the threads of one block: they all advance together from `barrier` to `barrier`, and the
  end of the loop is a barrier. Shared buffers live as long as the parallel iteration.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import BYTE_FLOATS, DType

if TYPE_CHECKING:
    from rlx.kernels.ir.builder import KernelBuilder


class ValueType(NamedTuple):
    """Element type and lane count; one lane is a scalar.

    >>> str(ValueType(DType.F32, 16)), str(ValueType(DType.I64))
    ('f32x16', 'i64')
    """

    dtype: DType
    lanes: int = 1

    def __str__(self) -> str:
        return str(self.dtype) if self.lanes == 1 else f"{self.dtype}x{self.lanes}"

    @property
    def size_bytes(self) -> int:
        return self.dtype.size_bytes * self.lanes

    def with_dtype(self, dtype: DType) -> ValueType:
        return ValueType(dtype, self.lanes)

    def with_lanes(self, lanes: int) -> ValueType:
        return ValueType(self.dtype, lanes)


INDEX = ValueType(DType.I64)

Literal = int | float
Attr = int | tuple[int, ...] | DType | ValueType | None


class Value:
    """An SSA value. Operators append to the builder that made it; `==` stays identity, `builder.eq` compares."""

    __slots__ = ("builder", "name", "type")

    def __init__(self, builder: KernelBuilder, type: ValueType, name: str = "") -> None:
        self.builder = builder
        self.type = type
        self.name = name

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def lanes(self) -> int:
        return self.type.lanes

    def __add__(self, other: Operand) -> Value:
        return self.builder.op("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.builder.op("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.builder.op("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.builder.op("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.op("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.builder.op("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.op("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.builder.op("div", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        """Integer division; equal to Python's for operands that are not negative."""
        return self.builder.op("div", self, other)

    def __mod__(self, other: Operand) -> Value:
        return self.builder.op("rem", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.builder.op("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.builder.op("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.builder.op("xor", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.builder.op("shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        return self.builder.op("shr", self, other)

    def __neg__(self) -> Value:
        return self.builder.op("neg", self)

    def __invert__(self) -> Value:
        return self.builder.op("not", self)

    def __lt__(self, other: Operand) -> Value:
        return self.builder.op("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.builder.op("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.builder.op("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.builder.op("ge", self, other)

    def __repr__(self) -> str:
        return f"%{self.name or hex(id(self))}: {self.type}"


class Const(Value):
    """A literal; with several lanes, the same literal in each."""

    __slots__ = ("literal",)

    def __init__(self, builder: KernelBuilder, type: ValueType, literal: Literal) -> None:
        super().__init__(builder, type)
        self.literal = literal

    def __repr__(self) -> str:
        return str(self.literal) if self.type == INDEX else f"{self.literal!r}:{self.type}"


Operand = Value | int | float


class Space(enum.StrEnum):
    """Where a buffer lives."""

    GLOBAL = "global"  # a parameter
    SHARED = "shared"  # one per parallel iteration, seen by all threads of it
    LOCAL = "local"  # one per thread
    TABLE = "table"  # constant data that is part of the kernel
    # What `groups` describes:
    PHASES = "phases"  # barriers, one set per parallel iteration; `data` is how many arrivals complete a phase
    TOKEN = "token"  # one per group
    FRAGMENT = "fragment"  # one per group, `cols` columns wide


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory addressed by element offset from 0. `align` is what the base address is a multiple of, in bytes."""

    name: str
    dtype: DType
    space: Space = Space.GLOBAL
    reads: bool = True
    writes: bool = False
    noalias: bool = True
    align: int = 1
    size: int | None = None  # in elements; None where only the caller knows
    data: tuple[Literal, ...] = ()
    cols: int = 0  # of a fragment

    @property
    def rows(self) -> int:
        """Of a fragment."""
        return (self.size or 0) // self.cols


class Block:
    """Statements in order, then the values handed to the enclosing loop or branch. Where the body of a serial loop has
    `again`, a bool, the loop ends after the first round in which that is false."""

    __slots__ = ("again", "statements", "yields")

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.yields: tuple[Value, ...] = ()
        self.again: Value | None = None


@dataclass(eq=False, slots=True)
class Let:
    """`result = op(args)`: a pure operation from `OPS`."""

    result: Value
    op: str
    args: tuple[Value, ...]
    attr: Attr = None


@dataclass(eq=False, slots=True)
class Load:
    """`result = buffer[offset]`: contiguous lanes from a scalar offset, or one element per lane of a vector offset."""

    result: Value
    buffer: Buffer
    offset: Value
    mask: Value | None
    other: Value | None
    align: int


@dataclass(eq=False, slots=True)
class Store:
    """`buffer[offset] = value`, addressed as `Load`. Lanes of a scattered store must not collide."""

    buffer: Buffer
    offset: Value
    value: Value
    mask: Value | None
    align: int


@dataclass(eq=False, slots=True)
class Prefetch:
    """A hint that `buffer[offset]` is read soon: caches may fetch it, nothing else changes, and it may lie outside."""

    buffer: Buffer
    offset: Value


@dataclass(eq=False, slots=True)
class Atomic:
    """`buffer[offset] = op(buffer[offset], value)` for one element, whole before any other thread sees it."""

    op: str
    buffer: Buffer
    offset: Value
    value: Value


@dataclass(eq=False, slots=True)
class Barrier:
    """Every thread of the block arrives before any goes on; writes to memory before it are seen after it."""


class LoopKind(enum.StrEnum):
    SERIAL = "for"
    PARALLEL = "parallel"
    THREADS = "threads"
    ELEMENTS = "elements"  # of a fragment, each where it is
    WALK = "walk"  # a block's share


@dataclass(eq=False, slots=True)
class For:
    """`for index = start; index < stop; index += step`. `carried` start as `inits`, become the body's yields each
    time round, and leave as `results`."""

    kind: LoopKind
    index: Value
    start: Value
    stop: Value
    step: Value
    inits: tuple[Value, ...]
    carried: tuple[Value, ...]
    body: Block
    results: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class If:
    """Runs one of two blocks; `results` are the yields of the one that ran."""

    condition: Value
    then: Block
    otherwise: Block
    results: tuple[Value, ...]


class GroupStatement:
    """What `rlx.kernels.ir.groups` adds; each such statement knows its own operands, results, blocks and text."""

    __slots__ = ()

    def operands(self) -> tuple[Value, ...]:
        return ()

    def results(self) -> tuple[Value, ...]:
        return ()

    def blocks(self) -> tuple[Block, ...]:
        return ()

    def text(self, use: Callable[[Value], str]) -> str:
        raise NotImplementedError

    def renewed(self, new: Callable[[Value], Value]) -> GroupStatement:
        """The same statement on other operands, with new results."""
        raise NotImplementedError


Statement = Let | Load | Store | Prefetch | Atomic | Barrier | For | If | GroupStatement


class Kernel:
    """A finished kernel. `text` is its stable printed form: golden file, bug report and cache key."""

    __slots__ = ("_text", "arrays", "body", "name", "origin", "params")

    def __init__(self, name: str, params: Sequence[Buffer | Value], arrays: Sequence[Buffer], body: Block) -> None:
        self.name = name
        self.params = tuple(params)
        self.arrays = tuple(arrays)
        self.body = body
        self._text: str | None = None
        # What the kernel was made from, for machines that have another way to do the same; never part of its text.
        self.origin: object = None

    @property
    def text(self) -> str:
        if self._text is None:
            from rlx.kernels.ir.text import kernel_text

            self._text = kernel_text(self)
        return self._text

    def __str__(self) -> str:
        return self.text

    @property
    def parallel_loop(self) -> For | None:
        """The loop whose iterations the runtime deals out; at most one, at the top level."""
        for statement in self.body.statements:
            if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
                return statement
        return None

    @property
    def thread_count(self) -> int:
        """Threads per block that a GPU launch must have."""
        from rlx.kernels.ir.groups import Roles

        for statement in walk(self.body):
            if isinstance(statement, Roles):
                return sum(role.copies * role.threads for role in statement.roles)
            if isinstance(statement, For) and statement.kind is LoopKind.THREADS:
                assert isinstance(statement.stop, Const)
                return int(statement.stop.literal)
        return 1


def child_blocks(statement: Statement) -> tuple[Block, ...]:
    if isinstance(statement, For):
        return (statement.body,)
    if isinstance(statement, If):
        return (statement.then, statement.otherwise)
    return statement.blocks() if isinstance(statement, GroupStatement) else ()


def walk(block: Block) -> Iterator[Statement]:
    """Every statement, outer before inner, in program order."""
    left = [iter(block.statements)]
    while left:
        for statement in left[-1]:
            yield statement
            inner = child_blocks(statement)
            if inner:
                left.extend(iter(child.statements) for child in reversed(inner))
                break
        else:
            left.pop()


INTS = frozenset(d for d in DType if d.is_int and not d.is_storage)
FLOATS = frozenset({DType.F32, DType.F64})
HALVES = frozenset({DType.F16, DType.BF16})
# Floats that are loaded and stored, and computed with in f32.
SHORT_FLOATS = HALVES | BYTE_FLOATS
NUMBERS = INTS | FLOATS
BITS = INTS | {DType.BOOL}
ALL = NUMBERS | SHORT_FLOATS | {DType.BOOL}
SIGNED = frozenset(d for d in NUMBERS if d.is_signed)

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
    wanted = [DType.F32, DType.BF16, DType.BF16]
    if [a.dtype for a in args] != wanted or any(a.lanes != 2 * args[0].lanes for a in args[1:]):
        raise DTypeError(f"dot2 takes f32xN, bf16x2N and bf16x2N, got {_names(args)}")
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
# additions round, in any order, and a number below the smallest normal one may count as 0, as in x86 (vdpbf16ps)
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
