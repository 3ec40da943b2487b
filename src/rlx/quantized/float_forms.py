"""Float graphs in the forms that have integer steps: factors and offsets of channels go into the products before them.

    conv(x, w)·s + t   →   conv(x, w·s) + t         batch norm behind a product costs nothing
    norm(x)            →   conv(x, s) + t           elsewhere a depthwise convolution of one tap
    a - b              →   a + (-b)

The constants are computed in f64 and rounded once. Weights that the graph rounds itself stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv, conv
from rlx.ops.nn.norms import BatchNormInference
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, add
from rlx.ops.pointwise.unary import neg
from rlx.ops.quant.fake_quant import FakeQuantize, FakeQuantizeLSQ
from rlx.ops.quant.quantized import Dequantize
from rlx.ops.shape.movement import Transpose
from rlx.quantized.float_graphs import FloatGraph
from rlx.quantized.values import Array

_AFFINE = (BinaryOp.Add, BinaryOp.Sub, BinaryOp.Mul, BinaryOp.Div)


@dataclass
class _Affine:
    """factor·x + offset for each channel, which the nodes up to `end` compute; `is_sum` while the factor is 1."""

    end: Node
    factor: Array
    offset: Array
    is_sum: bool = True


def in_integer_forms(source: FloatGraph) -> FloatGraph:
    """The same function without factors behind products, batch norms and differences of values."""
    fresh = source.graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in source.graph.nodes:
        if node.id in ids:
            continue
        inputs = [ids[i] for i in node.inputs]
        made = _rewritten(source, node, fresh, inputs) if node.id in source.dynamic else None
        if made is None:
            ids[node.id] = fresh.append_copy(node, inputs)
            continue
        end, result = made
        # What is between has no other reader.
        between: Node | None = node
        while between is not None and between.id not in ids:
            ids[between.id] = result.id
            between = None if between is end else source.only_reader(between)
    fresh.outputs = [ids[o] for o in source.graph.outputs]
    fresh.constraints = source.graph.constraints
    return FloatGraph(fresh, source.params)


def _rewritten(source: FloatGraph, node: Node, fresh: Graph, inputs: list[NodeId]) -> tuple[Node, Tensor] | None:
    """What takes the place of a node, and the last node that it stands for."""
    op = node.op
    if isinstance(op, Binary) and op.kind is BinaryOp.Sub and all(i in source.dynamic for i in node.inputs):
        return node, add(fresh.tensor(inputs[0]), neg(fresh.tensor(inputs[1])))
    if isinstance(op, MatMul | Conv):
        return _folded_product(source, node, fresh, inputs)
    values = [place for place, i in enumerate(node.inputs) if i in source.dynamic]
    if len(values) != 1:
        return None
    before = source.graph.nodes[node.inputs[values[0]]]
    if len(before.shapes) != 1:
        return None
    found = _chain(source, before, node)
    if found is None or found.is_sum or before.shape.rank != 4 or found.factor.size == 1:
        return None
    x, channels = fresh.tensor(inputs[values[0]]), int(found.factor.size)
    taps = fresh.constant(found.factor.astype(np.float32).reshape(channels, 1, 1, 1))
    return found.end, _with_offset(conv(x, taps, groups=channels), found.offset, 4)


def _folded_product(source: FloatGraph, node: Node, fresh: Graph, inputs: list[NodeId]) -> tuple[Node, Tensor] | None:
    weights = node.inputs[1]
    reader = source.only_reader(node)
    if not source.is_constant(weights) or reader is None or node.inputs[0] not in source.dynamic:
        return None
    if isinstance(node.op, MatMul) and source.graph.shape(weights).rank != 2:
        return None
    if isinstance(source.graph.nodes[weights].op, FakeQuantize | FakeQuantizeLSQ | Dequantize):
        return None
    found = _chain(source, node, reader)
    if found is None or found.is_sum:
        return None
    values = source.constant(weights)
    factor = found.factor.reshape(-1, *(1,) * (values.ndim - 1)) if isinstance(node.op, Conv) else found.factor
    scaled = fresh.constant((values.astype(np.float64) * factor).astype(values.dtype))
    product = fresh.tensor(fresh.append_copy(node, [inputs[0], scaled.id]))
    return found.end, _with_offset(product, found.offset, node.shape.rank if isinstance(node.op, Conv) else 0)


def _with_offset(x: Tensor, offset: Array, rank: int) -> Tensor:
    """x plus an offset for each channel: axis 1 of images, the last one of rows (rank 0)."""
    if not np.any(offset):
        return x
    values = offset.astype(np.float32)
    return add(x, x.graph.constant(values.reshape(1, -1, *(1,) * (rank - 2)) if rank else values))


def _chain(source: FloatGraph, before: Node, first: Node) -> _Affine | None:
    """The factors and offsets that follow `before`, from its reader `first` on; None where there are none."""
    axis = _channel_axis(before)
    channels = before.shape.dims[axis]
    if not isinstance(channels, int) or before.shape.rank not in (2, 3, 4):
        return None
    found = _Affine(before, np.ones(1), np.zeros(1))
    node: Node | None = first
    while node is not None:
        after = _step(source, found, node, axis, channels)
        if after is None:
            break
        found, node = after, source.only_reader(after.end)
    if found.end is before:
        return None
    found.factor, found.offset = np.broadcast_arrays(found.factor, found.offset)
    return found


def _channel_axis(node: Node) -> int:
    """Images [N, C, H, W], and whatever a convolution makes, have channels on axis 1; others on the last one."""
    return 1 if isinstance(node.op, Conv) or node.shape.rank == 4 else node.shape.rank - 1


def _step(source: FloatGraph, found: _Affine, node: Node, axis: int, channels: int) -> _Affine | None:
    """The chain with one node more, or with a batch norm and the transposes around it."""
    if isinstance(node.op, Binary):
        return _binary_step(source, found, node, axis, channels)
    norm, end, last = node, node, found.end.shape.rank - 1
    if isinstance(node.op, Transpose) and (reader := source.only_reader(node)) is not None:
        back = source.only_reader(reader)
        if back is None or not isinstance(back.op, Transpose) or node.op.perm[-1] != axis:
            return None
        if [node.op.perm[i] for i in back.op.perm] != list(range(last + 1)):
            return None
        norm, end, last = reader, back, axis
    if not isinstance(norm.op, BatchNormInference) or last != axis:
        return None
    if not all(source.is_constant(i) for i in norm.inputs[1:]):
        return None
    gain, offset, mean, variance = (source.constant(i).astype(np.float64) for i in norm.inputs[1:])
    factor = gain / np.sqrt(variance + norm.op.eps)
    return _Affine(end, found.factor * factor, (found.offset - mean) * factor + offset, is_sum=False)


def _binary_step(source: FloatGraph, found: _Affine, node: Node, axis: int, channels: int) -> _Affine | None:
    op = node.op
    assert isinstance(op, Binary)
    others = [i for i in node.inputs if i != found.end.id]
    if op.kind not in _AFFINE or len(others) != 1 or not source.is_constant(others[0]):
        return None
    value = _per_channel(source.constant(others[0]), found.end.shape.rank, axis, channels)
    is_first = node.inputs[0] == found.end.id
    if value is None or (op.kind is BinaryOp.Div and not is_first):
        return None
    factor, offset = found.factor, found.offset
    if op.kind is BinaryOp.Add:
        return _Affine(node, factor, offset + value, found.is_sum)
    if op.kind is BinaryOp.Sub:
        sign = 1.0 if is_first else -1.0
        return _Affine(node, sign * factor, sign * (offset - value), found.is_sum and is_first)
    scale = value if op.kind is BinaryOp.Mul else 1.0 / value
    return _Affine(node, factor * scale, offset * scale, is_sum=False)


def _per_channel(value: Any, rank: int, axis: int, channels: int) -> Array | None:
    """A constant that has one number for each channel, or one for all, as a vector in f64."""
    dims = (*(1,) * (rank - value.ndim), *value.shape)
    if len(dims) != rank or any(d != 1 for i, d in enumerate(dims) if i != axis):
        return None
    flat = value.reshape(-1).astype(np.float64)
    return flat if flat.size in (1, channels) and np.all(np.isfinite(flat)) else None
