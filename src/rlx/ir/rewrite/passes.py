"""Passes: named transformations of graphs, and the runner that times, checks and shows them."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rlx.errors import InternalError, RlxError
from rlx.ir.graph import Graph
from rlx.ir.provenance import stamp_pass_origins
from rlx.ir.text.graph_text import parse, show
from rlx.ir.verify import check
from rlx.knobs import knobs


class Pass(ABC):
    """Valid graph in, valid graph out; the input is not changed. Options are fields of the pass."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph) -> Graph: ...


class PassRecord(NamedTuple):
    """What one pass did: how long it took, and the node counts before and after."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool

    def __str__(self) -> str:
        change = f"{self.nodes_before} -> {self.nodes_after} nodes" if self.changed else "no change"
        return f"{self.name:32} {1e3 * self.seconds:8.2f} ms  {change}"


def run_passes(graph: Graph, passes: Sequence[Pass], records: list[PassRecord] | None = None) -> Graph:
    """Run passes in order. `RLX_DEBUG` 2 prints what each did, 3 also the graph after; `RLX_VERIFY` says how much to
    check: 1 the result, 2 the graph after every pass and its text.

    A pass that fails or leaves an invalid graph raises InternalError with the program before it.
    """
    debug, level = knobs.debug, knobs.verify
    for step in passes:
        start = time.perf_counter()
        after = _run_one(graph, step, level)
        if after is not graph:
            stamp_pass_origins(after, step.name)
        record = PassRecord(step.name, time.perf_counter() - start, len(graph), len(after), after is not graph)
        if records is not None:
            records.append(record)
        if debug >= 2:
            print(record, file=sys.stderr)
        if debug >= 3 and record.changed:
            print(show(after, locations=True), file=sys.stderr)
        graph = after
    if level == 1:
        check(graph, "the last pass")
    return graph


def _run_one(graph: Graph, step: Pass, level: int) -> Graph:
    try:
        after = step.run(graph)
        if level >= 2:
            check(after, step.name)
            # The text is what a bug report carries, so it must always read back.
            _check_text(after)
        return after
    except RlxError:
        raise
    except Exception as error:
        raise InternalError(
            f"the pass {step.name} failed: {type(error).__name__}: {error}\nThe program before it was:\n{show(graph)}"
        ) from error


def _check_text(graph: Graph) -> None:
    from rlx.ir.text.graph_text import large_constants

    if parse(show(graph), large_constants(graph), allow_lowered=True) != graph:
        raise InternalError(f"the text of @{graph.name} does not read back as the same program")
