"""Bessel functions of whole orders, and spherical harmonics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, inexact, operand
from rlx.numpy.grids import i0 as i0
from rlx.numpy.grids import scaled_bessel
from rlx.numpy.manipulation import broadcast_arrays
from rlx.ops.define.operands import convert, dtype_of

__all__ = ["bessel_jn", "i0", "i0e", "i1", "i1e", "sph_harm_y"]


@array_function
def i0e(x: Any) -> Any:
    """e^-|x|·i0(x)."""
    (x,) = inexact(x)
    return scaled_bessel(ops.abs_(x), 0)


@array_function
def i1e(x: Any) -> Any:
    """e^-|x|·i1(x)."""
    (x,) = inexact(x)
    # The sign as a factor that is 1 at 0, where the slope is ½.
    return ops.where(ops.lt(x, 0.0), -1.0, 1.0) * scaled_bessel(ops.where(ops.lt(x, 0.0), -x, x), 1)


@array_function
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 1."""
    (x,) = inexact(x)
    return ops.exp(ops.abs_(x)) * i1e(x)


@array_function
def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Any:
    """J_0(z), .., J_v(z), stacked in front, by `n_iter` steps down the recurrence between orders.

    Orders above `n_iter` must be negligible: z up to about half of it is exact.
    """
    if not isinstance(v, int) or v < 0 or v > n_iter:
        raise OpError(f"bessel_jn: v is a known order from 0 to n_iter, got v={v!r} with n_iter={n_iter}")
    (z,) = inexact(z)
    zero = ops.eq(z, 0.0)
    safe = ops.where(zero, 1.0, z)
    above, here = ops.zeros_like(safe), ops.full_like(safe, 1e-30)
    found: list[Any] = []
    total = ops.zeros_like(safe)
    for order in range(n_iter + n_iter % 2, -1, -1):
        if order <= v:
            found.append(here)
        if order % 2 == 0:
            # J_0 + 2·(J_2 + J_4 + ...) = 1 gives the scale.
            total = total + (here if order == 0 else 2.0 * here)
        above, here = here, (2.0 * order / safe) * here - above
        if order > v:
            # Far above z the values grow by 2·order/z each step; they are brought back before they overflow.
            shrink = ops.where(ops.gt(ops.abs_(here), 1e10), 1e-10, 1.0)
            above, here, total = above * shrink, here * shrink, total * shrink
    ordered = [ops.where(zero, 1.0 if order == 0 else 0.0, x / total) for order, x in enumerate(reversed(found))]
    return ops.stack(ordered, 0)


@array_function
def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: Any | None = None, n_max: int | None = None) -> Any:
    """The spherical harmonic of degree n and order m at polar angle theta and azimuth phi, as `scipy.special` has it.

    `n_max` bounds n, which is needed where n is computed; `diff_n` is accepted for JAX's sake.
    """
    n, m = operand(n), operand(m)
    if n_max is None:
        try:
            n_max = int(np.max(np.asarray(n)))
        except Exception as error:
            raise OpError("sph_harm_y: n is computed, so n_max=, its largest value, is needed") from error
    theta, phi = inexact(theta, phi)
    dtype = dtype_of(theta)
    n, m, theta, phi = broadcast_arrays(convert(n, dtype), convert(m, dtype), theta, phi)
    order = ops.abs_(m)
    cos, sin = ops.cos(theta), ops.sin(theta)
    # Normalised associated Legendre functions: P_m^m by products along m, then up in n by three terms.
    below, here = ops.zeros_like(theta), ops.full_like(theta, math.sqrt(0.25 / math.pi))
    for k in range(1, n_max + 1):
        here = ops.where(ops.le(float(k), order), here * (-math.sqrt((2 * k + 1) / (2 * k))) * sin, here)
    answer = here
    for degree in range(1, n_max + 1):
        up = ops.gt(float(degree), order)
        rest = ops.where(up, float(degree * degree) - order * order, 1.0)
        first = ops.sqrt((4.0 * degree * degree - 1.0) / rest)
        before = ops.where(up, float((degree - 1) ** 2) - order * order, 0.0)
        second = ops.sqrt((2 * degree + 1) * before / rest / max(2 * degree - 3, 1))
        # At degree = order + 1 the second term has no factor, since there is nothing below.
        below, here = ops.where(up, here, below), ops.where(up, first * cos * here - second * below, here)
        answer = ops.where(ops.eq(n, float(degree)), here, answer)
    # Y of order -m is (-1)^m times the conjugate of that of m.
    odd = ops.ne(order - 2.0 * ops.floor(order * 0.5), 0.0)
    sign = ops.where(ops.and_(ops.lt(m, 0.0), odd), -1.0, 1.0)
    answer = ops.where(ops.gt(order, n), 0.0, sign * answer)
    return ops.complex_(answer * ops.cos(m * phi), answer * ops.sin(m * phi))
