"""Where a node came from: the HIR block, the pass that made it, the user's own source line, and where in a model it is.

    with named_scope("layer 3"), named_scope("attention"):
        y = attend(x)                                    # its nodes are in `layer 3 / attention`
        with written_as("cache write"):
            keys = scatter(keys, k, places)              # reports call them so, whatever becomes of them

Compilers rewrite ops; `written` keeps what an op was when somebody wrote it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlx.ir.graph import Graph
    from rlx.ir.op import Op

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


class Place(NamedTuple):
    """The part of a model that is being built, and what its ops are called; None where nobody has said so."""

    scope: str | None = None
    written: str | None = None


_NOWHERE = Place()
_place: ContextVar[Place] = ContextVar("rlx_place", default=_NOWHERE)


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Inside, in this thread or task, nodes are marked as belonging to this part of the surrounding scope."""
    around = _place.get()
    token = _place.set(around._replace(scope=f"{around.scope} / {name}" if around.scope else name))
    try:
        yield
    finally:
        _place.reset(token)


@contextmanager
def written_as(name: str) -> Iterator[None]:
    """Inside, in this thread or task, reports call the ops that are built by this name: together they are one thing."""
    token = _place.set(_place.get()._replace(written=name))
    try:
        yield
    finally:
        _place.reset(token)


def is_written() -> bool:
    """Whether somebody has said what the ops that are built now are called."""
    return _place.get().written is not None


class NodeOrigin(NamedTuple):
    """Provenance of one node; every field is optional.

    `written` is what the node, or the one that it was made from, was called in the program as somebody wrote it; None:
    as its op is called.
    """

    hir: int | None = None
    label: str | None = None
    pass_name: str | None = None
    source: SourceLocation | None = None
    scope: str | None = None
    written: str | None = None

    @staticmethod
    def here() -> NodeOrigin:
        """The origin of a node that is being built now."""
        return NodeOrigin(None, None, None, user_location(), *_place.get())

    def rewritten(self, pass_name: str, op: Op) -> NodeOrigin:
        """The origin of what a pass makes of a node with this one and this op."""
        # What fusion has formed is known by its parts.
        written = self.written or (None if op.only_moves or op.is_fused else op.mnemonic)
        return NodeOrigin(self.hir, self.label, pass_name, self.source, self.scope, written)

    @staticmethod
    def from_hir(hir: int, label: str | None) -> NodeOrigin:
        return NodeOrigin(hir=hir, label=label)

    @staticmethod
    def inherit_from_graph(graph: Graph, inputs: tuple[int, ...], pass_name: str | None) -> NodeOrigin:
        """First HIR id, label and source found among the inputs; their node names stand in for a missing label."""
        hir = label = source = scope = None
        for i in inputs:
            node = graph.nodes[i]
            origin = node.origin or NodeOrigin()
            hir = origin.hir if hir is None else hir
            label = label or origin.label
            source = source or origin.source
            scope = scope or origin.scope
        label = label or next((graph.nodes[i].name for i in inputs if graph.nodes[i].name), None)
        return NodeOrigin(hir, label, pass_name, source, scope)

    def __str__(self) -> str:
        parts = []
        if self.hir is not None:
            parts.append(f"hir=h{self.hir}")
        if self.label:
            parts.append(f'"{self.label}"')
        if self.pass_name:
            parts.append(f"pass={self.pass_name}")
        if self.scope and self.scope != self.label:
            parts.append(f"in {self.scope}")
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
