"""Functions of square matrices that have a power series: exponential, logarithm, square root, powers.

    expm(a), expm_frechet(a, direction), sqrtm(a) @ sqrtm(a)

All have derivatives of every order, at equal eigenvalues too.
"""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.numpy.arguments import array_function, inexact, rank_of
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["cosm", "expm", "expm_frechet", "fractional_matrix_power", "logm", "sinm", "sqrtm"]


@array_function
def expm(a: Any) -> Any:
    """exp(a) = Σ aᵏ/k! of square matrices; NaN where a matrix has NaN or infinity."""
    return ops.expm(inexact(a)[0])


@array_function
def expm_frechet(a: Any, e: Any) -> tuple[Any, Any]:
    """exp(a), and its derivative in the direction e."""
    a, e = inexact(a, e)
    if dims_of(a) != dims_of(e) or rank_of(a) < 2:
        raise ShapeError(f"expm_frechet: needs two matrices of one shape, got {dims_of(a)} and {dims_of(e)}")
    size = dims_of(a)[-1]
    # exp of [[a, e], [0, a]] has both in its upper half.
    blocks = ops.concat([ops.concat([a, e], -1), ops.concat([ops.zeros_like(a), a], -1)], -2)
    upper = ops.narrow(ops.expm(blocks), -2, 0, size)
    return ops.narrow(upper, -1, 0, size), ops.narrow(upper, -1, size, size)


@array_function
def sqrtm(a: Any) -> Any:
    """The principal square root of square matrices, complex: eigenvalues have a real part that is not negative.

    A singular matrix may have none, and then NaN or infinity come out.
    """
    return ops.sqrtm(inexact(a)[0])


@array_function
def logm(a: Any) -> Any:
    """The principal logarithm of square matrices, complex: exp of it is a. NaN for a singular matrix."""
    return ops.logm(inexact(a)[0])


@array_function
def fractional_matrix_power(a: Any, t: Any) -> Any:
    """aᵗ = exp(t·log a), complex; NaN for a singular matrix."""
    return ops.expm(ops.mul(ops.logm(inexact(a)[0]), t))


@array_function
def cosm(a: Any) -> Any:
    """The cosine of square matrices."""
    return _of_rotation(a)[0]


@array_function
def sinm(a: Any) -> Any:
    """The sine of square matrices."""
    return _of_rotation(a)[1]


def _of_rotation(a: Any) -> tuple[Any, Any]:
    """Cosine and sine: of a real matrix they are the parts of exp(i·a)."""
    (a,) = inexact(a)
    if not dtype_of(a).is_complex:
        turned = ops.expm(ops.mul(a, 1j))
        return ops.real(turned), ops.imag(turned)
    forward, back = ops.expm(ops.mul(a, 1j)), ops.expm(ops.mul(a, -1j))
    return 0.5 * (forward + back), -0.5j * (forward - back)
