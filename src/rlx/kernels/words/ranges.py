"""`wide_values`: which 64-bit integers of a kernel need two words.

Everything that counts and addresses in the loop IR is an i64, and data may be too. A machine with 32-bit integers runs
positions in one word and data in two:

- u64 is data. So is what comes out of a buffer of i64, out of a cast of a float, and a literal beyond 32 bits.
- What is computed from data is data.
- Anything else is a position. Offsets, bounds of loops and comparisons of positions are right in 32 bits, because no
  buffer has 2**31 elements: whoever runs the kernel refuses larger ones. Sums and products that wrap on the way to an
  offset come back by the end of it.
- A position that becomes data (it is stored, or converted) must itself be right: it has two words unless its range is
  known to fit into one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import Atomic, Const, For, If, Kernel, Let, Load, Statement, Store, Value, walk
from rlx.kernels.ir.operations import COMPARISONS

WORD_MIN, WORD_MAX = -(2**31), 2**31 - 1
LONG = (DType.I64, DType.U64)

# The smallest and the largest number that a value can be; None: not known.
Range = tuple[int, int] | None


def wide_values(kernel: Kernel) -> frozenset[Value]:
    """The values that need two words, literals apart: these are what they are used with."""
    return frozenset(_Analysis(kernel).wide)


def is_word(literal: float) -> bool:
    return WORD_MIN <= literal <= WORD_MAX


def is_wide(value: Value, wide: Container[Value]) -> bool:
    """Whether a value has two words, where `wide` are the i64 that have."""
    if value.dtype is DType.U64:
        return True
    if value.dtype is not DType.I64:
        return False
    return not is_word(value.literal) if isinstance(value, Const) else value in wide


class Ranges:
    """What the integers of a kernel can be, as far as its statements say."""

    def __init__(self, kernel: Kernel, known: Mapping[Value, Range] | None = None) -> None:
        self.statements = list(walk(kernel.body))
        self.ranges: dict[Value, Range] = dict(known or {})
        self.find_ranges()

    def unknown(self, dtype: DType) -> Range:
        """What a value can be of which nothing is known but its type."""
        return of_type(dtype)

    def range(self, value: Value) -> Range:
        if isinstance(value, Const):
            return (int(value.literal), int(value.literal)) if not value.dtype.is_float else None
        return self.ranges[value] if value in self.ranges else self.unknown(value.dtype)

    def find_ranges(self) -> None:
        for statement in self.statements:
            match statement:
                case Let():
                    self.ranges[statement.result] = self.let_range(statement)
                case For(index=index, start=start, stop=stop):
                    low, high = self.range(start), self.range(stop)
                    first = low[0] if low is not None else WORD_MIN
                    last = high[1] - 1 if high is not None else WORD_MAX
                    self.ranges[index] = (first, max(first, min(last, WORD_MAX)))
                    self.forget(*statement.carried, *statement.results)
                case If(results=results):
                    self.forget(*results)

    def forget(self, *values: Value) -> None:
        for value in values:
            self.ranges[value] = None if value.dtype in LONG else self.unknown(value.dtype)

    def let_range(self, let: Let) -> Range:
        kind = let.result.dtype
        whole = of_type(kind)
        if kind.is_float:
            return None
        found = self.computed(let, [self.range(a) for a in let.args])
        if found is None or (whole is not None and not (whole[0] <= found[0] and found[1] <= whole[1])):
            return None if kind in LONG else whole
        return found

    def computed(self, let: Let, args: Sequence[Range]) -> Range:
        """What comes of operands in these ranges, before it wraps; None where nothing is known."""
        if let.op == "iota":
            return (0, let.result.lanes - 1)
        if let.op == "select":
            args = args[1:]
        if any(a is None for a in args):
            return None
        known = [a for a in args if a is not None]
        match let.op:
            case "add":
                return (known[0][0] + known[1][0], known[0][1] + known[1][1])
            case "sub":
                return (known[0][0] - known[1][1], known[0][1] - known[1][0])
            case "mul":
                corners = [x * y for x in known[0] for y in known[1]]
                return (min(corners), max(corners))
            case "div" if known[1][0] > 0:
                corners = [_truncated(x, y) for x in known[0] for y in known[1]]
                return (min(corners), max(corners))
            case "rem" if known[1][0] > 0:
                most = known[1][1] - 1
                return (0 if known[0][0] >= 0 else -most, min(most, max(known[0][1], 0)))
            case "min":
                return (min(known[0][0], known[1][0]), min(known[0][1], known[1][1]))
            case "max":
                return (max(known[0][0], known[1][0]), max(known[0][1], known[1][1]))
            case "select" | "shuffle":
                return (min(a[0] for a in known), max(a[1] for a in known))
            case "and" if min(known[0][0], known[1][0]) >= 0:
                return (0, min(known[0][1], known[1][1]))
            case "shr" if known[1][0] == known[1][1] >= 0:
                return (known[0][0] >> known[1][0], known[0][1] >> known[1][0])
            case "shl" if known[1][0] == known[1][1] >= 0:
                return (known[0][0] << known[1][0], known[0][1] << known[1][0])
            case "neg":
                return (-known[0][1], -known[0][0])
            case "splat" | "extract":
                return known[0]
            case "cast" if not let.args[0].dtype.is_float:
                return known[0]
        return None


class _Analysis(Ranges):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.wide: set[Value] = set()
        self.exact: set[Value] = set()
        before = -1
        while before != len(self.wide) + len(self.exact):
            before = len(self.wide) + len(self.exact)
            for statement in self.statements:
                self.spread(statement)

    # What needs two words.

    def is_wide(self, value: Value) -> bool:
        return is_wide(value, self.wide)

    def fits(self, value: Value) -> bool:
        found = self.range(value)
        return found is not None and is_word(found[0]) and is_word(found[1])

    def spread(self, statement: Statement) -> None:
        match statement:
            case Let():
                self.let(statement)
            case Load(result=result) if result.dtype in LONG:
                self.wide.add(result)
            case Store(value=value) | Atomic(value=value) if value.dtype is DType.I64:
                self.exact.add(value)
            case For():
                for group in zip(statement.inits, statement.carried, statement.body.yields, statement.results):
                    self.join(group)
            case If(then=then, otherwise=otherwise, results=results):
                for sides in zip(then.yields, otherwise.yields, results):
                    self.join(sides)

    def join(self, group: Sequence[Value]) -> None:
        """Values that are one variable: all of them need two words, or none."""
        if group[-1].dtype is not DType.I64:
            return
        if any(v in self.exact for v in group):
            self.exact.update(group)
        if any(self.is_wide(v) for v in group) or any(v in self.exact and not self.fits(v) for v in group):
            self.wide.update(v for v in group if not isinstance(v, Const))

    def let(self, let: Let) -> None:
        longs = [a for a in let.args if a.dtype is DType.I64]
        if let.op in COMPARISONS:
            if any(map(self.is_wide, let.args)):
                self.exact.update(longs)
            return
        if let.op in ("cast", "bitcast") or let.result in self.exact or self.is_wide(let.result):
            self.exact.update(longs)
        if let.result.dtype is DType.I64 and self.needs_two(let):
            self.wide.add(let.result)

    def needs_two(self, let: Let) -> bool:
        if let.op == "bitcast":
            return True
        if let.op == "cast":
            return not self.fits(let.result)
        if any(self.is_wide(a) for a in let.args):
            return True
        return let.result in self.exact and not self.fits(let.result)


def of_type(dtype: DType) -> Range:
    """All that a type has. Positions that nothing is known of are those of a machine with 32 bits."""
    if dtype is DType.BOOL:
        return (0, 1)
    if dtype.is_float or dtype.is_storage or dtype is DType.U64:
        return None
    if dtype is DType.I64:
        return (WORD_MIN, WORD_MAX)
    bits = 8 * dtype.size_bytes
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
