"""Functions of matrices built from solves and factorisations; the names are those of np.linalg."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, dtype_of, promote_inexact, same_graph
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.contraction import adjoint, matmul
from rlx.ops.linalg.factorizations import Svd, lu, svd
from rlx.ops.linalg.solve import REAL, BatchedDenseSolve, require_matrix, widened
from rlx.ops.pointwise.arithmetic import div, eq, gt, mul, ne, pow_, where
from rlx.ops.pointwise.unary import abs_, log, sign, sqrt, square
from rlx.ops.reduction.reductions import reduce_max, reduce_min, reduce_prod, reduce_sum
from rlx.ops.shape.creation import eye, iota
from rlx.ops.shape.movement import broadcast_to, expand_dims, moveaxis
from rlx.ops.shape.rearrange import diagonal

__all__ = ["Pinv", "det", "inv", "matrix_power", "norm", "pinv", "slogdet"]

Array = np.ndarray[Any, np.dtype[Any]]


def _identity_like(a: Any) -> Any:
    """The identity for every matrix of `a`."""
    dims = dims_of(a)
    with same_graph(a):
        return broadcast_to(eye(dims[-1], dtype=dtype_of(a)), dims)


def _square(a: Any, name: str) -> Any:
    (a,) = promote_inexact(a)
    dims = dims_of(a)
    if len(dims) < 2 or not require_equal(dims[-2], dims[-1], name):
        raise ShapeError(f"{name}: needs square matrices in the last two axes, got dims {dims}")
    return a


def inv(a: Any) -> Any:
    """A⁻¹ of every matrix; a singular one is an error."""
    a = _square(a, "inv")
    return BatchedDenseSolve()(a, _identity_like(a))


def _lu_diagonal(a: Any) -> tuple[Any, Any]:
    """The diagonal of U, and the sign of the row exchanges as ±1."""
    factors, pivots, _ = lu(a)
    with same_graph(a):
        places = iota(dims_of(pivots), DType.I32, -1)
        parity = reduce_prod(where(eq(pivots, places), convert(1, DType.I32), -1), -1)
    return diagonal(factors, 0, -2, -1), convert(parity, dtype_of(a))


def det(a: Any) -> Any:
    """The determinant of every matrix. Its derivative needs regular matrices."""
    values, parity = _lu_diagonal(_square(a, "det"))
    return mul(parity, reduce_prod(values, -1))


def slogdet(a: Any) -> tuple[Any, Any]:
    """The sign (a unit complex number for complex matrices) and the log of the modulus of the determinant."""
    values, parity = _lu_diagonal(_square(a, "slogdet"))
    size = abs_(values)
    if dtype_of(values).is_complex:
        signs = div(values, convert(where(gt(size, 0.0), size, 1.0), dtype_of(values)))
    else:
        signs = sign(values)
    return mul(parity, reduce_prod(signs, -1)), reduce_sum(log(size), -1)


def matrix_power(a: Any, n: int) -> Any:
    """A multiplied n times with itself, by repeated squaring; powers of the inverse for negative n."""
    if not isinstance(n, int):
        raise OpError(f"matrix_power: the power must be a Python integer, got {n!r}")
    if len(dims_of(a)) < 2:
        raise ShapeError(f"matrix_power: needs square matrices in the last two axes, got dims {dims_of(a)}")
    if n < 0:
        return matrix_power(inv(a), -n)
    if n == 0:
        return _identity_like(a)
    result: Any = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


@op("pinv")
class Pinv(Op):
    """The pseudo-inverse of every matrix: singular values up to rtol times the largest count as 0.

    Without rtol it is max(M, N) times the spacing of the dtype at 1. The derivative is that for a constant rank.
    """

    rtol: float | None = None

    def infer(self, a: Shape) -> Shape:
        require_matrix(self, a)
        *lead, rows, columns = a.dims
        return a.with_dims((*lead, columns, rows))

    def eval(self, a: Array) -> Array:
        relative = self.tolerance(a.shape, DType.of(a.dtype))
        u, s, vh = Svd().eval(widened(a))
        large = s > relative * s.max(axis=-1, keepdims=True, initial=0.0)
        inverse = np.where(large, 1.0 / np.where(large, s, 1.0), 0.0)
        left, right = np.swapaxes(vh, -1, -2).conj(), np.swapaxes(u, -1, -2).conj()
        return np.asarray(left @ (inverse[..., None] * right)).astype(a.dtype)

    def tolerance(self, dims: Dims, dtype: DType) -> float:
        """rtol, or what it is for matrices of these dims."""
        if self.rtol is not None:
            return self.rtol
        sizes = [d for d in dims[-2:] if not isinstance(d, Dim)]
        if len(sizes) != 2:
            raise self.fail(f"give rtol for matrices of symbolic size, got dims {dims}")
        return max(sizes) * (2.0**-23 if dtype.real is DType.F32 else 2.0**-52)

    def decompose(self, a: Tensor) -> Any:
        return pinv_by_svd(a, self.tolerance(a.shape, a.dtype))

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], p: Tensor) -> Any:
        """dP = -P dA P + P Pᴴ dAᴴ (1 - A P) + (1 - P A) dAᴴ Pᴴ P."""
        (a,), (da,) = primals, tangents
        turned = adjoint(da)
        from_left = matmul(matmul(p, adjoint(p)), turned)
        from_right = matmul(turned, matmul(adjoint(p), p))
        outside = (from_left - matmul(matmul(from_left, a), p)) + (from_right - matmul(p, matmul(a, from_right)))
        return outside - matmul(matmul(p, da), p)

    def vjp(self, ct: Tensor, p: Tensor, a: Tensor) -> Any:
        """-Pᴴ P̄ Pᴴ + (1 - A P) P̄ᴴ P Pᴴ + Pᴴ P P̄ᴴ (1 - P A)."""
        turned = adjoint(ct)
        to_left = matmul(turned, matmul(p, adjoint(p)))
        to_right = matmul(matmul(adjoint(p), p), turned)
        outside = (to_left - matmul(a, matmul(p, to_left))) + (to_right - matmul(matmul(to_right, p), a))
        return outside - matmul(matmul(adjoint(p), ct), adjoint(p))

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((3, 2), (2, 3), (3, 3)):
            yield sample(cls(), spec(*dims), dtypes=REAL)
            yield sample(cls(), spec(2, *dims), dtypes=COMPLEX)
        yield sample(cls(0.1), spec(0, 2, 3), dtypes=REAL)
        yield sample(cls(1e-6), spec("B", "M", 2), dtypes=REAL, B=2, M=3)


def pinv_by_svd(a: Any, relative: Any) -> Any:
    """V S⁻¹ Uᴴ, without the singular values up to `relative` times the largest."""
    u, s, vh = svd(a)
    large = gt(s, mul(relative, reduce_max(s, -1, True)))
    inverse = where(large, div(1.0, where(large, s, 1.0)), 0.0)
    return matmul(adjoint(vh), mul(expand_dims(convert(inverse, dtype_of(a)), -1), adjoint(u)))


def pinv(a: Any, rtol: Any = None) -> Any:
    """The pseudo-inverse of every matrix; see `Pinv`. `rtol` may be a tensor too, with one number per matrix."""
    (a,) = promote_inexact(a)
    if rtol is None or isinstance(rtol, int | float):
        return Pinv(rtol)(a)
    return pinv_by_svd(a, expand_dims(rtol, -1))


def norm(
    x: Any, ord: float | str | None = None, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Any:
    """np.linalg.norm. Without `ord` the square root of the sum of squares over `axis` (all axes by default).

    For one axis `ord` is inf, -inf, 0 or a power p; for two axes "fro", "nuc", or 1, -1, 2, -2, inf, -inf.
    """
    (x,) = promote_inexact(x)
    rank = len(dims_of(x))
    if axis is None and ord is not None and rank not in (1, 2):
        raise ShapeError(f"norm: ord={ord!r} needs one or two axes, but dims {dims_of(x)} have {rank}; give `axis`")
    axes = tuple(range(rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(normalize_axis(a, rank, "norm") for a in axes)
    if ord is None or (ord == "fro" and len(axes) == 2):
        return sqrt(reduce_sum(square(abs_(x)), axes, keepdims))
    if len(axes) == 1:
        return _vector_norm(abs_(x), ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ShapeError(f"norm: ord={ord!r} needs one or two axes, got {axes}")
    return _matrix_norm(x, ord, axes, keepdims)


def _vector_norm(size: Any, ord: float | str, axis: int, keepdims: bool) -> Any:
    if isinstance(ord, str):
        raise OpError(f"norm: ord={ord!r} is for matrices; a vector takes inf, -inf, 0 or a power")
    if ord == math.inf:
        return reduce_max(size, axis, keepdims)
    if ord == -math.inf:
        return reduce_min(size, axis, keepdims)
    if ord == 0:
        return reduce_sum(convert(ne(size, 0.0), dtype_of(size)), axis, keepdims)
    if ord == 1:
        return reduce_sum(size, axis, keepdims)
    if ord == 2:
        return sqrt(reduce_sum(square(size), axis, keepdims))
    return pow_(reduce_sum(pow_(size, float(ord)), axis, keepdims), 1.0 / ord)


def _matrix_norm(x: Any, ord: float | str, axes: tuple[int, int], keepdims: bool) -> Any:
    matrices = moveaxis(x, axes, (-2, -1))
    reduce = reduce_max if isinstance(ord, str) or ord > 0 else reduce_min
    if ord == "nuc":
        found = reduce_sum(svd(matrices, compute_uv=False), -1)
    elif ord in (2, -2):
        found = reduce(svd(matrices, compute_uv=False), -1)
    elif ord in (1, -1, math.inf, -math.inf):
        summed = -2 if abs(float(ord)) == 1 else -1
        found = reduce(reduce_sum(abs_(matrices), summed), -1)
    else:
        raise OpError(f"norm: ord={ord!r} is not a matrix norm; use fro, nuc, 1, -1, 2, -2, inf or -inf")
    return expand_dims(found, axes) if keepdims else found
