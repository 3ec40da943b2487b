"""The largest few of long rows on GPUs: those of parts of a row that a block sorts, then those of them.

    top_k(x[.., w])    ->    top_k of the top_k of x[.., w/part, part], looked up where they came from

Parts are in order, and so are equal elements of a part, so that ties are decided as in the whole row.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Size
from rlx.ops.define.operands import same_graph
from rlx.ops.reduction.sort import TopK, TopKWithValues
from rlx.ops.shape.creation import iota
from rlx.ops.shape.movement import reshape
from rlx.ops.shape.selection import take_along_axis

# Elements of a part at least, and at most as many as a block sorts.
SHORTEST, LONGEST = 512, 4096


def top_parts(graph: Graph) -> Graph:
    """The graph with the largest few of long rows found part by part; the same if there are none."""
    if not any(_part(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        part = _part(graph, node)
        if not part:
            return None
        (x,) = operands
        assert isinstance(node.op, TopK | TopKWithValues)
        values, ids = _of_parts(x, node.op.k, part)
        return ids if isinstance(node.op, TopK) else (values, ids)

    return rebuild(graph, visit, "top_parts").graph


def _of_parts(x: Any, k: int, part: int) -> tuple[Any, Any]:
    *lead, width = x.shape
    cut: tuple[Size, ...] = (*lead, width // part, part)
    values, inside = TopKWithValues(k)(reshape(x, cut))
    with same_graph(x):
        ids = inside + iota(inside.shape, DType.I32, -2) * part
    flat = (*lead, width // part * k)
    best, place = TopKWithValues(k)(reshape(values, flat))
    return best, take_along_axis(reshape(ids, flat), place, -1)


def _part(graph: Graph, node: Node) -> int:
    """The length of the parts of a row; 0 where it stays whole."""
    if not isinstance(node.op, TopK | TopKWithValues) or not node.op.k:
        return 0
    x = graph.shape(node.inputs[0])
    width = x.dims[-1]
    if not isinstance(width, int) or width <= LONGEST or x.dtype.size_bytes > 4:
        return 0
    fits = (p for p in range(LONGEST, max(SHORTEST, 8 * node.op.k) - 1, -1) if width % p == 0)
    return next(fits, 0)
