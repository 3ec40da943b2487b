"""Modules about the host: target predicates, copies, timing, static checks."""

import platform
import sys

import numpy as np
import pytest

from rlx.compat import const_check
from rlx.compat import host_facts as target
from rlx.compat.async_copy import BarrierToken, DoubleBuffer, SyncCopy
from rlx.compat.measure import CacheBuster, Tick, time_ns
from rlx.errors import OpError, VerificationError


@pytest.mark.parametrize(
    ("system", "machine", "true"),
    [
        ("linux", "x86_64", {"is_x86_64"}),
        ("win32", "AMD64", {"is_x86_64"}),
        ("linux", "aarch64", {"is_aarch64", "has_neon"}),
        ("darwin", "arm64", {"is_aarch64", "has_neon", "is_macos", "is_apple_silicon", "has_amx", "has_metal"}),
        ("darwin", "x86_64", {"is_x86_64", "is_macos", "has_metal"}),
        ("linux", "riscv64", set()),
    ],
)
def test_predicates(monkeypatch, system, machine, true):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    target.machine.cache_clear()
    names = ["is_x86_64", "is_aarch64", "is_macos", "is_apple_silicon", "has_neon", "has_amx", "has_metal"]
    try:
        assert {name for name in names if getattr(target, name)()} == true
    finally:
        target.machine.cache_clear()


@pytest.mark.parametrize(
    ("machine", "flags", "answer"),
    [
        ("x86_64", {"sse2", "avx2"}, True),
        ("x86_64", {"sse2", "avx"}, False),
        ("x86_64", set(), True),
        ("aarch64", set(), False),
    ],
)
def test_avx2(monkeypatch, machine, flags, answer):
    monkeypatch.setattr(target, "machine", lambda: machine)
    monkeypatch.setattr(target, "_cpu_flags", lambda: frozenset(flags))
    target.has_avx2_likely.cache_clear()
    try:
        assert target.has_avx2_likely() is answer
    finally:
        target.has_avx2_likely.cache_clear()


def test_sync_copy():
    copy = SyncCopy()
    src, dst = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 3), np.float32)
    token = copy.issue(src, dst, src.nbytes)
    copy.wait(token)
    assert dst.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0]
    target_bytes = bytearray(4)
    copy.wait(copy.issue(b"abcdef", target_bytes, 3))
    assert target_bytes == b"abc\0"


def test_sync_copy_errors():
    copy = SyncCopy()
    with pytest.raises(OpError, match=r"copy of 5 bytes: .* got 4 bytes into 8 bytes"):
        copy.issue(b"abcd", bytearray(8), 5)
    with pytest.raises(OpError, match="read-only"):
        copy.issue(b"abcd", b"abcd", 2)
    with pytest.raises(OpError, match="no copy with the token 3"):
        copy.wait(BarrierToken(3))


def test_double_buffer():
    a, b = bytearray(1), bytearray(2)
    buffers = DoubleBuffer(a, b)
    assert buffers.current is a and buffers.next is b
    buffers.swap()
    assert buffers.current is b and buffers.next is a and buffers.pair == (b, a)


def test_ticks(monkeypatch):
    readings = iter([1000, 5500, 1000, 900])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(readings))
    start = Tick.now()
    assert start.elapsed_us() == 4.5
    assert Tick.now().elapsed_ns() == 0  # a clock that went back


def test_tick_units(monkeypatch):
    monkeypatch.setattr("time.perf_counter_ns", lambda: 3_000_000)
    assert (Tick(0).elapsed_ns(), Tick(0).elapsed_us(), Tick(0).elapsed_ms()) == (3_000_000, 3000.0, 3.0)
    assert Tick.elapsed_ns(Tick(1)) == 2_999_999


def test_time_ns(monkeypatch):
    readings = iter([10, 52])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(readings))
    assert time_ns(lambda: "result") == ("result", 42)


def test_cache_buster_touches_every_line():
    buster = CacheBuster(bytes=64 * 100)
    assert [buster.thrash(), buster.thrash()] == [100, 200]
    assert CacheBuster()._data.nbytes == 32 << 20


@pytest.mark.parametrize("a", [(), (1,), (3,), (2, 3), (2, 1), (4, 1, 3), (0,), (2, 0)])
@pytest.mark.parametrize("b", [(), (1,), (3,), (5, 1, 3), (2, 3), (4, 2), (0,)])
def test_broadcastable_is_numpys(a, b):
    try:
        np.broadcast_shapes(a, b)
        wanted = True
    except ValueError:
        wanted = False
    assert const_check.broadcastable(a, b) is wanted


@pytest.mark.parametrize("a", [(4,), (2, 4), (3, 2, 4), (5, 2, 4), (1, 2, 4)])
@pytest.mark.parametrize("b", [(4,), (4, 3), (3, 4, 3), (2, 4), (7, 1, 4, 3)])
def test_matmul_compat_is_numpys(a, b):
    try:
        np.matmul(np.zeros(a), np.zeros(b))
        wanted = len(a) > 1 and len(b) > 1  # NumPy also multiplies vectors
    except ValueError:
        wanted = False
    assert const_check.matmul_compat(a, b) is wanted


def test_ranks_and_counts():
    assert const_check.rank_eq((2, 3), 2) and not const_check.rank_eq((2, 3), 1)
    assert const_check.rank_at_least((2, 3), 1) and not const_check.rank_at_least((2,), 2)
    assert const_check.shape_elements((2, 3, 4)) == 24 and const_check.shape_elements(()) == 1
    const_check.static_assert(True, "fine")
    with pytest.raises(VerificationError, match="static assertion failed: heads must divide"):
        const_check.static_assert(False, "heads must divide")
