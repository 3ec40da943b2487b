"""`rlx.scipy.linalg`: all of `rlx.linalg`, and the functions whose arguments or defaults in SciPy differ from NumPy's.

    upper = cholesky(a)             # `rlx.linalg.cholesky` gives the lower factor, as NumPy does
    q, r = qr(a)                    # a square q; `rlx.linalg.qr` gives the reduced one

`overwrite_a`, `check_finite` and the other hints of SciPy are accepted and change nothing: values are immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rlx import linalg as full
from rlx import ops
from rlx.errors import OpError
from rlx.linalg import *  # noqa: F403
from rlx.linalg.factors import adjoint
from rlx.numpy.arguments import array_function, inexact, rank_of
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = sorted({*full.__all__, "eigh_tridiagonal"})

P = ParamSpec("P")
R = TypeVar("R")


def _hinted(function: Callable[P, R]) -> Callable[..., R]:
    """The function of `rlx.linalg` that also takes SciPy's hints about memory and checks."""

    @wraps(function)
    def call(
        *args: Any, overwrite_a: bool = False, overwrite_b: bool = False, check_finite: bool = True, **kwargs: Any
    ) -> R:
        return function(*args, **kwargs)

    return call


cho_factor = _hinted(full.cho_factor)
cho_solve = _hinted(full.cho_solve)
det = _hinted(full.det)
inv = _hinted(full.inv)
lu = _hinted(full.lu)
lu_factor = _hinted(full.lu_factor)
lu_solve = _hinted(full.lu_solve)
solve_triangular = _hinted(full.solve_triangular)


@array_function
def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The upper factor U with a = Uᴴ·U, or with `lower` L with a = L·Lᴴ. Only that triangle of `a` is read."""
    (a,) = inexact(a)
    return ops.cholesky(a) if lower else adjoint(ops.cholesky(adjoint(a)))


@array_function
def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Any, ...]:
    """(Q, R) with a = Q·R and a square Q; mode "economic" gives the first columns of Q, mode "r" only (R,)."""
    if pivoting:
        raise OpError("qr: pivoting=True is not supported; a rank is found by rlx.numpy.linalg.matrix_rank or by svd")
    if mode not in ("full", "economic", "r"):
        raise OpError(f"qr: mode must be 'full', 'economic' or 'r', got {mode!r}")
    q, r = ops.qr(inexact(a)[0], "reduced" if mode == "economic" else "complete")
    return (r,) if mode == "r" else (q, r)


@array_function
def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """(U, s, Vᴴ) with a = U·diag(s)·Vᴴ, or s alone."""
    return full.svd(a, full_matrices, compute_uv)


@array_function
def eigh(
    a: Any,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """Eigenvalues, ascending, and eigenvectors of Hermitian matrices, of which one triangle is read.

    With a positive definite b, those of a·v = w·b·v; vectors then have vᴴ·b·v = 1.
    """
    if eigvals is not None or type != 1:
        raise OpError("eigh: only all eigenvalues of the problem of type 1, a·v = w·b·v, are supported")
    if b is None:
        values, vectors = full.eigh(a, "L" if lower else "U")
        return values if eigvals_only else (values, vectors)
    a, b = inexact(a, b)
    a, b = (x if lower else adjoint(x) for x in (a, b))
    a = ops.tril(a) + adjoint(ops.tril(a, -1))
    factor = ops.cholesky(b)
    # With b = L·Lᴴ it is the plain problem of L⁻¹·a·L⁻ᴴ for the vectors Lᴴ·v.
    half = ops.triangular_solve(factor, a)
    values, turned = full.eigh(ops.triangular_solve(factor, adjoint(half)))
    return values if eigvals_only else (values, full.solve_triangular(factor, turned, 2, True))


@array_function
def eigh_tridiagonal(d: Any, e: Any, *, eigvals_only: bool = False, select: str = "a") -> Any:
    """Eigenvalues, ascending, and eigenvectors of the symmetric matrix with d on its diagonal and e beside it."""
    if select != "a":
        raise OpError(f"eigh_tridiagonal: select must be 'a' for all eigenvalues, got {select!r}; slice the result")
    d, e = inexact(d, e)
    if rank_of(d) != 1 or rank_of(e) != 1:
        raise OpError(f"eigh_tridiagonal: needs two vectors, got dims {dims_of(d)} and {dims_of(e)}; use rlx.vmap")
    below = ops.pad(full.diag_set(e), 0, [1, 0], [0, 1])
    return eigh(full.diag_set(d) + below, eigvals_only=eigvals_only)


@array_function
def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Any:
    """x with a·x = b. For assume_a "sym", "her" or "pos", one triangle of `a` is read: the lower one with `lower`."""
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise OpError(f"solve: assume_a must be 'gen', 'sym', 'her' or 'pos', got {assume_a!r}")
    if assume_a == "gen":
        return full.solve(a, b)
    (a,) = inexact(a)
    turn = adjoint if dtype_of(a).is_complex and assume_a != "sym" else _transposed
    triangle = a if lower else turn(a)
    if assume_a == "pos":
        return full.cho_solve((ops.cholesky(triangle), True), b)
    return full.solve(ops.tril(triangle) + turn(ops.tril(triangle, -1)), b)


def _transposed(x: Any) -> Any:
    return ops.swapaxes(x, -1, -2)


@array_function
def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """exp(A), and its derivative in the direction E, which is all there is without `compute_expm`."""
    value, derivative = full.expm_frechet(A, E)
    return (value, derivative) if compute_expm else derivative
