"""Attention whose k and v have another type than q, or are codes with scales: meaning, types, derivatives, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.autodiff.derive import no_rule
from rlx.errors import OpError
from rlx.ir.graph import Graph
from rlx.ops.lowered.attention_parts import AttentionJoin, AttentionParts, part_length

rng = np.random.default_rng(23)
B, H, HKV, S, T, D = 2, 4, 2, 3, 7, 8


def normal(*dims, dtype=np.float64):
    return rng.normal(size=dims).astype(dtype)


def codes(*dims):
    return rng.integers(-127, 128, dims).astype(np.int8)


def scales():
    return rng.uniform(0.005, 0.02, (B, HKV, T))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_keys_of_another_type_are_the_numbers_that_they_hold(both, dtype):
    q, k, v = normal(B, H, S, D), normal(B, HKV, T, D, dtype=dtype), normal(B, HKV, T, D, dtype=dtype)
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd", mask_kind="causal"), q, k, v)
    assert got.dtype == np.float64
    wide = ops.attention(q, k.astype("f8"), v.astype("f8"), layout="bhsd", mask_kind="causal")
    np.testing.assert_allclose(got, wide, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "bsm"])
def test_codes_are_multiplied_by_the_scale_of_their_row(both, layout):
    q, k, v = normal(B, H, S, D), codes(B, HKV, T, D), codes(B, HKV, T, 5)
    k_scale, v_scale = scales(), scales()

    def laid_out(x):
        x = x if layout == "bhsd" else x.swapaxes(1, 2)
        return x.reshape(*x.shape[:2], -1) if layout == "bsm" else x

    options = {"layout": layout, "num_heads": H, "head_dim": D, "num_kv_heads": HKV, "mask_kind": "causal"}
    got = both(
        lambda q, k, v, a, b: ops.attention(q, k, v, k_scale=a, v_scale=b, **options),
        *map(laid_out, (q, k, v)),
        k_scale,
        v_scale,
    )
    wide = [laid_out(x) for x in (q, k * k_scale[..., None], v * v_scale[..., None])]
    np.testing.assert_allclose(got, ops.attention(*wide, **options), rtol=1e-12, atol=1e-13)


def test_scales_behind_a_cache_are_never_seen(both):
    q, k, v, k_scale, v_scale = normal(B, H, S, D), codes(B, HKV, T, D), codes(B, HKV, T, D), scales(), scales()
    lengths = np.array([4, 0], np.int32)

    def attend(q, k, v, a, b, n):
        return ops.attention(q, k, v, layout="bhsd", kv_len=n, k_scale=a, v_scale=b)

    clean = both(attend, q, k, v, k_scale, v_scale, lengths)
    k_scale[0, :, 4:], v_scale[0, :, 4:], k_scale[1] = np.nan, np.inf, np.nan
    np.testing.assert_array_equal(both(attend, q, k, v, k_scale, v_scale, lengths), clean)
    assert not clean[1].any()


def test_nothing_is_converted_on_the_way_to_the_op():
    graph = Graph("stored")
    q = graph.input("q", ("B", H, "S", D))
    k, v = (graph.input(n, ("B", HKV, "T", D), "f16") for n in "kv")
    graph.set_outputs([ops.attention(q, k, v, layout="bhsd")])
    assert "cast" not in str(graph)
    assert rlx.parse(str(graph)) == graph


def test_the_wider_type_of_all_is_that_of_the_result():
    q, k = normal(B, H, S, D, dtype=np.float16), normal(B, HKV, T, D, dtype=np.float32)
    assert ops.attention(q, k, k, layout="bhsd").dtype == np.float32
    assert ops.Attention(H, D, num_kv_heads=HKV)(q, k, k).dtype == np.float16


def test_text_holds_the_scales():
    graph = Graph("coded")
    q = graph.input("q", (B, H, S, D))
    k, v = (graph.input(n, (B, HKV, T, D), "i8") for n in "kv")
    k_scale, v_scale = (graph.input(n, (B, HKV, T)) for n in ("ks", "vs"))
    graph.set_outputs([ops.attention(q, k, v, layout="bhsd", k_scale=k_scale, v_scale=v_scale)])
    assert "attention(%q, %k, %v, %ks, %vs)" in str(graph) and "has_scales=true" in str(graph).lower()
    assert rlx.parse(str(graph)) == graph


def test_gradients_have_the_types_of_their_operands():
    q, k, v = normal(B, H, S, D, dtype=np.float32), *(normal(B, HKV, T, D, dtype=np.float16) for _ in "kv")

    def loss(q, k, v):
        return rlx.numpy.sum(ops.attention(q, k, v, layout="bhsd", mask_kind="causal") ** 2)

    found = rlx.grad(loss, argnums=(0, 1, 2))(q, k, v)
    assert [np.asarray(g).dtype for g in found] == [np.float32, np.float16, np.float16]
    wide = rlx.grad(loss, argnums=(0, 1, 2))(*(x.astype("f8") for x in (q, k, v)))
    for g, w, limit in zip(found, wide, (1e-5, 1e-3, 1e-3)):
        np.testing.assert_allclose(np.asarray(g, "f8"), w, rtol=0, atol=limit * np.abs(w).max())


def test_scales_have_the_gradient_of_a_product():
    q, k, v, k_scale, v_scale = normal(B, H, S, D), codes(B, HKV, T, D), codes(B, HKV, T, D), scales(), scales()

    def coded(q, a, b):
        return rlx.numpy.sum(rlx.numpy.sin(ops.attention(q, k, v, layout="bhsd", k_scale=a, v_scale=b)))

    def multiplied(q, a, b):
        wide = [rlx.numpy.asarray(x.astype("f8")) * a_or_b[..., None] for x, a_or_b in ((k, a), (v, b))]
        return rlx.numpy.sum(rlx.numpy.sin(ops.attention(q, *wide, layout="bhsd")))

    got, expected = (rlx.grad(f, argnums=(0, 1, 2))(q, k_scale, v_scale) for f in (coded, multiplied))
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e, rtol=1e-10, atol=1e-12)
    tangents = tuple(normal(*x.shape) for x in (q, k_scale, v_scale))
    _, slope = rlx.jvp(coded, (q, k_scale, v_scale), tangents)
    np.testing.assert_allclose(slope, sum((t * g).sum() for t, g in zip(tangents, map(np.asarray, got))), rtol=1e-9)


def test_examples_with_their_own_scales():
    q, k, v = normal(B, H, S, D), codes(B, HKV, T, D), codes(B, HKV, T, D)
    k_scales, v_scale = np.stack([scales() for _ in range(3)]), scales()

    def attend(a):
        return ops.attention(q, k, v, layout="bhsd", k_scale=a, v_scale=v_scale)

    found = rlx.vmap(attend)(k_scales)
    np.testing.assert_allclose(found, np.stack([attend(a) for a in k_scales]), rtol=1e-12)


def test_parts_join_to_the_whole():
    """The two steps of a compiler, by their definitions, with a last part that is empty."""
    q, k, v = normal(1, H, 2, D), normal(1, HKV, 300, D), normal(1, HKV, 300, D)
    shared = {"num_heads": H, "head_dim": D, "num_kv_heads": HKV, "mask_kind": "causal", "has_kv_len": True}
    lengths = np.array([250], np.int32)
    out, sums, statistics = AttentionParts(**shared, parts=4)(q, k, v, lengths)
    assert not out.any() and sums.shape == (HKV * 4, 2 * (H // HKV), D) and np.isneginf(statistics[3, :, 0]).all()
    joined = AttentionJoin(H, HKV, "bhsd", 4)(out, sums, statistics)
    np.testing.assert_allclose(joined, ops.Attention(**shared)(q, k, v, lengths), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("parts", [1, 2, 7, 32])
def test_parts_are_whole_steps_that_hold_all_keys(parts):
    for keys in range(0, 6000, 37):
        length = part_length(keys, parts)
        assert length % 64 == 0 and length >= 128 and length * parts >= keys


def test_what_compilers_make_has_no_rules():
    op = AttentionParts(2, 8, parts=2)
    assert all("use attention" in no_rule(op, rule).reason for rule in ("jvp", "vjp", "batch"))


def test_errors_teach():
    q, k, scale = np.ones((B, H, S, D), "f4"), np.ones((B, HKV, T, D), "i1"), np.ones((B, HKV, T), "f4")
    with pytest.raises(OpError, match="codes need both k_scale and v_scale, got one"):
        ops.attention(q, k, k, layout="bhsd", k_scale=scale)
    with pytest.raises(OpError, match=r"with scales i8 codes as operands, got f32"):
        ops.attention(q, k.astype("f4"), k.astype("f4"), layout="bhsd", k_scale=scale, v_scale=scale)
    with pytest.raises(OpError, match=r"k_scale must be \[2, 2, 7\], got f32\[2,7,2\]"):
        ops.attention(q, k, k, layout="bhsd", k_scale=scale.swapaxes(1, 2), v_scale=scale)
    with pytest.raises(OpError, match=r"needs f32 or f64 v_scale operands, got f16"):
        ops.attention(q, k, k, layout="bhsd", k_scale=scale, v_scale=scale.astype("f2"))
    with pytest.raises(OpError, match="one dtype for all"):
        ops.Attention(H, D, num_kv_heads=HKV)(q, k.astype("f4"), k.astype("f2"))
