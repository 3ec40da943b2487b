"""What the driver binding promises, on a real GPU. Each function raises if it does not hold."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np

from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.errors import CudaError
from rlx.backends.cuda.modules import Arguments, Launch, Module, assemble, launch
from rlx.backends.cuda.streams import Event, Stream
from rlx.backends.cuda.timing import measure_limits

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry add_one(.param .u64 p, .param .u64 n)
{
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .f32 %f;
    griddepcontrol.wait;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r0, %r1, %r2;
    cvt.u64.u32 %d0, %r3; ld.param.u64 %d1, [n]; setp.ge.u64 %p, %d0, %d1; @%p ret;
    ld.param.u64 %d2, [p]; cvta.to.global.u64 %d3, %d2; shl.b64 %d4, %d0, 2; add.s64 %d4, %d3, %d4;
    ld.global.f32 %f, [%d4]; add.rn.f32 %f, %f, 0f3F800000; st.global.f32 [%d4], %f; ret;
}
"""


def _added(gpu):
    return Module(gpu, assemble(gpu, PTX, "add_one").cubin).function("add_one")


def describes_the_device():
    gpu = open_gpu(0)
    print(gpu.info, gpu.free_memory())
    assert gpu.info.memory_bytes > 1 << 30 and gpu.info.multiprocessors > 0 and gpu.info.l2_bytes > 1 << 20


def launches_in_every_way():
    gpu, n = open_gpu(0), 1000
    function, stream = _added(gpu), open_gpu(0).stream
    x = DeviceArray.of(np.arange(n, dtype="f4"), stream)
    arguments = Arguments([x.address, n])
    for shape in (Launch(8, 128), Launch(8, 128, dependent=True), Launch(8, 128, cluster=2)):
        launch(function, shape, arguments.address, stream)
    np.testing.assert_array_equal(x.numpy(), np.arange(n) + 3)
    assert 0 < function.resources.registers < 64 and function.blocks_per_multiprocessor(128) > 0


def records_and_updates_graphs():
    gpu, n = open_gpu(0), 256
    function, stream = _added(gpu), Stream(gpu)
    x, y = (DeviceArray.of(np.zeros(n, "f4"), stream) for _ in range(2))
    graphs = []
    for array in (x, y):
        arguments = Arguments([array.address, n])
        with stream.capture() as graph:
            for _ in range(3):
                launch(function, Launch(1, 256), arguments.address, stream)
        graphs.append(graph)
    assert graphs[0].node_count == 3
    ready = graphs[0].instantiate()
    ready.launch(stream)
    assert ready.update(graphs[1])
    ready.launch(stream)
    ready.launch(stream)
    assert (x.numpy() == 3).all() and (y.numpy() == 6).all()
    try:
        with stream.capture():
            raise KeyError
    except KeyError:
        pass
    launch(function, Launch(1, 256), Arguments([x.address, n]).address, stream)
    assert (x.numpy() == 4).all()


def copies_whole_arrays():
    gpu = open_gpu(0)
    for size in (0, 1, 65536 // 4, 65536 // 4 + 1, (16 << 20) // 4 + 3, (50 << 20) // 4 + 1):
        x = np.random.default_rng(size).integers(0, 1 << 30, size).astype("i4")
        assert np.array_equal(DeviceArray.of(x, gpu.stream).numpy(), x)


def runs_out_of_memory_and_goes_on():
    gpu = open_gpu(0)
    gpu.stream.synchronize()
    before = gpu.pool.used_bytes
    kept = []
    try:
        while True:
            kept.append(gpu.pool.allocate(40 << 30, gpu.stream, "a test"))
    except CudaError as error:
        assert error.name == "OUT_OF_MEMORY" and "40960.0 MiB wanted for a test" in str(error) and not error.is_fatal
    assert kept
    kept.clear()
    gc.collect()
    gpu.stream.synchronize()
    assert gpu.pool.used_bytes == before
    gpu.pool.trim()
    copies_whole_arrays()


def names_what_does_not_assemble():
    gpu = open_gpu(0)
    try:
        assemble(gpu, PTX.replace("add.rn.f32 %f, %f", "add.rn.f32 %nothing, %f"), "add_one")
    except CudaError as error:
        assert "add_one could not be assembled" in str(error) and "nothing" in str(error), error
    else:
        raise AssertionError("bad PTX was accepted")


def events_measure():
    gpu = open_gpu(0)
    start, stop = (Event(gpu, timed=True) for _ in range(2))
    gpu.stream.record(start)
    x = DeviceArray.empty((1 << 28,), np.dtype("u1"), gpu.stream)
    gpu.driver.cuMemsetD8Async(x.address, 1, 1 << 28, gpu.stream.handle)
    gpu.stream.record(stop)
    stop.synchronize()
    assert 0 < stop.seconds_since(start) < 1 and start.is_done and gpu.stream.is_done
    limits = measure_limits(gpu)
    print(f"copy {limits.copy / 1e12:.2f} TB/s")
    assert limits.copy > 1e11


def calls_small_programs():
    """Short calls: arrays that lie elsewhere each time, sizes that change, threads, and what a call costs."""
    import rlx
    import rlx.numpy as rnp

    run, rng = rlx.jit(lambda x, y: rnp.tanh(x * 2.0 + y), device="cuda"), np.random.default_rng(0)

    def checked(rows):
        hosts = [rng.standard_normal((rows, 8)).astype("f4") for _ in range(2)]
        arrays = [rlx.device_put(host, "cuda") for host in hosts]
        return run(*arrays), np.tanh(hosts[0] * 2 + hosts[1]), arrays

    for rows in (4, 4, 4, 1, 33, 4):
        kept = [checked(rows) for _ in range(30)]
        for got, wanted, _ in kept:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert run._short is not None
    threads = [threading.Thread(target=lambda: [checked(4) for _ in range(200)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, wanted, _ in kept:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    x, y = kept[0][2]
    started = time.perf_counter()
    for _ in range(1000):
        last = run(x, y)
    print(f"a call returns in {(time.perf_counter() - started) * 1e3:.2f} us")
    np.testing.assert_allclose(last, kept[0][1], rtol=1e-5, atol=1e-6)


CHECKS = (
    "describes_the_device",
    "launches_in_every_way",
    "records_and_updates_graphs",
    "copies_whole_arrays",
    "names_what_does_not_assemble",
    "events_measure",
    "calls_small_programs",
    "runs_out_of_memory_and_goes_on",
)
