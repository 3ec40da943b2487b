"""Networks over pictures with their channels side by side, from the first convolution to the last.

    transpose(conv(x, w))  ->  window_product(transpose(x), lines of w)        for weights that are known before

Programs of PyTorch and ONNX have channels first. Products over windows read pixels whose channels lie side by side, and
weights in panels; what stands between two convolutions is the same with its axes in another order. So every value that
a convolution gives is kept with its channels last, behind a transposition that its readers look through: those that
cannot read it as it lies. If too much has to be turned for what is gained, all stays as it was. Programs that compute
gradients of weights keep their order, which these have, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rlx.compile.generators import Generator
from rlx.compile.lower.channels_last import CHANNELS, SEEN, TURNS, pixels_of_row
from rlx.compile.lower.code_windows import (
    MOST_EXACT,
    are_codes,
    channels_of_codes,
    places_of,
    product_of_codes,
    weight_lines,
)
from rlx.compile.memory.liveness import is_pure_view
from rlx.compile.weights.split import fixed_sources
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import decompose_all, rebuild
from rlx.ir.rewrite.rules import apply_rules
from rlx.ir.shape import normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.int8_products import Int8MatMul
from rlx.ops.lowered.window_products import ChannelWindows, WindowProduct
from rlx.ops.nn.convolution import Conv, ConvBase, ConvTranspose2d
from rlx.ops.nn.convolution_gradients import Conv2dBackwardWeight
from rlx.ops.nn.pooling import Pool
from rlx.ops.pointwise.arithmetic import Binary, Clamp, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.axis_indexing import Gather
from rlx.ops.shape.movement import (
    Concat,
    Expand,
    Narrow,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    reshape,
    slice_,
    transpose,
)

Perm = tuple[int, ...]

# Products per element that is turned from which on a layout of its own pays.
LEAST_PRODUCTS = 400
# Lines of weights in one step of a product over windows, about; channels of it at least and at most.
LINES, FEWEST, MOST = 576, 16, 512

_POINTWISE = (Activation, Binary, Cast, Clamp, Compare, Where)


def picture_layout(graph: Graph, generator: Generator) -> Graph:
    """The graph with its pictures channels last where that pays; else the same."""
    fixed = {*fixed_sources(graph), *(n.id for n in graph.nodes if isinstance(n.op, Param | Constant))}
    if any(isinstance(n.op, Conv2dBackwardWeight) for n in graph.nodes):
        return graph
    if not any(_has_form(graph, n, fixed) for n in graph.nodes):
        return graph
    plain = decompose_all(graph, keep=lambda node: not isinstance(node.op, Pool))
    fixed = {*fixed_sources(plain), *(n.id for n in plain.nodes if isinstance(n.op, Param | Constant))}

    def visit(node: Node, operands: list[Any]) -> Any:
        if _has_form(plain, node, fixed):
            return _convolved(node, generator, *operands)
        return None if node.id in fixed else _as_they_lie(node, operands)

    turned = rebuild(plain, visit, "picture_layout").graph
    turned = remove_dead_nodes(apply_rules(turned, TURNS, "picture_layout").graph).graph
    return turned if _pays(turned) else graph


def _pays(graph: Graph) -> bool:
    """Whether what is turned at every run is little beside what is multiplied."""
    fixed = fixed_sources(graph)
    moved = multiplied = 0
    for node in graph.nodes:
        if node.id in fixed:
            continue
        if isinstance(node.op, Transpose) and not is_pure_view(graph, node):
            moved += _elements(node.shape.dims)
        elif node.inputs and node.inputs[-1] in fixed:
            multiplied += _elements(node.shape.dims) * _depth(graph, node)
    return multiplied >= LEAST_PRODUCTS * moved


def _depth(graph: Graph, node: Node) -> int:
    """How many products an element of a result is the sum of; 0 for what is no product of weights."""
    op, x = node.op, graph.shape(node.inputs[0])
    if isinstance(op, WindowProduct):
        return op.taps * int(x.dims[3])
    if isinstance(op, ChannelWindows):
        return math.prod(op.window)
    return _elements(x.dims[-1:]) if isinstance(op, MatMul | Int8MatMul) else 0


def _elements(dims: Sequence[Any]) -> int:
    """How many elements there are, at least."""
    return math.prod(d for d in dims if isinstance(d, int))


# Convolutions.


def _has_form(graph: Graph, node: Node, fixed: Collection[NodeId]) -> bool:
    op = node.op
    if not isinstance(op, Conv | ConvTranspose2d) or op.spatial_rank > 2 or node.inputs[1] not in fixed:
        return False
    x, w = (graph.shape(i) for i in node.inputs)
    sizes = (*x.dims[1:], *node.shape.dims[1:])
    is_known = all(isinstance(d, int) and d > 0 for d in sizes) and w.is_static
    is_plain = node.shape.dtype is x.dtype is w.dtype and op.precision == "default"
    if not is_known or not is_plain:
        return False
    if x.dtype is DType.I32:
        return isinstance(op, Conv) and are_codes(graph, node) and _is_windowed(op, x.dims, node.shape.dims[1])
    if not x.dtype.is_float:
        return False
    if isinstance(op, ConvTranspose2d):
        return _spreads_pixels(op)
    return _is_windowed(op, x.dims, node.shape.dims[1])


def _is_windowed(op: Conv, dims: Sequence[Any], outputs: Any) -> bool:
    """Whether there is a product over windows for these channels."""
    if op.groups == 1:
        return _channels_together(op, int(dims[1])) > 0
    is_depthwise = op.groups == dims[1] == outputs
    return is_depthwise and pixels_of_row(op.kernel_size, op.stride, op.dilation) * CHANNELS <= SEEN


def _spreads_pixels(op: ConvTranspose2d) -> bool:
    """Whether every pixel becomes a field of pixels of its own."""
    others = (*op.padding, *op.output_padding)
    return op.kernel_size == op.stride and not any(others) and {*op.dilation} == {1} and op.groups == 1


def _channels_together(op: ConvBase, channels: int) -> int:
    """How many channels a product over windows takes in one step; 0 if it would see too much."""
    most = min(
        MOST,
        SEEN // pixels_of_row(op.kernel_size, op.stride, op.dilation),
        max(FEWEST, LINES // math.prod(op.kernel_size)),
    )
    if channels <= most:
        return channels
    parts = -(-channels // (most // FEWEST * FEWEST)) if most >= FEWEST else 0
    return -(-channels // parts // FEWEST) * FEWEST if parts else 0


def _convolved(node: Node, generator: Generator, x: Any, w: Any) -> Any:
    """A convolution of pixels, turned back to channels first; None if one of codes stays what it is."""
    op: Any = node.op
    rank = x.ndim - 2
    pixels = _turned(x, _last(x.ndim))
    if isinstance(op, ConvTranspose2d):
        return transpose(_spread(pixels, w), _first(x.ndim))
    if generator.has_dot4:
        is_dense = op.groups == 1
        found = product_of_codes(op, node, pixels, w, generator) if is_dense else channels_of_codes(op, node, pixels, w)
        if found is not None:
            return transpose(found, _first(x.ndim))
    if x.dtype is DType.I32:
        if math.prod(w.shape[1:]) > MOST_EXACT:
            return None
        # Sums of so few products of codes are exact in f32.
        pixels, w = pixels.astype(DType.F32), w.astype(DType.F32)
    if rank == 1:
        # A line is a picture of one row.
        pixels, w = reshape(pixels, (x.shape[0], 1, *pixels.shape[1:])), reshape(w, (*w.shape[:2], 1, w.shape[2]))
    window, result, stride, padding, dilation = places_of(op, node)
    channels, outputs = int(pixels.shape[3]), w.shape[0]
    if op.groups > 1:
        taps = reshape(transpose(w, (2, 3, 1, 0)), (product(window), outputs))
        found = ChannelWindows(window, result, stride, padding, dilation)(pixels, taps)
    elif {*window} == {1} and not any(padding):
        seen = pixels if {*stride} == {1} else slice_(pixels, (0,) * 4, pixels.shape, (1, *stride, 1))
        rows = reshape(seen, (product(seen.shape[:3]), channels))
        found = MatMul()(rows, transpose(reshape(w, (outputs, channels)), (1, 0)))
    else:
        together = _channels_together(op, channels)
        found = WindowProduct(window, result, stride, padding, dilation, together)(pixels, weight_lines(w, together))
    found = reshape(found, (x.shape[0], *node.shape.dims[2:], outputs))
    return transpose(found.astype(DType.I32) if x.dtype is DType.I32 else found, _first(x.ndim))


def _spread(pixels: Any, w: Any) -> Any:
    """Every pixel times w [C, O, taps..], as a field of pixels."""
    images, *sizes, channels = pixels.shape
    outputs, *taps = w.shape[1:]
    rank = len(sizes)
    matrix = reshape(transpose(w, (0, *range(2, 2 + rank), 1)), (channels, product(taps) * outputs))
    found = MatMul()(reshape(pixels, (product(pixels.shape[:-1]), channels)), matrix)
    fields = reshape(found, (images, *sizes, *taps, outputs))
    # [N, H, W, tall, wide, O] -> [N, H, tall, W, wide, O]
    order = (0, *(axis for i in range(rank) for axis in (1 + i, 1 + rank + i)), 1 + 2 * rank)
    return reshape(transpose(fields, order), (images, *(s * t for s, t in zip(sizes, taps)), outputs))


# Everything between them.


def _last(rank: int) -> Perm:
    return (0, *range(2, rank), 1)


def _first(rank: int) -> Perm:
    return (0, rank - 1, *range(1, rank - 1))


# Groups of channels, [N, groups, channels, H, W]: both axes of channels are last, in either direction.
_GROUPS = (0, 3, 4, 1, 2)


def _perm_of(x: Tensor) -> Perm | None:
    """How a value is turned that lies with its channels last; None for others."""
    op, rank = x.node.op, x.ndim
    if not isinstance(op, Transpose) or rank < 3:
        return None
    perm = tuple(op.perm)
    return perm if perm == _first(rank) or perm == _GROUPS else None


def _inverse(perm: Perm) -> Perm:
    return tuple(sorted(range(len(perm)), key=lambda axis: perm[axis]))


def _turned(x: Any, perm: Perm) -> Any:
    """x with its axes in another order; of what was turned before, as it lies."""
    if not isinstance(x.node.op, Transpose):
        return transpose(x, perm)
    joined = tuple(x.node.op.perm[axis] for axis in perm)
    below = x.graph.tensor(x.node.inputs[0])
    return below if joined == tuple(range(len(joined))) else transpose(below, joined)


def _as_they_lie(node: Node, operands: list[Any]) -> Any:
    """An op on operands with their channels last, turned back; None if it has to read them as they are."""
    largest = max(operands, key=lambda x: _elements(x.shape), default=None)
    perm = None if largest is None or len(node.shapes) > 1 else _perm_of(largest)
    if perm is None:
        return None
    form = next((form for kinds, form in _FORMS if isinstance(node.op, kinds)), None)
    return None if form is None else form(node, operands, perm)


def _at(values: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    """One value for each axis, in the order in which they lie."""
    return tuple(values[axis] for axis in _inverse(perm))


def _pointwise(node: Node, operands: list[Any], perm: Perm) -> Any:
    rank = len(perm)
    if node.shape.rank != rank:
        return None

    def laid(x: Any) -> Any:
        if x.ndim == 0:
            return x
        whole = x if x.ndim == rank else reshape(x, (*(1,) * (rank - x.ndim), *x.shape))
        return _turned(whole, _inverse(perm))

    return transpose(node.op(*map(laid, operands)), perm)


def _changed(node: Node, operands: list[Any], perm: Perm, **attributes: Any) -> Any:
    """The op with other attributes on its first operand as it lies, and the others as they are."""
    below = _turned(operands[0], _inverse(perm))
    op = type(node.op)(**{**node.op.attributes, **attributes})
    return transpose(op(below, *operands[1:]), perm)


def _by_axis(*names: str) -> Callable[[Node, list[Any], Perm], Any]:
    """A form for ops with attributes that say something for every axis."""

    def form(node: Node, operands: list[Any], perm: Perm) -> Any:
        given = {name: _at(node.op.attributes[name], perm) for name in names}
        return _changed(node, operands, perm, **given)

    return form


def _one_axis(node: Node, operands: list[Any], perm: Perm) -> Any:
    axis = normalize_axis(node.op.attributes["axis"], len(perm), node.op.mnemonic)
    if isinstance(node.op, Gather) and operands[1].ndim != 1:
        return None
    return _changed(node, operands, perm, axis=perm[axis])


def _joined(node: Node, operands: list[Any], perm: Perm) -> Any:
    assert isinstance(node.op, Concat)
    axis = normalize_axis(node.op.axis, len(perm), "concat")
    return transpose(Concat(perm[axis])(*(_turned(x, _inverse(perm)) for x in operands)), perm)


def _reduced(node: Node, operands: list[Any], perm: Perm) -> Any:
    op = node.op
    assert isinstance(op, Reduce)
    axes = [normalize_axis(axis, len(perm), "reduce") for axis in op.axes]
    result = Reduce(op.kind, tuple(sorted(perm[axis] for axis in axes)), op.keep_dim)(
        _turned(operands[0], _inverse(perm))
    )
    if op.keep_dim:
        return transpose(result, perm)
    # The axes that are left, as they lie.
    left = [axis for axis in _inverse(perm) if axis not in axes]
    order = tuple(left.index(axis) for axis in sorted(left))
    return result if order == tuple(range(len(order))) else transpose(result, order)


def _reversed(node: Node, operands: list[Any], perm: Perm) -> Any:
    assert isinstance(node.op, Reverse)
    axes = [perm[normalize_axis(axis, len(perm), "reverse")] for axis in node.op.axes]
    return _changed(node, operands, perm, axes=tuple(sorted(axes)))


def _reshaped(node: Node, operands: list[Any], perm: Perm) -> Any:
    """Channels in groups or together again, places joined or cut, and pictures of one pixel."""
    (x,), dims = operands, node.shape.dims
    old = x.shape
    if len(old) >= 3 and perm == _first(len(old)):
        if len(dims) >= 3 and dims[:2] == old[:2]:
            return transpose(reshape(_turned(x, _inverse(perm)), (dims[0], *dims[2:], dims[1])), _first(len(dims)))
        if set(old[2:]) == {1}:
            return reshape(_turned(x, _inverse(perm)), dims)
        if len(old) == 4 and len(dims) == 5 and (dims[0], *dims[3:]) == (old[0], *old[2:]):
            return transpose(reshape(_turned(x, _inverse(perm)), (dims[0], *dims[3:], *dims[1:3])), _GROUPS)
    is_grouped = perm == _GROUPS and len(dims) == 4 and (dims[0], *dims[2:]) == (old[0], *old[3:])
    if is_grouped:
        return transpose(reshape(_turned(x, _inverse(perm)), (dims[0], *dims[2:], dims[1])), _first(4))
    return None


def _reordered(node: Node, operands: list[Any], perm: Perm) -> Any:
    """Groups and channels that change places stay last."""
    assert isinstance(node.op, Transpose)
    if perm == _GROUPS and tuple(node.op.perm) == (0, 2, 1, 3, 4):
        return transpose(transpose(_turned(operands[0], _inverse(perm)), (0, 1, 2, 4, 3)), _GROUPS)
    return _turned(operands[0], tuple(node.op.perm))


_FORMS: list[tuple[Any, Callable[[Node, list[Any], Perm], Any]]] = [
    (_POINTWISE, _pointwise),
    (Reduce, _reduced),
    (ReduceWindow, _by_axis("window", "stride", "low", "high", "dilation")),
    (Pad, _by_axis("low", "high", "interior")),
    (Slice, _by_axis("starts", "limits", "strides")),
    (Expand, _by_axis("target_shape")),
    ((Narrow, Gather), _one_axis),
    (Concat, _joined),
    (Reverse, _reversed),
    (Reshape, _reshaped),
    (Transpose, _reordered),
]
