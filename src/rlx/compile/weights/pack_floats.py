"""Weights of products in panels: laid out once, when they are set, the way kernels read them.

    x @ B    ->    P = transpose(reshape(pad(B), [K, panels, width]), (1, 0, 2))        in `prepare`
                   x @ narrow(reshape(transpose(P, (1, 0, 2)), [K, panels*width]), N)   in `main`

Both say the same: the second is the first written in panels and read back, so that every pass and interpreter knows
what it means without knowing panels. A kernel of the product recognises the views and reads P as it lies. Of a weight
that is stored in a narrower float, `cast(B, f32)`, the panels are of B: the cast stays behind the views, and kernels
widen what they have read.

Where a machine adds two products of a type at a time, products of that type read their weights in panels of pairs, in
which two neighbours along K lie side by side: [panels, K/2, width, 2].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from rlx.compile.weights.sink_casts import widened_dtype
from rlx.compile.weights.split import fixed_sources
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Shape, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.int8_products import Int8Lines
from rlx.ops.lowered.int16_products import Int16Panels
from rlx.ops.lowered.quantized_panels import QuantPanels
from rlx.ops.lowered.window_products import WindowProduct
from rlx.ops.shape.movement import Narrow, Reshape, Transpose, narrow, pad, reshape

# The width of the panels in which a generator wants a weight with so many columns, for sums of a type.
PanelWidth = Callable[[DType, int], int]
# Whether it wants weights of a type in pairs.
HasPairs = Callable[[DType], bool]

# What reads a weight in panels.
_PRODUCTS = (MatMul, WindowProduct)


def _no_pairs(dtype: DType) -> bool:
    return False


# The views that turn [K, panels, width] into panels and back.
_SWAP = (1, 0, 2)
# Those that turn [K/2, 2, panels, width] into panels of pairs, and back.
_TO_PAIRS = (2, 0, 3, 1)
_FROM_PAIRS = (1, 3, 0, 2)
_PAIR = 2


class Panels(NamedTuple):
    """A matrix stored as [panels, K, width], or with `has_pairs` as [panels, K/2, width, 2]."""

    node: NodeId
    width: int
    has_pairs: bool = False


def pack_weights(graph: Graph, panel_width: PanelWidth, has_pairs: HasPairs = _no_pairs) -> Graph:
    """The graph with the weights of its products in panels, where padding adds little to them."""
    fixed = fixed_sources(graph)
    fixed.update({n.id: frozenset([n.id]) for n in graph.nodes if isinstance(n.op, Param | Constant)})
    widths: dict[NodeId, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, _PRODUCTS) and node.inputs[1] in fixed:
            width = panels_of(graph, node, panel_width)
            if width is not None:
                widths[node.inputs[1]] = width
    if not widths:
        return graph
    packed: dict[NodeId, Tensor] = {}

    def visit(node: Node, operands: list[Any]) -> Any:
        if not isinstance(node.op, _PRODUCTS) or node.inputs[1] not in widths:
            return None
        a, b = operands
        if node.inputs[1] not in packed:
            in_pairs = has_pairs if isinstance(node.op, MatMul) else _no_pairs
            packed[node.inputs[1]] = _widened_panels(b, widths[node.inputs[1]], in_pairs)
        return node.op(a, packed[node.inputs[1]])

    return rebuild(graph, visit, "pack_weights").graph


def sum_dtype(graph: Graph, node: Node) -> DType | None:
    """The type in which kernels add up the products of a matmul; None if they cannot.

    Whole numbers wrap, so that any type of at least 32 bits gives the same last bits.
    """
    a, b, result = (*(graph.shape(i).dtype for i in node.inputs), node.shape.dtype)
    if a is not b or any(t.is_complex or t.is_storage or t is DType.BOOL for t in (a, result)):
        return None
    if a.is_float and result.is_float:
        return DType.F64 if DType.F64 in (a, result) else DType.F32
    if a.is_float or result.is_float:
        return None
    return result if result.size_bytes >= 4 else DType.I32


def panels_of(graph: Graph, node: Node, panel_width: PanelWidth) -> int | None:
    """The width of panels for the second operand of a product, if it is worth them."""
    b, wide = graph.shape(node.inputs[1]), sum_dtype(graph, node)
    if wide is None or b.rank != 2 or not b.is_static or 0 in b.static_dims:
        return None
    n = b.static_dims[1]
    width = panel_width(wide, n)
    if isinstance(node.op, WindowProduct):
        return width if n != width else None
    # What fits into one panel is one as it is; a panel that is mostly padding costs more memory than it saves time.
    return width if n > width and -n % width * 8 <= n else None


def _widened_panels(b: Any, width: int, has_pairs: HasPairs) -> Any:
    """B read back from panels of its own type, or of the narrower one that it is widened from."""
    if widened_dtype(b.graph, b.node) is not None:
        stored = b.graph.tensor(b.node.inputs[0])
        return b.node.op(from_panels(as_panels(stored, width), stored.type))
    return from_panels(as_panels(b, width, has_pairs), b.type)


def as_panels(b: Any, width: int, has_pairs: HasPairs = _no_pairs) -> Any:
    """B in panels, of pairs where a machine has them and they fit."""
    k, n = b.shape
    count = -(-n // width)
    padded = pad(b, 0, high=(0, count * width - n)) if n % width else b
    # The ops themselves, as the function would see that the two transposes cancel.
    if has_pairs(b.dtype) and k % _PAIR == 0:
        return Transpose(_TO_PAIRS)(reshape(padded, (k // _PAIR, _PAIR, count, width)))
    return Transpose(_SWAP)(reshape(padded, (k, count, width)))


def from_panels(panels: Any, shape: Shape) -> Any:
    """A matrix of a shape read back from its panels."""
    k, n = shape.dims
    count, width = panels.shape[0], panels.shape[2]
    whole = reshape(Transpose(_SWAP if panels.ndim == 3 else _FROM_PAIRS)(panels), (k, count * width))
    return narrow(whole, 1, 0, n) if n != count * width else whole


def stored_panels(graph: Graph) -> set[NodeId]:
    """The panels of a packed graph: what `prepare` keeps, while the views that read them back belong to `main`."""
    products = (n for n in graph.nodes if isinstance(n.op, _PRODUCTS))
    found = (_read_back(graph, node.inputs[1]) for node in products)
    codes = {n.id for n in graph.nodes if isinstance(n.op, QuantPanels | Int8Lines | Int16Panels)}
    return codes | {views.panels.node for views in found if views is not None}


def panels_below(graph: Graph, operand: NodeId, transparent: Container[NodeId]) -> Panels | None:
    """The panels that a matrix is read back from, through views that are not stored; None if it is none such."""
    found = _read_back(graph, operand)
    if found is None or found.panels.node in transparent or not all(v in transparent for v in found.views):
        return None
    return found.panels


def widens_panels(graph: Graph, node: Node) -> bool:
    """Whether a node is a cast that products apply to the panels of a narrower type while they read them."""
    return widened_dtype(graph, node) is not None and _read_back(graph, node.id) is not None


class _ReadBack(NamedTuple):
    panels: Panels
    views: tuple[NodeId, ...]


def _read_back(graph: Graph, operand: NodeId) -> _ReadBack | None:
    """Panels and the views, and a widening cast, between them and a matrix; None if it is anything else."""
    whole = graph.nodes[operand]
    views = [operand]
    if widened_dtype(graph, whole) is not None:
        whole = graph.nodes[whole.inputs[0]]
        views.append(whole.id)
    if isinstance(whole.op, Narrow):
        if normalize_axis(whole.op.axis, whole.shape.rank, "narrow") != 1 or whole.op.start != 0:
            return None
        whole = graph.nodes[whole.inputs[0]]
        views.append(whole.id)
    if not isinstance(whole.op, Reshape):
        return None
    turned = graph.nodes[whole.inputs[0]]
    if not isinstance(turned.op, Transpose) or turned.op.perm not in (_SWAP, _FROM_PAIRS):
        return None
    panels = graph.nodes[turned.inputs[0]]
    if not panels.shape.is_static:
        return None
    count, lines, width, *pair = panels.shape.static_dims
    if pair not in ([], [_PAIR]) or whole.shape.dims != (lines * math.prod(pair), count * width):
        return None
    return _ReadBack(Panels(panels.id, width, bool(pair)), (*views, turned.id))
