"""Plain products by hipBLASLt, against a library that keeps books: what is given to it, and what is left."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from fake_hipblaslt import FakeHipBlasLt

import rlx
from rlx.backends.rocm import blas, code
from rlx.errors import BackendError
from rlx.knobs import knobs
from rlx.runtime.compile_cache import clear_compile_cache

rng = np.random.default_rng(0)


@pytest.fixture
def library(hip, monkeypatch):
    made = FakeHipBlasLt(hip)
    monkeypatch.setattr(blas, "library", lambda: ("libhipblaslt.so", made))
    yield made
    clear_compile_cache()
    code.code_object_loader.cache_clear()
    gc.collect()
    assert {found.kind for found in made.live.values()} <= {"handle"}, "descriptions are given back"


def normal(*dims, dtype=np.float32):
    return rng.standard_normal(dims).astype("f4").astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("turned", ["", "w", "xw"])
def test_products(hip, library, dtype, turned):
    """Both ways in which an operand may lie; nothing but the library multiplies."""
    x = normal(20, 33, dtype=dtype) if "x" not in turned else normal(33, 20, dtype=dtype)
    w = normal(33, 24, dtype=dtype) if "w" not in turned else normal(24, 33, dtype=dtype)

    def f(x, w):
        return (x.T if "x" in turned else x) @ (w.T if "w" in turned else w)

    got = np.asarray(rlx.jit(f, device="rocm")(x, w)).astype(np.float32)
    a, b = (m.astype(np.float32).T if name in turned else m.astype(np.float32) for name, m in (("x", x), ("w", w)))
    bound = {np.float32: 1e-5, np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}[dtype]
    np.testing.assert_allclose(got, a @ b, rtol=bound, atol=bound * 4)
    assert library.products == [((24, 20), dtype, 1)] and not hip.launches and not hip.faults


def test_batches_between_other_work(hip, library):
    x, w = normal(3, 16, 8), normal(3, 8, 17)
    got = rlx.jit(lambda x, w: rlx.tanh(x) @ w, device="rocm")(x, w)
    np.testing.assert_allclose(got, np.tanh(x) @ w, rtol=1e-5, atol=1e-5)
    assert library.products == [((17, 16), np.float32, 3)] and not hip.faults


def compiled(f, *dims):
    graph = rlx.Graph("layer")
    graph.set_outputs([f(graph.input("x", dims[0]) @ graph.param("w", dims[1]))])
    return rlx.Session("rocm").compile(graph)


def test_the_report_names_it_and_small_products_are_ours(hip, library):
    layer = compiled(lambda y: y, ("B", 4), (4, 16))
    assert "native gfx942 (hipBLASLt)" in str(layer.report)
    w = normal(4, 16)
    layer.set_param("w", w)
    for rows in (15, 16):
        x = normal(rows, 4)
        np.testing.assert_allclose(layer.run(x=x)[0], x @ w, rtol=1e-5, atol=1e-5)
    assert len(library.products) == 1 and len(hip.launches) == 1


def test_epilogues_are_ours_and_the_knob_turns_it_off(hip, library):
    assert "hipBLASLt" not in str(compiled(rlx.tanh, (32, 4), (4, 16)).report)
    with knobs(rocm_blas=False):
        assert "hipBLASLt" not in str(compiled(lambda y: y, (32, 4), (4, 16)).report)


def test_what_it_does_not_support_is_ours_and_errors_are_told(hip, library):
    x, w = normal(16, 2), normal(2, 16)
    library.status = 7
    np.testing.assert_allclose(rlx.jit(lambda x, w: x @ w, device="rocm")(x, w), x @ w, rtol=1e-5, atol=1e-5)
    assert not library.products and len(hip.launches) == 1
    library.status = 6
    with pytest.raises(BackendError, match="hipblasLtMatmul failed with status 6; RLX_ROCM_BLAS=0 does without it"):
        rlx.jit(lambda x, w: x.T @ w.T, device="rocm")(normal(2, 16), normal(16, 2))
