"""How each GGUF type is taken apart into the codes, steps and minimums of its panels.

Panels are as large as the blocks of the file for Q4_0 ... Q8_1, Q6_K and IQ4_NL, at most a fifth larger for the other
K types, IQ4_XS and MXFP4. The codebook types (IQ1, IQ2, IQ3) take at most 16 values before scaling, so their panels
hold numbers of 4 bits in place of codebook entries: 5 to 6 bits an element where the file has 1.6 to 3.4. TQ1_0 and
TQ2_0 take 2.5 bits where the file has 1.7 and 2.1, Q1_0 2.5 for 1.1, NVFP4 5 for 4.5.
"""

from __future__ import annotations

import numpy as np

from rlx.quant import codebooks
from rlx.quant.block_fields import F32, U8, bit_pairs, bit_rows, bits, nibbles
from rlx.quant.decode import FP4_VALUES, IQ4_VALUES, nvfp4_steps, six_bit_pairs, ternary_digits
from rlx.quant.panels import Fields, PanelFormat


def _halves(blocks: U8, *places: int) -> U8:
    return np.stack([blocks[:, at : at + 2] for at in places], axis=1)


def _split_q4_0(blocks: U8) -> Fields:
    return Fields(nibbles(blocks[:, 2:18]), _halves(blocks, 0))


def _split_q4_1(blocks: U8) -> Fields:
    return Fields(nibbles(blocks[:, 4:20]), _halves(blocks, 0), _halves(blocks, 2))


def _split_q5_0(blocks: U8) -> Fields:
    return Fields(nibbles(blocks[:, 6:22]) | (bits(blocks[:, 2:6]) << np.uint8(4)), _halves(blocks, 0))


def _split_q5_1(blocks: U8) -> Fields:
    codes = nibbles(blocks[:, 8:24]) | (bits(blocks[:, 4:8]) << np.uint8(4))
    return Fields(codes, _halves(blocks, 0), _halves(blocks, 2))


def _split_q8_0(blocks: U8) -> Fields:
    return Fields(blocks[:, 2:34], _halves(blocks, 0))


def _split_q8_1(blocks: U8) -> Fields:
    return Fields(blocks[:, 4:36], _halves(blocks, 0))


def _split_q4_k(blocks: U8) -> Fields:
    scales, minimums = six_bit_pairs(blocks[:, 4:16])
    codes = nibbles(blocks[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 256)
    return Fields(codes, scales[:, :, None], minimums[:, :, None], _halves(blocks, 0, 2))


def _split_q5_k(blocks: U8) -> Fields:
    scales, minimums = six_bit_pairs(blocks[:, 4:16])
    codes = nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32) | bit_rows(blocks[:, 16:48]) << np.uint8(4)
    return Fields(codes.reshape(-1, 256), scales[:, :, None], minimums[:, :, None], _halves(blocks, 0, 2))


def _split_q6_k(blocks: U8) -> Fields:
    low = nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    codes = low | (bit_pairs(blocks[:, 128:192].reshape(-1, 2, 32)) << np.uint8(4))
    return Fields(codes.reshape(-1, 256), blocks[:, 192:208, None], None, _halves(blocks, 208))


def _split_q2_k(blocks: U8) -> Fields:
    pairs = blocks[:, 0:16, None]
    codes = bit_pairs(blocks[:, 16:80].reshape(-1, 2, 32)).reshape(-1, 256)
    return Fields(codes, pairs & np.uint8(15), pairs >> np.uint8(4), _halves(blocks, 80, 82))


def _split_q3_k(blocks: U8) -> Fields:
    scales = nibbles(blocks[:, 96:104]) | (bit_pairs(blocks[:, 104:108]).reshape(-1, 16) << np.uint8(4))
    low = bit_pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    codes = (low | (bit_rows(blocks[:, 0:32]) << np.uint8(2))).reshape(-1, 256)
    return Fields(codes, (scales - np.uint8(32))[:, :, None], None, _halves(blocks, 108))


def _split_iq4_xs(blocks: U8) -> Fields:
    tops = bit_pairs(blocks[:, 2:4]).swapaxes(1, 2).reshape(-1, 8)
    lows = nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    codes = nibbles(blocks[:, 8:136].reshape(-1, 8, 16)).reshape(-1, 256)
    return Fields(codes, ((lows | (tops << np.uint8(4))) - np.uint8(32))[:, :, None], None, _halves(blocks, 0))


def _split_q8_k(blocks: U8) -> Fields:
    return Fields(blocks[:, 4:260], _repeated(blocks[:, 0:4], 8))


def _split_mxfp4(blocks: U8) -> Fields:
    # Half the step for twice the values: the largest step of the file is no f32.
    steps = np.ldexp(np.float32(1), blocks[:, 0:1].astype(np.int32) - 128)
    return Fields(nibbles(blocks[:, 1:17]), _floats(np.asarray(steps, np.float32)))


