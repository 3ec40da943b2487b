"""Short-time Fourier transforms: `stft`, its inverse, and spectrograms.

Frames are rows while they are worked on; results have the layout of other audio libraries, [.., bins, frames].
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.windows import Window, checked_sizes, fitted_window, hop_of, real_dtype, samples_of
from rlx.errors import DTypeError, OpError, ShapeError
from rlx.numpy.arguments import array_function, convert, inexact, rank_of, static_size
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["frame", "istft", "overlap_add", "spectrogram", "stft"]

# Squared windows that sum to less than this leave nothing to divide by.
_SILENT = 1e-10


@array_function
def frame(x: Any, length: int, hop: int) -> Any:
    """Overlapping frames: x[.., T] -> [.., frames, length] with frames = 1 + (T - length) // hop.

    >>> frame(np.arange(6.0), 4, 2).tolist()
    [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]]
    """
    checked_sizes("frame", length=length, hop=hop)
    (x,) = inexact(x)
    samples = samples_of(x, "frame")
    if samples < length:
        raise ShapeError(f"frame: a frame of {length} samples does not fit into {samples}; pad the signal first")
    count = 1 + (samples - length) // hop
    starts = ops.iota((count, 1), "i32", 0) * hop
    return ops.gather(x, starts + ops.iota((1, length), "i32", 1), axis=-1)


@array_function
def overlap_add(frames: Any, hop: int) -> Any:
    """Frames [.., frames, length] that begin `hop` samples apart, summed: [.., (frames - 1)·hop + length]."""
    checked_sizes("overlap_add", hop=hop)
    (frames,) = inexact(frames)
    if rank_of(frames) < 2:
        raise ShapeError(f"overlap_add: needs frames [.., frames, length], got {list(dims_of(frames))}")
    *lead, count, length = dims_of(frames)
    count, length = (static_size(size, "overlap_add") for size in (count, length))
    parts = -(-length // hop)
    # Part r of frame f lands in row f + r of the result, cut into rows of `hop`.
    filled = _pad_last(frames, parts * hop - length).reshape(*lead, count, parts, hop)
    rows = sum(_pad_axis(filled[..., r, :], -2, r, parts - 1 - r) for r in range(parts))
    return rows.reshape(*lead, (count + parts - 1) * hop)[..., : (count - 1) * hop + length]


def real_spectrum(frames: Any) -> tuple[Any, Any]:
    """Real and imaginary parts [.., n//2 + 1] of the spectra of real frames [.., n]."""
    return ops.rfft(frames, pad=False)


def framed(x: Any, n_fft: int, hop: int, window: Window, center: bool, pad_mode: str, function: str) -> Any:
    """Windowed frames [.., frames, n_fft] of a signal in f32 or f64, or in its complex type."""
    checked_sizes(function, n_fft=n_fft, hop=hop)
    (x,) = inexact(x)
    x = convert(x, dtype_of(x).accumulator)
    samples = samples_of(x, function)
    if center:
        side = n_fft // 2
        if pad_mode == "reflect" and samples <= side:
            raise ShapeError(
                f"{function}: reflecting {side} samples at each end needs more than {side} samples, got {samples}; "
                "pad the signal, or use pad_mode='constant' or center=False"
            )
        x = rnp.pad(x, [(0, 0)] * (rank_of(x) - 1) + [(side, side)], mode=pad_mode)
    elif samples < n_fft:
        raise ShapeError(f"{function}: a frame of n_fft={n_fft} samples does not fit into {samples}; pad the signal")
    values = fitted_window(window, n_fft).astype(real_dtype(x))
    return frame(x, n_fft, hop) * values


def _real(x: Any, function: str) -> Any:
    (x,) = inexact(x)
    if dtype_of(x).is_complex:
        raise DTypeError(f"{function}: needs real samples, got {dtype_of(x)}; rlx.rf has spectra of complex ones")
    return x


def frames_last(*rows: Any) -> list[Any]:
    """Rows [.., frames, bins] as [.., bins, frames].

    They are finished first, behind a barrier: computed while they are turned, they would read across rows.
    """
    return [rnp.swapaxes(r, -1, -2) for r in ops.barrier(*rows)]


def power_frames(x: Any, n_fft: int, hop: int, window: Window, center: bool, pad_mode: str, function: str) -> Any:
    """|spectrum|² of real frames, [.., frames, bins]."""
    re, im = real_spectrum(framed(_real(x, function), n_fft, hop, window, center, pad_mode, function))
    return re * re + im * im


@array_function
def stft(
    x: Any,
    n_fft: int = 2048,
    hop: int | None = None,
    window: Window = "hann",
    center: bool = True,
    pad_mode: str = "reflect",
) -> Any:
    """Spectra of overlapping frames of a real signal: x[.., T] -> complex [.., n_fft//2 + 1, frames].

    Frames are `hop` samples apart (n_fft // 4 by default) and multiplied by the window; nothing is scaled. With
    `center`, frame i is centred at sample i·hop of the signal, which is padded by n_fft // 2 on both sides; without,
    it begins there.
    """
    re, im = real_spectrum(framed(_real(x, "stft"), n_fft, hop_of(hop, n_fft), window, center, pad_mode, "stft"))
    return ops.complex_(*frames_last(re, im))


@array_function
def spectrogram(
    x: Any,
    n_fft: int = 2048,
    hop: int | None = None,
    window: Window = "hann",
    power: float = 2.0,
    center: bool = True,
    pad_mode: str = "reflect",
) -> Any:
    """|stft|^power, real [.., bins, frames]."""
    squared = power_frames(x, n_fft, hop_of(hop, n_fft), window, center, pad_mode, "spectrogram")
    (turned,) = frames_last(squared if power == 2.0 else _magnitude_power(squared, power / 2.0))
    return turned


def _magnitude_power(squared: Any, exponent: float) -> Any:
    """|z|² to a power. As |z| has, roots of it have the slope 0 where z is 0, not an infinite one."""
    if not 0 < exponent < 1:
        return squared**exponent
    is_zero = squared == 0
    return rnp.where(is_zero, 0.0, rnp.where(is_zero, 1.0, squared) ** exponent)


@array_function
def istft(
    spectrum: Any,
    hop: int | None = None,
    window: Window = "hann",
    n_fft: int | None = None,
    center: bool = True,
    length: int | None = None,
) -> Any:
    """The signal [.., T] whose `stft` is nearest to `spectrum` [.., bins, frames], by least squares.

    The arguments are those of `stft`; n_fft is 2(bins - 1) by default. `length` cuts the signal, or fills it with
    zeros. Windows and hop must cover every sample.
    """
    (spectrum,) = inexact(spectrum)
    if rank_of(spectrum) < 2 or not dtype_of(spectrum).is_complex:
        raise OpError(f"istft: needs a complex spectrum [.., bins, frames], got {dtype_of(spectrum)}")
    bins, count = (static_size(size, "istft") for size in dims_of(spectrum)[-2:])
    n_fft = 2 * (bins - 1) if n_fft is None else n_fft
    hop = hop_of(hop, n_fft)
    checked_sizes("istft", n_fft=n_fft, hop=hop)
    if bins != n_fft // 2 + 1 or count == 0:
        raise ShapeError(f"istft: n_fft={n_fft} has {n_fft // 2 + 1} bins, got {bins} in {count} frames")
    if length is not None and length < 0:
        raise ShapeError(f"istft: length must not be negative, got {length}")
    values = fitted_window(window, n_fft)
    if hop > n_fft or min(float(np.sum(values[start::hop] ** 2)) for start in range(hop)) < _SILENT:
        raise OpError(f"istft: a window of {n_fft} samples every {hop} leaves samples uncovered; use a smaller hop")
    frames = rnp.fft.irfft(rnp.swapaxes(spectrum, -1, -2), n_fft)
    dtype = dtype_of(frames).numpy
    summed = overlap_add(frames * values.astype(dtype), hop)
    total = (count - 1) * hop + n_fft
    places = np.arange(count)[:, None] * hop + np.arange(n_fft)
    covered = np.bincount(places.reshape(-1), np.tile(values**2, count), total)
    inverse = np.where(covered > _SILENT, 1.0 / np.maximum(covered, _SILENT), 0.0).astype(dtype)
    side = n_fft // 2 if center else 0
    # With center the last frame may reach over the end, and a given length may ask for that part.
    end = total - side if length is None else min(side + length, total)
    signal = (summed * inverse)[..., side:end]
    return signal if length is None else _pad_last(signal, length - (end - side))


def _pad_last(x: Any, high: int) -> Any:
    return _pad_axis(x, -1, 0, high)


def _pad_axis(x: Any, axis: int, low: int, high: int) -> Any:
    if low == high == 0:
        return x
    sides = [(0, 0)] * rank_of(x)
    sides[axis] = (low, high)
    return rnp.pad(x, sides)
