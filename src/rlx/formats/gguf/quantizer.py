"""Making tensors smaller: one array, or all weights of a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.gguf.metadata import MetadataValue, TypedValue, ValueType
from rlx.formats.gguf.reader import GgufTensor, open_gguf, packed_bytes
from rlx.formats.gguf.tensor_types import TYPES, TensorType, decode, tensor_type
from rlx.formats.gguf.type_mix import MIXES, TypeMix, fitting_type, is_kept, wanted_type
from rlx.formats.gguf.writer import PackedTensor, write_gguf
from rlx.formats.mapped_file import U8
from rlx.quant.decode import FORMATS
from rlx.quant.schemes import QuantScheme, quantize_blocks

_PLAIN_TARGETS = ("F32", "F16", "BF16")
# `general.file_type` of files whose weights have mostly one type.
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 11, "Q4_K": 14,
    "Q5_K": 16, "Q6_K": 18, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40,
}  # fmt: skip
_PIECE_ELEMENTS = 1 << 20


def can_write(kind: TensorType) -> bool:
    """Whether numbers can be turned into this type; the codebook types (IQ*) need calibration data and cannot."""
    return kind.name in _PLAIN_TARGETS or (kind.name in FORMATS and FORMATS[kind.name].encode is not None)


def quantize(array: npt.ArrayLike, type: str | TensorType) -> U8:
    """The packed bytes of `array`, whose last axis must be whole blocks, by the format's reference rounding.

    >>> quantize(np.linspace(-1, 1, 32), "Q8_0").nbytes
    34
    """
    kind = _target(type)
    values = np.asarray(array)
    packed_bytes("array", values.shape, kind)
    return _encoded(kind, values.reshape(-1))


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str | TensorType,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, int]:
    """Write `source` anew with its matrices in `type`, and say how many tensors got which type.

    `type` may also be a mix such as Q4_K_M. Vectors, norms and routers keep their type. Rows that are no whole number
    of blocks get a type with smaller blocks and at least as many bits, or F16. Memory is needed for one tensor at a
    time.
    """
    mix = type_mix(type)
    with open_gguf(source) as file:
        layers = file.metadata.get(f"{file.metadata.get('general.architecture')}.block_count", 0)
        count, is_tied = layers if isinstance(layers, int) else 0, "output.weight" not in file.tensors
        tensors: list[PackedTensor] = [
            _converted(tensor, wanted_type(mix, tensor.name, count, is_tied)) for tensor in file.tensors.values()
        ]
        kept = {key: value for key, value in file.metadata.typed().items() if not key.startswith("split.")}
        metadata: dict[str, MetadataValue | np.generic | TypedValue] = dict(kept)
        if mix.file_type is not None:
            metadata["general.file_type"] = TypedValue(ValueType.UINT32, None, mix.file_type)
        metadata["general.quantization_version"] = TypedValue(ValueType.UINT32, None, 2)
        reported = with_progress(tensors, progress) if progress else tensors
        write_gguf(target, metadata, reported)
        return dict(Counter(tensor.type.name for tensor in tensors))


def type_mix(type: str | TensorType) -> TypeMix:
    """The mix that a name stands for: one of `MIXES`, or a type for all matrices."""
    name = str(type).upper()
    if name in MIXES:
        return MIXES[name]
    kind = _target(type)
    return TypeMix(kind.name, False, _FILE_TYPES.get(kind.name))


def _target(type: str | TensorType) -> TensorType:
    kind = tensor_type(type)
    if not can_write(kind):
        known = " ".join([*(name for name, t in TYPES.items() if can_write(t)), *MIXES])
        raise FormatError(f"quantize: {kind} can be read but not written here; use one of: {known}")
    return kind


def _encoded(kind: TensorType, values: npt.NDArray[np.generic]) -> U8:
    if kind.dtype is None:
        return quantize_blocks(QuantScheme.of_ggml(kind.name), values)
    with np.errstate(over="ignore", under="ignore"):
        numbers = values.astype(np.float32)
        if kind.name == "BF16":
            numbers = _quiet(numbers)
        return numbers.astype(kind.dtype.newbyteorder("<")).view(np.uint8)


def _quiet(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """NaN without its payload: cutting off its low bits could leave an infinity."""
    return np.where(np.isnan(values), np.copysign(np.float32(np.nan), values), values)


class _Requantized:
    """A tensor that is converted, piece by piece, when its bytes are asked for."""

    def __init__(self, source: GgufTensor, kind: TensorType) -> None:
        self.name, self.shape, self.type = source.name, source.shape, kind
        self._source = source

    def data(self) -> U8:
        source, raw = self._source, self._source.data()
        out = np.empty(packed_bytes(self.name, self.shape, self.type), np.uint8)
        row = self.shape[-1]
        rows = max(_PIECE_ELEMENTS // row, 1)
        row_in, row_out = (row // t.elements * t.bytes for t in (source.type, self.type))
        for start in range(0, raw.size // row_in, rows):
            piece = decode(source.type, raw[start * row_in : (start + rows) * row_in])
            out[start * row_out : (start + rows) * row_out] = _encoded(self.type, piece)
        return out


def _converted(tensor: GgufTensor, kind: TensorType) -> PackedTensor:
    is_integer = tensor.type.dtype is not None and tensor.type.dtype.kind == "i"
    kept = is_integer or len(tensor.shape) < 2 or tensor.nbytes == 0
    if kept or is_kept(tensor.name):
        return tensor
    choice = fitting_type(kind, tensor.shape[-1])
    return tensor if choice in (None, tensor.type) else _Requantized(tensor, choice)


class _Reported:
    """A tensor that tells how far the writer is."""

    def __init__(self, tensor: PackedTensor, tell: Callable[[str], None]) -> None:
        self.name, self.shape, self.type = tensor.name, tensor.shape, tensor.type
        self._tensor, self._tell = tensor, tell

    def data(self) -> U8:
        data = self._tensor.data()
        self._tell(self.name)
        return data


def with_progress(tensors: list[PackedTensor], progress: Callable[[str, int, int], None]) -> list[PackedTensor]:
    sizes = {t.name: packed_bytes(t.name, t.shape, t.type) for t in tensors}
    total, done = sum(sizes.values()), 0

    def tell(name: str) -> None:
        nonlocal done
        done += sizes[name]
        progress(name, done, total)

    return [_Reported(tensor, tell) for tensor in tensors]
