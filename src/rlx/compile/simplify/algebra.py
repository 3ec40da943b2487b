"""Algebraic simplification: identities, inverse pairs, and canonical forms that other rules can rely on.

Exact rules leave every bit of every result as it is, for operands with NaN, infinities and signed zeros too (only which
NaN a NaN is may change). Inexact rules may change rounding, the sign of zeros, or what NaN and infinities lead to;
they are off unless the user asks for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from rlx.errors import RlxError
from rlx.ir.dims import collect_constraints
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import rebuild_bodies
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.shape import normalize_axes
from rlx.ir.tensor import Tensor
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, Clamp, CmpOp, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.movement import Concat, Expand, Narrow, Pad, Reshape, Reverse, Slice, Transpose

Array = np.ndarray[Any, np.dtype[Any]]


def _constant(node: Node) -> Array | None:
    """The value of a constant with elements; an empty one is filled with everything and so says nothing."""
    return node.op.value.array if isinstance(node.op, Constant) and node.op.value.array.size else None


def _is_filled_with(node: Node, value: float) -> bool:
    """Whether a node is a constant whose elements are all `value`, to the bit: 0.0 is not -0.0."""
    array = _constant(node)
    if array is None:
        return False
    wanted = np.asarray(value).astype(array.dtype)
    return bool(np.all(array.reshape(-1, 1).view(np.uint8) == wanted.reshape(1).view(np.uint8)))


def _left_if_right_is(m: Match, value: float) -> Tensor | None:
    """The left operand when the right one is filled with `value` and does not broadcast the left one."""
    if not _is_filled_with(m.producer(1), value):
        return None
    left: Tensor = m.operands[0]
    if left.type != m.node.shape:
        m.miss("broadcasts", f"the operand is {left.type}, the result {m.node.shape}")
        return None
    return left


_COMMUTES = (BinaryOp.Add, BinaryOp.Mul, BinaryOp.And, BinaryOp.Or, BinaryOp.Xor)
_MIRRORED = {CmpOp.Lt: CmpOp.Gt, CmpOp.Gt: CmpOp.Lt, CmpOp.Le: CmpOp.Ge, CmpOp.Ge: CmpOp.Le}


@rewrites(Binary, Compare, exact=True)
def constant_on_the_right(m: Match) -> Tensor | None:
    """c + x -> x + c, c < x -> x > c, and so on: one form for other rules to look for"""
    left = _constant(m.producer(0))
    if left is None or isinstance(m.producer(1).op, Constant):
        return None
    if isinstance(m.op, Compare):
        return _swapped(m, Compare(_MIRRORED.get(m.op.kind, m.op.kind)))
    if m.op.kind in (BinaryOp.Max, BinaryOp.Min):
        # Of 0.0 and -0.0 the second operand is taken.
        return _swapped(m, m.op) if left.dtype.kind in "iub" or np.all(left != 0) else None
    return _swapped(m, m.op) if m.op.kind in _COMMUTES else None


def _swapped(m: Match, op: Binary | Compare) -> Tensor:
    result: Tensor = op(m.operands[1], m.operands[0])
    return result


def _neutral_element(kind: BinaryOp, dtype: DType) -> float | None:
    """The e with x op e = x for all x. Complex products mix their parts, so 1 does not leave infinities alone."""
    match kind:
        case BinaryOp.Mul | BinaryOp.Div | BinaryOp.Pow if not dtype.is_complex:
            return 1
        case BinaryOp.Sub:
            return 0
        case BinaryOp.Add if not dtype.is_complex:
            # -0.0 + 0.0 is 0.0, but x + -0.0 is x.
            return 0 if dtype.is_int else -0.0
        case BinaryOp.Or | BinaryOp.Xor:
            return 0
        case BinaryOp.And:
            return 1 if dtype is DType.BOOL else -1
    return None


@rewrites(Binary, exact=True)
def drop_neutral_element(m: Match) -> Tensor | None:
    """x * 1, x / 1, x ** 1, x - 0, x + -0.0, x + 0 (integers), x | 0, x ^ 0, x & -1 -> x"""
    neutral = _neutral_element(m.op.kind, m.node.shape.dtype)
    return None if neutral is None else _left_if_right_is(m, neutral)


@rewrites(Binary, exact=True)
def square_instead_of_power(m: Match) -> Tensor | None:
    """x ** 2 -> x * x. A library's power is not always correctly rounded in f64, so f64 is the next rule's."""
    return None if m.node.shape.dtype is DType.F64 else _square(m)


@rewrites(Binary, exact=False)
def square_instead_of_f64_power(m: Match) -> Tensor | None:
    """x ** 2 -> x * x in f64, which is rounded correctly; the power may be off in the last bit."""
    return _square(m) if m.node.shape.dtype is DType.F64 else None


def _square(m: Match) -> Tensor | None:
    x = _left_if_right_is(m, 2) if m.op.kind is BinaryOp.Pow else None
    return None if x is None else Binary(BinaryOp.Mul)(x, x)


@rewrites(Binary, exact=False)
def root_instead_of_power(m: Match) -> Tensor | None:
    """x ** 0.5 -> sqrt(x), which differs at -inf (inf, NaN) and -0.0 (0.0, -0.0)"""
    if m.op.kind is not BinaryOp.Pow or not m.node.shape.dtype.is_float:
        return None
    x = _left_if_right_is(m, 0.5)
    return None if x is None else Activation(ActivationKind.Sqrt)(x)


@rewrites(Binary, exact=True)
def multiply_instead_of_divide(m: Match) -> Tensor | None:
    """x / c -> x * (1 / c) where c is a power of two and 1 / c neither overflows nor is denormal"""
    divisor = _constant(m.producer(1))
    dtype = m.node.shape.dtype
    if m.op.kind is not BinaryOp.Div or divisor is None or not dtype.is_float:
        return None
    wide = divisor.astype(np.float64)
    if not np.all(np.abs(np.frexp(wide)[0]) == 0.5):
        return None
    limits = ml_dtypes.finfo(divisor.dtype)
    factor = 1.0 / wide
    if not np.all((np.abs(factor) >= float(limits.smallest_normal)) & (np.abs(factor) <= float(limits.max))):
        return None
    graph = m.operands[0].graph
    product: Tensor = Binary(BinaryOp.Mul)(m.operands[0], graph.constant(factor.astype(divisor.dtype)))
    return product


@rewrites(Binary, exact=True)
def add_instead_of_subtracting_negation(m: Match) -> Tensor | None:
    """a - neg(b) -> a + b, a + neg(b) -> a - b, neg(a) + b -> b - a"""
    if m.op.kind not in (BinaryOp.Add, BinaryOp.Sub):
        return None
    negated = [_is_negation(m.producer(side)) for side in (0, 1)]
    a, b = m.operands
    if negated[1]:
        other = BinaryOp.Sub if m.op.kind is BinaryOp.Add else BinaryOp.Add
        return Binary(other)(a, m.value(m.producer(1).inputs[0]))
    if negated[0] and m.op.kind is BinaryOp.Add:
        return Binary(BinaryOp.Sub)(b, m.value(m.producer(0).inputs[0]))
    return None


def _is_negation(node: Node) -> bool:
    return isinstance(node.op, Activation) and node.op.kind is ActivationKind.Neg


@rewrites(Binary, exact=True)
def idempotent_pair(m: Match) -> Tensor | None:
    """max(x, x), min(x, x), x & x, x | x -> x"""
    same = m.node.inputs[0] == m.node.inputs[1]
    idempotent = (BinaryOp.Max, BinaryOp.Min, BinaryOp.And, BinaryOp.Or)
    return m.operands[0] if same and m.op.kind in idempotent else None


@rewrites(Binary, exact=False)
def drop_added_zero(m: Match) -> Tensor | None:
    """x + 0 -> x, which turns a -0.0 that would have become 0.0 back into -0.0"""
    return _left_if_right_is(m, 0) if m.op.kind is BinaryOp.Add else None


@rewrites(Binary, exact=False)
def drop_product_with_zero(m: Match) -> Tensor | None:
    """x * 0 -> 0, which NaN, infinities and negative x would not have given"""
    if m.op.kind is not BinaryOp.Mul or not _is_filled_with(m.producer(1), 0):
        return None
    zero = m.operands[0].graph.constant(0, m.node.shape.dtype)
    zeros: Tensor = zero if m.node.shape.rank == 0 else Expand(m.node.shape.dims)(zero)
    return zeros


# f(f(x)) = f(x)
_PROJECTIONS = (
    ActivationKind.Abs,
    ActivationKind.Relu,
    ActivationKind.Floor,
    ActivationKind.Ceil,
    ActivationKind.Trunc,
    ActivationKind.Round,
    ActivationKind.Sign,
)


@rewrites(Activation, exact=True)
def repeated_activation(m: Match) -> Tensor | None:
    """neg(neg(x)) -> x; abs(abs(x)), relu(relu(x)), floor(floor(x)), ... -> the inner one"""
    inner = m.producer(0)
    if not isinstance(inner.op, Activation) or inner.op.kind is not m.op.kind:
        return None
    if m.op.kind is ActivationKind.Neg:
        return m.value(inner.inputs[0])
    return m.operands[0] if m.op.kind in _PROJECTIONS else None


_INVERSE = {ActivationKind.Exp: ActivationKind.Log, ActivationKind.Log: ActivationKind.Exp}


@rewrites(Activation, exact=False)
def cancel_exp_and_log(m: Match) -> Tensor | None:
    """exp(log(x)), log(exp(x)) -> x, which is not rounded, nor NaN for negative x, nor inf for large x"""
    inner = m.producer(0)
    if not isinstance(inner.op, Activation) or _INVERSE.get(m.op.kind) is not inner.op.kind:
        return None
    return m.value(inner.inputs[0])


@rewrites(Transpose, exact=True)
def merge_transposes(m: Match) -> Tensor | None:
    """transpose(transpose(x, p), q) -> transpose(x, p[q]); an identity permutation -> x"""
    perm = m.op.perm
    if perm == tuple(range(len(perm))):
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Transpose):
        return None
    joined: Tensor = Transpose(tuple(inner.op.perm[p] for p in perm))(m.value(inner.inputs[0]))
    return joined


@rewrites(Reshape, Expand, exact=True)
def merge_reshapes(m: Match) -> Tensor | None:
    """reshape(reshape(x)) -> reshape(x), expand(expand(x)) -> expand(x); to the dims that x has -> x"""
    if m.operands[0].type == m.node.shape:
        return m.operands[0]
    inner = m.producer(0)
    if type(inner.op) is not type(m.op):
        return None
    joined: Tensor = m.op(m.value(inner.inputs[0]))
    return joined


@rewrites(Reverse, exact=True)
def cancel_reverses(m: Match) -> Tensor | None:
    """reverse(reverse(x, axes), axes), reverse(x, ()) -> x"""
    if not m.op.axes:
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Reverse):
        return None
    rank = m.node.shape.rank
    same = normalize_axes(inner.op.axes, rank, "reverse") == normalize_axes(m.op.axes, rank, "reverse")
    return m.value(inner.inputs[0]) if same else None


@rewrites(Narrow, Slice, Concat, Pad, Reduce, exact=True)
def drop_whole_selection(m: Match) -> Tensor | None:
    """A slice of everything, a concatenation of one, padding by nothing, a reduction over no axes -> x"""
    match m.op:
        case Concat():
            trivial = len(m.operands) == 1
        case Reduce(axes=axes):
            trivial = not axes
        case Slice(strides=strides):
            trivial = all(s == 1 for s in strides)
        case Pad(low=low, high=high, interior=interior):
            trivial = all(n == 0 for n in (*low, *high, *interior))
        case _:
            trivial = True
    return m.operands[0] if trivial and m.operands[0].type == m.node.shape else None


@cache
def holds_every(to: DType, source: DType) -> bool:
    """Whether every value of `source` is a value of `to`."""
    if source is to or source is DType.BOOL:
        return True
    if to.is_complex:
        return holds_every(to.real, source.real)
    if to is DType.BOOL or source.is_complex or (source.is_float and to.is_int):
        return False
    if to.is_int:
        inner, outer = ml_dtypes.iinfo(source.numpy), ml_dtypes.iinfo(to.numpy)
        return int(outer.min) <= int(inner.min) and int(inner.max) <= int(outer.max)
    wide = ml_dtypes.finfo(to.numpy)
    if source.is_int:
        return int(ml_dtypes.iinfo(source.numpy).max) <= 2 ** (wide.nmant + 1) <= float(wide.max)
    narrow = ml_dtypes.finfo(source.numpy)
    smallest = float(narrow.smallest_subnormal) >= float(wide.smallest_subnormal)
    return not to.is_storage and narrow.nmant <= wide.nmant and float(narrow.max) <= float(wide.max) and smallest


@rewrites(Cast, exact=True)
def merge_casts(m: Match) -> Tensor | None:
    """A cast to the dtype of x -> x; cast(cast(x, a), b) -> cast(x, b) where a holds every value of x's type"""
    if m.operands[0].type == m.node.shape:
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Cast):
        return None
    x = m.value(inner.inputs[0])
    source, middle, to = x.dtype, inner.op.to, m.op.to
    if not holds_every(middle, source):
        return None
    # Integers wrap, but saturate on the way through floats.
    if source.is_int and not middle.is_int and to.is_int and not holds_every(to, source):
        return None
    cast: Tensor = x if source is to else m.op(x)
    return cast


