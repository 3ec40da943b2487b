"""The Faddeeva function w(z) = e^(-z²)·erfc(-iz) and what is made of it: erfcx, Dawson's and Fresnel's integrals.

In the upper half plane w is a rational function of Weideman: with a fixed number of terms it is exact to rounding
everywhere, so that there are no loops and derivatives are those of the formula.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.numpy.arguments import array_function, inexact
from rlx.ops.define.operands import dtype_of

__all__ = ["dawsn", "erfcx", "fresnel", "wofz"]

_TERMS = 48


@functools.cache
def _coefficients() -> tuple[float, tuple[float, ...]]:
    """The scale and the coefficients, highest power first: a Fourier transform of e^(-t²) on a stretched circle."""
    doubled = 2 * _TERMS
    scale = math.sqrt(_TERMS / math.sqrt(2))
    k = np.arange(-doubled + 1, doubled)
    t = scale * np.tan(k * math.pi / doubled / 2)
    samples = np.concatenate([[0.0], np.exp(-(t**2)) * (scale**2 + t**2)])
    found = np.real(np.fft.fft(np.fft.fftshift(samples))) / (2 * doubled)
    return scale, tuple(float(c) for c in found[_TERMS:0:-1])


def _upper(real: Any, imag: Any) -> tuple[Any, Any]:
    """Real and imaginary part of w(real + i·imag) for imag >= 0, in arithmetic of real numbers."""
    scale, coefficients = _coefficients()
    # Z = (L + iz) / (L - iz), with iz = -imag + i·real.
    below_real, below_imag = scale + imag, -real
    size = below_real * below_real + below_imag * below_imag
    inverse = below_real / size, -below_imag / size
    up = scale - imag, real
    z = up[0] * inverse[0] - up[1] * inverse[1], up[0] * inverse[1] + up[1] * inverse[0]
    total = ops.full_like(real, coefficients[0]), ops.zeros_like(real)
    for c in coefficients[1:]:
        total = total[0] * z[0] - total[1] * z[1] + c, total[0] * z[1] + total[1] * z[0]
    square = inverse[0] * inverse[0] - inverse[1] * inverse[1], 2.0 * inverse[0] * inverse[1]
    constant = 1.0 / math.sqrt(math.pi)
    return (
        2.0 * (total[0] * square[0] - total[1] * square[1]) + constant * inverse[0],
        2.0 * (total[0] * square[1] + total[1] * square[0]) + constant * inverse[1],
    )


@array_function
def wofz(z: Any) -> Any:
    """e^(-z²)·erfc(-iz), of complex numbers."""
    (z,) = inexact(z)
    real, imag = (ops.real(z), ops.imag(z)) if dtype_of(z).is_complex else (z, ops.zeros_like(z))
    below = ops.lt(imag, 0.0)
    w_real, w_imag = _upper(ops.where(below, -real, real), ops.abs_(imag))
    # w(z) = 2·e^(-z²) - w(-z) below the real axis.
    y = ops.where(below, imag, 0.0)
    growth = 2.0 * ops.exp(ops.where(below, y * y - real * real, 0.0))
    angle = ops.where(below, -2.0 * real * y, 0.0)
    return ops.complex_(
        ops.where(below, growth * ops.cos(angle) - w_real, w_real),
        ops.where(below, growth * ops.sin(angle) - w_imag, w_imag),
    )


@array_function
def erfcx(x: Any) -> Any:
    """e^(x²)·erfc(x), which stays finite where erfc is too small to be held."""
    (x,) = inexact(x)
    negative = ops.lt(x, 0.0)
    size = ops.abs_(x)
    right = _upper(ops.zeros_like(x), size)[0]
    return ops.where(negative, 2.0 * ops.exp(ops.where(negative, x * x, 0.0)) - right, right)


@array_function
def dawsn(x: Any) -> Any:
    """Dawson's integral: e^(-x²) times the integral of e^(t²) from 0 to x."""
    (x,) = inexact(x)
    small = ops.lt(ops.abs_(x), 0.5)
    far = 0.5 * math.sqrt(math.pi) * _upper(ops.where(small, 1.0, x), ops.zeros_like(x))[1]
    # x·Σ (-2x²)^k / (2k+1)!!
    near = ops.where(small, x, 0.0)
    term = series = near
    for k in range(1, 14):
        term = term * (-2.0 * near * near) / (2.0 * k + 1.0)
        series = series + term
    return ops.where(small, series, far)


@array_function
def fresnel(x: Any) -> tuple[Any, Any]:
    """(S, C): the integrals of sin(πt²/2) and cos(πt²/2) from 0 to x."""
    (x,) = inexact(x)
    size = ops.abs_(x)
    near_zero = ops.lt(size, 1.5)
    near = ops.where(near_zero, size, 0.0)
    # Power series in (πx²/2)², whose terms alternate; few are needed and none is large below 1.5.
    square = (math.pi / 2) * near * near
    s_term, c_term = near * square, near
    s_series, c_series = s_term / 3.0, c_term
    for k in range(1, 16):
        c_term = c_term * (-square * square) / ((2.0 * k - 1.0) * (2.0 * k))
        s_term = s_term * (-square * square) / ((2.0 * k) * (2.0 * k + 1.0))
        c_series = c_series + c_term / (4.0 * k + 1.0)
        s_series = s_series + s_term / (4.0 * k + 3.0)
    # C + iS = (1+i)/2·(1 - e^(iπx²/2)·w((1+i)·√π/2·x)).
    far = ops.where(near_zero, 2.0, size)
    along = 0.5 * math.sqrt(math.pi) * far
    w_real, w_imag = _upper(along, along)
    # The angle modulo a turn, taken before it is multiplied by π, so that large x keep their digits.
    turns = 0.25 * far * far
    angle = 2.0 * math.pi * (turns - ops.floor(turns))
    cos, sin = ops.cos(angle), ops.sin(angle)
    rest = 1.0 - (cos * w_real - sin * w_imag), -(cos * w_imag + sin * w_real)
    c_far, s_far = 0.5 * (rest[0] - rest[1]), 0.5 * (rest[0] + rest[1])
    sign = ops.sign(x)
    return sign * ops.where(near_zero, s_series, s_far), sign * ops.where(near_zero, c_series, c_far)
