"""The part of the executor that Python calls without ctypes: a small program as one function from arrays to arrays.

    call(self, arguments, count) -> a list of results, None, or null after an error of Python

It is a function in CPython's own calling convention (`METH_FASTCALL`); `short_calls` makes objects of it. `self` is an
array of words, the record below. Everything that a run needs is done here, while no other Python code can run: types
and shapes of arguments are compared with those that the record is for, results are made by NumPy, addresses go to
their places, kernels run one after the other in this thread. None means that something was not as expected: nothing has
been done then, and the road for all programs is to be taken. Programs with enough work to share are run by the
threads of the pool together, as all are; they hold the GIL too, which no worker needs.
"""

from __future__ import annotations

from typing import Any

from rlx.backends.cpu.executor_layout import Job
from rlx.backends.cpu.executor_words import Function

# Of NumPy's interface for extension modules.
CONTIGUOUS, ALIGNED = 0x1, 0x100


class PyObjects:
    """Objects of CPython and NumPy by word number, as their interfaces for extension modules have them."""

    TYPE = 1
    LIST_ITEMS = 3
    DATA, RANK, DIMS, STRIDES, BASE, DTYPE, FLAGS = range(2, 9)  # rank and flags are the lower halves of their words


class Record:
    """What a short call is for. Functions of CPython and NumPy are in it by their addresses, so that the executor needs
    nothing of either. Guards, inputs, outputs and checks lie elsewhere: each kind by its address and how many."""

    NONE, NDARRAY, RESULT_CLASS = range(3)
    INCREF, DECREF, NEW_LIST, NEW_ARRAY, GET_VARIABLE = range(3, 8)
    JOB, SEGMENT = 8, 9
    # How many threads run it, the pool that they are of, and a word that says by another value that both are old.
    THREADS, POOL, CHANGES_AT, CHANGES = range(10, 14)
    GUARDS, GUARD_COUNT, INPUTS, INPUT_COUNT, OUTPUTS, OUTPUT_COUNT, CHECKS, CHECK_COUNT = range(14, 22)
    WORDS = 22


class Guard:
    """A context variable must have this very value."""

    VARIABLE, VALUE = range(2)
    WORDS = 2


class Operand:
    """An input or an output: its dtype, shape, where its address goes, and what of it must be 0. Of an output also the
    array that is made for it, in which it begins at the first such address."""

    DTYPE, RANK, DIMS, PLACE, UNALIGNED, BLOCK_DTYPE, BLOCK_RANK, BLOCK_DIMS = range(8)
    WORDS = 8


class Check:
    """No byte from `START` to `STOP` may be 0 when all kernels are done."""

    START, STOP = range(2)
    WORDS = 2


def build_call(module: Any) -> None:
    """call(self, arguments, count), of the module of the executor, which has `relocate` and `perform`."""
    _Call(module).build()


