"""FP4 and FP8 codes against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

from rlx.quant.nvfp4 import (
    FP4_E2M1_LUT,
    NVFP4_GROUP_SIZE,
    fp4_e2m1_to_f32,
    fp8_e4m3_scale_to_f32,
    nvfp4_scale_bytes,
    nvfp4_weight_bytes,
)


def test_fp4_table():
    wanted = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(FP4_E2M1_LUT.view(np.uint32), wanted.view(np.uint32))  # -0 too
    assert np.array_equal(fp4_e2m1_to_f32(np.arange(16)), wanted)
    assert fp4_e2m1_to_f32(0xF3) == 1.5
    with pytest.raises(ValueError, match="read-only"):
        FP4_E2M1_LUT[0] = 1


def test_fp8_scale_is_e4m3_with_nan_as_zero():
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    got = fp8_e4m3_scale_to_f32(codes)
    assert got[0x7F] == got[0xFF] == 0
    finite = ~np.isnan(wanted)
    assert finite.sum() == 254
    assert np.array_equal(got[finite], wanted[finite])


@pytest.mark.parametrize(("k", "n", "weights", "scales"), [(16, 4, 32, 4), (17, 3, 26, 6), (1, 1, 1, 1), (0, 5, 0, 0)])
def test_sizes(k, n, weights, scales):
    assert (nvfp4_weight_bytes(k, n), nvfp4_scale_bytes(k, n)) == (weights, scales)
    assert NVFP4_GROUP_SIZE == 16
