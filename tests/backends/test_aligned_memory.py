"""Memory for kernels."""

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.memory import ALIGNMENT, address_of, aligned_copy, aligned_empty, aligned_words, fit


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
