"""The binding of the driver against a library that keeps books: its calls, their order, and every failure."""

import ctypes
import gc
import os

import numpy as np
import pytest
from fake_libcuda import POISON, FakeCuda

import rlx
from rlx.backends.cuda import driver as driver_module
from rlx.backends.cuda import memory
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.device import gpu_infos, open_gpu
from rlx.backends.cuda.driver import Driver, Missing, Present, probe, using
from rlx.backends.cuda.driver_types import LaunchAttributeId
from rlx.backends.cuda.errors import CudaError
from rlx.backends.cuda.memory import STAGE_BYTES
from rlx.backends.cuda.modules import Arguments, Launch, Module, assemble, launch
from rlx.backends.cuda.streams import Event, Stream
from rlx.backends.cuda.timing import Case, measure, measure_limits
from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder


def test_without_a_library_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(driver_module.PROCESS, "started", None)
    monkeypatch.setattr(driver_module, "_LIBRARIES", ("libcuda_that_is_not_there.so",))
    found = probe()
    assert isinstance(found, Missing)
    assert "there is no NVIDIA driver" in found.reason and "install it" in found.reason
    assert gpu_infos() == []
    assert not rlx.is_available("cuda")
    with pytest.raises(BackendError, match="there is no NVIDIA driver"):
        rlx.Session("cuda")
    with pytest.raises(BackendError, match="there is no NVIDIA driver"):
        open_gpu(0)


def test_an_old_driver_is_refused_with_both_versions():
    with pytest.raises(BackendError, match=r"supports CUDA 11\.4, 12\.0 or later is needed"):
        Driver(FakeCuda(version=11040))


def test_no_gpu_is_an_answer():
    with using(FakeCuda(devices=0)):
        assert isinstance(probe(), Missing) and "finds no GPU" in probe().reason
    with using(FakeCuda(devices=2)):
        assert probe() == Present(13000, 2)
        assert [i.index for i in gpu_infos()] == [0, 1]
        with pytest.raises(BackendError, match="no GPU number 2; this machine has cuda:0, cuda:1"):
            open_gpu(2)


def test_an_old_gpu_is_refused():
    with using(FakeCuda(capability=(7, 0))), pytest.raises(BackendError, match=r"capability 7\.0, kernels need 7\.5"):
        open_gpu(0)


def test_a_function_that_an_old_driver_lacks_is_named():
    class Without(FakeCuda):
        cuLaunchKernelEx = None

    with using(Without()) as found, pytest.raises(BackendError, match="lacks cuLaunchKernelEx; install a newer one"):
        found.cuLaunchKernelEx()


def test_a_device_says_what_it_is(gpu):
    assert gpu.info.arch == "sm_90a"
    assert str(gpu.info) == "Fake GPU, sm_90a, 132 multiprocessors, 1.0 GiB, CUDA 13.0"
    assert gpu is open_gpu(0)


def test_errors_have_a_name_a_meaning_and_a_way_out(fake, gpu):
    fake.fail["cuStreamSynchronize"] = [700]
    with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS: a kernel touched memory .* start it again") as caught:
        gpu.stream.synchronize()
    assert caught.value.is_fatal and caught.value.code == 700
    fake.fail["cuStreamSynchronize"] = [4711]
    with pytest.raises(CudaError, match="code 4711"):
        gpu.stream.synchronize()
    fake.fail["cuStreamQuery"] = [600]
    assert not gpu.stream.is_done
    assert gpu.stream.is_done


def test_memory_comes_back_when_nobody_holds_it(fake, gpu):
    buffer = gpu.pool.allocate(2 << 20, gpu.stream)
    assert fake.used == gpu.pool.used_bytes == 2 << 20
    del buffer
    gc.collect()
    assert fake.used == 0 and fake.log[-1] == "cuMemFreeAsync"


def test_small_memory_of_the_main_stream_is_handed_out_again_without_the_driver(fake, gpu):
    first = gpu.pool.allocate(1000, gpu.stream)
    address = first.address
    del first
    gc.collect()
    fake.log.clear()
    second = gpu.pool.allocate(1000, gpu.stream)
    assert second.address == address and not fake.log
    assert gpu.pool.allocate(1000, Stream(gpu)).address != address
    del second
    gc.collect()
    with gpu.stream.capture():
        # What a graph allocates is the graph's own.
        recorded = gpu.pool.allocate(1000, gpu.stream)
        assert recorded.address != address
    del recorded
    gc.collect()
    gpu.pool.trim()
    assert fake.used == 0


def test_kept_memory_has_a_limit(fake, gpu, monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 2048)
    buffers = [gpu.pool.allocate(1024, gpu.stream) for _ in range(4)]
    del buffers
    gc.collect()
    assert fake.used == 2048


def test_without_memory_idle_memory_is_given_back_first(fake, gpu):
    gpu.pool  # noqa: B018  (made before the log is read)
    fake.log.clear()
    fake.fail["cuMemAllocFromPoolAsync"] = [2]
    assert gpu.pool.allocate(64, gpu.stream).size == 64
    wanted = ["cuMemAllocFromPoolAsync", "cuStreamSynchronize", "cuMemPoolTrimTo", "cuMemAllocFromPoolAsync"]
    assert [name for name in fake.log if name in wanted] == wanted


def test_too_much_memory_is_an_error_with_numbers_and_the_next_works(fake, gpu):
    with pytest.raises(CudaError, match=r"2048\.0 MiB wanted for a model, 1024\.0 MiB of 1024\.0 MiB free") as caught:
        gpu.pool.allocate(2 << 30, gpu.stream, "a model")
    assert not caught.value.is_fatal and fake.used == 0
    assert gpu.pool.allocate(1 << 20, gpu.stream).size == 1 << 20


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, STAGE_BYTES - 1, 2 * STAGE_BYTES + 7])
def test_copies_arrive_whole(gpu, size):
    x = np.random.default_rng(size).integers(0, 256, size).astype("u1")
    there = DeviceArray.of(x, gpu.stream)
    kept = x.copy()
    x[:] = POISON
    assert np.array_equal(there.numpy(), kept)
    assert np.array_equal(np.asarray(there.copy()), kept)


