"""Rules of Fourier transforms and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.formats.onnx.structure import element_type
from rlx.ir.dims import Dim
from rlx.onnx.values import Call, dtype_of, rank_of, rule

# a0 - a1·cos(t) + a2·cos(2t)
_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@rule(*_WINDOWS)
def _window(call: Call) -> Any:
    size = call.number(0)
    if isinstance(size, Dim):
        call.unsupported("a window of an open size")
    dtype = element_type(call.attribute("output_datatype", 1), f"{call.path}: node {call.node}")
    angles = 2 * np.pi * np.arange(size) / (size if call.attribute("periodic", 1) else max(1, size - 1))
    a, b, c = _WINDOWS[call.node.op]
    return (a - b * np.cos(angles) + c * np.cos(2 * angles)).astype(dtype.numpy)


def _as_complex(x: Any) -> Any:
    """[.., 1] real or [.., 2] real and imaginary parts as numbers."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _as_parts(x: Any, like: Any) -> Any:
    return rnp.astype(rnp.stack([rnp.real(x), rnp.imag(x)], axis=-1), dtype_of(like))


@rule("DFT")
def _dft(call: Call) -> Any:
    x = call[0]
    rank = rank_of(x) - 1
    given = call.number(2, -2) if call.opset >= 20 else call.attribute("axis", 1)
    axis = int(given) + (rank + 1 if given < 0 else 0)
    length = call.number(1)
    values, is_half = _as_complex(x), call.attribute("onesided", 0)
    if call.attribute("inverse", 0):
        if is_half:
            found = rnp.fft.irfft(values, None if length is None else int(length), axis)
            return rnp.astype(rnp.expand_dims(found, -1), dtype_of(x))
        return _as_parts(rnp.fft.ifft(values, length, axis), x)
    transform = rnp.fft.rfft if is_half and x.shape[-1] == 1 else rnp.fft.fft
    return _as_parts(transform(values, length, axis), x)


@rule("STFT")
def _short_time(call: Call) -> Any:
    x, step = call[0], int(call.number(1))
    signal = _as_complex(x) if rank_of(x) == 3 else x
    window = call.optional(2)
    width = int(call.number(3)) if call.has(3) else window.shape[0]
    count = (signal.shape[1] - width) // step + 1
    starts = rnp.arange(count) * step
    frames = rnp.take(signal, rnp.expand_dims(starts, 1) + np.arange(width, dtype=np.int32), axis=1)
    frames = frames if window is None else frames * window
    transform = rnp.fft.rfft if call.attribute("onesided", 1) and x.shape[-1] == 1 else rnp.fft.fft
    return _as_parts(transform(frames), x)
