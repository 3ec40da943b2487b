"""Composite ops taken apart into what kernels are made of, for targets with our own generator.

An op is decomposed when everything it decomposes into has a kernel: softmax and norms become reductions and maps, which
grouping joins again; a sort stays what it is. Some ops have a form that suits kernels better than their decomposition:
a label is compared with the positions of its row instead of being looked up there, padding joins constants around
a value, and a sum of everything is formed row by row first, so that all threads take part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlx.compile.fuse.can_join import SMALL_ROW
from rlx.compile.fuse.index_maps import without_ones
from rlx.compile.fuse.node_roles import kernel_kind
from rlx.compile.generators import Generator
from rlx.compile.lower.byte_products import byte_products
from rlx.compile.lower.channels_last import channels_last
from rlx.compile.lower.code_products import code_product
from rlx.compile.lower.column_sums import column_parts
from rlx.compile.lower.complex_numbers import complex_form, stored_pairs
from rlx.compile.lower.complex_scans import scan_of_parts
from rlx.compile.lower.concat import done_to_parts, joined_both_ways
from rlx.compile.lower.conv import conv_form
from rlx.compile.lower.experts import routed_form
from rlx.compile.lower.factorizations import FACTOR_FORMS
from rlx.compile.lower.fft import fft_form
from rlx.compile.lower.fft_plan import plan_real_transform, plan_transform, transforms_along_axes
from rlx.compile.lower.least_squares import least_squares
from rlx.compile.lower.long_products import long_products
from rlx.compile.lower.lu_steps import lu_in_steps
from rlx.compile.lower.pair_factors import GENERAL_FORMS, PAIR_FORMS
from rlx.compile.lower.powers import power_form
from rlx.compile.lower.radix_sort import radix_form
from rlx.compile.lower.repeated_values import places_and_labels, repeated_form
from rlx.compile.lower.running_parts import parts_form
from rlx.compile.lower.scan_panels import scan_panels
from rlx.compile.lower.scans import checked_behind
from rlx.compile.lower.sized_factors import SIZED_FORMS, shared_form
from rlx.compile.lower.sort import ORDER_FORMS
from rlx.compile.lower.splat import SPLAT_FORMS
from rlx.compile.lower.top_parts import top_parts
from rlx.compile.lower.value_sorts import value_sorts
from rlx.compile.lower.window_products import window_products
from rlx.compile.weights.pack_blocks import panel_form
from rlx.errors import InternalError
from rlx.ir.dims import dim_max, product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL
from rlx.ir.leaves import Input, Project
from rlx.ir.op import Op
from rlx.ir.rewrite.equal_nodes import merge_equal_nodes
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.shape import Shape, Size, normalize_axes
from rlx.ir.tensor import Tensor, building, emit_into
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import TO_BHSD, AttentionLayout
from rlx.ops.control.scans import Scan
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.linalg.contraction import GroupedMatMul, MatMul
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.losses import SoftmaxCrossEntropyBackward, SoftmaxCrossEntropyWithLogits
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, eq, where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import exp, log
from rlx.ops.quant.quantized_lookup import DequantGather
from rlx.ops.quant.quantized_weights import DequantGroupedMatMul, DequantMatMul, DequantMoEWeights
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.reductions import Reduce, ReduceOp, Softmax, reduce_max, reduce_sum, softmax
from rlx.ops.shape.movement import (
    Concat,
    Expand,
    Narrow,
    Pad,
    Reshape,
    Transpose,
    concat,
    expand,
    expand_dims,
    narrow,
    reshape,
    squeeze,
    transpose,
)
from rlx.ops.signal.fourier import Fft
from rlx.ops.signal.real_fourier import Irfft, Rfft

Form = Callable[..., Any]

# Decomposed, it would store what it exists to avoid: all scores.
WHOLE = (Attention,)

# Rows into which one long axis is cut: so many at most and at least, and elements of a row at least; and those of a row
# that is long enough by itself.
MAX_ROWS, MIN_ROWS, SHORT_ROW, LONG_ROW = 1024, 16, 1024, 4096
# Forms are made of simpler ops, so that few rounds are needed, and one more for each body that lies in another one.
MAX_ROUNDS = 32


def kernel_forms(graph: Graph, generator: Generator) -> Graph:
    """The graph with every op in the form in which it has kernels, as far as it has one; nothing is computed twice."""
    forms = _Forms(generator)
    if generator.multiplies_bytes:
        graph = byte_products(graph)
    if generator.multiplies_windows:
        graph = window_products(graph)
    if generator.reads_pixels:
        graph = channels_last(graph)
    if generator.panel_width is not None:
        graph = scan_panels(long_products(graph), generator)
    if generator.has_f64:
        graph = least_squares(graph)
    if generator.sorts_values:
        graph = value_sorts(graph)
    if generator.sorts_blocks:
        graph = top_parts(graph)
    if generator.line_bytes and any(isinstance(n.op, Fft) for n in graph.nodes):
        graph = transforms_along_axes(graph, generator.line_bytes, generator.shares_lines)
    is_merged = True
    rounds = MAX_ROUNDS + graph.nesting
    for _ in range(rounds):
        forms.look_at(graph)
        if any(forms.form(n, [graph.tensor(i) for i in n.inputs]) for n in graph.nodes if n.inputs):
            graph, is_merged = rebuild(graph, forms.visit, "kernel_forms").graph, False
        elif not is_merged:
            # Values that had several readers may have one now, and with it another form.
            graph, is_merged = merge_equal_nodes(graph).graph, True
        else:
            return stored_pairs(graph)
    raise InternalError(f"@{graph.name}: after {rounds} rounds some ops still have another form")


def name_results(graph: Graph, generator: Generator) -> Graph:
    """Every result of an op with a kernel of its own has one name: the kernel stores it once, read or not."""
    graph = _named_once(graph)
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


def _named_once(graph: Graph) -> Graph:
    """The graph without second names of a result: a program may write them, of ops that are never merged too."""
    names = Counter((n.inputs[0], n.op.index) for n in graph.nodes if isinstance(n.op, Project))
    sources = {source for (source, _), count in names.items() if count > 1}
    if not sources:
        return graph
    new = graph.empty_like()

    def visit(node: Node, operands: list[Any]) -> Replacement:
        replacement: Replacement = emit_into(new, node.op, operands) if node.id in sources else None
        return replacement

    return rebuild(graph, visit, "name_results", into=new).graph


class _Forms:
    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.known: dict[tuple[Op, tuple[Shape, ...]], bool] = {}

    def look_at(self, graph: Graph) -> None:
        """The graph whose nodes are asked for from now on."""
        self.graph, self.uses = graph, graph.use_map()

    def visit(self, node: Node, operands: list[Any]) -> Replacement:
        form = self.form(node, operands)
        result: Replacement = None if form is None else form(*operands)
        return result

    def turned_form(self, node: Node, operands: list[Tensor]) -> Form | None:
        """Where products read operands across at no cost, these are not turned before, nor results after."""
        if isinstance(node.op, Reshape):
            return _joined_behind(node.op, *operands)
        if isinstance(node.op, Transpose) and self.is_only_reader(node):
            return _turned_product(node.op, *operands)
        return None

    def form(self, node: Node, operands: list[Tensor]) -> Form | None:
        """How a node is written for kernels; None if it stays as it is."""
        op = node.op
        if self.generator.repeats_values and (form := repeated_form(op, *operands)) is not None:
            return form
        if (form := self.better_form(op, operands)) is not None:
            return form
        if self.generator.reads_turned and (form := self.turned_form(node, operands)) is not None:
            return form
        if self.generator.cuts_columns and isinstance(op, Reduce) and (form := column_parts(op, *operands)) is not None:
            return form
        if isinstance(op, Transpose) and self.is_only_reader(node) and _turns_heads(op, *operands):
            return _heads_last
        if (form := done_to_parts(self.graph, self.uses, self.generator, node, operands)) is not None:
            return form
        if (form := joined_both_ways(self.graph, self.uses, node, operands)) is not None:
            return form
        graph = operands[0].graph if operands else None
        if graph is None or not self.may_decompose(op):
            return None
        # A body that is called is part of the program, whether or not all of it has kernels.
        is_wanted = op.bodies or self.has_kernels(op, tuple(x.type for x in operands))
        return op.decompose if is_wanted else None

    def better_form(self, op: Op, operands: Sequence[Any]) -> Form | None:
        """A form of an op that suits kernels better than its decomposition."""
        if isinstance(op, Fft) and self.generator.line_bytes:
            planned = plan_transform(op, operands[0], self.generator.line_bytes, self.generator.shares_lines)
            if planned is not None:
                return planned
        if isinstance(op, Rfft | Irfft) and self.generator.line_bytes:
            return plan_real_transform(op, operands[0], self.generator.line_bytes, self.generator.shares_lines)
        if isinstance(op, SortOrder) and self.generator.sorts_blocks:
            return radix_form(op, *operands)
        if isinstance(op, Cumulative) and self.generator.sorts_blocks:
            parts = parts_form(op, *operands)
            if parts is not None:
                return parts
        if isinstance(op, Binary) and op.kind is BinaryOp.Pow and not operands[0].dtype.is_complex:
            return power_form(self.generator.has_f64, *operands)
        width = self.generator.panel_width
        if isinstance(op, MatMul) and self.generator.has_dot4 and width is not None:
            codes = code_product(op, width, *operands)
            if codes is not None:
                return codes
        if not self.generator.has_f64 and type(op) in IN_F64:
            return None
        if isinstance(op, Concat) and 0 < self.generator.most_operands < len(operands):
            return partial(_joined_in_steps, op, self.generator.most_operands)
        if isinstance(op, Lu) and self.generator.shares_steps and (steps := lu_in_steps(*operands)) is not None:
            return steps
        if self.generator.factor_bytes:
            shared = shared_form(op, operands, self.generator.factor_bytes)
            if shared is not None:
                return shared
        is_pair = type(op) in PAIR_FORMS and any(x.dtype.is_complex for x in operands)
        better = (PAIR_FORMS if is_pair else _BETTER).get(type(op))
        form = complex_form(op, operands, self.generator.has_f64)
        return better(op, *operands) if form is None and better is not None else form

    def is_only_reader(self, node: Node) -> bool:
        (operand,) = node.inputs
        return len(self.uses[operand]) == 1 and operand not in self.graph.outputs

    def may_decompose(self, op: Op) -> bool:
        return not (op.is_primitive or op.is_block or op.effect or isinstance(op, WHOLE))

    def has_kernels(self, op: Op, types: tuple[Shape, ...]) -> bool:
        """Whether an op has none itself, but everything that it decomposes into has."""
        if (op, types) not in self.known:
            self.known[op, types] = not self.has_kernel(op, types) and self.parts_have_kernels(op, types)
        return self.known[op, types]

    def has_kernel(self, op: Op, types: tuple[Shape, ...]) -> bool:
        graph = _alone(op, types)
        # Behind the op are its results, if it has several.
        return kernel_kind(graph, graph.nodes[len(types)], self.generator) != CALL

    def parts_have_kernels(self, op: Op, types: tuple[Shape, ...]) -> bool:
        assert op.decompose is not None
        graph = _alone(op.decompose, types)
        return all(self.ends_in_kernels(graph, n) for n in graph.nodes if n.inputs)

    def ends_in_kernels(self, graph: Graph, node: Node) -> bool:
        """Whether a node has a kernel, or a form that has."""
        if isinstance(node.op, Project):
            # The kernel of its operand stores it.
            return True
        if kernel_kind(graph, node, self.generator) != CALL:
            return True
        if self.better_form(node.op, [graph.tensor(i) for i in node.inputs]) is not None:
            return True
        return self.may_decompose(node.op) and self.has_kernels(node.op, tuple(graph.shape(i) for i in node.inputs))


def _alone(build: Form, types: tuple[Shape, ...]) -> Graph:
    """A graph of one op, or of what it decomposes into."""
    graph = Graph("alone")
    with building(graph):
        build(*(graph.tensor(graph.append(Input(f"x{i}", t)).id) for i, t in enumerate(types)))
    return graph


def _joined_in_steps(op: Concat, most: int, *operands: Any) -> Any:
    """So many values after each other, and what they become, until there are no more than that."""
    return op(*(concat(operands[i : i + most], op.axis) for i in range(0, len(operands), most)))


def _is_label(logits: Any, labels: Any) -> Any:
    """Where a position along the last axis is the label of its row."""
    return eq(*places_and_labels(logits, labels))


def _softmax(op: Op, *operands: Any) -> Form:
    """e^(x - max)·(1/Σ): one division for a row instead of one for each of its elements."""
    assert isinstance(op, Softmax)

    def build(x: Any) -> Any:
        (wide,) = accumulators(x)
        powers = exp(wide - reduce_max(wide, op.axis, keepdims=True))
        return rounded_tensor(powers * (1.0 / reduce_sum(powers, op.axis, keepdims=True)), x.dtype)

    return build


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


def _padding(op: Op, *operands: Any) -> Form:
    """Constants joined between elements, in front and behind, axis by axis, and what is too much cut off.

    The last axis is first: what is added along the others are then whole rows.
    """
    assert isinstance(op, Pad)

    def build(x: Any, value: Any) -> Any:
        wanted = op.infer(x.type, value.type).dims
        for axis, (low, high, interior) in reversed([*enumerate(zip(op.low, op.high, op.interior))]):
            x = _spread_out(x, value, axis, interior) if interior else x
            before, behind = (_filled(x, value, axis, dim_max(n, 0)) for n in (low, high))
            x = concat([*before, x, *behind], axis) if before or behind else x
            x = narrow(x, axis, dim_max(-low, 0), wanted[axis]) if x.shape[axis] != wanted[axis] else x
        return x

    return build


def _spread_out(x: Any, value: Any, axis: int, interior: int) -> Any:
    """x with so many values between neighbours: behind each element first, then without those at the end."""
    size = x.shape[axis]
    if size in (0, 1):
        return x
    wide = concat(
        [expand_dims(x, axis + 1), expand(value, (*x.shape[: axis + 1], interior, *x.shape[axis + 1 :]))], axis + 1
    )
    flat = reshape(wide, (*x.shape[:axis], size * (interior + 1), *x.shape[axis + 1 :]))
    return narrow(flat, axis, 0, dim_max(size * (interior + 1) - interior, 0))


def _filled(x: Any, value: Any, axis: int, length: Any) -> list[Any]:
    dims = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    return [] if length == 0 else [expand(value, dims)]


def _joined_batches(op: Op, *operands: Any) -> Form | None:
    """Products whose leading axes broadcast against each other, with one leading axis at most.

    Axes that only a has become rows of it, as the query heads of one key head do; other operands are expanded.
    """
    a, b = operands
    rank = max(a.ndim, b.ndim) - 2
    of_a, of_b = ((*(1,) * (rank + 2 - x.ndim), *x.shape[:-2]) for x in (a, b))
    lead = tuple(q if p == 1 else p for p, q in zip(of_a, of_b))
    if all(p == 1 for p in of_b) or of_a == of_b or a.dtype.is_complex:
        return None
    rows = 0
    while rows < rank and of_b[rank - 1 - rows] == 1:
        rows += 1
    split = rank - rows
    if of_a[:split] != of_b[:split]:
        rows, split = 0, rank

    def build(a: Any, b: Any) -> Any:
        if not rows:
            a, b = (expand(reshape(x, (*p, *x.shape[-2:])), (*lead, *x.shape[-2:])) for x, p in ((a, of_a), (b, of_b)))
        batch = product(lead[:split])
        joined = op(
            reshape(a, (batch, product(lead[split:]) * a.shape[-2], a.shape[-1])), reshape(b, (batch, *b.shape[-2:]))
        )
        return reshape(joined, (*lead, a.shape[-2], b.shape[-1]))

    return build


def _two_steps(op: Op, *operands: Any) -> Form | None:
    """Everything joined: the last axis first, so that there are rows to deal out; one long axis is cut into rows."""
    (x,) = operands
    assert isinstance(op, Reduce)
    if op.kind is ReduceOp.Mean or x.dtype.is_complex or isinstance(x.node.op, Reduce):
        return None
    axes = normalize_axes(op.axes, x.ndim, op.mnemonic)
    joined = [a for a in axes if x.shape[a] != 1]
    if not joined or len(joined) != len(without_ones(x.shape)):
        return None
    count = product(x.shape)
    if isinstance(count, int) and count <= SMALL_ROW:
        return None
    # Of what lies in memory short rows are joined, too: each has an end of its own.
    is_cut = len(joined) == 1 or (x.node.is_leaf and _is_short(x.shape[joined[-1]]))
    rows = _row_count(count) if is_cut else None
    if rows is None and len(joined) == 1:
        return None
    result = op.infer(x.type)

    def build(x: Any) -> Any:
        (wide,) = accumulators(x if rows is None else reshape(x, (rows, count // rows)))
        parts = Reduce(op.kind, (joined[-1] if rows is None else 1,), True)(wide)
        total = Reduce(op.kind, tuple(range(parts.ndim)), False)(parts)
        return rounded_tensor(reshape(total, result.dims), x.dtype)

    return build


def _is_short(length: Size) -> bool:
    return isinstance(length, int) and length < LONG_ROW


def _row_count(length: Size) -> int | None:
    """Into how many equal rows one long axis is cut, some for each worker and none too short; None if it cannot be."""
    if not isinstance(length, int):
        return None
    return next((rows for rows in range(min(MAX_ROWS, length // SHORT_ROW), MIN_ROWS, -1) if length % rows == 0), None)


def _unchanged(op: Op, *operands: Any) -> Form | None:
    """A view that is its operand: it would stand between two that belong together."""
    (x,) = operands
    match op:
        case Narrow(axis=axis, len=length):
            is_same = length == x.shape[axis]
        case Reshape(new_shape=dims) | Expand(target_shape=dims):
            is_same = dims == x.shape
        case _:
            assert isinstance(op, Cast)
            is_same = op.to is x.dtype
    return (lambda x: x) if is_same else None


def _joined_behind(op: Reshape, x: Tensor) -> Form | None:
    """A matrix of joined axes that were turned, as a turned matrix of joined axes: products read that by its strides,
    as those of gradients of weights do. [B, S, K] -> [K, B, S] -> [K, B·S] is [B, S, K] -> [B·S, K] -> [K, B·S]."""
    turned = x.node.op
    if not isinstance(turned, Transpose) or x.ndim < 3 or len(op.new_shape) != 2:
        return None
    last = x.ndim - turned.perm[0]
    if turned.perm != (*range(turned.perm[0], x.ndim), *range(turned.perm[0])):
        return None
    rows, columns = product(x.shape[:last]), product(x.shape[last:])
    if op.new_shape != (rows, columns):
        return None
    source = x.node.inputs[0]
    return lambda x: transpose(reshape(x.graph.tensor(source), (columns, rows)), (1, 0))


def _turned_product(op: Transpose, x: Tensor) -> Form | None:
    """(A·B)ᵀ as Bᵀ·Aᵀ."""
    made = x.node.op
    if not isinstance(made, MatMul) or x.ndim != 2 or op.perm != (1, 0):
        return None
    a, b = (x.graph.tensor(i) for i in x.node.inputs)
    return None if a.ndim != 2 or b.ndim != 2 else lambda x: made(transpose(b, (1, 0)), transpose(a, (1, 0)))


_SWAP_HEADS = TO_BHSD[AttentionLayout.Bshd]


def _turns_heads(op: Transpose, x: Tensor) -> bool:
    attention = x.node.op
    return isinstance(attention, Attention) and attention.layout is AttentionLayout.Bhsd and op.perm == _SWAP_HEADS


def _heads_last(x: Tensor) -> Any:
    """Attention whose result is turned to [B, S, H, D]: it is stored so, and operands are read by their strides."""
    attention = x.node.op
    assert isinstance(attention, Attention)
    q, k, v, *extras = (x.graph.tensor(i) for i in x.node.inputs)
    turned = (transpose(t, _SWAP_HEADS) for t in (q, k, v))
    return attention.replace(layout=AttentionLayout.Bshd)(*turned, *extras)


def _scan(op: Op, *operands: Any) -> Form | None:
    """First in parts, then with checks behind it."""
    form = scan_of_parts(op, *operands)
    return checked_behind(op, *operands) if form is None else form


LOSS_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    SoftmaxCrossEntropyWithLogits: _cross_entropy,
    SoftmaxCrossEntropyBackward: _cross_entropy_gradient,
}
# What their forms compute in f64, whatever the type of the operands.
IN_F64 = {*FACTOR_FORMS, *SIZED_FORMS, *PAIR_FORMS, *GENERAL_FORMS}
_BETTER: dict[type[Op], Callable[..., Form | None]] = {
    Softmax: _softmax,
    **LOSS_FORMS,
    Pad: _padding,
    **dict.fromkeys((Narrow, Reshape, Expand, Cast), _unchanged),
    MatMul: _joined_batches,
    Reduce: _two_steps,
    **ORDER_FORMS,
    **FACTOR_FORMS,
    **SIZED_FORMS,
    **GENERAL_FORMS,
    **SPLAT_FORMS,
    Conv: conv_form,
    Fft: fft_form,
    Scan: _scan,
    GroupedMatMul: routed_form,
    **dict.fromkeys((DequantMatMul, DequantGather, DequantGroupedMatMul, DequantMoEWeights), panel_form),
}
