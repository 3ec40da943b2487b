"""Attention that a program writes out, as the op that never stores its scores.

    softmax(s·q @ kᵀ + bias) @ v   ->   attention(q, k, v, bias)

Scores may be scaled before or after their product, keys and values repeated for groups of heads, scores masked by
`where`, and shares of rows that see nothing set to 0 afterwards. Scores and shares that others read stay as they are.

What attention gives to a row that sees no key is 0; written out it is NaN, or the same share of every key where a large
number hides scores. Biases say this to the kernel: NaN for a row of -inf alone, and no number that overflows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from rlx.compile.generators import Generator
from rlx.compile.lower.infinite_values import may_be_infinite
from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.shape import normalize_axes
from rlx.ir.tensor import Tensor, building
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import MaskKind
from rlx.ops.define.operands import convert
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, Where, eq, maximum, where
from rlx.ops.pointwise.bits import Predicate, PredicateKind
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.reduction.reductions import Softmax, reduce_max
from rlx.ops.shape.movement import Expand, Reshape, Transpose, expand_dims, reshape, transpose

# A bias that hides a key as surely as the lowest number does, and stays finite in units of a power of 2.
HIDDEN = -1e38
# What `where` puts in the place of scores to hide them: so low that nothing is left of its power.
LEAST_HIDING = -1e4
# Heads up to which one kernel is as fast as two products of large matrices.
WIDEST = 256


class _Step(NamedTuple):
    """What is done to scores, which are the operand of this number."""

    node: Node
    scores: int


class _Scores(NamedTuple):
    """A product of queries and keys, what it is multiplied by, and what is done to it then, from the last step back."""

    product: Node
    scale: float
    steps: tuple[_Step, ...] = ()


def join_attention(graph: Graph, generator: Generator) -> Graph:
    """The graph with attention as one op wherever it is written out and the generator has a kernel for it."""
    if not any(isinstance(n.op, Softmax) for n in graph.nodes) and not any(n.op.bodies for n in graph.nodes):
        return graph

    @rewrites(MatMul, exact=False)
    def written_attention(m: Match) -> Tensor | None:
        """softmax(s·q @ kᵀ + bias) @ v -> attention(q, k, v, bias)"""
        return _joined(m, generator)

    graph = rebuild_bodies(graph, lambda body: join_attention(body, generator), "join_attention").graph
    return apply_rules(graph, RuleSet("join_attention", [written_attention]), "join_attention").graph


def _joined(m: Match, generator: Generator) -> Tensor | None:
    # Plain matrices are as a rule the weights of two layers, which products read in panels.
    if m.op != MatMul() or not m.node.shape.dtype.is_float or m.node.shape.rank not in (3, 4):
        return None
    found = _shares(m)
    if found is None:
        return None
    shares, guard = found
    scores = _scores(m, m.input_of(shares, 0), 1.0)
    if scores is None or not _fits(m, guard, scores):
        return None
    return _attention(m, scores, guard is not None, generator)


def _shares(m: Match) -> tuple[Node, Node | None] | None:
    """The softmax that is multiplied with v, and what keeps its shares only where they are numbers, or seen."""
    node = _behind_casts(m, m.producer(0))
    if node is None or not m.is_only_use(node):
        return None
    if isinstance(node.op, Softmax):
        return (node, None) if _is_last(node) else None
    kept = next((i for i in (1, 2) if _number(m.input_of(node, 3 - i)) == 0), 0) if isinstance(node.op, Where) else 0
    shares = m.input_of(node, kept) if kept else node
    if not isinstance(shares.op, Softmax) or not _is_last(shares) or m.is_output(shares):
        return None
    readers = 2 if _asks_for_nan(m, node) else 1
    return (shares, node) if len(m.users(shares)) == readers else None


def _asks_for_nan(m: Match, guard: Node) -> bool:
    condition = m.input_of(guard, 0)
    is_question = isinstance(condition.op, Predicate) and condition.op.kind is PredicateKind.IsNan
    return is_question and condition.inputs[0] == guard.inputs[2] and m.is_only_use(condition)


def _fits(m: Match, guard: Node | None, scores: _Scores) -> bool:
    """Whether a guard makes 0 of exactly the rows that attention makes 0 of."""
    if guard is None or _asks_for_nan(m, guard):
        return True
    if not scores.steps:
        return False
    (last, kept), *others = scores.steps
    same = (
        isinstance(last.op, Where) and last.inputs[0] == guard.inputs[0] and _number(m.input_of(guard, 3 - kept)) == 0
    )
    return same and _is_minus_infinity(m, last, kept) and not any(_may_hide(m, step) for step in others)


def _is_last(node: Node) -> bool:
    assert isinstance(node.op, Softmax)
    return normalize_axes((node.op.axis,), node.shape.rank, "softmax") == (node.shape.rank - 1,)


def _behind_casts(m: Match, node: Node) -> Node | None:
    """What floats were before they were cast for one reader."""
    while isinstance(node.op, Cast) and m.input_of(node, 0).shape.dtype.is_float:
        if not m.is_only_use(node):
            return None
        node = m.input_of(node, 0)
    return node


def _number(node: Node) -> float | None:
    """The number of a constant that is one number throughout."""
    if isinstance(node.op, Constant):
        array = node.op.value.array
        if array.size and array.dtype.kind not in "bc":
            first = array.reshape(-1)[0]
            return float(first) if array.size == 1 or np.all(array == first) else None
    return None


def _scores(m: Match, start: Node, factor: float) -> _Scores | None:
    """How a node comes from a product of queries and keys; scaling comes first, if at all."""
    node = _behind_casts(m, start)
    if node is None or not m.is_only_use(node):
        return None
    if isinstance(node.op, MatMul):
        return _Scores(node, factor) if node.op == MatMul() else None
    if isinstance(node.op, Binary) and node.op.kind in (BinaryOp.Mul, BinaryOp.Div):
        x, number = m.input_of(node, 0), _number(m.input_of(node, 1))
        if not number or not math.isfinite(number) or x.shape.dims != node.shape.dims:
            return None
        below = _scores(m, x, factor * number if node.op.kind is BinaryOp.Mul else factor / number)
        return below if below is not None and not below.steps else None
    for number in _score_operands(m, node):
        operand = m.input_of(node, number)
        if operand.shape.dims == node.shape.dims and (below := _scores(m, operand, factor)) is not None:
            return below._replace(steps=(_Step(node, number), *below.steps))
    return None


def _score_operands(m: Match, node: Node) -> tuple[int, ...]:
    """Which operands of a node may be scores that it adds to, or hides some of."""
    if isinstance(node.op, Where):
        return tuple(i for i in (1, 2) if (_number(m.input_of(node, 3 - i)) or 0.0) <= LEAST_HIDING)
    if not isinstance(node.op, Binary):
        return ()
    return {BinaryOp.Add: (0, 1), BinaryOp.Sub: (0,)}.get(node.op.kind, ())


def _attention(m: Match, scores: _Scores, is_guarded: bool, generator: Generator) -> Tensor | None:
    queries, turned = (m.input_of(scores.product, i) for i in (0, 1))
    values = m.producer(1)
    lead = m.node.shape.dims[:-2]
    if any(x.shape.dims[:-2] != lead for x in (queries, turned, values)):
        return None
    heads, depth = (lead[1] if len(lead) == 2 else 1), queries.shape.dims[-1]
    if not isinstance(heads, int) or not isinstance(depth, int) or not heads or not 0 < depth <= WIDEST:
        return None
    if not queries.shape.dtype is turned.shape.dtype is values.shape.dtype is m.node.shape.dtype:
        return None
    scale = scores.scale
    queries, scale = _unscaled(m, queries, scale)
    turned, scale = _unscaled(m, turned, scale)
    kind = MaskKind.Bias if scores.steps else MaskKind.NoMask
    keys_of, values_of = _Rows(m, turned, True), _Rows(m, values, False)
    shared = keys_of.shared if keys_of.shared == values_of.shared else heads
    op = Attention(heads, depth, kind, num_kv_heads=shared, score_scale=scale)
    q = _as_heads(m.value(queries.id), heads)
    k, v = keys_of.tensor(shared), values_of.tensor(shared)
    bias = [_bias(m, scores, is_guarded)] if scores.steps else []
    if not _has_kernel(op, [x.type for x in (q, k, v, *bias)], generator):
        return None
    return reshape(op(q, k, v, *bias), m.node.shape.dims)


def _has_kernel(op: Attention, types: list[Any], generator: Generator) -> bool:
    alone = Graph("alone")
    with building(alone):
        found = op(*(alone.input(f"x{i}", t) for i, t in enumerate(types)))
    return generator.own_kernel(alone, found.node) is not None


def _unscaled(m: Match, node: Node, scale: float) -> tuple[Node, float]:
    """An operand of scores before it was multiplied by a number."""
    if isinstance(node.op, Binary) and node.op.kind in (BinaryOp.Mul, BinaryOp.Div) and m.is_only_use(node):
        number, x = _number(m.input_of(node, 1)), m.input_of(node, 0)
        if number and math.isfinite(number) and x.shape == node.shape:
            return x, scale * number if node.op.kind is BinaryOp.Mul else scale / number
    return node, scale


def _as_heads(x: Tensor, heads: Any) -> Any:
    """[.., S, D] as [B, heads, S, D]."""
    return x if x.ndim == 4 else reshape(x, (product(x.shape[:-2]), heads, *x.shape[-2:]))


class _Rows:
    """Keys or values as rows: turned back, and once for all heads that share them."""

    def __init__(self, m: Match, node: Node, is_turned: bool) -> None:
        self.m, self.node, self.is_turned = m, node, is_turned
        dims = node.shape.dims
        self.heads = dims[1] if len(dims) == 4 else 1
        self.wanted = (*dims[:-2], dims[-1], dims[-2]) if is_turned else dims
        source = self._turned_back() if is_turned else node
        self.source = source
        self.repeated = None if source is None else self._below_repeats(source)
        self.shared: Any = self.heads if self.repeated is None else self.repeated.shape.dims[1]

    def tensor(self, shared: Any) -> Any:
        """[B, shared, S, D]."""
        if self.repeated is not None and shared == self.shared:
            batch, heads, _, *rest = self.repeated.shape.dims
            return reshape(self.m.value(self.repeated.id), (batch, heads, *rest))
        if self.source is not None:
            return _as_heads(reshape(self.m.value(self.source.id), self.wanted), self.heads)
        x = self.m.value(self.node.id)
        return _as_heads(transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)), self.heads)

    def _turned_back(self) -> Node | None:
        """What was turned, where the two last axes alone were, before or after leading axes were joined or cut."""
        node, last = self.node, self.node.shape.dims[-2:]
        while isinstance(node.op, Reshape) and self.m.input_of(node, 0).shape.dims[-2:] == last:
            node = self.m.input_of(node, 0)
        if not isinstance(node.op, Transpose) or node.shape.rank < 2:
            return None
        rank = node.shape.rank
        is_turn = node.op.perm == (*range(rank - 2), rank - 1, rank - 2)
        return self.m.input_of(node, 0) if is_turn else None

    def _below_repeats(self, node: Node) -> Node | None:
        """[B, shared, 1, S, D], where heads are these repeated."""
        while isinstance(node.op, Reshape):
            node = self.m.input_of(node, 0)
        if not isinstance(node.op, Expand) or node.shape.rank != 5 or len(self.wanted) != 4:
            return None
        below, (batch, shared, times, *rest) = self.m.input_of(node, 0), node.shape.dims
        if below.shape.dims != (batch, shared, 1, *rest) or (batch, *rest) != (self.wanted[0], *self.wanted[2:]):
            return None
        return below if isinstance(shared, int) and shared * times == self.heads else None


def _bias(m: Match, scores: _Scores, is_guarded: bool) -> Any:
    """All that is added to scores, beside [B, H, queries, keys]; a row that must not be 0 says so."""
    wide = DType.F64 if scores.product.shape.dtype is DType.F64 else DType.F32
    total: Any = None
    for step in reversed(scores.steps):
        total = _with_step(m, step, total, wide)
    rank = scores.product.shape.rank
    total = expand_dims(total, tuple(range(rank - total.ndim))) if total.ndim < rank else total
    lowest = np.asarray(HIDDEN, wide.numpy)
    finite = maximum(total, lowest) if wide is DType.F32 else total
    if any(_may_hide(m, step) for step in scores.steps):
        finite = where(eq(total, -math.inf), np.asarray(-math.inf, wide.numpy), finite)
        if not is_guarded:
            sees_none = eq(reduce_max(total, (-1,), keepdims=True), -math.inf)
            finite = where(sees_none, np.asarray(math.nan, wide.numpy), finite)
    return expand_dims(finite, 1) if rank == 3 else finite


def _with_step(m: Match, step: _Step, total: Any, wide: DType) -> Any:
    node, kept = step
    if isinstance(node.op, Where):
        low = -math.inf if _is_minus_infinity(m, node, kept) else HIDDEN
        branches = [np.zeros((), wide.numpy) if total is None else total, np.asarray(low, wide.numpy)]
        return where(m.value(node.inputs[0]), *(branches if kept == 1 else branches[::-1]))
    other = m.input_of(node, 1 - kept)
    added = _lowest_hides(convert(m.value(other.id), wide), other.shape.dtype)
    assert isinstance(node.op, Binary)
    added = -added if node.op.kind is BinaryOp.Sub else added
    return added if total is None else total + added


def _is_minus_infinity(m: Match, node: Node, kept: int) -> bool:
    return _number(m.input_of(node, 3 - kept)) == -math.inf


def _lowest_hides(bias: Any, dtype: DType) -> Any:
    """Sums of halves with the lowest number are that number, whatever the score; in f32 it is not low enough."""
    if dtype is not DType.F16:
        return bias
    return where(bias <= float(ml_dtypes.finfo(dtype.numpy).min), np.asarray(HIDDEN, np.float32), bias)


def _may_hide(m: Match, step: _Step) -> bool:
    node, kept = step
    if isinstance(node.op, Where):
        return _is_minus_infinity(m, node, kept)
    # What is subtracted hides by +inf.
    return may_be_infinite(m.graph, node.inputs[1 - kept])
