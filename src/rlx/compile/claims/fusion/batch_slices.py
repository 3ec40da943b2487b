"""What the batch region passes share: the same op over axis-0 slices of one tensor, put together again."""

from __future__ import annotations

from rlx.compile.claims.fusion.patterns import cut_of
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match
from rlx.ir.shape import normalize_axis


def mapped_slices(m: Match) -> list[Node]:
    """The operands of a concat along axis 0, when all are one unary op on equal slices of one tensor; else none.

    Each is read by the concat alone, so that it can become part of something larger.
    """
    nodes = [m.graph.nodes[i] for i in m.node.inputs]
    is_axis_0 = normalize_axis(m.op.axis, m.node.shape.rank, "concat") == 0
    if not is_axis_0 or len(set(m.node.inputs)) < max(2, len(nodes)):
        return []
    first = nodes[0]
    if any(n.op != first.op or len(n.inputs) != 1 or not m.is_only_use(n) for n in nodes):
        return []
    cuts = [cut_of(m.graph, m.input_of(node, 0)) for node in nodes]
    if any(c is None or cuts[0] is None or c[:2] != (cuts[0].source, 0) or c.length != cuts[0].length for c in cuts):
        return []
    return nodes
