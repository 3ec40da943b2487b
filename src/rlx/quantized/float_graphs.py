"""How a float graph is read for quantisation: what is constant, what follows a product, which rounding it has.

Rounding that a graph already has decides the scales: `fake_quantize` with a fixed state, `fake_quantize_lsq`, and pairs
of `quantize` and `dequantize`. All other scales come from a calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.interpret import interpret
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, Clamp, CmpOp, Compare, Where, binary
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.quant.fake_quant import FakeQuantize, FakeQuantizeLSQ, ScaleMode
from rlx.ops.quant.quant_steps import SMALLEST_STEP
from rlx.ops.quant.quantized import Dequantize, Quantize
from rlx.quantized.packing import LARGEST_CODE
from rlx.quantized.values import Array, QuantizedError, Weights, limits


@dataclass(frozen=True)
class Rounding:
    """How a value is rounded: the scale, or None where a calibration gives it as threshold / high."""

    scale: float | None
    zero_point: int
    low: int
    high: int


@dataclass
class Epilogue:
    """What a step does to its sums before anybody reads them: limits, then rounding; `end` is the node that has it."""

    end: Node
    low: float = -np.inf
    high: float = np.inf
    rounding: Rounding | None = None
    absorbed: list[NodeId] = field(default_factory=list)


def _with_plain_limits(graph: Graph) -> Graph:
    """`where(x >= c, c, relu(x))`, which is how `nn.relu6` is written, as the smaller of c and relu(x)."""
    fresh = graph.empty_like()
    ids: dict[NodeId, NodeId] = {}
    for node in graph.nodes:
        inputs = [ids[i] for i in node.inputs]
        if _is_limit_by_where(graph, node):
            ids[node.id] = binary(BinaryOp.Min, fresh.tensor(inputs[2]), fresh.tensor(inputs[1])).id
        else:
            ids[node.id] = fresh.append_copy(node, inputs)
    fresh.outputs = [ids[o] for o in graph.outputs]
    return fresh


def _is_limit_by_where(graph: Graph, node: Node) -> bool:
    if not isinstance(node.op, Where):
        return False
    condition, limit, other = (graph.nodes[i] for i in node.inputs)
    if not isinstance(condition.op, Compare) or condition.op.kind not in (CmpOp.Ge, CmpOp.Gt):
        return False
    # The same tensor is compared and limited, before or after its own relu.
    compared, bound = condition.inputs
    sources = {other.id, *(other.inputs if isinstance(other.op, Activation) else ())}
    is_relu = isinstance(other.op, Activation) and other.op.kind is ActivationKind.Relu
    return bound == limit.id and compared in sources and (is_relu or compared == other.id) and limit.shape.rank == 0


class FloatGraph:
    """A graph with one input that matters; everything else is a weight."""

    def __init__(self, graph: Graph, params: Mapping[str, Any]) -> None:
        self.graph = remove_dead_nodes(_with_plain_limits(remove_dead_nodes(graph).graph)).graph
        self.params = {k: np.asarray(v) for k, v in params.items()}
        keys = {n.id: n.op.key for n in self.graph.nodes if isinstance(n.op, Input | Param)}
        uses = self.graph.use_map()
        free = [i for i, key in keys.items() if key not in self.params and (uses[i] or i in self.graph.outputs)]
        if len(free) != 1:
            listed = ", ".join(keys[i] for i in free) or "none"
            raise QuantizedError(
                f"quantize: exactly one input must be left without a value, got {listed}; "
                "`params` gives the values of all others by name"
            )
        if len(self.graph.outputs) != 1:
            raise QuantizedError(f"quantize: the graph must have one output, got {len(self.graph.outputs)}")
        self.input, self.input_name = self.graph.nodes[free[0]], keys[free[0]]
        self.uses = uses
        self.dynamic = {self.input.id}
        for node in self.graph.nodes:
            if any(i in self.dynamic for i in node.inputs):
                self.dynamic.add(node.id)
        self._constants: dict[NodeId, Array] = {}

    def of_inputs(self) -> Graph:
        """The graph with an input for every leaf, which a compiled function takes in order."""
        fresh = self.graph.empty_like()
        ids: dict[NodeId, NodeId] = {}
        for node in self.graph.nodes:
            if isinstance(node.op, Param):
                ids[node.id] = fresh.input(node.op.key, node.shape.dims, node.shape.dtype).id
            else:
                ids[node.id] = fresh.append_copy(node, [ids[i] for i in node.inputs])
        fresh.outputs = [ids[o] for o in self.graph.outputs]
        return fresh

    def leaves(self, x: Array) -> list[Array]:
        """The values of all leaves in order, `x` for the input."""
        found = [n.op.key for n in self.graph.nodes if isinstance(n.op, Input | Param)]
        return [x if key == self.input_name else self.params[key] for key in found]

    def fail(self, node: Node, message: str) -> QuantizedError:
        shapes = ", ".join(map(str, node.shapes))
        return QuantizedError(f"quantize: {node.op.mnemonic} ({node.id}, {shapes}): {message}")

    def is_constant(self, node_id: NodeId) -> bool:
        return node_id not in self.dynamic

    def constant(self, node_id: NodeId) -> Array:
        """The value of a node that does not depend on the input."""
        if node_id not in self._constants:
            part = self.graph.copy()
            part.aliases = {}
            part.set_outputs([node_id])
            part = remove_dead_nodes(part).graph
            values: dict[str, Any] = dict(self.params)
            shape = self.input.shape
            # The input is a leaf of every graph; nothing reads it here.
            values[self.input_name] = np.zeros([d if isinstance(d, int) else 1 for d in shape.dims], shape.dtype.numpy)
            self._constants[node_id] = interpret(part, values)[0]
        return self._constants[node_id]

    def only_reader(self, node: Node) -> Node | None:
        readers = self.uses[node.id]
        if len(readers) != 1 or node.id in self.graph.outputs:
            return None
        return self.graph.nodes[readers[0]]

    def scalar(self, node_id: NodeId) -> float | None:
        """The value of a constant with one element."""
        if not self.is_constant(node_id):
            return None
        value = self.constant(node_id)
        return float(value.reshape(-1)[0]) if value.size == 1 else None

    def epilogue(self, node: Node) -> Epilogue:
        """The limits and the rounding after a node, as far as nobody reads what is in between."""
        found = Epilogue(node)
        while (reader := self.only_reader(found.end)) is not None:
            bounds = self.bounds_of(reader, found.end.id)
            if bounds is not None:
                found.low, found.high = max(found.low, bounds[0]), min(found.high, bounds[1])
            elif (rounding := self.rounding_of(reader)) is not None:
                found.rounding = rounding
            else:
                break
            found.absorbed.append(reader.id)
            found.end = reader
            if found.rounding is not None:
                break
        # Codes that are floats again at once; the value is known by the last node that has it.
        while found.rounding is not None and isinstance(found.end.op, Quantize):
            reader = self.only_reader(found.end)
            if reader is None or not isinstance(reader.op, Dequantize):
                raise self.fail(found.end, "its codes must be read by one dequantize")
            same = (reader.op.axis, reader.op.scales, reader.op.zero_points)
            if same != (found.end.op.axis, found.end.op.scales, found.end.op.zero_points):
                raise self.fail(reader, "it must have the scales and zero points of the quantize before it")
            found.absorbed.append(reader.id)
            found.end = reader
        return found

    def bounds_of(self, node: Node, operand: NodeId) -> tuple[float, float] | None:
        """(low, high) of a node that limits its operand by constants: relu, min, max, clamp."""
        op = node.op
        if isinstance(op, Activation) and op.kind is ActivationKind.Relu:
            return 0.0, np.inf
        if isinstance(op, Binary) and op.kind in (BinaryOp.Max, BinaryOp.Min):
            other = [i for i in node.inputs if i != operand]
            limit = self.scalar(other[0]) if len(other) == 1 else None
            if limit is None:
                return None
            return (limit, np.inf) if op.kind is BinaryOp.Max else (-np.inf, limit)
        if isinstance(op, Clamp) and node.inputs[0] == operand:
            low, high = (self.scalar(i) for i in node.inputs[1:])
            return None if low is None or high is None else (low, high)
        return None

    def rounding_of(self, node: Node) -> Rounding | None:
        """How a node rounds its first operand, or None if it is no rounding."""
        op = node.op
        if isinstance(op, Quantize):
            if len(op.scales) != 1 or len(op.zero_points) != 1:
                raise self.fail(node, "activations have one scale for all channels; only weights have one each")
            return Rounding(op.scales[0], op.zero_points[0], *limits(op.dtype))
        if not isinstance(op, FakeQuantize | FakeQuantizeLSQ):
            return None
        if op.axis is not None:
            raise self.fail(node, "activations have one step for all channels (axis=None); only weights have one each")
        if op.bits > 16:
            raise self.fail(node, f"activations have at most 16 bits, got {op.bits}")
        return Rounding(self._step(node), 0, -op.qmax, op.qmax)

    def _step(self, node: Node) -> float | None:
        """The step of a fake quantiser of activations; None where it comes from the data."""
        if isinstance(node.op, FakeQuantize) and node.op.scale_mode is ScaleMode.PerBatch:
            return None
        steps = self._steps(node)
        return float(max(np.float32(steps.reshape(-1)[0]), np.float32(SMALLEST_STEP)))

    def _steps(self, node: Node) -> Array:
        if isinstance(node.op, FakeQuantize) and node.op.scale_mode is ScaleMode.EMA:
            raise self.fail(node, "a running step changes with every batch; use scale_mode='fixed' with its last state")
        if not self.is_constant(node.inputs[1]):
            raise self.fail(node, "its step depends on the input; it must be a parameter")
        return self.constant(node.inputs[1])

    def weights(self, node_id: NodeId, channel_axis: int, bits: int) -> Weights:
        """The weights of a product, output channels first, rounded as the graph says or else to `bits`."""
        node = self.graph.nodes[node_id]
        if isinstance(node.op, FakeQuantize | FakeQuantizeLSQ):
            return self._rounded_weights(node, channel_axis)
        if isinstance(node.op, Dequantize):
            if any(node.op.zero_points):
                raise self.fail(node, "weights have zero point 0")
            self._require_channel_axis(node, node.op.axis, channel_axis)
            codes = np.moveaxis(self.constant(node.inputs[0]), channel_axis, 0)
            if codes.dtype != np.int8:
                raise self.fail(node, f"weights are i8, got {codes.dtype}")
            scales = np.broadcast_to(np.array(node.op.scales, np.float32), codes.shape[:1]).copy()
            return Weights(np.ascontiguousarray(codes), scales, 8)
        return Weights.of(np.moveaxis(self.constant(node_id), channel_axis, 0), bits)

    def _rounded_weights(self, node: Node, channel_axis: int) -> Weights:
        op = node.op
        assert isinstance(op, FakeQuantize | FakeQuantizeLSQ)
        self._require_channel_axis(node, op.axis, channel_axis)
        w = np.moveaxis(self.constant(node.inputs[0]), channel_axis, 0).astype(np.float32)
        if isinstance(op, FakeQuantize) and op.scale_mode is ScaleMode.PerBatch:
            largest = np.abs(w).reshape(len(w), -1).max(axis=1) if op.axis is not None else np.abs(w).max()[None]
            steps = largest / np.float32(op.qmax)
        else:
            steps = self._steps(node)
        # The narrowest packing that has all codes.
        bits = min((b for b, largest in LARGEST_CODE.items() if largest >= op.qmax), default=None)
        if bits is None:
            raise self.fail(node, f"weights have at most 8 bits, got {op.bits}")
        return Weights.of(w, bits, np.maximum(steps.astype(np.float32), np.float32(SMALLEST_STEP)), op.qmax)

    def _require_channel_axis(self, node: Node, axis: int | None, channel_axis: int) -> None:
        if axis is not None and axis % node.shape.rank != channel_axis:
            raise self.fail(
                node,
                f"weights have one step per output channel, which is axis {channel_axis}, or one for all; got {axis}",
            )
