"""`group_text`: a loop kernel of groups (`rlx.kernels.ir.groups`) as LLVM text for Hopper.

Copies of boxes become those of the copy engine, phases become barriers in shared memory, asynchronous products become
wgmma, and roles become warp groups, of which those that only copy and wait are one thread. Numbers of elements are i32,
as the copy engine has them, and never negative.

The kernel has, in this order: a tensor map of each buffer of which boxes are copied, the scalars that its statements
use, as i32, and what the function of its `PairCall` takes. What only places boxes in memory is in their maps, and how
many blocks there are is a matter of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cuda.hopper.epilogue import EpilogueWriter, finish_of_pairs
from rlx.backends.cuda.hopper.instructions import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    barriers_made,
    copy_box,
    sync_threads,
)
from rlx.backends.cuda.hopper.launching import BYTES, ELEMENTS
from rlx.backends.cuda.hopper.product_shape import DEPTH_BYTES, SLAB_BYTES, ProductShape, check_shape
from rlx.backends.cuda.hopper.warp_groups import (
    rows_of_thread,
    start_products,
    store_pairs,
    view_of_a,
    view_of_b,
)
from rlx.backends.cuda.hopper.writer import Val, Var, Writer
from rlx.errors import BackendError
from rlx.kernels.ir.groups import (
    Arrive,
    Assume,
    AwaitPhases,
    AwaitToken,
    Copy,
    Fill,
    Mma,
    Role,
    Roles,
    Signal,
)
from rlx.kernels.ir.loop_ir import (
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    Space,
    Statement,
    Value,
    walk,
)
from rlx.kernels.ir.pair_calls import PairCall
from rlx.kernels.ir.phase_counts import phase_counts
from rlx.kernels.ir.regions import Box, Region, Slabs
from rlx.kernels.machines import Machine

# Threads of a warp group, rows of its sums, and registers of a multiprocessor.
_GROUP = 128
_GROUP_ROWS = 64
_REGISTERS = 65536

_OPERATORS: dict[str, Callable[[Val, Val], Val]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
    "rem": lambda a, b: a % b,
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a.equals(b),
    "min": lambda a, b: a.writer.least(a, b),
    "max": lambda a, b: a.writer.most(a, b),
}


def group_text(kernel: Kernel, machine: Machine) -> str:
    """The LLVM module of a kernel whose block is one statement of roles."""
    return _GroupEmitter(kernel, machine).text(machine.triple)


class _GroupEmitter:
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel = kernel
        w = self.w = Writer(kernel.name, kernel.thread_count)
        self.statements = list(walk(kernel.body))
        calls = [s for s in self.statements if isinstance(s, PairCall)]
        loop = kernel.parallel_loop
        if loop is None or len(calls) != 1 or not any(isinstance(s, Roles) for s in loop.body.statements):
            raise self.refusal("a kernel of blocks with roles and one call for pairs is wanted")
        self.block_work = loop.body
        self.counts = phase_counts(kernel)
        self.values: dict[Value, Val] = {}
        self.lets: dict[Value, Let] = {s.result: s for s in self.statements if isinstance(s, Let)}
        self.left: list[Let] = []
        self.maps = {p: w.tensor_map(f"map_{p.name}") for p in self.copied_buffers()}
        for scalar in self.used_scalars():
            self.values[scalar] = w.param(f"{scalar.name}_word", "i32")
        self.epilogue = EpilogueWriter(w, finish_of_pairs(calls[0], machine))
        # Swizzled rows begin at multiples of 1 KiB.
        base = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.memory, size, self.places = (base + 1023) & -1024, 0, dict[Buffer, int]()
        for array in (a for a in kernel.arrays if a.space is Space.SHARED):
            self.places[array] = size
            size += (array.size or 0) * array.dtype.size_bytes
        # Barriers follow each other behind all else.
        self.barriers, number = self.memory + size, 0
        for array in (a for a in kernel.arrays if a.space is Space.PHASES):
            self.places[array] = number
            number += array.size or 0
        self.thread = w.register("tid.x")
        self.first, self.stride = w.register("ctaid.x"), w.register("nctaid.x")
        self.sums: dict[Buffer, list[Var]] = {}
        self.begun: list[Mma] = []
        self.is_single = False

    def refusal(self, why: str) -> BackendError:
        return BackendError(f"kernel {self.kernel.name} has no code for warp groups: {why}")

    # Parameters.

    def copied_buffers(self) -> list[Buffer]:
        copied = {s.source.buffer for s in self.statements if isinstance(s, Copy)}
        return [p for p in self.kernel.params if isinstance(p, Buffer) and p in copied]

    def used_scalars(self) -> list[Value]:
        """Scalars that are more than the size or the place of a matrix."""
        used: set[Value] = set()
        for statement in self.statements:
            match statement:
                case Let(_, _, args):
                    used.update(args)
                case For(kind=LoopKind.SERIAL | LoopKind.WALK):
                    used.update((statement.start, statement.stop, statement.step, *statement.inits))
                case Copy(_, source) if isinstance(source, Box):
                    used.update((source.row, source.col))
                case PairCall():
                    used.update((statement.row, statement.col))
        return [p for p in self.kernel.params if isinstance(p, Value) and p in used]

    # The block.

    def text(self, triple: str) -> str:
        w = self.w
        w.let_next_begin()
        w.wait_for_others()
        statements = self.block_work.statements
        last = max((i for i, s in enumerate(statements) if isinstance(s, Assume)), default=-1)
        self.run(statements[: last + 1])
        self.make_barriers()
        self.run(statements[last + 1 :])
        return w.module(triple, self.epilogue.call.text)

    def make_barriers(self) -> None:
        w = self.w
        barriers = [a for a in self.kernel.arrays if a.space is Space.PHASES]
        with w.when(self.thread.equals(0)):
            for number in range(max(b.size or 0 for b in barriers)):
                for barrier in (b for b in barriers if number < (b.size or 0)):
                    barrier_init(w, self.barrier_at(barrier, w.value(number)), int(barrier.data[0]))
            barriers_made(w)
        sync_threads(w, 0, self.kernel.thread_count)

    def roles(self, roles: Sequence[Role], first: int = 0) -> None:
        """The first of these roles, which begins with thread `first`, or the others."""
        role, *others = roles
        end = first + role.copies * role.threads
        if not others:
            self.role(role, first)
            return
        self.w.either(self.thread < end, lambda: self.role(role, first), lambda: self.roles(others, end))

    def role(self, role: Role, first: int) -> None:
        w = self.w
        if role.threads != _GROUP:
            raise self.refusal(f"role {role.name} has groups of {role.threads} threads, not {_GROUP}")
        if role.registers:
            usual = _REGISTERS // self.kernel.thread_count // 8 * 8
            change = "dec" if role.registers < usual else "inc"
            w.asm(f"setmaxnreg.{change}.sync.aligned.u32 {role.registers};")
        self.is_single = not any(isinstance(s, Mma | Fill | PairCall) for s in walk(role.body))
        if self.is_single:
            with w.when(self.thread.equals(first)):
                self.values[role.index] = w.value(0)
                self.run(role.body.statements)
            return
        self.values[role.index] = (self.thread >> 7) - first // _GROUP
        self.inside = self.thread & (_GROUP - 1)
        self.run(role.body.statements)

    # Values.

    def value(self, value: Value) -> Val:
        return self.w.value(int(value.literal)) if isinstance(value, Const) else self.values[value]

    def parity(self, count: Value) -> Val:
        """Of a number of phases, of which that is all that is kept."""
        return self.w.value(int(count.literal) & 1) if isinstance(count, Const) else self.values[count]

    def let(self, let: Let) -> None:
        read = self.parity if let.result in self.counts else self.value
        if let.op == "select":
            condition, then, otherwise = let.args
            self.values[let.result] = self.w.select(self.value(condition), read(then), read(otherwise))
        elif let.result in self.counts:
            left, right = map(read, let.args)
            self.values[let.result] = left ^ right
        elif let.op in _OPERATORS:
            self.values[let.result] = _OPERATORS[let.op](*map(read, let.args))
        else:
            raise self.refusal(f"{let.op} of numbers of elements")

    def address(self, region: Region) -> Val:
        buffer = region.buffer
        place = self.beyond(self.memory, region.offset, buffer.dtype.size_bytes)
        return place + self.places[buffer] if self.places[buffer] else place

    def beyond(self, place: Val, offset: Value, size: int) -> Val:
        """So many elements further; sums are added one by one, and products with literals are of bytes at once."""
        let = self.lets.get(offset)
        if let is not None and let.op == "add":
            for part in let.args:
                place = self.beyond(place, part, size)
            return place
        if let is not None and let.op == "mul" and isinstance(let.args[1], Const):
            return place + self.value(let.args[0]) * (int(let.args[1].literal) * size)
        if isinstance(offset, Const):
            return place + int(offset.literal) * size
        return place + self.value(offset) * size

    def barrier(self, signal: Signal) -> Val:
        return self.barrier_at(signal.buffer, self.value(signal.index))

    def barrier_at(self, barrier: Buffer, number: Val) -> Val:
        return self.barriers + (number + self.places[barrier]) * 8

    # Statements.

    def run(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Let):
                self.left.append(statement)
                continue
            if not isinstance(statement, PairCall):
                self.compute()
            if self.begun and not isinstance(statement, Mma | AwaitToken):
                self.start(None)
            match statement:
                case For(kind=LoopKind.SERIAL | LoopKind.WALK):
                    self.loop(statement)
                case If(condition, then, otherwise, results) if not results and not otherwise.statements:
                    with self.w.when(self.value(condition)):
                        self.run(then.statements)
                case Roles(roles):
                    self.roles(roles)
                case Assume(condition):
                    self.w.assume(self.value(condition))
                case Copy():
                    self.copy(statement)
                case Arrive():
                    self.arrive(statement)
                case AwaitPhases(barrier, count):
                    barrier_wait(self.w, self.barrier(barrier), self.parity(count) ^ 1)
                case Fill(fragment, literal):
                    self.fill(fragment, literal)
                case Mma():
                    self.begun.append(statement)
                case AwaitToken(_, running):
                    self.await_products(running)
                case PairCall():
                    self.call_pairs(statement)
                case _:
                    raise self.refusal(f"{type(statement).__name__} has no spelling here")
        self.compute()
        if self.begun:
            self.start(None)

    def compute(self) -> None:
        """What was not needed before the statement that comes now."""
        for let in self.left:
            self.let(let)
        self.left = []

    def loop(self, loop: For) -> None:
        w = self.w
        reads = [self.parity if value in self.counts else self.value for value in loop.carried]
        carried = [Var(w, read(init)) for read, init in zip(reads, loop.inits)]
        is_walk = loop.kind is LoopKind.WALK
        start, step = (self.first, self.stride) if is_walk else (self.value(loop.start), self.value(loop.step))
        with w.loop(start, self.value(loop.stop), step) as index:
            self.values[loop.index] = index
            self.values.update(zip(loop.carried, [v.get() for v in carried]))
            self.run(loop.body.statements)
            for variable, value in zip(carried, [read(v) for read, v in zip(reads, loop.body.yields)]):
                variable.set(value)
        self.values.update(zip(loop.results, [v.get() for v in carried]))

    def copy(self, copy: Copy) -> None:
        source, target, signal = copy.source, copy.target, copy.signal
        is_known = isinstance(source, Box) and signal is not None and signal.buffer.space is Space.PHASES
        if not self.is_single or not is_known or target.cols * target.buffer.dtype.size_bytes != DEPTH_BYTES:
            raise self.refusal(f"the copy engine brings boxes of {DEPTH_BYTES} bytes a row, and tells a barrier")
        assert isinstance(source, Box) and signal is not None
        place = (self.value(source.col), self.value(source.row))
        copy_box(self.w, self.address(target), self.maps[source.buffer], place, self.barrier(signal))

    def arrive(self, arrive: Arrive) -> None:
        barrier = self.barrier(arrive.barrier)
        if self.is_single and arrive.bytes:
            barrier_expect(self.w, barrier, arrive.bytes)
        elif self.is_single:
            barrier_arrive(self.w, barrier)
        else:
            with self.w.when(self.inside.equals(0)):
                barrier_arrive(self.w, barrier)

    # Products.

    def fill(self, fragment: Buffer, literal: float) -> None:
        if fragment.rows != _GROUP_ROWS:
            raise self.refusal(f"{fragment.name} has {fragment.rows} rows, not {_GROUP_ROWS}")
        self.sums[fragment] = [Var(self.w, literal, "float") for _ in range(fragment.rows * fragment.cols // _GROUP)]

    def await_products(self, running: int) -> None:
        if self.begun and running % len(self.begun) == 0:
            self.start(running // len(self.begun))
            return
        if running:
            raise self.refusal("products are awaited as they were started, some together")
        # Sums must pass through the wait: before it they are not there yet.
        variables = [v for sums in self.sums.values() for v in sums]
        done = self.w.asm("wgmma.wait_group.sync.aligned 0;", tied=[v.get() for v in variables])
        for variable, value in zip(variables, done):
            variable.set(value)

    def start(self, running: int | None) -> None:
        """Start products that follow each other, of one A; `running` such pieces may go on."""
        begun, self.begun = self.begun, []
        first = begun[0]
        words = ELEMENTS | BYTES
        shape = ProductShape(
            first.total.cols,
            len(begun),
            first.b_transposed,
            words[first.a.buffer.dtype],
            first.a_transposed,
            1,
            words[first.b.buffer.dtype],
        )
        check_shape(shape)
        for mma in begun:
            self.check_product(mma, first)
        sums = [v for mma in begun for v in self.sums[mma.total]]
        bs = [view_of_b(self.w, shape, self.address(mma.b)) for mma in begun]
        start_products(self.w, shape, sums, view_of_a(self.w, shape, self.address(first.a)), bs, running)

    def check_product(self, mma: Mma, first: Mma) -> None:
        """Complain about operands that the tensor cores do not see as they lie."""
        is_same = (mma.a.buffer, mma.a.offset) == (first.a.buffer, first.a.offset)
        is_same &= (mma.total.cols, mma.b_transposed) == (first.total.cols, first.b_transposed)
        keeps = isinstance(mma.keeps, Const) and bool(mma.keeps.literal) and mma.signal is not None
        size = mma.a.buffer.dtype.size_bytes
        a_width, b_width = mma.a.cols, mma.b.cols
        if isinstance(mma.b, Slabs) and isinstance(mma.b.stride, Const):
            b_width = int(mma.b.stride.literal)
        are_rows = a_width * size == b_width * size == DEPTH_BYTES
        are_slabs = mma.a.rows * mma.a.cols * size == SLAB_BYTES
        if not is_same or not keeps or not are_rows or not are_slabs:
            raise self.refusal("products are added to sums, of rows of 128 bytes, 64 of A; those of one A together")

    def call_pairs(self, call: PairCall) -> None:
        w = self.w
        shape = ProductShape(call.fragments[0].cols, len(call.fragments), True, "bf16")
        sums = [v.get() for fragment in call.fragments for v in self.sums[fragment]]
        # The rows of a thread are the same in all tiles, so they come before the place of this one.
        own = rows_of_thread(self.inside)
        self.compute()
        row = self.value(call.row)
        store_pairs(self.epilogue, shape, self.inside, sums, [w.wide(row + r) for r in own], self.value(call.col))
