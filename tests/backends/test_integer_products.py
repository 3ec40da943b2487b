"""Products of integer codes natively: equal to the last bit to sums in 64 bits and one rounding; and weights that come
as operands of a run."""

from __future__ import annotations

import numpy as np
import pytest
from op_kernel_checks import Program

from rlx import ops
from rlx.ops.quant.quantized import QConv2d, QMatMul
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(41)


def codes(dtype: str, *dims: int) -> np.ndarray:
    limits = np.iinfo({"i8": np.int8, "u8": np.uint8}[dtype])
    return rng.integers(limits.min, limits.max + 1, dims).astype(limits.dtype)


def rounded(total: np.ndarray, mult: float, zero: int, dtype: str) -> np.ndarray:
    """Ties away from zero, in f32."""
    scaled = total.astype(np.int32).astype(np.float32) * np.float32(mult)
    whole = np.trunc(scaled)
    whole = whole + np.sign(scaled) * (np.abs(scaled - whole) >= 0.5)
    limits = np.iinfo({"i8": np.int8, "u8": np.uint8}[dtype])
    return np.clip(whole + zero, limits.min, limits.max).astype(limits.dtype)


@pytest.mark.parametrize("types", [("i8", "i8", "i8"), ("u8", "i8", "u8"), ("i8", "u8", "i8"), ("u8", "u8", "u8")])
def test_q_matmul(types):
    left, right, result = types
    # 0.5 makes ties; the others keep results inside of the range.
    for (k, n), mult in (((1, 1), 0.5), ((7, 5), 0.5), ((33, 17), 1e-3), ((600, 70), 2e-4)):
        op = QMatMul(-3, 11, 5, mult, result)
        run = Program(lambda x, w, b, op=op: op(x, w, b), (("M", k), left), ((k, n), right), ((n,), "i32"))
        for m in (0, 1, 6, 50):
            x, w, b = codes(left, m, k), codes(right, k, n), rng.integers(-900, 900, n).astype(np.int32)
            total = (x.astype(np.int64) + 3) @ (w.astype(np.int64) - 11) + b
            assert run(x, w, b)[0].tobytes() == rounded(total, mult, 5, result).tobytes()


def test_q_matmul_of_many_matrices():
    op = QMatMul(2, 0, 0, 1e-3)
    run = Program(lambda x, w: op(x, w), ((3, 1, 4, 20), "i8"), ((5, 20, 6), "i8"))
    x, w = codes("i8", 3, 1, 4, 20), codes("i8", 5, 20, 6)
    assert run(x, w)[0].tobytes() == rounded((x.astype(np.int64) - 2) @ w, 1e-3, 0, "i8").tobytes()


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_q_conv2d(dtype):
    op = QConv2d((3, 2), (2, 1), (1, 1), (1, 1), 2, x_zp=4, w_zp=-2, out_zp=3, mult=1e-3)
    x, w, b = codes(dtype, 2, 6, 9, 7), codes("i8", 8, 3, 3, 2), rng.integers(-900, 900, 8).astype(np.int32)
    run = Program(lambda x, w, b: op(x, w, b), (x.shape, dtype), (w.shape, "i8"), ((8,), "i32"))
    centred = np.pad(x.astype(np.int64) - 4, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 2), (2, 3))[:, :, ::2]
    groups = windows.reshape(2, 2, 3, *windows.shape[2:])
    weights = (w.astype(np.int64) + 2).reshape(2, 4, 3, 3, 2)
    total = np.einsum("bgchwij,gocij->bgohw", groups, weights).reshape(2, 8, *windows.shape[2:4])
    assert run(x, w, b)[0].tobytes() == rounded(total + b[:, None, None], 1e-3, 3, "i8").tobytes()


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_weights_of_a_run_are_laid_out_in_it(name):
    scheme, k, n = QuantScheme.of_ggml(name), 256, 19
    block = FORMATS[name]
    w = rng.integers(0, 256, (n, k // block.elements * block.bytes)).astype(np.uint8) & 0xBB
    weights = block.decode(w.reshape(-1, block.bytes)).reshape(n, k).astype(np.float64)
    x, ids = rng.normal(size=(3, k)).astype(np.float32), np.array([[18, 0], [-1, 7]], np.int32)
    multiply = Program(lambda x, w: ops.dequant_matmul(x, w, scheme=scheme), (("M", k), "f32"), (w.shape, "u8"))
    reach = np.abs(x).astype(np.float64) @ (np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)).T
    assert (np.abs(multiply(x, w)[0] - x.astype(np.float64) @ weights.T) <= 2.0**-20 * reach).all()
    look_up = Program(lambda w, i: ops.dequant_gather(w, i, scheme=scheme, k=k), (w.shape, "u8"), ((2, 2), "i32"))
    np.testing.assert_array_equal(look_up(w, ids)[0], weights.astype(np.float32)[ids])
    decode = Program(lambda w: ops.dequant_moe_weights(w, scheme=scheme, experts=1, k=k, n=n), (w.shape, "u8"))
    np.testing.assert_array_equal(decode(w)[0], weights.T[None].astype(np.float32))


K, N, BLOCK = 40, 21, 16
GROUPS = -(-K // BLOCK)
# Each scheme with the types of the operands behind the codes.
BESIDE = {
    "int8": (QuantScheme.int8_block(BLOCK), [((GROUPS, N), "f32")]),
    "int8 with zero points": (QuantScheme.int8_block_asym(BLOCK), [((GROUPS, N), "f32")] * 2),
    "int4": (QuantScheme.int4_block(BLOCK), [((GROUPS, N), "f32")] * 2),
    "fp8 e4m3": (QuantScheme.Fp8E4m3, []),
    "fp8 e5m2": (QuantScheme.Fp8E5m2, [((N,), "f32")]),
    "nvfp4": (QuantScheme.Nvfp4Block, [((GROUPS, N), "u8"), ((1,), "f32")]),
}


@pytest.mark.parametrize("name", BESIDE)
def test_scales_beside_the_codes(name):
    scheme, sides = BESIDE[name]
    types = [((5, K), "f32"), ((scheme.packed_bytes(K, N),), "u8"), *sides]
    # No byte of the mask is an infinity or no number, in either type of 8 bits.
    values = {"f32": lambda d: rng.normal(size=d).astype(np.float32), "u8": lambda d: codes("u8", *d) & 0xBB}
    operands = [values[dtype](dims) for dims, dtype in types]
    run = Program(lambda *a: ops.dequant_matmul(*a, scheme=scheme, n=N), *types)
    wanted = np.asarray(ops.dequant_matmul(*operands, scheme=scheme, n=N))
    np.testing.assert_allclose(run(*operands)[0], wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
