"""`verify(kernel)`: the rules of the loop IR, checked from scratch; what a pass hands on must satisfy them."""

from __future__ import annotations

from typing import NoReturn

from rlx.errors import RlxError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.ir.group_verify import check_element_access, check_group_statement
from rlx.kernels.ir.groups import Exchange, Peers, Roles, SubgroupPlace, WaveStatement
from rlx.kernels.ir.loop_ir import (
    ALL,
    INDEX,
    Atomic,
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
    Prefetch,
    Statement,
    Store,
    Value,
    ValueType,
    walk,
)
from rlx.kernels.ir.operations import infer
from rlx.kernels.ir.text import statement_text

_BOOL = ValueType(DType.BOOL)


def verify(kernel: Kernel) -> None:
    """Raise `VerificationError`, with the statement shown, if the kernel breaks a rule of the IR."""
    _Verifier(kernel).run()


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {b for b in (*kernel.params, *kernel.arrays) if isinstance(b, Buffer)}
        self.defined = {p for p in kernel.params if isinstance(p, Value)}
        # What is defined, in order: a block takes back what it has added.
        self.added: list[Value] = []
        self.at: Statement | None = None
        self.role_threads: int | None = None
        self.elements: For | None = None
        self.lets: dict[Value, Let] = {}

    def run(self) -> None:
        names = [p.name for p in (*self.kernel.params, *self.kernel.arrays)]
        self.require(len(set(names)) == len(names), f"parameter names repeat: {names}")
        self.check_parallel_structure()
        self.block(self.kernel.body, inside_threads=False)
        self.require(not self.kernel.body.yields, "the body of a kernel yields nothing")

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            self.refuse(why)

    def refuse(self, why: str) -> NoReturn:
        """What is checked for every value of a kernel calls this itself: words cost more than the check."""
        line = f"\n  at: {statement_text(self.kernel, self.at)}" if self.at is not None else ""
        raise VerificationError(f"kernel {self.kernel.name}: {why}{line}")

    def check_parallel_structure(self) -> None:
        loops = [s for s in walk(self.kernel.body) if isinstance(s, For)]
        parallel = [s for s in loops if s.kind is LoopKind.PARALLEL]
        if parallel:
            # Every worker runs what is beside the parallel loop, so that must be pure.
            rest = [s for s in self.kernel.body.statements if s is not parallel[0]]
            self.require(
                len(parallel) == 1
                and len(rest) < len(self.kernel.body.statements)
                and all(isinstance(s, Let) for s in rest),
                "a parallel loop must be the only one, at the top level, beside pure operations",
            )
        threads = [s for s in loops if s.kind is LoopKind.THREADS]
        top = parallel[0].body if parallel else self.kernel.body
        roles = [s for s in walk(self.kernel.body) if isinstance(s, Roles)]
        self.require(
            len(roles) <= 1 and all(s in top.statements for s in roles),
            "roles stand once, at the top of a block's work",
        )
        counts = {s.stop.literal if isinstance(s.stop, Const) else None for s in threads}
        self.require(None not in counts, "thread loops need a literal count")
        # Roles have counts of their own.
        self.require(len(counts) <= 1 or bool(roles), "all thread loops need one and the same literal count")
        of_groups = [s for s in loops if s.kind in (LoopKind.ELEMENTS, LoopKind.WALK)]
        for loop in (*parallel, *threads, *of_groups):
            simple = [isinstance(b, Const) and b.literal == v for b, v in ((loop.start, 0), (loop.step, 1))]
            carries = bool(loop.inits) and loop.kind is not LoopKind.WALK
            self.require(all(simple) and not carries, f"a {loop.kind} loop starts at 0, steps by 1, carries nothing")
        self.has_threads = bool(threads) and not roles

    def block(self, block: Block, inside_threads: bool, arguments: tuple[Value, ...] = ()) -> None:
        """Check a block; what it defines, `arguments` included, is not defined after it."""
        outer = len(self.added)
        self.define(*arguments)
        for statement in block.statements:
            self.at = statement
            self.statement(statement, inside_threads)
        self.at = None
        for value in block.yields:
            self.use(value)
        if block.again is not None:
            self.use(block.again, _BOOL)
        self.defined.difference_update(self.added[outer:])
        del self.added[outer:]

    def use(self, value: Value, wanted: ValueType | None = None) -> None:
        if value not in self.defined and not isinstance(value, Const):
            self.refuse(f"{value!r} is used where it is not defined")
        if wanted is not None and value.type != wanted:
            self.refuse(f"{wanted} is wanted, got {value.type}")

    def define(self, *values: Value) -> None:
        for value in values:
            if value in self.defined:
                self.refuse(f"{value!r} is defined twice")
            if value.dtype not in ALL or value.lanes < 1:
                self.refuse(f"{value.type} is no kernel type")
            self.defined.add(value)
            self.added.append(value)

    def statement(self, statement: Statement, inside_threads: bool) -> None:
        if self.has_threads and not inside_threads and isinstance(statement, Store | Atomic):
            self.refuse("memory is written inside the thread loops")
        match statement:
            case Let(result, op, args, attr):
                for arg in args:
                    self.use(arg)
                try:
                    inferred = infer(op, [a.type for a in args], attr)
                except RlxError as error:
                    self.refuse(str(error))
                if inferred != result.type:
                    self.refuse(f"{op} gives {inferred}, not {result.type}")
                self.lets[result] = statement
                self.define(result)
            case Load(result, buffer, offset, mask, other, _):
                self.access(buffer, offset, result.type, mask)
                self.require(buffer.reads, f"{buffer.name} is write only")
                self.require((mask is None) == (other is None), "a mask and a value for masked-off lanes go together")
                if other is not None:
                    self.use(other, result.type)
                self.define(result)
            case Store(buffer, offset, value, mask, _):
                self.use(value)
                self.access(buffer, offset, value.type, mask)
                self.require(buffer.writes, f"{buffer.name} is read only")
            case Prefetch(buffer, offset):
                self.use(offset, INDEX)
                self.require(buffer in self.buffers, f"{buffer.name} is not declared")
            case Atomic(_, buffer, offset, value):
                self.use(value)
                self.use(offset, INDEX)
                self.access(buffer, offset, value.type, None)
            case Barrier():
                self.require(inside_threads, "a barrier stands inside a thread loop")
            case For():
                self.loop(statement, inside_threads)
            case If(condition, then, otherwise, results):
                self.use(condition, _BOOL)
                for side in (then, otherwise):
                    types = [v.type for v in side.yields]
                    if types != [r.type for r in results]:
                        self.refuse(f"a branch yields {types}")
                    self.block(side, inside_threads)
                self.define(*results)
            case Roles(roles):
                check_group_statement(statement, self.buffers, self.require)
                for role in roles:
                    self.role_threads = role.threads
                    self.block(role.body, False, (role.index,))
                self.role_threads = None
            case GroupStatement():
                for operand in statement.operands():
                    self.use(operand)
                is_of_threads = isinstance(statement, Exchange | Peers | SubgroupPlace | WaveStatement)
                self.require(
                    is_of_threads == inside_threads and self.elements is None,
                    "threads exchange; groups copy, multiply and wait",
                )
                check_group_statement(statement, self.buffers, self.require)
                self.define(*statement.results())

    def access(self, buffer: Buffer, offset: Value, kind: ValueType, mask: Value | None) -> None:
        if buffer not in self.buffers:
            self.refuse(f"{buffer.name} is not declared")
        if kind.dtype is not buffer.dtype:
            self.refuse(f"{buffer.name} holds {buffer.dtype}, not {kind.dtype}")
        self.use(offset)
        check_element_access(buffer, offset, self.elements, self.lets, self.require)
        if offset.dtype is not DType.I64 or offset.lanes not in (1, kind.lanes):
            self.refuse(f"offset {offset.type} for {kind}")
        if mask is not None:
            self.use(mask, kind.with_dtype(DType.BOOL))

    def loop(self, loop: For, inside_threads: bool) -> None:
        for bound in (loop.start, loop.stop, loop.step):
            self.use(bound, INDEX)
        for init in loop.inits:
            self.use(init)
        types = [v.type for v in loop.inits]
        for group in (loop.carried, loop.body.yields, loop.results):
            if [v.type for v in group] != types:
                self.refuse(f"loop %{loop.index.name} carries {types}")
        self.require(loop.body.again is None or loop.kind is LoopKind.SERIAL, "only a serial loop ends early")
        is_threads = loop.kind is LoopKind.THREADS
        self.require(not (is_threads and inside_threads), "thread loops do not nest")
        if is_threads and self.role_threads is not None and isinstance(loop.stop, Const):
            count = self.role_threads
            self.require(loop.stop.literal == count, f"the role has {count} threads, the loop {loop.stop.literal}")
        if loop.kind is LoopKind.ELEMENTS:
            nested = inside_threads or self.elements is not None or not isinstance(loop.stop, Const)
            self.require(not nested, "a loop over elements is a group's, with a literal count")
            self.elements = loop
        self.block(loop.body, inside_threads or is_threads, (loop.index, *loop.carried))
        self.elements = None if loop.kind is LoopKind.ELEMENTS else self.elements
        self.define(*loop.results)
