"""A file mapped into memory, read only, and files that appear whole or not at all."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError

U8 = npt.NDArray[np.uint8]


def map_file(path: Path) -> U8:
    """The bytes of `path` as a read-only array; nothing is read until it is looked at.

    The mapping ends when the last view of the array is gone.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise FormatError(f"{path}: the file is empty")
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)


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
    except BaseException:
        part.unlink(missing_ok=True)
        raise
