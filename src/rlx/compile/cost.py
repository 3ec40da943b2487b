"""What a program costs on a machine that fuses as XLA does: arithmetic, bytes through memory, and the most it holds.

    cost_of(graph)      # Cost(flops=..., read_bytes=..., written_bytes=..., peak_bytes=...)

The graph has bound sizes and primitive ops (`rlx.backends.xla.lowering.lowered`). Nothing is compiled: values that a
fusing compiler computes again where they are used are told from those that it stores, and the stored ones are followed
from their first to their last use in the order of the program. Arguments and results are not part of the peak.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from rlx.compile.simplify.common_values import cse
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.op import Op
from rlx.ops.linalg.contraction import DotGeneral, MatMul
from rlx.ops.parallel.sharding_constraint import ShardingConstraint
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation, ActivationKind, StopGradient
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.creation import Iota
from rlx.ops.shape.movement import Expand, Pad, Reshape, Slice, Transpose

__all__ = ["Cost", "cost_of"]

_VIEWS = (Reshape, StopGradient, ShardingConstraint)
_PRODUCTS = (MatMul, DotGeneral)
# Functions that are cheaper to compute again than to store.
_CHEAP = frozenset({"neg", "abs", "relu", "square", "sign"}) & {kind.value for kind in ActivationKind}
_EXPENSIVE = frozenset({BinaryOp.Div, BinaryOp.Pow, BinaryOp.Rem})


class Cost(NamedTuple):
    """One run of a program. `flops` are those of products, two for each multiply-add; the others are bytes."""

    flops: int
    read_bytes: int
    written_bytes: int
    peak_bytes: int


def cost_of(graph: Graph) -> Cost:
    """The cost of a program whose sizes are bound."""
    return _Analysis(cse(graph)).cost()


class _Analysis:
    def __init__(self, graph: Graph) -> None:
        self._nodes, self._outputs = graph.nodes, frozenset(graph.outputs)
        self._users: dict[NodeId, list[NodeId]] = {}
        for node in self._nodes:
            for i in node.inputs:
                self._users.setdefault(i, []).append(node.id)
        self._into_sums = {node.id for node in self._nodes if self._is_summed(node)}
        self._is_stored = {node.id: self._stores(node) for node in self._nodes}
        self._read_by: dict[tuple[NodeId, bool], frozenset[NodeId]] = {}

    def cost(self) -> Cost:
        steps = [node for node in self._nodes if self._is_stored[node.id]]
        reads = [self._sources(node) for node in steps]
        last = {source: t for t, sources in enumerate(reads) for source in sources}
        held: dict[NodeId, int] = {}
        live = peak = read = written = 0
        for t, (node, sources) in enumerate(zip(steps, reads)):
            read += sum(_bytes(self._nodes[i]) for i in sources)
            written += _bytes(node)
            dying = [i for i in sources if last[i] == t and i in held]
            if _is_map(node.op):
                # A map may store over what it reads for the last time.
                live -= sum(held.pop(i) for i in dying)
            if node.id not in self._outputs and node.id in last:
                held[node.id] = _bytes(node)
                live += held[node.id]
            peak = max(peak, live)
            if not _is_map(node.op):
                live -= sum(held.pop(i) for i in dying)
        return Cost(sum(self._flops(node) for node in self._nodes), read, written, peak)

    def _stores(self, node: Node) -> bool:
        """Whether a compiler that fuses keeps a value in memory."""
        op = node.op
        if node.is_leaf or isinstance(op, Constant):
            return False
        if node.id in self._outputs or not (_is_map(op) or isinstance(op, _VIEWS)):
            return True
        if isinstance(op, _VIEWS):
            return False
        if node.id in self._into_sums:
            return False
        readers = set(self._readers(node.id))
        ops = [self._nodes[i].op for i in readers]
        if isinstance(op, Transpose) and all(isinstance(reader, _PRODUCTS) for reader in ops):
            # Products read their operands in any order of axes.
            return False
        return not all(map(self._repeats, readers)) or (len(readers) > 1 and not self._is_repeated(node))

    def _is_summed(self, node: Node) -> bool:
        """Whether a value is made inside the reduction that alone reads it, from operands in memory."""
        readers = {type(self._nodes[i].op) for i in self._readers(node.id)}
        return node.op.is_elementwise and readers == {Reduce} and node.id not in self._outputs

    def _repeats(self, number: NodeId) -> bool:
        """Whether a node may compute its operands for itself."""
        return _is_map(self._nodes[number].op) and number not in self._into_sums

    def _is_repeated(self, node: Node) -> bool:
        """Whether maps that read a value compute it for themselves: it is cheap, and made of one other value."""
        if not _is_map(node.op) or _is_expensive(node.op):
            return False
        size = math.prod(node.shape.static_dims)
        return sum(math.prod(self._nodes[i].shape.static_dims) == size for i in node.inputs) <= 1

    def _readers(self, number: NodeId) -> Iterator[NodeId]:
        """The nodes that read a value, through views, and where products read it through orders of axes too."""
        for i in self._users.get(number, ()):
            op = self._nodes[i].op
            is_turned = isinstance(op, Transpose) and isinstance(self._nodes[number].op, Transpose)
            if i not in self._outputs and (isinstance(op, _VIEWS) or is_turned):
                yield from self._readers(i)
            else:
                yield i

    def _sources(self, node: Node) -> frozenset[NodeId]:
        """What must be in memory for a value to be computed."""
        repeats = self._repeats(node.id)
        found: set[NodeId] = set()
        for i in node.inputs:
            if (i, repeats) not in self._read_by:
                self._read_by[i, repeats] = self._memory_of(self._nodes[i], repeats)
            found |= self._read_by[i, repeats]
        return frozenset(found)

    def _memory_of(self, node: Node, repeats: bool) -> frozenset[NodeId]:
        """What is read for an operand; a map that `repeats` its operand reads what that one is made of."""
        if node.is_leaf:
            return frozenset({node.id})
        if isinstance(node.op, _VIEWS) and not self._is_stored[node.id]:
            return self._memory_of(self._nodes[node.inputs[0]], repeats)
        if self._is_stored[node.id] and not (repeats and self._is_repeated(node)):
            return frozenset({node.id})
        return self._sources(node)

    def _flops(self, node: Node) -> int:
        op = node.op
        if not isinstance(op, _PRODUCTS):
            return 0
        left = self._nodes[node.inputs[0]].shape.static_dims
        contracted = [left[i] for i in op.lhs_contracting] if isinstance(op, DotGeneral) else left[-1:]
        return 2 * math.prod(node.shape.static_dims) * math.prod(contracted)


def _bytes(node: Node) -> int:
    return sum(math.prod(shape.static_dims) * shape.dtype.size_bytes for shape in node.shapes)


def _is_map(op: Op) -> bool:
    """Whether each element is computed alone, so that a reader may compute it for itself."""
    return op.is_elementwise or isinstance(op, Transpose | Expand | Slice | Pad | Iota)


def _is_expensive(op: Op) -> bool:
    if isinstance(op, Activation):
        return op.kind.value not in _CHEAP
    return isinstance(op, Binary) and op.kind in _EXPENSIVE
