"""Power spectral densities by Welch's method, their peaks, and waterfalls."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.spectra import framed, real_spectrum
from rlx.audio.windows import Window, checked_sizes, fitted_window, real_dtype
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, inexact, rank_of
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["Peaks", "frequencies", "periodograms", "psd", "waterfall", "welch", "welch_peaks"]


def frequencies(n_fft: int, rate: float, complex_samples: bool = True) -> npt.NDArray[np.float64]:
    """What the bins of `psd` and `welch` stand for, in Hz: rising from -rate/2 for complex samples, else from 0."""
    checked_sizes("frequencies", n_fft=n_fft)
    if complex_samples:
        return np.asarray(np.fft.fftshift(np.fft.fftfreq(n_fft, 1 / rate)), np.float64)
    return np.asarray(np.fft.rfftfreq(n_fft, 1 / rate), np.float64)


@array_function
def periodograms(
    x: Any, rate: float, n_fft: int = 256, hop: int | None = None, window: Window = "hann", detrend: bool = False
) -> Any:
    """The power densities [.., segments, bins] of segments that are `hop` (n_fft // 2) samples apart, in power per Hz.

    Complex samples have n_fft bins from -rate/2 up; real ones n_fft//2 + 1 from 0 up, those that stand for two
    frequencies counting twice. With `detrend` the mean of each segment is taken out first.
    """
    if rate <= 0:
        raise OpError(f"periodograms: rate must be positive, got {rate}")
    hop = max(n_fft // 2, 1) if hop is None else hop
    frames = framed(x, n_fft, hop, "boxcar", False, "constant", "periodograms")
    if detrend:
        frames = frames - rnp.mean(frames, -1, keepdims=True)
    values = fitted_window(window, n_fft)
    is_complex = dtype_of(frames).is_complex
    frames = frames * values.astype(real_dtype(frames))
    scale = 1.0 / (rate * float(np.sum(values**2)))
    if is_complex:
        spectrum = rnp.fft.fftshift(rnp.fft.fft(frames), axes=-1)
        re, im = rnp.real(spectrum), rnp.imag(spectrum)
        return (re * re + im * im) * scale
    re, im = real_spectrum(frames)
    counts = np.full(n_fft // 2 + 1, 2.0 * scale)
    counts[0] = scale
    if n_fft % 2 == 0:
        counts[-1] = scale
    return (re * re + im * im) * counts.astype(dtype_of(re).numpy)


@array_function
def psd(x: Any, rate: float, window: Window = "boxcar") -> Any:
    """The power density [.., bins] of the whole signal as one segment; see `periodograms`."""
    size = dims_of(x)[-1]
    return periodograms(x, rate, int(size), int(size), window)[..., 0, :]


@array_function
def welch(
    x: Any, rate: float, n_fft: int = 256, hop: int | None = None, window: Window = "hann", detrend: bool = False
) -> Any:
    """The mean of `periodograms`, [.., bins]. For real samples with `detrend` it is scipy.signal.welch."""
    return rnp.mean(periodograms(x, rate, n_fft, hop, window, detrend), -2)


@array_function
def waterfall(x: Any, rate: float, n_fft: int = 256, hop: int | None = None, window: Window = "hann") -> Any:
    """Densities over time in decibels, [.., segments, bins]; nothing is below -200 dB."""
    return 10.0 * rnp.log10(rnp.maximum(periodograms(x, rate, n_fft, hop, window), 1e-20))


class Peaks(NamedTuple):
    """Frequencies in Hz and densities, strongest first, [.., count]; where there are fewer peaks the rest is NaN."""

    frequency: Any
    density: Any


@array_function
def welch_peaks(
    x: Any,
    rate: float,
    count: int,
    n_fft: int = 256,
    width: float = 0.0,
    window: Window = "hann",
) -> Peaks:
    """The `count` strongest peaks of `welch`.

    A peak is a bin that no bin within `width` Hz exceeds; densities are averaged over that width first, so that a
    station that fills a band is found once. Its frequency is the centre of gravity of the band.
    """
    checked_sizes("welch_peaks", count=count)
    if not 0 <= width < rate / 2:
        raise OpError(f"welch_peaks: width must be between 0 and rate/2 = {rate / 2} Hz, got {width}")
    density = welch(x, rate, n_fft, window=window)
    is_complex = dtype_of(inexact(x)[0]).is_complex
    bins = int(dims_of(density)[-1])
    if count > bins:
        raise OpError(f"welch_peaks: there are {bins} bins, got count={count}")
    side = round(width / 2 * n_fft / rate)
    places = frequencies(n_fft, rate, is_complex).astype(dtype_of(density).numpy)
    around = _windows(density, side, 0.0)
    total = rnp.sum(around, -1)
    smooth = total * (1.0 / (2 * side + 1))
    centre = rnp.sum(_windows(density * places, side, 0.0), -1) / rnp.where(total > 0, total, 1.0)
    reach = max(2 * side, 1)
    neighbours = _windows(smooth, reach, -np.inf)
    before, after = neighbours[..., :reach], neighbours[..., reach + 1 :]
    # Of equal neighbours the first counts; bins without power are no peak.
    lowest = rnp.maximum(rnp.max(before, -1), 0.0)
    is_peak = rnp.logical_and(smooth > lowest, smooth >= rnp.max(after, -1))
    power, ids = ops.top_k(rnp.where(is_peak, smooth, -np.inf), count)
    found = power > -np.inf
    return Peaks(rnp.where(found, rnp.take_along_axis(centre, ids, -1), np.nan), rnp.where(found, power, np.nan))


def _windows(x: Any, side: int, fill: float) -> Any:
    """[.., bins, 2·side + 1]: each bin with its neighbours, `fill` beyond the ends."""
    padded = rnp.pad(x, [(0, 0)] * (rank_of(x) - 1) + [(side, side)], constant_values=fill)
    bins = int(dims_of(x)[-1])
    places = ops.iota((bins, 1), "i32", 0) + ops.iota((1, 2 * side + 1), "i32", 1)
    return ops.gather(padded, places, axis=-1)
