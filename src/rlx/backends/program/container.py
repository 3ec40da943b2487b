"""Files of named parts that are read whole or not at all: what saved programs are kept in.

    rlxc 1 | length and sha256 of the head | head, JSON | parts, each on a 64-byte boundary

The head has the place and the sha256 of every part. All of it is checked before anything is used, so a flipped bit
anywhere is an error when the file is opened. This tells damage, not malice: a saved program is native code, to be
loaded from whom one trusts, as any program is.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import file_bytes, replace_file

_MAGIC = b"rlxc\x01\r\n\x1a"
_START = struct.Struct("<8sQ32s")
_ALIGN = 64
# Bytes from which on threads are worth starting, and how many of them keep up with memory.
_LARGE, _THREADS = 1 << 22, 4
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def write_parts(path: Path, head: Mapping[str, Any], parts: Mapping[str, bytes | memoryview]) -> None:
    """Write a file; it appears whole or not at all."""
    table, at = {}, 0
    for name, part in parts.items():
        view = memoryview(part)
        table[name] = [at, view.nbytes, hashlib.sha256(view).hexdigest()]
        at += _padded(view.nbytes)
    text = json.dumps({**head, "parts": table}, separators=(",", ":")).encode()
    start = _START.pack(_MAGIC, len(text), hashlib.sha256(text).digest())
    with replace_file(path) as file:
        file.write(start + text)
        file.write(bytes(_padded(len(start) + len(text)) - len(start) - len(text)))
        for part in parts.values():
            view = memoryview(part)
            file.write(view)
            file.write(bytes(_padded(view.nbytes) - view.nbytes))


def read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """The head and the parts of a file, mapped; a FormatError for what is no whole file of this kind."""
    content = file_bytes(path)
    if content.nbytes < _START.size or bytes(content[:8]) != _MAGIC:
        raise FormatError(f"{path}: this is no saved program of rlx (.rlxc), or one of another version of the format")
    _, length, wanted = _START.unpack(content[: _START.size].tobytes())
    text = content[_START.size : _START.size + length].tobytes() if length <= content.nbytes else b""
    if hashlib.sha256(text).digest() != wanted:
        raise FormatError(f"{path}: the file is damaged; save the program again")
    try:
        head = json.loads(text)
        listed = [
            (str(name), int(at), int(size), str(digest)) for name, (at, size, digest) in head.pop("parts").items()
        ]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: the head of the file is malformed: {type(error).__name__}: {error}") from None
    base = end = _padded(_START.size + length)
    # Between parts there is nothing, and nothing is zeros.
    gaps = [content[_START.size + length : base]]
    parts = {name: content[base + at : base + at + size] for name, at, size, _ in listed}
    digests = _digests(parts)
    for name, at, size, digest in listed:
        if parts[name].nbytes != size or digests[name] != digest:
            raise FormatError(f"{path}: the file is damaged in {name!r}; save the program again")
        end = max(end, base + at + _padded(size))
        gaps.append(content[base + at + size : base + at + _padded(size)])
    if content.nbytes != end or any(gap.any() for gap in gaps):
        raise FormatError(f"{path}: the file is damaged: there is something between its parts")
    return head, parts


def _digests(parts: Mapping[str, Bytes]) -> dict[str, str]:
    """The sha256 of every part. Hashing runs without the interpreter's lock, so large files take several threads."""
    found: dict[str, str] = {}
    waiting = sorted(parts.items(), key=lambda part: part[1].nbytes)

    def work() -> None:
        # Taking the last one is one step to Python's lock.
        with suppress(IndexError):
            while True:
                name, part = waiting.pop()
                found[name] = hashlib.sha256(part.data).hexdigest()

    is_large = sum(part.nbytes for part in parts.values()) >= _LARGE
    helpers = [threading.Thread(target=work) for _ in range(min(_THREADS, os.cpu_count() or 1) - 1 if is_large else 0)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    return found


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
