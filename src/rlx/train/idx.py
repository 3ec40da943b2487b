"""IDX files, in which MNIST comes: a type, the sizes of the axes, and the elements, all big endian; gzipped or not."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError

__all__ = ["read_idx"]

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> npt.NDArray[np.generic]:
    """The array of a file such as `t10k-images-idx3-ubyte.gz`."""
    place = Path(path)
    if not place.is_file():
        raise FormatError(f"{place}: there is no such {_absent(place)}")
    data = place.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"{place}: not a whole gzip file: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise FormatError(f"{place}: an IDX file begins with 0, 0, a type and a number of axes, got {data[:4]!r}")
    kind, rank = np.dtype(_TYPES[data[2]]), data[3]
    head = 4 + 4 * rank
    sizes = tuple(int(n) for n in np.frombuffer(data[4:head], ">u4")) if len(data) >= head else ()
    wanted = head + kind.itemsize * math.prod(sizes)
    if len(sizes) != rank or len(data) != wanted:
        raise FormatError(f"{place}: {rank} axes of sizes {list(sizes)} need {wanted} bytes, the file has {len(data)}")
    return np.frombuffer(data, kind, offset=head).reshape(sizes).astype(kind.newbyteorder("="))


def _absent(place: Path) -> str:
    """What is not there, and what may have been meant instead."""
    if not place.parent.is_dir():
        return f"file, and no folder {place.parent}"
    others = sorted(file.name for file in place.parent.glob("*-idx*"))
    return f"file; the folder has {', '.join(others[:4])}" if others else "file; the folder has no IDX files"
