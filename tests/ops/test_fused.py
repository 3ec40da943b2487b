"""Fused ops against the chains they stand for, computed with NumPy and SciPy."""

import numpy as np
import pytest
from scipy import special, stats

from rlx import ops
from rlx.errors import OpError

rng = np.random.default_rng(14)


def normal(*dims):
    return rng.standard_normal(dims)


def gelu(x):
    return x * stats.norm.cdf(x)


@pytest.mark.parametrize(("kind", "function"), [(None, np.array), ("gelu", gelu), ("relu", lambda x: np.maximum(x, 0))])
def test_matmul_bias_act(both, kind, function):
    x, w, b = normal(2, 3, 4), normal(4, 5), normal(5)
    got = both(lambda *xs: ops.fused_matmul_bias_act(*xs, kind), x, w, b, dims=[("B", 3, 4), None, None])
    np.testing.assert_allclose(got, function(x @ w + b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("has_bias", [False, True])
def test_residual_norms_also_give_the_sum(both, has_bias):
    x, residual, bias, gamma, beta = normal(3, 4), normal(3, 4), normal(4), normal(4), normal(4)
    total = x + residual + (bias if has_bias else 0.0)
    rest = [bias] if has_bias else []

    def apply(function, eps):
        return both(
            lambda x, r, *others: function(x, r, *(others if has_bias else (None, *others)), eps, True),
            x, residual, *rest, gamma, beta,
        )  # fmt: skip

    y, kept = apply(ops.fused_residual_ln, 0.0)
    np.testing.assert_allclose(y, stats.zscore(total, axis=-1) * gamma + beta, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kept, total, rtol=1e-15)
    y, kept = apply(ops.fused_residual_rms_norm, 0.5)
    rms = np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(y, total / rms * gamma + beta, rtol=1e-12)
    np.testing.assert_allclose(kept, total, rtol=1e-15)


@pytest.mark.parametrize("gate_first", [False, True])
def test_swiglu_honours_the_order_of_its_halves(both, gate_first):
    up, gate = normal(2, 3), normal(2, 3)
    p = np.concatenate([gate, up] if gate_first else [up, gate], axis=-1)
    got = both(lambda p: ops.fused_swiglu(p, gate_first=gate_first), p)
    np.testing.assert_allclose(got, up * gate * special.expit(gate), rtol=1e-12)
    assert ops.fused_swiglu(p.astype(np.float32), "bf16").dtype.name == "bfloat16"


def attention_block(x, qkv_w, out_w, mask, heads, qkv_b=0.0, out_b=0.0):
    q, k, v = (np.split(a, heads, axis=-1) for a in np.split(x @ qkv_w + qkv_b, 3, axis=-1))
    out = []
    for qh, kh, vh in zip(q, k, v):
        scores = qh @ kh.swapaxes(-1, -2) / np.sqrt(qh.shape[-1])
        out.append(special.softmax(np.where(mask[:, None, :] > 0, scores, -np.inf), axis=-1) @ vh)
    return np.concatenate(out, axis=-1) @ out_w + out_b


MASK = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])


@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_block(both, has_bias):
    x, qkv_w, out_w = normal(2, 3, 6), normal(6, 24), normal(8, 6)
    biases = (normal(24), normal(6)) if has_bias else ()
    got = both(
        lambda x, *xs: ops.fused_attention_block(x, *xs[:2], MASK, 2, 4, xs[2:] or None), x, qkv_w, out_w, *biases
    )
    np.testing.assert_allclose(got, attention_block(x, qkv_w, out_w, MASK, 2, *biases), rtol=1e-11, atol=1e-11)


def test_attention_block_with_rope_depends_on_relative_positions_only():
    """Turning all positions by the same angle changes nothing; different angles do."""
    x, qkv_w, out_w = normal(1, 3, 4), normal(4, 12), normal(4, 4)
    mask = np.ones((1, 3))

    def run(angles):
        tables = np.cos(angles), np.sin(angles)
        return ops.fused_attention_block(x, qkv_w, out_w, mask, 1, 4, rope_tables=tables)

    angles = np.arange(3.0)[:, None] * [1.0, 0.1]
    np.testing.assert_allclose(run(angles + 0.7), run(angles), rtol=1e-11)
    assert np.abs(run(2 * angles) - run(angles)).max() > 1e-3
    np.testing.assert_allclose(run(0 * angles), attention_block(x, qkv_w, out_w, mask, 1), rtol=1e-11)


@pytest.mark.parametrize("has_bias", [False, True])
def test_transformer_layer(both, has_bias):
    named = {
        "hidden": normal(2, 3, 6), "qkv_w": normal(6, 24), "qkv_b": normal(24), "out_w": normal(8, 6),
        "out_b": normal(6), "ln1_g": normal(6), "ln1_b": normal(6), "fc1_w": normal(6, 5), "fc1_b": normal(5),
        "fc2_w": normal(5, 6), "fc2_b": normal(6), "ln2_g": normal(6), "ln2_b": normal(6), "mask": MASK,
    }  # fmt: skip
    if not has_bias:
        for name in ("qkv_b", "out_b", "fc1_b", "fc2_b"):
            del named[name]
    got = both(lambda *xs: ops.fused_transformer_layer(xs, 2, 4, 5, 0.0, 0.0), *named.values())
    n = {"qkv_b": 0.0, "out_b": 0.0, "fc1_b": 0.0, "fc2_b": 0.0, **named}
    x = n["hidden"]
    attended = attention_block(x, n["qkv_w"], n["out_w"], MASK, 2, n["qkv_b"], n["out_b"]) + x
    h = stats.zscore(attended, axis=-1) * n["ln1_g"] + n["ln1_b"]
    out = gelu(h @ n["fc1_w"] + n["fc1_b"]) @ n["fc2_w"] + n["fc2_b"] + h
    np.testing.assert_allclose(got, stats.zscore(out, axis=-1) * n["ln2_g"] + n["ln2_b"], rtol=1e-9, atol=1e-9)


def test_errors_teach():
    x, w, four = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), np.ones(4, np.float32)
    with pytest.raises(OpError, match=r"the bias must be \[5\], got f32\[4\]"):
        ops.fused_matmul_bias_act(x, w, four)
    with pytest.raises(OpError, match="with has_bias=True the operands are x, residual, bias, gamma, beta; got 4"):
        ops.FusedResidualLN(True)(x, x, four, four)
    with pytest.raises(OpError, match="the residual must have the type of x"):
        ops.fused_residual_rms_norm(x, x[:2], None, four, four)
    with pytest.raises(OpError, match=r"two halves of one size, got f32\[3,5\]"):
        ops.fused_swiglu(np.ones((3, 5), np.float32))
    hidden, mask = np.ones((1, 3, 6), np.float32), np.ones((1, 3), np.float32)
    with pytest.raises(OpError, match=r"qkv_w must be \[6, 24\], got f32\[6,12\]"):
        ops.fused_attention_block(hidden, np.ones((6, 12), np.float32), np.ones((8, 6), np.float32), mask, 2, 4)
    with pytest.raises(OpError, match="the operands are hidden, qkv_w, out_w, mask; got 3"):
        ops.FusedAttentionBlock(2, 4)(hidden, hidden, mask)
    with pytest.raises(OpError, match="the operands are hidden, qkv_w, out_w, ln1_g, ln1_b, fc1_w, fc2_w, ln2_g"):
        ops.FusedTransformerLayer(2, 4, 5, has_bias=False)(hidden, mask)
