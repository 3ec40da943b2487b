"""Products with pseudo-inverses of long matrices: `pinv(A) b -> pinv(R) (Qᵀ b)`.

The pseudo-inverse of A, as large as A, is never formed.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.lower.sized_factors import TRIDIAGONAL, has_room, qr_factors, unit_of
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.linalg.contraction import MatMul, matmul
from rlx.ops.linalg.matrix_functions import Pinv, pinv_by_svd
from rlx.ops.pointwise.conversion import cast
from rlx.ops.shape.movement import swapaxes


def least_squares(graph: Graph) -> Graph:
    """The graph with such products; the same if there are none."""
    if not any(_has_form(graph, n) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not _has_form(graph, node):
            return None
        inverse, b = operands
        return _solution(inverse.graph.tensor(inverse.node.inputs[0]), b, inverse.node.op)

    return rebuild(graph, visit, "least_squares").graph


def _has_form(graph: Graph, node: Node) -> bool:
    """Whether a matrix has many more rows than columns, and few vectors are multiplied with its pseudo-inverse."""
    if not isinstance(node.op, MatMul) or node.op.attributes.get("out_dtype") is not None:
        return False
    inverse, b = (graph.nodes[i] for i in node.inputs)
    if not isinstance(inverse.op, Pinv) or inverse.shape.dtype.is_complex:
        return False
    a = graph.tensor(inverse.inputs[0])
    sizes = [s for s in (*a.shape[-2:], b.shape.dims[-1]) if isinstance(s, int)]
    if len(sizes) < 3 or a.shape[:-2] != b.shape.dims[:-2]:
        return False
    rows, columns, vectors = sizes
    return columns >= TRIDIAGONAL and rows * 5 >= columns * 8 and 2 * vectors <= columns and has_room(a, columns)


def _solution(a: Any, b: Any, op: Pinv) -> Any:
    wide = cast(a, DType.F64)
    unit = unit_of(wide)
    # Singular values of A, which are often asked for too, are computed from the same R.
    q, r = qr_factors(wide / unit, a.shape[-1])
    inverse = pinv_by_svd(r, op.tolerance(a.shape, a.dtype))
    return cast(matmul(inverse, matmul(swapaxes(q, -1, -2), cast(b, DType.F64))) / unit, b.dtype)
