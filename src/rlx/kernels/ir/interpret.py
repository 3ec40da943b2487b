"""The loop IR run by NumPy, one statement at a time: its meaning, for tests. Clear, checked, never fast.

Every access is checked: out of range, misaligned, colliding lanes and reads of memory nobody wrote raise
`KernelFault` with the statement shown. Parallel iterations run last to first and threads run from the highest down, so
that a hidden dependence between them gives a wrong answer here and not only on a GPU. `group_interpret` runs kernels
with groups, and any kernel in a random order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import BindingError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.ir.groups import has_groups
from rlx.kernels.ir.loop_ir import (
    INTS,
    Atomic,
    Attr,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    GroupStatement,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Space,
    Statement,
    Store,
    Value,
    ValueType,
)
from rlx.kernels.ir.operations import MATH, REDUCTIONS
from rlx.kernels.ir.text import statement_text

Lanes = np.ndarray[Any, np.dtype[Any]]  # the lanes of one value; a scalar has one


class KernelFault(InternalError):
    """A kernel did what the IR forbids."""


def interpret(
    kernel: Kernel,
    args: Mapping[str, Lanes | int | float],
    first: int = 0,
    last: int | None = None,
    *,
    seed: int | None = None,
    word_bytes: int = 1,
    subgroup_width: int = 32,
) -> None:
    """Run a kernel on flat views of the arrays in `args`, which it writes in place.

    `first` and `last` choose a range of the parallel loop's iterations; by default all run. Kernels with groups run in
    a random order, which `seed` decides, and races between their parts are faults. With a seed, so do all others.
    `word_bytes` is then the least that the machine stores at once, and `subgroup_width` how many threads of it run
    together.
    """
    with np.errstate(all="ignore"):
        if seed is not None or has_groups(kernel):
            from rlx.kernels.ir.group_interpret import GroupInterpreter

            GroupInterpreter(kernel, args, seed or 0, word_bytes, subgroup_width).run(first, last)
            return
        machine = Interpreter(kernel, args)
        for _ in machine.block(kernel.body, machine.top(first, last)):
            raise KernelFault(f"kernel {kernel.name}: a barrier outside a thread loop")


def grid_size(kernel: Kernel, args: Mapping[str, int | float]) -> int:
    """How many parallel iterations the kernel has for these sizes; 1 if it has no parallel loop."""
    loop = kernel.parallel_loop
    if loop is None:
        return 1
    sizes = {name: value for name, value in args.items() if isinstance(value, int | float | np.integer | np.floating)}
    machine = Interpreter(kernel, sizes, need_buffers=False)
    frame = machine.top(0, None)
    for statement in kernel.body.statements:
        if statement is loop:
            break
        assert isinstance(statement, Let)
        machine.let(statement, frame)
    return max(0, int(frame.read(loop.stop)[0]))


class Frame:
    """What one thread sees: its values, its memory, and which parallel iterations are asked for."""

    def __init__(
        self,
        values: dict[Value, Lanes],
        memory: dict[Buffer, Lanes],
        written: dict[Buffer, Lanes],
        run: tuple[int, int | None],
    ) -> None:
        self.values = values
        self.memory = memory
        self.written = written
        self.run = run

    def read(self, value: Value) -> Lanes:
        if isinstance(value, Const):
            return np.full(value.lanes, value.literal, value.dtype.numpy)
        return self.values[value]

    def number(self, value: Value) -> int:
        return int(self.read(value)[0])


class Interpreter:
    def __init__(self, kernel: Kernel, args: Mapping[str, Lanes | int | float], need_buffers: bool = True) -> None:
        self.kernel = kernel
        self.values: dict[Value, Lanes] = {}
        self.memory: dict[Buffer, Lanes] = {}
        self.threads: dict[int, Frame] = {}
        names = [p.name for p in kernel.params if need_buffers or isinstance(p, Value)]
        if set(names) != set(args):
            raise BindingError(f"kernel {kernel.name} takes {names}, got {sorted(args)}")
        for param in kernel.params:
            if isinstance(param, Value):
                self.values[param] = np.full(1, args[param.name], param.dtype.numpy)
            elif need_buffers:
                self.memory[param] = self.flat(param, args[param.name])
        for array in kernel.arrays:
            if array.space is Space.TABLE:
                self.memory[array] = np.array(array.data, array.dtype.numpy)

    def flat(self, buffer: Buffer, array: Lanes | int | float) -> Lanes:
        if not isinstance(array, np.ndarray) or array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
            raise BindingError(
                f"kernel {self.kernel.name}: {buffer.name} needs a contiguous {buffer.dtype} array, got {got}"
            )
        return array.reshape(-1)

    def top(self, first: int, last: int | None) -> Frame:
        return Frame(dict(self.values), dict(self.memory), {}, (first, last))

    def fault(self, statement: Statement, why: str) -> KernelFault:
        return KernelFault(f"kernel {self.kernel.name}: {why}\n  at: {statement_text(self.kernel, statement)}")

    # Control. A generator stops at each barrier and goes on when it is asked again.

    def block(self, block: Block, frame: Frame) -> Iterator[object]:
        for statement in block.statements:
            match statement:
                case Let():
                    self.let(statement, frame)
                case Load():
                    self.load(statement, frame)
                case Store():
                    self.store(statement, frame)
                case Atomic():
                    self.atomic(statement, frame)
                case Barrier():
                    yield None
                case If(condition, then, otherwise, results):
                    side = then if frame.read(condition)[0] else otherwise
                    yield from self.block(side, frame)
                    frame.values.update(zip(results, [frame.read(v) for v in side.yields]))
                case GroupStatement():
                    yield from self.group(statement, frame)
                case For(kind=LoopKind.SERIAL | LoopKind.WALK | LoopKind.ELEMENTS):
                    yield from self.serial(statement, frame)
                case For(kind=LoopKind.PARALLEL):
                    self.parallel(statement, frame)
                case For():
                    self.lockstep(statement, frame)

    def serial(self, loop: For, frame: Frame) -> Iterator[object]:
        carried = [frame.read(v) for v in loop.inits]
        step = frame.number(loop.step)
        if step <= 0:
            raise self.fault(loop, f"a loop step of {step}")
        for i in self.iterations(loop, frame):
            frame.values[loop.index] = np.full(1, i, np.int64)
            frame.values.update(zip(loop.carried, carried))
            yield from self.block(loop.body, frame)
            carried = [frame.read(v) for v in loop.body.yields]
            if loop.body.again is not None and not frame.read(loop.body.again)[0]:
                break
        frame.values.update(zip(loop.results, carried))

    def iterations(self, loop: For, frame: Frame) -> Sequence[int]:
        return range(frame.number(loop.start), frame.number(loop.stop), frame.number(loop.step))

    def group(self, statement: GroupStatement, frame: Frame) -> Iterator[object]:
        raise self.fault(statement, "groups need the interpreter of groups")

    def parallel(self, loop: For, frame: Frame) -> None:
        first, last = frame.run
        count = frame.number(loop.stop)
        for i in reversed(range(max(first, 0), count if last is None else min(last, count))):
            inner = self.top(first, last)
            inner.values.update(frame.values)
            inner.values[loop.index] = np.full(1, i, np.int64)
            self.threads = {}
            for _ in self.block(loop.body, inner):
                raise self.fault(loop, "a barrier outside a thread loop")

    def lockstep(self, loop: For, frame: Frame) -> None:
        running = [self.block(loop.body, self.thread(loop, frame, t)) for t in reversed(range(frame.number(loop.stop)))]
        while running:
            waiting = [thread for thread in running if next(thread, self) is not self]
            if waiting and len(waiting) < len(running):
                raise self.fault(loop, f"{len(waiting)} of {len(running)} threads wait at a barrier, the rest ended")
            running = waiting

    def thread(self, loop: For, frame: Frame, t: int) -> Frame:
        """A thread keeps its local memory from one thread loop to the next."""
        for array in self.kernel.arrays:
            if array.space is Space.SHARED:
                self.array(array, frame)
        before = self.threads.get(t)
        local = {b: a for b, a in before.memory.items() if b.space is Space.LOCAL} if before else {}
        written = {b: a for b, a in before.written.items() if b.space is Space.LOCAL} if before else {}
        inner = Frame(dict(frame.values), frame.memory | local, frame.written | written, frame.run)
        inner.values[loop.index] = np.full(1, t, np.int64)
        self.threads[t] = inner
        return inner

    # Memory.

    def array(self, buffer: Buffer, frame: Frame) -> Lanes:
        if buffer not in frame.memory:
            frame.memory[buffer] = np.zeros(buffer.size or 0, buffer.dtype.numpy)
            frame.written[buffer] = np.zeros(buffer.size or 0, np.bool_)
        return frame.memory[buffer]

    def lanes(
        self, statement: Load | Store | Atomic, kind: ValueType, mask: Value | None, align: int, frame: Frame
    ) -> tuple[Lanes, Lanes]:
        """The element offsets of an access and which lanes take part, checked."""
        buffer = statement.buffer
        offsets = frame.read(statement.offset)
        if len(offsets) == 1:
            offsets = offsets + np.arange(kind.lanes)
        active = np.ones(kind.lanes, np.bool_) if mask is None else frame.read(mask)
        size = len(self.array(buffer, frame))
        wrong = active & ((offsets < 0) | (offsets >= size))
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise self.fault(statement, f"{buffer.name}[{offsets[lane]}] (lane {lane}) is outside its {size} elements")
        byte = int(offsets[0]) * buffer.dtype.size_bytes
        if align > buffer.dtype.size_bytes and (byte % align or buffer.align % align):
            raise self.fault(
                statement, f"byte {byte} of {buffer.name} (align {buffer.align}) is not aligned to {align}"
            )
        return offsets, active

    def load(self, load: Load, frame: Frame) -> None:
        offsets, active = self.lanes(load, load.result.type, load.mask, load.align, frame)
        if load.buffer in frame.written and not frame.written[load.buffer][offsets[active]].all():
            raise self.fault(load, f"{load.buffer.name} is read before it is written")
        result = (
            frame.read(load.other).copy() if load.other is not None else np.zeros(len(active), load.buffer.dtype.numpy)
        )
        result[active] = frame.memory[load.buffer][offsets[active]]
        frame.values[load.result] = result

    def store(self, store: Store, frame: Frame) -> None:
        offsets, active = self.lanes(store, store.value.type, store.mask, store.align, frame)
        if len(set(offsets[active].tolist())) < int(active.sum()):
            raise self.fault(store, f"lanes of a store to {store.buffer.name} collide")
        frame.memory[store.buffer][offsets[active]] = frame.read(store.value)[active]
        self.mark(store.buffer, offsets[active], frame)

    def atomic(self, atomic: Atomic, frame: Frame) -> None:
        offsets, _ = self.lanes(atomic, atomic.value.type, None, 1, frame)
        memory = frame.memory[atomic.buffer]
        memory[offsets] = _NUMPY[atomic.op](memory[offsets], frame.read(atomic.value))
        self.mark(atomic.buffer, offsets, frame)

    def mark(self, buffer: Buffer, offsets: Lanes, frame: Frame) -> None:
        if buffer in frame.written:
            frame.written[buffer][offsets] = True

    # Pure operations.

    def let(self, let: Let, frame: Frame) -> None:
        args = [frame.read(a) for a in let.args]
        try:
            result = apply(let.op, args, let.attr, let.result.type)
        except ArithmeticError as error:
            raise self.fault(let, str(error)) from None
        frame.values[let.result] = result


def apply(op: str, args: list[Lanes], attr: Attr, kind: ValueType) -> Lanes:
    """One operation on lanes; `kind` is its result type."""
    dtype = kind.dtype.numpy
    if op in _NUMPY:
        return np.asarray(_NUMPY[op](*args)).astype(dtype, copy=False)
    if op in MATH:
        # One type wider, then rounded: the right answer but for double rounding.
        wide = np.float64 if kind.dtype is DType.F32 else np.longdouble
        return np.asarray(_MATH[op](*[a.astype(wide) for a in args])).astype(dtype)
    if op in REDUCTIONS:
        return _reduce(_NUMPY[REDUCTIONS[op]], args[0])
    return np.asarray(_SPECIAL[op](args, attr, kind)).astype(dtype, copy=False)


def _divide(a: Lanes, b: Lanes) -> Lanes:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    pairs = [(int(x), int(y)) for x, y in zip(a, b)]
    lowest = np.iinfo(a.dtype).min
    if any(y == 0 or (x == lowest < 0 and y == -1) for x, y in pairs):
        raise ArithmeticError(f"integer division of {a} by {b}")
    return np.array([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs], a.dtype)


def _shift(shift: Callable[[Lanes, Lanes], Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    def checked(a: Lanes, b: Lanes) -> Lanes:
        if ((b < 0) | (b >= 8 * a.dtype.itemsize)).any():
            raise ArithmeticError(f"a shift of {a.dtype} by {b}")
        return shift(a, b)

    return checked


def _fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    if a.dtype == np.float32:
        return np.asarray((a.astype(np.float64) * b + c).astype(a.dtype))
    # Of f64 with the rounding error of the product, whose halves are exact in extended floats, and that of the sum.
    product = a * b
    exact = [x.astype(np.longdouble) for x in (a, b)]
    halves = [(h := x.astype(np.float32).astype(np.longdouble), x - h) for x in exact]
    (ah, al), (bh, bl) = halves
    lost = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    back = total - product
    found = total + ((product - (total - back)) + (c - back) + lost)
    return np.asarray(np.where(np.isfinite(found), found, total).astype(a.dtype))


def _select(condition: Lanes, a: Lanes, b: Lanes) -> Lanes:
    return np.asarray(np.where(condition, a, b))


def _reduce(op: Callable[..., Lanes], vector: Lanes) -> Lanes:
    while len(vector) > 1:
        half = len(vector) // 2
        rest = vector[2 * half :]
        vector = np.concatenate([np.asarray(op(vector[:half], vector[half : 2 * half])), rest])
    return vector


def _cast(args: list[Lanes], attr: Attr, kind: ValueType) -> Lanes:
    (x,) = args
    if kind.dtype not in INTS or x.dtype.kind != "f":
        return x.astype(kind.dtype.numpy)
    info = np.iinfo(kind.dtype.numpy)
    saturated = [min(max(v, info.min), info.max) if math.isfinite(v) else v for v in x.tolist()]
    ends = {math.inf: info.max, -math.inf: info.min}
    return np.array([0 if v != v else int(ends.get(v, v)) for v in saturated], kind.dtype.numpy)


def _each(function: Callable[[float], float]) -> Callable[[Lanes], Lanes]:
    return lambda x: np.array([function(float(v)) for v in x])


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _dot2(total: Lanes, a: Lanes, b: Lanes) -> Lanes:
    wide = total.dtype
    even, odd = (a.astype(wide) * b.astype(wide)).reshape(-1, 2).T
    return total + even + odd


_NUMPY: dict[str, Callable[..., Lanes]] = {
    "scale2": lambda x, n: np.ldexp(x, np.where(np.isfinite(n), n, 0).astype(np.int32)),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "quotient": _divide,
    "rem": lambda a, b: a - b * _divide(a, b),
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "sqrt": np.sqrt,
    "exp2": lambda x: np.exp2(x.astype(np.float64)).astype(x.dtype),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "fma": _fma,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select": _select,
}

_MATH: dict[str, Callable[..., Lanes]] = {
    **{name: getattr(np, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan")},
    "atan": np.arctan,
    "pow": np.power,
    "fmod": np.fmod,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "exp_negative": np.exp,
    "normal_cdf": _each(_normal_cdf),
}

_SPECIAL: dict[str, Callable[[list[Lanes], Any, ValueType], Lanes]] = {
    "cast": _cast,
    "bitcast": lambda args, attr, kind: args[0].view(kind.dtype.numpy),
    "splat": lambda args, attr, kind: np.repeat(args[0], attr),
    "extract": lambda args, attr, kind: args[0][attr : attr + 1],
    "lookup": lambda args, attr, kind: args[0][args[1] & (kind.lanes - 1)],
    "byte_lookup": lambda args, attr, kind: np.array(attr, np.uint8)[args[0] & 15],
    "dot4": lambda args, attr, kind: (
        args[0] + (args[1].astype(np.int32) * args[2]).reshape(-1, 4).sum(1, dtype=np.int32)
    ),
    "byte_pairs": lambda args, attr, kind: (
        (args[0].astype(np.int32) * args[1]).reshape(-1, 2).sum(1).clip(-(2**15), 2**15 - 1)
    ),
    "add_pairs": lambda args, attr, kind: args[0] + args[1].reshape(-1, 2).sum(1, dtype=np.int32),
    "dot2": lambda args, attr, kind: _dot2(*args),
    "shuffle": lambda args, attr, kind: np.concatenate(args)[list(attr)],
    "iota": lambda args, attr, kind: np.arange(kind.lanes),
    "lane_mask": lambda args, attr, kind: np.arange(kind.lanes) < args[0][0],
}
