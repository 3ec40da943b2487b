"""HIP behind the classes of CUDA's driver, against a library that keeps books: names, order, memory, every failure."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess

import numpy as np
import pytest
from fake_hip import FakeHip

import rlx
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.driver import Missing, Present
from rlx.backends.cuda.driver_types import FUNCTIONS
from rlx.backends.cuda.errors import CudaError
from rlx.backends.cuda.memory import STAGE_BYTES
from rlx.backends.cuda.modules import Arguments, Launch, Module, launch
from rlx.backends.cuda.streams import Event, Stream
from rlx.backends.rocm import code
from rlx.backends.rocm import hip as hip_module
from rlx.backends.rocm.device import amd_infos, open_amd_gpu
from rlx.backends.rocm.hip import NAMES, HipDriver, HipError, probe, using
from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import GFX942, GFX1100

# What only NVIDIA's GPUs have: their assembler, tensor maps, clusters and dependent launches, other contexts.
WITHOUT = {name for name in FUNCTIONS if name.startswith(("cuLink", "cuTensorMap", "cuLaunchKernelEx"))}
WITHOUT |= {"cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent", "cuFuncSetAttribute"}


def adding(name="add_one", machine=GFX942):
    """A kernel in threads: x[i] += 1, and its code object."""
    k = KernelBuilder(name)
    x, n = k.pointer("x", DType.F32, write=True, read=True), k.index("n")
    with k.parallel("block", k.ceildiv(n, 4)) as block, k.threads("thread", 4) as thread:
        i = block * 4 + thread
        with k.when(i < n):
            k.store(x, i, k.load(x, i) + 1.0)
    return code.code_object(k.build(), machine)


def test_without_a_library_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(hip_module.PROCESS, "started", None)
    monkeypatch.setattr(hip_module, "_LIBRARIES", ("libamdhip64_that_is_not_there.so",))
    found = probe()
    assert isinstance(found, Missing) and "there is no ROCm" in found.reason and amd_infos() == []
    assert not rlx.is_available("rocm")
    with pytest.raises(BackendError, match=r"there is no ROCm .*never been executed on an AMD GPU"):
        rlx.Session("rocm")


def test_every_function_that_is_used_has_one_in_hip(hip):
    started = hip_module.PROCESS.get()
    missing = {name for name in FUNCTIONS if name not in NAMES and not hasattr(HipDriver, f"_{name}")}
    assert missing == WITHOUT
    with pytest.raises(BackendError, match=r"this driver \(HIP 6\.4\) lacks cuLinkCreate_v2"):
        started.cuLinkCreate_v2()


def test_old_versions_other_chips_and_other_numbers_are_refused():
    with pytest.raises(BackendError, match=r"HIP 5\.2 is too old, HIP 6\.0 or later is needed"):
        HipDriver(FakeHip(version=50_221_153))
    with (
        using(FakeHip(arch="gfx906")),
        pytest.raises(BackendError, match="is a gfx906; kernels are made for gfx90a, gfx942"),
    ):
        open_amd_gpu(0)
    with using(FakeHip(devices=0)):
        assert isinstance(probe(), Missing) and "HIP finds no GPU; look at rocminfo" in probe().reason
    with using(FakeHip(devices=2)):
        assert probe() == Present(60_443_483, 2) and [i.arch for i in amd_infos()] == ["gfx942", "gfx942"]
        with pytest.raises(BackendError, match="rocm: there is no GPU number 2; this machine has rocm:0, rocm:1"):
            open_amd_gpu(2)


def test_a_device_says_what_it_is(hip, amd_gpu):
    amd_gpu.use()
    assert amd_gpu is open_amd_gpu(0) and hip.current == 0
    assert str(amd_gpu.info) == "Fake Instinct, gfx942, 304 compute units, 1.0 GiB, HIP 6.4"
    assert amd_gpu.info.shared_bytes == 64 << 10 and rlx.is_available("rocm")


def test_errors_speak_of_hip(hip, amd_gpu):
    hip.fail["hipStreamSynchronize"] = [700]
    with pytest.raises(HipError, match=r"rocm: hipStreamSynchronize: ILLEGAL_ADDRESS: .* start it again") as caught:
        amd_gpu.stream.synchronize()
    assert caught.value.is_fatal and isinstance(caught.value, CudaError)
    hip.fail["hipSetDevice"] = [304]
    with pytest.raises(HipError, match=r"rocm: hipSetDevice: OPERATING_SYSTEM: .*/dev/kfd"):
        amd_gpu.use()
    with pytest.raises(HipError, match=r"hipMallocFromPoolAsync: OUT_OF_MEMORY: .*2048\.0 MiB wanted for a model"):
        amd_gpu.pool.allocate(2 << 30, amd_gpu.stream, "a model")


def test_code_for_another_chip_or_no_code_is_refused_by_the_loader(hip, amd_gpu):
    with pytest.raises(HipError, match="kernel of mine could not be loaded: NO_BINARY_FOR_GPU"):
        Module(amd_gpu, adding(machine=GFX1100), "kernel of mine")
    with pytest.raises(HipError, match="INVALID_KERNEL_FILE"):
        Module(amd_gpu, b"no code at all" * 9)
    assert not hip.live["module"]


@pytest.mark.parametrize("size", [0, 1, 65537, STAGE_BYTES + 7])
def test_copies_arrive_whole_although_nothing_is_done_before_somebody_waits(hip, amd_gpu, size):
    x = np.random.default_rng(size).integers(0, 256, size).astype("u1")
    there = DeviceArray.of(x, amd_gpu.stream)
    kept = x.copy()
    x[:] = 0
    assert np.array_equal(there.copy().numpy(), kept)
    assert not size or there.__dlpack_device__() == (10, 0)


def test_work_is_done_in_the_order_of_streams_and_events(hip, amd_gpu):
    function = Module(amd_gpu, adding()).function("add_one")
    first, second = Stream(amd_gpu), Stream(amd_gpu)
    x = DeviceArray.of(np.zeros(10, "f4"), first)
    arguments = Arguments([x.address, 10])
    launch(function, Launch(3, 4), arguments.address, first)
    assert not first.is_done and hip.launches[-1][1:3] == ((3, 1, 1), (4, 1, 1))
    # Nobody has waited: what is there is what was there before.
    assert not (hip.memory_at(x.address, 40).view("f4") == 1).any()
    second.wait(first.record())
    launch(function, Launch(3, 4), arguments.address, second)
    second.synchronize()
    assert (hip.memory_at(x.address, 40).view("f4") == 2).all() and first.is_done and second.is_done


def test_memory_that_was_freed_is_not_touched(hip, amd_gpu):
    function = Module(amd_gpu, adding()).function("add_one")
    stream = Stream(amd_gpu)
    x = DeviceArray.of(np.zeros(10, "f4"), stream)
    address, arguments = x.address, Arguments([x.address, 10])
    del x
    gc.collect()
    launch(function, Launch(3, 4), arguments.address, stream)
    with pytest.raises(HipError, match="ILLEGAL_ADDRESS"):
        stream.synchronize()
    assert hip.faults == ["add_one: x lies in memory that was freed"]
    hip.faults.clear()
    with pytest.raises(HipError, match="hipMemcpyDtoDAsync: INVALID_VALUE"):
        amd_gpu.driver.cuMemcpyDtoDAsync_v2(address, address, 4, stream.handle)
    assert amd_gpu.driver.raw("cuMemFreeAsync")(address, stream.handle) == 1  # twice


def test_memory_comes_back_when_nobody_holds_it(hip, amd_gpu):
    buffer = amd_gpu.pool.allocate(2 << 20, amd_gpu.stream)
    assert hip.used == amd_gpu.pool.used_bytes == 2 << 20
    del buffer
    gc.collect()
    amd_gpu.stream.synchronize()
    assert hip.used == 0 and "hipFreeAsync" in hip.log


def test_graphs_are_recorded_launched_and_updated(hip, amd_gpu):
    function = Module(amd_gpu, adding()).function("add_one")
    stream = Stream(amd_gpu)
    x, y = (DeviceArray.of(np.zeros(4, "f4"), stream) for _ in range(2))

    def recorded(array, times):
        arguments = Arguments([array.address, 4])
        with stream.capture() as graph:
            for _ in range(times):
                launch(function, Launch(1, 4), arguments.address, stream)
        return graph

    graph = recorded(x, 3)
    assert graph.node_count == 3 and (x.numpy() == 0).all()
    ready = graph.instantiate()
    ready.launch(stream)
    assert (x.numpy() == 3).all()
    assert ready.update(recorded(y, 3)) and not ready.update(recorded(y, 2))
    ready.launch(stream)
    assert (x.numpy() == 3).all() and (y.numpy() == 3).all()


def test_handles_are_destroyed_once(hip, amd_gpu):
    before = {kind: len(handles) for kind, handles in hip.live.items()}
    stream, event = Stream(amd_gpu), Event(amd_gpu)
    stream.wait(stream.record(event))
    function = Module(amd_gpu, adding()).function("add_one")
    assert function.resources.registers == 40 and function.blocks_per_multiprocessor(64) == 32
    assert len(hip.live["module"]) == before["module"] + 1
    del stream, event, function
    gc.collect()
    assert {kind: len(handles) for kind, handles in hip.live.items()} == before


@pytest.mark.targets
def test_arguments_go_through_ctypes_as_a_library_takes_them(tmp_path):
    """A library of C in which three functions write down what they get."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler: install gcc")
    (tmp_path / "hip.c").write_text(STUB)
    library = tmp_path / "libstub.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "hip.c"], check=True)
    stub = ctypes.CDLL(str(library))
    with using(stub):
        gpu = open_amd_gpu(0)
        assert (gpu.info.arch, gpu.info.name, gpu.info.memory_bytes) == ("gfx1100", "Stub", 3 << 33)
        assert gpu.info.multiprocessors == 63 and gpu.info.shared_bytes == 74
        x = DeviceArray.of(np.arange(5, dtype="f4"), gpu.stream)
        function = Module(gpu, b"\x7fELF code").function("f")
        launch(function, Launch(7, 128), Arguments([x.address, 5]).address, gpu.stream)
        words = (ctypes.c_ulonglong * 8).in_dll(stub, "launched")
        assert list(words)[:6] == [7, 1, 128, 0, x.address, 5]
        np.testing.assert_array_equal(x.numpy(), np.arange(5, dtype="f4"))
        del x, function
        gc.collect()
        gpu.pool.trim()
        assert ctypes.c_int.in_dll(stub, "live").value == 0


