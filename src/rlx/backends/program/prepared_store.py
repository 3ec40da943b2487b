"""Prepared weights on disk, mapped by the next process instead of being made again.

An entry holds the outputs of a `prepare` program for weights of a known source. It begins with `rlxprep` and a version,
the length of the head and a checksum of it; the head is JSON, `{"key": key, "arrays": [[type, offset, checksum]..]}`;
then come the arrays, each on a 64-byte boundary. The key is what the entry was kept under, so that a file under another
entry's name is none. Entries are checked as a whole before they are used, and can be deleted at any time. One that is
cut while a process has it mapped ends that process, as with any mapped file; only this user can do that.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np

from rlx.backends.memory import ALIGNMENT, Array
from rlx.backends.native.object_cache import DiskCache, open_private, whole_file
from rlx.errors import BackendError, RlxError
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape, parse_shape

_MAGIC = b"rlxprep\x02"  # the last byte is the format version
_START = struct.Struct("<8sQI")
# What all entries together may grow to; the ones that were used longest ago leave first.
MAX_BYTES = 16 << 30


if hasattr(os, "statvfs"):

    def _free_bytes(directory: Path) -> int:
        """What this user may still write there."""
        disk = os.statvfs(directory)
        return disk.f_bavail * disk.f_frsize

else:
    # Where there is no other way: it loads all that archives are packed with.
    import shutil

    def _free_bytes(directory: Path) -> int:
        return shutil.disk_usage(directory).free


class PreparedStore:
    """Arrays by key, in a directory of this user."""

    def __init__(self, directory: Path | str | None = None) -> None:
        self._entries = DiskCache(directory, "prepared")

    def path(self, key: str) -> Path:
        return self._entries.directory / f"{key}.prepared"

    def find(self, key: str) -> list[Array] | None:
        """The arrays under a key, mapped and read-only; None if there is no whole entry."""
        path = self.path(key)
        try:
            with open_private(path) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                os.utime(file.fileno() if os.utime in os.supports_fd else path)
            return _read(mapped, key)
        except (OSError, ValueError, TypeError, LookupError, struct.error, RlxError):
            return None

    def keep(self, key: str, arrays: Sequence[Array]) -> bool:
        """Keep arrays. False, and no error, if they cannot be written."""
        path, size = self.path(key), sum(a.nbytes for a in arrays)
        try:
            # A full disk is worse than a slow start.
            if size > min(MAX_BYTES, _free_bytes(path.parent) // 4):
                return False
            self._entries.trim(MAX_BYTES - size)
            with whole_file(path) as file:
                _write(file, key, arrays)
        except OSError:
            return False
        return True


@cache
def prepared_store() -> PreparedStore | None:
    """Where prepared weights are kept; None where nothing can be written."""
    try:
        return PreparedStore()
    except (OSError, BackendError):
        return None


def _write(file: IO[bytes], key: str, arrays: Sequence[Array]) -> None:
    at, entries = 0, []
    for array in arrays:
        entries.append([str(Shape(array.shape, DType.of(array.dtype))), at, zlib.crc32(_bytes(array))])
        at += _padded(array.nbytes)
    head = json.dumps({"key": key, "arrays": entries}, separators=(",", ":")).encode()
    file.write(_START.pack(_MAGIC, len(head), zlib.crc32(head)) + head)
    file.write(bytes(_padded(_START.size + len(head)) - _START.size - len(head)))
    for array in arrays:
        file.write(_bytes(array))
        file.write(bytes(_padded(array.nbytes) - array.nbytes))


def _read(mapped: mmap.mmap, key: str) -> list[Array]:
    magic, length, checksum = _START.unpack_from(mapped)
    head = mapped[_START.size : _START.size + length]
    if magic != _MAGIC or len(head) != length or zlib.crc32(head) != checksum:
        raise ValueError("not an entry of this version")
    found = json.loads(head)
    if found["key"] != key:
        raise ValueError("an entry of another key")
    content = np.frombuffer(mapped, np.uint8)[_padded(_START.size + length) :]
    arrays = []
    for text, offset, wanted in found["arrays"]:
        shape = parse_shape(text)
        part = content[offset : offset + shape.byte_size]
        if part.nbytes != shape.byte_size or zlib.crc32(part.data) != wanted:
            raise ValueError("an array is damaged")
        arrays.append(part.view(shape.dtype.numpy).reshape(shape.static_dims))
    return arrays


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
