"""Audio features from spectra in block layout (see `fourier`): `LogMel`, its gradient, and `WelchPeaks`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import Dim, product, require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import convert, promote_inexact, require_float, require_rank, require_same_dtype
from rlx.ops.define.rules import add_tangents, put_batch_first
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.linalg.contraction import matmul
from rlx.ops.pointwise.arithmetic import and_, gt, maximum, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import log
from rlx.ops.reduction.reductions import reduce_max, reduce_sum
from rlx.ops.reduction.sort import top_k
from rlx.ops.shape.movement import concat, narrow, pad, reshape, stack, transpose

__all__ = [
    "LogMel",
    "LogMelBackward",
    "LogMelMeta",
    "WelchPeaks",
    "log_mel",
    "log_mel_backward",
    "log_mel_meta",
    "log_mel_output_shape",
    "welch_peaks",
]

Array = np.ndarray[Any, np.dtype[Any]]

_SMALLEST_ENERGY = 1e-10
# Decades below the loudest band of a frame at which bands are cut off.
_DYNAMIC_RANGE = 8.0
# A band closer to the cut-off than this counts as cut off: its gradient is 0.
_CUT_OFF_WIDTH = 1e-6


class LogMelMeta(NamedTuple):
    """Geometry of a log-mel spectrogram: `outer` frames of `n_fft` points, `n_bins` of them used by `n_mels`
    filters."""

    outer: Size
    n_fft: Size
    n_bins: Size
    n_mels: Size


def log_mel_meta(spectrum: Shape, filters: Shape) -> LogMelMeta:
    """The sizes of `LogMel` on operands of these types.

    >>> log_mel_meta(Shape((3, 16)), Shape((4, 5)))
    LogMelMeta(outer=3, n_fft=8, n_bins=5, n_mels=4)
    """
    if spectrum.rank < 1 or filters.rank != 2 or not require_equal(spectrum.dims[-1] % 2, 0, "log_mel"):
        raise ShapeError(
            f"log_mel: needs a spectrum [.., 2·n_fft] and filters [n_mels, n_fft/2 + 1], got {spectrum} and {filters}"
        )
    n_fft = spectrum.dims[-1] // 2
    n_bins = n_fft // 2 + 1
    if not require_equal(filters.dims[1], n_bins, "log_mel"):
        raise ShapeError(
            f"log_mel: a spectrum of {n_fft} points has {n_bins} bins, so filters must be [n_mels, {n_bins}]; "
            f"got {filters} for {spectrum}"
        )
    return LogMelMeta(product(spectrum.dims[:-1]), n_fft, n_bins, filters.dims[0])


def log_mel_output_shape(spectrum: Shape, filters: Shape) -> Shape:
    """[.., 2·n_fft] and [n_mels, n_bins] -> [.., n_mels]."""
    return spectrum.with_dims((*spectrum.dims[:-1], log_mel_meta(spectrum, filters).n_mels))


class _Energies(NamedTuple):
    """Bins of a spectrum, their power and the filtered energies, in a wide type; arrays or tensors."""

    re: Any
    im: Any
    power: Any
    energy: Any
    filters: Any


def _energies_array(spectrum: Array, filters: Array) -> _Energies:
    wide, weights = spectrum.astype(np.float64), filters.astype(np.float64)
    n_fft, n_bins = wide.shape[-1] // 2, weights.shape[1]
    re, im = wide[..., :n_bins], wide[..., n_fft : n_fft + n_bins]
    power = re**2 + im**2
    return _Energies(re, im, power, power @ weights.T, weights)


def _energies(spectrum: Any, filters: Any) -> _Energies:
    wide = spectrum.dtype.accumulator
    meta = log_mel_meta(spectrum.type, filters.type)
    weights = convert(filters, wide)
    re, im = _read_bins(convert(spectrum, wide), meta)
    power = re * re + im * im
    return _Energies(re, im, power, matmul(power, transpose(weights)), weights)


def _read_bins(spectrum: Any, meta: LogMelMeta) -> tuple[Any, Any]:
    """Real and imaginary parts of the bins that filters read, one row per frame."""
    rows = reshape(spectrum, (meta.outer, spectrum.shape[-1]))
    return narrow(rows, -1, 0, meta.n_bins), narrow(rows, -1, meta.n_fft, meta.n_bins)


def _decades(energy: Any) -> tuple[Any, Any]:
    """log10 of the energies, not below the smallest one, and the cut-off of each frame."""
    v = log(maximum(energy, _SMALLEST_ENERGY)) * (1.0 / math.log(10.0))
    return v, reduce_max(v, (-1,), keepdims=True) - _DYNAMIC_RANGE


def _through_features(values: Any, energy: Any) -> Any:
    """Values times the derivative of each feature with respect to its energy; 0 for bands that are cut off or silent.

    A tangent of the energies becomes one of the features, a cotangent of the features one of the energies.
    """
    v, cut_off = _decades(energy)
    passes = and_(gt(v - cut_off, _CUT_OFF_WIDTH), gt(energy, _SMALLEST_ENERGY))
    slope = 0.25 / (where(passes, energy, 1.0) * math.log(10.0))
    return where(passes, values * slope, 0.0)


@op("log_mel")
class LogMel(Op):
    """Log-mel features of each frame: spectrum[.., 2·n_fft], filters[n_mels, n_fft/2 + 1] -> [.., n_mels].

    p = re² + im² of the first n_fft/2 + 1 bins, v = log10(max(filters · p, 1e-10)), y = (max(v, max v - 8) + 4) / 4,
    the maximum taken over the bands of the frame. The derivative is that of `LogMelBackward`, which holds the cut-off
    fixed.
    """

    derivative_is_defined = True

    def infer(self, spectrum: Shape, filters: Shape) -> Shape:
        require_float(self, spectrum, filters)
        require_same_dtype(self, spectrum, filters)
        return log_mel_output_shape(spectrum, filters)

    def eval(self, spectrum: Array, filters: Array) -> Array:
        v = np.log10(np.maximum(_energies_array(spectrum, filters).energy, _SMALLEST_ENERGY))
        loudest = np.max(v, axis=-1, keepdims=True, initial=-np.inf)
        return ((np.maximum(v, loudest - _DYNAMIC_RANGE) + 4.0) / 4.0).astype(spectrum.dtype)

    def decompose(self, spectrum: Any, filters: Any) -> Any:
        v, cut_off = _decades(_energies(spectrum, filters).energy)
        y = (maximum(v, cut_off) + 4.0) * 0.25
        return convert(reshape(y, log_mel_output_shape(spectrum.type, filters.type).dims), spectrum.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        (spectrum, filters), (dspectrum, dfilters) = primals, tangents
        re, im, power, energy, weights = _energies(spectrum, filters)
        parts = []
        if dspectrum is not None:
            dre, dim = _read_bins(convert(dspectrum, energy.dtype), log_mel_meta(spectrum.type, filters.type))
            parts.append(matmul(2.0 * (re * dre + im * dim), transpose(weights)))
        if dfilters is not None:
            parts.append(matmul(power, transpose(convert(dfilters, energy.dtype))))
        features = _through_features(functools.reduce(add_tangents, parts), energy)
        return convert(reshape(features, y.shape), y.dtype)

    def vjp(self, ct: Any, y: Any, spectrum: Any, filters: Any) -> Any:
        power, energy = _energies(spectrum, filters)[2:4]
        denergy = _through_features(reshape(convert(ct, energy.dtype), energy.shape), energy)
        dfilters = convert(matmul(transpose(denergy), power), filters.dtype)
        return LogMelBackward()(spectrum, filters, ct), dfilters

    def form_for(self, rule: str, active: Sequence[bool]) -> Any:
        """Filters that differ within a batch are applied by batched products."""
        return self.decompose if rule == "batch" and active[1] else None

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for operands in _log_mel_operands():
            yield sample(cls(), *operands, T=2)


@op("log_mel_backward")
class LogMelBackward(Op):
    """dspectrum of LogMel from dy[.., n_mels].

    A band above the cut-off passes ¼·dy / (e·ln 10) to its energy e; a band that is cut off, or whose energy is at
    most 1e-10, passes 0. Then dp = filtersᵀ · that, dre = 2·re·dp, dim = 2·im·dp, and 0 for the bins that no filter
    reads. The dependence of the cut-off on the loudest band is ignored.
    """

    def infer(self, spectrum: Shape, filters: Shape, dy: Shape) -> Shape:
        require_float(self, spectrum, filters, dy)
        require_same_dtype(self, spectrum, filters, dy)
        wanted = log_mel_output_shape(spectrum, filters)
        if dy.rank != wanted.rank or not all(require_equal(a, b, self.mnemonic) for a, b in zip(dy.dims, wanted.dims)):
            raise self.fail(f"dy must have the shape of the features, {wanted}, got {dy}")
        return spectrum

    def eval(self, spectrum: Array, filters: Array, dy: Array) -> Array:
        re, im, _, energy, weights = _energies_array(spectrum, filters)
        v = np.log10(np.maximum(energy, _SMALLEST_ENERGY))
        cut_off = np.max(v, axis=-1, keepdims=True, initial=-np.inf) - _DYNAMIC_RANGE
        passes = (v - cut_off > _CUT_OFF_WIDTH) & (energy > _SMALLEST_ENERGY)
        gate = np.where(passes, 0.25 * dy.astype(np.float64) / (np.where(passes, energy, 1.0) * math.log(10.0)), 0.0)
        dp = gate @ weights
        grad = np.zeros(spectrum.shape, np.float64)
        n_fft, n_bins = spectrum.shape[-1] // 2, weights.shape[1]
        grad[..., :n_bins] = 2.0 * re * dp
        grad[..., n_fft : n_fft + n_bins] = 2.0 * im * dp
        with np.errstate(over="ignore"):
            return grad.astype(spectrum.dtype)

    def decompose(self, spectrum: Any, filters: Any, dy: Any) -> Any:
        meta = log_mel_meta(spectrum.type, filters.type)
        re, im, _, energy, weights = _energies(spectrum, filters)
        dp = matmul(_through_features(reshape(convert(dy, energy.dtype), energy.shape), energy), weights)
        unread = (0, meta.n_fft - meta.n_bins)
        halves = [pad(2.0 * part * dp, 0.0, high=unread) for part in (re, im)]
        return convert(reshape(concat(halves, axis=-1), spectrum.shape), spectrum.dtype)

    def form_for(self, rule: str, active: Sequence[bool]) -> Any:
        """Batches with filters of their own, and derivatives, go through the decomposition."""
        return None if rule == "batch" and not active[1] else self.decompose

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        spectrum, filters, dy = operands
        return self(put_batch_first(spectrum, batched[0], size), filters, put_batch_first(dy, batched[2], size))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for spectrum, filters in _log_mel_operands():
            dy = spec(*spectrum.dims[:-1], filters.dims[0])
            yield sample(cls(), spectrum, filters, dy, smooth=filters.values is None, T=2)


def _log_mel_operands() -> Iterator[tuple[Spec, Spec]]:
    bands = spec(3, 5, low=0.0, high=1.0)
    yield spec(2, 16), bands
    yield spec(16), bands
    yield spec(2, 1, 16), bands
    yield spec(2, 14), spec(3, 4, low=0.0, high=1.0)
    yield spec(0, 16), bands
    yield spec("T", 16), bands
    # One band without energy is cut off.
    yield spec(2, 16), spec(3, 5, values=[[1.0] * 5, [0.0] * 5, [0.5] * 5])


@op("welch_peaks")
class WelchPeaks(Op):
    """The k strongest bins of averaged spectra: spectrum[B·n_segments, 2·n_fft] -> [B, 2k] as (bin, power) pairs.

    Power is re² + im² of the first n_fft/2 + 1 bins, doubled where the mirror bin is left out (all but bin 0 and, for
    even n_fft, the last), averaged over the segments. Strongest first, ties by lower bin; k is at most the number of
    bins.
    """

    k: int
    n_segments: int

    def check(self) -> None:
        if self.k < 1 or self.n_segments < 1:
            raise self.fail(f"k and n_segments must be at least 1, got k={self.k} and n_segments={self.n_segments}")

    def infer(self, spectrum: Shape) -> Shape:
        require_float(self, spectrum)
        require_rank(self, spectrum, 2)
        rows, extent = spectrum.dims
        if isinstance(extent, Dim) or extent % 2 or extent == 0:
            raise self.fail(f"needs a fixed, even number of columns (real, then imaginary parts), got {spectrum}")
        if not require_equal(rows % self.n_segments, 0, self.mnemonic):
            raise self.fail(f"{rows} rows are not a multiple of n_segments={self.n_segments}, in {spectrum}")
        return spectrum.with_dims((rows // self.n_segments, 2 * min(self.k, extent // 4 + 1)))

    def _one_sided(self, n_fft: int) -> Array:
        """How often each bin counts, divided by the number of segments that are summed."""
        weights = np.full(n_fft // 2 + 1, 2.0 / self.n_segments)
        weights[0] = 1.0 / self.n_segments
        if n_fft % 2 == 0:
            weights[-1] = 1.0 / self.n_segments
        return weights

    def eval(self, spectrum: Array) -> Array:
        wide = spectrum.astype(np.float64)
        n_fft = wide.shape[1] // 2
        bins = n_fft // 2 + 1
        power = wide[:, :bins] ** 2 + wide[:, n_fft : n_fft + bins] ** 2
        density = power.reshape(len(power) // self.n_segments, self.n_segments, bins).sum(axis=1)
        density = density * self._one_sided(n_fft)
        order = np.argsort(-density, axis=-1, kind="stable")[:, : self.k]
        peaks = np.stack([order, np.take_along_axis(density, order, axis=-1)], axis=-1)
        with np.errstate(over="ignore"):
            return peaks.reshape(len(density), 2 * order.shape[1]).astype(spectrum.dtype)

    def decompose(self, spectrum: Any) -> Any:
        rows, extent = spectrum.shape
        n_fft, bins, wide = extent // 2, extent // 4 + 1, spectrum.dtype.accumulator
        re, im = (narrow(convert(spectrum, wide), 1, start, bins) for start in (0, n_fft))
        segments = reshape(re * re + im * im, (rows // self.n_segments, self.n_segments, bins))
        density = reduce_sum(segments, (1,)) * self._one_sided(n_fft).astype(wide.numpy)
        power, ids = top_k(density, min(self.k, bins))
        peaks = stack([cast(ids, wide), power], axis=-1)
        return convert(reshape(peaks, self.infer(spectrum.type).dims), spectrum.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2, 2), spec(4, 16, distinct=True))
        yield sample(cls(9, 1), spec(2, 12, distinct=True))
        yield sample(cls(2, 3), spec(3, 10, distinct=True))
        yield sample(cls(3, 1), spec(1, 8, values=1.0), smooth=False)
        yield sample(cls(2, 2), spec(0, 16))
        yield sample(cls(1, 2), spec("2*B", 16, distinct=True), B=2)


def log_mel(spectrum: Any, filters: Any) -> Any:
    """Log-mel features of spectra in block layout; see `LogMel`."""
    spectrum, filters = promote_inexact(spectrum, filters)
    return LogMel()(spectrum, filters)


def log_mel_backward(spectrum: Any, filters: Any, dy: Any) -> Any:
    """The gradient of `log_mel` with respect to the spectrum; see `LogMelBackward`."""
    spectrum, filters, dy = promote_inexact(spectrum, filters, dy)
    return LogMelBackward()(spectrum, filters, dy)


def welch_peaks(spectrum: Any, k: int, n_segments: int) -> Any:
    """The strongest bins of averaged spectra as (bin, power) pairs; see `WelchPeaks`."""
    (spectrum,) = promote_inexact(spectrum)
    return WelchPeaks(k, n_segments)(spectrum)
