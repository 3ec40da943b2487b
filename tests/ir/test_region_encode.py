"""Elementwise regions as numbers for kernels of devices: codes, limits, slices of a batch."""

import numpy as np
import pytest

from rlx.compile.claims.region_encode import (
    FK_BATCH_SINGLE_KERNEL_MAX,
    REGION_META_WORDS,
    REGION_PROLOGUE_NONE,
    REGION_PROLOGUE_RESIZE_NEAREST_2X_NCHW,
    PrologueLaunchGrid,
    RegionNchwDims,
    batch_region_slice_dst_off_f32,
    batch_region_slice_elems,
    batch_region_slice_shape,
    encode_chain_operand,
    encode_chain_steps,
    encode_elementwise_region_meta,
    encode_prologue_tail,
    fk_batch_single_kernel_enabled,
    fk_batch_use_single_launch,
)
from rlx.errors import OpError, ShapeError
from rlx.ir.shape import Shape
from rlx.knobs import knobs

X, Y, S0, S1 = ("input", 0), ("input", 1), ("step", 0), ("step", 1)
STEP = 0x80000000
ACTIVATION_CODES = {
    "gelu": 0, "gelu_approx": 1, "silu": 2, "relu": 3, "sigmoid": 4, "tanh": 5, "exp": 6, "log": 7, "sqrt": 8,
    "rsqrt": 9, "neg": 10, "abs": 11, "round": 12, "sin": 13, "cos": 14, "tan": 15, "atan": 16, "recip": 17,
}  # fmt: skip
BINARY_CODES = {"add": 0, "sub": 1, "mul": 2, "div": 3, "max": 4, "min": 5, "pow": 6}
COMPARE_CODES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}


def test_operands():
    assert encode_chain_operand(("input", 15)) == 15
    assert encode_chain_operand(("step", 31)) == STEP | 31
    for bad in [("input", 16), ("step", 32), ("input", -1), ("const", 0)]:
        with pytest.raises(OpError, match="an operand is"):
            encode_chain_operand(bad)


@pytest.mark.parametrize(("kind", "code"), ACTIVATION_CODES.items())
def test_activation_codes(kind, code):
    assert encode_chain_steps([("activation", kind, Y)])[:4].tolist() == [0, code, 1, 0]


@pytest.mark.parametrize(
    ("step", "number", "kind", "code"),
    [("binary", 2, *item) for item in BINARY_CODES.items()] + [("compare", 3, *item) for item in COMPARE_CODES.items()],
)
def test_two_operand_codes(step, number, kind, code):
    assert encode_chain_steps([(step, kind, X, Y)])[:4].tolist() == [number, code, 0, 1]


def test_chain():
    chain = [("compare", "lt", X, Y), ("cast", "f16", S0), ("where", S0, X, S1)]
    words = encode_chain_steps(chain)
    assert words.dtype == np.uint32 and words.shape == (128,)
    assert words[:12].tolist() == [3, 2, 0, 1, 1, 0, STEP, 0, 4, STEP, 0, STEP | 1]
    assert not words[12:].any()


def test_chain_limits():
    full = [("activation", "relu", X)] * 32
    assert encode_chain_steps(full)[-4:].tolist() == [0, 3, 0, 0]
    with pytest.raises(OpError, match="at most 32 steps fit, got 33"):
        encode_chain_steps([*full, full[0]])
    with pytest.raises(OpError, match="'erf' has no device code"):
        encode_chain_steps([("activation", "erf", X)])
    with pytest.raises(OpError, match="is not a step"):
        encode_chain_steps([("binary", "add", X)])


def test_prologue_tail():
    shape = Shape((2, 3, 8, 10))
    assert encode_prologue_tail("none", shape).tolist() == [REGION_PROLOGUE_NONE, 0, 0, 0, 0, 0]
    assert encode_prologue_tail("resize_nearest_2x", shape, 2).tolist() == [1, 2, 3, 8, 10, 2]
    assert encode_prologue_tail("resize_nearest_2x", shape, 99)[5] == 15
    assert REGION_PROLOGUE_RESIZE_NEAREST_2X_NCHW == 1
    with pytest.raises(ShapeError, match=r"\[N, C, H, W\], got f32\[4\]"):
        encode_prologue_tail("resize_nearest_2x", Shape((4,)))
    with pytest.raises(OpError, match="the prologue must be one of"):
        encode_prologue_tail("pad", shape)


def test_whole_buffer():
    shape = Shape((1, 2, 4, 4))
    meta = encode_elementwise_region_meta([7, 100], [("binary", "mul", X, Y)], "resize_nearest_2x", shape, 1)
    assert meta.dtype == np.uint32 and len(meta) == REGION_META_WORDS == 150
    assert meta[:16].tolist() == [7, 100] + [0] * 14
    assert meta[16:20].tolist() == [2, 2, 0, 1]
    assert meta[144:].tolist() == [1, 1, 2, 4, 4, 1]
    with pytest.raises(OpError, match="at most 16 inputs fit, got 17"):
        encode_elementwise_region_meta([0] * 17, [], "none", shape)


def test_grid_and_slices():
    assert PrologueLaunchGrid.of(RegionNchwDims(2, 3, 8, 10)) == (10, 8, 6)
    shape = Shape((4, 3, 5), "f16")
    assert batch_region_slice_shape(shape) == Shape((1, 3, 5), "f16")
    assert batch_region_slice_elems(shape, 4) == 15
    assert [batch_region_slice_dst_off_f32(100, 15, i) for i in range(3)] == [100, 115, 130]
    with pytest.raises(ShapeError, match="7 equal slices"):
        batch_region_slice_elems(shape, 7)


def test_single_launch():
    assert FK_BATCH_SINGLE_KERNEL_MAX == 64
    with knobs(fk_batch_single_kernel=False):
        assert not fk_batch_single_kernel_enabled() and not fk_batch_use_single_launch(2)
    with knobs(fk_batch_single_kernel=True):
        assert fk_batch_single_kernel_enabled()
        assert [fk_batch_use_single_launch(n) for n in (1, 64, 65)] == [True, True, False]
        assert not fk_batch_use_single_launch(2, "resize_nearest_2x")
