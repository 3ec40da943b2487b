"""The tensor types of GGUF: their codes, block sizes and, for plain numbers, their NumPy dtype."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8
from rlx.quant.decode import FORMATS
from rlx.quant.schemes import QuantScheme, dequantize_blocks


class TensorType(NamedTuple):
    """One type: blocks of `elements` numbers in `bytes` bytes. `dtype` is None for the quantised types.

    `words` lists the multi-byte fields of a block as (offset, width, count): what changes with the byte order.
    """

    code: int
    name: str
    elements: int
    bytes: int
    dtype: np.dtype[np.generic] | None
    words: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        return self.name

    @property
    def is_quantized(self) -> bool:
        return self.dtype is None


def _plain(code: int, name: str, dtype: npt.DTypeLike) -> TensorType:
    kind = np.dtype(dtype)
    words = ((0, kind.itemsize, 1),) if kind.itemsize > 1 else ()
    return TensorType(code, name, 1, kind.itemsize, kind, words)


def _blocks(code: int, name: str, *words: tuple[int, int, int]) -> TensorType:
    return TensorType(code, name, FORMATS[name].elements, FORMATS[name].bytes, None, words)


_ALL = [
    _plain(0, "F32", np.float32),
    _plain(1, "F16", np.float16),
    _blocks(2, "Q4_0", (0, 2, 1)),
    _blocks(3, "Q4_1", (0, 2, 2)),
    _blocks(6, "Q5_0", (0, 2, 1), (2, 4, 1)),
    _blocks(7, "Q5_1", (0, 2, 2), (4, 4, 1)),
    _blocks(8, "Q8_0", (0, 2, 1)),
    _blocks(9, "Q8_1", (0, 2, 2)),
    _blocks(10, "Q2_K", (80, 2, 2)),
    _blocks(11, "Q3_K", (108, 2, 1)),
    _blocks(12, "Q4_K", (0, 2, 2)),
    _blocks(13, "Q5_K", (0, 2, 2)),
    _blocks(14, "Q6_K", (208, 2, 1)),
    _blocks(15, "Q8_K", (0, 4, 1), (260, 2, 16)),
    _blocks(16, "IQ2_XXS", (0, 2, 1), (2, 4, 16)),
    _blocks(17, "IQ2_XS", (0, 2, 33)),
    _blocks(18, "IQ3_XXS", (0, 2, 1), (66, 4, 8)),
    _blocks(19, "IQ1_S", (0, 2, 1), (34, 2, 8)),
    _blocks(20, "IQ4_NL", (0, 2, 1)),
    _blocks(21, "IQ3_S", (0, 2, 1)),
    _blocks(22, "IQ2_S", (0, 2, 1)),
    _blocks(23, "IQ4_XS", (0, 2, 2)),
    _plain(24, "I8", np.int8),
    _plain(25, "I16", np.int16),
    _plain(26, "I32", np.int32),
    _plain(27, "I64", np.int64),
    _plain(28, "F64", np.float64),
    _blocks(29, "IQ1_M", (48, 2, 4)),
    _plain(30, "BF16", ml_dtypes.bfloat16),
    _blocks(34, "TQ1_0", (52, 2, 1)),
    _blocks(35, "TQ2_0", (64, 2, 1)),
    _blocks(39, "MXFP4"),
    _blocks(40, "NVFP4"),
    _blocks(41, "Q1_0", (0, 2, 1)),
    _blocks(42, "Q2_0", (0, 2, 1)),
]
TYPES: dict[str, TensorType] = {t.name: t for t in _ALL}
TYPES_BY_CODE: dict[int, TensorType] = {t.code: t for t in _ALL}
_TYPES_BY_DTYPE: dict[np.dtype[np.generic], TensorType] = {t.dtype: t for t in _ALL if t.dtype is not None}


def tensor_type(name: str | TensorType) -> TensorType:
    """The type called `name`; the case of letters does not matter.

    >>> tensor_type("q4_k").bytes
    144
    """
    if isinstance(name, TensorType):
        return name
    if name.upper() not in TYPES:
        raise FormatError(f"GGUF has no tensor type {name!r:.80}; use one of: {' '.join(TYPES)}")
    return TYPES[name.upper()]


def type_of_dtype(dtype: np.dtype[np.generic]) -> TensorType:
    """The type that stores plain numbers of `dtype`."""
    found = _TYPES_BY_DTYPE.get(dtype.newbyteorder("="))
    if found is None:
        known = " ".join(str(d) for d in _TYPES_BY_DTYPE)
        raise FormatError(f"GGUF cannot store {dtype} arrays; convert to one of: {known}")
    return found


def swap_words(kind: TensorType, raw: U8) -> U8:
    """A copy of the blocks in the other byte order."""
    blocks = raw.reshape(-1, kind.bytes).copy()
    for offset, width, count in kind.words:
        field = blocks[:, offset : offset + width * count]
        field[...] = field.reshape(-1, count, width)[:, :, ::-1].reshape(-1, width * count)
    return blocks.reshape(-1)


def decode(kind: TensorType, raw: U8) -> npt.NDArray[np.generic]:
    """The numbers in little-endian blocks, flat: f32 for quantised types, else a view in the type's own dtype."""
    if kind.dtype is not None:
        return np.asarray(raw.view(kind.dtype.newbyteorder("<")))
    return dequantize_blocks(QuantScheme.of_ggml(kind.name), raw)
