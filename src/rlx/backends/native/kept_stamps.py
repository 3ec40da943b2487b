"""Stamps of rlx's own sources, found without reading them all.

A process that runs a program from disk needs the stamp of every source (`rlx.stamps`), and reading a thousand files
takes longer than the run. What was hashed is kept under the state of the files: their paths, sizes, times, and which
files they are. A file whose bytes change gets another time of change, which no program can set.

    kept_stamp("kernels/ir", "kernels/emit")        # the same as source_stamp, and faster the second time
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from functools import cache
from pathlib import Path

from rlx.backends.native.object_cache import DiskCache
from rlx.errors import BackendError
from rlx.stamps import PACKAGE, source_files, source_stamp

# A file that has just changed may change again within one tick of the clock that its times are taken from.
SETTLED_NS = 2_000_000_000


@cache
def kept_stamp(*names: str, package: Path = PACKAGE) -> str:
    """`source_stamp` of the same names."""
    before = _state(names, package)
    entries = _entries() if before is not None else None
    if before is None or entries is None:
        return source_stamp(*names, package=package)
    key, newest = before
    found = entries.get(key)
    if found is not None and re.fullmatch(rb"[0-9a-f]{64}", found):
        return found.decode()
    stamp = source_stamp(*names, package=package)
    # Only if nothing has changed while the files were read, and nothing can have that looks the same.
    if _state(names, package) == before and newest + SETTLED_NS < time.time_ns():
        entries.put(key, stamp.encode())
    return stamp


def _state(names: tuple[str, ...], package: Path) -> tuple[str, int] | None:
    """A hash of what the system knows of the files, and when one of them last changed; None if one cannot be seen."""
    known, newest = [repr((names, str(package)))], 0
    try:
        for name in names:
            for file in source_files(package / name):
                info = os.stat(file)
                newest = max(newest, info.st_mtime_ns, info.st_ctime_ns)
                known.append(f"{file} {info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}")
    except OSError:
        return None
    return hashlib.sha256("\0".join(known).encode()).hexdigest(), newest


@cache
def _entries() -> DiskCache | None:
    try:
        return DiskCache(folder="stamps")
    except (OSError, BackendError):
        return None
