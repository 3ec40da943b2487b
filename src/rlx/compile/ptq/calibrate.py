"""Find the scales of post-training quantisation: run a program on typical inputs and look at its values.

    calibrator = Calibrator(graph, params=weights, method="entropy")
    for batch in batches:
        calibrator.step(batch)
    quantised = CollapseQuantizedProducts().run(insert_q_dq(graph, calibrator.record()))

A method turns the magnitudes that were seen into a threshold T; the scale is max(T/127, 1e-6), and what lies beyond T
is clipped. Zero points are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rlx.compile.ptq.collapse import is_channel_bias
from rlx.compile.ptq.insert import CalibrationEntry, CalibrationRecord
from rlx.compile.ptq.observers import LEVELS, METHODS, SMALLEST_SCALE, Observer
from rlx.errors import RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.shape import normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation, ActivationKind

Array = np.ndarray[Any, np.dtype[Any]]


class Calibrator:
    """Watches values of a graph, its taps, while the reference interpreter runs it.

    `axes` names the taps that get one scale per index of an axis; all others get one. `method` is a name from
    `METHODS`, or a function that makes an `Observer`.
    """

    def __init__(
        self,
        graph: Graph,
        taps: Iterable[int | Tensor] | None = None,
        params: Mapping[str, Any] | None = None,
        method: str | Callable[[], Observer] = "max_abs",
        axes: Mapping[int | Tensor, int] | None = None,
    ) -> None:
        if isinstance(method, str) and method not in METHODS:
            raise RlxError(f"Calibrator: there is no method {method!r}; use one of {', '.join(METHODS)}")
        self._make = METHODS[method] if isinstance(method, str) else method
        self.params = dict(params or {})
        self.taps = [graph.node(t) for t in (product_taps(graph) if taps is None else taps)]
        self._axes = {graph.node(t).id: axis for t, axis in (axes or {}).items()}
        self._observers: dict[NodeId, list[Observer]] = {}
        watched = graph.copy()
        watched.aliases = {}
        watched.set_outputs([n.id for n in self.taps])
        self._watched = remove_dead_nodes(watched).graph

    def step(self, inputs: Mapping[str, Any]) -> None:
        """Run one batch."""
        for node, value in zip(self.taps, interpret(self._watched, {**self.params, **inputs})):
            magnitudes = np.abs(value.astype(np.float64))
            if not np.all(np.isfinite(magnitudes)):
                raise RlxError(f"Calibrator: {node.id} ({node.op.mnemonic}) has NaN or infinite values in this batch")
            for observer, part in zip(self._observers_of(node, magnitudes), self._parts(node, magnitudes)):
                observer.observe(part)

    def _parts(self, node: Node, values: Array) -> Array:
        """One row per scale."""
        if node.id not in self._axes:
            return values.reshape(1, -1)
        axis = normalize_axis(self._axes[node.id], values.ndim, "Calibrator")
        return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)

    def _observers_of(self, node: Node, values: Array) -> list[Observer]:
        if node.id not in self._observers:
            self._observers[node.id] = [self._make() for _ in self._parts(node, values)]
        return self._observers[node.id]

    def scales(self) -> dict[NodeId, tuple[float, ...]]:
        """The scales of every tap, after at least one `step`."""
        if not self._observers and self.taps:
            raise RlxError("Calibrator: nothing was observed yet; call step with a batch first")
        return {
            tap: tuple(max(o.threshold() / LEVELS, SMALLEST_SCALE) for o in observers)
            for tap, observers in self._observers.items()
        }

    def record(self) -> CalibrationRecord:
        """What `insert_q_dq` needs."""
        return {
            tap: CalibrationEntry.per_channel(self._axes[tap], scales)
            if tap in self._axes
            else CalibrationEntry.per_tensor(scales[0])
            for tap, scales in self.scales().items()
        }


def calibrate(
    graph: Graph,
    batches: Iterable[Mapping[str, Any]],
    taps: Iterable[int | Tensor] | None = None,
    params: Mapping[str, Any] | None = None,
    method: str | Callable[[], Observer] = "max_abs",
    axes: Mapping[int | Tensor, int] | None = None,
) -> CalibrationRecord:
    """The record of a `Calibrator` that has seen all batches."""
    calibrator = Calibrator(graph, taps, params, method, axes)
    for batch in batches:
        calibrator.step(batch)
    return calibrator.record()


def product_taps(graph: Graph) -> list[NodeId]:
    """The values that must be quantised for every f32 MatMul and Conv to become an integer product: their operands, and
    their results after bias and relu."""
    taps: dict[NodeId, None] = {}
    uses, outputs = graph.use_map(), set(graph.outputs)
    for product in graph.nodes:
        if not isinstance(product.op, MatMul | Conv) or product.shape.dtype is not DType.F32:
            continue
        taps.update(dict.fromkeys(product.inputs))
        end = product
        for is_absorbed in (_adds_bias, _is_relu):
            readers = uses[end.id]
            if len(readers) == 1 and end.id not in outputs and is_absorbed(graph, product, graph.nodes[readers[0]]):
                end = graph.nodes[readers[0]]
        taps[end.id] = None
    return list(taps)


def _adds_bias(graph: Graph, product: Node, node: Node) -> bool:
    if not isinstance(node.op, Binary) or node.op.kind is not BinaryOp.Add:
        return False
    return any(is_channel_bias(graph.shape(i), product) for i in node.inputs if i != product.id)


def _is_relu(graph: Graph, product: Node, node: Node) -> bool:
    return isinstance(node.op, Activation) and node.op.kind is ActivationKind.Relu
