"""All caches of a batch lie in one piece of memory, each where a kernel can write into it."""

from __future__ import annotations

import numpy as np
import pytest

from models.tiny_models import language_model
from rlx.backends.memory import ALIGNMENT
from rlx.ir.dtype import DType


@pytest.mark.parametrize("kv", [DType.F32, DType.F16, DType.I8])
@pytest.mark.parametrize(("batch", "capacity"), [(1, 7), (3, 97)])
def test_caches_are_aligned_and_apart(kv, batch, capacity):
    caches = language_model(kv_dtype=kv)._runner.new_caches(batch, capacity)
    assert {c.dtype.name for c in caches} == ({kv.numpy.name, "float32"} if kv is DType.I8 else {kv.numpy.name})
    assert all(c.shape[0] == batch and c.shape[2] == capacity for c in caches)
    assert all(c.ctypes.data % ALIGNMENT == 0 and c.flags.c_contiguous and c.flags.writeable for c in caches)
    for number, cache in enumerate(caches):
        assert not cache.any()
        cache[...] = number + 1
    for number, cache in enumerate(caches):
        np.testing.assert_array_equal(cache, number + 1)
