"""Programs on OpenCL: what they compute, and everything around a run. pocl makes the processor a device."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.opencl import devices, driver
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Absent, select
from rlx.errors import BackendError, InternalError, NoDevice, NotInstalled, OutOfMemory, RlxError
from rlx.ir.dtype import DType
from rlx.kernels.emit.gpu_c_emit import GpuKernel, legal_for_text
from rlx.kernels.emit.opencl_emit import opencl_module
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import OPENCL

FOUND = select("opencl").target.probe()
on_device = pytest.mark.skipif(
    isinstance(FOUND, Absent), reason=f"{FOUND.reason}; {FOUND.remedy}" if isinstance(FOUND, Absent) else ""
)


def normal(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


def both(f, *arrays):
    return [np.asarray(rlx.jit(f, device=device)(*arrays)) for device in ("cpu", "opencl")]


class TestWithoutADriver:
    def test_no_loader(self, monkeypatch):
        monkeypatch.setattr(driver, "driver", lambda: None)
        found = select("pocl").target.probe()
        assert isinstance(found, Absent) and "no OpenCL loader" in found.reason and "pocl-opencl-icd" in found.remedy
        with pytest.raises(NotInstalled, match=r"opencl: this machine has no OpenCL loader .*ocl-icd-libopencl1"):
            devices.choose(0)

    def test_no_platform(self, monkeypatch):
        monkeypatch.setattr(driver, "driver", lambda: object())
        monkeypatch.setattr(devices, "listed", lambda: ())
        found = select("opencl").target.probe()
        assert isinstance(found, Absent) and "no platform" in found.reason
        with pytest.raises(NoDevice, match=r"opencl:3: no device of OpenCL .* this machine has no device at all"):
            devices.choose(3)

    def test_statuses_are_errors_with_names(self):
        lost = driver.failure("clCreateBuffer", -4, "the weight 'w'")
        assert isinstance(lost, OutOfMemory) and "MEM_OBJECT_ALLOCATION_FAILURE (-4) for the weight 'w'" in str(lost)
        assert type(driver.failure("clFinish", -9999, "")) is BackendError


def test_the_text_has_no_words_of_its_own_names():
    """Parameters may be called as keywords of OpenCL are."""
    k = KernelBuilder("kernel")
    x, y, n = k.pointer("global", DType.F32), k.pointer("half", DType.F32, write=True), k.index("local")
    with k.parallel("barrier", n) as i:
        k.store(y, i, k.load(x, i) * 2.0)
    text = opencl_module([GpuKernel("k0", legal_for_text(k.build(), OPENCL, "OpenCL"))])
    assert "b_half[v0] = v2;" in text and "int64_t n_local" in text


def test_a_text_target_is_at_most_400_lines():
    """The bar of the text layer: what is OpenCL's own, emitter and words, in one file."""
    import rlx.kernels.emit.msl_emit as msl
    import rlx.kernels.emit.opencl_emit as opencl

    for module in (msl, opencl):
        assert len(Path(module.__file__).read_text().splitlines()) <= 400


