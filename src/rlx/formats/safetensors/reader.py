"""Opening safetensors: one file, an index of shards, or a folder with either.

    with open_safetensors("path/to/hf_dir") as file:
        file.tensors["model.norm.weight"].array()

A file is the length of its header (u64, little endian), the header (JSON: name -> dtype, shape, place), and the bytes
of the tensors, which cover the rest of the file without gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8, file_bytes
from rlx.formats.safetensors.element_types import TYPES, ElementType, decode

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"


class SafetensorsTensor:
    """A tensor of an open file; `offset` is the place of its first byte in the file."""

    __slots__ = ("_raw", "name", "offset", "path", "shape", "type")

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], type: ElementType, offset: int, raw: U8) -> None:
        self.path, self.name, self.shape, self.type, self.offset, self._raw = path, name, shape, type, offset, raw

    @property
    def nbytes(self) -> int:
        return self._raw.size

    def data(self) -> U8:
        """The bytes as they lie in the file, little endian; a view."""
        return self._raw

    def array(self) -> npt.NDArray[np.generic]:
        """The elements in their own dtype; a read-only view of the file (a copy for 4-bit elements)."""
        place = f"{self.path}: tensor {self.name!r}"
        return decode(place, self.type, self._raw, math.prod(self.shape)).reshape(self.shape)

    def __repr__(self) -> str:
        return f"SafetensorsTensor({self.name!r}, {self.type}{list(self.shape)}, {self.nbytes} bytes at {self.offset})"


class Safetensors:
    """Open tensors, of one file or of several shards. Views taken from them stay good after `close`."""

    def __init__(self, path: Path, metadata: dict[str, str], tensors: dict[str, SafetensorsTensor]) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        self._tensors = tensors

    @property
    def tensors(self) -> Mapping[str, SafetensorsTensor]:
        """The tensors by name, in file order."""
        return MappingProxyType(self._tensors)

    def close(self) -> None:
        self._tensors = {}

    def __enter__(self) -> Safetensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Safetensors({str(self.path)!r}, {len(self._tensors)} tensors)"


def open_safetensors(path: str | os.PathLike[str], mmap: bool = True) -> Safetensors:
    """Open and check a file, an index (`*.index.json`) with its shards, or a folder that has one of them.

    With `mmap=False` files are read into memory, and may then be cut or changed; see `rlx.formats.mapped_file`.
    """
    place = Path(path)
    if place.is_dir():
        return open_safetensors(_weights_in(place), mmap)
    if place.name.endswith(".json"):
        return _open_shards(place, mmap)
    return _open_file(place, mmap)


def _weights_in(folder: Path) -> Path:
    for name in (INDEX_NAME, SINGLE_NAME):
        if (folder / name).is_file():
            return folder / name
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return others[0]
    found = ", ".join(file.name for file in others) or "none"
    raise FormatError(f"{folder}: {INDEX_NAME} or {SINGLE_NAME} is needed, or one .safetensors file; found {found}")


def _open_shards(index: Path, mmap: bool) -> Safetensors:
    document = _parse_json(f"{index}", index.read_bytes())
    places = document.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise FormatError(f"{index}: 'weight_map' must map tensor names to files")
    shards: dict[str, Safetensors] = {}
    tensors: dict[str, SafetensorsTensor] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or shard != os.path.basename(shard) or shard in ("", ".", "..") or "\\" in shard:
            raise FormatError(f"{index}: tensor {name!r} must lie in a file beside the index, got {shard!r}")
        if shard not in shards:
            if not (index.parent / shard).is_file():
                raise FormatError(f"{index}: the shard {shard} is missing; it holds {name!r}")
            shards[shard] = _open_file(index.parent / shard, mmap)
        if name not in shards[shard].tensors:
            raise FormatError(f"{index}: tensor {name!r} is not in {shard}, where the index says it is")
        tensors[name] = shards[shard].tensors[name]
    metadata = {key: text for shard in shards.values() for key, text in shard.metadata.items()}
    return Safetensors(index, metadata, tensors)


def _open_file(path: Path, mmap: bool) -> Safetensors:
    content = file_bytes(path, mmap)
    if content.size < 8:
        raise FormatError(f"{path}: byte 0: the header length needs 8 bytes, the file has {content.size}")
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > MAX_HEADER_BYTES or length > content.size - 8:
        limit = min(MAX_HEADER_BYTES, content.size - 8)
        raise FormatError(f"{path}: byte 0: the header says it has {length} bytes, but at most {limit} are possible")
    header = _parse_json(f"{path}: header", content[8 : 8 + length].tobytes())
    metadata = _string_map(path, header.pop(_METADATA, {}))
    data = content[8 + length :]
    tensors = {name: _tensor(path, name, entry, data, 8 + length) for name, entry in header.items()}
    _require_cover(path, tensors, 8 + length, content.size)
    return Safetensors(path, metadata, tensors)


def _parse_json(place: str, text: bytes) -> dict[str, object]:
    """A JSON object without repeated keys."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise FormatError(f"{place}: {key!r} occurs twice")
            found[key] = value
        return found

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{place}: not a JSON object: {str(error) or type(error).__name__}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{place}: a JSON object is needed, got {type(value).__name__}")
    return value


def _string_map(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FormatError(f"{path}: header: {_METADATA} must map strings to strings")
    return value


def _tensor(path: Path, name: str, entry: object, data: U8, start: int) -> SafetensorsTensor:
    where = f"{path}: header: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{where} must have exactly dtype, shape and data_offsets")
    kind = TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if kind is None:
        raise FormatError(f"{where} has the unknown dtype {entry['dtype']!r}; known: {' '.join(TYPES)}")
    shape, place = _sizes(where, "shape", entry["shape"]), _sizes(where, "data_offsets", entry["data_offsets"])
    if len(place) != 2 or not place[0] <= place[1] <= data.size:
        raise FormatError(f"{where}: data_offsets must be a begin and an end up to {data.size}, got {list(place)}")
    bits = math.prod(shape) * kind.bits
    if bits % 8 or bits // 8 != place[1] - place[0]:
        raise FormatError(f"{where}: {kind}{list(shape)} has {bits / 8:g} bytes, its place has {place[1] - place[0]}")
    return SafetensorsTensor(path, name, shape, kind, start + place[0], data[place[0] : place[1]])


def _sizes(where: str, what: str, value: object) -> tuple[int, ...]:
    """Whole numbers that NumPy can count with, also when another one is zero."""
    wrong = FormatError(f"{where}: {what} must be a list of whole numbers from 0 on, got {value!r:.100}")
    if not isinstance(value, list) or len(value) > 64:
        raise wrong
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value):
        raise wrong
    if math.prod(max(n, 1) for n in value) >= 2**60:
        raise FormatError(f"{where}: {what} {value!r:.100} is more than fits into memory")
    return tuple(value)


def _require_cover(path: Path, tensors: Mapping[str, SafetensorsTensor], start: int, end: int) -> None:
    """The tensors must follow one another without gap or overlap and end with the file."""
    at, before = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != at:
            problem = "overlaps with" if tensor.offset < at else "leaves a gap after"
            raise FormatError(f"{path}: byte {tensor.offset}: tensor {tensor.name!r} {problem} {before}")
        at, before = at + tensor.nbytes, repr(tensor.name)
    if at != end:
        raise FormatError(f"{path}: byte {at}: {end - at} bytes follow the last tensor")
