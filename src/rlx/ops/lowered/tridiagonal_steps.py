"""Steps of the eigenvalues of one large symmetric matrix as kernels do them; `rlx.compile.lower.sized_factors` puts
them together: A = Q T Qᵀ with T tridiagonal, T made diagonal by plane rotations, and these applied to Qᵀ.

All are in double precision and real, and none of them fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.solve import require_matrix, unit_of

__all__ = [
    "RotatedRows",
    "TridiagonalRotations",
    "Tridiagonalized",
]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")
# Below this, in units of the largest element, a number is as good as 0: its square would lose digits.
TINY = 1e-140
EPS = 2.0**-52
# In the same units, an element that is below the last digit of the matrix as a whole.
NEGLIGIBLE = 2.0**-54

_SYMMETRIC = ((4.0, 1.0, 0.5, 2.0), (1.0, 3.0, -1.0, 0.0), (0.5, -1.0, 5.0, 1.0), (2.0, 0.0, 1.0, -2.0))


def most_sweeps(size: int) -> int:
    """How many sweeps are tried: two for each eigenvalue are usual."""
    return 6 * size + 64


def most_rotations(size: int) -> int:
    """How many rotations there is room for: 0.8·N² are usual."""
    return 2 * size * size + 64 * size


@op("tridiagonalized")
class Tridiagonalized(Op):
    """T and reflections with A = Q T Qᵀ for symmetric A [.., N, N]: five results, and space that the kernel works in.

    `packed` has the direction v of reflection i, which is 1 - scales[i]·v·vᵀ, in the first i elements of its row i, the
    last of them 1. T has `diagonal` and, beside it, `beside` (whose last element is 0), in units of `unit`, a power of
    two. Q is the product of the reflections N-1, .., 1.
    """

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> tuple[Shape, ...]:
        require_dtype(self, a.dtype is DType.F64, "f64", a)
        require_matrix(self, a, square=True)
        *lead, size, _ = a.dims
        line = a.with_dims((*lead, size))
        return a, line, line, line, a.with_dims(lead), a.with_dims((*lead, 4, size))

    def eval(self, a: Array) -> tuple[Array, ...]:
        found = [x.copy() for x in (np.zeros_like(a), *(np.zeros(a.shape[:-1]),) * 3, np.zeros(a.shape[:-2]))]
        for at in np.ndindex(*a.shape[:-2]):
            unit = unit_of(a[at])
            found[4][at] = unit
            _reduce(a[at] / unit, *(x[at] for x in found[:4]))
        return *found, np.zeros((*a.shape[:-2], 4, a.shape[-1]))

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(4, 4, values=_SYMMETRIC), dtypes=("f64",))
        yield sample(cls(), spec(2, 1, 1), dtypes=("f64",))


def _reduce(a: Array, packed: Array, scales: Array, diagonal: Array, beside: Array) -> None:
    for i in reversed(range(1, len(a))):
        x = a[i, :i]
        head, rest = x[-1], x[:-1]
        v = np.zeros(i)
        v[-1] = 1
        beside[i - 1] = head
        if np.abs(rest).max(initial=0.0) > TINY:
            length = -math.copysign(math.sqrt(x @ x), head)
            v[:-1] = rest / (head - length)
            scales[i], beside[i - 1] = (length - head) / length, length
        packed[i, :i] = v
        diagonal[i] = a[i, i]
        p = scales[i] * (a[:i, :i] @ v)
        w = p - scales[i] / 2 * (p @ v) * v
        a[:i, :i] -= np.outer(v, w) + np.outer(w, v)
    diagonal[:1] = a[:1, 0]


@op("tridiagonal_rotations")
class TridiagonalRotations(Op):
    """The eigenvalues W [.., N] of tridiagonal T, in no order, and the rotations that lead to them: cosines and sines
    [.., R, 2], the sweeps they belong to [.., S, 3] as (first row, last row, number of its first rotation), how many
    sweeps there are [..], and whether that was enough [..]. Then the space that the kernel works in.

    A sweep rotates the rows i and i + 1, for i from its last row down to its first.
    """

    primitive = True
    lowered = True

    def infer(self, diagonal: Shape, beside: Shape) -> tuple[Shape, ...]:
        require_dtype(self, diagonal.dtype is DType.F64 and beside.dtype is DType.F64, "f64", diagonal, beside)
        *lead, size = diagonal.dims
        if not isinstance(size, int) or diagonal.dims != beside.dims:
            raise self.fail(f"needs two lines of one fixed length, got {diagonal} and {beside}")
        return (
            diagonal,
            diagonal.with_dims((*lead, most_rotations(size), 2)),
            Shape((*lead, most_sweeps(size), 3), DType.I32),
            Shape(tuple(lead), DType.I32),
            Shape(tuple(lead), DType.BOOL),
            diagonal,
        )

    def eval(self, diagonal: Array, beside: Array) -> tuple[Array, ...]:
        *lead, size = diagonal.shape
        values = diagonal.copy()
        rotations = np.zeros((*lead, most_rotations(size), 2))
        sweeps = np.zeros((*lead, most_sweeps(size), 3), np.int32)
        count, is_found = np.zeros(lead, np.int32), np.zeros(lead, bool)
        for at in np.ndindex(*lead):
            e = beside[at].copy()
            if np.isfinite(values[at]).all() and np.isfinite(e).all():
                count[at], is_found[at] = _diagonalize(values[at], e, rotations[at], sweeps[at])
        return values, rotations, sweeps, count, is_found, np.zeros_like(diagonal)

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(1), spec(1, values=0.0), dtypes=("f64",))
        yield sample(cls(), spec(2, 3), spec(2, 3, values=0.0), dtypes=("f64",))


def _diagonalize(d: Array, e: Array, rotations: Array, sweeps: Array) -> tuple[int, bool]:
    """Implicit QL steps with Wilkinson's shift, in place."""
    size, low, used, count = len(d), 0, 0, 0
    while low < size:
        end = next((m for m in range(low, size - 1) if _is_negligible(d, e, m)), size - 1)
        if end == low:
            low += 1
            continue
        if count == len(sweeps) or used + end - low > len(rotations):
            return count, False
        sweeps[count] = low, end - 1, used
        count += 1
        g = (d[low + 1] - d[low]) / (2 * e[low])
        g = d[end] - d[low] + e[low] / (g + math.copysign(math.hypot(g, 1.0), g))
        sine, cosine, p = 1.0, 1.0, 0.0
        for i in reversed(range(low, end)):
            f, b = sine * e[i], cosine * e[i]
            r = math.hypot(f, g)
            cosine, sine = (g / r, f / r) if r > 0 else (1.0, 0.0)
            e[i + 1] = r
            g = d[i + 1] - p
            r = (d[i] - g) * sine + 2 * cosine * b
            p = sine * r
            d[i + 1] = g + p
            g = cosine * r - b
            rotations[used] = cosine, sine
            used += 1
        d[low] -= p
        e[low], e[end] = g, 0.0
    return count, True


