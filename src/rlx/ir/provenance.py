"""Where a node came from: the HIR block, the pass that made it, and the user's own source line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class SourceLocation(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def user_location() -> SourceLocation | None:
    """The innermost line on the call stack that is not part of rlx itself."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return SourceLocation(code.co_filename, frame.f_lineno, code.co_name)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


class NodeOrigin(NamedTuple):
    """Provenance of one node; every field is optional."""

    hir: int | None = None
    label: str | None = None
    pass_name: str | None = None
    source: SourceLocation | None = None

    @staticmethod
    def from_hir(hir: int, label: str | None) -> NodeOrigin:
        return NodeOrigin(hir=hir, label=label)

    @staticmethod
    def inherit_from_graph(graph: Graph, inputs: tuple[int, ...], pass_name: str | None) -> NodeOrigin:
        """First HIR id, label and source found among the inputs; their node names stand in for a missing label."""
        hir = label = source = None
        for i in inputs:
            node = graph.nodes[i]
            origin = node.origin or NodeOrigin()
            hir = origin.hir if hir is None else hir
            label = label or origin.label
            source = source or origin.source
        label = label or next((graph.nodes[i].name for i in inputs if graph.nodes[i].name), None)
        return NodeOrigin(hir, label, pass_name, source)

    def __str__(self) -> str:
        parts = []
        if self.hir is not None:
            parts.append(f"hir=h{self.hir}")
        if self.label:
            parts.append(f'"{self.label}"')
        if self.pass_name:
            parts.append(f"pass={self.pass_name}")
        return ", ".join(parts) or "—"


def stamp_pass_origins(graph: Graph, pass_name: str) -> None:
    """Give every node without an origin one inherited from its inputs, attributed to `pass_name`."""
    for node in graph.nodes:
        if node.origin is None:
            node.origin = NodeOrigin.inherit_from_graph(graph, node.inputs, pass_name)


def node_label(graph: Graph, node_id: int) -> str:
    """A short name for messages: origin label, HIR id, node name, or `%id`."""
    node = graph.nodes[node_id]
    if node.origin is not None and node.origin.label:
        return node.origin.label
    if node.origin is not None and node.origin.hir is not None:
        return f"h{node.origin.hir}"
    return node.name or f"%{int(node_id)}"
