"""Fourier transforms between real signals and the half of their spectrum that says everything: `Rfft` and `Irfft`.

Targets with kernels for them do half the work of a complex transform; others take them apart into `Fft`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.fft import FftNorm
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import require_dtype, same_graph
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.pointwise.arithmetic import where
from rlx.ops.pointwise.complex_numbers import Conjugate, Imag, MakeComplex, Real
from rlx.ops.shape.creation import zeros_like
from rlx.ops.shape.movement import concat, narrow, reverse
from rlx.ops.signal.fourier import Fft

__all__ = ["Irfft", "Rfft"]

Array = np.ndarray[Any, np.dtype[Any]]


def _require_points(op: Op, x: Shape) -> int:
    """The size of the last axis, which is transformed."""
    if x.rank == 0 or not isinstance(x.dims[-1], int) or x.dims[-1] < 1:
        raise op.fail(f"needs a last axis of a fixed size of at least 1, got {x}")
    return x.dims[-1]


def _counted_twice(points: int, bins: int, real: np.dtype[Any]) -> Array:
    """2 for each bin that stands for two of the whole spectrum, 1 for the others."""
    alone = (0, points // 2) if points % 2 == 0 else (0,)
    return np.array([1 if k in alone else 2 for k in range(bins)], real)


@op("rfft")
class Rfft(Op):
    """The first n/2 + 1 values of `Fft` of a real signal x[.., n]; the others are their mirror image, conjugated."""

    linear_in = (0,)

    norm: FftNorm = FftNorm.Backward

    def infer(self, x: Shape) -> Shape:
        require_dtype(self, x.dtype.is_float and x.dtype.complex.real is x.dtype, "f32 or f64", x)
        points = _require_points(self, x)
        return x.with_dims((*x.dims[:-1], points // 2 + 1)).with_dtype(x.dtype.complex)

    def eval(self, x: Array) -> Array:
        scale = self.norm.output_scale(x.shape[-1], False)
        with np.errstate(over="ignore"):
            return (np.fft.rfft(x.astype(np.float64)) * scale).astype(self.infer(Shape(x.shape, x.dtype)).dtype.numpy)

    def decompose(self, x: Any) -> Any:
        spectrum = Fft(False, self.norm)(MakeComplex()(x, zeros_like(x)))
        return narrow(spectrum, -1, 0, x.shape[-1] // 2 + 1)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        points = x.shape[-1]
        with same_graph(ct):
            # Cotangents of complex values are ∂L/∂z̄, which is half of what a real one would be.
            halved = ct * (2 / _counted_twice(points, points // 2 + 1, x.dtype.numpy)).astype(ct.dtype.numpy)
        norm = FftNorm.Ortho if self.norm is FftNorm.Ortho else FftNorm.Backward
        return Irfft(points, norm)(halved)

    def batch(self, size: Size, operands: tuple[Any], batched: tuple[bool]) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for norm in FftNorm:
            yield sample(cls(norm), spec(2, 8), dtypes=("f32", "f64"))
        for n in (1, 2, 5, 6, 74):
            yield sample(cls(), spec(n), dtypes=("f32", "f64"))
        yield sample(cls(), spec("B", 12), dtypes=("f32",), B=3)


@op("irfft")
class Irfft(Op):
    """The real signal of `points` samples that has the values z[.., points/2 + 1] as the first half of its spectrum.

    The imaginary parts of value 0 and, for an even number of points, of the last one do not count.
    """

    linear_in = (0,)

    points: int
    norm: FftNorm = FftNorm.Backward

    def check(self) -> None:
        if self.points < 1:
            raise self.fail(f"needs at least one point, got {self.points}")

    def infer(self, z: Shape) -> Shape:
        require_dtype(self, z.dtype.is_complex, "a complex type", z)
        if _require_points(self, z) != self.points // 2 + 1:
            raise self.fail(f"{self.points} points have {self.points // 2 + 1} values, got {z}")
        return z.with_dims((*z.dims[:-1], self.points)).with_dtype(z.dtype.real)

    def eval(self, z: Array) -> Array:
        scale = self.norm.output_scale(self.points, True)
        with np.errstate(over="ignore", invalid="ignore"):
            signal = np.fft.irfft(z.astype(np.complex128), self.points) * (self.points * scale)
            return signal.astype(z.real.dtype)

    def decompose(self, z: Any) -> Any:
        mirrored = Conjugate()(reverse(narrow(z, -1, 1, (self.points - 1) // 2), -1))
        with same_graph(z):
            # Not by a product with 0: what does not count may be NaN.
            counts = _counted_twice(self.points, self.points // 2 + 1, z.dtype.real.numpy) > 1
            half = MakeComplex()(Real()(z), where(counts, Imag()(z), 0.0))
        return Real()(Fft(True, self.norm)(concat([half, mirrored], -1)))

    def vjp(self, ct: Any, y: Any, z: Any) -> Any:
        norm = FftNorm.Ortho if self.norm is FftNorm.Ortho else FftNorm.Backward
        scale = 0.5 * self.norm.output_scale(self.points, True) if norm is FftNorm.Backward else 0.5
        with same_graph(ct):
            counts = _counted_twice(self.points, self.points // 2 + 1, z.dtype.real.numpy) * scale
            return Rfft(norm)(ct) * counts.astype(z.dtype.numpy)

    def batch(self, size: Size, operands: tuple[Any], batched: tuple[bool]) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for norm in FftNorm:
            yield sample(cls(8, norm), spec(2, 5), dtypes=("c64", "c128"))
        for n in (1, 2, 5, 6, 74):
            yield sample(cls(n), spec(n // 2 + 1), dtypes=("c64", "c128"))
        yield sample(cls(12), spec("B", 7), dtypes=("c64",), B=3)