def _is_negligible(d: Array, e: Array, m: int) -> bool:
    return bool(abs(e[m]) <= max(EPS * (abs(d[m]) + abs(d[m + 1])), NEGLIGIBLE))


@op("rotated_rows")
class RotatedRows(Op):
    """The rows of a matrix [.., N, M] after all sweeps of `TridiagonalRotations`: cosine·x - sine·y and
    sine·x + cosine·y in place of x and y, the rows i and i + 1. With `downwards` a sweep begins with its
    first row, not with its last."""

    primitive = True
    lowered = True

    downwards: bool = False

    def infer(self, rows: Shape, rotations: Shape, sweeps: Shape, count: Shape) -> Shape:
        require_dtype(self, rows.dtype is DType.F64 and rotations.dtype is DType.F64, "f64", rows, rotations)
        require_dtype(self, sweeps.dtype is DType.I32 and count.dtype is DType.I32, "i32", sweeps, count)
        require_matrix(self, rows)
        return rows

    def eval(self, rows: Array, rotations: Array, sweeps: Array, count: Array) -> Array:
        found = rows.copy()
        for at in np.ndindex(*rows.shape[:-2]):
            for first, last, number in sweeps[at][: count[at]]:
                places = range(first, last + 1) if self.downwards else range(last, first - 1, -1)
                for step, i in enumerate(places):
                    cosine, sine = rotations[at][number + step]
                    x, y = found[at][i].copy(), found[at][i + 1]
                    found[at][i], found[at][i + 1] = cosine * x - sine * y, sine * x + cosine * y
        return found

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        sweeps = spec(2, 3, dtype="i32", values=((0, 1, 0), (1, 1, 2)))
        for downwards in (False, True):
            operands = (spec(3, 5), spec(4, 2), sweeps, spec(dtype="i32", values=2))
            yield sample(cls(downwards), *operands, dtypes=("f64",))
        count = spec(2, dtype="i32", values=(1, 2))
        batch = spec(2, 2, 3, dtype="i32", values=((0, 1, 0), (1, 1, 2)))
        yield sample(cls(), spec(2, 3, 9), spec(2, 4, 2), batch, count, dtypes=("f64",))