def _split_nvfp4(blocks: U8) -> Fields:
    steps = nvfp4_steps(blocks[:, 0:4]).astype("<f2")
    return Fields(nibbles(blocks[:, 4:36].reshape(-1, 4, 8)).reshape(-1, 64), steps.view(np.uint8).reshape(-1, 4, 2))


def _split_tq1_0(blocks: U8) -> Fields:
    return Fields(ternary_digits(blocks), _repeated(blocks[:, 52:54], 8))


def _split_tq2_0(blocks: U8) -> Fields:
    return Fields(bit_pairs(blocks[:, 0:64].reshape(-1, 2, 32)).reshape(-1, 256), _repeated(blocks[:, 64:66], 8))


def _split_q1_0(blocks: U8) -> Fields:
    """A set bit is 2 and a clear one 0, around a bias of 1."""
    return Fields(bits(blocks[:, 2:18]) << np.uint8(1), _repeated(blocks[:, 0:2], 4))


def _split_q2_0(blocks: U8) -> Fields:
    codes = bit_pairs(blocks[:, 2:18]).swapaxes(1, 2).reshape(-1, 64)
    return Fields(codes, _repeated(blocks[:, 0:2], 2))


def _repeated(scales: U8, times: int) -> U8:
    """One scale of a block for each of its records."""
    return np.repeat(scales[:, None, :], times, axis=1)


def _floats(steps: F32) -> U8:
    return np.ascontiguousarray(steps.astype("<f4")).view(np.uint8).reshape(*steps.shape, 4)


def _codebook_type(name: str, group: int) -> PanelFormat:
    """Codes are the numbers of the values that entries of the codebook can have; each step serves groups of `group`."""
    book, values = codebooks.CODEBOOK_TYPES[name], codebooks.possible_values(name)
    table: F32 = np.array(values, np.float32)

    def split(blocks: U8) -> Fields:
        steps, found = book.parts(blocks)
        codes = np.searchsorted(table, found.reshape(len(blocks), -1)).astype(np.uint8)
        repeats = found.shape[2] // group
        return Fields(codes, _floats(np.repeat(steps, repeats, axis=1)))

    return PanelFormat((4,), group, split, table=(*values, *(0.0,) * (16 - len(values))), step_bytes=4, book=book)


_IQ4 = tuple(float(v) for v in IQ4_VALUES)
_FP4 = tuple(float(v) for v in FP4_VALUES)

# By GGML names: every type of `rlx.quant.decode.FORMATS`.
PANEL_FORMATS: dict[str, PanelFormat] = {
    "Q4_0": PanelFormat((4,), 32, _split_q4_0, bias=8),
    "Q4_1": PanelFormat((4,), 32, _split_q4_1, has_minimums=True),
    "Q5_0": PanelFormat((4, 1), 32, _split_q5_0, bias=16),
    "Q5_1": PanelFormat((4, 1), 32, _split_q5_1, has_minimums=True),
    "Q8_0": PanelFormat((8,), 32, _split_q8_0),
    "Q8_1": PanelFormat((8,), 32, _split_q8_1),
    "Q2_K": PanelFormat((2,), 16, _split_q2_k, has_minimums=True, step_bytes=1),
    "Q3_K": PanelFormat((2, 1), 16, _split_q3_k, bias=4, step_bytes=1, signed_steps=True),
    "Q4_K": PanelFormat((4,), 32, _split_q4_k, has_minimums=True, step_bytes=1),
    "Q5_K": PanelFormat((4, 1), 32, _split_q5_k, has_minimums=True, step_bytes=1),
    "Q6_K": PanelFormat((4, 2), 16, _split_q6_k, bias=32, step_bytes=1, signed_steps=True),
    "IQ4_NL": PanelFormat((4,), 32, _split_q4_0, table=_IQ4),
    "IQ4_XS": PanelFormat((4,), 32, _split_iq4_xs, table=_IQ4, step_bytes=1, signed_steps=True),
    "Q8_K": PanelFormat((8,), 32, _split_q8_k, step_bytes=4),
    "MXFP4": PanelFormat((4,), 32, _split_mxfp4, table=tuple(2 * v for v in _FP4), step_bytes=4, is_short=True),
    "NVFP4": PanelFormat((4,), 16, _split_nvfp4, table=_FP4, is_short=True),
    "TQ1_0": PanelFormat((2,), 32, _split_tq1_0, bias=1),
    "TQ2_0": PanelFormat((2,), 32, _split_tq2_0, bias=1),
    "Q1_0": PanelFormat((2,), 32, _split_q1_0, bias=1),
    "Q2_0": PanelFormat((2,), 32, _split_q2_0, bias=1),
    "IQ1_S": _codebook_type("IQ1_S", 32),
    "IQ1_M": _codebook_type("IQ1_M", 16),
    "IQ2_XXS": _codebook_type("IQ2_XXS", 32),
    "IQ2_XS": _codebook_type("IQ2_XS", 16),
    "IQ2_S": _codebook_type("IQ2_S", 16),
    "IQ3_XXS": _codebook_type("IQ3_XXS", 32),
    "IQ3_S": _codebook_type("IQ3_S", 32),
}
