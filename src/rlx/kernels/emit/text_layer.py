"""`TextLayer`: what all text emitters share: names of values, blocks, loops that carry values, branches.

A language says how a variable is declared, how an operation, an access and the head of a loop are spelled. Braces,
`if (..) {`, `} else {` and `break;` are the same in C, WGSL, MSL and OpenCL C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rlx.kernels.ir.loop_ir import (
    Atomic,
    Barrier,
    Block,
    Const,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Statement,
    Store,
    Value,
)


class TextLayer(ABC):
    """Appends lines; `names` has the variable of each value."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.indent = "    "
        self.count = 0

    # Spelling.

    @abstractmethod
    def at(self, value: Value) -> str:
        """A value or a literal where it is used; of a vector, the lane at hand."""

    @abstractmethod
    def declared(self, value: Value) -> str:
        """A declaration of a new variable for the value, without what ends it."""

    @abstractmethod
    def flag(self, name: str, condition: str) -> str:
        """A declaration of a bool that does not change."""

    @abstractmethod
    def loop_head(self, loop: For) -> str:
        """The line that begins a loop; names its index."""

    @abstractmethod
    def let(self, let: Let) -> None: ...

    @abstractmethod
    def load(self, load: Load) -> None: ...

    @abstractmethod
    def store(self, store: Store) -> None: ...

    @abstractmethod
    def atomic(self, atomic: Atomic) -> None: ...

    @abstractmethod
    def barrier(self) -> None: ...

    def copy(self, target: str, source: Value) -> None:
        """A variable of the source's type gets its value."""
        self.line(f"{target} = {self.at(source)};")

    @abstractmethod
    def loop_ends(self, loop: For) -> None:
        """After a loop, where its index is no longer known."""

    # Lines and names.

    def line(self, text: str) -> None:
        self.lines.append(f"{self.indent}{text}")

    def fresh(self, value: Value) -> str:
        name = self.names[value] = f"v{self.count}"
        self.count += 1
        return name

    # Statements.

    def block(self, block: Block) -> None:
        for statement in block.statements:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Let():
                self.let(statement)
            case Load():
                self.load(statement)
            case Store():
                self.store(statement)
            case Atomic():
                self.atomic(statement)
            case Barrier():
                self.barrier()
            case If():
                self.branch(statement)
            case For():
                self.loop(statement)

    def loop(self, loop: For) -> None:
        for init, carried in zip(loop.inits, loop.carried):
            self.line(f"{self.declared(carried)};")
            self.copy(self.names[carried], init)
        self.line(self.loop_head(loop))
        self.nested(loop.body, [self.names[c] for c in loop.carried], loop.carried)
        self.line("}")
        self.loop_ends(loop)
        for carried, result in zip(loop.carried, loop.results):
            self.names[result] = self.names[carried]

    def branch(self, branch: If) -> None:
        for result in branch.results:
            self.line(f"{self.declared(result)};")
        targets = [self.names[r] for r in branch.results]
        self.line(f"if ({self.at(branch.condition)}) {{")
        self.nested(branch.then, targets)
        if branch.otherwise.statements or branch.otherwise.yields:
            self.line("} else {")
            self.nested(branch.otherwise, targets)
        self.line("}")

    def nested(self, block: Block, targets: Sequence[str], carried: Sequence[Value] = ()) -> None:
        """A block in braces whose yields go to variables, all at once."""
        outer, self.indent = self.indent, f"{self.indent}    "
        self.block(block)
        if block.again is not None:
            # Looked at before the carried values, of which it may be one, become those of the next round.
            self.line(f"{self.flag('goes_on_', self.at(block.again))};")
        sources = list(block.yields)
        for position, source in enumerate(sources):
            # One that is a carried value of this loop would be overwritten before it is read.
            if source in carried and carried.index(source) != position:
                sources[position] = kept = Value(source.builder, source.type)
                self.line(f"{self.declared(kept)};")
                self.copy(self.names[kept], source)
        for target, source in zip(targets, sources):
            if isinstance(source, Const) or self.names[source] != target:
                self.copy(target, source)
        if block.again is not None:
            self.line("if (!goes_on_) break;" if self.has_bare_statements else "if (!goes_on_) { break; }")
        self.indent = outer

    # Whether an `if` may have a statement without braces.
    has_bare_statements = True


class GridLayer(TextLayer):
    """For machines that run parallel loops and loops over threads themselves: each has one iteration, by its number."""

    @abstractmethod
    def number(self, loop: For) -> None:
        """The index of such a loop as a constant: the number of the block, or of the thread in it."""

    def block_loop(self, loop: For, is_last: bool) -> None:
        self.number(loop)
        self.block(loop.body, is_last)

    def block(self, block: Block, is_last: bool = False) -> None:
        """Statements; nothing follows the last of them if the block `is_last`."""
        for statement in block.statements:
            ends = is_last and statement is block.statements[-1]
            if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
                self.block_loop(statement, ends)
            elif isinstance(statement, For) and statement.kind is LoopKind.THREADS:
                self.number(statement)
                self.block(statement.body)
                if not ends:
                    self.barrier()
            else:
                self.statement(statement)
