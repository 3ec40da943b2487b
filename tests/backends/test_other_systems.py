"""macOS and Windows against stand-ins for their libraries. The stand-ins keep the rules of the real ones: protected
pages cannot be written, code for Windows is called as Windows calls, and who waits on an address really sleeps."""

import ctypes
import mmap
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from test_cpu_spmd import SIZE, TableByHand, rotated_kernel

import rlx
from kernels.test_linker import horner_kernel
from rlx.backends.cpu import pool as pools
from rlx.backends.cpu.executor import Executor, compile_executor
from rlx.backends.cpu.executor_layout import EXPORTS
from rlx.backends.cpu.executor_sleep import system_symbols
from rlx.backends.cpu.pool import Pool
from rlx.backends.native import kernels as native
from rlx.backends.native import linker
from rlx.backends.native.elf import undefined_symbols
from rlx.compile.target import select
from rlx.errors import BackendError
from rlx.kernels import machines
from rlx.kernels.emit import llvm_codegen
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import AVX2, AVX512_VNNI, NEON, NEON_DOT, NEON_I8MM, SSE2, host
from rlx.systems import this_system
from rlx.systems.linux import Linux
from rlx.systems.macos import MacOS
from rlx.systems.windows import Windows

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not host().triple.startswith("x86_64"), reason="the stand-ins are for x86-64 Linux"
)
WINDOWS = replace(host(), triple="x86_64-pc-windows-msvc-elf")
RETURN_11 = b"\xb8\x0b\x00\x00\x00\xc3"  # mov eax, 11; ret


class Function:
    """A function of a library, which takes types as those of ctypes do."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *args):
        return self.call(*args)


def linux_pages(size, access):
    return Linux().map(size, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class MacLibrary:
    """The calls of macOS on Linux's memory; `calls` are those that were made."""

    def __init__(self, facts=()):
        self.calls, self.facts, self.pages = [], dict(facts), {}
        for name in ("mmap", "munmap", "pthread_jit_write_protect_np", "sys_icache_invalidate", "sysctlbyname"):
            setattr(self, name, Function(getattr(self, f"_{name}")))
        self.mprotect = Function(lambda *args: -1)
        self.pthread_mutex_init, self.pthread_cond_init = (Function(lambda *args: 0) for _ in range(2))

    def _mmap(self, address, size, access, kind, file, offset):
        self.calls.append("mmap")
        assert kind & 0x800 and access == mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC and file == -1
        # Whatever was asked for, a thread first may only run them.
        address = linux_pages(size, mmap.PROT_READ | mmap.PROT_EXEC)
        self.pages[address] = size
        return address

    def _munmap(self, address, size):
        self.calls.append("munmap")
        assert self.pages.pop(address) == size
        return Linux().library.munmap(address, size)

    def _pthread_jit_write_protect_np(self, enabled):
        self.calls.append(f"protect {enabled}")
        access = mmap.PROT_READ | (mmap.PROT_EXEC if enabled else mmap.PROT_WRITE)
        for address, size in self.pages.items():
            assert Linux().library.mprotect(address, size, access) == 0

    def _sys_icache_invalidate(self, address, size):
        self.calls.append("invalidate")

    def _sysctlbyname(self, name, value, size, new, new_size):
        if name not in self.facts:
            return -1
        content = self.facts[name]
        if value is not None:
            ctypes.memmove(value, content, len(content))
        size._obj.value = len(content)
        return 0


def test_code_on_macos_is_written_by_a_thread_that_may_not_run_it():
    library = MacLibrary()
    system = MacOS(library)
    address = system.new_pages(4096)
    system.fill_pages(address, RETURN_11)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 11
    system.free_pages(address, 4096)
    assert library.calls == ["mmap", "protect 0", "protect 1", "invalidate", "munmap"]


def test_kernels_run_from_pages_of_macos(monkeypatch):
    kernel, x = horner_kernel(), np.linspace(-1, 1, 19, dtype=np.float32)
    answers = []
    for system in (this_system(), MacOS(MacLibrary())):
        monkeypatch.setattr(linker, "this_system", lambda system=system: system)
        y = np.zeros_like(x)
        native.Loader().load(kernel)(x, y, 19)
        answers.append(y)
    np.testing.assert_array_equal(*answers)


def test_what_macos_says_of_its_cpu():
    yes, no = (number.to_bytes(4, "little") for number in (1, 0))
    apple = {b"hw.optional.arm.FEAT_DotProd": yes, b"hw.optional.arm.FEAT_I8MM": no}
    assert MacOS(MacLibrary(apple)).cpu_flags() == {"asimddp"}
    apple[b"hw.optional.arm.FEAT_I8MM"] = yes
    assert MacOS(MacLibrary(apple)).cpu_flags() == {"asimddp", "i8mm"}
    intel = {b"machdep.cpu.features": b"FPU FMA F16C\0", b"machdep.cpu.leaf7_features": b"AVX2 BMI2 AVX512F\0"}
    assert MacOS(MacLibrary(intel)).cpu_flags() == {"fma", "f16c", "avx2", "bmi2", "avx512f"}


