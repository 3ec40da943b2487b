"""A small language of loops over integers that becomes LLVM IR, for the Thumb form of programs.

    b = Loops(module, "sum")                     # a function of the arena
    total = b.variable(0)
    with b.loop(10) as i:
        b.set(total, b.get(total) + b.load(x, i))

`Number` has the operators of C on i32 or i64, without its traps: a shift to the right keeps the sign, and comparisons
give conditions for `pick` and `when`. Loops and variables cost nothing: LLVM's passes put them into registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
# A value of LLVM that is an address.
Pointer: TypeAlias = Any


class Number:
    """An integer of the program that is being written."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _other(self, other: Number | int) -> Any:
        return other.value if isinstance(other, Number) else ir.Constant(self.value.type, other)

    def _made(self, value: Any) -> Number:
        return Number(self.builder, value)

    def __add__(self, other: Number | int) -> Number:
        return self._made(self.builder.add(self.value, self._other(other)))

    __radd__ = __add__

    def __sub__(self, other: Number | int) -> Number:
        return self._made(self.builder.sub(self.value, self._other(other)))

    def __rsub__(self, other: int) -> Number:
        return self._made(self.builder.sub(self._other(other), self.value))

    def __mul__(self, other: Number | int) -> Number:
        return self._made(self.builder.mul(self.value, self._other(other)))

    def __floordiv__(self, other: Number | int) -> Number:
        """Towards zero, as C divides."""
        return self._made(self.builder.sdiv(self.value, self._other(other)))

    def __rshift__(self, other: Number | int) -> Number:
        return self._made(self.builder.ashr(self.value, self._other(other)))

    def __lshift__(self, other: Number | int) -> Number:
        return self._made(self.builder.shl(self.value, self._other(other)))

    def __and__(self, other: Number | int) -> Number:
        return self._made(self.builder.and_(self.value, self._other(other)))

    def compare(self, sign: str, other: Number | int) -> Number:
        return self._made(self.builder.icmp_signed(sign, self.value, self._other(other)))

    def pick(self, one: Number | int, other: Number | int, width: Any = I32) -> Number:
        """`one` where this condition holds."""
        values = [v.value if isinstance(v, Number) else ir.Constant(width, v) for v in (one, other)]
        return self._made(self.builder.select(self.value, *values))

    def least(self, other: Number | int) -> Number:
        return self.compare("<", other).pick(self, other, self.value.type)

    def most(self, other: Number | int) -> Number:
        return self.compare(">", other).pick(self, other, self.value.type)

    def limited(self, low: Number | int, high: Number | int) -> Number:
        return self.most(low).least(high)

    def widened(self) -> Number:
        return self._made(self.builder.sext(self.value, I64))

    def narrowed(self) -> Number:
        return self._made(self.builder.trunc(self.value, I32))


class Loops:
    """One function `void name(i8 *arena)` that is being written."""

    def __init__(self, module: Any, name: str, *, is_internal: bool = True) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
        self.function = ir.Function(module, kind, name)
        if is_internal:
            self.function.linkage = "internal"
        self.entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("body"))
        self.arena = self.function.args[0]

    def finish(self) -> Any:
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self.function.blocks[1])
        return self.function

    def number(self, value: int) -> Number:
        return Number(self.builder, ir.Constant(I32, value))

    def wide(self, value: int) -> Number:
        """An i64."""
        return Number(self.builder, ir.Constant(I64, value))

    def variable(self, start: Number | int) -> Pointer:
        return self._variable(I32, start)

    def wide_variable(self, start: Number | int) -> Pointer:
        return self._variable(I64, start)

    def _variable(self, width: Any, start: Number | int) -> Pointer:
        # All of them in front of everything: inside of a loop, each round would take stack.
        place = ir.IRBuilder(self.entry).alloca(width)
        self.set(place, start)
        return place

    def get(self, place: Any) -> Number:
        return Number(self.builder, self.builder.load(place))

    def set(self, place: Any, value: Number | int) -> None:
        width = place.type.pointee
        self.builder.store(value.value if isinstance(value, Number) else ir.Constant(width, value), place)

    def pointer(self, offset: int, width: Any) -> Any:
        """To a value of the arena."""
        at = self.builder.gep(self.arena, [ir.Constant(I32, offset)])
        return self.builder.bitcast(at, width.as_pointer())

    def load(self, base: Any, index: Number | int) -> Number:
        """An element as i32."""
        value = self.builder.load(self._at(base, index))
        return Number(self.builder, value if value.type == I32 else self.builder.sext(value, I32))

    def store(self, base: Any, index: Number | int, value: Number) -> None:
        place = self._at(base, index)
        width = base.type.pointee
        narrow = value.value if width == value.value.type else self.builder.trunc(value.value, width)
        self.builder.store(narrow, place)

    def _at(self, base: Any, index: Number | int) -> Any:
        return self.builder.gep(base, [index.value if isinstance(index, Number) else ir.Constant(I32, index)])

    @contextmanager
    def loop(self, count: int | Number) -> Iterator[Number]:
        """From 0 up to `count`, which is tested before the first round."""
        at = self.variable(0)
        test, body, end = (self.function.append_basic_block(n) for n in ("test", "round", "end"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        index = self.get(at)
        self.builder.cbranch(index.compare("<", count).value, body, end)
        self.builder.position_at_end(body)
        yield index
        self.set(at, index + 1)
        self.builder.branch(test)
        self.builder.position_at_end(end)

    @contextmanager
    def when(self, *conditions: Number) -> Iterator[None]:
        """What happens only where all conditions hold."""
        whole = conditions[0].value
        for one in conditions[1:]:
            whole = self.builder.and_(whole, one.value)
        with self.builder.if_then(whole):
            yield
