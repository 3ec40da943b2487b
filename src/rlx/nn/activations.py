"""Activations, and functions of logits along an axis."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.autodiff import stop_gradient
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DTypeLike
from rlx.ir.shape import Size
from rlx.numpy import reductions
from rlx.numpy.arguments import Axis, array_function, axes_of, axis_of, convert, inexact, operand, rank_of, value
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "celu",
    "elu",
    "geglu",
    "gelu",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "mish",
    "normalize",
    "one_hot",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swiglu",
    "swish",
    "tanh",
]

# The constants of self-normalising networks (Klambauer et al. 2017): the fixed point has mean 0 and variance 1.
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _real(x: Any) -> Any:
    return inexact(x)[0]


@array_function
def identity(x: Any) -> Any:
    """x."""
    return value(x)


@array_function
def relu(x: Any) -> Any:
    """max(x, 0)."""
    return ops.relu(operand(x))


@array_function
def relu6(x: Any) -> Any:
    """min(max(x, 0), 6); flat at both kinks, as `relu` is at its own."""
    x = operand(x)
    return ops.where(ops.ge(x, 6), 6, ops.relu(x))


@array_function
def gelu(x: Any, approximate: bool | str = False) -> Any:
    """x·Φ(x), Φ the standard normal distribution; with `approximate` (True or "tanh") its formula with tanh."""
    if approximate not in (True, False, "none", "tanh"):
        raise OpError(f"gelu: approximate must be True, False, 'tanh' or 'none', got {approximate!r}")
    return ops.gelu_approx(operand(x)) if approximate in (True, "tanh") else ops.gelu(operand(x))


@array_function
def sigmoid(x: Any) -> Any:
    """1/(1 + exp(-x))."""
    return ops.sigmoid(operand(x))


@array_function
def silu(x: Any) -> Any:
    """x·sigmoid(x)."""
    return ops.silu(operand(x))


swish = silu


@array_function
def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return ops.tanh(operand(x))


@array_function
def softplus(x: Any, beta: float = 1.0) -> Any:
    """log(1 + exp(β·x))/β, without overflow."""
    x = _real(x)
    return ops.logaddexp(x, 0.0) if beta == 1 else ops.logaddexp(x * beta, 0.0) / beta


@array_function
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)), without underflow."""
    return -softplus(-_real(x))


@array_function
def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for x > 0, exact where x is small or large."""
    x = _real(x)
    small = ops.lt(x, math.log(2.0))
    near, far = ops.where(small, x, 1.0), ops.where(small, 1.0, x)
    return ops.where(small, ops.log(-ops.expm1(-near)), ops.log1p(-ops.exp(-far)))


@array_function
def sparse_plus(x: Any) -> Any:
    """0 below -1, x above 1, (x + 1)²/4 between: a softplus with both ends exact."""
    x = _real(x)
    return ops.where(ops.ge(x, 1.0), x, 0.25 * (ops.maximum(x, -1.0) + 1.0) ** 2)


@array_function
def sparse_sigmoid(x: Any) -> Any:
    """0 below -1, 1 above 1, (x + 1)/2 between: the derivative of `sparse_plus`."""
    return 0.5 * (ops.clamp(_real(x), -1.0, 1.0) + 1.0)


@array_function
def soft_sign(x: Any) -> Any:
    """x/(1 + |x|)."""
    x = _real(x)
    return x / (1 + ops.abs_(x))


@array_function
def squareplus(x: Any, b: float = 4.0) -> Any:
    """(x + √(x² + b))/2."""
    x = _real(x)
    return (x + ops.sqrt(x * x + b)) * 0.5


def _expm1_below(x: Any) -> Any:
    """exp(x) - 1 for x <= 0; above, where it is not used, 0 keeps it (and its derivative) finite."""
    return ops.expm1(ops.where(ops.gt(x, 0), 0, x))


@array_function
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x for x > 0, else α·(exp(x) - 1)."""
    x = _real(x)
    return ops.where(ops.gt(x, 0), x, ops.mul(operand(alpha), _expm1_below(x)))


@array_function
def selu(x: Any) -> Any:
    """elu with the scale and α that keep mean 0 and variance 1 from layer to layer."""
    return elu(x, _SELU_ALPHA) * _SELU_SCALE


@array_function
def celu(x: Any, alpha: float = 1.0) -> Any:
    """x for x > 0, else α·(exp(x/α) - 1)."""
    x = _real(x)
    return ops.where(ops.gt(x, 0), x, alpha * _expm1_below(x / alpha))


@array_function
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x for x >= 0, else negative_slope·x."""
    x = _real(x)
    return ops.where(ops.ge(x, 0), x, ops.mul(x, operand(negative_slope)))


@array_function
def prelu(x: Any, weight: Any, axis: int = 1) -> Any:
    """leaky_relu with a learned slope: one for all, or one per entry of `axis`."""
    x, weight = inexact(x, weight)
    if rank_of(weight) == 1 and rank_of(x) > 1:
        weight = ops.reshape(weight, (-1, *(1,) * (rank_of(x) - 1 - axis_of(axis, x, "prelu"))))
    return ops.where(ops.ge(x, 0), x, ops.mul(x, weight))


@array_function
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3)/6."""
    return relu6(_real(x) + 3) / 6


