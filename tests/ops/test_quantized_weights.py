"""Products with quantised weights against matrices that are written out by hand from the format definitions."""

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.quant.schemes import QuantScheme, quantize_blocks

rng = np.random.default_rng(5)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def q8_0(values):
    """GGUF Q8_0 bytes, and the numbers they stand for: blocks of 32 with an f16 step."""
    blocks = values.reshape(-1, 32)
    step = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.rint(blocks / step.astype(np.float32)).astype(np.int8)
    data = np.concatenate([step.view(np.uint8), codes.view(np.uint8)], axis=1)
    return data.ravel(), (codes * step.astype(np.float32)).reshape(values.shape)


def test_gguf_weights_are_rows_of_k(both):
    packed, stored = q8_0(floats(3, 64))
    x = floats(2, 5, 64)
    result = both(lambda x, w: ops.dequant_matmul(x, w, scheme="gguf_q8_0"), x, packed)
    np.testing.assert_allclose(result, x @ stored.T, rtol=1e-5, atol=1e-5)
    assert np.asarray(result).dtype == np.float32


def test_result_has_the_dtype_of_x():
    packed, stored = q8_0(floats(3, 32))
    x = floats(4, 32).astype(np.float16)
    result = np.asarray(ops.dequant_matmul(x, packed, scheme="gguf_q8_0"))
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, (x.astype(np.float64) @ stored.T.astype(np.float64)).astype(np.float16))


def test_int8_blocks_share_scales_along_k(both):
    k, n, block = 10, 3, 4
    codes, scale, zero = rng.integers(-128, 128, (k, n), dtype=np.int8), floats(3, n), floats(3, n)
    x = floats(2, k)
    expected = np.zeros((2, n))
    for p in range(k):
        for j in range(n):
            expected[:, j] += x[:, p] * (float(codes[p, j]) - zero[p // block, j]) * scale[p // block, j]
    result = both(lambda *a: ops.dequant_matmul(*a, scheme=QuantScheme.int8_block_asym(block)), x, codes, scale, zero)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
    plain = both(lambda *a: ops.dequant_matmul(*a, scheme="int8/4"), x, codes, scale)
    np.testing.assert_allclose(plain, x @ (codes * np.repeat(scale, 4, axis=0)[:k]), rtol=1e-4, atol=1e-3)


def test_int4_nibbles_are_low_first(both):
    k, n = 3, 5
    nibbles = rng.integers(0, 16, (k, n))
    flat = np.append(nibbles.ravel(), 0)
    packed = (flat[0::2] | flat[1::2] << 4).astype(np.uint8)
    scale, x = floats(1, n), floats(2, k)
    result = both(lambda *a: ops.dequant_matmul(*a, scheme="int4/8"), x, packed, scale)
    np.testing.assert_allclose(result, x @ (nibbles * scale), rtol=1e-5, atol=1e-5)
    centred = both(lambda *a: ops.dequant_matmul(*a, scheme="int4/8"), x, packed, scale, np.full((1, n), 8, np.float32))
    np.testing.assert_allclose(centred, x @ ((nibbles - 8.0) * scale), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("scheme", "dtype"), [("fp8e4m3", ml_dtypes.float8_e4m3fn), ("fp8e5m2", ml_dtypes.float8_e5m2)]
)
def test_fp8(both, scheme, dtype):
    weights, x, scale = floats(6, 4).astype(dtype), floats(2, 6), floats(4)
    packed, real = weights.view(np.uint8), weights.astype(np.float32)
    np.testing.assert_allclose(
        both(lambda *a: ops.dequant_matmul(*a, scheme=scheme), x, packed), x @ real, rtol=1e-5, atol=1e-5
    )
    scaled = both(lambda *a: ops.dequant_matmul(*a, scheme=scheme), x, packed, scale)
    np.testing.assert_allclose(scaled, x @ (real * scale), rtol=1e-5, atol=1e-5)


def test_nvfp4_against_ml_dtypes(both):
    k, n = 20, 4
    nibbles = rng.integers(0, 16, k * n).astype(np.uint8)
    packed = (nibbles[0::2] | nibbles[1::2] << 4).astype(np.uint8)
    steps = rng.uniform(0.5, 4, (2, n)).astype(ml_dtypes.float8_e4m3fn)
    total, x = np.array([0.25], np.float32), floats(3, k)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32).reshape(k, n)
    real = values * steps.astype(np.float32)[np.arange(k) // 16] * total
    result = both(lambda *a: ops.dequant_matmul(*a, scheme="nvfp4/16"), x, packed, steps.view(np.uint8), total)
    np.testing.assert_allclose(result, x @ real, rtol=1e-5, atol=1e-5)


def test_experts_are_chosen_per_row(both):
    stored = floats(3, 4, 32)
    packed = quantize_blocks("gguf_q8_0", stored.ravel())
    real = np.asarray(ops.dequant_moe_weights(packed, scheme="gguf_q8_0", experts=3, k=32, n=4))
    np.testing.assert_allclose(real, stored.transpose(0, 2, 1), atol=0.02)
    x, ids = floats(5, 32), np.array([2, 0, 2, 1, 1], np.int32)
    result = np.asarray(both(lambda *a: ops.dequant_grouped_matmul(*a, scheme="gguf_q8_0", n=4), x, packed, ids))
    for i, expert in enumerate(ids):
        np.testing.assert_allclose(result[i], x[i] @ real[expert], rtol=1e-5, atol=1e-5)


U8 = np.zeros(34, np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.dequant_matmul(floats(2, 31), U8, scheme="gguf_q8_0"), "do not divide k=31"),
        (lambda: ops.dequant_matmul(floats(2, 32), U8, scheme="gguf_q8_0", n=2), "has 68 bytes"),
        (lambda: ops.dequant_matmul(floats(2, 32), U8, floats(1), scheme="gguf_q8_0"), "inside the blocks"),
        (lambda: ops.dequant_matmul(floats(2, 32), floats(34), scheme="gguf_q8_0"), "one-byte elements"),
        (lambda: ops.dequant_matmul(floats(2, 4), U8[:8], scheme="int4/4"), "give n"),
        (lambda: ops.dequant_matmul(floats(2, 4), U8[:8], scheme="int4/4", n=4), "needs an operand with 4 scales"),
        (lambda: ops.dequant_matmul(floats(2, 4), U8[:8], floats(3), scheme="int4/4", n=4), "needs 4 scales"),
        (lambda: ops.dequant_matmul(floats(2, 32).astype(np.int32), U8, scheme="gguf_q8_0"), "float"),
        (lambda: ops.dequant_matmul(floats(2, 32), U8, scheme="gguf_q9"), "unknown quant scheme"),
        (lambda: ops.dequant_moe_weights(U8, scheme="gguf_q8_0", experts=2, k=32, n=1), "have 68 bytes"),
        (lambda: ops.dequant_moe_weights(U8, scheme="int8/4", experts=2, k=32, n=1), "needs a GGUF scheme"),
        (lambda: ops.dequant_grouped_matmul(floats(2, 32), U8, np.zeros(2), scheme="gguf_q8_0", n=3), "check n and k"),
        (lambda: ops.dequant_grouped_matmul(floats(2, 32), U8, np.zeros(3), scheme="gguf_q8_0", n=1), "one expert"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()
