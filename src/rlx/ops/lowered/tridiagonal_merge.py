"""Steps of divide and conquer for symmetric tridiagonal matrices; `rlx.compile.lower.divided_eigenvalues` puts them
together.

A matrix is torn in two, T = diag(T1, T2) + rho·u·uᵀ. With the eigenvalues d of both halves and z = Qᵀu its eigenvalues
are those of diag(d) + rho·z·zᵀ, the roots of 1 + rho·Σ z²/(d - λ): there is one between every two of its poles d. What
z hardly touches, and poles that are as good as equal, are eigenvalues already (`MergedPoles`). A root is known by its
distance to the pole nearest to it (`SecularRoots`), so that all differences d - λ have all their digits. The z that has
exactly these roots (`SecularWeights`) gives vectors that are orthogonal, however near roots are (`MergeVectors`).

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

__all__ = ["MergeVectors", "MergedPoles", "SecularRoots", "SecularWeights"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")
# A coupling below this, in units of the largest pole, is none.
NEGLIGIBLE = 8 * 2.0**-53
# Halvings that find a root in the definition: as many as it takes to the last digit of the smallest one.
HALVINGS = 220

_POLES, _WEIGHTS = (0.0, 0.5, 1.25, 2.0, -1.0, 3.0), (0.5, 0.25, -0.5, 0.75, 0.0, 0.0)
_COUNTS = (4, 1)
_TURNS = ((0.6, 0.8, 4.0, 1.0), *((0.0,) * 4,) * 5)


def _require_lines(op: Op, first: Shape, *others: Shape) -> None:
    require_dtype(op, all(x.dtype is DType.F64 for x in (first, *others)), "f64", first, *others)
    if any(x.dims != first.dims for x in others):
        raise op.fail(f"needs lines of one length, got {', '.join(str(x) for x in (first, *others))}")


@op("merged_poles")
class MergedPoles(Op):
    """The poles of diag(d) + rho·z·zᵀ and what is settled already, for d [.., M], z [.., M] and rho [..] >= 0. Both
    halves of d ascend, and |z|² is 2.

    Five results. `poles` [.., M] has the kept ones, in ascending order, and from its end on eigenvalues. `weights` has
    z/√2 at the kept ones, else 0. `places` (i32) are the rows that they come from. `counts` [.., 2] (i32) are how many
    are kept, and how many `turns` [.., M, 4] there are: (cosine, sine, p, n) says that the axes p and n were rotated,
    in this order, so that z has no share in p any more.
    """

    primitive = True
    lowered = True

    def infer(self, d: Shape, z: Shape, rho: Shape) -> tuple[Shape, ...]:
        _require_lines(self, d, z)
        require_dtype(self, rho.dtype is DType.F64, "f64", rho)
        *lead, size = d.dims
        if not isinstance(size, int) or size % 2 or rho.dims != tuple(lead):
            raise self.fail(f"needs two lines of one even length and a number for each, got {d}, {z} and {rho}")
        return (
            *(d, d, d.with_dtype(DType.I32)),
            Shape((*lead, 2), DType.I32),
            d.with_dims((*lead, size, 4)),
        )

    def eval(self, d: Array, z: Array, rho: Array) -> tuple[Array, ...]:
        found = (
            *(np.zeros_like(d), np.zeros_like(d), np.zeros(d.shape, np.int32)),
            np.zeros((*rho.shape, 2), np.int32),
            np.zeros((*d.shape, 4)),
        )
        for at in np.ndindex(*rho.shape):
            lines = (x[at] for x in (*found[:3], found[4]))
            found[3][at] = _merge(d[at], z[at] * math.sqrt(0.5), 2 * float(rho[at]), *lines)
        return found

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        half = math.sqrt(0.5)
        d = spec(4, values=(0.0, 2.0, 1.0, 1.5))
        yield sample(cls(), d, spec(4, values=(half, -half, half, half)), spec(values=0.5), dtypes=("f64",))
        # Equal poles, one that z does not touch, and no coupling at all.
        equal = spec(2, 4, values=((1.0, 2.0, 1.0, 3.0), (0.0, 1.0, 0.0, 1.0)))
        z = spec(2, 4, values=((0.6, 0.8, 1.0, 0.0), (half, half, half, half)))
        yield sample(cls(), equal, z, spec(2, values=(0.25, 0.0)), dtypes=("f64",))


def _merge(
    d: Array, z: Array, rho: float, poles: Array, weights: Array, places: Array, turns: Array
) -> tuple[int, int]:
    """How many poles are kept, and how many turns there are; all else in place."""
    size = len(d)
    limit = NEGLIGIBLE * np.maximum(np.where(z != 0, np.abs(d), 0.0), np.abs(z)).max(initial=0.0)
    kept = dropped = turned = 0
    pending: tuple[int, float, float] | None = None

    def drop(row: int, value: float) -> None:
        nonlocal dropped
        dropped += 1
        poles[size - dropped], places[size - dropped] = value, row

    def keep(row: int, value: float, weight: float) -> None:
        nonlocal kept
        poles[kept], weights[kept], places[kept] = value, weight, row
        kept += 1

    for row in _ascending(d):
        if not rho * abs(z[row]) > limit:
            drop(row, d[row])
            continue
        if pending is not None:
            last, pole, weight = pending
            length = math.hypot(weight, z[row])
            cosine, sine = z[row] / length, -weight / length
            if abs((d[row] - pole) * cosine * sine) <= limit:
                turns[turned] = cosine, sine, last, row
                turned += 1
                drop(last, pole * cosine**2 + d[row] * sine**2)
                pending = row, pole * sine**2 + d[row] * cosine**2, length
                continue
            keep(*pending)
        pending = row, d[row], z[row]
    if pending is not None:
        keep(*pending)
    return kept, turned


def _ascending(d: Array) -> Iterator[int]:
    """Where the elements of two ascending halves are, from the smallest one on."""
    i, j = 0, len(d) // 2
    for _ in d:
        if i < len(d) // 2 and (j == len(d) or d[i] <= d[j]):
            yield i
            i += 1
        else:
            yield j
            j += 1


@op("secular_roots")
class SecularRoots(Op):
    """The roots of 1 + 2·rho·Σ w²/(p - λ), one above each of the poles p that `MergedPoles` has kept, as three lines:
    the pole nearest to it, the distance from there, and their sum. Behind them stand the other eigenvalues."""

    primitive = True
    lowered = True

    def infer(self, poles: Shape, weights: Shape, rho: Shape, counts: Shape) -> tuple[Shape, ...]:
        _require_lines(self, poles, weights)
        require_dtype(self, counts.dtype is DType.I32, "i32", counts)
        return poles, poles, poles

    def eval(self, poles: Array, weights: Array, rho: Array, counts: Array) -> tuple[Array, ...]:
        bases, shifts = poles.copy(), np.zeros_like(poles)
        for at in np.ndindex(*rho.shape):
            count = int(counts[at][0])
            if count:
                known = _roots(poles[at][:count], weights[at][:count] ** 2, 2 * float(rho[at]))
                bases[at][:count], shifts[at][:count] = known
        return bases, shifts, bases + shifts

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        lines = spec(6, values=_POLES), spec(6, values=_WEIGHTS)
        yield sample(cls(), *lines, spec(values=0.75), spec(2, dtype="i32", values=_COUNTS), dtypes=("f64",))
        none = spec(2, dtype="i32", values=(0, 0))
        yield sample(cls(), spec(2), spec(2, values=0.0), spec(values=0.0), none, dtypes=("f64",))


def _roots(poles: Array, squares: Array, rho: float) -> tuple[Array, Array]:
    """By halving the part of each interval that is nearer to one of its ends."""
    last = poles[-1] + 2 * rho * squares.sum()
    right = np.append(poles[1:], last)
    half = (right - poles) / 2

    def is_below(bases: Array, shifts: Array) -> Array:
        """Whether a root is above these places."""
        distances = (poles - bases[:, None]) - shifts[:, None]
        return np.asarray(1 / rho + (squares / distances).sum(-1) < 0)

    is_right = is_below(poles, half)
    # Above the last pole is nothing to be nearer to.
    is_right[-1] = False
    bases = np.where(is_right, right, poles)
    low, high = np.where(is_right, -half, 0.0), np.where(is_right, 0.0, half)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_low = is_below(bases, middle)
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return bases, np.where(is_right, low, high)


@op("secular_weights")
class SecularWeights(Op):
    """The weights [.., M], up to a common factor, that have exactly these roots: Löwner's formula. They have the signs
    of `weights`; those that do not count are 0."""

    primitive = True
    lowered = True

    def infer(self, poles: Shape, weights: Shape, bases: Shape, shifts: Shape, counts: Shape) -> Shape:
        _require_lines(self, poles, weights, bases, shifts)
        require_dtype(self, counts.dtype is DType.I32, "i32", counts)
        return poles

    def eval(self, poles: Array, weights: Array, bases: Array, shifts: Array, counts: Array) -> Array:
        found = np.zeros_like(poles)
        for at in np.ndindex(*poles.shape[:-1]):
            count = int(counts[at][0])
            p = poles[at][:count]
            for i in range(count):
                above = (bases[at][:count] - p[i]) + shifts[at][:count]
                others = np.delete(p, i) - p[i]
                square = abs(above[-1]) * np.prod(above[:-1] / others)
                found[at][i] = math.copysign(math.sqrt(square), weights[at][i])
        return found

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        bases, shifts = spec(6, values=_POLES), spec(6, values=(0.125, 0.25, 0.25, 0.5, 0.0, 0.0))
        lines = spec(6, values=_POLES), spec(6, values=_WEIGHTS)
        yield sample(cls(), *lines, bases, shifts, spec(2, dtype="i32", values=_COUNTS), dtypes=("f64",))


@op("merge_vectors")
class MergeVectors(Op):
    """S [.., M, M]: diag(Q1, Q2)·S are the eigenvectors of the whole, column i for the eigenvalue number order[i] of
    `SecularRoots`. All else is what the steps before have found, `weights` those of `SecularWeights`."""

    primitive = True
    lowered = True

    def infer(
        self,
        poles: Shape,
        weights: Shape,
        bases: Shape,
        shifts: Shape,
        places: Shape,
        counts: Shape,
        turns: Shape,
        order: Shape,
    ) -> Shape:
        _require_lines(self, poles, weights, bases, shifts)
        require_dtype(self, turns.dtype is DType.F64, "f64", turns)
        integers = places, counts, order
        require_dtype(self, all(x.dtype is DType.I32 for x in integers), "i32", *integers)
        return poles.with_dims((*poles.dims, poles.dims[-1]))

    def eval(
        self,
        poles: Array,
        weights: Array,
        bases: Array,
        shifts: Array,
        places: Array,
        counts: Array,
        turns: Array,
        order: Array,
    ) -> Array:
        found = np.zeros((*poles.shape, poles.shape[-1]))
        for at in np.ndindex(*poles.shape[:-1]):
            kept, turned = counts[at]
            vectors = np.eye(poles.shape[-1])
            distances = (poles[at][:kept, None] - bases[at][:kept]) - shifts[at][:kept]
            directions = weights[at][:kept, None] / distances
            vectors[:kept, :kept] = directions / np.sqrt((directions**2).sum(0))
            rows = found[at]
            rows[places[at]] = vectors[:, order[at]]
            for cosine, sine, p, n in turns[at][:turned][::-1]:
                x, y = rows[int(p)].copy(), rows[int(n)].copy()
                rows[int(p)], rows[int(n)] = cosine * x - sine * y, sine * x + cosine * y
        return found

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shifts = spec(6, values=(0.125, 0.25, 0.25, 0.5, 0.0, 0.0))
        lines = (spec(6, values=_POLES), spec(6, values=_WEIGHTS), spec(6, values=_POLES), shifts)
        places, order = (spec(6, dtype="i32", values=v) for v in ((2, 0, 3, 1, 4, 5), (4, 0, 1, 2, 3, 5)))
        counts = spec(2, dtype="i32", values=_COUNTS)
        yield sample(cls(), *lines, places, counts, spec(6, 4, values=_TURNS), order, dtypes=("f64",))
