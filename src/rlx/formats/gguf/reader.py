"""Opening GGUF files, versions 1 to 3, in either byte order.

    with open_gguf("model.gguf") as file:
        file.metadata["general.architecture"]
        file.tensors["output_norm.weight"].array()

A file is a header, metadata pairs, tensor descriptions, padding, and the tensors' bytes. Opening reads all but the
last; tensors are views of the mapped file.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.gguf.cursor import ByteOrder, Cursor
from rlx.formats.gguf.metadata import GgufMetadata, ValueType
from rlx.formats.gguf.tensor_types import TYPES_BY_CODE, TensorType, decode, swap_words, tensor_type
from rlx.formats.mapped_file import U8, file_bytes

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
# NumPy counts bytes in 63 bits, also for shapes with a zero; 8 is the widest element.
_MAX_ELEMENTS = 2**63 // 8 - 1


class GgufTensor:
    """A tensor of a file, or one made to be written into a file.

    `shape` is in NumPy's order: the last axis is contiguous, and quantised blocks run along it. `offset` is the place
    of the first byte in the file (0 for tensors that are in no file).
    """

    __slots__ = ("_raw", "name", "offset", "order", "shape", "type")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        type: TensorType | str,
        raw: U8,
        *,
        offset: int = 0,
        order: ByteOrder = "<",
    ) -> None:
        self.name, self.shape, self.type, self.offset, self.order = name, shape, tensor_type(type), offset, order
        self._raw = raw
        wanted = packed_bytes(name, shape, self.type)
        if raw.size != wanted:
            raise FormatError(f"tensor {name!r} {self.type}{list(shape)} has {wanted} bytes, got {raw.size}")

    @property
    def nbytes(self) -> int:
        return self._raw.size

    def data(self) -> U8:
        """The packed bytes, little endian: a view of the file, or a converted copy if the file is big endian."""
        return self._raw if self.order == "<" else swap_words(self.type, self._raw)

    def array(self) -> npt.NDArray[np.generic]:
        """The numbers: f32 for quantised types, otherwise the stored dtype, as a view of the file where possible."""
        return decode(self.type, self.data()).reshape(self.shape)

    def __repr__(self) -> str:
        return f"GgufTensor({self.name!r}, {self.type}{list(self.shape)}, {self.nbytes} bytes at {self.offset})"


def packed_bytes(name: str, shape: tuple[int, ...], kind: TensorType) -> int:
    """The bytes of a tensor; its rows must be whole blocks."""
    row = shape[-1] if shape else 1
    if row % kind.elements:
        raise FormatError(
            f"tensor {name!r}: rows of {kind} must be a multiple of {kind.elements} long, got shape {list(shape)}"
        )
    return math.prod(shape) // kind.elements * kind.bytes


class GgufFile:
    """An open file. Views taken from it stay good after `close`; the file itself is let go with the last of them."""

    def __init__(self, path: Path, version: int, order: ByteOrder, metadata: GgufMetadata, alignment: int) -> None:
        self.path, self.version, self.alignment = path, version, alignment
        self.metadata = metadata
        self._order = order
        self._tensors: dict[str, GgufTensor] = {}

    @property
    def byte_order(self) -> str:
        """`"little"` or `"big"`."""
        return "little" if self._order == "<" else "big"

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """The tensors by name, in file order."""
        return MappingProxyType(self._tensors)

    def close(self) -> None:
        self._tensors = {}

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GgufFile({str(self.path)!r}, {len(self.metadata)} metadata pairs, {len(self._tensors)} tensors)"


def open_gguf(path: str | os.PathLike[str], mmap: bool = True) -> GgufFile:
    """Open and check a GGUF file; `FormatError` names the byte, key or tensor that is wrong.

    The first file of a model in several (`name-00001-of-00003.gguf`) opens all of them. With `mmap=False` the file is
    read into memory, and may then be cut or changed by others; see `rlx.formats.mapped_file`.
    """
    file = _open_one(Path(path), mmap)
    count = file.metadata.integer("split.count", 1)
    if count > 1:
        _add_parts(file, count, mmap)
    return file


def _add_parts(file: GgufFile, count: int, mmap: bool) -> None:
    """Add the tensors of the other parts, which lie beside the first one."""
    ending = f"-00001-of-{count:05d}.gguf"
    if file.metadata.integer("split.no") != 0 or not file.path.name.endswith(ending):
        raise FormatError(f"{file.path}: this is one of {count} files; open the first, whose name ends in {ending}")
    stem = file.path.name.removesuffix(ending)
    for number in range(2, count + 1):
        path = file.path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
        if not path.is_file():
            raise FormatError(f"{file.path}: part {path.name} is missing")
        part = _open_one(path, mmap)
        if part.metadata.integer("split.no") != number - 1 or part.metadata.integer("split.count") != count:
            raise FormatError(f"{path}: its metadata says it is another part, or of another model")
        for name, tensor in part.tensors.items():
            if name in file._tensors:
                raise FormatError(f"{path}: tensor {name!r} is also in an earlier part")
            file._tensors[name] = tensor
    wanted = file.metadata.integer("split.tensors.count", len(file._tensors))
    if wanted != len(file._tensors):
        raise FormatError(
            f"{file.path}: the parts should have {wanted} tensors together, they have {len(file._tensors)}"
        )


def _open_one(place: Path, mmap: bool) -> GgufFile:
    content = file_bytes(place, mmap)
    if content[:4].tobytes() != MAGIC:
        raise FormatError(f"{place}: byte 0: a GGUF file starts with {MAGIC!r}, got {content[:4].tobytes()!r}")
    order = _byte_order(place, content)
    head = Cursor(place, content, order, 4, 8)
    version = head.u32("the version")
    if version not in VERSIONS:
        head.fail(f"this reader knows the versions 1, 2 and 3, got {version}", 4)
    cursor = Cursor(place, content, order, 8, 4 if version == 1 else 8)
    tensor_count = cursor.length("the number of tensors")
    pair_count = cursor.length("the number of metadata pairs")
    # A pair has at least a key length, a type and one byte; a tensor a name length, two u32 and an offset.
    cursor.need_items(pair_count, cursor.length_bytes + 5, "the number of metadata pairs")
    cursor.need_items(tensor_count, cursor.length_bytes + 16, "the number of tensors")
    metadata = GgufMetadata(cursor, pair_count)
    file = GgufFile(place, version, order, metadata, _alignment(place, metadata))
    infos = _tensor_infos(cursor, tensor_count)
    start = -(-cursor.at // file.alignment) * file.alignment
    for info in infos:
        file._tensors[info[0]] = _tensor(cursor, start, file.alignment, *info)
    _require_disjoint(cursor, file._tensors)
    return file


def _byte_order(path: Path, content: U8) -> ByteOrder:
    """Versions are small numbers, so the half of the version field that is zero tells the byte order."""
    if content.size < 8:
        raise FormatError(f"{path}: byte 4: the version needs 4 bytes, the file has {content.size - 4} left")
    return ">" if content[4:6].tobytes() == b"\0\0" and content[6:8].any() else "<"


def _alignment(path: Path, metadata: GgufMetadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value = metadata[key]
    if metadata.type_of(key)[0] is not ValueType.UINT32 or not isinstance(value, int):
        raise FormatError(f"{path}: metadata {key!r} must be a uint32, got {metadata.type_of(key)[0].name.lower()}")
    if value < 8 or value & (value - 1):
        raise FormatError(f"{path}: metadata {key!r} must be a power of two and at least 8, got {value}")
    return value


_Info = tuple[str, tuple[int, ...], TensorType, int]


def _tensor_infos(cursor: Cursor, count: int) -> list[_Info]:
    """Name, shape, type and relative offset of every tensor."""
    infos: dict[str, _Info] = {}
    for index in range(count):
        start = cursor.at
        name = cursor.text(f"the name of tensor {index}")
        if name in infos:
            cursor.fail(f"tensor {name!r} occurs twice", start)
        rank = cursor.u32(f"the number of dims of tensor {name!r}")
        if rank > MAX_DIMS:
            cursor.fail(f"tensor {name!r} has {rank} dims; GGUF allows {MAX_DIMS}", start)
        stored = [cursor.length(f"dim {axis} of tensor {name!r}") for axis in range(rank)]
        if math.prod(max(size, 1) for size in stored) > _MAX_ELEMENTS:
            cursor.fail(f"tensor {name!r} has dims {stored}, more elements than fit into memory", start)
        code = cursor.u32(f"the type of tensor {name!r}")
        if code not in TYPES_BY_CODE:
            cursor.fail(f"tensor {name!r} has the unknown type {code}; it may need a newer rlx", cursor.at - 4)
        offset = cursor.u64(f"the offset of tensor {name!r}")
        infos[name] = (name, tuple(reversed(stored)), TYPES_BY_CODE[code], offset)
    return list(infos.values())


def _tensor(
    cursor: Cursor, start: int, alignment: int, name: str, shape: tuple[int, ...], kind: TensorType, offset: int
) -> GgufTensor:
    if offset % alignment:
        cursor.fail(f"tensor {name!r} starts at {offset}, which is not a multiple of the alignment {alignment}")
    try:
        size = packed_bytes(name, shape, kind)
    except FormatError as error:
        cursor.fail(str(error))
    begin = start + offset
    if begin + size > cursor.end:
        cursor.fail(
            f"tensor {name!r} {kind}{list(shape)} lies at bytes {begin} to {begin + size}, "
            f"but the file ends at {cursor.end}; it is cut off or damaged"
        )
    return GgufTensor(name, shape, kind, cursor.content[begin : begin + size], offset=begin, order=cursor.order)


def _require_disjoint(cursor: Cursor, tensors: Mapping[str, GgufTensor]) -> None:
    """No two tensors may share bytes."""
    by_place = sorted((t for t in tensors.values() if t.nbytes), key=lambda t: t.offset)
    for before, after in itertools.pairwise(by_place):
        if before.offset + before.nbytes > after.offset:
            cursor.fail(
                f"tensors {before.name!r} and {after.name!r} overlap: the first ends at byte "
                f"{before.offset + before.nbytes}, the second starts at {after.offset}"
            )
