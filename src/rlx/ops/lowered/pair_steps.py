"""Steps of factorisations of complex matrices, whose real and imaginary parts are operands of their own, and of general
eigenvalues, whose matrices may also be real: then there is one operand. `rlx.compile.lower.pair_factors` puts them
together. All are in double precision, and none of them fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.linalg.schur import (
    by_steps,
    complex_triangle,
    double_shift,
    finish_real_block,
    finish_single_row,
    reflection_of,
    single_shift,
)
from rlx.ops.linalg.solve import require_matrix

__all__ = [
    "Hessenberg",
    "PairBasis",
    "PairBidiagonal",
    "PairLu",
    "PairReflectors",
    "SchurSteps",
    "SplitPairs",
    "TriangularVectors",
]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")
_EPS = 2.0**-52
# Vectors that have grown beyond this are made shorter.
LARGE = 1e100


class _PairStep(Op):
    primitive = True
    lowered = True
    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    def _check(self, parts: Sequence[Shape], counts: Sequence[int] = (2,), square: bool = False) -> None:
        if len(parts) not in counts or any(p.dims != parts[0].dims for p in parts):
            raise self.fail(f"needs parts of one matrix, {' or '.join(map(str, counts))} of them, got {list(parts)}")
        for part in parts:
            require_dtype(self, part.dtype is DType.F64, "f64", part)
            require_matrix(self, part, square)


def _whole(parts: Sequence[Array]) -> Array:
    """The matrix of which these are the parts."""
    return parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]


def _parts(a: Array, count: int = 2) -> tuple[Array, ...]:
    return (np.ascontiguousarray(a.real), np.ascontiguousarray(a.imag))[:count]


@op("pair_lu")
class PairLu(_PairStep):
    """As `Lu`: the parts of the packed factors, the pivots and the permutation."""

    def infer(self, re: Shape, im: Shape) -> tuple[Shape, ...]:
        self._check((re, im))
        *lead, rows, columns = re.dims
        return re, im, Shape((*lead, dim_min(rows, columns)), DType.I32), Shape((*lead, rows), DType.I32)

    def eval(self, re: Array, im: Array) -> tuple[Array, ...]:
        packed, pivots, permutation = Lu().eval(_whole((re, im)))
        return *_parts(packed), pivots, permutation

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((3, 3), (2, 4, 2), (2, 4), (0, 2, 2)):
            yield sample(cls(), spec(*dims), spec(*dims), dtypes=("f64",))
        yield sample(cls(), spec("B", 3, "N"), spec("B", 3, "N"), dtypes=("f64",), B=2, N=3)


@op("pair_reflectors")
class PairReflectors(_PairStep):
    """As `Reflectors`: the parts of `packed` and of `scales`. Reflection j is 1 - scale·v·vᴴ; the adjoints make A upper
    triangular, with real numbers on its diagonal."""

    def infer(self, re: Shape, im: Shape) -> tuple[Shape, ...]:
        self._check((re, im))
        *lead, rows, columns = re.dims
        line = re.with_dims((*lead, dim_min(rows, columns)))
        return re, im, line, line

    def eval(self, re: Array, im: Array) -> tuple[Array, ...]:
        a = _whole((re, im))
        scales = np.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
        with np.errstate(all="ignore"):
            for at in np.ndindex(*a.shape[:-2]):
                for j in range(scales.shape[-1]):
                    m = a[at][j:, j:]
                    v, scales[at][j], beta = reflection_of(m[:, 0].copy())
                    m[:, 1:] -= np.outer(v * scales[at][j].conj(), v.conj() @ m[:, 1:])
                    m[:, 0] = v
                    m[0, 0] = beta
        return *_parts(a), *_parts(scales)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((4, 3), (2, 2, 3), (3, 3), (2, 1, 1)):
            yield sample(cls(), spec(*dims), spec(*dims), dtypes=("f64",))
        yield sample(cls(), spec("B", 3, 2), spec("B", 3, 2), dtypes=("f64",), B=2)


@op("pair_basis")
class PairBasis(_PairStep):
    """The parts of the first `columns` columns of Q, the product of the reflections of `PairReflectors`."""

    columns: Size

    def infer(self, re: Shape, im: Shape, scales_re: Shape, scales_im: Shape) -> tuple[Shape, ...]:
        self._check((re, im))
        *lead, rows, columns = re.dims
        if scales_re.dims != (*lead, dim_min(rows, columns)) or scales_im.dims != scales_re.dims:
            raise self.fail(f"needs scales of {dim_min(rows, columns)} reflections, got {scales_re} and {scales_im}")
        basis = re.with_dims((*lead, rows, self.columns))
        return basis, basis

    def eval(self, re: Array, im: Array, scales_re: Array, scales_im: Array) -> tuple[Array, ...]:
        packed, scales = _whole((re, im)), _whole((scales_re, scales_im))
        basis = np.zeros((*packed.shape[:-1], self.columns), np.complex128)
        basis[...] = np.eye(*basis.shape[-2:])
        for j in reversed(range(scales.shape[-1])):
            v = np.concatenate([np.ones((*packed.shape[:-2], 1)), packed[..., j + 1 :, j]], -1)
            along = np.einsum("...i,...ic->...c", v.conj(), basis[..., j:, :]) * scales[..., j, None]
            basis[..., j:, :] -= v[..., :, None] * along[..., None, :]
        return _parts(basis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for columns in (3, 4):
            yield sample(cls(columns), *(spec(4, 3),) * 2, *(spec(3, low=0.0),) * 2, dtypes=("f64",))
        yield sample(cls(2), *(spec(2, 2, 3),) * 2, *(spec(2, 2, low=0.0),) * 2, dtypes=("f64",))


@op("hessenberg")
class Hessenberg(_PairStep):
    """H and reflections with A = Q H Qᴴ for A [.., N, N]: the parts of `packed` and of `scales` [.., N - 1], and space
    that the kernel works in.

    H is `packed` without what is below the first diagonal under the main one, which has real numbers; that are the
    reflections of `PairReflectors`, one row further down, which make Q.
    """

    def infer(self, *parts: Shape) -> tuple[Shape, ...]:
        self._check(parts, (1, 2), square=True)
        *lead, size, _ = parts[0].dims
        line = parts[0].with_dims((*lead, size))
        return *parts, *(line,) * len(parts), *(line,) * len(parts)

    def eval(self, *parts: Array) -> tuple[Array, ...]:
        a = _whole(parts).copy()
        scales = np.zeros(a.shape[:-1], a.dtype)
        with np.errstate(all="ignore"):
            for at in np.ndindex(*a.shape[:-2]):
                for j in range(a.shape[-1] - 1):
                    m = a[at]
                    v, scale, beta = reflection_of(m[j + 1 :, j].copy())
                    scales[at][j] = scale
                    m[j + 1 :, j + 1 :] -= np.outer(v * np.conj(scale), v.conj() @ m[j + 1 :, j + 1 :])
                    m[:, j + 1 :] -= np.outer(m[:, j + 1 :] @ v * scale, v.conj())
                    m[j + 1 :, j] = v
                    m[j + 1, j] = beta
        count = len(parts)
        return *_parts(a, count), *_parts(scales, count), *(np.zeros(a.shape[:-1]),) * count

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for count in (1, 2):
            yield sample(cls(), *(spec(1, 1),) * count, dtypes=("f64",))


@op("pair_bidiagonal")
class PairBidiagonal(_PairStep):
    """A = U B Vᴴ for A [.., M, N] with M >= N, B real and bidiagonal: the parts of a matrix [.., M, N], of which row i
    has from column i + 2 on the direction of reflection i, the parts of the scales [.., N] of these, of which V is the
    product, and the lines of B, on the diagonal and beside it, whose last element is 0. Then the space that the kernel
    works in."""

    def infer(self, re: Shape, im: Shape) -> tuple[Shape, ...]:
        self._check((re, im))
        *lead, _, columns = re.dims
        line = re.with_dims((*lead, columns))
        return re, im, *(line,) * 6

    def eval(self, re: Array, im: Array) -> tuple[Array, ...]:
        a = _whole((re, im))
        *lead, _, columns = a.shape
        scales = np.zeros((*lead, columns), a.dtype)
        diagonal, beside = np.zeros((2, *lead, columns))
        with np.errstate(all="ignore"):
            for at in np.ndindex(*lead):
                for j in range(columns):
                    m = a[at][j:, j:]
                    v, scale, diagonal[at][j] = reflection_of(m[:, 0].copy())
                    m[:, 1:] -= np.outer(v * np.conj(scale), v.conj() @ m[:, 1:])
                    if j + 1 < columns:
                        v, scale, beside[at][j] = reflection_of(m[0, 1:].conj())
                        scales[at][j] = scale
                        m[1:, 1:] -= np.outer(m[1:, 1:] @ v * scale, v.conj())
                        m[0, 1:] = v
        return *_parts(a), *_parts(scales), diagonal, beside, np.zeros_like(diagonal), np.zeros_like(diagonal)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(1, 1), spec(1, 1), dtypes=("f64",))


@op("schur_steps")
class SchurSteps(_PairStep):
    """T, Zᵀ and whether they were found, from H and Qᵀ with A = Q H Qᴴ: A = Z T Zᴴ as in `Schur`. Operands and results
    are the parts of both, H without anything below the first diagonal under the main one."""

    def infer(self, *parts: Shape) -> tuple[Shape, ...]:
        self._check(parts, (2, 4), square=True)
        return *parts, Shape(parts[0].dims[:-2], DType.BOOL)

    def eval(self, *parts: Array) -> tuple[Array, ...]:
        half = len(parts) // 2
        t, z = _whole(parts[:half]).copy(), np.swapaxes(_whole(parts[half:]), -1, -2).copy()
        found = np.ones(t.shape[:-2], bool)
        finish, step = (finish_real_block, double_shift) if half == 1 else (finish_single_row, single_shift)
        with np.errstate(all="ignore"):
            for at in np.ndindex(*t.shape[:-2]):
                found[at] = np.isfinite(t[at]).all() and by_steps(t[at], z[at], finish, step)
        return *_parts(t, half), *_parts(np.swapaxes(z, -1, -2), half), found

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for count in (2, 4):
            yield sample(cls(), *(spec(1, 1),) * count, dtypes=("f64",))


@op("split_pairs")
class SplitPairs(_PairStep):
    """Real T and Zᵀ of `Schur`, T with blocks of two rows, as complex ones with T triangular: their parts."""

    def infer(self, t: Shape, z: Shape) -> tuple[Shape, ...]:
        self._check((t, z), square=True)
        return t, t, z, z

    def eval(self, t: Array, z: Array) -> tuple[Array, ...]:
        whole, turned = t.astype(np.complex128), np.swapaxes(z, -1, -2).astype(np.complex128)
        for at in np.ndindex(*t.shape[:-2]):
            complex_triangle(whole[at], turned[at])
        return *_parts(whole), *_parts(np.swapaxes(turned, -1, -2))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        block = ((1.0, 2.0, 0.5), (-3.0, 1.0, 0.25), (0.0, 0.0, 4.0))
        yield sample(cls(), spec(3, 3, values=block), spec(3, 3), dtypes=("f64",))
        yield sample(cls(), spec(2, 1, 1), spec(2, 1, 1), dtypes=("f64",))


@op("triangular_vectors")
class TriangularVectors(_PairStep):
    """X with T X = X diag(T) for upper triangular T: upper triangular, its columns of any length. Where eigenvalues are
    equal to the last digit, they are taken to be that digit apart."""

    def infer(self, re: Shape, im: Shape) -> tuple[Shape, ...]:
        self._check((re, im), square=True)
        return re, im

    def eval(self, re: Array, im: Array) -> tuple[Array, ...]:
        t = _whole((re, im))
        x = np.zeros_like(t)
        size = t.shape[-1]
        with np.errstate(all="ignore"):
            for at in np.ndindex(*t.shape[:-2]):
                m = t[at]
                least = max(_EPS * np.maximum(np.abs(m.real), np.abs(m.imag)).max(initial=0.0), 2.0**-1000)
                for j in range(size):
                    x[at][j, j] = 1
                    for i in reversed(range(j)):
                        gap = m[i, i] - m[j, j]
                        gap = gap if abs(gap) > least else least
                        x[at][i, j] = -(m[i, i + 1 : j + 1] @ x[at][i + 1 : j + 1, j]) / gap
                        if abs(x[at][i, j]) > LARGE:
                            x[at][i : j + 1, j] /= abs(x[at][i, j])
        return _parts(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        upper = ((1.0, 2.0, 0.5), (0.0, 3.0, -1.0), (0.0, 0.0, -2.0))
        yield sample(cls(), spec(3, 3, values=upper), spec(3, 3, values=np.triu(upper, 1)), dtypes=("f64",))
        yield sample(cls(), spec(2, 1, 1), spec(2, 1, 1), dtypes=("f64",))
