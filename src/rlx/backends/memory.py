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
    # Half the time of raw.ctypes.data, and this is done for every output of every run.
    start = ctypes.addressof(ctypes.c_char.from_buffer(raw.data))
    offset = -start % ALIGNMENT
    return np.ndarray(dims, dtype, raw, offset), start + offset


def aligned_words(count: int) -> tuple[Array, int]:
    """64-bit zeros with their address; the system gives many of them page by page when they are first used."""
    raw = np.zeros(count * 8 + 2 * ALIGNMENT, _BYTE)
    start = raw.ctypes.data
    # Twice the alignment of data: some processors fetch lines in pairs, and threads share these words.
    offset = -start % (2 * ALIGNMENT)
    return np.ndarray((count,), np.int64, raw, offset), start + offset


def aligned_copy(array: Array) -> Array:
    """A contiguous, aligned copy."""
    copy, _ = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def fit(array: Array, align: int) -> tuple[Array, int]:
    """The array with its address, copied only where it is not contiguous or not on a multiple of `align` bytes."""
    if array.flags.c_contiguous:
        address = array.ctypes.data
        if address % align == 0:
            return array, address
    copy, address = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy, address
