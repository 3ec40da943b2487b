"""LLVM's pages can be given back at any time, and compiling goes on as before."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.native import kernels as native
from rlx.ir.dtype import DType
from rlx.kernels.emit import llvm_pages
from rlx.kernels.ir.builder import KernelBuilder

SMAPS = """\
7f0000000000-7f0000100000 r--p 00000000 fe:00 11                         /site/llvmlite/binding/libllvmlite.so
Size:               1024 kB
Rss:                 512 kB
Anonymous:             0 kB
7f0000100000-7f0000900000 r-xp 00100000 fe:00 11                         /site/llvmlite/binding/libllvmlite.so
Rss:                4096 kB
Anonymous:             0 kB
7f0000900000-7f0000a00000 r--p 00900000 fe:00 11                         /site/llvmlite/binding/libllvmlite.so
Rss:                1024 kB
Anonymous:          1024 kB
7f0000a00000-7f0000a10000 rw-p 00a00000 fe:00 11                         /site/llvmlite/binding/libllvmlite.so
Rss:                  64 kB
Anonymous:             0 kB
7f0000a10000-7f0000b00000 r-xp 00000000 fe:00 12                         /usr/lib/libc.so.6
Anonymous:             0 kB
7f0000b00000-7f0000c00000 rw-p 00000000 00:00 0
Anonymous:             4 kB
"""


def test_only_what_is_as_in_the_file():
    found = list(llvm_pages.unchanged_ranges(SMAPS, "libllvmlite"))
    assert found == [(0x7F0000000000, 0x7F0000100000), (0x7F0000100000, 0x7F0000900000)]
    assert list(llvm_pages.unchanged_ranges(SMAPS, "libother")) == []


def added(number):
    k = KernelBuilder("added")
    x, y = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True)
    with k.parallel("i", 4) as i:
        k.store(y, i, k.load(x, i) + float(number))
    return k.build()


def resident():
    """Kilobytes of LLVM that are in memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[:1].isdigit() or line[:1] in "abcdef":
            inside = "libllvmlite" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_goes_on():
    loader, x = native.Loader(), np.arange(4, dtype=np.float32)
    for number in range(3):
        y = np.zeros_like(x)
        loader.load(added(number))(x, y)
        np.testing.assert_array_equal(y, x + number)
        before = resident()
        llvm_pages.drop_llvm_pages()
        assert resident() < before / 2
