"""Addresses of processors: what is outside of the innermost loop, then what changes inside, then a literal.

Offsets of kernels are sums: the start of a row, a column, a step of an unrolled loop. As they are written, the literal
may be added first and multiplied later, `(row + 3) * 64 + column`, and each of the rows of a tile then has a number of
its own. Taken apart and put together in this order, they all share one register and differ by what an instruction adds
for nothing. LLVM's search for such forms (loop strength reduction) took up to half of the time of a compile.

What is computed of indices is written when something else than an address wants it.
"""

from __future__ import annotations

from rlx.kernels.emit.llvm_ops import PureOps
from rlx.kernels.emit.llvm_text import constant_text
from rlx.kernels.ir.index_facts import Fact, counted, exactly, of_operation
from rlx.kernels.ir.loop_ir import INDEX, Const, For, Let, Value

# Values with their factors, in the order in which they were met.
Terms = tuple[tuple[Value, int], ...]

_SUMS = frozenset({"add", "sub", "mul"})
_BOUNDED = _SUMS | {"div", "rem", "min", "max"}
# What has more terms is a value by itself, and so is what goes beyond what an instruction adds.
MOST_TERMS, FAR = 6, 1 << 28


class AddressOps(PureOps):
    """Appends instructions for addresses, and keeps back those for indices until they are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[Value, tuple[Terms, int]] = {}
        self._numbers: dict[Value, int] = {}
        # Statements that nobody has wanted yet, and what stands in the text in their place.
        self._waiting: dict[Value, tuple[str, Let]] = {}
        self._late: dict[str, str] = {}
        # What has been computed in the open blocks, by what it is; what each block has added, which ends with it.
        self._known: dict[object, str | Value] = {}
        self._added: list[list[object]] = [[]]
        self._lets: dict[Value, Let] = {}
        self._loops: dict[Value, For] = {}
        self._facts: dict[Value, Fact] = {}
        # How many loops are around a value, and around what is appended now.
        self._depths: dict[Value, int] = {}
        self.depth = 0
        # Of these loops: what stands in the text before it, and the number of its block.
        self._entered: list[tuple[str, int]] = []

    def written(self) -> list[str]:
        """The lines of the function, with those that were kept back in their places."""
        return [text for line in self.lines if (text := self._late.get(line, line))]

    def ref(self, value: Value) -> str:
        name = self.names.get(value)
        if name is not None:
            return name
        if isinstance(value, Const):
            return constant_text(value)
        place, let = self._waiting.pop(value)
        name = self.names[value] = self.fresh()
        self._late[place] = f"  {name} = {let.op} i64 {self.ref(let.args[0])}, {self.ref(let.args[1])}"
        return name

    def place(self) -> str:
        """A line that may be written later."""
        place = f"late.{len(self._late)}"
        self._late[place] = ""
        self.lines.append(place)
        return place

    def index_let(self, let: Let) -> bool:
        """Take a sum of indices, or a product with a literal; whether it is one."""
        if let.result.type != INDEX:
            return False
        self._lets[let.result] = let
        if let.op not in _SUMS:
            return False
        self._depths[let.result] = self.depth
        terms, literal = found = self._sum(let)
        self._sums[let.result] = found
        if not literal and max(self._depths.get(v, 0) for v, _ in terms) == self.depth:
            self._remember(terms, let.result)
        self._waiting[let.result] = self.place(), let
        return True

    def define(self, value: Value) -> None:
        """Note how many loops are around a value that is no sum."""
        self._depths[value] = self.depth

    def begin_loop(self, loop: For, place: str) -> None:
        self.depth += 1
        self._entered.append((place, len(self._added)))
        self._loops[loop.index] = loop
        for value in (loop.index, *loop.carried):
            self.define(value)

    def end_loop(self) -> None:
        self.depth -= 1
        self._entered.pop()

    def fact(self, index: Value) -> Fact:
        found = self._facts.get(index)
        if found is None:
            found = self._facts[index] = self._found_fact(index)
        return found

    def _found_fact(self, index: Value) -> Fact:
        let, loop = self._lets.get(index), self._loops.get(index)
        if let is not None and let.op == "neg":
            return of_operation("sub", exactly(0), self.fact(let.args[0]))
        if let is not None and let.op in _BOUNDED:
            return of_operation(let.op, self.fact(let.args[0]), self.fact(let.args[1]))
        if loop is not None:
            return counted(self.fact(loop.start), self.fact(loop.stop), self.fact(loop.step))
        return super().fact(index)

    def open_block(self) -> None:
        self._added.append([])

    def close_block(self) -> None:
        for key in self._added.pop():
            del self._known[key]

    def _remember(self, key: object, what: str | Value) -> None:
        if key not in self._known:
            self._known[key] = what
            self._added[-1].append(key)

    def _sum(self, let: Let) -> tuple[Terms, int]:
        x, y = let.args
        (first, a), (second, b) = self._parts(x), self._parts(y)
        alone = ((let.result, 1),), 0
        if let.op == "add":
            terms, literal = self._merged(first, second), a + b
        elif let.op == "sub":
            if second:
                return alone
            terms, literal = first, a - b
        else:
            if first and second:
                return alone
            factor = a if not first else b
            terms, literal = tuple((v, n * factor) for v, n in first or second), a * b
        if not 0 < len(terms) <= MOST_TERMS or any(abs(n) > FAR for _, n in terms) or abs(literal) > FAR:
            return alone
        return terms, literal

    def _parts(self, value: Value) -> tuple[Terms, int]:
        if isinstance(value, Const):
            return (), int(value.literal)
        return self._sums.get(value) or (((value, 1),), 0)

    def _merged(self, first: Terms, second: Terms) -> Terms:
        factors = dict(first)
        for value, factor in second:
            factors[value] = factors.get(value, 0) + factor
        number = self._numbers
        for value in factors:
            number.setdefault(value, len(number))
        return tuple(sorted(((v, n) for v, n in factors.items() if n), key=lambda term: number[term[0]]))

    def element_address(self, element: str, pointer: str, offset: Value, inbounds: str) -> str:
        """Where the element at an offset lies: a step for each of the loops that the offset changes in, outermost
        first, each where it changes."""
        if offset.type != INDEX or offset not in self._sums:
            return self.emit(f"getelementptr{inbounds} {element}, ptr {pointer}, {self.typed(offset)}")
        terms, literal = self._sums[offset]
        by_depth: dict[int, list[tuple[Value, int]]] = {}
        for term in terms:
            by_depth.setdefault(min(self._depths.get(term[0], 0), self.depth), []).append(term)
        for depth in sorted(by_depth):
            part = tuple(by_depth[depth])
            text = f"getelementptr {element}, ptr {pointer}, i64 {self._total(depth, part)}"
            pointer = self._placed(depth, (element, pointer, part), text)
        if literal:
            text = f"getelementptr {element}, ptr {pointer}, i64 {literal}"
            pointer = self._placed(self.depth, (element, pointer, literal), text)
        return pointer

    def _total(self, depth: int, terms: Terms) -> str:
        """The sum of terms that change in the loop at a depth."""
        (value, factor), rest = terms[-1], terms[:-1]
        if not rest and factor == 1:
            return self.ref(value)
        found = self._known.get(terms)
        if isinstance(found, Value):
            return self.ref(found)
        if found is not None:
            return found
        if rest:
            text = f"add i64 {self._total(depth, rest)}, {self._total(depth, terms[-1:])}"
        else:
            text = f"mul i64 {self.ref(value)}, {factor}"
        return self._placed(depth, terms, text)

    def _placed(self, depth: int, key: object, text: str) -> str:
        """An instruction before the loop in which nothing changes that it depends on; the one that is there already."""
        found = self._known.get(key)
        if isinstance(found, str):
            return found
        if depth >= self.depth:
            name = self.emit(text)
            self._remember(key, name)
            return name
        place, block = self._entered[depth]
        name = self.fresh()
        self._late[place] += f"\n  {name} = {text}" if self._late[place] else f"  {name} = {text}"
        self._known[key] = name
        self._added[block].append(key)
        return name
