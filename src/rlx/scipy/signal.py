"""Signals under the names of `scipy.signal`, on traced values and on arrays, with derivatives: convolutions, trends and
spectra. `rlx.audio` has the filters, features and files.

>>> convolve([1.0, 2.0, 3.0], [1.0, 1.0]).tolist(), correlate([1.0, 2.0, 3.0], [0.0, 1.0], "same").tolist()
([1.0, 3.0, 5.0, 3.0], [1.0, 2.0, 3.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.lax.convolutions import PrecisionLike, conv_general_dilated
from rlx.numpy.arguments import array_function, axis_of, inexact, static_size
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.scipy.spectra import csd as csd
from rlx.scipy.spectra import istft as istft
from rlx.scipy.spectra import stft as stft
from rlx.scipy.spectra import welch as welch

__all__ = [
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "csd",
    "detrend",
    "fftconvolve",
    "istft",
    "stft",
    "welch",
]

# Axes that a window of `conv_general_dilated` has at most; more, and complex numbers, go through transforms.
_MOST_AXES = 3
_BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


@array_function
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: PrecisionLike = None) -> Any:
    """Σ in1[i]·in2[k - i] over all axes. `mode` is "full", "same" (the middle, of the size of in1) or "valid" (where
    one lies inside the other); `method` is "direct", "fft", or "auto", which is direct."""
    in1, in2 = _pair(in1, in2, mode, "convolve")
    if method not in ("auto", "direct", "fft"):
        raise OpError(f"convolve: method must be 'auto', 'direct' or 'fft', got {method!r}")
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    return _direct(in1, in2, mode, precision)


@array_function
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: PrecisionLike = None) -> Any:
    """Σ in1[i + k]·conj(in2[i]) over all axes; options as in `convolve`."""
    in1, in2 = _pair(in1, in2, mode, "correlate")
    return convolve(in1, ops.conjugate(rnp.flip(in2)), mode, method, precision)


@array_function
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: int | Sequence[int] | None = None) -> Any:
    """`convolve` along `axes` by Fourier transforms, which for long windows are fewer operations; other axes
    broadcast."""
    in1, in2 = _pair(in1, in2, mode, "fftconvolve")
    rank = len(dims_of(in1))
    chosen = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    along = sorted({axis_of(axis, in1, "fftconvolve") for axis in chosen})
    if not along:
        return in1 * in2
    sizes = [(dims_of(in1)[a], dims_of(in2)[a]) for a in along]
    whole = [n + k - 1 for n, k in sizes]
    if 0 in dims_of(in1) or 0 in dims_of(in2):
        raise ShapeError(f"fftconvolve: nothing to convolve in shapes {dims_of(in1)} and {dims_of(in2)}")
    both = dtype_of(in1).is_complex
    forward, back = (rnp.fft.fftn, rnp.fft.ifftn) if both else (rnp.fft.rfftn, rnp.fft.irfftn)
    product = forward(in1, whole, along) * forward(in2, whole, along)
    full = back(product, whole, along).astype(dtype_of(in1))
    for axis, (n, k) in zip(along, sizes):
        start, length = _part(n, k, mode)
        full = ops.narrow(full, axis, start, length)
    return full


@array_function
def convolve2d(
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Any:
    """`convolve` of matrices. What lies around in1 is `fillvalue`, or with `boundary` "wrap" and "symm" in1 again."""
    in1, in2 = _pair(in1, in2, mode, "convolve2d")
    if len(dims_of(in1)) != 2:
        raise ShapeError(f"convolve2d: needs matrices, got shapes {dims_of(in1)} and {dims_of(in2)}")
    if boundary not in _BOUNDARIES:
        raise OpError(f"convolve2d: boundary must be one of {', '.join(_BOUNDARIES)}, got {boundary!r}")
    if mode == "valid" or (boundary == "fill" and not np.any(fillvalue)):
        return _direct(in1, in2, mode, precision)
    parts = [_part(n, k, mode) for n, k in zip(dims_of(in1), dims_of(in2))]
    around = [(k - 1, k - 1) for k in dims_of(in2)]
    options = {"constant_values": fillvalue} if boundary == "fill" else {}
    wide = rnp.pad(in1, around, _BOUNDARIES[boundary], **options)
    rows, columns = (slice(start, start + length) for start, length in parts)
    return _correlated(wide, rnp.flip(in2), [(0, 0), (0, 0)], precision)[rows, columns]


@array_function
def correlate2d(
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Any:
    """Σ in1[i + k]·conj(in2[i]) of matrices; options as in `convolve2d`."""
    in1, in2 = _pair(in1, in2, mode, "correlate2d")
    # From the other end, so that "same" has the middle that SciPy has.
    turned = convolve2d(rnp.flip(in1), ops.conjugate(in2), mode, boundary, fillvalue, precision)
    return rnp.flip(turned)


@array_function
def detrend(
    data: Any, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0, overwrite_data: bool | None = None
) -> Any:
    """`data` less its mean ("constant") or its line of least squares ("linear") along `axis`, of each of the parts that
    begin at `bp`. Values are immutable, so that `overwrite_data` changes nothing."""
    (data,) = inexact(data)
    axis = axis_of(axis, data, "detrend")
    if type in ("constant", "c"):
        return data - rnp.mean(data, axis, keepdims=True)
    if type not in ("linear", "l"):
        raise OpError(f"detrend: type must be 'linear' or 'constant', got {type!r}")
    length = static_size(dims_of(data)[axis], "detrend")
    ends = sorted({0, *np.atleast_1d(bp).tolist(), length})
    if ends[0] < 0 or ends[-1] > length:
        raise ShapeError(f"detrend: breakpoints lie between 0 and {length}, got {bp}")
    lines = ops.moveaxis(data, axis, -1)
    parts = []
    for start, end in pairwise(ends):
        part = ops.narrow(lines, -1, start, end - start)
        line = np.stack([np.ones(end - start), np.arange(end - start)], 1)
        basis = np.linalg.qr(line)[0].astype(dtype_of(data).numpy)
        parts.append(part - (part @ basis) @ basis.T)
    return ops.moveaxis(ops.concat(parts, -1), -1, axis)


def _pair(in1: Any, in2: Any, mode: str, function: str) -> tuple[Any, Any]:
    in1, in2 = inexact(in1, in2)
    if len(dims_of(in1)) != len(dims_of(in2)):
        raise ShapeError(f"{function}: needs as many axes in both, got shapes {dims_of(in1)} and {dims_of(in2)}")
    if mode not in ("full", "same", "valid"):
        raise OpError(f"{function}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    pairs = [*zip(dims_of(in1), dims_of(in2))]
    is_crossed = any(n < k for n, k in pairs) and any(n > k for n, k in pairs)
    if mode == "valid" and function != "fftconvolve" and is_crossed:
        raise ShapeError(
            f"{function}: for mode 'valid' one operand must fit into the other along every axis, got shapes "
            f"{dims_of(in1)} and {dims_of(in2)}"
        )
    return in1, in2


def _part(n: Any, k: Any, mode: str) -> tuple[Any, Any]:
    """Where the result of a mode begins in the full one along an axis, and its length."""
    if mode == "full":
        return 0, n + k - 1
    if mode == "same":
        return (k - 1) // 2, n
    return min(n, k) - 1, abs(n - k) + 1


def _direct(in1: Any, in2: Any, mode: str, precision: PrecisionLike) -> Any:
    rank = len(dims_of(in1))
    if rank == 0:
        return in1 * in2
    if dtype_of(in1).is_complex or rank > _MOST_AXES:
        return fftconvolve(in1, in2, mode)
    padding = []
    for n, k in zip(dims_of(in1), dims_of(in2)):
        start, length = _part(n, k, mode)
        low = k - 1 - start
        padding.append((low, length + k - 1 - n - low))
    return _correlated(in1, rnp.flip(in2), padding, precision)


def _correlated(x: Any, window: Any, padding: Sequence[tuple[Any, Any]], precision: PrecisionLike) -> Any:
    ones = (1,) * len(padding)
    return conv_general_dilated(x[None, None], window[None, None], ones, padding, precision=precision)[0, 0]
