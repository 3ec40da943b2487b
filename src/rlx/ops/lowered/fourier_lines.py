"""`FftLines` and `FftHalves`: Fourier transforms as compilers make kernels of them, with all factors worked out before.

A transform of n = n1·n2 points is n2 transforms of n1 points, a factor for each value, and n1 transforms of n2 points:

    X[k1 + n1·k2] = Σ over m2 of W_n2^(m2·k2) · W_n^(m2·k1) · Σ over m1 of W_n1^(m1·k1) · x[m1·n2 + m2]

Each of these short transforms goes through passes, one for each radix (`radices`). `factors_of` gives all factors in
the order in which kernels look for them: those of the passes of n1, of n2, W_n^(m2·k1), and what x and X are multiplied
by. They are computed in f64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.fft import prime_factors, roots_of_unity
from rlx.ir.op import NoRule, Op, attribute_type, op
from rlx.ir.shape import Shape, Size
from rlx.ir.words import Words
from rlx.ops.define.operands import require_dtype, require_inexact
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["FftHalves", "FftLines", "FftRealLines", "FftStep"]

Array = np.ndarray[Any, np.dtype[Any]]

# Larger prime factors are no radix: their passes would take as long as a sum over all points.
LARGEST_RADIX = 31
# Long lines that a block of a GPU has side by side at most: in shared memory a number is left out behind each.
LINES_OF_BLOCK = 16

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use fft")


@attribute_type
class FftStep(Words):
    """What is done of a transform: all, only what is in front of the second sum, or only the second sum."""

    Whole = "whole"
    Columns = "columns"
    Rows = "rows"


def block_points(shared_bytes: int, real: DType) -> int:
    """Complex points that fit into what a block shares, with what is left out between lines."""
    return shared_bytes // (2 * real.size_bytes) - LINES_OF_BLOCK


@cache
def radices(points: int) -> tuple[int, ...] | None:
    """The passes of a transform: odd primes, then eights and fours; None where a prime factor is too large.

    >>> radices(96), radices(128), radices(37)
    ((3, 8, 4), (8, 4, 4), None)
    """
    odd = [f for f in prime_factors(points) if f != 2]
    if odd and odd[-1] > LARGEST_RADIX:
        return None
    twos = (points & -points).bit_length() - 1
    if twos == 1:
        return (*odd, 2)
    fours = {0: 0, 1: 2, 2: 1}[twos % 3]
    return (*odd, *(8,) * ((twos - 2 * fours) // 3), *(4,) * fours)


class Part(NamedTuple):
    """Where factors begin, and how many numbers they are."""

    start: int
    size: int

    def of(self, factors: Array) -> Array:
        return factors[self.start : self.start + self.size]


class FactorTable(NamedTuple):
    """Where in the factors of a transform each kind is. Those of passes are pairs, the others all real parts and then
    all imaginary ones; what is not there has size 0."""

    first: Part
    second: Part
    between: Part
    before: Part
    behind: Part

    @property
    def size(self) -> int:
        return self.behind.start + self.behind.size


@op("fft_lines")
class FftLines(Op):
    """Transforms of `points` along an axis of x, with factors that were planned: as `Fft`, but for what follows.

    x is filled up with zeros to `points`, and the result is cut to `kept`. With `before` x is multiplied by factors
    first, with `behind` the result; `scale` multiplies all of it. `first` is n1 of the transform in two steps, 1 for
    one in a single step; a `step` other than whole is one of the two. With `real` the operand is real, or the result of
    an inverse transform: two neighbours are one complex number.
    """

    primitive = True
    lowered = True
    jvp = vjp = batch = _INTERNAL

    points: int
    first: int = 1
    kept: int = 0
    axis: int = -1
    inverse: bool = False
    scale: float = 1.0
    step: FftStep = FftStep.Whole
    before: int = 0
    behind: bool = False
    real: bool = False

    def check(self) -> None:
        if self.points < 1 or self.first < 1 or self.points % self.first:
            raise self.fail(f"first={self.first} does not divide points={self.points}")
        if radices(self.first) is None or radices(self.points // self.first) is None:
            raise self.fail(f"a prime factor of points={self.points} is above {LARGEST_RADIX}")
        if self.axis >= 0 or (self.axis != -1 and self.first != 1):
            raise self.fail(f"axis counts from the end, and is the last one in two steps; got {self.axis}")
        if not 0 <= self.kept <= self.points or not 0 <= self.before <= self.points:
            raise self.fail(f"at most {self.points} points are read and kept, got {self.before} and {self.kept}")
        if self.first == 1 and self.step is not FftStep.Whole:
            raise self.fail("a transform in a single step has no other steps")
        if self.real and (self.axis != -1 or self.before or self.kept or self.behind):
            raise self.fail("real numbers are read or written as they are, along the last axis")

    @property
    def second(self) -> int:
        return self.points // self.first

    @property
    def result_points(self) -> int:
        return self.kept or self.points

    @property
    def table(self) -> FactorTable:
        parts, start = [], 0
        between = 2 * self.points if self.first > 1 and self.step is not FftStep.Rows else 0
        behind = 2 * self.result_points if self.behind else 0
        for size in (pass_size(self.first), pass_size(self.second), between, 2 * self.before, behind):
            parts.append(Part(start, size))
            start += size
        return FactorTable(*parts)

    def infer(self, x: Shape, factors: Shape) -> Shape:
        if self.reads_real:
            require_dtype(self, x.dtype.is_float, "real numbers", x)
            x = self._halved(x)
        require_inexact(self, x)
        require_dtype(self, factors.dtype is x.dtype.real, "factors of the type of real parts", factors)
        if x.rank < -self.axis or (self.axis != -1 and not x.dtype.is_complex):
            raise self.fail(f"needs complex numbers with an axis {self.axis}, got {x}")
        if factors.dims != (self.table.size,):
            raise self.fail(f"needs {self.table.size} factors, got {factors}")
        parts = 1 if x.dtype.is_complex else 2
        wanted: Size = parts * (self.before or self.points)
        if x.dims[self.axis] != wanted:
            raise self.fail(f"axis {self.axis} has the size {wanted}, got {x}")
        dims = list(x.dims)
        dims[self.axis] = parts * self.result_points
        y = x.with_dims(tuple(dims))
        return y.with_dims((*y.dims[:-1], 2 * self.points)).with_dtype(y.dtype.real) if self.writes_real else y

    @property
    def reads_real(self) -> bool:
        return self.real and not self.inverse and self.step is not FftStep.Rows

    @property
    def writes_real(self) -> bool:
        return self.real and self.inverse and self.step is not FftStep.Columns

    def _halved(self, x: Shape) -> Shape:
        """The type of real numbers, two of them taken for a complex one."""
        if x.rank == 0 or x.dims[-1] % 2:
            raise self.fail(f"needs an even number of real numbers, got {x}")
        return x.with_dims((*x.dims[:-1], x.dims[-1] // 2)).with_dtype(x.dtype.complex)

    def eval(self, x: Array, factors: Array) -> Array:
        if self.reads_real:
            x = np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))
        is_complex = x.dtype.kind == "c"
        lines = np.moveaxis(x, self.axis, -1).astype(np.complex128 if is_complex else np.float64)
        if not is_complex:
            lines = _joined(lines)
        table = factors.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.before:
                lines = lines * _joined(self.table.before.of(table))
            z = np.zeros((*lines.shape[:-1], self.points), np.complex128)
            z[..., : lines.shape[-1]] = lines
            # With the parts exchanged in front and behind, a transform is the inverse one.
            y = _exchanged(self._transformed(_exchanged(z), table)) if self.inverse else self._transformed(z, table)
            y = y[..., : self.result_points] * self.scale
            if self.behind:
                y = y * _joined(self.table.behind.of(table))
        if not is_complex:
            y = np.concatenate([y.real, y.imag], -1)
        with np.errstate(over="ignore"):
            result = np.ascontiguousarray(np.moveaxis(y, -1, self.axis)).astype(x.dtype)
        return result.view(result.real.dtype) if self.writes_real else result

    def _transformed(self, z: Array, table: Array) -> Array:
        first, second = self.table.first.of(table), self.table.second.of(table)
        if self.first == 1:
            return _by_passes(z, second)
        grid = z.reshape(*z.shape[:-1], self.first, self.second)
        if self.step is not FftStep.Rows:
            columns = np.swapaxes(_by_passes(np.swapaxes(grid, -1, -2), first), -1, -2)
            grid = columns * _joined(self.table.between.of(table)).reshape(self.first, self.second)
        if self.step is not FftStep.Columns:
            grid = np.swapaxes(_by_passes(grid, second), -1, -2)
        return grid.reshape(z.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for made in (cls(12), cls(12, 3), cls(12, 3, step="columns"), cls(12, 3, step="rows"), cls(12, inverse=True)):
            yield _sampled(made, 2, 12)
        yield _sampled(cls(12, axis=-2), 2, 12, 3)
        yield _sampled(cls(12, 4, kept=5, inverse=True, scale=0.5, before=5, behind=True), 3, 5)


class _RealTransform(Op):
    """Real numbers, two of which are taken for a complex one, and the first half of their spectrum."""

    primitive = True
    lowered = True
    jvp = vjp = batch = _INTERNAL

    points: int
    inverse: bool = False
    scale: float = 1.0

    def check(self) -> None:
        if self.points < 2 or self.points % 2:
            raise self.fail(f"needs an even number of points, got {self.points}")


@op("fft_halves")
class FftHalves(_RealTransform):
    """From the transform of real numbers, two of which were taken for a complex one, to the first half of their
    spectrum: Z[.., m] to X[.., m + 1]; with `inverse` the way back.

    With B[k] the conjugate of A[m - k], where A is the operand, it is scale·(A[k] + B[k]) + factors[k]·(A[k] - B[k]);
    the ends are sums and differences of real parts. Factors are all real parts, then all imaginary ones.
    """

    @property
    def bins(self) -> tuple[int, int]:
        """How many values a line of the operand has, and one of the result."""
        half = self.points // 2
        return (half + 1, half) if self.inverse else (half, half + 1)

    def infer(self, z: Shape, factors: Shape) -> Shape:
        require_dtype(self, z.dtype.is_complex and factors.dtype is z.dtype.real, "complex numbers and factors", z)
        if z.rank == 0 or z.dims[-1] != self.bins[0] or factors.dims != (self.points,):
            raise self.fail(f"needs {self.bins[0]} values per line and {self.points} factors, got {z} and {factors}")
        return z.with_dims((*z.dims[:-1], self.bins[1]))

    def eval(self, z: Array, factors: Array) -> Array:
        half = self.points // 2
        a = z.astype(np.complex128)
        y = np.zeros((*z.shape[:-1], self.bins[1]), np.complex128)
        with np.errstate(all="ignore"):
            first, last = (a[..., 0].real, a[..., half].real) if self.inverse else (a[..., 0].real, a[..., 0].imag)
            sums, differences = (2 * self.scale * v for v in (first + last, first - last))
            if self.inverse:
                # Half of them, as the middle of the spectrum counts twice.
                y[..., 0].real, y[..., 0].imag = sums / 2, differences / 2
            else:
                y[..., 0].real, y[..., half].real = sums, differences
            b = a[..., half - 1 : 0 : -1].conj()
            a = a[..., 1:half]
            y[..., 1:half] = self.scale * (a + b) + _joined(factors.astype(np.float64))[1:] * (a - b)
            return y.astype(z.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n in (2, 8, 26):
            for inverse in (False, True):
                made = cls(n, inverse, 1.0 if inverse else 0.5)
                yield _sampled_with(made, half_factors(made), 3, made.bins[0])


@op("fft_real_lines")
class FftRealLines(_RealTransform):
    """`FftLines` of real numbers and `FftHalves` behind it, or with `inverse` in front: x[.., points] to the first half
    of its spectrum [.., points/2 + 1], or back. The factors of both follow each other."""

    def check(self) -> None:
        super().check()
        if radices(self.points // 2) is None:
            raise self.fail(f"a prime factor of points={self.points} is above {LARGEST_RADIX}")

    @property
    def lines(self) -> FftLines:
        return FftLines(self.points // 2, inverse=self.inverse, real=True)

    @property
    def halves(self) -> FftHalves:
        return FftHalves(self.points, self.inverse, self.scale)

    @property
    def all_factors(self) -> Array:
        return np.concatenate([factors_of(self.lines), half_factors(self.halves)])

    def infer(self, x: Shape, factors: Shape) -> Shape:
        size = self.lines.table.size
        if factors.dims != (size + self.points,):
            raise self.fail(f"needs {size + self.points} factors, got {factors}")
        of_lines, of_halves = factors.with_dims((size,)), factors.with_dims((self.points,))
        if self.inverse:
            return self.lines.infer(self.halves.infer(x, of_halves), of_lines)
        return self.halves.infer(self.lines.infer(x, of_lines), of_halves)

    def eval(self, x: Array, factors: Array) -> Array:
        of_lines, of_halves = np.split(factors, [self.lines.table.size])
        if self.inverse:
            return self.lines.eval(self.halves.eval(x, of_halves), of_lines)
        return self.halves.eval(self.lines.eval(x, of_lines), of_halves)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n in (2, 8, 26):
            for inverse in (False, True):
                made = cls(n, inverse, 0.5)
                factors = spec(len(made.all_factors), dtype="f32", values=made.all_factors)
                x = spec(3, n // 2 + 1, dtype="c64") if inverse else spec(3, n, dtype="f32")
                yield sample(made, x, factors, dtypes=("f32",))


def half_factors(made: FftHalves) -> Array:
    """∓i·scale·W^±k for each k up to half of the points."""
    sign = 1j if made.inverse else -1j
    return _apart(sign * made.scale * roots_of_unity(np.arange(made.points // 2), made.points, made.inverse))


def _sampled(made: FftLines, *dims: int) -> Sample:
    chirp = np.exp(0.3j * np.arange(max(made.before, made.result_points)))
    factors = factors_of(made, chirp[: made.before], chirp[: made.result_points] if made.behind else ())
    return _sampled_with(made, factors, *dims)


def _sampled_with(made: Op, factors: Array, *dims: int) -> Sample:
    return sample(made, spec(*dims), spec(len(factors), dtype="f32", values=factors), dtypes=("c64",))


def _joined(parts: Array) -> Array:
    """Complex numbers of their real parts and, behind these, their imaginary ones."""
    half = parts.shape[-1] // 2
    z = np.empty((*parts.shape[:-1], half), np.complex128)
    z.real, z.imag = parts[..., :half], parts[..., half:]
    return z


def _exchanged(z: Array) -> Array:
    return _joined(np.concatenate([z.imag, z.real], -1))


def _by_passes(z: Array, factors: Array) -> Array:
    """The transform of the last axis as kernels have it, with the factors of all passes."""
    start = 0
    for radix, rows, columns in passes(z.shape[-1]):
        roots = roots_of_unity(np.outer(np.arange(radix), np.arange(radix)), radix)
        found = np.einsum("ut,...tpq->...puq", roots, z.reshape(*z.shape[:-1], radix, rows, columns))
        if rows > 1:
            size = 2 * rows * (radix - 1)
            pairs = factors[start : start + size].reshape(rows, radix - 1, 1, 2)
            found[..., 1:, :] *= pairs[..., 0] + 1j * pairs[..., 1]
            start += size
        z = found.reshape(z.shape)
    return z


def pass_size(points: int) -> int:
    """How many numbers the factors of all passes of a transform are."""
    return sum(2 * rows * (radix - 1) for radix, rows, _ in passes(points) if rows > 1)


def passes(points: int) -> Iterator[tuple[int, int, int]]:
    """(radix, rows, columns) of every pass. It takes `radix` values that stand rows·columns apart; those of row p are
    multiplied by W^p, W^2p, .. afterwards, with W of radix·rows points. The last pass has one row."""
    rows, columns = points, 1
    for radix in radices(points) or ():
        rows //= radix
        yield radix, rows, columns
        columns *= radix


@cache
def _pass_factors(points: int) -> Array:
    found: list[Array] = [np.zeros(0)]
    for radix, rows, _ in passes(points):
        if rows == 1:
            break
        turned = roots_of_unity(np.outer(np.arange(rows), np.arange(1, radix)), radix * rows)
        found.append(np.stack([turned.real, turned.imag], -1).ravel())
    return np.concatenate(found)


def factors_of(made: FftLines, before: Sequence[complex] | Array = (), behind: Sequence[complex] | Array = ()) -> Array:
    """The factors of a transform in f64, with those that its values are multiplied by before and behind."""
    parts = [_pass_factors(made.first), _pass_factors(made.second)]
    if made.table.between.size:
        steps = np.outer(np.arange(made.first), np.arange(made.second)).ravel()
        parts.append(_apart(roots_of_unity(steps, made.points)))
    parts += [_apart(np.asarray(before, np.complex128)), _apart(np.asarray(behind, np.complex128))]
    return np.concatenate(parts)


def _apart(z: Array) -> Array:
    return np.concatenate([z.real, z.imag])
