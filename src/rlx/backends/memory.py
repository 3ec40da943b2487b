"""Host memory for kernels: arrays that start on a cache line."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlx.errors import OutOfMemory

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64

_LARGE_PAGE = 2 << 20

_BYTE = np.dtype(np.uint8)


_pointer_at = ctypes.c_void_p.from_address


# What an object has lies after the head that all objects have.
_HEAD = object.__basicsize__


def _begins_with_data_pointer(array: Array) -> bool:
    return bool(_pointer_at(id(array) + _HEAD).value == array.ctypes.data)


# So it is in NumPy's C interface, which extension modules are compiled against; looked at once all the same.
_IS_PLAIN = _begins_with_data_pointer(np.empty(3, _BYTE))


def address_of(array: Array) -> int:
    """Where the data of an array begins: `array.ctypes.data` in a fifth of the time, for runs with hundreds of them."""
    return (_pointer_at(id(array) + _HEAD).value or 0) if _IS_PLAIN else array.ctypes.data


def aligned_empty(dims: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
    """An array with its address, which is a multiple of `ALIGNMENT`. What is in it is not defined."""
    size = math.prod(dims) * dtype.itemsize + ALIGNMENT
    try:
        raw = np.empty(size, _BYTE)
    except (MemoryError, ValueError):  # ValueError where no array can be as large
        raise OutOfMemory(
            f"there is no memory for an array of {size} bytes, {dtype}{list(dims)}; "
            "run the program on smaller inputs, or on parts of them"
        ) from None
    start = address_of(raw)
    offset = -start % ALIGNMENT
    return np.ndarray(dims, dtype, raw, offset), start + offset


# Results up to this size are made by NumPy as it makes all arrays, in a third of the time: they take few cache lines
# wherever they begin.
SMALL_RESULT = 1024


def result_empty(dims: tuple[int, ...], dtype: np.dtype[Any], size: int) -> tuple[Array, int]:
    """An array of `size` bytes for a result, with its address, a multiple of what any element needs."""
    if size > SMALL_RESULT:
        return aligned_empty(dims, dtype)
    array = np.empty(dims, dtype)
    return array, address_of(array)


def aligned_block(types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[tuple[Array, int]]:
    """Arrays with their addresses, in one block of memory that stays for as long as any of them. Where the system has
    large pages the block is made of them: it is handed out several times as fast, and found faster when it is read."""
    starts, end = [], 0
    for dims, dtype in types:
        starts.append(end)
        end += -(-math.prod(dims) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    block, address = _large_empty(end)
    placed = zip(types, starts)
    return [(np.ndarray(dims, dtype, block, start), address + start) for (dims, dtype), start in placed]


def _large_empty(size: int) -> tuple[Array, int]:
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_empty((size,), _BYTE)
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise OutOfMemory(f"there is no memory for {size} bytes: {error}") from None
    with suppress(OSError):  # of a system without large pages
        # Not the rest, of which a large page would waste a part.
        memory.madvise(mmap.MADV_HUGEPAGE, 0, size - size % _LARGE_PAGE)
    block = np.frombuffer(memory, _BYTE)
    return block, address_of(block)


def aligned_words(count: int) -> tuple[Array, int]:
    """64-bit zeros with their address; the system gives many of them page by page when they are first used."""
    raw = np.zeros(count * 8 + 2 * ALIGNMENT, _BYTE)
    start = address_of(raw)
    # Twice the alignment of data: some processors fetch lines in pairs, and threads share these words.
    offset = -start % (2 * ALIGNMENT)
    return np.ndarray((count,), np.int64, raw, offset), start + offset


def aligned_copy(array: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """A contiguous, aligned copy, in another dtype if one is given."""
    copy, _ = aligned_empty(array.shape, array.dtype if dtype is None else dtype)
    copy[...] = array
    return copy


def is_fixed(array: Array) -> bool:
    """Whether nobody in this process can change an array: it is a view of `bytes`, or of a file mapped for reading."""
    holder = _holder(array)
    return isinstance(holder, bytes) or (isinstance(holder, mmap.mmap) and memoryview(holder).readonly)


def drop_pages(arrays: Iterable[Array]) -> None:
    """Give back the pages of mapped files that arrays lie in; what is read again comes from the file again."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for array in arrays:
        file = _holder(array)
        if isinstance(file, mmap.mmap) and memoryview(file).readonly and array.flags.forc and array.nbytes:
            start = address_of(array) - address_of(np.frombuffer(file, _BYTE))
            before = start % mmap.PAGESIZE
            file.madvise(mmap.MADV_DONTNEED, start - before, before + array.nbytes)


def _holder(array: Array) -> object:
    """What an array is a view of, at the end of all views."""
    holder: object = array
    while isinstance(holder, np.ndarray | memoryview):
        holder = holder.base if isinstance(holder, np.ndarray) else holder.obj
    return holder


def fit(array: Array, align: int) -> tuple[Array, int]:
    """The array with its address, copied only where it is not contiguous or not on a multiple of `align` bytes."""
    if array.flags.c_contiguous:
        address = address_of(array)
        if address % align == 0:
            return array, address
    copy, address = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy, address
