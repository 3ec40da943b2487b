"""A file in memory, mapped or read, and files that appear whole or not at all.

A mapped file costs no memory of its own, and it must stay as it is: if another process cuts it, whoever looks at what
was cut is ended by the system (SIGBUS), in any program. Replacing a file by another one of its name is harmless. Where
files may be cut, read them instead: `mmap=False`.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ
from mmap import mmap as Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError

U8 = npt.NDArray[np.uint8]


def file_bytes(path: Path, mmap: bool = True) -> U8:
    """The bytes of `path` as a read-only array. Mapped, nothing is read until it is looked at; otherwise all is, now.

    A mapping ends when the last view of the array is gone.
    """
    if path.is_dir():
        raise FormatError(f"{path}: a regular file is needed; this is a directory")
    with open(path, "rb", opener=_open_at_once) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            kind = "a pipe" if stat.S_ISFIFO(info.st_mode) else "a device or a socket"
            raise FormatError(f"{path}: a regular file is needed; this is {kind}")
        if info.st_size == 0:
            raise FormatError(f"{path}: the file is empty")
        if not mmap:
            return np.frombuffer(file.read(), np.uint8)
        return np.frombuffer(Mapping(file.fileno(), info.st_size, access=ACCESS_READ), np.uint8)


def _open_at_once(path: str, flags: int) -> int:
    """Opening a pipe waits for a writer otherwise, and there may be none."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of `path` when the block ends well, and leaves no trace otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # Made like any new file, so that it has the permissions of one.
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        # A full disk is told without a name, by whatever was written last.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
