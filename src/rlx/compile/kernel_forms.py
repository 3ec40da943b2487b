"""Composite ops taken apart into what kernels are made of, for targets with our own generator.

An op is decomposed when everything it decomposes into has a kernel: softmax and norms become reductions and maps, which
grouping joins again; a sort stays what it is. Some ops have a form that suits kernels better than their decomposition:
a label is compared with the positions of its row instead of being looked up there, padding joins constants around
a value, and a sum of everything is formed row by row first, so that all threads take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.compile.generators import Generator
from rlx.compile.grouping import SMALL_ROW
from rlx.compile.index_maps import at_most, without_ones
from rlx.compile.kernel_roles import kernel_kind
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.equal_nodes import merge_equal_nodes
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Input, Project
from rlx.ir.op import Op
from rlx.ir.rebuild import Replacement, rebuild
from rlx.ir.shape import Shape, normalize_axes
from rlx.ir.tensor import Tensor, building
from rlx.ops.arithmetic import eq, lt, maximum, minimum, where
from rlx.ops.attend import Attention
from rlx.ops.attend_gradients import AttentionBackward
from rlx.ops.conversion import cast
from rlx.ops.creation import dim_value, iota
from rlx.ops.losses import SoftmaxCrossEntropyBackward, SoftmaxCrossEntropyWithLogits
from rlx.ops.movement import Pad, concat, expand, expand_dims, squeeze
from rlx.ops.operands import same_graph
from rlx.ops.quantized import QConv2d, QMatMul
from rlx.ops.quantized_weights import DequantGroupedMatMul, DequantMatMul
from rlx.ops.reductions import Reduce, ReduceOp, reduce_max, reduce_sum, softmax
from rlx.ops.unary import exp, log
from rlx.ops.widening import accumulators, rounded_tensor

Form = Callable[..., Any]

# Decomposed, these would store what they exist to avoid: all scores, all weights.
WHOLE = (Attention, AttentionBackward, DequantMatMul, DequantGroupedMatMul, QMatMul, QConv2d)


def kernel_forms(graph: Graph, generator: Generator) -> Graph:
    """The graph with every op in the form in which it has kernels, as far as it has one; nothing is computed twice."""
    forms = _Forms(generator)
    start = graph
    while True:
        before = forms.applied
        rebuilt = rebuild(graph, forms.visit, "kernel_forms").graph
        if forms.applied == before:
            break
        graph = rebuilt
    if graph is not start:
        graph = merge_equal_nodes(graph).graph
    return _with_all_results(graph, generator)


def _with_all_results(graph: Graph, generator: Generator) -> Graph:
    """Every result of an op with a kernel of its own has a name: the kernel stores it, whether somebody reads or not."""
    missing: list[tuple[NodeId, int]] = []
    named = {(n.inputs[0], n.op.index) for n in graph.nodes if isinstance(n.op, Project)}
    for node in graph.nodes:
        if len(node.shapes) > 1 and generator.own_kernel(graph, node) is not None:
            missing += [(node.id, i) for i in range(len(node.shapes)) if (node.id, i) not in named]
    if missing:
        graph = graph.copy()
        for source, index in missing:
            graph.append(Project(index), [source])
    return graph


class _Forms:
    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.applied = 0
        self.known: dict[tuple[Op, tuple[Shape, ...]], bool] = {}

    def visit(self, node: Node, operands: list[Any]) -> Replacement:
        form = self.form(node, operands)
        if form is None:
            return None
        self.applied += 1
        result: Replacement = form(*operands)
        return result

    def form(self, node: Node, operands: list[Tensor]) -> Form | None:
        """How a node is written for kernels; None if it stays as it is."""
        op = node.op
        better = _BETTER.get(type(op))
        if better is not None and (form := better(op, *operands)) is not None:
            return form
        graph = operands[0].graph if operands else None
        if graph is None or not self.may_decompose(op):
            return None
        return op.decompose if self.has_kernels(op, tuple(x.type for x in operands)) else None

    def may_decompose(self, op: Op) -> bool:
        return not (op.is_primitive or op.is_block or op.effect or op.bodies or isinstance(op, WHOLE))

    def has_kernels(self, op: Op, types: tuple[Shape, ...]) -> bool:
        """Whether an op has none itself, but everything that it decomposes into has."""
        if (op, types) not in self.known:
            self.known[op, types] = not self.has_kernel(op, types) and self.parts_have_kernels(op, types)
        return self.known[op, types]

    def has_kernel(self, op: Op, types: tuple[Shape, ...]) -> bool:
        graph = _alone(op, types)
        return kernel_kind(graph, graph.nodes[-1], self.generator) != "call"

    def parts_have_kernels(self, op: Op, types: tuple[Shape, ...]) -> bool:
        assert op.decompose is not None
        graph = _alone(op.decompose, types)
        parts = [n for n in graph.nodes if n.inputs]
        return all(
            kernel_kind(graph, n, self.generator) != "call"
            or (self.may_decompose(n.op) and self.has_kernels(n.op, tuple(graph.shape(i) for i in n.inputs)))
            for n in parts
        )


def _alone(build: Form, types: tuple[Shape, ...]) -> Graph:
    """A graph of one op, or of what it decomposes into."""
    graph = Graph("alone")
    with building(graph):
        build(*(graph.tensor(graph.append(Input(f"x{i}", t)).id) for i, t in enumerate(types)))
    return graph


def _is_label(logits: Any, labels: Any) -> Any:
    """Where a position along the last axis is the label of its row; labels are clipped, and negative ones count from
    the end."""
    with same_graph(logits):
        count = dim_value(logits.shape[-1], DType.I64)
        ids = cast(labels, DType.I64)
        ids = maximum(minimum(where(lt(ids, 0), ids + count, ids), count - 1), 0)
        positions = iota((logits.shape[-1],), DType.I32)
    return eq(positions, cast(expand_dims(ids, -1), DType.I32))


def _cross_entropy(op: Op, *operands: Any) -> Form:
    """log Σ e^x - x[label], the label found by comparing."""

    def build(logits: Any, labels: Any) -> Any:
        (wide,) = accumulators(logits)
        highest = reduce_max(wide, (-1,), keepdims=True)
        total = reduce_sum(exp(wide - highest), (-1,), keepdims=True)
        chosen = reduce_sum(where(_is_label(logits, labels), wide, 0.0), (-1,), keepdims=True)
        return rounded_tensor(squeeze(log(total) + (highest - chosen), -1), logits.dtype)

    return build


def _cross_entropy_gradient(op: Op, *operands: Any) -> Form:
    """(softmax(x) - [label])·dloss."""

    def build(logits: Any, labels: Any, dloss: Any) -> Any:
        wide, upstream = accumulators(logits, dloss)
        share = softmax(wide, -1)
        change = where(_is_label(logits, labels), share - 1.0, share)
        return rounded_tensor(change * expand_dims(upstream, -1), logits.dtype)

    return build


def _padding(op: Op, *operands: Any) -> Form | None:
    """Constants joined in front and behind, axis by axis; None if something is cut off or put between elements."""
    assert isinstance(op, Pad)
    amounts = (*op.low, *op.high)
    if any(op.interior) or not all(at_most(0, n) for n in amounts):
        return None

    def build(x: Any, value: Any) -> Any:
        for axis, sides in enumerate(zip(op.low, op.high)):
            low, high = (_filled(x, value, axis, n) for n in sides)
            if low or high:
                x = concat([*low, x, *high], axis)
        return x

    return build if any(n != 0 for n in amounts) else lambda x, value: x


def _filled(x: Any, value: Any, axis: int, length: Any) -> list[Any]:
    dims = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    return [] if length == 0 else [expand(value, dims)]


def _two_steps(op: Op, *operands: Any) -> Form | None:
    """Everything joined: the last axis first, so that there are rows to deal out."""
    (x,) = operands
    assert isinstance(op, Reduce)
    axes = normalize_axes(op.axes, x.ndim, op.mnemonic)
    joined = [a for a in axes if x.shape[a] != 1]
    is_all = len(joined) == len(without_ones(x.shape)) > 1
    count = product(x.shape)
    is_small = isinstance(count, int) and count <= SMALL_ROW
    if not is_all or is_small or op.kind is ReduceOp.Mean or x.dtype.is_complex or isinstance(x.node.op, Reduce):
        return None

    def build(x: Any) -> Any:
        (wide,) = accumulators(x)
        rows = Reduce(op.kind, (joined[-1],), True)(wide)
        return rounded_tensor(Reduce(op.kind, axes, op.keep_dim)(rows), x.dtype)

    return build


_BETTER: dict[type[Op], Callable[..., Form | None]] = {
    SoftmaxCrossEntropyWithLogits: _cross_entropy,
    SoftmaxCrossEntropyBackward: _cross_entropy_gradient,
    Pad: _padding,
    Reduce: _two_steps,
}
