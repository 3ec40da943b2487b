"""The largest few of long rows on GPUs: those of parts of a row that a block looks through, then those of them.

    top_k(x[.., w])    ->    top_k of top_of_parts(x[.., w]), looked up where they came from

Parts are in order, and so are equal elements of a part, so that ties are decided as in the whole row. Rows of which
the length is not known, and numbers of eight bytes, are sorted.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.lowered.top_of_parts import TopOfParts
from rlx.ops.reduction.sort import TopK, TopKWithValues
from rlx.ops.shape.selection import take_along_axis

# What a block looks through at most, and what parts of few rows have, so that there are more blocks.
LONGEST, SHORTER = 8192, 4096
FEW_PARTS = 132
# Rows up to this length are sorted by a block, of numbers of eight bytes too.
SORTED = 2048
# More elements of a row than this are found by sorting it.
MOST_KEPT = 64


def top_parts(graph: Graph) -> Graph:
    """The graph with the largest few of long rows found part by part; the same if there are none."""
    if not any(_is_long(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _is_long(graph, node):
            return None
        (x,) = operands
        assert isinstance(node.op, TopK | TopKWithValues)
        values, ids = _largest(x, node.op.k)
        return ids if isinstance(node.op, TopK) else (values, ids)

    return rebuild(graph, visit, "top_parts").graph


def _largest(x: Any, k: int) -> tuple[Any, Any]:
    width = x.shape[-1]
    if not isinstance(width, int) or x.dtype.size_bytes > 4:
        values, ids = TopKWithValues(k).decompose(x)
        return values, ids
    if width <= LONGEST:
        values, ids = TopKWithValues(k)(x)
        return values, ids
    rows = x.size // width if isinstance(x.size, int) else FEW_PARTS
    longest = SHORTER if rows * (width // LONGEST) < FEW_PARTS else LONGEST
    values, ids = TopOfParts(k, -(-width // longest))(x)
    best, place = _largest(values, k)
    return best, take_along_axis(ids, place, -1)


def _is_long(graph: Graph, node: Node) -> bool:
    if not isinstance(node.op, TopK | TopKWithValues) or not 0 < node.op.k <= MOST_KEPT:
        return False
    x = graph.shape(node.inputs[0])
    width = x.dims[-1]
    if x.dtype.size_bytes > 4 or not isinstance(width, int):
        return not isinstance(width, int) or width > SORTED
    return width > LONGEST
