"""Split-K: products of a few rows and columns over a long axis, in parts that threads share, and their sum.

    a[m, k] @ b[k, n]    ->    sum over p of a[m, p, k/p] @ b[p, k/p, n]

The result is a block or two, so that without this one thread would do all of it. Parts follow from the shape alone, so
that results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import reshape, transpose

# Elements of a result that is one block or two; the longest part, and how many there are at most and at least.
FEW, LONG, MOST_PARTS, LEAST_PARTS = 64 * 64, 2048, 16, 4


def long_products(graph: Graph) -> Graph:
    """The graph with such products in parts; the same if there are none."""
    if not any(_parts(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        parts = _parts(graph, node)
        if not parts:
            return None
        a, b = operands
        (m, k), n = a.shape, b.shape[1]
        rows = transpose(reshape(a, (m, parts, k // parts)), (1, 0, 2))
        return reduce_sum(MatMul()(rows, reshape(b, (parts, k // parts, n))), 0)

    return rebuild(graph, visit, "long_products").graph


def _parts(graph: Graph, node: Node) -> int:
    """Into how many parts a product is cut; 0: it stays whole."""
    op = node.op
    if not isinstance(op, MatMul) or op != MatMul():
        return 0
    a, b = (graph.shape(i) for i in node.inputs)
    # Sums of parts that are rounded would be less exact.
    is_exact = a.dtype is b.dtype is node.shape.dtype and a.dtype.accumulator is a.dtype and not a.dtype.is_complex
    if not is_exact or not (a.is_static and b.is_static and a.rank == b.rank == 2):
        return 0
    (m, k), (_, n) = a.static_dims, b.static_dims
    # One row or column has a way of its own.
    if min(m, n) < 2 or m * n > FEW or k < LEAST_PARTS * LONG:
        return 0
    counts = (p for p in range(min(MOST_PARTS, k // LONG), LEAST_PARTS - 1, -1) if k % p == 0)
    return next(counts, 0)