# What Windows has, by Linux's means and in the way that Windows calls functions; and calls into code of Windows.
WINDOWS_FUNCTIONS = """
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
define win64cc i32 @WaitOnAddress(ptr %p, ptr %seen, i64 %size, i32 %ms) {
  %n = load i32, ptr %seen
  %r = call i64 (i64, ...) @syscall(i64 202, ptr %p, i32 0, i32 %n, ptr null, ptr null, i32 0)
  ret i32 1
}
define win64cc void @WakeByAddressAll(ptr %p) {
  %r = call i64 (i64, ...) @syscall(i64 202, ptr %p, i32 1, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}
define win64cc i32 @SwitchToThread() { %r = call i32 @sched_yield()  ret i32 %r }
define win64cc i32 @QueryPerformanceFrequency(ptr %p) { store i64 10000000, ptr %p  ret i32 1 }
define win64cc i32 @QueryPerformanceCounter(ptr %p) {
  %t = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t
  %q = getelementptr i64, ptr %t, i64 1
  %n = load i64, ptr %q
  %a = mul i64 %s, 10000000
  %b = udiv i64 %n, 100
  %c = add i64 %a, %b
  store i64 %c, ptr %p
  ret i32 1
}
define i64 @call(ptr %f, i64 %a, i64 %b, i64 %c) { %r = call win64cc i64 %f(i64 %a, i64 %b, i64 %c)  ret i64 %r }
"""
WINDOWS_NAMES = sorted(system_symbols(WINDOWS))


class WindowsLibraries:
    """The libraries of Windows by their names."""

    def __init__(self):
        code = llvm_codegen.compile_text(WINDOWS_FUNCTIONS, host(), "a stand-in")
        allowed = {"syscall", "clock_gettime", "sched_yield"}
        self.made = linker.link(code, "a stand-in", host(), [*WINDOWS_NAMES, "call"], allowed)
        self.calls, self.sizes, self.features = [], {}, set()
        for name in WINDOWS_NAMES:
            setattr(self, name, ctypes.c_void_p(self.made.addresses[name]))
        kernel = ("VirtualAlloc", "VirtualProtect", "VirtualFree", "FlushInstructionCache", "IsProcessorFeaturePresent")
        for name in kernel:
            setattr(self, name, Function(getattr(self, f"_{name}")))
        self.GetCurrentProcess = Function(lambda: -1)

    def __call__(self, name):
        assert name in ("kernel32", "kernelbase", "ntdll")
        return self

    def _VirtualAlloc(self, address, size, kind, access):
        self.calls.append("VirtualAlloc")
        assert (address, kind, access) == (None, 0x3000, 0x04)
        found = linux_pages(size, mmap.PROT_READ | mmap.PROT_WRITE)
        self.sizes[found] = size
        return found

    def _VirtualProtect(self, address, size, access, before):
        self.calls.append("VirtualProtect")
        assert access == 0x20 and before is not None
        return Linux().library.mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0

    def _VirtualFree(self, address, size, kind):
        self.calls.append("VirtualFree")
        assert size == 0 and kind == 0x8000
        return Linux().library.munmap(address, self.sizes.pop(address)) == 0

    def _FlushInstructionCache(self, process, address, size):
        self.calls.append("FlushInstructionCache")
        return 1

    def _IsProcessorFeaturePresent(self, number):
        return number in self.features

    def caller(self, address):
        """A function of Windows' code, to be called from here."""
        number = ctypes.c_int64
        call = ctypes.CFUNCTYPE(number, ctypes.c_void_p, number, number, number)(self.made.addresses["call"])
        return lambda *args: call(address, *args, *[0] * (3 - len(args)))


@pytest.fixture
def windows(monkeypatch):
    libraries = WindowsLibraries()
    system = Windows(libraries)
    monkeypatch.setattr(linker, "this_system", lambda: system)
    monkeypatch.setattr(pools, "_system", system)
    return libraries


def test_code_on_windows_is_written_then_run(windows):
    system = Windows(windows)
    address = system.new_pages(4096)
    system.fill_pages(address, RETURN_11)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 11
    system.free_pages(address, 4096)
    assert windows.calls == ["VirtualAlloc", "VirtualProtect", "FlushInstructionCache", "VirtualFree"]


