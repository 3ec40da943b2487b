"""From complex samples to what they carry: mixing, FM and AM, and the de-emphasis of broadcast FM."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.iir import lfilter
from rlx.audio.windows import samples_of
from rlx.errors import OpError
from rlx.numpy.arguments import array_function, convert, inexact
from rlx.ops.define.operands import dtype_of

__all__ = ["am_demodulate", "am_modulate", "deemphasis", "fm_demodulate", "fm_modulate", "mix"]


def complex_samples(x: Any) -> Any:
    """`x` in its complex type."""
    (x,) = inexact(x)
    return convert(x, dtype_of(x).complex)


def positive(function: str, **values: float) -> None:
    """Refuse numbers that are not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise OpError(f"{function}: {name} must be positive, got {value}")


@array_function
def mix(x: Any, frequency: float, rate: float) -> Any:
    """x[n]·exp(2πi·frequency·n/rate): everything moves up by `frequency` Hz, down where that is negative."""
    positive("mix", rate=rate)
    x = complex_samples(x)
    # Whole turns are taken out in f64, so that the phase is as exact late as it is early.
    turns = np.arange(samples_of(x, "mix")) * (frequency / rate) % 1.0
    return x * np.exp(2j * np.pi * turns).astype(dtype_of(x).numpy)


@array_function
def fm_modulate(message: Any, rate: float, deviation: float) -> Any:
    """Complex samples whose frequency is deviation·message[n] Hz, message being between -1 and 1."""
    positive("fm_modulate", rate=rate, deviation=deviation)
    (message,) = inexact(message)
    phase = rnp.cumsum(message, -1) * (2 * math.pi * deviation / rate)
    return ops.complex_(rnp.cos(phase), rnp.sin(phase))


@array_function
def fm_demodulate(x: Any, rate: float, deviation: float) -> Any:
    """The frequency of complex samples in units of `deviation` Hz, one sample fewer: the turn from each to the next."""
    positive("fm_demodulate", rate=rate, deviation=deviation)
    x = complex_samples(x)
    turn = x[..., 1:] * rnp.conj(x[..., :-1])
    return rnp.arctan2(rnp.imag(turn), rnp.real(turn)) * (rate / (2 * math.pi * deviation))


@array_function
def am_modulate(message: Any, depth: float = 0.5) -> Any:
    """Complex samples with the amplitude 1 + depth·message[n]."""
    positive("am_modulate", depth=depth)
    (message,) = inexact(message)
    amplitude = 1.0 + depth * message
    return ops.complex_(amplitude, rnp.zeros_like(amplitude))


@array_function
def am_demodulate(x: Any, depth: float = 0.5) -> Any:
    """The message of `am_modulate` at any strength and carrier phase: (|x| / mean|x| - 1) / depth."""
    positive("am_demodulate", depth=depth)
    x = complex_samples(x)
    re, im = rnp.real(x), rnp.imag(x)
    envelope = rnp.sqrt(re * re + im * im)
    return (envelope / rnp.mean(envelope, -1, keepdims=True) - 1.0) * (1.0 / depth)


@array_function
def deemphasis(x: Any, rate: float, time_constant: float = 50e-6) -> Any:
    """Take back the treble that FM stations add: a low-pass of first order, 50 µs in Europe and 75 µs in America."""
    positive("deemphasis", rate=rate, time_constant=time_constant)
    decay = math.exp(-1.0 / (rate * time_constant))
    return lfilter([1.0 - decay], [1.0, -decay], x)