class _Call:
    def __init__(self, module: Any) -> None:
        self.module, self.ir, self.i64, self.i32 = module, module.ir, module.i64, module.i32
        address = module.address
        self.f = Function(module, "rlx.call", address, address, address, module.i64)
        self.null = self.ir.Constant(address, None)
        itself, self.arguments, self.count = self.f.function.args
        self.record = self.f.pointer(itself, PyObjects.DATA)

    def build(self) -> None:
        f, record = self.f, self.record
        self.gives_up_if(f.b.icmp_signed("!=", self.count, f.field(record, Record.INPUT_COUNT)))
        with f.each(self.count) as i:
            self.compare(self.object_at(self.arguments, i), self.part(Record.INPUTS, Operand.WORDS, i))
        with f.each(f.field(record, Record.GUARD_COUNT)) as i:
            self.look_at(self.part(Record.GUARDS, Guard.WORDS, i))
        changes = f.load(f.pointer(record, Record.CHANGES_AT))
        self.gives_up_if(f.b.icmp_signed("!=", changes, f.field(record, Record.CHANGES)))
        # Making an object may run any Python code, this very function included: addresses are written afterwards.
        outputs = f.field(record, Record.OUTPUT_COUNT)
        results = self.call(Record.NEW_LIST, [outputs])
        self.fails_if_null(results)
        items = f.pointer(results, PyObjects.LIST_ITEMS)
        with f.each(outputs) as i:
            self.make(self.part(Record.OUTPUTS, Operand.WORDS, i), f.word(items, i), results)
        with f.each(self.count) as i:
            self.place(self.object_at(self.arguments, i), self.part(Record.INPUTS, Operand.WORDS, i))
        with f.each(outputs) as i:
            self.place(self.object_at(items, i), self.part(Record.OUTPUTS, Operand.WORDS, i))
        self.perform()
        with f.each(f.field(record, Record.CHECK_COUNT)) as i:
            self.require_flags(self.part(Record.CHECKS, Check.WORDS, i), results)
        f.b.ret(results)

    def perform(self) -> None:
        """Run the only segment: on this thread, or from its first ticket on by all together."""
        f, record = self.f, self.record
        job, segment = f.pointer(record, Record.JOB), f.pointer(record, Record.SEGMENT)
        threads = f.field(record, Record.THREADS)
        with f.b.if_else(f.b.icmp_signed("<=", threads, self.i64(1))) as (alone, together):
            with alone:
                f.b.call(self.module.relocate, [job, segment])
                f.b.call(self.module.perform, [segment])
            with together:
                f.b.store(self.i64(0), f.word(job, Job.NEXT))
                f.b.store(self.i64(0), f.word(job, Job.COMPLETED))
                pool = f.pointer(record, Record.POOL)
                with f.forever() as running:
                    goes_on = f.b.call(self.module.run, [pool, job, threads])
                    running.leave_if(f.b.icmp_signed("==", goes_on, self.i64(0)))

    def part(self, field: int, words: int, number: Any) -> Any:
        return self.f.word(self.f.pointer(self.record, field), self.f.b.mul(number, self.i64(words)))

    def object_at(self, items: Any, number: Any) -> Any:
        return self.f.b.inttoptr(self.f.load(self.f.word(items, number)), self.module.address)

    def half(self, thing: Any, index: int) -> Any:
        """A C `int` of an object."""
        return self.f.b.zext(self.f.b.load(self.f.word(thing, index), typ=self.i32), self.i64)

    def call(self, field: int, arguments: list[Any], result: Any = None) -> Any:
        """A function of CPython or NumPy that returns an object, unless another type is named."""
        types = [a.type for a in arguments]
        signature = self.ir.FunctionType(self.module.address if result is None else result, types)
        function = self.f.b.inttoptr(self.f.field(self.record, field), signature.as_pointer())
        return self.f.b.call(function, arguments)

    def incremented(self, thing: Any) -> Any:
        self.call(Record.INCREF, [thing], self.module.void)
        return thing

    def gives_up_if(self, condition: Any) -> None:
        with self.f.when(condition):
            self.f.b.ret(self.incremented(self.f.pointer(self.record, Record.NONE)))

    def fails_if_null(self, made: Any, *others: Any) -> None:
        """Python's error is set; what was made before is let go."""
        with self.f.when(self.f.b.icmp_unsigned("==", self.f.b.ptrtoint(made, self.i64), self.i64(0))):
            for other in others:
                self.call(Record.DECREF, [other], self.module.void)
            self.f.b.ret(self.null)

    def compare(self, argument: Any, wanted: Any) -> None:
        f, b = self.f, self.f.b
        kind = f.field(argument, PyObjects.TYPE)
        is_plain = b.icmp_unsigned("==", kind, f.field(self.record, Record.NDARRAY))
        is_ours = b.icmp_unsigned("==", kind, f.field(self.record, Record.RESULT_CLASS))
        self.gives_up_if(b.not_(b.or_(is_plain, is_ours)))
        has_dtype = b.icmp_unsigned("==", f.field(argument, PyObjects.DTYPE), f.field(wanted, Operand.DTYPE))
        rank = f.field(wanted, Operand.RANK)
        has_rank = b.icmp_signed("==", self.half(argument, PyObjects.RANK), rank)
        flags = b.and_(self.half(argument, PyObjects.FLAGS), self.i64(CONTIGUOUS))
        is_contiguous = b.icmp_signed("!=", flags, self.i64(0))
        rest = b.and_(f.field(argument, PyObjects.DATA), f.field(wanted, Operand.UNALIGNED))
        is_aligned = b.icmp_signed("==", rest, self.i64(0))
        self.gives_up_if(b.not_(b.and_(b.and_(has_dtype, has_rank), b.and_(is_contiguous, is_aligned))))
        have, want = f.pointer(argument, PyObjects.DIMS), f.pointer(wanted, Operand.DIMS)
        with f.each(rank) as axis:
            self.gives_up_if(b.icmp_signed("!=", f.load(f.word(have, axis)), f.load(f.word(want, axis))))

    def look_at(self, guard: Any) -> None:
        f = self.f
        found = f.variable(self.i64(0))
        # A variable without a value here has its default; errors are left to the other road, which finds them again.
        failed = self.call(Record.GET_VARIABLE, [f.pointer(guard, Guard.VARIABLE), self.null, found], self.i32)
        with f.when(f.b.icmp_signed("!=", failed, self.i32(0))):
            f.b.ret(self.null)
        value = f.load(found)
        with f.when(f.b.icmp_unsigned("!=", value, self.i64(0))):
            self.call(Record.DECREF, [f.b.inttoptr(value, self.module.address)], self.module.void)
        self.gives_up_if(f.b.icmp_unsigned("!=", value, f.field(guard, Guard.VALUE)))

    def make(self, wanted: Any, item: Any, results: Any) -> None:
        """An array as NumPy makes them, and a view of it that cannot be written through, which is the result."""
        f = self.f
        memory = self.new_array(Record.NDARRAY, wanted, Operand.BLOCK_DTYPE, self.null, 0)
        self.fails_if_null(memory, results)
        rest = f.field(wanted, Operand.UNALIGNED)
        start = f.b.and_(f.b.add(f.field(memory, PyObjects.DATA), rest), f.b.not_(rest))
        data = f.b.inttoptr(start, self.module.address)
        view = self.new_array(Record.RESULT_CLASS, wanted, Operand.DTYPE, data, CONTIGUOUS | ALIGNED)
        self.fails_if_null(view, memory, results)
        f.b.store(f.b.ptrtoint(memory, self.i64), f.word(view, PyObjects.BASE))
        f.b.store(f.b.ptrtoint(view, self.i64), item)

    def new_array(self, kind: int, wanted: Any, what: int, data: Any, flags: int) -> Any:
        """An array of a dtype, a rank and sizes that lie in `wanted` from `what` on."""
        f = self.f
        is_block = what == Operand.BLOCK_DTYPE
        rank_at, dims_at = (Operand.BLOCK_RANK, Operand.BLOCK_DIMS) if is_block else (Operand.RANK, Operand.DIMS)
        # The array keeps the dtype that it is given.
        dtype = self.incremented(f.pointer(wanted, what))
        rank, dims = f.b.trunc(f.field(wanted, rank_at), self.i32), f.pointer(wanted, dims_at)
        cls = f.pointer(self.record, kind)
        return self.call(Record.NEW_ARRAY, [cls, dtype, rank, dims, self.null, data, self.i32(flags), self.null])

    def place(self, thing: Any, operand: Any) -> None:
        self.f.b.store(self.f.field(thing, PyObjects.DATA), self.f.pointer(operand, Operand.PLACE))

    def require_flags(self, check: Any, results: Any) -> None:
        f, byte = self.f, self.ir.IntType(8)
        start = f.field(check, Check.START)
        with f.each(f.b.sub(f.field(check, Check.STOP), start)) as i:
            flag = f.b.load(f.b.inttoptr(f.b.add(start, i), self.module.address), typ=byte)
            with f.when(f.b.icmp_unsigned("==", flag, byte(0))):
                self.call(Record.DECREF, [results], self.module.void)
                f.b.ret(self.incremented(f.pointer(self.record, Record.NONE)))
