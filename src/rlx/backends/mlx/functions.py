"""Functions of one number: MLX's own, and those that it has not, or has to fewer digits than the type.

On f64 it computes exp, sin, cos and erf to the digits of f32. Those here are made of functions that are exact there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx.backends.mlx.device import mx
from rlx.kernels.math.vector_math import F32_FORMAT, F64_FORMAT, FloatFormat

# e is the sum of these two to twice the digits of f64.
_E, _E_REST = math.e, 1.4456468917292502e-16


def has_sign(x: Any) -> Any:
    """Whether the sign of floats is set, also that of a zero or NaN."""
    kinds = {mx.float64: mx.int64, mx.float32: mx.int32, mx.float16: mx.int16, mx.bfloat16: mx.int16}
    return mx.view(x, kinds[x.dtype]) < 0


def with_sign_of(x: Any, size: Any) -> Any:
    """|size| with the sign of x."""
    size = mx.abs(size)
    return mx.where(has_sign(x), mx.negative(size), size)


def _exp(x: Any) -> Any:
    if x.dtype != mx.float64:
        return mx.exp(x)
    # A power of e, rounded, misses e by a factor that is almost 1.
    power = mx.power(mx.array(_E, mx.float64), x)
    return power * (1.0 + mx.clip(x, -800.0, 800.0) * (_E_REST / _E))


def _sin(x: Any) -> Any:
    if x.dtype != mx.float64:
        return mx.sin(x)
    t = mx.tan(0.5 * x)
    return mx.where(mx.abs(x) < 1e-8, x, 2.0 * t / (1.0 + t * t))


def _cos(x: Any) -> Any:
    if x.dtype != mx.float64:
        return mx.cos(x)
    t = mx.tan(0.5 * x)
    return (1.0 - t) * (1.0 + t) / (1.0 + t * t)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Coefficients stand in ascending order."""
    result = mx.full(x.shape, coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def _erfc_tail(t: Any, found: FloatFormat) -> Any:
    """erfc(t) for t >= `erfc_from`, by the polynomial that our own kernels use."""
    inverse = 1.0 / (t + found.erfc_centre)
    u = (t - found.erfc_centre) * inverse
    # -t² in two parts: a rounding error in the square would grow with it.
    kept = mx.round(t * 64.0) / 64.0
    lost = t - kept
    square = _exp(-kept * kept) * _exp(-lost * (kept + t))
    return square * _polynomial(u, found.erfc) * inverse


def _format(x: Any) -> FloatFormat:
    return F64_FORMAT if x.dtype == mx.float64 else F32_FORMAT


def _erf(x: Any) -> Any:
    found = _format(x)
    size = mx.minimum(mx.abs(x), found.saturation)
    near = x * _polynomial(size * size, found.erf)
    return mx.where(size < 0.5, near, with_sign_of(x, 1.0 - _erfc_tail(size, found)))


def _erfc(x: Any) -> Any:
    found = _format(x)
    size = mx.minimum(mx.abs(x), found.saturation)
    tail = _erfc_tail(size, found)
    far = mx.where(x < 0.0, 2.0 - tail, tail)
    return mx.where(size < found.erfc_from, 1.0 - x * _polynomial(size * size, found.erf), far)


def _named(name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(mx, name)(x)


def _trunc(x: Any) -> Any:
    return with_sign_of(x, mx.floor(mx.abs(x)))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": _exp,
    "sin": _sin,
    "cos": _cos,
    "erf": _erf,
    "erfc": _erfc,
    "trunc": _trunc,
    "neg": _named("negative"),
    "atan": _named("arctan"),
    "asin": _named("arcsin"),
    "acos": _named("arccos"),
    **{name: _named(name) for name in ("tanh", "log", "sqrt", "abs", "tan", "round", "floor", "ceil")},
    **{name: _named(name) for name in ("expm1", "log1p", "sinh")},
}
