"""The few words that the native executor is written in, as LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rlx.backends.program.table_layout import WORD


class FunctionHolder(Protocol):
    """The module that functions are written into; `declare` says that the system has one."""

    ir: Any
    module: Any
    i64: Any
    i32: Any
    void: Any
    address: Any

    def declare(self, name: str, result: Any, *parameters: Any) -> Any: ...


class Function:
    """One function under construction, in the few words that the executor is written in. Variables are words on the
    stack; `word(p, i)` is the address of the i-th word of a record."""

    def __init__(self, module: FunctionHolder, name: str, result: Any, *parameters: Any) -> None:
        ir = module.ir
        self.ir, self.i64 = ir, module.i64
        self.function = ir.Function(module.module, ir.FunctionType(result, parameters), name)
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))

    def word(self, record: Any, index: Any) -> Any:
        position = index if isinstance(index, self.ir.Value) else self.i64(index)
        return self.b.gep(record, [position], inbounds=True, source_etype=self.i64)

    def variable(self, value: Any) -> Any:
        with self.b.goto_entry_block():
            place = self.b.alloca(self.i64)
        self.b.store(value, place)
        return place

    def load(self, place: Any) -> Any:
        return self.b.load(place, typ=self.i64)

    def field(self, record: Any, index: int) -> Any:
        return self.load(self.word(record, index))

    def pointer(self, record: Any, index: int) -> Any:
        return self.b.inttoptr(self.field(record, index), self.ir.PointerType())

    def atomic_load(self, place: Any, ordering: str) -> Any:
        return self.b.load_atomic(place, ordering, WORD, typ=self.i64)

    def atomic_store(self, value: Any, place: Any, ordering: str) -> None:
        # llvmlite's own atomic store does not know untyped pointers yet.
        self.b.atomic_rmw("xchg", place, value, ordering)

    def atomic_add(self, place: Any, amount: Any, ordering: str) -> Any:
        """The value before."""
        return self.b.atomic_rmw("add", place, amount, ordering)

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        with self.b.if_then(condition):
            yield

    @contextmanager
    def forever(self) -> Iterator[_Loop]:
        """A loop that only `leave_if`, `next_if` and a return get out of or back to its start."""
        loop = _Loop(self)
        yield loop
        self.b.branch(loop.start)
        self.b.position_at_end(loop.end)

    @contextmanager
    def each(self, count: Any) -> Iterator[Any]:
        """The numbers below `count`."""
        position = self.variable(self.i64(0))
        with self.forever() as loop:
            i = self.load(position)
            loop.leave_if(self.b.icmp_signed(">=", i, count))
            yield i
            self.b.store(self.b.add(i, self.i64(1)), position)

    def returns_if(self, condition: Any) -> None:
        with self.b.if_then(condition):
            self.b.ret_void()


class _Loop:
    def __init__(self, f: Function) -> None:
        self.f = f
        self.start, self.end = f.function.append_basic_block("loop"), f.function.append_basic_block("end")
        f.b.branch(self.start)
        f.b.position_at_end(self.start)

    def leave_if(self, condition: Any) -> None:
        self._branch(condition, self.end)

    def next_if(self, condition: Any) -> None:
        self._branch(condition, self.start)

    def _branch(self, condition: Any, machine: Any) -> None:
        after = self.f.function.append_basic_block("go")
        self.f.b.cbranch(condition, machine, after)
        self.f.b.position_at_end(after)