@rewrites(Where, exact=True)
def known_choice(m: Match) -> Tensor | None:
    """where(c, x, x) -> x; where(true, x, y) -> x; where(false, x, y) -> y"""
    chosen = None
    condition = _constant(m.producer(0))
    if m.node.inputs[1] == m.node.inputs[2] or (condition is not None and np.all(condition != 0)):
        chosen = m.operands[1]
    elif condition is not None and not np.any(condition != 0):
        chosen = m.operands[2]
    if chosen is not None and chosen.type != m.node.shape:
        m.miss("broadcasts", f"the operand is {chosen.type}, the result {m.node.shape}")
        return None
    return chosen


@rewrites(Binary, Compare, Where, Clamp, exact=True)
def read_through_expand(m: Match) -> Tensor | None:
    """f(x, expand(one element)) -> f(x, the element) where f broadcasts it to the same result"""
    operands, peels = list(m.operands), 0
    for i in range(len(operands)):
        producer = m.producer(i)
        if not isinstance(producer.op, Expand) or m.input_of(producer, 0).shape.element_count != 1:
            continue
        peeled = [*operands[:i], m.value(producer.inputs[0]), *operands[i + 1 :]]
        if _gives_same_type(m, peeled):
            operands, peels = peeled, peels + 1
    return m.op(*operands) if peels else None


