"""NVFP4: 4-bit floats (E2M1) in groups of 16 along K, each group with an FP8 (E4M3) scale.

    weight[p, j] = fp4(nibble[p·n + j]) · fp8(scale[p // 16, j]) · global_scale

Two codes share a byte: the element with the even flat index is the low nibble.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt

NVFP4_GROUP_SIZE = 16

# Sign, two exponent bits (bias 1), one mantissa bit; the index is the nibble.
FP4_E2M1_LUT: npt.NDArray[np.float32] = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32
)
FP4_E2M1_LUT.flags.writeable = False


def fp4_e2m1_to_f32(nibble: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The value of 4-bit codes; bits above the fourth are ignored.

    >>> fp4_e2m1_to_f32([0, 1, 7, 15]).tolist()
    [0.0, 0.5, 6.0, -6.0]
    """
    return np.asarray(FP4_E2M1_LUT[np.asarray(nibble) & 15])


def fp8_e4m3_scale_to_f32(code: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The value of FP8 E4M3 bytes used as scales. NaN codes mean 0, so that a damaged scale cannot poison a row.

    >>> fp8_e4m3_scale_to_f32([0x38, 0x7E, 0x7F]).tolist()
    [1.0, 448.0, 0.0]
    """
    values = np.asarray(code, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.asarray(np.where(np.isnan(values), np.float32(0), values))


def nvfp4_weight_bytes(k: int, n: int) -> int:
    """Bytes of the packed codes of a [k, n] matrix."""
    return -(-k * n // 2)


def nvfp4_scale_bytes(k: int, n: int) -> int:
    """Bytes of the scales of a [k, n] matrix: one per column and group of 16 rows."""
    return -(-k // NVFP4_GROUP_SIZE) * n
