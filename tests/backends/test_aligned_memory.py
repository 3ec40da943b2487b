"""Memory for kernels."""

import gc
import mmap
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.memory import (
    ALIGNMENT,
    address_of,
    aligned_block,
    aligned_copy,
    aligned_empty,
    aligned_words,
    drop_pages,
    fit,
    is_fixed,
)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0),
        np.arange(6.0)[2:],
        np.array(3, "i4"),
        np.empty((0, 3)),
        np.ones((4, 4)).T,
        np.frombuffer(b"abc", "u1"),
        np.ones(3, ml_dtypes.bfloat16),
        np.ones(3).view(np.recarray),
    ],
)
def test_addresses(array):
    assert address_of(array) == array.ctypes.data


@pytest.mark.parametrize("dims", [(), (0,), (3,), (5, 7), (2, 0, 3), (1000, 33)])
@pytest.mark.parametrize("dtype", ["f4", "u1", "c16", ml_dtypes.bfloat16])
def test_aligned_arrays(dims, dtype):
    array, address = aligned_empty(dims, np.dtype(dtype))
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (dims, np.dtype(dtype), True)
    assert address == array.ctypes.data and address % ALIGNMENT == 0
    array[...] = 1
    copy = aligned_copy(array)
    assert np.array_equal(copy, array) and not np.shares_memory(copy, array)


def test_words():
    words, address = aligned_words(100)
    assert words.dtype == np.int64 and not words.any()
    assert address == words.ctypes.data and address % (2 * ALIGNMENT) == 0


def test_only_what_does_not_fit_is_copied():
    array = aligned_copy(np.arange(64, dtype="f4"))
    assert fit(array, 64)[0] is array
    for other in (array[1:], array[::2], array.reshape(8, 8).T):
        fitted, address = fit(other, 64)
        assert np.array_equal(fitted, other) and not np.shares_memory(fitted, other)
        assert address == fitted.ctypes.data and address % 64 == 0
    assert fit(array[1:], 4)[0].base is not None and np.shares_memory(fit(array[1:], 4)[0], array)


TYPES = [((3, 5), np.dtype("f4")), ((), np.dtype("f8")), ((0, 4), np.dtype("i4")), ((7,), np.dtype("u1"))]
LARGE = [((1 << 20,), np.dtype("f4")), ((33, 1001), np.dtype("u1")), ((3,), np.dtype("f8"))]


@pytest.mark.parametrize("types", [TYPES, LARGE, []], ids=["small", "large", "none"])
def test_arrays_of_a_block_are_aligned_and_apart(types):
    placed = aligned_block(types)
    assert [(array.shape, array.dtype) for array, _ in placed] == types
    for number, (array, address) in enumerate(placed):
        assert array.flags.writeable and not is_fixed(array)
        assert address % ALIGNMENT == 0 and (array.size == 0 or array.ctypes.data == address)
        array[...] = number + 1
    for number, (array, _) in enumerate(placed):
        np.testing.assert_array_equal(array, np.full(array.shape, number + 1, array.dtype))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
COUNT = 64 << 20


@needs_proc
def test_a_block_stays_for_as_long_as_one_of_its_arrays():
    before = resident_bytes()
    (first, _), (second, _) = aligned_block([((COUNT,), np.dtype("u1")), ((3,), np.dtype("f8"))])
    first[...] = 1
    second[...] = 2
    assert resident_bytes() - before > COUNT // 2
    del first
    assert second.tolist() == [2, 2, 2]
    del second
    gc.collect()
    assert resident_bytes() - before < COUNT // 2


@needs_proc
def test_dropped_pages_are_those_of_the_arrays(tmp_path):
    """Half of a file leaves memory, the other half stays."""
    content = np.arange(COUNT // 8)
    (tmp_path / "file").write_bytes(content.tobytes())
    with open(tmp_path / "file", "rb") as file:
        whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), content.dtype)
    before = resident_bytes()
    wanted = int(content.sum())
    assert int(whole.sum()) == wanted
    read = resident_bytes()
    assert read - before > COUNT * 3 // 4
    drop_pages([whole[: len(whole) // 2], whole[::2], np.ones(3)])
    left = resident_bytes() - before
    assert COUNT // 4 < left < COUNT * 3 // 4
    assert int(whole.sum()) == wanted
