"""LLVM's own code and tables, which stay in memory after a compile though the program that runs has no use for them."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = "libllvmlite"
# A mapping's range, access and file, as /proc/self/smaps heads what it says of one.
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)")


def drop_llvm_pages() -> None:
    """Give back the pages of LLVM that are as they are in its file, some 60 MB after a large compile: the next compile
    finds them in the system's cache of files again. Does nothing where LLVM is not loaded, or not by Linux."""
    if sys.platform != "linux" or "llvmlite.binding" not in sys.modules:
        return
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        return
    system = ctypes.CDLL(None)
    for start, end in unchanged_ranges(text, _LIBRARY):
        system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def unchanged_ranges(smaps: str, library: str) -> Iterator[tuple[int, int]]:
    """Where a library lies in memory as it is in its file: no page was ever written, and none can be. Dropping a page
    that the loader has relocated would lose what it wrote."""
    found: tuple[int, int] | None = None
    for line in smaps.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            start, end, access, file = head.groups()
            is_part = library in Path(file).name and "w" not in access
            found = (int(start, 16), int(end, 16)) if is_part else None
        elif found is not None and line.startswith("Anonymous:"):
            if line.split()[1] == "0":
                yield found
            found = None
