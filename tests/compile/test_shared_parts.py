"""Work that one thread would do alone, cut into parts by the shape: long products, counts, patches, sums of all."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import lax
from rlx.compile.lower.long_products import long_products
from rlx.ir.graph import Graph

rng = np.random.default_rng(7)


def _product(m, k, n, dtype="f32"):
    graph = Graph("product")
    graph.set_outputs([graph.input("a", (m, k), dtype) @ graph.input("b", (k, n), dtype)])
    return graph


@pytest.mark.parametrize("m, k, n", [(17, 40000, 17), (3, 8192, 5), (2, 30000, 2)])
def test_long_products_are_cut(m, k, n):
    assert "reduce_sum" in [node.op.mnemonic for node in long_products(_product(m, k, n)).nodes]
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    np.testing.assert_allclose(rlx.jit(lambda a, b: a @ b)(a, b), a @ b, rtol=1e-9, atol=1e-9)
    turned = rlx.jit(lambda a, b: a.T @ b.T)(np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    np.testing.assert_allclose(turned, a @ b, rtol=1e-9, atol=1e-9)


def test_products_that_stay_whole():
    """Large results, short sums, single rows, sums that would be rounded twice, lengths that have no parts."""
    whole = (_product(80, 40000, 80), _product(17, 4096, 17), _product(1, 40000, 17), _product(17, 100003, 17))
    for graph in (*whole, _product(17, 40000, 17, "bf16")):
        assert long_products(graph) is graph


def test_patches_of_pictures():
    x, w = rng.standard_normal((2, 3, 32, 48)), rng.standard_normal((5, 3, 8, 16))
    conv = rlx.jit(lambda x, w: lax.conv_general_dilated(x, w, (8, 16), "VALID"))
    kinds = [row.kind for row in conv.lower(x, w).compile().report.kernels]
    assert "matmul" in kinds and "conv" not in kinds
    wanted = np.einsum("nchawb,ocab->nohw", x.reshape(2, 3, 4, 8, 3, 16), w)
    np.testing.assert_allclose(conv(x, w), wanted, rtol=1e-11, atol=1e-11)
    line, taps = rng.standard_normal((2, 20, 24)), rng.standard_normal((3, 20, 4))
    numbers = ("NCH", "OIH", "NCH")
    found = rlx.jit(lambda x, w: lax.conv_general_dilated(x, w, (4,), "VALID", dimension_numbers=numbers))(line, taps)
    np.testing.assert_allclose(found, np.einsum("nchw,ocw->noh", line.reshape(2, 20, 6, 4), taps), rtol=1e-11)


def test_counts_of_many_integers():
    ids = rng.integers(-3, 1010, 100000).astype("i4")
    counted = np.asarray(rlx.jit(lambda i: rnp.bincount(i, length=1000))(ids))
    np.testing.assert_array_equal(counted, np.bincount(ids[(ids >= 0) & (ids < 1000)], minlength=1000))
    places, amounts = np.clip(ids, 0, 999), rng.integers(0, 9, 100000).astype("i4")
    summed = rlx.jit(lambda i, v: rnp.full(1000, 5, "int32").at[i].add(v))(places, amounts)
    wanted = np.full(1000, 5)
    np.add.at(wanted, places, amounts)
    np.testing.assert_array_equal(summed, wanted)


@pytest.mark.parametrize("dtype", ["i1", "i4", "f8"])
def test_everything_joined(dtype):
    x = (50 * rng.standard_normal((123, 1000))).astype(dtype)
    low, high, total = rlx.jit(lambda x: (x.min(), x.max(), x.astype("float64").sum()))(x)
    assert low == x.min() and high == x.max()
    np.testing.assert_allclose(total, x.astype("f8").sum(), rtol=1e-12)
