"""Calls of Metal against a stand-in that keeps books: their order, memory that comes back, one command buffer a run."""

from __future__ import annotations

import gc

import fake_metal
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.metal import device as metal_device
from rlx.backends.metal.devices import choose
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Absent, select
from rlx.errors import BackendError, InternalError, NotInstalled, OutOfMemory


def normal(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    found = select("metal").target.probe()
    assert isinstance(found, Absent) and "macOS" in found.reason and "rlx[metal]" in found.remedy
    with pytest.raises(NotInstalled, match=r"PyObjC's binding of Metal, .*pip install 'rlx\[metal\]'"):
        choose(0)


@pytest.mark.targets
class TestBooks:
    def test_a_run_is_one_command_buffer(self, stand_in):
        f = rlx.jit(lambda x, w: rlx.softmax(rlx.gelu(x @ w)) @ w, device="metal")
        x, w = (rlx.device_put(normal(8, 8, seed=i), "metal") for i in range(2))
        f(x, w)
        books = stand_in.books
        sent, dispatched, waited = len(books.committed), books.dispatches, books.waits
        y = f(x, w)
        assert len(books.committed) == sent + 1 and books.dispatches > dispatched + 1
        assert books.waits == waited, "nothing waits for a run but who reads its results"
        np.asarray(y)
        assert books.waits == waited + 1 and books.left_open == []

    def test_kernels_are_compiled_once(self, stand_in):
        f = rlx.jit(lambda x: rnp.sin(x) * 1.5, device="metal")
        f(normal(6, 5))
        before = stand_in.books.libraries
        rlx.clear_compile_cache()
        rlx.jit(lambda x: rnp.sin(x) * 1.5, device="metal")(normal(6, 5))
        assert stand_in.books.libraries == before

    def test_memory_comes_back(self, stand_in):
        f = rlx.jit(lambda x: x * 2.0 + 1.0, device="metal")
        for number in range(5):
            f(normal(300, 7, seed=number))
        gc.collect()
        before = len(stand_in.books.buffers)
        for number in range(30):
            np.asarray(f(normal(300, 7, seed=number)))
        gc.collect()
        assert len(stand_in.books.buffers) <= before + 1

    def test_arrays_are_read_without_a_copy(self, stand_in):
        y = rlx.jit(lambda x: x * 2.0, device="metal")(normal(4, 4))
        seen = np.asarray(y, copy=False)
        assert not seen.flags.writeable and np.shares_memory(seen, np.asarray(y, copy=False))
        row = seen[1]
        del y, seen
        gc.collect()
        # The memory is not handed out again while somebody looks at it.
        np.asarray(rlx.jit(lambda x: x * 3.0, device="metal")(normal(4, 4, seed=1)))
        np.testing.assert_array_equal(row, normal(4, 4)[1] * 2)

    def test_values_stay_there(self, stand_in):
        f = rlx.jit(lambda x: x * 2.0, device="metal")
        y = f(f(rlx.device_put(normal(4, 4), "metal")))
        assert y.device == "metal"
        np.testing.assert_array_equal(np.asarray(y), normal(4, 4) * 4)

    def test_the_host_waits_before_it_writes(self, stand_in):
        """Work that is under way still reads what was there."""
        gpu = metal_device.open_gpu()
        f = rlx.jit(lambda x: x + 1.0, device="metal")
        x = rlx.device_put(np.zeros(64, np.float32), "metal")
        f(x)
        y = f(x)
        gpu.write(x._value.address, np.full(64, 9.0, np.float32))
        np.testing.assert_array_equal(np.asarray(y), np.ones(64, np.float32))

    def test_a_failed_run_says_which(self, stand_in, monkeypatch):
        f = rlx.jit(lambda x: x - 4.0, device="metal")
        np.asarray(f(normal(8)))
        monkeypatch.setattr(stand_in, "run", lambda *given: (_ for _ in ()).throw(RuntimeError("a page fault")))
        y = f(normal(8))
        with pytest.raises(BackendError, match=r"^metal: @.* failed: a page fault"):
            np.asarray(y)

    def test_text_that_is_refused_names_the_kernel(self, stand_in, monkeypatch):
        monkeypatch.setattr(metal_device, "msl_module", lambda kernels: "kernel void k0() { nonsense }")
        with pytest.raises(InternalError, match=r"(?s)metal: the text of .* is refused: .*nonsense"):
            rlx.jit(lambda x: x - 5.5, device="metal")(normal(8))

    def test_refusals(self, stand_in):
        with pytest.raises(LegalizeError, match="Metal has no f64; cast to f32, or use the device cpu"):
            rlx.jit(lambda x: x + 1.0, device="metal")(np.ones(3))
        with pytest.raises(OutOfMemory, match=r"metal: an output has \d+ bytes, and a buffer of this GPU has at most"):
            rlx.jit(lambda x: rnp.broadcast_to(x, (1 << 18, 1 << 10)) * 2.0, device="metal")(np.ones(1, np.float32))


@pytest.mark.targets
class TestTheStandInItself:
    """It finds what it is there to find."""

    def queue(self, stand_in):
        return stand_in.newCommandQueue().commandBuffer()

    def test_wrong_order(self, stand_in):
        buffer = self.queue(stand_in)
        encoder = buffer.blitCommandEncoder()
        for wrong in (buffer.computeCommandEncoder, buffer.commit, buffer.waitUntilCompleted):
            with pytest.raises(fake_metal.WrongUse):
                wrong()
        encoder.endEncoding()
        with pytest.raises(fake_metal.WrongUse, match="ended twice"):
            encoder.endEncoding()
        with pytest.raises(fake_metal.WrongUse, match="without a pipeline"):
            buffer.computeCommandEncoder().dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
        assert stand_in.books.left_open == [buffer]
        stand_in.books.begun.remove(buffer)

    TEXT = """
#include <metal_stdlib>
using namespace metal;
kernel void k0(device int32_t *b_x [[buffer(0)]],
    uint block_ [[threadgroup_position_in_grid]], uint thread_ [[thread_index_in_threadgroup]]) {
    threadgroup int32_t shared[4];
    shared[thread_] = thread_ + 10 * block_;
    BARRIER
    b_x[4 * block_ + thread_ + AWAY] = shared[3 - thread_];
}
"""

    def run(self, stand_in, barrier="threadgroup_barrier(mem_flags::mem_threadgroup);", away=0):
        text = self.TEXT.replace("BARRIER", barrier).replace("AWAY", str(away))
        options = fake_metal.CompileOptions.alloc().init()
        options.setFastMathEnabled_(False)
        library, error = stand_in.newLibraryWithSource_options_error_(text, options, None)
        assert error is None
        pipeline, _ = stand_in.newComputePipelineStateWithFunction_error_(library.newFunctionWithName_("k0"), None)
        memory, buffer = stand_in.newBufferWithLength_options_(32, 0), self.queue(stand_in)
        encoder = buffer.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(memory, 0, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(fake_metal.Size(2, 1, 1), fake_metal.Size(4, 1, 1))
        encoder.endEncoding()
        buffer.commit()
        buffer.waitUntilCompleted()
        return buffer, np.frombuffer(memory.as_buffer(32), np.int32).tolist()

    def test_threads_meet_at_barriers(self, stand_in):
        assert self.run(stand_in)[1] == [3, 2, 1, 0, 13, 12, 11, 10]

    def test_a_missing_barrier_is_seen(self, stand_in):
        assert self.run(stand_in, barrier="")[1] != [3, 2, 1, 0, 13, 12, 11, 10]

    def test_threads_that_part_are_seen(self, stand_in):
        parting = "if (thread_ > 1) threadgroup_barrier(mem_flags::mem_none);"
        buffer, _ = self.run(stand_in, barrier=parting)
        assert buffer.status() == 5 and "part at a barrier" in str(buffer.error())

    def test_writes_outside_are_seen(self, stand_in):
        with pytest.raises(fake_metal.WrongUse, match="k0 wrote outside of a buffer"):
            self.run(stand_in, away=1)
