"""Host memory for kernels: arrays that start on a cache line."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64

_BYTE = np.dtype(np.uint8)


def aligned_empty(dims: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
    """An array with its address, which is a multiple of `ALIGNMENT`. What is in it is not defined."""
    raw = np.empty(math.prod(dims) * dtype.itemsize + ALIGNMENT, _BYTE)
    # A third of the time of raw.ctypes.data, and this is done for every output of every run.
    start = ctypes.addressof(ctypes.c_char.from_buffer(raw))
    offset = -start % ALIGNMENT
    return np.ndarray(dims, dtype, raw, offset), start + offset


def aligned_zeros(dims: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
    """The same, filled with zeros; the system gives large ones page by page when they are first used."""
    raw = np.zeros(math.prod(dims) * dtype.itemsize + ALIGNMENT, _BYTE)
    start = raw.ctypes.data
    offset = -start % ALIGNMENT
    return np.ndarray(dims, dtype, raw, offset), start + offset


def aligned_copy(array: Array) -> Array:
    """A contiguous, aligned copy."""
    copy, _ = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
