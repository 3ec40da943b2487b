"""`KernelBuilder`: how kernels are written. One method call or operator appends one statement.

>>> from rlx.ir.dtype import DType
>>> k = KernelBuilder("add_one")
>>> x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
>>> with k.loop("i", 0, n, step=8) as i:
...     tail = k.lane_mask(n - i, 8)
...     k.store(y, i, k.load(x, i, lanes=8, mask=tail) + 1.0, mask=tail)
>>> print(k.build())
kernel @add_one(x: read f32, y: write f32, %n: i64) {
  for %i = 0 to %n step 8 {
    %0: i64 = sub %n, %i
    %1: boolx8 = lane_mask %0 {8}
    %2: f32x8 = load x[%i] mask %1 else 0.0:f32x8
    %3: f32x8 = add %2, 1.0:f32x8
    store y[%i], %3 mask %1
  }
}

Python numbers take the type of the other operand, and a scalar next to a vector is splat. Pure operations that were
already computed in an enclosing block are reused, and integer arithmetic on literals is folded, so a maker may
write offsets plainly and still print a short kernel. Branches and loops that never run, as far as the bounds of indices
say so (`rlx.kernels.ir.index_facts`), are left out. Full unrolling is a Python loop around builder calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.ir.known_indices import KnownIndices
from rlx.kernels.ir.loop_ir import (
    INDEX,
    INTS,
    SHORT_FLOATS,
    Atomic,
    Attr,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    Literal,
    Load,
    LoopKind,
    Operand,
    Prefetch,
    Space,
    Statement,
    Store,
    Value,
    ValueType,
)
from rlx.kernels.ir.operations import ARITHMETIC, infer

_PureKey = tuple[str, tuple[Value, ...], Attr]


class Fold:
    """A loop with carried values: read `index` and `values` inside, call `next` once, read `results` after."""

    def __init__(self, index: Value, values: tuple[Value, ...]) -> None:
        self.index = index
        self.values = values
        self.results: tuple[Value, ...] = ()
        self.yields: tuple[Value, ...] | None = None
        self.again: Value | None = None

    def next(self, *values: Value, again: Value | None = None) -> None:
        """What the next round begins with; there is none if `again`, a bool, is false."""
        if len(values) != len(self.values) or any(v.type != c.type for v, c in zip(values, self.values)):
            wanted = ", ".join(str(c.type) for c in self.values)
            raise DTypeError(f"next: the loop carries ({wanted}), got ({', '.join(str(v.type) for v in values)})")
        if again is not None and again.type != ValueType(DType.BOOL):
            raise DTypeError(f"next: whether to go on is a scalar bool, got {again.type}")
        self.yields, self.again = values, again


# Bytes of the stack that a kernel may take: a thread has 8 MiB by default, and what is beyond ends the process.
MOST_LOCAL = 4 << 20


class KernelBuilder:
    """Builds one `Kernel`; parameters are in the order in which they are declared."""

    def __init__(self, name: str) -> None:
        if not name.isidentifier():
            raise OpError(f"a kernel name must be an identifier, got {name!r}")
        self.name = name
        self._params: list[Buffer | Value] = []
        self._arrays: list[Buffer] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[ValueType, str], Const] = {}
        self._body = Block()
        self._blocks = [self._body]
        # What is computed where statements are added now; what each open block has added, which ends with it.
        self._known: dict[_PureKey, Value] = {}
        self._added: list[list[_PureKey]] = [[]]
        self._indices = KnownIndices(self)

    def build(self) -> Kernel:
        if len(self._blocks) != 1:
            raise OpError(f"kernel {self.name}: build() inside an open loop or branch")
        return Kernel(self.name, self._params, self._arrays, self._body)

    def adopt(self, kernel: Kernel) -> dict[Value, Value]:
        """Take over the parameters and arrays of another kernel; gives its scalars' counterparts here."""
        counterparts: dict[Value, Value] = {}
        for param in kernel.params:
            if isinstance(param, Buffer):
                self._params.append(param)
                self._fresh(param.name)
            else:
                counterparts[param] = self.scalar(param.name, param.dtype)
        for array in kernel.arrays:
            self._fresh(array.name)
            self._arrays.append(array)
        return counterparts

    # Parameters and memory.

    def pointer(
        self,
        name: str,
        dtype: DType,
        *,
        write: bool = False,
        read: bool | None = None,
        noalias: bool = True,
        align: int = 0,
    ) -> Buffer:
        """A buffer that the caller passes; read only unless `write`, and then write only unless also `read`."""
        reads = not write if read is None else read
        buffer = Buffer(self._fresh(name), dtype, Space.GLOBAL, reads, write, noalias, align or dtype.size_bytes)
        self._params.append(buffer)
        return buffer

    def index(self, name: str) -> Value:
        """An i64 that the caller passes: a size, a stride, a position."""
        return self.scalar(name, DType.I64)

    def scalar(self, name: str, dtype: DType) -> Value:
        value = Value(self, ValueType(dtype), self._fresh(name))
        self._params.append(value)
        return value

    def shared(self, name: str, dtype: DType, size: int, align: int = 16) -> Buffer:
        """Memory that the threads of one block share; undefined at first."""
        return self._array(Buffer(self._fresh(name), dtype, Space.SHARED, True, True, True, align, size))

    def local(self, name: str, dtype: DType, size: int, align: int = 64) -> Buffer:
        """Memory of one thread, on its stack; undefined at first."""
        on_stack = sum((a.size or 0) * a.dtype.size_bytes for a in self._arrays if a.space is Space.LOCAL)
        if on_stack + size * dtype.size_bytes > MOST_LOCAL:
            raise OpError(f"kernel {self.name}: {name} of {size} {dtype} does not fit on the stack of a thread")
        return self._array(Buffer(self._fresh(name), dtype, Space.LOCAL, True, True, True, align, size))

    def table(self, name: str, dtype: DType, data: Sequence[Literal]) -> Buffer:
        """Constant data that is part of the kernel; one table serves every call with the same name."""
        for array in self._arrays:
            if array.name == name and array.data == tuple(data):
                return array
        align = max(16, dtype.size_bytes)
        return self._array(
            Buffer(self._fresh(name), dtype, Space.TABLE, True, False, True, align, len(data), tuple(data))
        )

    def _array(self, buffer: Buffer) -> Buffer:
        self._arrays.append(buffer)
        return buffer

    def _fresh(self, name: str) -> str:
        if not name.isidentifier():
            raise OpError(f"kernel {self.name}: {name!r} is not an identifier")
        if name in self._names:
            raise OpError(f"kernel {self.name}: {name!r} is declared twice")
        self._names.add(name)
        return name

    # Pure operations.

    def const(self, literal: Literal, type: ValueType | DType) -> Const:
        """A literal, rounded to the type if that is a float type."""
        kind = type if isinstance(type, ValueType) else ValueType(type)
        key = (kind, repr(literal))
        if key not in self._constants:
            self._constants[key] = self._rounded(kind, literal)
        return self._constants[key]

    def _rounded(self, kind: ValueType, literal: Literal) -> Const:
        if kind.dtype.is_float:
            with np.errstate(over="ignore"):
                literal = float(np.asarray(literal, np.float64).astype(kind.dtype.numpy))
        elif isinstance(literal, float):
            raise DTypeError(f"the literal {literal!r} is a float, but {kind.dtype} is wanted; cast the other operand")
        elif kind.dtype is DType.BOOL:
            literal = int(bool(literal))
        elif not np.iinfo(kind.dtype.numpy).min <= literal <= np.iinfo(kind.dtype.numpy).max:
            raise DTypeError(f"the literal {literal} does not fit into {kind.dtype}")
        # Two spellings of one number (1 and 1.0, or 0.1 and its f32) must be one constant.
        return self._constants.setdefault((kind, repr(literal)), Const(self, kind, literal))

    def op(self, op: str, *operands: Operand, attr: Attr = None) -> Value:
        """Append `op`, after matching numbers and scalars to the operands beside them."""
        args = self._match(op, operands)
        return self._indices.operation(op, args) or self.pure(op, args, attr)

    def _match(self, op: str, operands: Sequence[Operand]) -> tuple[Value, ...]:
        types = [x.type for x in operands if isinstance(x, Value)]
        if not types:
            raise OpError(f"{op}: at least one operand must be a kernel value, got {operands}")
        if len(types) == len(operands) and len({t.lanes for t in types}) == 1:
            return tuple(operands)  # type: ignore[arg-type]  # all of them are values
        lanes = max([t.lanes for t in types])
        matched: list[Value] = []
        for x in operands:
            if not isinstance(x, Value):
                matched.append(self.const(x, ValueType(types[0].dtype, lanes)))
            else:
                matched.append(self.splat(x, lanes) if x.type.lanes == 1 < lanes else x)
        return tuple(matched)

    def computed(self, op: str, args: tuple[Value, ...]) -> Value | None:
        """The result of an operation that an open block has computed."""
        return self._known.get((op, args, None))

    def pure(self, op: str, args: tuple[Value, ...], attr: Attr = None) -> Value:
        """Append `op` on exactly these operands, or find it already computed."""
        key = (op, args, attr)
        found = self._known.get(key)
        if found is not None:
            return found
        result = Value(self, infer(op, [a.type for a in args], attr))
        self.append(Let(result, op, args, attr))
        self._known[key] = result
        self._added[-1].append(key)
        return result

    def has_scale2(self, kind: ValueType) -> bool:
        """Whether `scale2` is an instruction for values of a type; only who builds for a target knows."""
        return False

    def has_f64(self) -> bool:
        """Whether there are values of f64; only who builds for a target knows."""
        return True

    def has_fma(self) -> bool:
        """Whether `fma` rounds once; only who builds for a target knows."""
        return False

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        return self.op("fma", a, b, c)

    def min(self, a: Operand, b: Operand) -> Value:
        return self.op("min", a, b)

    def max(self, a: Operand, b: Operand) -> Value:
        return self.op("max", a, b)

    def eq(self, a: Operand, b: Operand) -> Value:
        return self.op("eq", a, b)

    def ne(self, a: Operand, b: Operand) -> Value:
        return self.op("ne", a, b)

    def sqrt(self, x: Value) -> Value:
        return self.op("sqrt", x)

    def abs(self, x: Value) -> Value:
        return self.op("abs", x)

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """`a` where the condition holds, else `b`."""
        given = [x for x in (a, b) if isinstance(x, Value)]
        if not given:
            raise OpError("select: at least one of the two operands must be a kernel value")
        kind = ValueType(given[0].dtype, max(condition.lanes, *(x.lanes for x in given)))
        left, right = (self.splat(x, kind.lanes) if isinstance(x, Value) else self.const(x, kind) for x in (a, b))
        holds = self._indices.truth(condition)
        if holds is not None:
            return left if holds else right
        result = self.pure("select", (condition, left, right), None)
        return self._indices.select(result, left, right) if kind == INDEX else result

    def cast(self, x: Value, dtype: DType) -> Value:
        """Value conversion; floats shorter than f32 go through it by themselves."""
        if x.dtype is dtype:
            return x
        if DType.F32 not in (x.dtype, dtype) and not SHORT_FLOATS.isdisjoint((x.dtype, dtype)):
            x = self.cast(x, DType.F32)
        return self.pure("cast", (x,), dtype) if x.dtype is not dtype else x

    def bitcast(self, x: Value, to: ValueType | DType) -> Value:
        """The same bits read as another type; a dtype keeps the lane count."""
        kind = to if isinstance(to, ValueType) else x.type.with_dtype(to)
        return x if x.type == kind else self.pure("bitcast", (x,), kind)

    def splat(self, x: Value, lanes: int) -> Value:
        if x.lanes == lanes:
            return x
        if isinstance(x, Const) and x.lanes == 1:
            return self.const(x.literal, x.type.with_lanes(lanes))
        return self.pure("splat", (x,), lanes)

    def extract(self, vector: Value, lane: int) -> Value:
        return vector if vector.lanes == 1 else self.pure("extract", (vector,), lane)

    def shuffle(self, a: Value, lanes: Sequence[int], b: Value | None = None) -> Value:
        """Lanes of `a` (0..) and `b` (a.lanes..) in any order and number."""
        return self.pure("shuffle", (a, b if b is not None else a), tuple(lanes))

    def iota(self, dtype: DType, lanes: int) -> Value:
        """0 1 2 .. in the lanes; the scalar one is 0."""
        return self.const(0, dtype) if lanes == 1 else self.pure("iota", (), ValueType(dtype, lanes))

    def lane_mask(self, count: Operand, lanes: int) -> Value:
        """True in the lanes below `count`, which may be negative or larger than the lane count."""
        return self.pure("lane_mask", (self.as_index(count),), lanes)

    def lookup(self, table: Value, index: Value) -> Value:
        """For each lane that lane of `table` (f32) which the low bits of `index` (i32) number."""
        return self.pure("lookup", (table, index), None)

    def byte_lookup(self, table: Sequence[int], index: Value) -> Value:
        """For each byte of `index` (u8) that of 16 bytes which its low four bits number."""
        return self.pure("byte_lookup", (index,), tuple(table))

    def dot4(self, total: Value, a: Value, b: Value) -> Value:
        """`total` (i32) plus, in each lane, the sum of four products of neighbours of a (u8 or i8) and b (i8)."""
        return self.pure("dot4", (total, a, b), None)

    def byte_pairs(self, a: Value, b: Value) -> Value:
        """Sums of two products of neighbours of a (u8) and b (i8) as i16, which holds them where a is at most 127."""
        return self.pure("byte_pairs", (a, b), None)

    def add_pairs(self, total: Value, a: Value) -> Value:
        """`total` (i32) plus, in each lane, two neighbours of a (i16)."""
        return self.pure("add_pairs", (total, a), None)

    def dot2(self, total: Value, a: Value, b: Value) -> Value:
        """`total` (f32 or i32) plus, in each lane, the sum of two products of neighbours of a and b (bf16 or i16)."""
        return self.pure("dot2", (total, a, b), None)

    def reduce(self, op: str, vector: Value) -> Value:
        """All lanes combined by add, mul, min, max, and, or: halves first, so that every target gets the same bits."""
        return vector if vector.lanes == 1 else self.pure(f"reduce_{op}", (vector,), None)

    def ceildiv(self, a: Operand, b: int) -> Value:
        """ceil(a / b) for a >= 0, b > 0."""
        return (self.as_index(a) + (b - 1)) // b

    def as_index(self, x: Operand) -> Value:
        value = x if isinstance(x, Value) else self.const(x, INDEX)
        if value.type != INDEX:
            raise DTypeError(f"kernel {self.name}: an i64 scalar is wanted here, got {value.type}")
        return value

    # Memory.

    def load(
        self,
        buffer: Buffer,
        offset: Operand,
        *,
        lanes: int = 1,
        stride: Operand = 1,
        mask: Value | None = None,
        other: Literal = 0,
        align: int = 0,
    ) -> Value:
        """`lanes` elements from `offset`, `stride` apart (0: one element for all lanes), or one element for each lane
        of a vector offset. `align` promises an address in multiples of that many bytes."""
        if not buffer.reads:
            raise OpError(f"kernel {self.name}: load from {buffer.name}, which is declared write only")
        stride = int(stride.literal) if isinstance(stride, Const) else stride
        address = self._address(offset, lanes, stride)
        if lanes > 1 and address.lanes == 1 and isinstance(stride, int) and stride == 0:
            one = self.splat(self.load(buffer, offset, mask=self._any(mask), other=other), lanes)
            return one if mask is None else self.select(mask, one, self.const(other, one.type))
        kind = ValueType(buffer.dtype, max(lanes, address.lanes))
        self._check_mask("load", buffer, kind, mask)
        result = Value(self, kind)
        fill = self.const(other, kind) if mask is not None else None
        self.append(Load(result, buffer, address, mask, fill, align or buffer.dtype.size_bytes))
        return result

    def store(
        self,
        buffer: Buffer,
        offset: Operand,
        value: Operand,
        *,
        stride: Operand = 1,
        mask: Value | None = None,
        align: int = 0,
    ) -> None:
        """The lanes of `value` to `offset`, `stride` apart, or each lane to its own lane of a vector offset."""
        if not buffer.writes:
            raise OpError(f"kernel {self.name}: store to {buffer.name}, which is declared read only")
        data = value if isinstance(value, Value) else self.const(value, buffer.dtype)
        if data.dtype is not buffer.dtype:
            raise DTypeError(f"kernel {self.name}: store of {data.type} to {buffer.name}: {buffer.dtype}; cast first")
        stride = int(stride.literal) if isinstance(stride, Const) else stride
        address = self._address(offset, data.lanes, stride)
        data = self.splat(data, max(data.lanes, address.lanes))
        self._check_mask("store", buffer, data.type, mask)
        self.append(Store(buffer, address, data, mask, align or buffer.dtype.size_bytes))

    def prefetch(self, buffer: Buffer, offset: Operand) -> None:
        """Say that an element is read soon; it need not exist, and only processors listen."""
        self.append(Prefetch(buffer, self.as_index(offset)))

    def atomic(self, op: str, buffer: Buffer, offset: Operand, value: Operand) -> None:
        """`buffer[offset] = op(buffer[offset], value)` for op in add, min, max; min and max of integers only."""
        data = value if isinstance(value, Value) else self.const(value, buffer.dtype)
        if data.type != ValueType(buffer.dtype):
            raise DTypeError(f"kernel {self.name}: atomic {op} of {data.type} on {buffer.name}: {buffer.dtype}")
        if op not in ("add", "min", "max") or data.dtype not in ARITHMETIC[op][1] or not buffer.writes:
            raise OpError(f"kernel {self.name}: atomic {op} on {buffer.name}: {buffer.dtype} is not possible")
        if op != "add" and data.dtype not in INTS:
            raise OpError(f"kernel {self.name}: atomic {op} needs an integer buffer, {buffer.name} is {buffer.dtype}")
        self.append(Atomic(op, buffer, self.as_index(offset), data))

    def _address(self, offset: Operand, lanes: int, stride: Operand) -> Value:
        if isinstance(offset, Value) and offset.lanes > 1:
            if lanes not in (1, offset.lanes) or offset.dtype is not DType.I64:
                raise DTypeError(f"kernel {self.name}: offsets {offset.type} for {lanes} lanes")
            return offset
        base = self.as_index(offset)
        if lanes == 1 or (isinstance(stride, int) and stride in (0, 1)):
            return base
        return base + self.iota(DType.I64, lanes) * self.splat(self.as_index(stride), lanes)

    def _any(self, mask: Value | None) -> Value | None:
        return None if mask is None else self.reduce("or", mask)

    def _check_mask(self, what: str, buffer: Buffer, kind: ValueType, mask: Value | None) -> None:
        if mask is not None and mask.type != kind.with_dtype(DType.BOOL):
            raise DTypeError(f"kernel {self.name}: {what} of {kind} at {buffer.name} under a mask of {mask.type}")

    # Control.

    @contextmanager
    def loop(self, name: str, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Value]:
        """`for name in range(start, stop, step)`, step > 0; gives the index."""
        with self.fold(name, start, stop, step) as fold:
            yield fold.index
            fold.next()

    @contextmanager
    def fold(
        self, name: str, start: Operand, stop: Operand, step: Operand = 1, init: Sequence[Value] = ()
    ) -> Iterator[Fold]:
        """A loop that carries values from one iteration to the next.

        >>> k = KernelBuilder("total")
        >>> x, n = k.pointer("x", DType.F32), k.index("n")
        >>> with k.fold("i", 0, n, init=[k.const(0.0, DType.F32)]) as f:
        ...     f.next(f.values[0] + k.load(x, f.index))
        >>> f.results[0].type == ValueType(DType.F32)
        True
        """
        with self.loop_of(LoopKind.SERIAL, name, start, stop, step, init) as fold:
            yield fold

    @contextmanager
    def parallel(self, name: str, count: Operand) -> Iterator[Value]:
        """Independent iterations 0..count-1, dealt out by the runtime; one such loop, at the top level."""
        with self.loop_of(LoopKind.PARALLEL, name, 0, count) as fold:
            yield fold.index
            fold.next()

    @contextmanager
    def threads(self, name: str, count: int) -> Iterator[Value]:
        """The `count` threads of a block, together from barrier to barrier."""
        with self.loop_of(LoopKind.THREADS, name, 0, count) as fold:
            yield fold.index
            fold.next()

    @contextmanager
    def loop_of(
        self, kind: LoopKind, name: str, start: Operand, stop: Operand, step: Operand = 1, init: Sequence[Value] = ()
    ) -> Iterator[Fold]:
        """A loop of any kind; makers use `loop`, `fold`, `parallel` and `threads`."""
        lower, upper, stride = (self.as_index(x) for x in (start, stop, step))
        if isinstance(stride, Const) and stride.literal <= 0:
            raise OpError(f"kernel {self.name}: loop {name} needs a positive step, got {stride.literal}")
        index = Value(self, INDEX, name)
        inside = self._indices.begin_loop(kind, index, lower, upper, stride)
        fold = Fold(inside, tuple(Value(self, v.type) for v in init))
        body = Block()
        with self.inside(body):
            yield fold
        if fold.yields is None:
            raise OpError(f"kernel {self.name}: loop {name} carries values, so its body must call next(...)")
        if self._indices.never_begins(kind, lower, upper):
            fold.results = tuple(init)
            return
        body.yields, body.again = fold.yields, fold.again
        fold.results = tuple(Value(self, v.type) for v in init)
        self.append(For(kind, index, lower, upper, stride, tuple(init), fold.values, body, fold.results))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Statements that run only where the scalar condition holds."""
        branch = self._branch(condition)
        with self.inside(branch.then):
            yield
        if self._indices.truth(condition) is False:
            branch.then = Block()
        self.append(branch)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the `when` directly before."""
        last = self._blocks[-1].statements[-1] if self._blocks[-1].statements else None
        if not isinstance(last, If) or last.results or last.otherwise.statements:
            raise OpError(f"kernel {self.name}: otherwise() must directly follow a when()")
        with self.inside(last.otherwise):
            yield
        if self._indices.truth(last.condition):
            last.otherwise = Block()

    def choose(
        self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]
    ) -> tuple[Value, ...]:
        """The values of one of two computations, of which only that one runs."""
        branch, holds = self._branch(condition), self._indices.truth(condition)
        if holds is not None:
            return tuple(then() if holds else otherwise())
        for block, compute in ((branch.then, then), (branch.otherwise, otherwise)):
            with self.inside(block):
                block.yields = tuple(compute())
        types = [[v.type for v in side.yields] for side in (branch.then, branch.otherwise)]
        if types[0] != types[1]:
            raise DTypeError(f"choose: one side gives {types[0]}, the other {types[1]}")
        branch.results = tuple(Value(self, kind) for kind in types[0])
        self.append(branch)
        return branch.results

    def barrier(self) -> None:
        self.append(Barrier())

    def _branch(self, condition: Value) -> If:
        if condition.type != ValueType(DType.BOOL):
            raise DTypeError(f"kernel {self.name}: a branch needs a scalar bool, got {condition.type}; use select")
        return If(condition, Block(), Block(), ())

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        self._blocks.append(block)
        self._added.append([])
        try:
            yield
        finally:
            self._blocks.pop()
            for key in self._added.pop():
                del self._known[key]

    def append(self, statement: Statement) -> None:
        """Append a finished statement; makers use the methods above, which check it."""
        self._blocks[-1].statements.append(statement)