class WindowsKernel:
    def __init__(self, kernel):
        code = llvm_codegen.compile_object(kernel, WINDOWS)
        name = packed_symbol(kernel.name)
        self.linked = linker.link(code, kernel.name, WINDOWS, [name], native.ALLOWED_SYMBOLS)
        self.address = self.linked.addresses[name]


@pytest.fixture
def windows_pool(windows):
    code = compile_executor(WINDOWS)
    assert undefined_symbols(code) == system_symbols(WINDOWS)
    linked = linker.link(code, "the executor", WINDOWS, EXPORTS, system_symbols(WINDOWS))
    made = Pool(Executor(*(windows.caller(linked.addresses[name]) for name in EXPORTS), linked))
    yield made
    made.close()
    assert not any(worker.is_alive() for worker in made._workers)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_of_windows_share_a_run_and_sleep_between_runs(windows_pool, threads):
    kernel = WindowsKernel(rotated_kernel())
    a, b = np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64)
    table = TableByHand([(kernel, (i % 2, 1 - i % 2), SIZE, SIZE, 3, True) for i in range(31)], [a, b])
    for times in range(12):
        a[:] = np.arange(SIZE) + times
        table.run(windows_pool, threads)
        np.testing.assert_array_equal(b, np.roll(np.arange(SIZE) + times, -31) + 31)
        # Long enough for workers to sleep, every other time.
        time.sleep(0.002 * (times % 2))


def test_functions_with_many_variables_probe_the_stack_of_windows():
    text = "define void @f(ptr %p) { %a = alloca [9000 x i8]  store ptr %a, ptr %p  ret void }"
    code = llvm_codegen.compile_text(text, WINDOWS, "a test")
    assert undefined_symbols(code) == {"__chkstk"}


def test_what_windows_says_of_its_cpu(windows, monkeypatch):
    system = Windows(windows)
    assert system.cpu_flags() is None  # LLVM asks
    monkeypatch.setattr("platform.machine", lambda: "ARM64")
    assert system.cpu_flags() == frozenset()
    windows.features.add(43)
    assert system.cpu_flags() == {"asimddp"}


AVX512_FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}


@pytest.mark.parametrize(
    ("machine", "flags", "found"),
    [
        ("x86_64", {"sse2"}, SSE2),
        ("x86_64", {"avx2", "fma", "f16c", "bmi2"}, AVX2),
        ("x86_64", AVX512_FLAGS | {"avx512_vnni"}, AVX512_VNNI),
        ("x86_64", AVX512_FLAGS | {"avx512_vnni", "sse4a"}, replace(AVX512_VNNI, adds_beside_dots=True)),
        ("aarch64", set(), NEON),
        ("aarch64", {"asimddp"}, NEON_DOT),
        ("aarch64", {"asimddp", "i8mm"}, NEON_I8MM),
    ],
    ids=lambda x: getattr(x, "name", x) if not isinstance(x, set) else "+".join(sorted(x)) or "nothing",
)
def test_machines_by_what_systems_say(machine, flags, found, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(Linux, "cpu_flags", lambda self: frozenset(flags))
    assert machines.detected() == found


@pytest.fixture
def no_native_road(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    machines.host.cache_clear()
    yield
    machines.host.cache_clear()


def test_without_native_code_the_reference_runs_and_says_so_once(no_native_road):
    with pytest.warns(UserWarning, match="cpu: there is no native code here .*'s390x'.*NumPy") as told:
        for _ in range(2):
            found = rlx.Session("cpu").compile(doubled()).run({"x": np.ones(3, "f4")})
            np.testing.assert_array_equal(found[0], [2, 2, 2])
    assert len(told) == 1
    assert select("cpu").target.probe().devices[0].name == "NumPy"


def test_a_system_that_refuses_code_has_no_native_road(monkeypatch):
    def refuse(self, address, image):
        raise BackendError("this system does not let a process run code")

    monkeypatch.setattr(Linux, "fill_pages", refuse)
    with pytest.warns(UserWarning, match="does not let a process run code"):
        found = rlx.Session("cpu").compile(doubled()).run({"x": np.ones(3, "f4")})
    np.testing.assert_array_equal(found[0], [2, 2, 2])


@pytest.fixture(autouse=True)
def road_unknown(monkeypatch):
    """What is known of the native road, and the backend that follows from it, are forgotten around each test."""
    from rlx.backends import api
    from rlx.backends.cpu.target import missing_native_road

    monkeypatch.setattr(api, "_backends", {})
    missing_native_road.cache_clear()
    yield
    missing_native_road.cache_clear()


def doubled():
    g = rlx.Graph("doubled")
    g.set_outputs([g.input("x", (3,), "f32") * 2.0])
    return g
