"""Post-training quantisation, first step: round values to integers and back where a calibration says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlx.errors import OpError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.tensor import Tensor, building
from rlx.ops.quant.quantized import Dequantize, Quantize


class CalibrationEntry(NamedTuple):
    """Scales and zero points of one value: one for all of it, or one per index of `axis`."""

    axis: int | None
    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = (0,)

    @staticmethod
    def per_tensor(scale: float) -> CalibrationEntry:
        return CalibrationEntry(None, (float(scale),))

    @staticmethod
    def per_channel(axis: int, scales: Sequence[float]) -> CalibrationEntry:
        return CalibrationEntry(axis, tuple(map(float, scales)), (0,) * len(scales))

    def round_trip(self, x: Tensor) -> Tensor:
        """`x` as i8 and back in its own type."""
        codes = Quantize(self.axis, self.scales, self.zero_points)(x)
        result: Tensor = Dequantize(self.axis, self.scales, self.zero_points, x.dtype)(codes)
        return result


# Node -> how its value is quantised.
CalibrationRecord = dict[NodeId, CalibrationEntry]


def insert_q_dq(graph: Graph, record: Mapping[int | Tensor, CalibrationEntry]) -> Graph:
    """The graph with Quantize (to i8) and Dequantize behind every value in `record`; all readers and outputs see the
    dequantised value.

    >>> g = Graph("quantised")
    >>> x = g.input("x", (4,), "f32")
    >>> g.set_outputs([x + x])
    >>> print(insert_q_dq(g, {x: CalibrationEntry.per_tensor(0.5)}))
    mir @quantised(%x: f32[4]) {
      %0: i8[4] = quantize(%x) {axis=None, scales=(0.5,)}
      %1: f32[4] = dequantize(%0) {axis=None, scales=(0.5,)}
      %2: f32[4] = add(%1, %1)
      return %2
    }
    <BLANKLINE>
    """
    entries = {_tapped(graph, key).id: entry for key, entry in record.items()}
    if not entries:
        return graph
    rounded: dict[NodeId, Tensor] = {}

    def rounded_value(old: NodeId, x: Tensor) -> Tensor:
        if old not in entries:
            return x
        if old not in rounded:
            rounded[old] = entries[old].round_trip(x)
        return rounded[old]

    def visit(node: Node, operands: list[Tensor]) -> Replacement:
        if not any(i in entries for i in node.inputs):
            return None
        replacement: Replacement = node.op(*(rounded_value(i, x) for i, x in zip(node.inputs, operands)))
        return replacement

    new = graph.empty_like()
    copied = rebuild(graph, visit, "insert_q_dq", into=new)
    with building(new):
        new.outputs = [rounded_value(o, new.tensor(copied.id(o))).id for o in graph.outputs]
    return new


def _tapped(graph: Graph, key: int | Tensor) -> Node:
    node = graph.node(key)
    if len(node.shapes) != 1 or not node.shape.dtype.is_float:
        types = ", ".join(map(str, node.shapes))
        raise OpError(f"insert_q_dq: only a float value can be quantised; {node.id} ({node.op.mnemonic}) is {types}")
    return node
