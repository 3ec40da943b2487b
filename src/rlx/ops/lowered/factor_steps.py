"""Steps of factorisations as compilers make kernels of them: none of them fails, and one of them only checks.

`rlx.compile.lower.factorizations` writes dense solves and factorisations with these. They are in double precision and
real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import dim_min, require_at_most, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.solve import not_finite, not_positive_definite, require_matrix, singular

__all__ = [
    "CholeskyFactor",
    "OrthogonalRows",
    "ReflectedBasis",
    "Reflectors",
    "RequireFactors",
    "SmallCholesky",
    "SmallSolve",
]

Array = np.ndarray[Any, np.dtype[Any]]

# Columns of a matrix that threads share, right sides among them, at most.
MOST_SHARED = 256

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")


def _require_doubles(op: Op, a: Shape, square: bool = False) -> None:
    require_dtype(op, a.dtype is DType.F64, "f64", a)
    require_matrix(op, a, square)


@op("cholesky_factor")
class CholeskyFactor(Op):
    """L as in `Cholesky`; where a matrix is not positive definite there is a 0 on the diagonal, and nothing to be
    relied on behind it."""

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> Shape:
        _require_doubles(self, a, square=True)
        return a

    def eval(self, a: Array) -> Array:
        factor = np.zeros_like(a)
        size = a.shape[-1]
        with np.errstate(all="ignore"):
            for j in range(size):
                known = np.einsum("...ip,...p->...i", factor[..., j:, :j], factor[..., j, :j])
                column = a[..., j:, j] - known
                root = np.sqrt(np.where(column[..., 0] <= 0, 0.0, column[..., 0]))
                factor[..., j:, j] = column / root[..., None]
                factor[..., j, j] = root
        return factor

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = ((4.0, 1.0, 0.5), (1.0, 3.0, -1.0), (0.5, -1.0, 5.0))
        yield sample(cls(), spec(3, 3, values=positive), dtypes=("f64",))
        yield sample(cls(), spec(2, 2, values=((1.0, 2.0), (2.0, 3.0))), dtypes=("f64",))
        yield sample(cls(), spec("B", "N", "N", values=positive), dtypes=("f64",), B=2, N=3)


@op("require_factors")
class RequireFactors(Op):
    """Stops the program with the error of the op called `of` unless all of `found` holds; returns it.

    That is one element per matrix: whether it has factors. For solves it is one per row of each matrix, [.., N].
    """

    primitive = True
    lowered = True
    effect = True
    is_late_check = True

    of: str

    def infer(self, found: Shape) -> Shape:
        require_dtype(self, found.dtype is DType.BOOL, "bool", found)
        if self.of not in ("cholesky", "svd") and found.rank == 0:
            raise self.fail(f"{self.of} needs one element for each row of a matrix, got {found}")
        return found

    def eval(self, found: Array) -> Array:
        if found.all():
            return found
        if self.of == "cholesky":
            raise not_positive_definite(self.of)
        raise not_finite(self.of) if self.of == "svd" else singular(self.of, found.shape[-1])

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for name in ("cholesky", "dense_solve", "svd"):
            yield sample(cls(name), spec(2, 3, dtype="bool", values=True), dtypes=("bool",))
        yield sample(cls("dense_solve"), spec("B", 0, dtype="bool"), dtypes=("bool",), B=2)


@op("small_cholesky")
class SmallCholesky(Op):
    """L as in `Cholesky` for A [.., N, N], N fixed, and whether what is left of each element of the diagonal is not 0
    or less [.., N]; what belongs to a matrix where it is one is not to be relied on. Any float type; computed in double
    precision."""

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        require_matrix(self, a, square=True)
        if not isinstance(a.dims[-1], int):
            raise self.fail(f"needs matrices of a fixed size, got {a}")
        return a, Shape(a.dims[:-1], DType.BOOL)

    def eval(self, a: Array) -> tuple[Array, Array]:
        factor = CholeskyFactor().eval(a.astype(np.float64))
        return factor.astype(a.dtype), np.diagonal(factor, axis1=-2, axis2=-1) != 0

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = ((4.0, 1.0, 0.5), (1.0, 3.0, -1.0), (0.5, -1.0, 5.0))
        for dtype in ("f32", "f64"):
            yield sample(cls(), spec(3, 3, values=positive), dtypes=(dtype,))
            yield sample(cls(), spec(2, 2, values=((1.0, 2.0), (2.0, 3.0))), dtypes=(dtype,))
            yield sample(cls(), spec("B", 3, 3, values=positive), dtypes=(dtype,), B=19)


def right_sides(a: Shape, b: Shape) -> int:
    """How many right sides `SmallSolve` has: one, if they are vectors."""
    return int(b.dims[-1]) if b.rank == a.rank else 1


def shared_stride(columns: int) -> int:
    """How far rows are apart in memory that threads share: odd, so that columns do not lie in few of its banks."""
    return columns | 1


def shared_matrix(rows: int, columns: int) -> int:
    """Bytes that a matrix needs where threads share it and factorise it together: itself, and some lines beside."""
    return DType.F64.size_bytes * (rows * (shared_stride(columns) + 2) + 32)


@op("small_solve")
class SmallSolve(Op):
    """x with A x = b for A [.., N, N] and b [.., N, K] or [.., N], N and K fixed, and whether each pivot is not 0
    [.., N]; what belongs to a matrix with a pivot of 0 is not to be relied on. Where A has NaN or infinity x is NaN,
    and no pivot is 0. Any float type; computed in double precision."""

    primitive = True
    lowered = True

    def infer(self, a: Shape, b: Shape) -> tuple[Shape, Shape]:
        require_matrix(self, a, square=True)
        columns = b.dims[a.rank - 1 :]
        fixed = all(isinstance(d, int) for d in (*a.dims[-2:], *columns))
        if not fixed or a.dtype is not b.dtype or len(columns) > 1 or b.dims[: a.rank - 1] != a.dims[:-1]:
            raise self.fail(f"needs A [..,N,N] and b [..,N,K] or [..,N], of one type and fixed sizes, got {a} and {b}")
        return b, Shape(a.dims[:-1], DType.BOOL)

    def eval(self, a: Array, b: Array) -> tuple[Array, Array]:
        right = b[..., None] if b.ndim < a.ndim else b
        x, found = right.astype(np.float64), np.ones(a.shape[:-1], bool)
        for at in np.ndindex(*a.shape[:-2]):
            rows = np.concatenate([a[at], right[at]], -1).astype(np.float64)
            with np.errstate(all="ignore"):
                found[at], x[at] = _eliminated(rows, a.shape[-1])
            if not np.isfinite(a[at]).all():
                found[at], x[at] = True, np.nan
        return x.reshape(b.shape).astype(b.dtype), found

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        regular = ((4.0, 1.0, -1.0), (0.5, 0.0, 1.0), (1.0, -1.0, 5.0))
        for dtype in ("f32", "f64"):
            yield sample(cls(), spec(3, 3, values=regular), spec(3, 2), dtypes=(dtype,))
            yield sample(cls(), spec("B", 3, 3, values=regular), spec("B", 3, 1), dtypes=(dtype,), B=19)
            yield sample(cls(), spec("B", 3, 3, values=regular), spec("B", 3), dtypes=(dtype,), B=3)
        yield sample(cls(), spec(2, 1, 1, low=1.0), spec(2, 1, 0), dtypes=("f64",))


def _eliminated(rows: Array, size: int) -> tuple[Array, Array]:
    """Which pivots are not 0, and what the last columns become."""
    found = np.ones(size, bool)
    for p in range(size):
        pivot = p + int(np.argmax(np.abs(rows[p:, p])))
        rows[[p, pivot]] = rows[[pivot, p]]
        found[p] = rows[p, p] != 0
        rows[p + 1 :] -= np.outer(rows[p + 1 :, p] / rows[p, p], rows[p])
    x = rows[:, size:].copy()
    for i in reversed(range(size)):
        x[i] = (x[i] - rows[i, i + 1 : size] @ x[i + 1 :]) / rows[i, i]
    return found, x


@op("reflectors")
class Reflectors(Op):
    """The Householder reflections that make A [.., M, N] upper triangular: packed [.., M, N] and scales [.., k], with
    k = min(M, N).

    R is the upper triangle of `packed`. Reflection j is 1 - scales[j]·v·vᵀ, where v is 0 above row j, 1 in it, and has
    its other elements in column j of `packed`, below the diagonal. Signs are those of LAPACK's geqrf: the diagonal of R
    has the opposite of what stood there, and a column that is 0 below the diagonal is left alone.
    """

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        _require_doubles(self, a)
        *lead, rows, columns = a.dims
        return a, a.with_dims((*lead, dim_min(rows, columns)))

    def eval(self, a: Array) -> tuple[Array, Array]:
        turned, scales = np.linalg.qr(a, "raw")
        return np.swapaxes(turned, -1, -2), scales

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((4, 3), (2, 2, 3), (3, 3), (2, 1, 1)):
            yield sample(cls(), spec(*dims), dtypes=("f64",))
        yield sample(cls(), spec("B", 3, 2), dtypes=("f64",), B=2)


@op("reflected_basis")
class ReflectedBasis(Op):
    """The first `columns` columns of Q [.., M, M], the product of the reflections in `Reflectors`, in their order."""

    primitive = True
    lowered = True

    columns: Size

    def infer(self, packed: Shape, scales: Shape) -> Shape:
        _require_doubles(self, packed)
        *lead, rows, columns = packed.dims
        wanted = (*lead, dim_min(rows, columns))
        is_same = scales.rank == len(wanted) and scales.dtype is DType.F64
        if not is_same or not all(require_equal(m, n, self.mnemonic) for m, n in zip(scales.dims, wanted)):
            raise self.fail(f"needs scales {Shape(wanted, DType.F64)} for {packed}, got {scales}")
        if not require_at_most(self.columns, rows, self.mnemonic):
            raise self.fail(f"Q has {rows} columns, {self.columns} were asked for")
        return packed.with_dims((*lead, rows, self.columns))

    def eval(self, packed: Array, scales: Array) -> Array:
        basis = np.zeros((*packed.shape[:-1], self.columns))
        basis[...] = np.eye(*basis.shape[-2:])
        for j in reversed(range(scales.shape[-1])):
            v = np.concatenate([np.ones((*packed.shape[:-2], 1)), packed[..., j + 1 :, j]], -1)
            along = np.einsum("...i,...ic->...c", v, basis[..., j:, :]) * scales[..., j, None]
            basis[..., j:, :] -= v[..., :, None] * along[..., None, :]
        return basis

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for columns in (3, 4):
            yield sample(cls(columns), spec(4, 3), spec(3, low=0.0), dtypes=("f64",))
        yield sample(cls(2), spec(2, 2, 3), spec(2, 2, low=0.0), dtypes=("f64",))
        yield sample(cls("N"), spec("B", 3, "N"), spec("B", 2, low=0.0), dtypes=("f64",), B=2, N=2)


@op("orthogonal_rows")
class OrthogonalRows(Op):
    """Rotates the rows of A [.., M, N] until they are orthogonal to each other. Four results: the rotated rows W = V A,
    V [.., M, M], the lengths of the rows of W [.., M], and whether that went well [..]; NaN and inf do not.

    The lengths are the singular values of A (and zeros, if N < M), in no order.
    """

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> tuple[Shape, Shape, Shape, Shape]:
        _require_doubles(self, a)
        *lead, rows, _ = a.dims
        square, lengths = a.with_dims((*lead, rows, rows)), a.with_dims((*lead, rows))
        return a, square, lengths, Shape(tuple(lead), DType.BOOL)

    def eval(self, a: Array) -> tuple[Array, Array, Array, Array]:
        is_finite = np.asarray(np.isfinite(a).all((-2, -1)))
        u, s, vh = np.linalg.svd(np.where(is_finite[..., None, None], a, 0.0))
        count = s.shape[-1]
        lengths = np.zeros(a.shape[:-1])
        lengths[..., :count] = s
        rotated = np.zeros_like(a)
        rotated[..., :count, :] = s[..., None] * vh[..., :count, :]
        return rotated, np.swapaxes(u, -1, -2).copy(), lengths, is_finite

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((4, 3), (2, 2, 3), (3, 3), (2, 1, 1)):
            yield sample(cls(), spec(*dims), dtypes=("f64",))
        yield sample(cls(), spec("B", 2, "N"), dtypes=("f64",), B=2, N=3)
