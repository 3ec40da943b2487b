"""Coefficients of filters: `firwin` for `fir_filter`, `butter` for `sosfilt`. They are NumPy arrays in f64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.audio import windows
from rlx.audio.windows import Window, checked_sizes
from rlx.errors import OpError

__all__ = ["butter", "firwin"]

F64 = npt.NDArray[np.float64]
C128 = npt.NDArray[np.complex128]

# Kind of a filter -> how many frequencies say where it changes.
_EDGES = {"low": 1, "high": 1, "bandpass": 2, "bandstop": 2}


def _checked_edges(function: str, cutoff: float | tuple[float, float], kind: str, rate: float) -> list[float]:
    """One or two frequencies between 0 and rate/2."""
    if kind not in _EDGES:
        raise OpError(f"{function}: kind must be one of {', '.join(_EDGES)}, got {kind!r}")
    edges = [float(f) for f in (cutoff if isinstance(cutoff, tuple) else (cutoff,))]
    if len(edges) != _EDGES[kind] or sorted(set(edges)) != edges or not 0 < edges[0] <= edges[-1] < rate / 2:
        count = "one frequency" if _EDGES[kind] == 1 else "two rising frequencies"
        raise OpError(f"{function}: {kind} needs {count} between 0 and rate/2 = {rate / 2} as cutoff, got {cutoff}")
    return edges


def firwin(
    taps: int,
    cutoff: float | tuple[float, float],
    rate: float = 2.0,
    kind: str = "low",
    window: Window = "hamming",
) -> F64:
    """A FIR filter by the window method: `kind` is low, high, bandpass or bandstop, `cutoff` one or two frequencies.

    The gain is exactly 1 at 0 Hz (low, bandstop), at rate/2 (high) or in the middle of the band (bandpass).
    """
    checked_sizes("firwin", taps=taps)
    edges = _checked_edges("firwin", cutoff, kind, rate)
    passes_end = kind in ("high", "bandstop")
    if passes_end and taps % 2 == 0:
        raise OpError(f"firwin: {kind} passes rate/2, which needs an odd number of taps, got {taps}")
    place = np.arange(taps) - (taps - 1) / 2
    bounds = [0.0] * (kind in ("low", "bandstop")) + edges + [rate / 2] * passes_end
    bands = list(zip(bounds[::2], bounds[1::2]))
    ideal = np.zeros(taps)
    for low, high in bands:
        ideal += sum(sign * f * np.sinc(f * place) for sign, f in ((1, 2 * high / rate), (-1, 2 * low / rate)))
    h = ideal * windows.window(window, taps, periodic=False)
    low, high = bands[0]
    probe = 0.0 if low == 0 else 1.0 if high == rate / 2 else (low + high) / rate
    return np.asarray(h / np.sum(h * np.cos(np.pi * place * probe)), np.float64)


def butter(order: int, cutoff: float | tuple[float, float], rate: float = 2.0, kind: str = "low") -> F64:
    """A Butterworth filter as sections [n, 6] of (b0, b1, b2, a0, a1, a2) for `sosfilt`.

    `kind` is low, high, bandpass or bandstop; at the cutoff the gain is 1/√2. A band filter has twice the order.
    """
    checked_sizes("butter", order=order)
    edges = _checked_edges("butter", cutoff, kind, rate)
    # The frequencies of the analog filter that the bilinear transform puts at the edges.
    warped = [2.0 * np.tan(np.pi * f / rate) for f in edges]
    circle = -np.exp(1j * np.pi * (2 * np.arange(order) + 1 - order) / (2 * order))
    poles, zeros = _analog(circle, warped, kind)
    poles, zeros = ((2.0 + roots) / (2.0 - roots) for roots in (poles, zeros))
    # Zeros at infinity come to lie at rate/2.
    zeros = np.concatenate([zeros, -np.ones(len(poles) - len(zeros))])
    sections = np.stack([np.concatenate([z, p]) for z, p in zip(_quadratics(zeros), _quadratics(poles))])
    centre = 2 * np.arctan(np.sqrt(np.prod(warped)) / 2.0) if kind == "bandpass" else np.pi * (kind == "high")
    sections[0, :3] /= np.prod([_gain(section, centre) for section in sections])
    return sections


def _analog(circle: C128, warped: list[float], kind: str) -> tuple[C128, C128]:
    """Poles and finite zeros of the analog filter that is made of the low-pass with poles on the unit circle."""
    if kind == "low":
        return circle * warped[0], np.zeros(0, np.complex128)
    if kind == "high":
        return warped[0] / circle, np.zeros(len(circle), np.complex128)
    width, middle = warped[1] - warped[0], warped[0] * warped[1]
    half = circle * width / 2 if kind == "bandpass" else width / 2 / circle
    root = np.sqrt(half**2 - middle)
    poles = np.concatenate([half + root, half - root])
    if kind == "bandpass":
        return poles, np.zeros(len(circle), np.complex128)
    return poles, np.repeat([1j, -1j], len(circle)) * np.sqrt(middle)


def _quadratics(roots: C128) -> list[F64]:
    """Real polynomials [1, c1, c2] with these roots: conjugates together, real ones in pairs, the outermost with the
    innermost; the last one may be alone."""
    upper = sorted(roots[roots.imag > 1e-12 * abs(roots)], key=lambda r: (r.real, r.imag))
    real = sorted(roots[abs(roots.imag) <= 1e-12 * abs(roots)].real)
    found = [np.array([1.0, -2 * r.real, abs(r) ** 2]) for r in upper]
    while real:
        first = real.pop()
        second = real.pop(0) if real else 0.0
        found.append(np.array([1.0, -first - second, first * second]))
    return found


def _gain(section: F64, angle: float) -> float:
    """|H| of one section at an angle of the unit circle."""
    powers = np.exp(-1j * angle * np.arange(3))
    return float(abs(section[:3] @ powers) / abs(section[3:] @ powers))
