"""Values that go through memory from one kernel to another, each with the reason why they were not kept inside.

The reasons are read off the kernels themselves, so they hold for every way of grouping.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from rlx.compile.lir_lives import steps_of, viewed_values
from rlx.ir.graph import Graph, NodeId
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.provenance import SourceLocation
from rlx.ir.shape import Size


class BoundaryReason(enum.StrEnum):
    """Why a value is stored between two kernels; the first that applies."""

    HostCall = "host_call"
    IsResult = "is_result"
    SeveralReaders = "several_readers"
    WholeOperand = "whole_operand"
    OtherShape = "other_shape"
    NotJoined = "not_joined"

    @property
    def hint(self) -> str:
        """What a user can do about it."""
        return _HINTS[self]


_HINTS = {
    BoundaryReason.HostCall: "the op has no generated kernel here and runs by its definition on the host",
    BoundaryReason.IsResult: "it is returned, so it has to be stored; drop it from the outputs if nobody needs it",
    BoundaryReason.SeveralReaders: "several kernels read it; computing it in each of them would repeat work",
    BoundaryReason.WholeOperand: "the reader goes over its elements many times, so it is computed once beforehand",
    BoundaryReason.OtherShape: "producer and reader run over different index spaces",
    BoundaryReason.NotJoined: "the kernels could not be put into one without changing the order of others",
}

# Kinds whose operands are read again and again: every row of one meets every column of the other.
_REUSING = ("matmul", "attention", "conv")


class Boundary(NamedTuple):
    """One value on its way from kernel `producer` to kernel `reader`."""

    value: NodeId
    producer: int
    reader: int
    reason: BoundaryReason
    detail: str
    byte_size: Size
    source: SourceLocation | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.value} from k{self.producer} to k{self.reader}{where}: {self.reason}{detail}"


def find_boundaries(lir: LirModule) -> list[Boundary]:
    """Every value that one kernel stores and another reads; views are looked through."""
    graph, steps, views = lir.as_graph(), steps_of(lir), viewed_values(lir)
    producer = {n: i for i, k in enumerate(steps) for n in k.outputs if n not in views}
    readers: dict[NodeId, list[int]] = {}
    for number, kernel in enumerate(steps):
        if kernel.kind != "view":
            for value in dict.fromkeys(views.get(i, i) for i in kernel.inputs):
                readers.setdefault(value, []).append(number)
    results = {views.get(o, o) for o in graph.outputs}
    found = []
    for value, start in producer.items():
        for end in readers.get(value, ()):
            reason, detail = _reason(graph, value, steps[start], steps[end], len(readers[value]), value in results)
            node = graph.nodes[value]
            size: Size = sum((s.byte_size for s in node.shapes), start=0)
            source = node.origin.source if node.origin else None
            found.append(Boundary(value, start, end, reason, detail, size, source))
    return found


def _reason(
    graph: Graph, value: NodeId, producer: LirKernel, reader: LirKernel, readers: int, is_result: bool
) -> tuple[BoundaryReason, str]:
    for kernel in (producer, reader):
        if kernel.kind == "call":
            return BoundaryReason.HostCall, graph.nodes[kernel.nodes[0]].op.mnemonic
    if is_result:
        return BoundaryReason.IsResult, ""
    if readers > 1:
        return BoundaryReason.SeveralReaders, f"{readers} kernels"
    head = graph.nodes[reader.nodes[0]]
    if reader.kind in _REUSING and value in head.inputs:
        return BoundaryReason.WholeOperand, head.op.mnemonic
    made, read = graph.nodes[value].shapes[0].dims, graph.nodes[reader.nodes[-1]].shapes[0].dims
    if made != read:
        return BoundaryReason.OtherShape, f"{_dims(made)} and {_dims(read)}"
    return BoundaryReason.NotJoined, ""


def _dims(dims: tuple[object, ...]) -> str:
    return f"[{','.join(str(d) for d in dims)}]"