def _gives_same_type(m: Match, operands: list[Tensor]) -> bool:
    try:
        with collect_constraints([]):
            return bool(m.op.infer(*(x.type for x in operands)) == m.node.shape)
    except RlxError:
        return False


@rewrites(Activation, Cast, exact=True)
def expand_last(m: Match) -> Tensor | None:
    """f(expand(c)) -> expand(f(c)) for a constant c, which can be folded then"""
    producer = m.producer(0)
    if not isinstance(producer.op, Expand) or not isinstance(m.input_of(producer, 0).op, Constant):
        return None
    expanded: Tensor = producer.op(m.op(m.value(producer.inputs[0])))
    return expanded


CANONICAL = RuleSet(
    "algebraic_simplify",
    [
        constant_on_the_right,
        read_through_expand,
        expand_last,
        drop_neutral_element,
        drop_added_zero,
        drop_product_with_zero,
        square_instead_of_power,
        square_instead_of_f64_power,
        root_instead_of_power,
        multiply_instead_of_divide,
        add_instead_of_subtracting_negation,
        idempotent_pair,
        repeated_activation,
        cancel_exp_and_log,
        merge_transposes,
        merge_reshapes,
        cancel_reverses,
        drop_whole_selection,
        merge_casts,
        known_choice,
    ],
)


class AlgebraicSimplify(Pass):
    """Apply the canonical rules, bodies included, until none fires; only the exact ones unless `exact` is False."""

    name = "algebraic_simplify"

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact

    @property
    def rules(self) -> RuleSet:
        return CANONICAL.exact() if self.exact else CANONICAL

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        return apply_rules(graph, self.rules, self.name).graph
