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
from typing import TYPE_CHECKING, NamedTuple

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

INTS = frozenset(d for d in DType if d.is_int and not d.is_storage)
FLOATS = frozenset({DType.F32, DType.F64})
HALVES = frozenset({DType.F16, DType.BF16})
# Floats that are loaded and stored, and computed with in f32.
SHORT_FLOATS = HALVES | BYTE_FLOATS
NUMBERS = INTS | FLOATS
BITS = INTS | {DType.BOOL}
ALL = NUMBERS | SHORT_FLOATS | {DType.BOOL}
SIGNED = frozenset(d for d in NUMBERS if d.is_signed)

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
