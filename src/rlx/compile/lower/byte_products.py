"""Products of f8 that programs write with casts, in the form in which tensor cores take them.

    cast(a, bf16) @ transpose(cast(b, bf16))    ->    byte_matmul(a, b)        for a[.., k] and b[n, k] of f8

Casts from f8 are exact, so both say the same; what differs is how exactly sums are formed, which a product with
`precision="high"` or `"highest"` does not leave to the device.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.fuse.index_maps import is_view
from rlx.ir.dtype import BYTE_FLOATS
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.byte_products import ByteMatMul
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.shape.movement import Transpose

# The copy engine reads rows that begin at multiples of so many bytes.
ROW_BYTES = 16
_TURN = (1, 0)


def byte_products(graph: Graph) -> Graph:
    """The graph with its products of f8 as such; the same if there are none."""
    if not any(node.shapes[0].dtype in BYTE_FLOATS for node in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        if not isinstance(node.op, MatMul) or node.op.precision != "default" or not node.shape.dtype.is_float:
            return None
        a, b = _bytes_below(operands[0]), _rows_below(operands[1])
        if a is None or b is None:
            return None
        k = a.shape[-1]
        return ByteMatMul(node.shape.dtype)(a, b) if isinstance(k, int) and k > 0 and k % ROW_BYTES == 0 else None

    # Casts that nobody reads any more.
    return remove_dead_nodes(rebuild(graph, visit, "byte_products").graph).graph


def _bytes_below(x: Tensor) -> Tensor | None:
    """The f8 that a tensor is cast from, where that lies in memory as it is."""
    if not isinstance(x.node.op, Cast):
        return None
    below = Tensor(x.graph, x.node.inputs[0])
    is_stored = below.dtype in BYTE_FLOATS and not is_view(below.graph, below.node)
    return below if is_stored and below.ndim >= 2 else None


def _rows_below(x: Tensor) -> Tensor | None:
    """The rows of f8 of which a matrix is the columns, cast and turned in either order."""
    is_turned = False
    if isinstance(x.node.op, Transpose) and tuple(x.node.op.perm) == _TURN:
        is_turned, x = True, Tensor(x.graph, x.node.inputs[0])
    if not isinstance(x.node.op, Cast):
        return None
    below = Tensor(x.graph, x.node.inputs[0])
    if not is_turned and isinstance(below.node.op, Transpose) and tuple(below.node.op.perm) == _TURN:
        is_turned, below = True, Tensor(x.graph, below.node.inputs[0])
    is_stored = below.dtype in BYTE_FLOATS and not is_view(below.graph, below.node)
    return below if is_turned and is_stored and below.ndim == 2 else None
