"""Factorisations of the matrices in the last two axes; leading axes are batches.

f32, f64 and complex operands; computed in double precision and rounded once. Derivatives exist where the factors are
smooth functions of the matrix: full rank for qr and lu, distinct singular values or eigenvalues for the vectors of svd
and eigh. Complex vectors are only determined up to a phase; their derivatives are right for what does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.errors import AutodiffError, NoJvpRule, NoVjpRule, OpError
from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, promote_inexact, same_graph
from rlx.ops.define.rules import batch_by_loop_over_leading, zeros_like
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.contraction import adjoint, conjugated, matmul
from rlx.ops.linalg.solve import REAL, TriangularSolve, not_finite, not_positive_definite, require_matrix, widened
from rlx.ops.pointwise.arithmetic import and_, eq, ge, where
from rlx.ops.pointwise.complex_numbers import real
from rlx.ops.shape.creation import dim_value, eye, iota, tril, triu
from rlx.ops.shape.indexing import GatherNd, IndexMode
from rlx.ops.shape.movement import broadcast_to, concat, exceeds, expand_dims, narrow, pad_zeros, split, swapaxes
from rlx.ops.shape.rearrange import diagonal

__all__ = [
    "Cholesky",
    "Eigh",
    "Lu",
    "Qr",
    "Svd",
    "cholesky",
    "eigh",
    "lu",
    "qr",
    "svd",
]

Array = np.ndarray[Any, np.dtype[Any]]

_POSITIVE = ((4.0, 1.0, 0.5), (1.0, 3.0, -1.0), (0.5, -1.0, 5.0))
_COMPLEX_POSITIVE = ((4.0, 1.0j, 0.5), (-1.0j, 3.0, 1.0 - 1.0j), (0.5, 1.0 + 1.0j, 5.0))


def on_diagonal(a: Any) -> Any:
    """`a` on the diagonal, 0 elsewhere."""
    with same_graph(a):
        return where(eye(a.shape[-2], a.shape[-1], dtype=DType.BOOL), a, 0)


def _real_diagonal(a: Any) -> Any:
    """The real part of `a` on the diagonal, 0 elsewhere."""
    return on_diagonal(convert(real(a), a.dtype))


def diagonal_matrix(values: Any) -> Any:
    """The matrices with `values` on the diagonal."""
    square = (*values.shape, values.shape[-1])
    return on_diagonal(broadcast_to(expand_dims(values, -1), square))


def _cotangent_of_real(ct: Any, dtype: DType) -> Any:
    """The cotangent of z for that of Re z: complex ones are derivatives by the conjugate, which halves it."""
    return convert(0.5 * ct, dtype) if dtype.is_complex else ct


def _strict(a: Any, lower: bool = True) -> Any:
    """The triangle without the diagonal."""
    return tril(a, -1) if lower else triu(a, 1)


def _hermitian(a: Any, lower: bool = True) -> Any:
    """The Hermitian matrix that is meant when only one triangle of `a` is read."""
    triangle = _strict(a, lower)
    return triangle + adjoint(triangle) + _real_diagonal(a)


def _read_cotangent(ct: Any, lower: bool = True) -> Any:
    """The cotangent of a matrix of which one triangle is read, for that of the Hermitian matrix it means."""
    return _strict(ct + adjoint(ct), lower) + _real_diagonal(ct)


def reciprocal(x: Any) -> Any:
    """1 / x, and 0 for 0: what is divided by the gap of two equal values is left out of derivatives."""
    is_zero = eq(x, 0)
    return where(is_zero, 0, 1.0 / where(is_zero, 1, x))


def inverse_gaps(values: Any) -> Any:
    """1 / (values[j] - values[i]) at [i, j], and 0 where they are equal, as on the diagonal."""
    return reciprocal(expand_dims(values, -2) - expand_dims(values, -1))


@op("cholesky")
class Cholesky(Op):
    """L, lower triangular with a positive diagonal, such that A = L Lᴴ; A [.., N, N] must be positive definite.

    Only the lower triangle of A is read.
    """

    primitive = True

    def infer(self, a: Shape) -> Shape:
        require_matrix(self, a, square=True)
        return a

    def eval(self, a: Array) -> Array:
        try:
            return np.linalg.cholesky(widened(a)).astype(a.dtype)
        except np.linalg.LinAlgError:
            raise not_positive_definite(self.mnemonic) from None

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], factor: Tensor) -> Any:
        """dL = L Φ(L⁻¹ dA L⁻ᴴ), where Φ takes the lower triangle and half of the diagonal."""
        left = TriangularSolve()(factor, _hermitian(tangents[0]))
        both = TriangularSolve()(factor, adjoint(left))
        return matmul(factor, _half_lower(both))

    def vjp(self, ct: Tensor, factor: Tensor, a: Tensor) -> Any:
        """L⁻ᴴ Φ(Lᴴ L̄) L⁻¹."""
        solve_adjoint, conjugate_factor = TriangularSolve(transpose=True), conjugated(factor)
        left = solve_adjoint(conjugate_factor, _half_lower(matmul(adjoint(factor), ct)))
        return _read_cotangent(adjoint(solve_adjoint(conjugate_factor, adjoint(left))))

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3, values=_POSITIVE), dtypes=REAL)
        yield sample(cls(), spec(3, 3, values=_COMPLEX_POSITIVE), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 1, 1, low=1.0), dtypes=REAL)
        yield sample(cls(), spec(0, 3, 3), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3, values=_POSITIVE), dtypes=REAL, B=2)


def _half_lower(a: Any) -> Any:
    return 0.5 * (tril(a) + tril(a, -1))


@op("qr")
class Qr(Op):
    """Q and R with A = Q R: orthonormal columns, upper triangular; A [.., M, N], k = min(M, N).

    Q is [.., M, k] and R [.., k, N], or [.., M, M] and [.., M, N] with `full_matrices`.
    """

    primitive = True

    full_matrices: bool = False

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        require_matrix(self, a)
        *lead, rows, columns = a.dims
        inner = rows if self.full_matrices else dim_min(rows, columns)
        return a.with_dims((*lead, rows, inner)), a.with_dims((*lead, inner, columns))

    def eval(self, a: Array) -> tuple[Array, Array]:
        q, r = np.linalg.qr(widened(a), "complete" if self.full_matrices else "reduced")
        return q.astype(a.dtype), r.astype(a.dtype)

    def _require_smooth(self, refusal: Callable[[str, str], AutodiffError], a: Tensor, q: Tensor) -> bool:
        """True for tall matrices; refuses those whose Q is not a function of A alone, or cannot be told apart."""
        rows, columns = a.shape[-2:]
        if q.shape[-1] == columns:
            return True
        if exceeds(columns, rows):
            return False
        raise refusal(
            self.mnemonic,
            f"with full_matrices={self.full_matrices} and matrices {a.type} the columns of Q beyond those of A are "
            "arbitrary; use full_matrices=False, and sizes of which is known which is larger",
        )

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: tuple[Tensor, Tensor]) -> Any:
        (a,), (da,), (q, r) = primals, tangents, y
        if self._require_smooth(NoJvpRule, a, q):
            return _qr_tangents(q, r, da)
        # A = [A1 A2], R = [R1 R2]: A1 = Q R1 is square, and R2 = Qᴴ A2.
        square = q.shape[-1]
        (_, a2), (da1, da2), (r1, _) = (split(x, [square], -1) for x in (a, da, r))
        dq, dr1 = _qr_tangents(q, r1, da1)
        return dq, concat([dr1, matmul(adjoint(dq), a2) + matmul(adjoint(q), da2)], -1)

    def vjp(self, ct: tuple[Tensor | None, Tensor | None], y: tuple[Tensor, Tensor], a: Tensor) -> Any:
        q, r = y
        q_ct, r_ct = (zeros_like(x) if t is None else t for x, t in zip(y, ct))
        if self._require_smooth(NoVjpRule, a, q):
            return _qr_cotangent(q, r, q_ct, r_ct)
        square = q.shape[-1]
        (_, a2), (r1, _), (r1_ct, r2_ct) = (split(x, [square], -1) for x in (a, r, r_ct))
        a1_ct = _qr_cotangent(q, r1, q_ct + matmul(a2, adjoint(r2_ct)), r1_ct)
        return concat([a1_ct, matmul(q, r2_ct)], -1)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for full in (False, True):
            yield sample(cls(full), spec(4, 3), dtypes=REAL)
            yield sample(cls(full), spec(2, 2, 3), dtypes=REAL)
            yield sample(cls(full), spec(3, 3), dtypes=COMPLEX)
        yield sample(cls(), spec(3, 2), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 3), dtypes=COMPLEX)
        yield sample(cls(), spec("B", 3, 2), dtypes=REAL, B=2)


def _qr_tangents(q: Tensor, r: Tensor, da: Tensor) -> tuple[Any, Any]:
    """dR = T R and dQ = dA R⁻¹ - Q T: T is upper triangular with a real diagonal, and Qᴴ dA R⁻¹ - T skew-Hermitian."""
    moved = swapaxes(TriangularSolve(lower=False, transpose=True)(r, swapaxes(da, -1, -2)), -1, -2)
    inside = matmul(adjoint(q), moved)
    upper = triu(inside, 1) + adjoint(tril(inside, -1)) + _real_diagonal(inside)
    return moved - matmul(q, upper), matmul(upper, r)


def _qr_cotangent(q: Tensor, r: Tensor, q_ct: Tensor, r_ct: Tensor) -> Any:
    """(Q̄ + Q H) R⁻ᴴ, H the Hermitian matrix whose lower triangle is that of R R̄ᴴ - Q̄ᴴ Q."""
    inner = _hermitian(matmul(r, adjoint(r_ct)) - matmul(adjoint(q_ct), q))
    whole = q_ct + matmul(q, inner)
    return swapaxes(TriangularSolve(lower=False)(conjugated(r), swapaxes(whole, -1, -2)), -1, -2)


@op("svd")
class Svd(Op):
    """U, S, Vᴴ with A = U diag(S) Vᴴ, S descending; A [.., M, N], k = min(M, N). Without `compute_uv` only S [.., k].

    U is [.., M, k] and Vᴴ [.., k, N], or [.., M, M] and [.., N, N] with `full_matrices`. NaN and inf are an error. What
    A leaves open is up to the engine: signs, vectors of equal values, those that `full_matrices` adds.
    """

    primitive = True

    full_matrices: bool = False
    compute_uv: bool = True

    def infer(self, a: Shape) -> Shape | tuple[Shape, Shape, Shape]:
        require_matrix(self, a)
        *lead, rows, columns = a.dims
        inner = dim_min(rows, columns)
        values = Shape((*lead, inner), a.dtype.real)
        if not self.compute_uv:
            return values
        left, right = (rows, columns) if self.full_matrices else (inner, inner)
        return a.with_dims((*lead, rows, left)), values, a.with_dims((*lead, right, columns))

    def eval(self, a: Array) -> Array | tuple[Array, ...]:
        real = DType.of(a.dtype).real.numpy
        if not np.isfinite(a).all():
            # LAPACK may look for them forever.
            raise not_finite(self.mnemonic)
        if not self.compute_uv:
            return np.linalg.svd(widened(a), compute_uv=False).astype(real)
        u, s, vh = np.linalg.svd(widened(a), full_matrices=self.full_matrices)
        return u.astype(a.dtype), s.astype(real), vh.astype(a.dtype)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Any) -> Any:
        (a,), (da,) = primals, tangents
        if not self.compute_uv:
            u, _, vh = Svd()(a)
            return real(diagonal(matmul(matmul(adjoint(u), da), adjoint(vh)), 0, -2, -1))
        u, s, vh = y
        self._require_smooth(NoJvpRule, a, u, s, vh)
        return _svd_tangents(u, s, vh, da)

    def vjp(self, ct: Any, y: Any, a: Tensor) -> Any:
        if not self.compute_uv:
            u, _, vh = Svd()(a)
            return _values_cotangent(u, vh, ct)
        (u, s, vh), (u_ct, s_ct, vh_ct) = y, ct
        if u_ct is None and vh_ct is None:
            inner = s.shape[-1]
            return _values_cotangent(narrow(u, -1, 0, inner), narrow(vh, -2, 0, inner), s_ct)
        self._require_smooth(NoVjpRule, a, u, s, vh)
        return _svd_cotangent(u, s, vh, *(zeros_like(x) if t is None else t for x, t in zip(y, ct)))

    batch = batch_by_loop_over_leading

    def _require_smooth(
        self, refusal: Callable[[str, str], AutodiffError], a: Tensor, u: Tensor, s: Tensor, vh: Tensor
    ) -> None:
        if not u.shape[-1] == vh.shape[-2] == s.shape[-1]:
            raise refusal(
                self.mnemonic,
                f"the vectors that full_matrices adds for matrices {a.type} are arbitrary; use full_matrices=False",
            )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for full in (False, True):
            yield sample(cls(full), spec(4, 3), dtypes=REAL)
            yield sample(cls(full), spec(2, 2, 3), dtypes=REAL)
            yield sample(cls(full), spec(3, 3), dtypes=REAL)
            # The phases of complex vectors are not smooth functions of the matrix.
            yield sample(cls(full), spec(3, 3), dtypes=COMPLEX, smooth=False)
        yield sample(cls(), spec(3, 2), dtypes=COMPLEX, smooth=False)
        yield sample(cls(), spec(2, 3), dtypes=COMPLEX, smooth=False)
        yield sample(cls(compute_uv=False), spec(2, 3, 4), dtypes=REAL)
        yield sample(cls(compute_uv=False), spec(4, 3), dtypes=COMPLEX)
        yield sample(cls(), spec("B", 3, 2), dtypes=REAL, B=2)


def _values_cotangent(u: Tensor, vh: Tensor, s_ct: Tensor) -> Any:
    """U diag(S̄) Vᴴ; it needs no distinct singular values."""
    return matmul(u * expand_dims(_cotangent_of_real(s_ct, u.dtype), -2), vh)


def _svd_gaps(s: Tensor, dtype: DType) -> Any:
    """1 / (s[j]² - s[i]²) at [i, j], and 0 on the diagonal."""
    sums = expand_dims(s, -2) + expand_dims(s, -1)
    return convert(inverse_gaps(s) * reciprocal(sums), dtype)


def _phase_part(a: Any) -> Any:
    """The imaginary part of the diagonal: how much the phases of a pair of complex vectors turn against each other."""
    return on_diagonal(a) - _real_diagonal(a)


def _svd_tangents(u: Tensor, s: Tensor, vh: Tensor, da: Tensor) -> tuple[Any, Any, Any]:
    """With X = Uᴴ dA V and F[i, j] = 1 / (s[j]² - s[i]²):

    dS = Re diag X, dU = U (F∘(X S + S Xᴴ)) + (1 - U Uᴴ) dA V S⁻¹, dV = V (F∘(S X + Xᴴ S)) + (1 - V Vᴴ) dAᴴ U S⁻¹.
    Of complex vectors, U takes the whole turn of the phase.
    """
    v = adjoint(vh)
    values = convert(s, u.dtype)
    row, column = expand_dims(values, -2), expand_dims(values, -1)
    right, left = matmul(da, v), matmul(adjoint(da), u)
    x = matmul(adjoint(u), right)
    gaps = _svd_gaps(s, u.dtype)
    turn_u = gaps * (x * row + column * adjoint(x))
    turn_v = gaps * (column * x + adjoint(x) * row)
    if u.dtype.is_complex:
        turn_u = turn_u + _phase_part(x) * reciprocal(row)
    du = matmul(u, turn_u) + _outside(u, right, row)
    dv = matmul(v, turn_v) + _outside(v, left, row)
    return du, real(diagonal(x, 0, -2, -1)), adjoint(dv)


def _outside(basis: Any, x: Any, row: Any) -> Any:
    """(1 - B Bᴴ) x S⁻¹, the part of x that the columns of `basis` do not span; a square basis leaves nothing."""
    if basis.shape[-2] == basis.shape[-1]:
        return zeros_like(x)
    return (x - matmul(basis, matmul(adjoint(basis), x))) * reciprocal(row)


def _svd_cotangent(u: Tensor, s: Tensor, vh: Tensor, u_ct: Tensor, s_ct: Tensor, vh_ct: Tensor) -> Any:
    """The adjoint of `_svd_tangents`."""
    v, v_ct = adjoint(vh), adjoint(vh_ct)
    values = convert(s, u.dtype)
    row, column = expand_dims(values, -2), expand_dims(values, -1)
    gaps = _svd_gaps(s, u.dtype)
    turn_u, turn_v = matmul(adjoint(u), u_ct), matmul(vh, v_ct)
    from_u, from_v = gaps * turn_u, gaps * turn_v
    x_ct = (from_u + adjoint(from_u)) * row + column * (from_v + adjoint(from_v))
    x_ct = x_ct + diagonal_matrix(_cotangent_of_real(s_ct, u.dtype))
    if u.dtype.is_complex:
        x_ct = x_ct + _phase_part(turn_u) * reciprocal(row)
    left = matmul(u, x_ct) + _outside(u, u_ct, row)
    return matmul(left, vh) + matmul(u, adjoint(_outside(v, v_ct, row)))


@op("eigh")
class Eigh(Op):
    """W, V with A V = V diag(W) for Hermitian A [.., N, N]: W ascending and real, V unitary.

    Only the lower triangle of A is read, or the upper one when `lower` is False. What A leaves open is up to the
    engine: signs, and vectors of equal values. Where NaN or infinity is read, W and V are NaN.
    """

    primitive = True

    lower: bool = True

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        require_matrix(self, a, square=True)
        return Shape(a.dims[:-1], a.dtype.real), a

    def eval(self, a: Array) -> tuple[Array, Array]:
        read = np.tril(a) if self.lower else np.triu(a)
        # LAPACK does not come to an end on a matrix that has NaN in it; nothing is known of that one.
        is_finite = np.asarray(np.isfinite(read).all((-2, -1)))[..., None]
        w, v = np.linalg.eigh(widened(np.where(is_finite[..., None], a, 0)), "L" if self.lower else "U")
        w, v = np.where(is_finite, w, np.nan), np.where(is_finite[..., None], v, np.nan)
        return w.astype(DType.of(a.dtype).real.numpy), v.astype(a.dtype)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: tuple[Tensor, Tensor]) -> Any:
        """With X = Vᴴ dA V: dW = diag X, dV = V (F∘X), F[i, j] = 1 / (w[j] - w[i])."""
        w, v = y
        x = matmul(matmul(adjoint(v), _hermitian(tangents[0], self.lower)), v)
        turn = convert(inverse_gaps(w), v.dtype) * x
        return real(diagonal(x, 0, -2, -1)), matmul(v, turn)

    def vjp(self, ct: tuple[Tensor | None, Tensor | None], y: tuple[Tensor, Tensor], a: Tensor) -> Any:
        """V (diag W̄ + F∘(Vᴴ V̄)) Vᴴ."""
        (w, v), (w_ct, v_ct) = y, ct
        inner = diagonal_matrix(_cotangent_of_real(zeros_like(w) if w_ct is None else w_ct, v.dtype))
        if v_ct is not None:
            inner = inner + convert(inverse_gaps(w), v.dtype) * matmul(adjoint(v), v_ct)
        return _read_cotangent(matmul(matmul(v, inner), adjoint(v)), self.lower)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for lower in (True, False):
            yield sample(cls(lower), spec(3, 3), dtypes=REAL)
            # The phases of complex vectors are not smooth functions of the matrix.
            yield sample(cls(lower), spec(3, 3), dtypes=COMPLEX, smooth=False)
        yield sample(cls(), spec(2, 1, 1), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=REAL, B=2)


@op("lu")
class Lu(Op):
    """LU, pivots, permutation with A[permutation] = L U: L (unit diagonal, not stored) below U in LU [.., M, N].

    Row i was exchanged with row pivots[i], in order, for i < min(M, N); `permutation` [.., M] is the outcome. Ids are
    i32. The pivot is the first element of largest modulus; a column without one is left alone.
    """

    primitive = True

    def infer(self, a: Shape) -> tuple[Shape, Shape, Shape]:
        require_matrix(self, a)
        *lead, rows, columns = a.dims
        return a, Shape((*lead, dim_min(rows, columns)), DType.I32), Shape((*lead, rows), DType.I32)

    def eval(self, a: Array) -> tuple[Array, Array, Array]:
        *lead, rows, columns = a.shape
        factors = [_lu_of_one(m) for m in widened(a).reshape((math.prod(lead), rows, columns))]
        count = min(rows, columns)
        lu_, pivots, permutation = zip(*factors) if factors else ((), (), ())
        return (
            np.asarray(lu_).reshape(a.shape).astype(a.dtype),
            np.asarray(pivots, np.int32).reshape((*lead, count)),
            np.asarray(permutation, np.int32).reshape((*lead, rows)),
        )

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: tuple[Tensor, ...]) -> Any:
        """With X = L⁻¹ dA[permutation] U⁻¹: dL = L tril(X, -1), dU = triu(X) U."""
        lower, upper = _square_factors(y[0])
        rows = row_gather(y[2])(tangents[0], expand_dims(y[2], -1))
        left = TriangularSolve(unit_diagonal=True)(lower, rows)
        x = swapaxes(TriangularSolve(lower=False, transpose=True)(upper, swapaxes(left, -1, -2)), -1, -2)
        return matmul(lower, tril(x, -1)) + matmul(triu(x), upper), None, None

    def vjp(self, ct: tuple[Tensor | None, ...], y: tuple[Tensor, ...], a: Tensor) -> Any:
        lower, upper = _square_factors(y[0])
        x_ct = tril(matmul(adjoint(lower), ct[0]), -1) + triu(matmul(ct[0], adjoint(upper)))
        left = TriangularSolve(transpose=True, unit_diagonal=True)(conjugated(lower), x_ct)
        rows_ct = swapaxes(TriangularSolve(lower=False)(conjugated(upper), swapaxes(left, -1, -2)), -1, -2)
        a_ct, _ = row_gather(y[2]).vjp(rows_ct, None, a, expand_dims(y[2], -1))
        return a_ct

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3), dtypes=REAL)
        yield sample(cls(), spec(3, 2), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 3), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 4, 2), dtypes=REAL)
        yield sample(cls(), spec(2, 4), dtypes=REAL)
        yield sample(cls(), spec(0, 2, 2), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=REAL, B=2)


def _square_factors(packed: Tensor) -> tuple[Any, Any]:
    """L [.., M, M] and U [.., N, N] from LU [.., M, N]; what the smaller one lacks is filled up from the identity."""
    rows, columns = packed.shape[-2:]
    lead = (0,) * (packed.ndim - 2)
    with same_graph(packed):
        place = iota((columns, 1), axis=0)
        missing = and_(eye(columns, dtype=DType.BOOL), ge(place, dim_value(rows)))
        ones_ = eye(rows, dtype=packed.dtype)
    lower = tril(pad_zeros(packed, (*lead, 0, 0), (*lead, 0, rows - columns)), -1) + ones_
    upper = triu(pad_zeros(packed, (*lead, 0, 0), (*lead, columns - rows, 0)))
    return lower, where(missing, 1, upper)


def row_gather(permutation: Tensor) -> GatherNd:
    """Reads rows by number, of matrices whose leading axes are those of the numbers."""
    lead = permutation.ndim - 1
    return GatherNd((lead,), lead, IndexMode.Clip)


def _lu_of_one(a: Array) -> tuple[Array, list[int], list[int]]:
    a = a.copy()
    rows, columns = a.shape
    pivots, permutation = [], list(range(rows))
    for k in range(min(rows, columns)):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        pivots.append(pivot)
        a[[k, pivot]] = a[[pivot, k]]
        permutation[k], permutation[pivot] = permutation[pivot], permutation[k]
        if a[k, k] != 0:
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots, permutation


def cholesky(a: Any) -> Any:
    """The lower Cholesky factor; see `Cholesky`."""
    return Cholesky()(*promote_inexact(a))


def qr(a: Any, mode: str = "reduced") -> Any:
    """(Q, R) with A = Q R; mode is "reduced", "complete", or "r" for R alone."""
    if mode not in ("reduced", "complete", "r"):
        raise OpError(f"qr: mode must be reduced, complete or r, got {mode!r}")
    q, r = Qr(mode == "complete")(*promote_inexact(a))
    return r if mode == "r" else (q, r)


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """(U, S, Vᴴ) with A = U diag(S) Vᴴ, or S alone; see `Svd`."""
    return Svd(full_matrices, compute_uv)(*promote_inexact(a))


def eigh(a: Any, lower: bool = True) -> Any:
    """(eigenvalues ascending, eigenvectors in columns) of Hermitian matrices; see `Eigh`."""
    return Eigh(lower)(*promote_inexact(a))


def lu(a: Any) -> Any:
    """(LU, pivots, permutation); see `Lu`."""
    return Lu()(*promote_inexact(a))
