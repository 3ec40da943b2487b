"""The elementary functions of complex numbers, from the real ones.

Written with real and imaginary part apart, as Kahan does ("Branch cuts for complex elementary functions"), so that
small parts keep their digits and the sign of a zero chooses the side of a branch cut.
"""

from __future__ import annotations

from typing import Any

from rlx import ops


def _parts(z: Any) -> tuple[Any, Any]:
    return ops.real(z), ops.imag(z)


def magnitude(z: Any) -> Any:
    """|z|, real."""
    return ops.complex_abs(z)


def sign(z: Any) -> Any:
    """z/|z|, 0 for 0."""
    length = ops.complex_abs(z)
    return ops.where(ops.eq(length, 0), z, z / ops.complex_(ops.where(ops.eq(length, 0), 1, length), 0))


def expm1(z: Any) -> Any:
    """exp(z) - 1, precise near 0."""
    x, y = _parts(z)
    half = ops.sin(y * 0.5)
    return ops.complex_(ops.expm1(x) * ops.cos(y) - 2 * half * half, ops.exp(x) * ops.sin(y))


def log1p(z: Any) -> Any:
    """log(1 + z), precise near 0."""
    x, y = _parts(z)
    near = ops.lt(ops.maximum(ops.abs_(x), ops.abs_(y)), 0.5)
    # |1 + z|² = 1 + x(x + 2) + y²; far from 0 the square could overflow and the plain logarithm is precise.
    small = ops.log1p(ops.where(near, x * (x + 2) + y * y, 0)) * 0.5
    return ops.complex_(ops.where(near, small, ops.log(ops.hypot(1 + x, y))), ops.atan2(y, 1 + x))


def sinh(z: Any) -> Any:
    """The hyperbolic sine."""
    x, y = _parts(z)
    return ops.complex_(ops.sinh(x) * ops.cos(y), ops.cosh(x) * ops.sin(y))


def cosh(z: Any) -> Any:
    """The hyperbolic cosine."""
    x, y = _parts(z)
    return ops.complex_(ops.cosh(x) * ops.cos(y), ops.sinh(x) * ops.sin(y))


def _times_i(z: Any) -> Any:
    x, y = _parts(z)
    return ops.complex_(-y, x)


def _over_i(z: Any) -> Any:
    x, y = _parts(z)
    return ops.complex_(y, -x)


def tan(z: Any) -> Any:
    """The tangent, as tanh(iz)/i, which does not overflow far from the real axis."""
    return _over_i(ops.tanh(_times_i(z)))


def _roots(z: Any) -> tuple[Any, Any]:
    """sqrt(1 - z) and sqrt(1 + z), with the sign of a zero imaginary part kept."""
    x, y = _parts(z)
    return ops.sqrt(ops.complex_(1 - x, -y)), ops.sqrt(ops.complex_(1 + x, y))


def _imag_of_product(a: Any, b: Any) -> Any:
    """The imaginary part of conj(a)·b."""
    (ax, ay), (bx, by) = _parts(a), _parts(b)
    return ax * by - ay * bx


def asin(z: Any) -> Any:
    """The inverse of sin; branch cuts on the real axis beyond ±1."""
    below, above = _roots(z)
    (bx, by), (ax, ay) = _parts(below), _parts(above)
    return ops.complex_(ops.atan2(ops.real(z), bx * ax - by * ay), ops.asinh(_imag_of_product(below, above)))


def acos(z: Any) -> Any:
    """The inverse of cos; branch cuts on the real axis beyond ±1."""
    below, above = _roots(z)
    return ops.complex_(2 * ops.atan2(ops.real(below), ops.real(above)), ops.asinh(_imag_of_product(above, below)))


def asinh(z: Any) -> Any:
    """The inverse of sinh, as asin(iz)/i."""
    return _over_i(asin(_times_i(z)))


def acosh(z: Any) -> Any:
    """The inverse of cosh; branch cut on the real axis below 1."""
    x, y = _parts(z)
    below, above = ops.sqrt(ops.complex_(x - 1, y)), ops.sqrt(ops.complex_(x + 1, y))
    (bx, by), (ax, ay) = _parts(below), _parts(above)
    return ops.complex_(ops.asinh(bx * ax + by * ay), 2 * ops.atan2(by, ax))


def atanh(z: Any) -> Any:
    """The inverse of tanh; branch cuts on the real axis beyond ±1."""
    x, y = _parts(z)
    distance = (1 - x) * (1 - x) + y * y
    return ops.complex_(
        ops.log1p(4 * x / distance) * 0.25,
        ops.atan2(2 * y, (1 - x) * (1 + x) - y * y) * 0.5,
    )


def atan(z: Any) -> Any:
    """The inverse of tan, as atanh(iz)/i."""
    return _over_i(atanh(_times_i(z)))