def test_strided_arrays_and_scalars_are_copied_as_they_are(gpu):
    x = np.arange(12, dtype="f4").reshape(3, 4)
    for array in (x.T, x[:, 1:3], x[0, 0].reshape(())):
        there = DeviceArray.of(array, gpu.stream)
        assert there.shape == array.shape and np.array_equal(there.numpy(), array)
    interface = DeviceArray.of(x, gpu.stream).__cuda_array_interface__
    assert interface["shape"] == (3, 4) and interface["typestr"] == "<f4" and interface["version"] == 3


def adding(fake, name="add_one"):
    """A kernel in threads: x[i] += 1."""
    k = KernelBuilder(name)
    x, n = k.pointer("x", DType.F32, write=True, read=True), k.index("n")
    with k.parallel("block", k.ceildiv(n, 4)) as block, k.threads("thread", 4) as thread:
        i = block * 4 + thread
        with k.when(i < n):
            k.store(x, i, k.load(x, i) + 1.0)
    kernel = k.build()
    fake.kernels[kernel.text] = kernel
    return kernel


def test_a_launch_gets_what_it_is_given(fake, gpu):
    kernel = adding(fake)
    function = Module(gpu, assemble(gpu, kernel.text).cubin).function("add_one")
    x = DeviceArray.of(np.zeros(10, "f4"), gpu.stream)
    arguments = Arguments([x.address, 10])
    shapes = [Launch(3, 4), Launch(3, 4, cluster=2), Launch(3, 4, dependent=True), Launch(3, 4, 0, 2, True)]
    for shape in shapes:
        launch(function, shape, arguments.address, gpu.stream)
    assert (x.numpy() == 4).all()
    attributes = [a for _, _, _, a in fake.launches]
    cluster, dependent = LaunchAttributeId.CLUSTER_DIMENSION, LaunchAttributeId.PROGRAMMATIC_STREAM_SERIALIZATION
    assert [set(a) for a in attributes] == [set(), {cluster}, {dependent}, {cluster, dependent}]
    assert (attributes[1][cluster].cluster.x, attributes[2][dependent].flag) == (2, 1)
    assert function.resources.registers == 40


def test_what_does_not_assemble_is_named_and_nothing_is_left(fake, gpu):
    with pytest.raises(CudaError, match="kernel of mine could not be assembled: INVALID_PTX"):
        assemble(gpu, "no code at all", "kernel of mine")
    with pytest.raises(CudaError, match="could not be loaded"):
        Module(gpu, b"no code at all")
    assert not fake.live["link"] and not fake.live["module"]


def test_graphs_are_recorded_launched_and_updated(fake, gpu):
    kernel = adding(fake)
    function = Module(gpu, kernel.text.encode()).function("add_one")
    stream = Stream(gpu)
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
    assert ready.update(recorded(y, 3)) and not ready.update(recorded(y, 2))
    ready.launch(stream)
    assert (x.numpy() == 3).all() and (y.numpy() == 3).all()


def test_a_broken_recording_leaves_the_stream_usable(fake, gpu):
    stream = Stream(gpu)
    with pytest.raises(KeyError), stream.capture():
        raise KeyError
    assert not fake.recording
    stream.synchronize()


def test_handles_are_destroyed_once(fake, gpu):
    before = {kind: len(handles) for kind, handles in fake.live.items()}
    stream, event = Stream(gpu), Event(gpu)
    stream.wait(stream.record(event))
    module = Module(gpu, adding(fake).text.encode())
    function = module.function("add_one")
    del module
    gc.collect()
    assert len(fake.live["module"]) == before["module"] + 1
    del stream, event, function
    gc.collect()
    assert {kind: len(handles) for kind, handles in fake.live.items()} == before


def test_a_forked_child_is_told(gpu):
    child = os.fork()
    if child == 0:
        try:
            gpu.use()
        except BackendError as error:
            os._exit(0 if "the driver does not survive a fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gpu.use()


def test_measuring_takes_turns(fake, gpu):
    order = []
    cases = [Case(name, lambda i, name=name: order.append((name, i))) for name in "abc"]
    found = measure(gpu, cases, rounds=4, launches=2, pause=0.0)
    assert set(found) == {"a", "b", "c"} and all(len(m.rounds) == 4 and m.median > 0 for m in found.values())
    rounds = [tuple(name for name, i in order[9 + 6 * r : 15 + 6 * r : 2]) for r in range(4)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds) and len(set(rounds)) > 1
    cold = measure(gpu, cases[:1], rounds=1, launches=3, pause=0.0, cold=True)
    assert cold["a"].spread == 0.0 and fake.log.count("cuMemsetD8Async") == 3
    with pytest.raises(BackendError, match="names of cases must differ"):
        measure(gpu, [cases[0], cases[0]])
    with pytest.raises(BackendError, match="at least one round"):
        measure(gpu, cases, rounds=0)


def test_limits_count_what_is_read_and_written(fake, gpu, monkeypatch):
    from rlx.backends.cuda import timing

    monkeypatch.setattr(timing.copy_case, "__defaults__", (1 << 20,))
    # The fake's clock makes one millisecond of every pair of events.
    assert measure_limits(gpu).copy == pytest.approx(2 * (1 << 20) / (1e-3 / 5))
    assert ctypes.sizeof(ctypes.c_void_p) == 8
