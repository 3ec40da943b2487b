"""Polynomials given by their coefficients, the highest power first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.tensor import Tensor
from rlx.numpy.arguments import (
    array_function,
    convert,
    inexact,
    operand,
    promoted,
    rank_of,
    static_size,
    value,
)
from rlx.numpy.linear_algebra import convolve
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "roots",
]


def _degree_count(p: Any, function: str) -> int:
    if rank_of(p) != 1:
        raise ShapeError(f"{function}: needs a vector of coefficients, got shape {dims_of(p)}")
    return static_size(dims_of(p)[0], function)


@array_function
def polyval(p: Any, x: Any) -> Any:
    """p[0]·x^(n-1) + .. + p[n-1], by Horner's rule."""
    p, x = promoted(p, x)
    result = ops.zeros_like(x)
    for i in range(_degree_count(p, "polyval")):
        result = ops.add(ops.mul(result, x), ops.reshape(ops.narrow(p, 0, i, 1), ()))
    return result


def _aligned(a: Any, b: Any, function: str) -> tuple[Any, Any]:
    """Both with zeros in front up to the same number of coefficients."""
    a, b = (ops.reshape(p, (1,)) if rank_of(p) == 0 else p for p in promoted(a, b))
    count = max(_degree_count(a, function), _degree_count(b, function))
    a, b = (ops.pad(p, 0, low=[count - static_size(dims_of(p)[0], function)]) for p in (a, b))
    return a, b


@array_function
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials."""
    return ops.add(*_aligned(a1, a2, "polyadd"))


@array_function
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials."""
    return ops.sub(*_aligned(a1, a2, "polysub"))


@array_function
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials. Leading zeros stay, because the size cannot depend on values."""
    a1, a2 = (ops.reshape(p, (1,)) if rank_of(p) == 0 else p for p in promoted(a1, a2))
    return convolve(a1, a2)


@array_function
def polydiv(u: Any, v: Any) -> tuple[Any, Any]:
    """Quotient and remainder of two polynomials. Leading zeros stay, because the size cannot depend on values."""
    u, v = (ops.reshape(p, (1,)) if rank_of(p) == 0 else p for p in inexact(u, v))
    divisor = _degree_count(v, "polydiv")
    steps = max(_degree_count(u, "polydiv") - divisor + 1, 0)
    lead = ops.narrow(v, 0, 0, 1)
    quotient = [ops.zeros((0,), dtype_of(u))]
    for _ in range(steps):
        factor = ops.div(ops.narrow(u, 0, 0, 1), lead)
        rest = dims_of(u)[0] - divisor
        # The first coefficient cancels and is dropped.
        u = ops.narrow(ops.sub(u, ops.pad(ops.mul(v, factor), 0, high=[rest])), 0, 1, dims_of(u)[0] - 1)
        quotient.append(factor)
    return ops.concat(quotient, 0), u


@array_function
def polyder(p: Any, m: int = 1) -> Any:
    """The m-th derivative of a polynomial."""
    p = value(p)
    for _ in range(m):
        count = _degree_count(p, "polyder")
        powers = ops.reverse(ops.iota((max(count - 1, 0),), dtype=dtype_of(p)) + 1, 0)
        p = ops.mul(ops.narrow(p, 0, 0, max(count - 1, 0)), powers)
    return p


@array_function
def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th integral of a polynomial, with constants k (0 by default)."""
    (p,) = inexact(p)
    constants = [0.0] * m if k is None else [*_constants(k, m)]
    for constant in constants:
        count = _degree_count(p, "polyint")
        powers = ops.reverse(ops.iota((count,), dtype=dtype_of(p)) + 1, 0)
        end = ops.reshape(convert(operand(constant), dtype_of(p)), (1,))
        p = ops.concat([ops.div(p, powers), end], 0)
    return p


def _constants(k: Any, m: int) -> Sequence[Any]:
    if rank_of(k) == 0:
        return [k] * m
    k = value(k)
    if _degree_count(k, "polyint") == 1:
        return [ops.reshape(k, ())] * m
    if _degree_count(k, "polyint") != m:
        raise ShapeError(f"polyint: needs one constant or {m} of them, got {dims_of(k)[0]}")
    return [ops.reshape(ops.narrow(k, 0, i, 1), ()) for i in range(m)]


@array_function
def poly(seq_of_zeros: Any) -> Any:
    """The coefficients of the polynomial with these zeros and leading coefficient 1."""
    (zeros,) = inexact(seq_of_zeros)
    if rank_of(zeros) != 1:
        raise ShapeError(f"poly: needs a vector of zeros, got shape {dims_of(zeros)}")
    result = ops.ones((1,), dtype_of(zeros))
    for i in range(static_size(dims_of(zeros)[0], "poly")):
        root = ops.narrow(zeros, 0, i, 1)
        shifted = ops.pad(result, 0, high=[1])
        result = ops.sub(shifted, ops.mul(ops.pad(result, 0, low=[1]), root))
    return result


@array_function
def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The zeros of a polynomial, as complex numbers: eigenvalues of its companion matrix.

    Zeros at both ends of p are left out first, which decides how many zeros there are; a computed p therefore needs
    `strip_zeros=False`, as in JAX, and its first coefficient must not be 0.
    """
    from rlx.numpy.linalg import eigvals

    (p,) = inexact(p)
    if rank_of(p) != 1:
        raise ShapeError(f"roots: needs a vector of coefficients, got shape {dims_of(p)}")
    at_zero = 0
    if strip_zeros:
        if isinstance(p, Tensor):
            raise OpError("roots: which coefficients are 0 is not known yet; give strip_zeros=False")
        known = np.asarray(p)
        places = np.flatnonzero(known)
        if not places.size:
            return np.zeros(0, np.result_type(known.dtype, np.complex64))
        at_zero = known.size - 1 - int(places[-1])
        p = known[places[0] : places[-1] + 1]
    degree = _degree_count(p, "roots") - 1
    (first, rest) = ops.narrow(p, 0, 0, 1), ops.narrow(p, 0, 1, degree)
    zeros = ops.zeros((at_zero,), DType.C128 if dtype_of(p) in (DType.F64, DType.C128) else DType.C64)
    if degree == 0:
        return zeros
    shifted = ops.pad(ops.eye(degree - 1), 0, [0, 0], [0, 1]) if degree > 1 else ops.zeros((0, 1))
    companion = ops.concat([ops.reshape(-rest / first, (1, degree)), ops.cast(shifted, dtype_of(p))], 0)
    return ops.concat([eigvals(companion), zeros], 0)


@array_function
def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, w: Any = None) -> Any:
    """The polynomial of degree `deg` that is closest to the points (x, y) in the sense of least squares."""
    from rlx.numpy.grids import vander
    from rlx.numpy.linalg import lstsq

    x, y = inexact(x, y)
    left, right = vander(x, deg + 1), y
    if w is not None:
        weights = ops.expand_dims(convert(value(w), dtype_of(x)), -1)
        left = ops.mul(left, weights)
        right = ops.mul(right, weights if rank_of(y) == 2 else ops.squeeze(weights, -1))
    # Columns of one length make the powers comparable.
    scale = ops.sqrt(ops.reduce_sum(ops.mul(left, left), 0))
    solution = lstsq(ops.div(left, scale), right, rcond)[0]
    return ops.div(solution, ops.expand_dims(scale, -1) if rank_of(y) == 2 else scale)
