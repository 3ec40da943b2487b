"""Find the scales of post-training quantisation: run a program on typical inputs and look at its values.

    calibrator = Calibrator(graph, params=weights, method="entropy")
    for batch in batches:
        calibrator.step(batch)
    quantised = CollapseQuantizedProducts().run(insert_q_dq(graph, calibrator.record()))

A method turns the magnitudes that were seen into a threshold T; the scale is max(T/127, 1e-6), and what lies beyond T
is clipped. Zero points are 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rlx.compile.quant_insert import CalibrationEntry, CalibrationRecord
from rlx.errors import RlxError
from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.interpret import interpret
from rlx.ir.shape import normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.arithmetic import Binary, BinaryOp
from rlx.ops.contraction import MatMul
from rlx.ops.convolution import Conv
from rlx.ops.unary import Activation, ActivationKind

Array = np.ndarray[Any, np.dtype[Any]]

LEVELS = 127
SMALLEST_SCALE = 1e-6


class Observer(ABC):
    """Sees magnitudes, batch by batch, and chooses the largest one that is not clipped."""

    @abstractmethod
    def observe(self, magnitudes: Array) -> None:
        """Take note of some |x|, a flat array of f64."""

    @abstractmethod
    def threshold(self) -> float: ...


class MaxAbs(Observer):
    """The largest magnitude: nothing is clipped."""

    def __init__(self) -> None:
        self._largest = 0.0

    def observe(self, magnitudes: Array) -> None:
        self._largest = max(self._largest, float(magnitudes.max(initial=0.0)))

    def threshold(self) -> float:
        return self._largest


class _Histogram(Observer):
    """Counts of magnitudes in equal bins from 0 on. When a larger value comes, bins are joined in pairs."""

    BINS = 2048

    def __init__(self) -> None:
        self.counts = np.zeros(self.BINS)
        self.limit = 0.0

    def observe(self, magnitudes: Array) -> None:
        largest = float(magnitudes.max(initial=0.0))
        if largest == 0.0:
            self.counts[0] += magnitudes.size
            return
        if self.limit == 0.0:
            self.limit = largest
        while self.limit < largest:
            joined = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([joined, np.zeros(self.BINS // 2)])
            self.limit *= 2
        self.counts += np.histogram(magnitudes, self.BINS, (0.0, self.limit))[0]

    @property
    def width(self) -> float:
        return self.limit / self.BINS

    @property
    def centres(self) -> Array:
        return (np.arange(self.BINS) + 0.5) * self.width

    def last_used(self) -> int:
        """How many bins there are up to the last one with a count."""
        used = np.nonzero(self.counts)[0]
        return int(used[-1]) + 1 if used.size else 0


class Percentile(_Histogram):
    """The magnitude below which `percent` of all lie: a few outliers are clipped."""

    def __init__(self, percent: float = 99.99) -> None:
        if not 0.0 < percent <= 100.0:
            raise RlxError(f"Percentile: needs a number above 0 and up to 100, got {percent}")
        super().__init__()
        self.percent = percent

    def threshold(self) -> float:
        share = np.cumsum(self.counts)
        wanted = share[-1] * self.percent / 100.0
        return float((np.searchsorted(share, wanted) + 1) * self.width)


class MeanSquareError(_Histogram):
    """The threshold with the smallest mean square of rounding and clipping errors."""

    CANDIDATES = 128

    def threshold(self) -> float:
        top = self.last_used() * self.width
        candidates = top * (np.arange(self.CANDIDATES) + 1) / self.CANDIDATES
        return float(candidates[int(np.argmin([self._error(t) for t in candidates]))])

    def _error(self, threshold: float) -> float:
        step = max(threshold / LEVELS, SMALLEST_SCALE)
        rounded = np.minimum(np.rint(self.centres / step), LEVELS) * step
        return float(np.sum(self.counts * (self.centres - rounded) ** 2))


class Entropy(_Histogram):
    """The threshold at which the distribution of the rounded values says most about that of the values: the one with
    the smallest Kullback-Leibler divergence."""

    STRIDE = 8

    def threshold(self) -> float:
        used = self.last_used()
        if used <= LEVELS + 1:
            return used * self.width
        ends = [*range(LEVELS + 1, used, self.STRIDE), used]
        return ends[int(np.argmin([self._divergence(end) for end in ends]))] * self.width

    def _divergence(self, end: int) -> float:
        """Of the first `end` bins, with what is clipped counted in the last, from their form in LEVELS + 1 groups."""
        kept = self.counts[:end]
        wanted = kept.copy()
        wanted[-1] += self.counts[end:].sum()
        group = np.arange(end) * (LEVELS + 1) // end
        totals = np.bincount(group, kept, LEVELS + 1)
        filled = np.bincount(group, kept > 0, LEVELS + 1)
        # A group's count is spread over those of its bins that have one.
        spread = np.where(kept > 0, (totals / np.maximum(filled, 1))[group], 0.0)
        p, q = wanted / wanted.sum(), spread / max(spread.sum(), 1.0)
        # What is clipped may be all that the last bin has.
        seen = p > 0
        return float(np.sum(p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-12))))


METHODS: dict[str, Callable[[], Observer]] = {
    "max_abs": MaxAbs,
    "percentile": Percentile,
    "mse": MeanSquareError,
    "entropy": Entropy,
}


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
    for node in graph.nodes:
        if not isinstance(node.op, MatMul | Conv) or node.shape.dtype is not DType.F32:
            continue
        taps.update(dict.fromkeys(node.inputs))
        end = node
        for absorbed in (_is_sum, _is_relu):
            if len(uses[end.id]) == 1 and end.id not in outputs and absorbed(graph.nodes[uses[end.id][0]]):
                end = graph.nodes[uses[end.id][0]]
        taps[end.id] = None
    return list(taps)


def _is_sum(node: Node) -> bool:
    return isinstance(node.op, Binary) and node.op.kind is BinaryOp.Add


def _is_relu(node: Node) -> bool:
    return isinstance(node.op, Activation) and node.op.kind is ActivationKind.Relu
