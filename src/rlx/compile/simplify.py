"""Algebraic simplification: identities, inverse pairs, and canonical forms that other rules can rely on.

Exact rules leave every bit as it is (for every operand, NaN and infinities included); inexact ones are off unless the
user allows reassociation.
"""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.passes import Pass
from rlx.ir.rewrite import Match, RuleSet, apply_rules, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.arithmetic import Binary, BinaryOp, Where
from rlx.ops.conversion import Cast
from rlx.ops.movement import Expand, Reshape, Reverse, Transpose
from rlx.ops.unary import Activation, ActivationKind


def _is_filled_with(node: Node, value: float) -> bool:
    """A constant, or an expansion of one scalar constant, whose elements are all `value` (0.0 is not -0.0)."""
    if not isinstance(node.op, Constant) or node.op.value.array.size == 0:
        return False
    array = node.op.value.array
    wanted = np.asarray(value).astype(array.dtype)
    return bool(np.all(array == wanted)) and (value != 0 or not np.any(np.signbit(array.astype(np.float64).real)))


def _other(m: Match, value: float, sides: tuple[int, ...]) -> Tensor | None:
    """The operand beside one that is filled with `value`, when it has the type of the result."""
    for side in sides:
        if _is_filled_with(m.producer(side), value):
            other = m.operands[1 - side]
            return other if other.type == m.node.shape else None
    return None


@rewrites(Binary, exact=True)
def drop_neutral_element(m: Match) -> Tensor | None:
    """x * 1, 1 * x, x / 1, x - 0, x ** 1 -> x; for integers also x + 0, 0 + x. (-0.0 + 0.0 is 0.0, so floats keep it.)"""
    match m.op.kind:
        case BinaryOp.Mul:
            return _other(m, 1, (1, 0))
        case BinaryOp.Div | BinaryOp.Pow:
            return _other(m, 1, (1,))
        case BinaryOp.Sub:
            return _other(m, 0, (1,))
        case BinaryOp.Add if m.node.shape.dtype.is_int:
            return _other(m, 0, (1, 0))
    return None


@rewrites(Binary, exact=False)
def drop_added_zero(m: Match) -> Tensor | None:
    """x + 0, 0 + x -> x, which turns a -0.0 that would have become 0.0 back into -0.0."""
    return _other(m, 0, (1, 0)) if m.op.kind is BinaryOp.Add else None


@rewrites(Binary, exact=True)
def square_instead_of_power(m: Match) -> Tensor | None:
    """x ** 2 -> x * x, x ** 0.5 stays (its value at -inf and -0.0 differs from sqrt)."""
    if m.op.kind is not BinaryOp.Pow or not _is_filled_with(m.producer(1), 2) or m.operands[0].type != m.node.shape:
        return None
    product: Tensor = Binary(BinaryOp.Mul)(m.operands[0], m.operands[0])
    return product


@rewrites(Binary, exact=True)
def idempotent_extremes(m: Match) -> Tensor | None:
    """max(x, x), min(x, x), x & x, x | x -> x"""
    same = m.node.inputs[0] == m.node.inputs[1]
    idempotent = (BinaryOp.Max, BinaryOp.Min, BinaryOp.And, BinaryOp.Or)
    return m.operands[0] if same and m.op.kind in idempotent else None


_INVOLUTIONS = (ActivationKind.Neg,)
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
    if m.op.kind in _INVOLUTIONS:
        return m.value(inner.inputs[0])
    return m.operands[0] if m.op.kind in _PROJECTIONS else None


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


@rewrites(Reshape, exact=True)
def merge_reshapes(m: Match) -> Tensor | None:
    """reshape(reshape(x)) -> reshape(x); a reshape to the same dims -> x"""
    if m.operands[0].type == m.node.shape:
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Reshape):
        return None
    joined: Tensor = m.op(m.value(inner.inputs[0]))
    return joined


@rewrites(Expand, exact=True)
def merge_expands(m: Match) -> Tensor | None:
    """expand(expand(x)) -> expand(x); an expand to the same dims -> x"""
    if m.operands[0].type == m.node.shape:
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Expand):
        return None
    joined: Tensor = m.op(m.value(inner.inputs[0]))
    return joined


@rewrites(Reverse, exact=True)
def cancel_reverses(m: Match) -> Tensor | None:
    """reverse(reverse(x, axes), axes) -> x"""
    inner = m.producer(0)
    return m.value(inner.inputs[0]) if inner.op == m.op else None


@rewrites(Cast, exact=True)
def merge_casts(m: Match) -> Tensor | None:
    """A cast to the same dtype -> x; a cast to a wider float and back -> x"""
    if m.operands[0].type == m.node.shape:
        return m.operands[0]
    inner = m.producer(0)
    if not isinstance(inner.op, Cast):
        return None
    source, middle = m.value(inner.inputs[0]), inner.op.to
    floats = source.dtype.is_float and middle.is_float and not source.dtype.is_storage
    is_wider = floats and source.dtype.promote(middle) is middle
    return source if is_wider and m.op.to is source.dtype else None


@rewrites(Where, exact=True)
def same_branches(m: Match) -> Tensor | None:
    """where(c, x, x) -> x"""
    same = m.node.inputs[1] == m.node.inputs[2] and m.operands[1].type == m.node.shape
    return m.operands[1] if same else None


@rewrites(Binary, exact=True)
def constant_on_the_right(m: Match) -> Tensor | None:
    """c + x -> x + c, and the same for *, max, min, &, |, ^: one form for other rules to look for"""
    commutes = (BinaryOp.Add, BinaryOp.Mul, BinaryOp.Max, BinaryOp.Min, BinaryOp.And, BinaryOp.Or, BinaryOp.Xor)
    if m.op.kind not in commutes or not isinstance(m.producer(0).op, Constant):
        return None
    if isinstance(m.producer(1).op, Constant):
        return None
    swapped: Tensor = m.op(m.operands[1], m.operands[0])
    return swapped


CANONICAL = RuleSet(
    "algebraic_simplify",
    [
        constant_on_the_right,
        drop_neutral_element,
        drop_added_zero,
        square_instead_of_power,
        idempotent_extremes,
        repeated_activation,
        merge_transposes,
        merge_reshapes,
        merge_expands,
        cancel_reverses,
        merge_casts,
        same_branches,
    ],
)


class AlgebraicSimplify(Pass):
    """Apply the canonical rules until none fires; only the exact ones unless `reassociate`."""

    name = "algebraic_simplify"

    def __init__(self, reassociate: bool = False) -> None:
        self.rules = CANONICAL if reassociate else CANONICAL.exact()

    def run(self, graph: Graph) -> Graph:
        return apply_rules(graph, self.rules, self.name).graph
