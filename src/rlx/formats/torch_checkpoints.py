"""Weights that torch has saved: `pytorch_model.bin`, or an index with its parts.

    tensors = open_torch("path/to/pytorch_model.bin")
    tensors["bert.embeddings.word_embeddings.weight"].array()

Such a file is a pickle, which can name any function of Python to be called. It is read by `rlx.formats.pickled_data`:
nothing but what puts tensors together is known here, and whatever else a file names is refused. The elements of
tensors are views of the mapped file.

Files since torch 1.6 are ZIP archives with a pickle and one entry for each storage; older ones are a row of pickles,
and behind them the storages one after the other.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8, file_bytes
from rlx.formats.pickled_data import read_pickled
from rlx.formats.safetensors.element_types import TYPES, ElementType
from rlx.formats.safetensors.reader import SafetensorsTensor

INDEX_NAME = "pytorch_model.bin.index.json"
SINGLE_NAME = "pytorch_model.bin"
_ELEMENTS = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
# The number that older files begin with.
_MAGIC = 0x1950A86A20F9469CFC6C
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_MAX_PICKLE_BYTES = 256 << 20


class _Storage(NamedTuple):
    """A row of elements, by its key in the file."""

    key: str
    type: ElementType
    size: int


class _View(NamedTuple):
    """A tensor as a part of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_torch(path: str | os.PathLike[str], mmap: bool = True) -> dict[str, SafetensorsTensor]:
    """The tensors by name, of a file or of an index with its parts."""
    place = Path(path)
    if not place.name.endswith(".json"):
        return _open_file(place, mmap)
    try:
        names = json.loads(place.read_text(encoding="utf-8"))["weight_map"]
        parts = dict.fromkeys(str(part) for part in names.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{place}: 'weight_map' must map tensor names to files") from None
    found: dict[str, SafetensorsTensor] = {}
    for part in parts:
        if part != os.path.basename(part) or not (place.parent / part).is_file():
            raise FormatError(f"{place}: the part {part!r} is missing; it must lie beside the index")
        found |= _open_file(place.parent / part, mmap)
    return found


def _open_file(path: Path, mmap: bool) -> dict[str, SafetensorsTensor]:
    content = file_bytes(path, mmap)
    try:
        return _tensors(path, content)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    except _DAMAGES as error:
        raise FormatError(f"{path}: not a file of torch.save: {error or type(error).__name__}") from None


# What the readers of pickles and archives raise for files that are cut or changed.
_DAMAGES = (
    *(zipfile.BadZipFile, struct.error, EOFError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError, NotImplementedError, MemoryError),
)


def _tensors(path: Path, content: U8) -> dict[str, SafetensorsTensor]:
    document, storages = _read_archive(content) if content[:2].tobytes() == b"PK" else _read_row(content)
    if not isinstance(document, Mapping):
        raise FormatError(f"a mapping of names to tensors is needed, got {type(document).__name__}")
    views = {str(name): value for name, value in document.items() if isinstance(value, _View)}
    if not views:
        raise FormatError("there are no tensors by name; save the state_dict of a model")
    return {name: _tensor(path, name, view, storages(view.storage)) for name, view in views.items()}


def _named(module: str, name: str) -> Any:
    """What names of saved weights stand for."""
    if module in ("torch", "torch.storage") and name in _ELEMENTS:
        return TYPES[_ELEMENTS[name]]
    if (module, name) not in _FUNCTIONS:
        raise FormatError(f"the file names {module}.{name}, which is not part of saved weights; save a state_dict")
    return _FUNCTIONS[module, name]


def _referred(reference: Any) -> _Storage:
    """The storage that a pickle refers to."""
    if isinstance(reference, tuple) and len(reference) >= 5:
        kind, element, key, _, count, *_ = reference
        if kind == "storage" and isinstance(element, ElementType) and isinstance(count, int) and count >= 0:
            return _Storage(str(key), element, count)
    raise FormatError(f"the file refers to {reference!r:.100}, which is not a storage of numbers")


def _rebuilt_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> _View:
    view = _View(storage, offset, tuple(shape), tuple(strides))
    numbers = (offset, *view.shape, *view.strides)
    if not isinstance(storage, _Storage) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise FormatError("the file has a tensor that is not a part of a storage")
    if len(view.shape) != len(view.strides) or len(view.shape) > 64:
        raise FormatError("the file has a tensor without a stride for each axis")
    return view


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuilt_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda data, *more: data,
}


