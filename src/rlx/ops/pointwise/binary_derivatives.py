"""Partial derivatives of `Binary(kind)`: the Jacobians are diagonal, so one table serves forward and reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ops.pointwise.arithmetic import BinaryOp, copysign, div, eq, gt, hypot, ne, pow_, where
from rlx.ops.pointwise.unary import log, neg, round_, sigmoid, stop_gradient

# (t, a, b, y) -> t times the partial derivative of y = f(a, b).
Partial = Callable[[Any, Any, Any, Any], Any]


def scaled_by_partial(kind: BinaryOp, operand: int, t: Any, a: Any, b: Any, y: Any) -> Any:
    """t·∂f/∂a (operand 0) or t·∂f/∂b (operand 1), or None where that is 0 everywhere; it broadcasts to the dims of y.

    Complex kinds are real on the real line, so conjugate operands give the conjugate derivative.
    """
    partial = _PARTIALS[kind][operand]
    return None if partial is None else partial(t, a, b, y)


def _unless_zero(divisor: Any) -> Any:
    """The divisor, with 0 replaced by 1: at the origin norms and angles have derivative 0."""
    return where(eq(divisor, 0.0), 1.0, divisor)


def _pow_base(t: Any, a: Any, b: Any, y: Any) -> Any:
    """b·a^(b-1), which for b = 0 is 0 even at a = 0."""
    constant = eq(b, 0.0)
    return t * where(constant, 0.0, b * pow_(a, where(constant, 1.0, b - 1.0)))


def _pow_exponent(t: Any, a: Any, b: Any, y: Any) -> Any:
    """y·log a, taken as 0 where there is no logarithm."""
    positive = gt(a, 0.0)
    return t * where(positive, y * log(where(positive, a, 1.0)), 0.0)


def _rem_divisor(t: Any, a: Any, b: Any, y: Any) -> Any:
    """-trunc(a / b), from the remainder, because the rounded quotient may reach the next integer."""
    return t * stop_gradient(round_(div(y - a, b)))


def _atan2_y(t: Any, y: Any, x: Any, angle: Any) -> Any:
    # Two divisions instead of one by the square, which would overflow.
    radius = _unless_zero(hypot(y, x))
    return t * (x / radius / radius)


def _atan2_x(t: Any, y: Any, x: Any, angle: Any) -> Any:
    radius = _unless_zero(hypot(y, x))
    return t * -(y / radius / radius)


def _softmax_weight(a: Any, b: Any) -> Any:
    """e^a / (e^a + e^b); ½ for equal infinities, which have no difference."""
    difference = a - b
    return sigmoid(where(ne(difference, difference), 0.0, difference))


def _copysign_size(t: Any, a: Any, b: Any, y: Any) -> Any:
    return where(eq(copysign(1.0, a), copysign(1.0, b)), t, neg(t))


_PARTIALS: dict[BinaryOp, tuple[Partial | None, Partial | None]] = {
    BinaryOp.Add: (lambda t, a, b, y: t, lambda t, a, b, y: t),
    BinaryOp.Sub: (lambda t, a, b, y: t, lambda t, a, b, y: neg(t)),
    BinaryOp.Mul: (lambda t, a, b, y: t * b, lambda t, a, b, y: t * a),
    BinaryOp.Div: (lambda t, a, b, y: t / b, lambda t, a, b, y: neg(t * y / b)),
    # Of equals the first operand counts.
    BinaryOp.Max: (lambda t, a, b, y: where(eq(a, y), t, 0.0), lambda t, a, b, y: where(eq(a, y), 0.0, t)),
    BinaryOp.Min: (lambda t, a, b, y: where(eq(a, y), t, 0.0), lambda t, a, b, y: where(eq(a, y), 0.0, t)),
    BinaryOp.Pow: (_pow_base, _pow_exponent),
    BinaryOp.Rem: (lambda t, a, b, y: t, _rem_divisor),
    BinaryOp.FloorDiv: (None, None),
    BinaryOp.Atan2: (_atan2_y, _atan2_x),
    BinaryOp.Hypot: (lambda t, a, b, y: t * (a / _unless_zero(y)), lambda t, a, b, y: t * (b / _unless_zero(y))),
    BinaryOp.LogAddExp: (
        lambda t, a, b, y: t * _softmax_weight(a, b),
        lambda t, a, b, y: t * _softmax_weight(b, a),
    ),
    # The neighbour moves along with a number.
    BinaryOp.NextAfter: (lambda t, a, b, y: t, None),
    BinaryOp.CopySign: (_copysign_size, None),
}
