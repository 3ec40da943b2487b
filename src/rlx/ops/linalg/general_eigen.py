"""Eigenvalues of general square matrices, and the unitary factor of the polar decomposition.

Eigenvectors are determined up to a phase; derivatives are right for what does not depend on it. Where two eigenvalues
are equal, the derivatives of their vectors leave out what turns them into each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_at_most
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, promote_inexact
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.contraction import adjoint, conjugated, matmul
from rlx.ops.linalg.factorizations import Svd, diagonal_matrix, inverse_gaps, reciprocal
from rlx.ops.linalg.solve import REAL, BatchedDenseSolve, require_matrix, widened
from rlx.ops.pointwise.complex_numbers import real
from rlx.ops.shape.movement import expand_dims
from rlx.ops.shape.rearrange import diagonal

__all__ = ["Eig", "PolarFactor", "eig", "polar_factor"]

Array = np.ndarray[Any, np.dtype[Any]]

_APART = ((4.0 + 1.0j, 1.0, -1.0j), (0.5j, 3.0, 1.0 - 1.0j), (1.0, -1.0, 5.0j))
_PAIR = ((1.0, 2.0, 0.0), (-2.0, 1.0, 0.5), (0.0, 0.5, -3.0))

# Eigenvalues are sorted by their parts in so many steps of the largest part. Engines round differently: those of which
# only rounding says which one has the larger real part, as all of a skew matrix, come in one order everywhere.
SPECTRAL_STEPS = 2.0**32


def _ascending(w: Array) -> Array:
    """The order of eigenvalues, as positions."""
    largest = np.maximum(np.abs(w.real), np.abs(w.imag)).max(-1, keepdims=True, initial=0.0)
    re, im = (np.rint(x / np.where(largest > 0, largest, 1.0) * SPECTRAL_STEPS) for x in (w.real, w.imag))
    return np.lexsort((im, re), axis=-1)


@op("eig")
class Eig(Op):
    """W, V with A V = V diag(W) for square A [.., N, N]; both complex, columns of V of length 1. Without `compute_v`
    only W.

    Values ascend by their real parts, and where these are equal but for rounding by their imaginary ones: see
    `SPECTRAL_STEPS`. What A leaves open is up to the engine: phases, vectors of equal values. Where A has NaN or
    infinity, W and V are NaN.
    """

    primitive = True

    compute_v: bool = True

    def infer(self, a: Shape) -> Shape | tuple[Shape, Shape]:
        require_matrix(self, a, square=True)
        w = Shape(a.dims[:-1], a.dtype.complex)
        return (w, Shape(a.dims, a.dtype.complex)) if self.compute_v else w

    def eval(self, a: Array) -> Array | tuple[Array, Array]:
        found = np.result_type(a.dtype, np.complex64)
        is_finite = np.asarray(np.isfinite(a).all((-2, -1)))[..., None]
        known = widened(np.where(is_finite[..., None], a, 0))
        w, v = np.linalg.eig(known) if self.compute_v else (np.linalg.eigvals(known), None)
        order = _ascending(w)
        w = np.where(is_finite, np.take_along_axis(w, order, -1), np.nan).astype(found)
        if v is None:
            return w
        v = np.take_along_axis(v, order[..., None, :], -1)
        return w, np.where(is_finite[..., None], v, np.nan).astype(found)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Any) -> Any:
        """With X = V⁻¹ dA V: dW = diag X, and dV = V (F∘X), F[i, j] = 1 / (w[j] - w[i]), less what changes lengths."""
        (a,), (da,) = primals, tangents
        w, v = y if self.compute_v else Eig()(a)
        x = BatchedDenseSolve()(v, matmul(convert(da, v.dtype), v))
        dw = diagonal(x, 0, -2, -1)
        if not self.compute_v:
            return dw
        moved = matmul(v, inverse_gaps(w) * x)
        along = real(diagonal(matmul(adjoint(v), moved), 0, -2, -1))
        return dw, moved - v * expand_dims(convert(along, v.dtype), -2)

    def vjp(self, ct: Any, y: Any, a: Tensor) -> Any:
        """V⁻ᴴ (diag W̄ + conj(F)∘(Vᴴ V̄ - VᴴV·Re diag(Vᴴ V̄))) Vᴴ."""
        w, v = y if self.compute_v else Eig()(a)
        w_ct, v_ct = ct if self.compute_v else (ct, None)
        inner: Any = None if w_ct is None else diagonal_matrix(w_ct)
        if v_ct is not None:
            turned = matmul(adjoint(v), v_ct)
            along = convert(real(diagonal(turned, 0, -2, -1)), v.dtype)
            turned = turned - matmul(adjoint(v), v) * expand_dims(along, -2)
            from_v = conjugated(inverse_gaps(w)) * turned
            inner = from_v if inner is None else inner + from_v
        found = BatchedDenseSolve()(adjoint(v), matmul(inner, adjoint(v)))
        return found if a.dtype.is_complex else convert(2.0 * real(found), a.dtype)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # The phases of vectors are not smooth functions of the matrix.
        for dtypes, values in ((REAL, _PAIR), (COMPLEX, _APART)):
            yield sample(cls(), spec(3, 3, values=values), dtypes=dtypes, smooth=False)
            yield sample(cls(compute_v=False), spec(3, 3, values=values), dtypes=dtypes)
        yield sample(cls(), spec(2, 1, 1), dtypes=REAL, smooth=False)
        yield sample(cls(), spec(0, 2, 2), dtypes=REAL, smooth=False)
        yield sample(cls(), spec("B", 3, 3, values=_PAIR), dtypes=REAL, smooth=False, B=2)


@op("polar_factor")
class PolarFactor(Op):
    """U with A = U P for A [.., M, N], M >= N: orthonormal columns, and P Hermitian without negative eigenvalues.

    It is smooth where A has full rank, equal singular values or not. Where A has less, U is one of many.
    """

    def infer(self, a: Shape) -> Shape:
        require_matrix(self, a)
        if not require_at_most(a.dims[-1], a.dims[-2], self.mnemonic):
            raise self.fail(f"needs at least as many rows as columns, got {a}; take the adjoint of a wide matrix")
        return a

    def eval(self, a: Array) -> Array:
        u, _, vh = Svd().eval(widened(a))
        return np.asarray(u @ vh).astype(a.dtype)

    def decompose(self, a: Tensor) -> Any:
        u, _, vh = Svd()(a)
        return matmul(u, vh)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Tensor) -> Any:
        """With Y = Wᴴ dA V: dU = W ((Y - Yᴴ)/(s[i] + s[j])) Vᴴ + (1 - W Wᴴ) dA V S⁻¹ Vᴴ."""
        return _polar_change(primals[0], tangents[0])

    def vjp(self, ct: Tensor, y: Tensor, a: Tensor) -> Any:
        # The map of tangents is its own adjoint.
        return _polar_change(a, ct)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((3, 3), (4, 2), (2, 3, 2)):
            yield sample(cls(), spec(*dims), dtypes=REAL)
            yield sample(cls(), spec(*dims), dtypes=COMPLEX)
        yield sample(cls(), spec("B", 3, 2), dtypes=REAL, B=2)


def _polar_change(a: Tensor, change: Tensor) -> Any:
    w, s, vh = Svd()(a)
    across = matmul(change, adjoint(vh))
    inside = matmul(adjoint(w), across)
    sums = reciprocal(expand_dims(s, -2) + expand_dims(s, -1))
    turned = matmul(w, (inside - adjoint(inside)) * convert(sums, w.dtype))
    if w.shape[-2] != w.shape[-1]:
        outside = across - matmul(w, inside)
        turned = turned + outside * expand_dims(convert(reciprocal(s), w.dtype), -2)
    return matmul(turned, vh)


def eig(a: Any, compute_v: bool = True) -> Any:
    """(eigenvalues, eigenvectors in columns) of square matrices, complex, or the values alone; see `Eig`."""
    return Eig(compute_v)(*promote_inexact(a))


def polar_factor(a: Any) -> Any:
    """The factor with orthonormal columns of A = U P; see `PolarFactor`."""
    return PolarFactor()(*promote_inexact(a))
