"""Mel spectra and what is made of them: decibels, cepstra, and the features that Whisper models read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.numpy as rnp
from rlx.audio.spectra import power_frames
from rlx.audio.windows import Window, checked_sizes, hop_of, samples_of
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, inexact
from rlx.ops.define.operands import dtype_of

__all__ = [
    "dct",
    "hz_to_mel",
    "mel_filters",
    "mel_spectrogram",
    "mel_to_hz",
    "mfcc",
    "power_to_db",
    "whisper_log_mel",
]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# The Slaney scale is linear up to 1000 Hz, 15 mel, and grows by a factor of 6.4 over each further 27 mel.
_LINEAR_HZ, _LINEAR_MEL, _GROWTH = 1000.0, 15.0, math.log(6.4) / 27.0

WHISPER_RATE, WHISPER_N_FFT, WHISPER_HOP = 16000, 400, 160
# Decades below the loudest value of a recording at which Whisper's features are cut off.
_WHISPER_RANGE = 8.0


def hz_to_mel(hz: npt.ArrayLike, scale: str = "slaney") -> F64:
    """Frequencies on the mel scale, "slaney" or "htk"."""
    hz = np.asarray(hz, np.float64)
    if _is_htk(scale):
        return 2595.0 * np.log10(1.0 + hz / 700.0)
    grown = _LINEAR_MEL + np.log(np.maximum(hz, _LINEAR_HZ) / _LINEAR_HZ) / _GROWTH
    return np.where(hz < _LINEAR_HZ, hz * (_LINEAR_MEL / _LINEAR_HZ), grown)


def mel_to_hz(mel: npt.ArrayLike, scale: str = "slaney") -> F64:
    """The inverse of `hz_to_mel`."""
    mel = np.asarray(mel, np.float64)
    if _is_htk(scale):
        return np.asarray(700.0 * (10.0 ** (mel / 2595.0) - 1.0), np.float64)
    grown = _LINEAR_HZ * np.exp(_GROWTH * (np.maximum(mel, _LINEAR_MEL) - _LINEAR_MEL))
    return np.where(mel < _LINEAR_MEL, mel * (_LINEAR_HZ / _LINEAR_MEL), grown)


def _is_htk(scale: str) -> bool:
    if scale not in ("slaney", "htk"):
        raise OpError(f"mel: scale must be 'slaney' or 'htk', got {scale!r}")
    return scale == "htk"


def mel_filters(
    rate: float,
    n_fft: int,
    n_mels: int = 128,
    low: float = 0.0,
    high: float | None = None,
    scale: str = "slaney",
    norm: str | None = "slaney",
) -> F32:
    """Triangles [n_mels, n_fft//2 + 1] that sum bins of a spectrum to mel bands between `low` and `high` Hz (rate/2).

    With norm "slaney" each triangle has the area 1 over frequency, with None the height 1.
    """
    checked_sizes("mel_filters", n_fft=n_fft, n_mels=n_mels)
    high = rate / 2 if high is None else high
    if not 0 <= low < high <= rate / 2:
        raise OpError(f"mel_filters: needs 0 <= low < high <= rate/2 = {rate / 2}, got low={low} and high={high}")
    if norm not in ("slaney", None):
        raise OpError(f"mel_filters: norm must be 'slaney' or None, got {norm!r}")
    ends = hz_to_mel([low, high], scale)
    corners = mel_to_hz(np.linspace(ends[0], ends[1], n_mels + 2), scale)
    bins = np.arange(n_fft // 2 + 1) * (rate / n_fft)
    left, middle, right = (corners[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    if norm == "slaney":
        triangles = triangles * (2.0 / (right - left))
    return triangles.astype(np.float32)


@array_function
def mel_spectrogram(
    x: Any,
    rate: float,
    n_fft: int = 2048,
    hop: int | None = None,
    n_mels: int = 128,
    window: Window = "hann",
    low: float = 0.0,
    high: float | None = None,
    scale: str = "slaney",
    norm: str | None = "slaney",
    center: bool = True,
    pad_mode: str = "reflect",
) -> Any:
    """Energies of mel bands: x[.., T] -> [.., n_mels, frames]; see `stft` and `mel_filters`."""
    power = power_frames(x, n_fft, hop_of(hop, n_fft), window, center, pad_mode, "mel_spectrogram")
    filters = mel_filters(rate, n_fft, n_mels, low, high, scale, norm)
    return rnp.swapaxes(power @ filters.T.astype(dtype_of(power).numpy), -1, -2)


@array_function
def power_to_db(power: Any, reference: float = 1.0, least: float = 1e-10, top_db: float | None = 80.0) -> Any:
    """10·log10(power / reference), powers below `least` counting as that, values `top_db` below the loudest cut off.

    The loudest is taken over all axes.
    """
    if least <= 0 or reference <= 0 or (top_db is not None and top_db < 0):
        raise OpError(f"power_to_db: least and reference must be positive and top_db not negative, got {top_db}")
    (power,) = inexact(power)
    db = 10.0 * rnp.log10(rnp.maximum(power, least)) - 10.0 * math.log10(max(reference, least))
    return db if top_db is None else rnp.maximum(db, rnp.max(db) - top_db)


@array_function
def dct(x: Any, n: int | None = None) -> Any:
    """The first n values of the orthonormal cosine transform (type 2) along the last axis."""
    (x,) = inexact(x)
    size = samples_of(x, "dct")
    n = size if n is None else n
    checked_sizes("dct", n=n)
    if n > size:
        raise OpError(f"dct: {size} values have {size} coefficients, got n={n}")
    angle = np.pi / size * (np.arange(size) + 0.5)[:, None] * np.arange(n)
    matrix = np.cos(angle) * np.sqrt(np.where(np.arange(n) == 0, 1.0, 2.0) / size)
    return x @ matrix.astype(dtype_of(x).numpy)


@array_function
def mfcc(x: Any, rate: float, n_mfcc: int = 20, n_fft: int = 2048, hop: int | None = None, n_mels: int = 128) -> Any:
    """Mel-frequency cepstral coefficients [.., n_mfcc, frames]: the cosine transform of mel energies in decibels."""
    db = power_to_db(mel_spectrogram(x, rate, n_fft, hop, n_mels))
    return rnp.swapaxes(dct(rnp.swapaxes(db, -1, -2), n_mfcc), -1, -2)


@array_function
def whisper_log_mel(x: Any, n_mels: int = 80) -> Any:
    """What Whisper models read: x[.., T] at 16 kHz -> [.., n_mels, T // 160].

    Frames of 25 ms every 10 ms (the last is left out), Slaney's mel bands, log10, values more than 8 decades below the
    loudest of the recording cut off, then (v + 4) / 4. Models want 30 s: pad the samples with zeros first.
    """
    power = power_frames(x, WHISPER_N_FFT, WHISPER_HOP, "hann", True, "reflect", "whisper_log_mel")[..., :-1, :]
    energy = power @ mel_filters(WHISPER_RATE, WHISPER_N_FFT, n_mels).T.astype(dtype_of(power).numpy)
    v = rnp.log10(rnp.maximum(energy, 1e-10))
    loudest = rnp.max(v, axis=(-2, -1), keepdims=True)
    features = (rnp.maximum(v, loudest - _WHISPER_RANGE) + 4.0) / 4.0
    return rnp.swapaxes(features, -1, -2)