def _read_archive(content: U8) -> tuple[Any, Callable[[_Storage], U8]]:
    """The pickled object of an archive, and what gives the bytes of storages."""
    archive = zipfile.ZipFile(io.BufferedReader(_Reader(content)))
    entries = {entry.filename: entry for entry in archive.infolist()}
    document = next((name for name in entries if name.endswith("/data.pkl")), None)
    if document is None:
        raise FormatError("the archive has no data.pkl, so torch.save has not written it")
    folder = document.removesuffix("data.pkl")
    order = entries.get(f"{folder}byteorder")
    if order is not None and archive.read(order) != b"little":
        raise FormatError("its numbers are big-endian, which is not supported")

    def bytes_of(storage: _Storage) -> U8:
        entry = entries.get(f"{folder}data/{storage.key}")
        if entry is None or entry.compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"the storage {storage.key!r} is missing or compressed")
        _, *_, names, extra = _LOCAL_HEADER.unpack_from(content.data, entry.header_offset)
        start = entry.header_offset + _LOCAL_HEADER.size + names + extra
        return content[start : start + entry.file_size]

    return read_pickled(io.BytesIO(_small(archive, entries[document])), _named, _referred), bytes_of


def _small(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MAX_PICKLE_BYTES:
        raise FormatError(f"data.pkl has {entry.file_size} bytes, which are too many for names of tensors")
    return archive.read(entry)


def _read_row(content: U8) -> tuple[Any, Callable[[_Storage], U8]]:
    """The same of a file older than torch 1.6."""
    file = io.BufferedReader(_Reader(content))
    sizes: dict[str, int] = {}

    def remembered(reference: Any) -> _Storage:
        # How long elements are the file does not repeat where they lie.
        storage = _referred(reference)
        sizes[storage.key] = storage.type.bits // 8
        return storage

    def following() -> Any:
        return read_pickled(file, _named, remembered)

    if following() != _MAGIC:
        raise FormatError("it is neither an archive nor an older file of torch.save")
    # The version of the format, and sizes of numbers on the machine that wrote it.
    following(), following()
    document, keys, places = following(), following(), {}
    at = file.tell()
    for key in keys:
        (count,) = struct.unpack_from("<q", content.data, at)
        end = at + 8 + count * sizes[str(key)]
        places[str(key)] = content[at + 8 : end]
        at = end
    return document, lambda storage: places[storage.key]


class _Reader(io.RawIOBase):
    """Bytes in memory as a file, without a copy of them all."""

    def __init__(self, content: U8) -> None:
        self._content, self._at = content.data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(offset + (0, self._at, len(self._content))[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._content[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _tensor(path: Path, name: str, view: _View, stored: U8) -> SafetensorsTensor:
    """A view of the file where elements follow one another, otherwise a copy in which they do."""
    kind, size = view.storage.type, view.storage.type.bits // 8
    count = math.prod(view.shape)
    last = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.strides)) if count else 0
    if count and max(last + 1, count) * size > stored.size:
        raise FormatError(f"tensor {name!r} needs more than its storage of {stored.size} bytes")
    if not count or _is_plain(view):
        start = view.offset * size if count else 0
        raw = stored[start : start + count * size]
    else:
        elements = np.frombuffer(stored[: stored.size // size * size].tobytes(), np.dtype(f"V{size}"))
        strides = tuple(step * size for step in view.strides)
        part = np.lib.stride_tricks.as_strided(elements[view.offset :], view.shape, strides)
        raw = np.frombuffer(part.tobytes(), np.uint8)
    return SafetensorsTensor(path, name, view.shape, kind, 0, raw)


def _is_plain(view: _View) -> bool:
    """Whether elements follow one another; the stride of an axis of size 1 means nothing."""
    step = 1
    for n, stride in zip(reversed(view.shape), reversed(view.strides)):
        if n != 1 and stride != step:
            return False
        step *= n
    return True