STUB = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned long long u64;
u64 launched[8];
int live;
int hipInit(unsigned flags) { return 0; }
int hipDriverGetVersion(int *v) { *v = 60443483; return 0; }
int hipGetDeviceCount(int *n) { *n = 1; return 0; }
int hipDeviceGet(int *d, int i) { *d = i; return 0; }
int hipDeviceGetName(char *s, int n, int d) { strcpy(s, "Stub"); return 0; }
int hipDeviceTotalMem(size_t *n, int d) { *n = (size_t)3 << 33; return 0; }
int hipDeviceGetAttribute(int *v, int which, int d) { *v = which; return 0; }
int hipGetDevicePropertiesR0600(void *p, int d) { strcpy((char *)p + 1160, "gfx1100"); return 0; }
int hipSetDevice(int d) { return d ? 101 : 0; }
int hipStreamCreateWithPriority(void **s, unsigned flags, int p) { *s = malloc(1); return 0; }
int hipStreamDestroy(void *s) { free(s); return 0; }
int hipStreamSynchronize(void *s) { return 0; }
int hipEventCreateWithFlags(void **e, unsigned flags) { *e = malloc(1); return 0; }
int hipEventDestroy(void *e) { free(e); return 0; }
int hipMemPoolCreate(void **p, const void *props) { *p = malloc(1); return ((int *)props)[0] == 1 ? 0 : 1; }
int hipMemPoolSetAttribute(void *p, int which, void *v) { return 0; }
int hipMemPoolTrimTo(void *p, size_t keep) { return 0; }
int hipMallocFromPoolAsync(void **at, size_t n, void *p, void *s) { *at = malloc(n); live++; return 0; }
int hipFreeAsync(void *at, void *s) { free(at); live--; return 0; }
int hipHostMalloc(void **at, size_t n, unsigned flags) { *at = malloc(n); return 0; }
int hipMemcpyHtoDAsync(void *to, const void *from, size_t n, void *s) { memcpy(to, from, n); return 0; }
int hipMemcpyDtoHAsync(void *to, const void *from, size_t n, void *s) { memcpy(to, from, n); return 0; }
int hipModuleLoadData(void **m, const void *image) { *m = malloc(1); return memcmp(image, "\x7f" "ELF", 4) ? 218 : 0; }
int hipModuleUnload(void *m) { free(m); return 0; }
int hipModuleGetFunction(void **f, void *m, const char *name) { *f = m; return strcmp(name, "f") ? 500 : 0; }
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *s, void **args, void **extra) {
    u64 words[] = {gx, gy, bx, shared, *(u64 *)args[0], *(u64 *)args[1]};
    memcpy(launched, words, sizeof words);
    return 0;
}
"""
