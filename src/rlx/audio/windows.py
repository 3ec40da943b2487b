"""Windows that frames of a signal are multiplied by, and checks of sizes that several modules share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import concrete, static_size
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["Window", "window"]

F64 = npt.NDArray[np.float64]
# A name, a name with its parameter, or the values themselves.
Window: TypeAlias = "str | tuple[str, float] | npt.ArrayLike"

# The terms of sums of cosines: Σ (-1)^k · c[k] · cos(2πk·t), t from 0 to 1.
_COSINES = {
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
    "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
    "boxcar": (1.0,),
}


def window(kind: Window, length: int, periodic: bool = True) -> F64:
    """`length` values of a window: "hann", "hamming", "blackman", "blackmanharris", "boxcar" or ("kaiser", beta).

    A periodic window is the first part of a symmetric one that is longer by one: what spectra want. Filters want
    `periodic=False`. Values that are given as an array are taken as they are.

    >>> window("hann", 4).round(3).tolist(), window("hann", 5, periodic=False).round(3).tolist()
    ([0.0, 0.5, 1.0, 0.5], [0.0, 0.5, 1.0, 0.5, 0.0])
    """
    if length < 1:
        raise ShapeError(f"window: needs at least one value, got length={length}")
    name, beta = kind if isinstance(kind, tuple) and kind and isinstance(kind[0], str) else (kind, 0.0)
    if not isinstance(name, str):
        values = np.asarray(concrete(name, "window", "the window"), np.float64)
        if values.shape != (length,):
            raise ShapeError(f"window: needs {length} values, got an array {list(values.shape)}")
        return values
    if length == 1:
        return np.ones(1)
    span = length if periodic else length - 1
    place = np.arange(length) / span
    if name == "kaiser":
        values = np.i0(float(beta) * np.sqrt(np.maximum(1.0 - (2.0 * place - 1.0) ** 2, 0.0))) / np.i0(float(beta))
        return np.asarray(values, np.float64)
    if name not in _COSINES:
        known = ", ".join([*map(repr, _COSINES), "('kaiser', beta)"])
        raise OpError(f"window: {name!r} is not one of {known}; or pass the values as an array")
    waves = [np.cos(2 * np.pi * k * place) for k in range(len(_COSINES[name]))]
    summed: F64 = sum(
        ((-1) ** k * c * wave for k, (c, wave) in enumerate(zip(_COSINES[name], waves))), np.zeros(length)
    )
    return summed


def fitted_window(kind: Window, n_fft: int) -> F64:
    """A window of n_fft values; one that is given as a shorter array gets zeros on both sides."""
    if isinstance(kind, str | tuple):
        return window(kind, n_fft)
    values = np.asarray(concrete(kind, "window", "the window"), np.float64)
    if values.ndim != 1 or not 1 <= len(values) <= n_fft:
        raise ShapeError(f"window: needs 1 to n_fft={n_fft} values, got an array {list(values.shape)}")
    before = (n_fft - len(values)) // 2
    return np.pad(values, (before, n_fft - len(values) - before))


def samples_of(x: Any, function: str) -> int:
    """The size of the time axis, which must be known."""
    dims = dims_of(x)
    if not dims:
        raise ShapeError(f"{function}: needs a signal with time on its last axis, got a scalar")
    return static_size(dims[-1], function)


def real_dtype(x: Any) -> np.dtype[Any]:
    """The dtype in which real factors of `x` are kept: f32 or f64."""
    return np.dtype(np.float64 if str(dtype_of(x)) in ("f64", "c128") else np.float32)


def checked_sizes(function: str, **sizes: int) -> None:
    """Refuse sizes that are not whole and positive."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ShapeError(f"{function}: {name} must be a whole number of at least 1, got {size!r}")
