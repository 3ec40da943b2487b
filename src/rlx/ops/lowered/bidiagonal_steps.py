"""Steps of the singular values of one large matrix as kernels do them; `rlx.compile.lower.sized_factors` puts them
together: A = U B Vᵀ with B bidiagonal, B made diagonal by plane rotations, and these applied to Uᵀ and Vᵀ.

All are in double precision and real, and none of them fails. `RotatedRows` applies the rotations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_at_most
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.solve import require_matrix, unit_of
from rlx.ops.lowered.tridiagonal_steps import EPS, NEGLIGIBLE, TINY, most_rotations, most_sweeps

__all__ = ["BidiagonalRotations", "Bidiagonalized"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")


@op("bidiagonalized")
class Bidiagonalized(Op):
    """B and reflections with A = U B Vᵀ for A [.., M, N], M >= N: seven results, and space that the kernel works in.

    Row k of `left` [.., N, M] is the direction of a reflection 1 - scale·v·vᵀ, 0 before element k, which is 1; U is
    their product, the first one first. So is V that of `right` [.., N, N], where they begin with element k + 1.
    Both have scales. B has `diagonal` and, above it, `beside` (its last element is 0), in units of `unit`.
    """

    primitive = True
    lowered = True

    def infer(self, a: Shape) -> tuple[Shape, ...]:
        require_dtype(self, a.dtype is DType.F64, "f64", a)
        require_matrix(self, a)
        *lead, rows, columns = a.dims
        if not require_at_most(columns, rows, self.mnemonic):
            raise self.fail(f"needs at least as many rows as columns, got {a}")
        line = a.with_dims((*lead, columns))
        left, right = a.with_dims((*lead, columns, rows)), a.with_dims((*lead, columns, columns))
        return left, line, right, line, line, line, a.with_dims(lead), a, a.with_dims((*lead, 7, rows))

    def eval(self, a: Array) -> tuple[Array, ...]:
        *lead, rows, columns = a.shape
        left, right = np.zeros((*lead, columns, rows)), np.zeros((*lead, columns, columns))
        lines = [np.zeros((*lead, columns)) for _ in range(4)]
        units = np.ones(lead)
        for at in np.ndindex(*lead):
            unit = unit_of(a[at])
            units[at] = unit
            _reduce(a[at] / unit, left[at], right[at], *(x[at] for x in lines))
        left_scales, right_scales, diagonal, beside = lines
        space = np.zeros((*lead, 7, rows))
        return left, left_scales, right, right_scales, diagonal, beside, units, np.zeros_like(a), space

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(4, 3), dtypes=("f64",))
        yield sample(cls(), spec(2, 3, 3), dtypes=("f64",))


def _reflection(x: Array, k: int) -> tuple[Array, float, float]:
    """The direction that clears x behind element k, its scale, and what stands at k afterwards."""
    v = np.zeros(len(x))
    if k >= len(x):
        return v, 0.0, 0.0
    v[k] = 1
    head, rest = x[k], x[k + 1 :]
    if np.abs(rest).max(initial=0.0) <= TINY:
        return v, 0.0, head
    length = -math.copysign(math.sqrt(x[k:] @ x[k:]), head)
    v[k + 1 :] = rest / (head - length)
    return v, (length - head) / length, length


def _reduce(
    a: Array, left: Array, right: Array, left_scales: Array, right_scales: Array, diagonal: Array, beside: Array
) -> None:
    for k in range(a.shape[1]):
        left[k], left_scales[k], diagonal[k] = _reflection(a[:, k], k)
        a -= left_scales[k] * np.outer(left[k], left[k] @ a)
        right[k], right_scales[k], beside[k] = _reflection(a[k], k + 1)
        a -= right_scales[k] * np.outer(a @ right[k], right[k])


@op("bidiagonal_rotations")
class BidiagonalRotations(Op):
    """The singular values W [.., N] of bidiagonal B, in no order and of any sign, and the rotations of its rows and of
    its columns that lead to them, as `TridiagonalRotations` has them; but a sweep goes from its first row to its last.
    """

    primitive = True
    lowered = True

    def infer(self, diagonal: Shape, beside: Shape) -> tuple[Shape, ...]:
        require_dtype(self, diagonal.dtype is DType.F64 and beside.dtype is DType.F64, "f64", diagonal, beside)
        *lead, size = diagonal.dims
        if not isinstance(size, int) or diagonal.dims != beside.dims:
            raise self.fail(f"needs two lines of one fixed length, got {diagonal} and {beside}")
        rotations = diagonal.with_dims((*lead, most_rotations(size), 2))
        sweeps, count = Shape((*lead, most_sweeps(size), 3), DType.I32), Shape(tuple(lead), DType.I32)
        return diagonal, rotations, rotations, sweeps, count, Shape(tuple(lead), DType.BOOL), diagonal

    def eval(self, diagonal: Array, beside: Array) -> tuple[Array, ...]:
        *lead, size = diagonal.shape
        values = diagonal.copy()
        of_rows, of_columns = (np.zeros((*lead, most_rotations(size), 2)) for _ in range(2))
        sweeps = np.zeros((*lead, most_sweeps(size), 3), np.int32)
        count, is_found = np.zeros(lead, np.int32), np.zeros(lead, bool)
        for at in np.ndindex(*lead):
            e = beside[at].copy()
            if np.isfinite(values[at]).all() and np.isfinite(e).all():
                count[at], is_found[at] = _diagonalize(values[at], e, of_rows[at], of_columns[at], sweeps[at])
        return values, of_rows, of_columns, sweeps, count, is_found, np.zeros_like(diagonal)

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(1), spec(1, values=0.0), dtypes=("f64",))
        yield sample(cls(), spec(2, 3), spec(2, 3, values=0.0), dtypes=("f64",))


def _rotation(f: float, g: float) -> tuple[float, float, float]:
    """Cosine, sine and length with cosine·f + sine·g = length."""
    length = math.hypot(f, g)
    return (f / length, g / length, length) if length > 0 else (1.0, 0.0, 0.0)


def first_turn(d: Array, e: Array, low: int, high: int) -> float:
    """What stands beside e[low] when the shift of a sweep is taken from the square of B: that eigenvalue of its last
    block of two rows which is nearer to its last element, or 0 if B is singular."""
    if np.abs(d[low : high + 1]).min() <= NEGLIGIBLE:
        return float(d[low])
    before = e[high - 2] if high - 1 > low else 0.0
    first, across = d[high - 1] ** 2 + before**2, d[high - 1] * e[high - 1]
    last = d[high] ** 2 + e[high - 1] ** 2
    half = (first - last) / 2
    root = math.copysign(math.hypot(half, across), half)
    shift = last - (across * across / (half + root) if half + root != 0 else 0.0)
    return float(d[low] - shift / d[low])


def _diagonalize(d: Array, e: Array, of_rows: Array, of_columns: Array, sweeps: Array) -> tuple[int, bool]:
    """Implicit QR steps, in place."""
    high, used, count = len(d) - 1, 0, 0
    while high >= 0:
        low = high
        while low > 0 and abs(e[low - 1]) > max(EPS * (abs(d[low - 1]) + abs(d[low])), NEGLIGIBLE):
            low -= 1
        if low == high:
            high -= 1
            continue
        if count == len(sweeps) or used + high - low > len(of_rows):
            return count, False
        sweeps[count] = low, high - 1, used
        count += 1
        f, g = first_turn(d, e, low, high), e[low]
        for i in range(low, high):
            cosine, sine, length = _rotation(f, g)
            of_columns[used] = cosine, -sine
            if i > low:
                e[i - 1] = length
            f, e[i] = cosine * d[i] + sine * e[i], cosine * e[i] - sine * d[i]
            g, d[i + 1] = sine * d[i + 1], cosine * d[i + 1]
            cosine, sine, d[i] = _rotation(f, g)
            of_rows[used] = cosine, -sine
            f, d[i + 1] = cosine * e[i] + sine * d[i + 1], cosine * d[i + 1] - sine * e[i]
            if i < high - 1:
                g, e[i + 1] = sine * e[i + 1], cosine * e[i + 1]
            used += 1
        e[high - 1] = f
    return count, True
