"""Partial derivatives of `Binary(kind)`: the Jacobians are diagonal, so one table serves forward and reverse mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.ops.pointwise.arithmetic import BinaryOp, and_, copysign, div, eq, ge, gt, hypot, ne, pow_, where
from rlx.ops.pointwise.unary import log, neg, round_, sigmoid, stop_gradient

# (t, a, b, y) -> t times the partial derivative of y = f(a, b).
Partial = Callable[[Any, Any, Any, Any], Any]


def scaled_by_partial(kind: BinaryOp, operand: int, t: Any, a: Any, b: Any, y: Any) -> Any:
    """t·∂f/∂a (operand 0) or t·∂f/∂b (operand 1), or None where that is 0 everywhere; it broadcasts to the dims of y.

    Complex kinds are real on the real line, so conjugate operands give the conjugate derivative.
    """
    partial = _PARTIALS[kind][operand]
    return None if partial is None else partial(t, a, b, y)


def _winner(t: Any, mine: Any, other: Any, y: Any) -> Any:
    """t for the operand that `maximum` or `minimum` took, half of it where both are equal."""
    return where(eq(mine, y), where(eq(other, y), 0.5 * t, t), 0.0)


def _hypot_leg(t: Any, leg: Any, y: Any) -> Any:
    """leg/y; at the origin ½, the share that max(|a|, |b|) gives to each of two equal legs."""
    at_origin = eq(y, 0.0)
    return t * where(at_origin, 0.5, leg / where(at_origin, 1.0, y))


def _pow_base(t: Any, a: Any, b: Any, y: Any) -> Any:
    """b·a^(b-1), which for b = 0 is 0 even at a = 0; elsewhere the product stays, because it has a derivative by b."""
    constant = and_(eq(a, 0.0), eq(b, 0.0))
    return t * where(constant, 0.0, b * pow_(a, where(constant, 1.0, b - 1.0)))


def _pow_exponent(t: Any, a: Any, b: Any, y: Any) -> Any:
    """y·log a; at a = 0 the limit, which is 0 unless b is negative."""
    at_zero = eq(a, 0.0)
    elsewhere = where(at_zero, math.nan, y * log(where(at_zero, 1.0, a)))
    return t * where(and_(at_zero, ge(b, 0.0)), 0.0, elsewhere)


def _rem_divisor(t: Any, a: Any, b: Any, y: Any) -> Any:
    """-trunc(a / b), from the remainder, because the rounded quotient may reach the next integer."""
    return t * stop_gradient(round_(div(y - a, b)))


def _atan2_y(t: Any, y: Any, x: Any, angle: Any) -> Any:
    # Two divisions instead of one by the square, which would overflow.
    radius = hypot(y, x)
    return t * (x / radius / radius)


def _atan2_x(t: Any, y: Any, x: Any, angle: Any) -> Any:
    radius = hypot(y, x)
    return t * -(y / radius / radius)


def _softmax_weight(a: Any, b: Any) -> Any:
    """e^a / (e^a + e^b); ½ for equal infinities, which have no difference. Equal numbers have one: where their weights
    were a constant, second derivatives would be 0."""
    difference = a - b
    return sigmoid(where(and_(eq(a, b), ne(difference, difference)), 0.0, difference))


def _copysign_size(t: Any, a: Any, b: Any, y: Any) -> Any:
    # ±|a|, and of |a| the derivative at both zeros is 1.
    return where(eq(ge(a, 0.0), gt(copysign(1.0, b), 0.0)), t, neg(t))


_PARTIALS: dict[BinaryOp, tuple[Partial | None, Partial | None]] = {
    BinaryOp.Add: (lambda t, a, b, y: t, lambda t, a, b, y: t),
    BinaryOp.Sub: (lambda t, a, b, y: t, lambda t, a, b, y: neg(t)),
    BinaryOp.Mul: (lambda t, a, b, y: t * b, lambda t, a, b, y: t * a),
    BinaryOp.Div: (lambda t, a, b, y: t / b, lambda t, a, b, y: neg(t * y / b)),
    BinaryOp.Max: (lambda t, a, b, y: _winner(t, a, b, y), lambda t, a, b, y: _winner(t, b, a, y)),
    BinaryOp.Min: (lambda t, a, b, y: _winner(t, a, b, y), lambda t, a, b, y: _winner(t, b, a, y)),
    BinaryOp.Pow: (_pow_base, _pow_exponent),
    BinaryOp.Rem: (lambda t, a, b, y: t, _rem_divisor),
    BinaryOp.FloorDiv: (None, None),
    BinaryOp.Atan2: (_atan2_y, _atan2_x),
    BinaryOp.Hypot: (lambda t, a, b, y: _hypot_leg(t, a, y), lambda t, a, b, y: _hypot_leg(t, b, y)),
    BinaryOp.LogAddExp: (
        lambda t, a, b, y: t * _softmax_weight(a, b),
        lambda t, a, b, y: t * _softmax_weight(b, a),
    ),
    # The neighbour moves along with a number.
    BinaryOp.NextAfter: (lambda t, a, b, y: t, None),
    BinaryOp.CopySign: (_copysign_size, None),
}
