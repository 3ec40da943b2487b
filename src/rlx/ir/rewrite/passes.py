"""Passes: named transformations of graphs, and the runner that times, checks and shows them."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rlx.errors import InternalError, RlxError
from rlx.ir.graph import Graph
from rlx.ir.provenance import stamp_pass_origins
from rlx.ir.text.graph_text import parse, show
from rlx.ir.verify import check
from rlx.knobs import knobs

if TYPE_CHECKING:
    from rlx.ir.lir import LirModule


class Pass(ABC):
    """Valid graph in, valid graph out; the input is not changed. Options are fields of the pass."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph) -> Graph: ...


class PassRecord(NamedTuple):
    """What one pass did: how long it took, and the node counts before and after. In a compile `part` says of which of
    its programs, and `within` names the step that a pass was a part of."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool
    part: str = ""
    within: str = ""

    def __str__(self) -> str:
        counts = f"{self.nodes_before} -> {self.nodes_after} nodes"
        change = "no change" if not self.changed else counts if self.nodes_before != self.nodes_after else "changed"
        name = f"{'  ' if self.within else ''}{self.name}{f' ({self.part})' if self.part else ''}"
        return f"{name:32} {1e3 * self.seconds:8.2f} ms  {change}"


def shown_detail() -> int:
    """What `RLX_DEBUG` asks to see of passes; `RLX_VERBOSE` asks for their log, too."""
    return max(knobs.debug, 2 if knobs.verbose else 0)


class Recorded(NamedTuple):
    """A graph after some passes, and what each of them did."""

    graph: Graph
    records: tuple[PassRecord, ...]


def run_passes(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """Run passes in order. `RLX_DEBUG` 2 prints what each did, 3 also the graph after; `RLX_VERIFY` says how much to
    check: 1 the result, 2 the graph after every pass and its text.

    A pass that fails or leaves an invalid graph raises InternalError with the program before it.
    """
    graph = run_recorded(graph, passes).graph
    if knobs.verify == 1:
        check(graph, "the last pass")
    return graph


def run_recorded(graph: Graph, passes: Sequence[Pass]) -> Recorded:
    """`run_passes` with what each pass did; the result is checked by the caller."""
    debug, level = shown_detail(), knobs.verify
    records = []
    for step in passes:
        start = time.perf_counter()
        after = _run_one(graph, step, level)
        if after is not graph:
            stamp_pass_origins(after, step.name)
        record = PassRecord(step.name, time.perf_counter() - start, len(graph), len(after), after is not graph)
        records.append(record)
        if debug >= 2:
            print(record._replace(within="passes"), file=sys.stderr)
        if debug >= 3 and record.changed:
            print(show(after, locations=True), file=sys.stderr)
        graph = after
    return Recorded(graph, tuple(records))


def _run_one(graph: Graph, step: Pass, level: int) -> Graph:
    try:
        after = step.run(graph)
        if level >= 2:
            check(after, step.name)
            # The text is what a bug report carries, so it must always read back.
            check_text(after)
        return after
    except RlxError:
        raise
    except Exception as error:
        raise InternalError(
            f"the pass {step.name} failed: {type(error).__name__}: {error}\nThe program before it was:\n{show(graph)}"
        ) from error


def check_text(program: Graph | LirModule) -> None:
    """Raise InternalError unless the text of a program reads back as the same program."""
    from rlx.ir.text.graph_text import large_constants

    if isinstance(program, Graph):
        is_same = parse(show(program), large_constants(program), allow_lowered=True) == program
    else:
        from rlx.ir.text.lir_text import parse_lir

        text = str(program)
        is_same = str(parse_lir(text, large_constants(program.as_graph()))) == text
    if not is_same:
        raise InternalError(f"the text of @{program.name} does not read back as the same program")
