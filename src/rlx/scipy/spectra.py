"""Spectra of signals in overlapping parts, as `scipy.signal` has them: `stft` and its inverse, `welch` and `csd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.spectra import frame, overlap_add
from rlx.audio.windows import Window, window
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, axis_of, inexact, static_size
from rlx.ops.define.operands import dims_of, dtype_of

Detrend = str | bool | Callable[[Any], Any]

# Windows whose sum is smaller than this at a sample leave nothing to divide by.
_SILENT = 1e-10


class _Parts(NamedTuple):
    """How a signal is cut: into parts of `length` that begin `hop` apart, and are transformed as `size` samples."""

    values: np.ndarray[Any, Any]
    length: int
    hop: int
    size: int


def _parts(kind: Window, nperseg: int | None, noverlap: int | None, nfft: int | None, samples: int) -> _Parts:
    if not isinstance(kind, str | tuple):
        own = np.asarray(kind)
        nperseg = len(own) if nperseg is None else nperseg
    length = min(256 if nperseg is None else int(nperseg), samples)
    values = window(kind, length)
    overlap = length // 2 if noverlap is None else int(noverlap)
    size = length if nfft is None else int(nfft)
    if not (length >= 1 and 0 <= overlap < length <= size):
        raise ShapeError(
            f"spectra need 0 <= noverlap < nperseg <= nfft, got noverlap={overlap}, nperseg={length}, nfft={size}"
        )
    return _Parts(values, length, length - overlap, size)


def _scale(values: np.ndarray[Any, Any], fs: float, scaling: str) -> float:
    if scaling not in ("density", "psd", "spectrum"):
        raise OpError(f"scaling must be 'density' (for stft 'psd') or 'spectrum', got {scaling!r}")
    return float(1.0 / values.sum() ** 2 if scaling == "spectrum" else 1.0 / (fs * (values**2).sum()))


def _transformed(x: Any, parts: _Parts, detrend: Detrend, one_sided: bool) -> Any:
    """The spectra [.., parts, frequencies] of x[.., samples]."""
    from rlx.scipy.signal import detrend as without_trend

    frames = frame(ops.real(x), parts.length, parts.hop)
    if dtype_of(x).is_complex:
        frames = ops.complex_(frames, frame(ops.imag(x), parts.length, parts.hop))
    if callable(detrend):
        frames = detrend(frames)
    elif detrend:
        frames = without_trend(frames, -1, str(detrend))
    frames = frames * parts.values.astype(dtype_of(x).real.numpy)
    return rnp.fft.rfft(frames, parts.size) if one_sided else rnp.fft.fft(frames, parts.size)


def _frequencies(parts: _Parts, fs: float, one_sided: bool, like: Any) -> Any:
    found = np.fft.rfftfreq(parts.size, 1 / fs) if one_sided else np.fft.fftfreq(parts.size, 1 / fs)
    return rnp.asarray(found, dtype_of(like).real)


@array_function
def stft(
    x: Any,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
    scaling: str = "spectrum",
) -> tuple[Any, Any, Any]:
    """`(frequencies, times, spectra)` of overlapping parts of x; of x[.., samples] they are [.., frequencies, times].

    `boundary` says what is put at both ends, half a part long: "zeros", "even", "odd", "constant", or None for
    nothing; `padded` adds zeros behind, so that the last samples belong to a part as well.
    """
    (x,) = inexact(x)
    x = ops.moveaxis(x, axis_of(axis, x, "stft"), -1)
    parts = _parts(window, nperseg, noverlap, nfft, static_size(dims_of(x)[-1], "stft"))
    half = parts.length // 2
    x = _extended(x, half, boundary)
    samples = _samples(x)
    if padded:
        x = _pad_behind(x, -(samples - parts.length) % parts.hop % parts.length)
    one_sided = return_onesided and not dtype_of(x).is_complex
    scale = np.sqrt(_scale(parts.values, fs, scaling))
    spectra = rnp.swapaxes(_transformed(x, parts, detrend, one_sided), -1, -2) * float(scale)
    starts = np.arange(_samples(spectra)) * parts.hop
    times = (starts + (parts.length / 2 if boundary is None else 0)) / fs
    if axis not in (-1, len(dims_of(x)) - 1):
        spectra = ops.moveaxis(spectra, -2, axis)
    return _frequencies(parts, fs, one_sided, x), rnp.asarray(times, dtype_of(x).real), spectra


def _extended(x: Any, half: int, boundary: str | None) -> Any:
    if boundary is None or half == 0:
        return x
    around = [*[(0, 0)] * (len(dims_of(x)) - 1), (half, half)]
    if boundary == "zeros":
        return rnp.pad(x, around)
    if boundary == "constant":
        return rnp.pad(x, around, "edge")
    if boundary not in ("even", "odd"):
        raise OpError(f"stft: boundary must be 'zeros', 'even', 'odd', 'constant' or None, got {boundary!r}")
    mirrored = rnp.pad(x, around, "reflect")
    if boundary == "even":
        return mirrored
    first, last = 2 * x[..., :1] - mirrored[..., :half], 2 * x[..., -1:] - mirrored[..., -half:]
    return rnp.concatenate([first, x, last], -1)


def _samples(x: Any) -> int:
    return static_size(dims_of(x)[-1], "spectra")


def _pad_behind(x: Any, count: int) -> Any:
    return rnp.pad(x, [*[(0, 0)] * (len(dims_of(x)) - 1), (0, count)]) if count else x


@array_function
def istft(
    Zxx: Any,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
    scaling: str = "spectrum",
) -> tuple[Any, Any]:
    """`(times, signal)` whose `stft` with the same options is nearest to Zxx."""
    (spectra,) = inexact(Zxx)
    if len(dims_of(spectra)) < 2:
        raise ShapeError(f"istft: needs axes of frequencies and of times, got shape {dims_of(spectra)}")
    time_axis, freq_axis = axis_of(time_axis, spectra, "istft"), axis_of(freq_axis, spectra, "istft")
    spectra = ops.moveaxis(spectra, (time_axis, freq_axis), (-2, -1))
    bins = static_size(dims_of(spectra)[-1], "istft")
    most = 2 * (bins - 1) if input_onesided else bins
    if nperseg is None and not isinstance(window, str | tuple):
        nperseg = len(np.asarray(window))
    length = most if nperseg is None else int(nperseg)
    if nfft is None:
        nfft = length if input_onesided and length == most + 1 else most
    parts = _parts(window, length, noverlap, nfft, length)
    frames = rnp.fft.irfft(spectra, parts.size) if input_onesided else rnp.fft.ifft(spectra, parts.size)
    real = dtype_of(frames).real
    values = parts.values.astype(real.numpy)
    frames = frames[..., : parts.length] * values / np.sqrt(_scale(parts.values, fs, scaling)).astype(real.numpy)
    total = overlap_add(ops.real(frames), parts.hop)
    if dtype_of(frames).is_complex:
        total = ops.complex_(total, overlap_add(ops.imag(frames), parts.hop))
    weight = np.zeros(dims_of(total)[-1])
    for start in range(0, len(weight) - parts.length + 1, parts.hop):
        weight[start : start + parts.length] += parts.values**2
    signal = total / np.where(weight > _SILENT, weight, 1.0).astype(real.numpy)
    half = parts.length // 2 if boundary else 0
    signal = signal[..., half : dims_of(signal)[-1] - half]
    times = rnp.asarray(np.arange(_samples(signal)) / fs, real)
    if time_axis != len(dims_of(spectra)) - 1:
        signal = ops.moveaxis(signal, -1, time_axis - (freq_axis < time_axis))
    return times, signal


@array_function
def csd(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """`(frequencies, density)`: the cross power spectral density of x and y along `axis`, by Welch's method."""
    (x,) = inexact(x)
    itself = y is None or y is x
    x, y = (x, x) if itself else inexact(x, y)
    x, y = (ops.moveaxis(v, axis_of(axis, v, "csd"), -1) for v in (x, y))
    longest = max(_samples(x), _samples(y))
    x, y = (_pad_behind(v, longest - _samples(v)) for v in (x, y))
    parts = _parts(window, nperseg, noverlap, nfft, longest)
    one_sided = return_onesided and not dtype_of(x).is_complex
    first = _transformed(x, parts, detrend, one_sided)
    second = first if itself else _transformed(y, parts, detrend, one_sided)
    power = ops.conjugate(first) * second * _scale(parts.values, fs, scaling)
    if one_sided:
        # A real signal has as much at the negative frequencies; zero, and the highest of an even size, are alone.
        twice = np.full(dims_of(power)[-1], 2.0)
        twice[0] = 1.0
        if parts.size % 2 == 0:
            twice[-1] = 1.0
        power = power * twice.astype(dtype_of(x).real.numpy)
    if itself:
        power = ops.real(power)
    power = _averaged(power, average)
    if len(dims_of(power)) > 1:
        power = ops.moveaxis(power, -1, axis)
    return _frequencies(parts, fs, one_sided, x), power


def _averaged(power: Any, average: str) -> Any:
    """The mean over parts, or their median without its bias."""
    if average == "mean":
        return rnp.mean(power, -2)
    if average != "median":
        raise OpError(f"average must be 'mean' or 'median', got {average!r}")
    even = 2 * np.arange(1.0, (static_size(dims_of(power)[-2], "csd") - 1) // 2 + 1)
    bias = float(1 + np.sum(1.0 / (even + 1) - 1.0 / even))
    if not dtype_of(power).is_complex:
        return rnp.median(power, -2) / bias
    return ops.complex_(rnp.median(ops.real(power), -2), rnp.median(ops.imag(power), -2)) / bias


@array_function
def welch(
    x: Any,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """`(frequencies, density)`: the power spectral density of x along `axis`, the mean over overlapping parts."""
    return csd(x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average)
