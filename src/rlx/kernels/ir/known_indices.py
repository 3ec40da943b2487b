"""Operations on indices as a builder appends them: what literals, identities and facts give needs no statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlx.ir.dtype import DType
from rlx.kernels.ir.index_facts import ANYTHING, Fact, comparison, counted, either, exactly, of_operation
from rlx.kernels.ir.loop_ir import INDEX, Const, LoopKind, Value, ValueType

if TYPE_CHECKING:
    from rlx.kernels.ir.builder import KernelBuilder


def _truncated_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _truncated_div,
    "rem": lambda a, b: a - b * _truncated_div(a, b),
    "min": min,
    "max": max,
}
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_CONNECTIVES = frozenset({"and", "or", "not"})
_TRUTH = ValueType(DType.BOOL)


class KnownIndices:
    """What a builder knows of its indices and of conditions on them."""

    def __init__(self, builder: KernelBuilder) -> None:
        self._builder = builder
        self._facts: dict[Value, Fact] = {}
        self._truths: dict[Value, bool] = {}
        # x // c, where c divides x: x and c.
        self._quotients: dict[Value, tuple[Value, int]] = {}

    def fact(self, x: Value) -> Fact:
        return exactly(int(x.literal)) if isinstance(x, Const) else self._facts.get(x, ANYTHING)

    def truth(self, condition: Value) -> bool | None:
        """Whether a condition holds, where that is known."""
        return self._truths.get(condition)

    def operation(self, op: str, args: tuple[Value, ...]) -> Value | None:
        """The result of an operation on indices, or on conditions; None for any other."""
        if args[0].type == INDEX:
            if op in _ARITHMETIC:
                x, y = args
                return self._folded(op, x, y) or self._builder.computed(op, args) or self._arithmetic(op, x, y)
            return self._compared(op, *args) if op in _COMPARISONS else None
        return self._connected(op, args) if op in _CONNECTIVES and args[0].type == _TRUTH else None

    def _folded(self, op: str, a: Value, b: Value) -> Value | None:
        """Integer identities and literal arithmetic; None where there is nothing to fold."""
        const = self._builder.const
        if isinstance(a, Const) and isinstance(b, Const) and not (op in ("div", "rem") and b.literal == 0):
            return const(_ARITHMETIC[op](int(a.literal), int(b.literal)), INDEX)
        right = b.literal if isinstance(b, Const) else None
        left = a.literal if isinstance(a, Const) else None
        if (right == 0 and op in ("add", "sub")) or (right == 1 and op in ("mul", "div")):
            return a
        if (left == 0 and op == "add") or (left == 1 and op == "mul"):
            return b
        if op == "mul" and 0 in (left, right):
            return const(0, INDEX)
        return None

    def _arithmetic(self, op: str, x: Value, y: Value) -> Value:
        a, b = self.fact(x), self.fact(y)
        fact = of_operation(op, a, b)
        known = self._known(op, x, y, fact)
        if known is not None:
            return known
        result = self._builder.pure(op, (x, y))
        self._facts[result] = fact
        if op == "div" and b.only is not None and b.only > 0 and a.multiple % b.only == 0:
            self._quotients[result] = x, b.only
        return result

    def _known(self, op: str, x: Value, y: Value, fact: Fact) -> Value | None:
        """What the facts say that it is; None where they do not."""
        only = fact.only
        if only is not None:
            return self._builder.const(only, INDEX)
        if op in ("min", "max"):
            lower, upper = (x, y) if op == "min" else (y, x)
            if self.fact(lower).high <= self.fact(upper).low:
                return x
            return y if self.fact(upper).high <= self.fact(lower).low else None
        if op == "rem":
            b = self.fact(y)
            return x if b.only is not None and self.fact(x).is_below(b.only) else None
        if op == "mul" and x in self._quotients:
            whole, divisor = self._quotients[x]
            return whole if divisor == self.fact(y).only else None
        return None

    def _compared(self, op: str, x: Value, y: Value) -> Value:
        if x is y:
            # Compilers of C warn of what is compared with itself.
            x = y = self._builder.const(0, INDEX)
        return self._learned(self._builder.pure(op, (x, y)), comparison(op, self.fact(x), self.fact(y)))

    def _connected(self, op: str, args: Sequence[Value]) -> Value:
        known = [self._truths.get(a) for a in args]
        if op == "not":
            holds = None if known[0] is None else not known[0]
        else:
            deciding = op == "or"
            holds = deciding if deciding in known else None if None in known else not deciding
        return self._learned(self._builder.pure(op, tuple(args)), holds)

    def _learned(self, condition: Value, holds: bool | None) -> Value:
        if holds is not None:
            self._truths[condition] = holds
        return condition

    def select(self, result: Value, a: Value, b: Value) -> Value:
        """Remember what is chosen from."""
        self._facts[result] = either(self.fact(a), self.fact(b))
        return result

    def begin_loop(self, kind: LoopKind, index: Value, start: Value, stop: Value, step: Value) -> Value:
        """The index inside of a loop: a literal where there is one round at most."""
        steps = self.fact(step) if kind is LoopKind.SERIAL else exactly(1)
        fact = self._facts[index] = counted(self.fact(start), self.fact(stop), steps)
        is_once = kind is LoopKind.SERIAL and fact.only is not None
        return self._builder.const(int(fact.low), INDEX) if is_once else index

    def never_begins(self, kind: LoopKind, start: Value, stop: Value) -> bool:
        return kind is LoopKind.SERIAL and self.fact(start).low >= self.fact(stop).high
