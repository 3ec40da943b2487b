"""Products and attention by simdgroup matrices, their unmodified text run as C++: the shim has a layout of its own for
them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.metal import device
from rlx.ops.attn.attention import Attention

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


LENGTHS = np.array([45, 7], "i4")
PLACES = np.random.default_rng(0).integers(0, 45, (2, 37)).astype("i4")
ATTENTIONS = {
    "none": (Attention(2, 16), ()),
    "grouped queries": (Attention(4, 64, num_kv_heads=2, mask_kind="causal"), ()),
    "window": (Attention(2, 40, mask_kind="sliding_window", window=9), ()),
    "softcap": (Attention(2, 32, mask_kind="causal", softcap=2.0), ()),
    "length": (Attention(2, 16, mask_kind="causal", has_kv_len=True), (LENGTHS,)),
    "positions": (Attention(2, 16, mask_kind="causal", has_positions=True), (PLACES,)),
    "bias": (Attention(2, 24, mask_kind="bias"), (normal(2, 2, 37, 45, seed=5),)),
    "custom": (Attention(2, 16, mask_kind="custom"), (normal(2, 1, 37, 45, seed=6) < 0,)),
    "widest": (Attention(1, 128, mask_kind="causal"), ()),
    "other layout": (Attention(2, 16, layout="bshd", mask_kind="causal"), ()),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(matrices, name, dtype):
    """Rows and keys end inside of blocks and steps, of which there are several."""
    present, texts = matrices
    op, extras = ATTENTIONS[name]
    dims = [(2, n, h, op.head_dim) if op.layout.value == "bshd" else (2, h, n, op.head_dim)
            for h, n in ((op.num_heads, 37), (op.kv_heads, 45), (op.kv_heads, 45))]  # fmt: skip
    given = [normal(*d, seed=i, dtype=dtype) for i, d in enumerate(dims)]
    got = np.asarray(rlx.jit(lambda *x: op(*x), device="metal")(*given, *extras)).astype(np.float32)
    wanted = op.eval(*(x.astype(np.float32) for x in given), *extras)
    bound = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[np.dtype(dtype).name]
    np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)
    assert any("simdgroup_multiply_accumulate" in t for t in texts) == present


def test_nan_stays_in_its_rows(matrices):
    """Matrices are multiplied as a whole, but no row of queries touches another."""
    op = Attention(1, 16, mask_kind="causal")
    q, k, v = (normal(1, 1, 24, 16, seed=i) for i in range(3))
    q[0, 0, 3], q[0, 0, 12, 0], k[0, 0, 20, 1] = np.nan, np.inf, -np.inf
    wanted, got = (np.asarray(rlx.jit(lambda *x: op(*x), device=d)(q, k, v)) for d in ("cpu", "metal"))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
