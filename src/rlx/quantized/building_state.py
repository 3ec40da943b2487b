"""What all nodes share while an integer program is built: its values and steps so far, and how a value is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Node, NodeId
from rlx.ops.define.rounding import half_away_array
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.quantized.float_graphs import Epilogue, FloatGraph, Rounding
from rlx.quantized.planning import Plan
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, Multipliers, Value, Weights, limits

_SMALLEST_SCALE = 1e-12


@dataclass(frozen=True)
class Held:
    """A value of the program, and the [C, H, W] that its graph's value was flattened from, if it was."""

    index: int
    flattened: tuple[int, int, int] | None = None


class BuildingState:
    def __init__(
        self,
        source: FloatGraph,
        plan: Plan,
        thresholds: Mapping[NodeId, float],
        bits: int,
        activations: DType,
        fraction_bits: int,
    ) -> None:
        self.source, self.plan, self.thresholds = source, plan, thresholds
        self.bits, self.activations, self.fraction_bits = bits, activations, fraction_bits
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.held: dict[NodeId, Held] = {}

    def sizes(self, node: Node) -> tuple[int, ...]:
        """The dims of one example."""
        dims = node.shape.dims[1:]
        if node.shape.rank < 2 or not all(isinstance(d, int) for d in dims):
            raise self.source.fail(node, "needs a batch axis in front and fixed sizes after it")
        if len(dims) not in (1, 2, 3):
            raise self.source.fail(
                node, f"values are rows [N, K], sequences [N, T, C] or images [N, C, H, W], got {node.shape}"
            )
        return tuple(int(d) for d in dims if isinstance(d, int))

    def result_dims(self, node: Node) -> tuple[int, ...]:
        """Its dims in the program: images have their channels last, and sequences are images of one column."""
        dims = self.sizes(node)
        if len(dims) == 2:
            return (dims[0], 1, dims[1])
        return (dims[1], dims[2], dims[0]) if len(dims) == 3 else dims

    def encoding(self, name: str, end: Epilogue, dims: tuple[int, ...]) -> tuple[Value, int, int]:
        """The value after an epilogue, and the codes that it is limited to."""
        rounding, dtype = end.rounding, DType.I8 if end.end.id in self.plan.narrow else self.activations
        if rounding is None:
            rounding = Rounding(None, 0, *limits(dtype))
        else:
            dtype = DType.I8 if rounding.low >= -128 and rounding.high <= 127 else DType.I16
        scale = rounding.scale
        if scale is None:
            scale = max(self.thresholds[end.end.id] / rounding.high, _SMALLEST_SCALE)
        value = Value(name, dims, float(np.float32(scale)), rounding.zero_point, dtype)
        low, high = (code_of(value, v) for v in (end.low, end.high))
        return value, max(low, rounding.low), min(high, rounding.high)

    def new_name(self, kind: str) -> str:
        return f"{kind}{sum(s.name.rstrip('0123456789') == kind for s in self.steps) + 1}"

    def add(self, step: Step, *nodes: NodeId, flattened: tuple[int, int, int] | None = None) -> None:
        self.steps.append(step)
        self.values.append(step.out)
        for node_id in nodes:
            self.held[node_id] = Held(len(self.steps), flattened)

    def operand(self, node: Node, position: int = 0) -> tuple[Held, Value]:
        held = self.held_of(node, node.inputs[position])
        return held, self.values[held.index]

    def held_of(self, node: Node, node_id: NodeId) -> Held:
        if node_id not in self.held:
            other = self.source.graph.nodes[node_id]
            raise self.source.fail(node, f"its operand {other.op.mnemonic} ({node_id}) is no value of the program")
        return self.held[node_id]

    def product_fields(
        self, node: Node, kind: str, weights: Weights, x: Value, dims: tuple[int, ...]
    ) -> dict[str, Any]:
        end = self.plan.epilogues[node.id]
        out, low, high = self.encoding(self.new_name(kind), end, dims)
        units = np.float64(np.float32(x.scale)) * weights.scales.astype(np.float64)
        bias = half_away_array(self.bias(node, len(weights.codes)).astype(np.float64) / units)
        if np.any(np.abs(bias) >= 2**31):
            raise self.source.fail(
                node, f"the bias of {out.name} is {np.abs(bias).max():.3g} steps and does not fit i32"
            )
        # In f32 and from left to right, as the multipliers of other tools are.
        factors = np.float32(x.scale) * weights.scales / np.float32(out.scale)
        return {
            "out": out,
            "weights": weights,
            "bias": bias.astype(np.int32),
            "multipliers": Multipliers.of(factors, self.fraction_bits),
            "low": low,
            "high": high,
        }

    def bias(self, node: Node, channels: int) -> Array:
        if node.id not in self.plan.biases:
            return np.zeros(channels, np.float32)
        constant, reader = self.plan.biases[node.id]
        value = self.source.constant(constant)
        axis = 1 if isinstance(node.op, Conv) else node.shape.rank - 1
        dims = (*(1,) * (node.shape.rank - value.ndim), *value.shape)
        if value.ndim > node.shape.rank or any(d != 1 for i, d in enumerate(dims) if i != axis):
            raise self.source.fail(node, f"its bias must have one number per output channel, got {value.shape}")
        vector = np.broadcast_to(value.reshape(dims).reshape(-1), (channels,))
        op = self.source.graph.nodes[reader].op
        return -vector if isinstance(op, Binary) and op.kind is BinaryOp.Sub else vector


def is_ordered(flattened: tuple[int, int, int] | None) -> bool:
    """Whether [C, H, W] and [H, W, C] are the same in memory."""
    return flattened is None or flattened[0] == 1 or flattened[1] * flattened[2] == 1


def like(x: Value, name: str, dims: tuple[int, ...]) -> Value:
    return Value(name, dims, x.scale, x.zero_point, x.dtype)


def code_of(value: Value, x: float) -> int:
    """The code of a limit, which may be infinite."""
    low, high = limits(value.dtype)
    if not np.isfinite(x):
        return low if x < 0 else high
    return int(value.encode(np.array([x], np.float32))[0])