@pytest.mark.targets
@on_device
class TestPrograms:
    def test_a_product_with_what_follows_it(self):
        wanted, got = both(lambda x, w: rlx.gelu(x @ w + 1.0), normal(33, 40), normal(40, 50, seed=1))
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)

    def test_special_numbers(self):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 1e30, 1e-45], np.float32)

        def f(x):
            return rnp.stack([rlx.relu(x) + rlx.tanh(x), rlx.exp(x), rnp.maximum(x, 0.0), x - x, x * 0.0, 1.0 / x])

        wanted, got = both(f, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)

    @pytest.mark.parametrize(
        "dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, np.float16, np.float64, np.bool_]
    )
    def test_types(self, dtype):
        x = (normal(5, 7) * 50).astype(dtype)
        f = (lambda x: ~x) if dtype is np.bool_ else (lambda x: x * x + x)
        wanted, got = both(f, x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, wanted)

    def test_f64_is_native(self):
        x = np.random.default_rng(0).standard_normal((6, 6))
        wanted, got = both(lambda x: rlx.linalg.solve(x, rnp.sin(x)), x)
        np.testing.assert_allclose(got, wanted, rtol=1e-9)

    def test_loops_and_branches(self):
        def f(x):
            return rlx.while_loop(lambda s: rnp.sum(s) < 100.0, lambda s: s * 2.0, x, max_iterations=20)

        wanted, got = both(f, np.abs(normal(3)) + 0.1)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)

    def test_values_stay_there(self):
        f = rlx.jit(lambda x: x * 2.0, device="opencl")
        y = f(f(rlx.device_put(normal(4, 4), "opencl")))
        assert y.device == "opencl"
        np.testing.assert_array_equal(np.asarray(y), normal(4, 4) * 4)
        with pytest.raises(ValueError, match="cannot be read without a copy"):
            np.asarray(y, copy=False)

    def test_kernels_and_memory_are_used_again(self):
        from rlx.backends.opencl.device import open_gpu

        f = rlx.jit(lambda x: rnp.sin(x) * 1.5, device="opencl")
        for _ in range(3):
            np.asarray(f(normal(300, 5)))
        gc.collect()
        kernels, buffers = len(open_gpu().kernels), len(open_gpu().pool.handles)
        rlx.clear_compile_cache()
        f = rlx.jit(lambda x: rnp.sin(x) * 1.5, device="opencl")
        for _ in range(20):
            np.asarray(f(normal(300, 5)))
        assert len(open_gpu().kernels) == kernels and len(open_gpu().pool.handles) <= buffers + 1

    def test_threads_share_a_program(self):
        f = rlx.jit(lambda x: rnp.cumsum(x, axis=0), device="opencl")
        found = {}

        def work(number):
            found[number] = np.asarray(f(normal(20, 3, seed=number)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for number, got in found.items():
            np.testing.assert_allclose(got, np.cumsum(normal(20, 3, seed=number), 0), rtol=1e-4, atol=1e-5)
        assert len(found) == 4

    def test_empty_arrays(self):
        wanted, got = both(lambda x: x * 2.0, np.zeros((0, 3), np.float32))
        assert got.shape == wanted.shape == (0, 3)

    def test_the_shipped_model_writes_what_it_writes_on_the_cpu(self):
        path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
        texts = [rlx.load(path, device=d).generate("Once upon a time", max_tokens=32) for d in ("cpu", "opencl")]
        assert texts[0] == texts[1] and len(texts[0]) > 40

    def test_atomic_sums(self):
        """Threads of many blocks add into one place."""
        from rlx.backends.opencl.device import open_gpu

        k = KernelBuilder("total")
        x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
        with k.parallel("i", n) as i:
            k.atomic("add", y, 0, k.load(x, i))
        gpu = open_gpu()
        code = gpu.loader.load(k.build()).code
        given = gpu.allocate(4000, "x"), gpu.allocate(4, "y")
        gpu.write(given[0].address, np.ones(1000, np.float32))
        gpu.write(given[1].address, np.zeros(1, np.float32))
        with gpu.lock:
            gpu.commands.call(code, [given[0].address, given[1].address, 1000], -(-1000 // code.threads), "a test")
        assert gpu.read(given[1].address, (1,), np.dtype(np.float32))[0] == 1000.0


@pytest.mark.targets
@on_device
class TestRefusals:
    def test_sizes_beyond_the_device(self):
        with pytest.raises(OutOfMemory, match=r"opencl: an output has \d+ bytes, and a buffer of this GPU has at most"):
            rlx.jit(lambda x: rnp.broadcast_to(x, (1 << 22, 1 << 14)) * 2.0, device="opencl")(np.ones(1, np.float32))

    def test_a_device_without_f64(self, monkeypatch):
        from rlx.backends.opencl.device import open_gpu

        monkeypatch.setattr(open_gpu(), "device", open_gpu().device._replace(has_f64=False))
        rlx.clear_compile_cache()
        with pytest.raises(LegalizeError, match="has no f64; cast to f32, or use the device cpu"):
            rlx.jit(lambda x: x + 1.0, device="opencl")(np.ones(3))

    def test_text_that_is_refused_names_the_kernel(self, monkeypatch):
        from rlx.backends.opencl import device

        monkeypatch.setattr(device, "opencl_module", lambda kernels: "__kernel void k0() { nonsense }")
        with pytest.raises(InternalError, match=r"(?s)opencl: the text of .* is refused: .*nonsense"):
            rlx.jit(lambda x: x - 5.5, device="opencl")(normal(8))

    def test_a_number_that_no_device_has(self):
        with pytest.raises(NoDevice, match="opencl:77"):
            rlx.Session("opencl:77")


@pytest.mark.real
@on_device
def test_smollm2_writes_what_it_writes_on_the_cpu():
    from rlx.models.pull import pull

    try:
        path = pull("smollm2")
    except (RlxError, OSError) as error:
        pytest.skip(f"smollm2 cannot be pulled here: {error}")
    texts = [rlx.load(path, device=d).generate("The capital of France is", max_tokens=4) for d in ("cpu", "opencl")]
    assert texts[0] == texts[1] and "Paris" in texts[0]
