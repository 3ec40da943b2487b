"""Buffers, arenas, streams, and collectives between threads against NumPy."""

import threading
import time

import numpy as np
import pytest

import rlx
from rlx import driver
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend


def test_buffers():
    b = driver.Buffer.new_host(np.arange(6, dtype="f4").reshape(2, 3), "f32[2,3]")
    assert (b.num_elements, b.byte_size, b.dtype, str(b.shape)) == (6, 24, rlx.DType.F32, "f32[2,3]")
    b.as_f32_mut()[0] = 9
    assert b.as_f32()[0] == 9 and b.host_bytes()[:4] == np.float32(9).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        b.as_f32()[0] = 1
    other = b.to_device("cpu")
    other.as_f32_mut()[0] = 1
    assert b.as_f32()[0] == 9
    away = driver.Buffer(bytearray(4), rlx.Shape((1,), "f32"), rlx.Device.Cuda)
    with pytest.raises(rlx.errors.BackendError, match="to_host"):
        away.host_bytes()
    assert away.to_host().host_bytes() == b"\0\0\0\0"
    handle = driver.BufferHandle("cache", (2, 8), "f16")
    assert (handle.num_elements, handle.byte_size, handle.dims) == (16, 32, (2, 8))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: driver.Buffer.new_host(b"123", "f32[1]"), "has 4 bytes, got 3"),
        (lambda: driver.Buffer.new_host(np.zeros(1), "f32[1]"), "got an array of f64"),
        (lambda: driver.Buffer.zeros("f32[B]"), "fixed"),
        (lambda: driver.Buffer.zeros("i32[1]").as_f32(), "is not f32"),
        (lambda: driver.Buffer.zeros("f32[1]").to_device("metal"), "not available"),
        (lambda: driver.DeviceArena(8, {1: (4, 8)}), "outside of 8 bytes"),
        (lambda: driver.DeviceArena(8, {}).byte_offset(3), "no value 3"),
        (lambda: driver.DeviceArena(8, {1: (0, 8)}).write_input_f32(1, np.ones(3, "f4")), "room for 2"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(rlx.RlxError, match=message):
        make()


def test_an_arena_of_a_plan():
    graph = rlx.Graph("g")
    x = graph.input("x", (4, 4))
    graph.set_outputs([rlx.relu(x @ x) @ x])
    plan = CpuBackend().compile(graph, CompileOptions()).lir.buffers
    arena = driver.DeviceArena.of_plan(plan)
    assert arena.size_bytes == plan.arena_size
    node = next(iter(plan.assignments))
    assert arena.has_buffer(node) and arena.byte_offset(node) == plan.assignments[node].offset
    values = np.arange(plan.assignments[node].size // 4, dtype="f4")
    arena.write_input_f32(node, values)
    assert (arena.read_output_f32(node) == values).all()


def test_streams_keep_their_order():
    seen = []
    with driver.CommandStream() as stream:
        gate = threading.Event()
        stream.submit(gate.wait)
        for i in range(5):
            stream.submit(lambda i=i: seen.append(i))
        assert seen == []
        gate.set()
        stream.wait()
        assert seen == list(range(5))

        def fail():
            raise ValueError("no")

        stream.submit(fail)
        stream.submit(lambda: seen.append("behind the error"))
        with pytest.raises(ValueError, match="no"):
            stream.wait()
        assert seen == list(range(5))
        stream.submit_and_wait(lambda: seen.append("again"))
        assert seen[-1] == "again"
    with pytest.raises(rlx.errors.BackendError, match="closed"):
        stream.submit(gate.wait)
    sync = driver.SyncStream()
    sync.submit_and_wait(lambda: seen.append("now"))
    assert seen[-1] == "now" and sync.wait() is None


def on_all_ranks(ranks, work, heap_bytes=4096):
    """`work(transport)` on a thread for each rank; the results by rank."""
    transports = driver.LocalTransport.fan_out(ranks, heap_bytes, timeout=20.0)
    results = [None] * ranks

    def run(transport):
        try:
            results[transport.this_rank()] = work(transport)
        except BaseException as error:
            results[transport.this_rank()] = error
            transport.abort()

    threads = [threading.Thread(target=run, args=(t,)) for t in transports]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 4, 30])
@pytest.mark.parametrize("kind", list(driver.ReduceKind))
def test_all_reduce(ranks, size, kind):
    values = np.random.default_rng(0).normal(size=(ranks, size)).astype("f4")
    place = driver.SymmetricBuffer(driver.Rank(0), 64, size * 4)
    found = on_all_ranks(ranks, lambda t: driver.all_reduce(t, place, values[t.this_rank()], kind))
    wanted = getattr(values, kind.value)(axis=0)
    for one in found:
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)
        assert one.tobytes() == found[0].tobytes()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_gather_and_reduce_scatter(ranks):
    values = np.random.default_rng(0).integers(0, 99, (ranks, ranks * 2, 3))

    def work(t):
        gathered = driver.all_gather(t, driver.SymmetricBuffer(driver.Rank(0), 0, values.nbytes), values[t.this_rank()])
        mine = values[t.this_rank()]
        return gathered, driver.reduce_scatter(t, driver.SymmetricBuffer(driver.Rank(0), 0, mine.nbytes), mine)

    for rank, (gathered, part) in enumerate(on_all_ranks(ranks, work)):
        np.testing.assert_array_equal(gathered, values.reshape(-1, 3))
        np.testing.assert_array_equal(part, values.sum(0)[2 * rank : 2 * rank + 2])


def test_a_barrier_waits_for_all():
    arrived = []

    def work(t):
        time.sleep(0.02 * t.this_rank())
        arrived.append(t.this_rank())
        t.barrier()
        return len(arrived)

    assert on_all_ranks(3, work) == [3, 3, 3]


def test_a_rank_that_fails_does_not_block_the_others():
    def work(t):
        if t.this_rank() == 1:
            raise ValueError("gone")
        t.barrier()

    first, second = on_all_ranks(2, work)
    assert isinstance(first, driver.TransportError) and isinstance(second, ValueError)


def test_exchanges_that_cannot_be():
    (t,) = driver.LocalTransport.fan_out(1, 128)
    place = t.heap.alloc(16)
    with pytest.raises(driver.LengthMismatch, match="16 bytes, got 4"):
        t.put(place, np.zeros(1, "f4"))
    with pytest.raises(driver.UnknownRank, match="got 3"):
        t.get(place.on(3))
    with pytest.raises(driver.OutOfBounds, match="outside"):
        t.get(place._replace(offset=120))
    with pytest.raises(driver.OutOfBounds, match="64 are left"):
        t.heap.alloc(100)
    with pytest.raises(driver.LengthMismatch, match="needs a buffer of as many"):
        driver.all_reduce(t, place, np.zeros(3, "f4"))
    with pytest.raises(driver.LengthMismatch, match="do not divide"):
        driver.reduce_scatter(t, place, np.float32(1))
