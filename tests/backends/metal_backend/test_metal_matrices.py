"""Products by simdgroup matrices, their unmodified text run as C++: the shim has a layout of its own for them."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.metal import device

pytestmark = pytest.mark.targets


@pytest.fixture(params=[True, False], ids=["with matrices", "without"])
def matrices(request, stand_in, monkeypatch):
    """Whether the GPU is of a family that has them; texts that are compiled."""
    monkeypatch.setattr(stand_in, "has_matrices", request.param)
    texts = []

    def noted(text, options, error, really=stand_in.newLibraryWithSource_options_error_):
        texts.append(text)
        return really(text, options, error)

    monkeypatch.setattr(stand_in, "newLibraryWithSource_options_error_", noted, raising=False)
    rlx.clear_compile_cache()
    device._opened.cache_clear()
    yield request.param, texts
    rlx.clear_compile_cache()
    device._opened.cache_clear()


def normal(*dims, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(dims, np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products(matrices, dtype):
    present, texts = matrices

    def f(x, w, v):
        return rlx.gelu(x @ w + 1.0) @ v.T

    given = normal(70, 52, dtype=dtype), normal(52, 90, seed=1, dtype=dtype), normal(33, 90, seed=2, dtype=dtype)
    wanted, got = (np.asarray(rlx.jit(f, device=d)(*given)).astype(np.float32) for d in ("cpu", "metal"))
    bound = 2e-5 if dtype is np.float32 else 2e-2
    np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound * np.abs(wanted).max())
    assert any("simdgroup_multiply_accumulate" in t for t in texts) == present
    assert any("simdgroup_matrix<half" in t for t in texts) == (present and dtype is np.float16)


def test_batches(matrices):
    given = normal(3, 40, 24), normal(3, 24, 17, seed=1)
    wanted, got = (np.asarray(rlx.jit(lambda x, w: x @ w, device=d)(*given)) for d in ("cpu", "metal"))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