@array_function
def hard_silu(x: Any) -> Any:
    """x·relu6(x + 3)/6."""
    x = _real(x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@array_function
def hard_tanh(x: Any, min_value: Any = -1.0, max_value: Any = 1.0) -> Any:
    """x limited to [min_value, max_value]; at the limits the slope is still 1."""
    x, low, high = operand(x), operand(min_value), operand(max_value)
    return ops.where(ops.gt(x, high), high, ops.where(ops.lt(x, low), low, x))


@array_function
def hard_shrink(x: Any, lambd: float = 0.5) -> Any:
    """x where |x| > lambd, else 0."""
    x = _real(x)
    return ops.where(ops.gt(ops.abs_(x), lambd), x, 0)


@array_function
def soft_shrink(x: Any, lambd: float = 0.5) -> Any:
    """x moved toward 0 by lambd, and 0 between."""
    x = _real(x)
    return ops.sign(x) * ops.maximum(ops.abs_(x) - lambd, 0)


@array_function
def mish(x: Any) -> Any:
    """x·tanh(softplus(x))."""
    x = _real(x)
    return x * ops.tanh(softplus(x))


def _halves(x: Any, axis: int, function: str) -> tuple[Any, Any]:
    x = _real(x)
    size = dims_of(x)[axis_of(axis, x, function)]
    if isinstance(size, int) and size % 2:
        raise ShapeError(f"{function}: axis {axis} is cut into two halves, but its size is {size}")
    first, second = ops.split(x, 2, axis)
    return first, second


@array_function
def glu(x: Any, axis: int = -1) -> Any:
    """The first half of `axis` times the sigmoid of the second."""
    a, b = _halves(x, axis, "glu")
    return a * ops.sigmoid(b)


@array_function
def swiglu(x: Any, gate: Any = None, axis: int = -1) -> Any:
    """silu(gate)·x; without a gate it is the first half of `axis` and x the second."""
    if gate is None:
        gate, x = _halves(x, axis, "swiglu")
    return ops.mul(ops.silu(operand(gate)), operand(x))


@array_function
def geglu(x: Any, gate: Any = None, axis: int = -1, approximate: bool | str = False) -> Any:
    """gelu(gate)·x; without a gate it is the first half of `axis` and x the second."""
    if gate is None:
        gate, x = _halves(x, axis, "geglu")
    return ops.mul(gelu(gate, approximate), operand(x))


@array_function
def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """exp(x), scaled to sum 1 along `axis`; elements outside of `where` count as -inf and give 0."""
    x = _masked(x, where)
    if isinstance(axis, int) and where is None:
        return ops.softmax(x, axis)
    axes = axes_of(axis, rank_of(x), "softmax")
    highest = ops.reduce_max(x, axes, True)
    powers = ops.exp(x - ops.where(ops.isfinite(highest), highest, 0))
    total = ops.reduce_sum(powers, axes, True)
    return powers / (total if where is None else ops.where(ops.eq(total, 0), 1, total))


@array_function
def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """log(softmax(x)), without underflow; elements outside of `where` give -inf."""
    x = _masked(x, where)
    if isinstance(axis, int):
        return ops.log_softmax(x, axis)
    return x - ops.logsumexp(x, axes_of(axis, rank_of(x), "log_softmax"), True)


def _masked(x: Any, where: Any) -> Any:
    x = _real(x)
    return x if where is None else ops.where(operand(where), x, convert(-math.inf, dtype_of(x)))


@array_function
def logsumexp(
    x: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log Σ b·exp(x) along `axis`, without overflow; b is 1 unless given, and positive.

    With `return_sign` b may be negative, and the result is (log |Σ|, sign of Σ).
    """
    x = _masked(x, where)
    if return_sign:
        x, b = inexact(x, 1.0 if b is None else b)
        axes = axes_of(axis, rank_of(x + b), "logsumexp")
        top = stop_gradient(ops.reduce_max(x + 0 * b, axes, True))
        top = ops.where(ops.isfinite(top), top, 0.0)
        total = ops.reduce_sum(b * ops.exp(x - top), axes, keepdims)
        top = top if keepdims else ops.squeeze(top, axes)
        return ops.log(ops.abs_(total)) + top, ops.sign(total)
    if b is not None:
        x, b = inexact(x, b)
        x = x + ops.log(b)
    return ops.logsumexp(x, axes_of(axis, rank_of(x), "logsumexp"), keepdims)


@array_function
def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Any:
    """log of the mean of exp(x) along `axis`, without overflow."""
    weights = ops.ones_like(value(x)) if where is None else ops.where(where, ops.ones_like(value(x)), 0)
    count = ops.reduce_sum(weights, axes_of(axis, rank_of(weights), "logmeanexp"), keepdims)
    return logsumexp(x, axis, keepdims=keepdims, where=where) - ops.log(count)


@array_function
def standardize(
    x: Any, axis: Axis = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None
) -> Any:
    """(x - mean)/√(variance + epsilon), with mean and variance along `axis` unless they are given."""
    x = _real(x)
    centre = reductions.mean(x, axis, keepdims=True, where=where) if mean is None else operand(mean)
    spread = reductions.var(x, axis, keepdims=True, where=where) if variance is None else operand(variance)
    return (x - centre) * ops.rsqrt(ops.add(spread, epsilon))


@array_function
def normalize(x: Any, ord: float = 2, axis: int = -1, eps: float = 1e-12) -> Any:
    """x divided by its norm along `axis`, or by eps where that is larger."""
    x = _real(x)
    # The norm of zeros has no slope, and nothing of it is wanted: they are divided by eps.
    zero = ops.reduce_all(ops.eq(x, 0), axis, True)
    return x / ops.where(zero, eps, ops.maximum(ops.norm(ops.where(zero, 1, x), ord, axis, True), eps))


@array_function
def one_hot(x: Any, num_classes: Size, *, dtype: DTypeLike = "f32", axis: int = -1) -> Any:
    """1 where a new axis of size `num_classes` equals x, else 0; numbers outside of it give only zeros."""
    return ops.one_hot(operand(x), num_classes, dtype, axis)
