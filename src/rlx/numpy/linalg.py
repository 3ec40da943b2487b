"""Linear algebra: `rlx.numpy.linalg`, as numpy.linalg and the array API extension.

Matrices are the last two axes; leading axes are a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.numpy import linear_algebra
from rlx.numpy.arguments import Axis, array_function, axes_of, convert, inexact, promoted, rank_of, static_size, value
from rlx.numpy.dtypes import finfo
from rlx.numpy.linear_algebra import matmul, matrix_transpose, outer, tensordot, vecdot
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


class EigResult(NamedTuple):
    """Eigenvalues in no order, and the eigenvectors as columns of length 1."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangular one."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """The sign of the determinant, and the logarithm of its magnitude."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values in descending order, right singular vectors as rows."""

    U: Any
    S: Any
    Vh: Any


def _symmetrized(x: Any) -> Any:
    return 0.5 * (x + _adjoint(x))


@array_function
def cholesky(x: Any, /, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """L with x = L·Lᴴ, lower triangular, for positive definite x; with `upper` its adjoint.

    It is the factor of (x + xᴴ)/2, so that gradients are symmetric, as in JAX. Without `symmetrize_input` only the
    lower triangle of x is read, as NumPy does, and only that one has a gradient.
    """
    (x,) = inexact(x)
    dims = dims_of(x)
    if len(dims) < 2 or (isinstance(dims[-1], int) and isinstance(dims[-2], int) and dims[-1] != dims[-2]):
        raise ShapeError(f"cholesky: needs square matrices in the last two axes, got shape {dims}")
    factor = ops.cholesky(_symmetrized(x) if symmetrize_input else x)
    return _adjoint(factor) if upper else factor


@array_function
def qr(x: Any, /, mode: str = "reduced") -> Any:
    """(Q, R) with x = Q·R; mode "complete" gives a square Q, "r" only R."""
    found = ops.qr(inexact(x)[0], mode)
    return found if mode == "r" else QRResult(*found)


@array_function
def svd(x: Any, /, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """(U, S, Vh) with x = U·diag(S)·Vh, or S alone."""
    found = ops.svd(inexact(x)[0], full_matrices if compute_uv else False, compute_uv)
    return SVDResult(*found) if compute_uv else found


@array_function
def svdvals(x: Any, /) -> Any:
    """The singular values in descending order."""
    return svd(x, compute_uv=False)


@array_function
def eigh(x: Any, /, UPLO: str | None = None, *, symmetrize_input: bool | None = None) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric or Hermitian matrices.

    They are those of (x + xᴴ)/2, so that gradients are symmetric, as in JAX. With UPLO "L" or "U" only the lower or
    upper triangle is read, as NumPy does, and only that one has a gradient, unless `symmetrize_input` is True.
    """
    if UPLO not in ("L", "U", None):
        raise OpError(f"eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    (x,) = inexact(x)
    whole = symmetrize_input if symmetrize_input is not None else UPLO is None
    return EighResult(*ops.eigh(_symmetrized(x) if whole else x, UPLO != "U"))


@array_function
def eigvalsh(x: Any, /, UPLO: str | None = None, *, symmetrize_input: bool | None = None) -> Any:
    """The eigenvalues of `eigh`."""
    return eigh(x, UPLO, symmetrize_input=symmetrize_input).eigenvalues


@array_function
def eig(x: Any, /) -> EigResult:
    """Eigenvalues and eigenvectors of square matrices, always complex: x·v = v·w, columns of length 1. Values ascend
    by their real parts, equal ones by their imaginary parts."""
    return EigResult(*ops.eig(inexact(x)[0]))


@array_function
def eigvals(x: Any, /) -> Any:
    """The eigenvalues of `eig`."""
    return ops.eig(inexact(x)[0], False)


@array_function
def solve(x1: Any, x2: Any, /) -> Any:
    """y with x1·y = x2, where x2 is one vector or matrices."""
    return ops.solve(*inexact(x1, x2))


@array_function
def inv(x: Any, /) -> Any:
    """The inverse of square matrices."""
    return ops.inv(inexact(x)[0])


@array_function
def det(x: Any, /) -> Any:
    """The determinant of square matrices."""
    return ops.det(inexact(x)[0])


@array_function
def slogdet(x: Any, /) -> SlogdetResult:
    """Sign and logarithm of the magnitude of the determinant, which may be too large or small for `det`."""
    return SlogdetResult(*ops.slogdet(inexact(x)[0]))


@array_function
def matrix_power(x: Any, n: int, /) -> Any:
    """x multiplied n times with itself; powers of the inverse for negative n."""
    return ops.matrix_power(value(x), n)


@array_function
def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """The pseudo-inverse: singular values below rtol (by default max(M, N)·eps) times the largest count as 0."""
    return ops.pinv(inexact(x)[0], rtol)


def _default_rtol(x: Any, function: str) -> float:
    rows, columns = (static_size(d, function) for d in dims_of(x)[-2:])
    return max(rows, columns) * finfo(dtype_of(x)).eps


@array_function
def matrix_rank(x: Any, /, *, tol: Any = None, rtol: Any = None) -> Any:
    """How many singular values exceed `tol`, or rtol (by default max(M, N)·eps) times the largest; i32."""
    (x,) = inexact(x)
    if rank_of(x) < 2:
        return convert(ops.reduce_any(ops.ne(x, 0)), DType.I32)
    values = ops.svd(x, False, False)
    if tol is None:
        limit = _default_rtol(x, "matrix_rank") if rtol is None else rtol
        tol = ops.reduce_max(values, -1, True) * limit
    return ops.reduce_sum(convert(ops.gt(values, tol), DType.I32), -1)


@array_function
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of a vector (`ord`: p, ±inf, 0) or matrix ("fro", "nuc", ±1, ±2, ±inf); by default √Σ|x|² of all."""
    return ops.norm(inexact(x)[0], ord, axis, keepdims)


@array_function
def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Any:
    """The p-norm (Σ|x|^p)^(1/p) over one or several axes as one vector; ±inf and 0 as limits."""
    (x,) = inexact(x)
    axes = axes_of(axis, rank_of(x), "vector_norm")
    rest = [i for i in range(rank_of(x)) if i not in axes]
    lead = tuple(dims_of(x)[i] for i in rest)
    result = ops.norm(ops.reshape(ops.transpose(x, (*rest, *axes)), (*lead, -1)), ord, -1)
    if not keepdims:
        return result
    return ops.reshape(result, tuple(1 if i in axes else d for i, d in enumerate(dims_of(x))))


@array_function
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes: "fro", "nuc", ±1, ±2, ±inf."""
    return ops.norm(inexact(x)[0], ord, (-2, -1), keepdims)


@array_function
def cond(x: Any, p: Any = None) -> Any:
    """The condition number: the largest by the smallest singular value, or norm(x)·norm(inverse) in the norm p."""
    (x,) = inexact(x)
    if p in (None, 2, -2):
        values = ops.svd(x, False, False)
        largest, smallest = ops.reduce_max(values, -1), ops.reduce_min(values, -1)
        return ops.div(smallest, largest) if p == -2 else ops.div(largest, smallest)
    product = ops.mul(matrix_norm(x, ord=p), matrix_norm(_inverse_or_nan(x), ord=p))
    has_nan = ops.reduce_any(ops.isnan(ops.abs_(x)), (-2, -1))
    return ops.where(ops.isnan(product) & ops.logical_not(has_nan), math.inf, product)


def _inverse_or_nan(x: Any) -> Any:
    """The inverse; infinity or NaN, where `inv` has an error, for singular matrices."""
    packed, _, order = ops.lu(x)
    size = dims_of(x)[-1]
    rows = ops.eq(ops.expand_dims(order, -1), ops.iota((size,), DType.I32, 0))
    y = ops.triangular_solve(packed, convert(rows, dtype_of(x)), unit_diagonal=True)
    return ops.triangular_solve(packed, y, lower=False)


@array_function
def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Any, Any, Any, Any]:
    """x with the smallest |a·x - b|² (of several, the shortest), the residuals, the rank of a, its singular values.

    Matrices may be batches. The residuals are computed for every shape; NumPy leaves them out where a does not have
    full column rank. The derivative is that for a constant rank.
    """
    a, b = inexact(a, b)
    is_vector = rank_of(b) == 1 or rank_of(b) == rank_of(a) - 1
    if rank_of(a) < 2 or (not is_vector and rank_of(b) != rank_of(a)):
        raise ShapeError(f"lstsq: needs matrices and vectors or matrices, got shapes {dims_of(a)} and {dims_of(b)}")
    limit = _default_rtol(a, "lstsq") if rcond is None else rcond
    s = ops.svd(a, False, False)
    rank = ops.reduce_sum(convert(ops.gt(s, ops.reduce_max(s, -1, True) * limit), DType.I32), -1)
    columns = ops.expand_dims(b, -1) if is_vector else b
    x = ops.matmul(ops.pinv(a, limit), columns)
    residual = ops.matmul(a, x) - columns
    size = ops.complex_norm_sq(residual) if dtype_of(a).is_complex else residual * residual
    return ops.squeeze(x, -1) if is_vector else x, ops.reduce_sum(size, -2), rank, s


def _adjoint(x: Any) -> Any:
    turned = ops.swapaxes(x, -1, -2)
    return ops.conjugate(turned) if dtype_of(x).is_complex else turned


@array_function
def multi_dot(arrays: Sequence[Any]) -> Any:
    """The product of several matrices (the first and last may be vectors), in the cheapest order."""
    factors = promoted(*arrays)
    if len(factors) < 2:
        raise ShapeError(f"multi_dot: needs two matrices or more, got {len(factors)}")
    sizes = [static_size(d, "multi_dot") for x in factors for d in dims_of(x)]
    # The inner sizes come twice, once from each neighbour.
    first, last = rank_of(factors[0]) == 1, rank_of(factors[-1]) == 1
    inner = sizes[0 if first else 1 :: 2][: len(factors) - 1]
    chain = [1 if first else sizes[0], *inner, 1 if last else sizes[-1]]
    return _product(factors, _best_splits(chain), 0, len(factors) - 1)


def _best_splits(chain: list[int]) -> dict[tuple[int, int], int]:
    """Where to split the product of factors i..j so that it costs least; factor i is [chain[i], chain[i + 1]]."""
    count = len(chain) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = {k: cost[i, k] + cost[k + 1, j] + chain[i] * chain[k + 1] * chain[j + 1] for k in range(i, j)}
            splits[i, j] = min(options, key=options.__getitem__)
            cost[i, j] = options[splits[i, j]]
    return splits


def _product(factors: list[Any], splits: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if i == j:
        return factors[i]
    k = splits[i, j]
    return ops.matmul(_product(factors, splits, i, k), _product(factors, splits, k + 1, j))


@array_function
def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse under `tensordot` over `ind` axes."""
    (a,) = inexact(a)
    dims = dims_of(a)
    size = math.prod(static_size(d, "tensorinv") for d in dims[ind:])
    inverse = ops.inv(ops.reshape(a, (size, size)))
    return ops.reshape(inverse, (*dims[ind:], *dims[:ind]))


@array_function
def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """x with tensordot(a, x, x.ndim) = b."""
    a, b = inexact(a, b)
    if axes is not None:
        a = ops.moveaxis(a, tuple(axes), tuple(range(rank_of(a) - len(axes), rank_of(a))))
    rest = dims_of(a)[rank_of(b) :]
    size = math.prod(static_size(d, "tensorsolve") for d in rest)
    return ops.reshape(ops.solve(ops.reshape(a, (size, size)), ops.flatten(b)), rest)


@array_function
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The vector product of vectors with three components along `axis`."""
    return linear_algebra.cross(x1, x2, axis=axis)


@array_function
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of the last two axes."""
    return linear_algebra.diagonal(x, offset, -2, -1)


@array_function
def trace(x: Any, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Any:
    """The sums of the diagonals of the last two axes."""
    return linear_algebra.trace(x, offset, -2, -1, dtype)
