"""Programs on GPUs through WebGPU: what they compute, and everything around a run. A processor stands in for a GPU."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.backends.wgpu import adapters
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.target import Absent, select
from rlx.errors import BackendError, NoDevice, NotInstalled, OutOfMemory

FOUND = select("wgpu").target.probe()
on_gpu = pytest.mark.skipif(
    isinstance(FOUND, Absent), reason=f"{FOUND.reason}; {FOUND.remedy}" if isinstance(FOUND, Absent) else ""
)


def normal(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


def both(f, *arrays):
    return [np.asarray(rlx.jit(f, device=device)(*arrays)) for device in ("cpu", "wgpu")]


@pytest.fixture
def fresh_probe():
    adapters.probe.cache_clear()
    yield
    adapters.probe.cache_clear()


def test_without_the_package_it_says_what_to_install(monkeypatch, fresh_probe):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    found = select("vulkan").target.probe()
    assert isinstance(found, Absent) and "package wgpu" in found.reason and "rlx[wgpu]" in found.remedy
    with pytest.raises(NotInstalled, match=r"needs the package wgpu; pip install 'rlx\[wgpu\]'"):
        adapters.choose(0, "vulkan")


def test_without_an_adapter_it_says_what_there_is(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: object())
    listed = (adapters.Adapter("A card", "Vulkan", "DiscreteGPU", None),)
    monkeypatch.setattr(adapters, "adapters", lambda: listed)
    assert adapters.choose(0, "vulkan") is listed[0]
    with pytest.raises(NoDevice, match=r"directx: no adapter .* 0: A card through Vulkan.* mesa-vulkan-drivers"):
        adapters.choose(0, "directx")


@pytest.mark.targets
@on_gpu
class TestPrograms:
    def test_a_product_with_what_follows_it(self):
        wanted, got = both(lambda x, w: rlx.gelu(x @ w + 1.0), normal(33, 40), normal(40, 50, seed=1))
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)

    def test_rows(self):
        wanted, got = both(lambda x: rlx.softmax(x) + rnp.sum(x, axis=1, keepdims=True), normal(9, 300))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)

    def test_special_numbers(self):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 1e30], np.float32)

        def f(x):
            return rlx.relu(x) + rlx.tanh(x), rlx.exp(x), rnp.maximum(x, 0.0), x - x, x * 0.0

        for number in range(5):
            wanted, got = both(lambda x, number=number: f(x)[number], x)
            np.testing.assert_allclose(got, wanted, rtol=1e-6)

    def test_a_norm_of_rows_of_one_keeps_nan(self):
        """Its kernel loads one place twice, and a compiler would take the difference for 0."""
        x = np.array([[1.0], [np.nan], [np.inf]], np.float32)
        got = np.asarray(rlx.jit(lambda x: x - rnp.mean(x, axis=1, keepdims=True) + 1.0, device="wgpu")(x))
        np.testing.assert_array_equal(got, [[1.0], [np.nan], [np.nan]])

    def test_a_state_that_begins_with_0_meets_nan(self):
        """Its kernel stores zeros and loads them again, and a compiler would take the product with 0 for 0."""
        x, delta, b, c = np.ones((4, 1, 1, 1), np.float32)
        a = np.full((1, 1), np.nan, np.float32)
        for device in ("cpu", "wgpu"):
            found = rlx.jit(lambda *given: ops.selective_scan(*given, 1), device=device)(x, delta, a, b, c)
            assert np.isnan(np.asarray(found)).all()

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, np.float16, np.bool_])
    def test_types_that_wgsl_does_not_have(self, dtype):
        x = (normal(5, 7) * 50).astype(dtype)
        f = (lambda x: ~x) if dtype is np.bool_ else (lambda x: x * x + x)
        wanted, got = both(f, x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, wanted)

    def test_values_stay_on_the_gpu(self):
        f = rlx.jit(lambda x: x * 2.0, device="wgpu")
        y = f(f(rlx.device_put(normal(4, 4), "wgpu")))
        assert y.device == "wgpu"
        np.testing.assert_array_equal(np.asarray(y), normal(4, 4) * 4)

    def test_loops_and_branches(self):
        def f(x):
            return rlx.while_loop(lambda s: rnp.sum(s) < 100.0, lambda s: s * 2.0, x, max_iterations=20)

        x = np.abs(normal(3)) + 0.1
        wanted, got = both(f, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)

    def test_memory_over_several_bindings(self, monkeypatch):
        """What the limit of 128 MiB asks for, with a limit of 1 KiB."""
        from rlx.backends.wgpu.device import open_gpu

        gpu = open_gpu()
        monkeypatch.setattr(gpu, "binding_bytes", 1024)
        x = normal(1500)
        wanted, got = both(lambda x: rnp.flip(x * 3.0, 0) + 1.25, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        x = (normal(3000) * 9).astype(np.int8)
        wanted, got = both(lambda x: x + x - 5, x)
        np.testing.assert_array_equal(got, wanted)

    def test_equal_kernels_are_compiled_once(self):
        from rlx.backends.wgpu.device import open_gpu

        def f(x):
            return rnp.sin(x) * 1.5

        rlx.jit(f, device="wgpu")(normal(6, 5))
        before = len(open_gpu().pipelines)
        rlx.clear_compile_cache()
        rlx.jit(f, device="wgpu")(normal(6, 5))
        assert len(open_gpu().pipelines) == before

    def test_threads_share_a_program(self):
        f = rlx.jit(lambda x: rnp.cumsum(x, axis=0), device="wgpu")
        found = {}

        def work(number):
            found[number] = np.asarray(f(normal(20, 3, seed=number)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for number, got in found.items():
            np.testing.assert_allclose(got, np.cumsum(normal(20, 3, seed=number), 0), rtol=1e-4, atol=1e-5)
        assert len(found) == 4

    def test_what_needs_f64_runs_on_the_host_and_says_so(self):
        x = normal(6, 6)
        a = x @ x.T + 6 * np.eye(6, dtype="f4")

        def f(x, a):
            z = a + 1j * x
            return rnp.linalg.solve(a, x), rnp.linalg.eigvalsh(a), rnp.real(rnp.exp(z / 9.0) / z), x % 0.3

        for wanted, got in zip(*(rlx.jit(f, device=device)(x, a) for device in ("cpu", "wgpu")), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-5)
        graph = rlx.Graph("solve")
        graph.set_outputs([rnp.linalg.solve(graph.input("a", (6, 6)), graph.input("b", (6, 2)))])
        assert "host (no native kernel)" in str(rlx.Session("wgpu").compile(graph).report)

    def test_loops_are_longer_than_drivers_on_processors_count(self):
        """llvmpipe leaves loops after 65,535 rounds; what is beyond that even in longer rounds is refused."""
        from rlx.backends.wgpu.device import open_gpu

        def total(x, count):
            return np.asarray(rlx.jit(lambda x: rnp.sum(rnp.broadcast_to(x, (3, count)), 1), device="wgpu")(x))

        np.testing.assert_array_equal(total(np.ones((3, 1), np.float32), 200_003), [200_003] * 3)
        if open_gpu().most_rounds:
            with pytest.raises(
                BackendError, match=r"goes through 2000002 rounds of loops in an invocation; llvmpipe .* stops"
            ):
                total(np.ones((3, 1), np.float32), 2_000_000)

    def test_kernels_are_timed(self):
        compiled = rlx.jit(lambda x, w: x @ w, device="wgpu")
        compiled(normal(8, 8), normal(8, 8))
        assert np.asarray(compiled(normal(8, 8), normal(8, 8))).shape == (8, 8)

    def test_the_shipped_model_writes_what_it_writes_on_the_cpu(self):
        path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
        texts = [rlx.load(path, device=d).generate("Once upon a time", max_tokens=32) for d in ("cpu", "wgpu")]
        assert texts[0] == texts[1] and len(texts[0]) > 40


@pytest.mark.targets
@on_gpu
class TestRefusals:
    def test_f64(self):
        with pytest.raises(LegalizeError, match="WGSL has no f64; cast to f32, or use the device cpu"):
            rlx.jit(lambda x: x + 1.0, device="wgpu")(np.ones(3))

    def test_sizes_beyond_the_gpu(self):
        """Nothing is asked of the GPU."""
        from rlx.backends.wgpu.device import open_gpu

        before = len(open_gpu().pool.handles)
        with pytest.raises(OutOfMemory, match=r"an output has \d+ bytes, and a buffer of this GPU has at most"):
            rlx.jit(lambda x: rnp.broadcast_to(x, (1 << 20, 1 << 14)) * 2.0, device="wgpu")(np.ones(1, np.float32))
        assert len(open_gpu().pool.handles) <= before + 2

    def test_settings_of_others(self, monkeypatch):
        monkeypatch.setenv("RLX_WGPU_FORCE_COOP_F32", "1")
        with pytest.raises(BackendError, match=r"RLX_WGPU_FORCE_COOP_F32 is not read; .*Unset it"):
            rlx.jit(lambda x: x + 2.0, device="wgpu")(np.ones(2, np.float32))

    def test_empty_arrays(self):
        wanted, got = both(lambda x: x * 2.0, np.zeros((0, 3), np.float32))
        assert got.shape == wanted.shape == (0, 3)


def test_weights_of_files_are_laid_out_once_and_not_in_every_run():
    from rlx.backends.api import CompileOptions
    from rlx.backends.options_to_pipeline import compile_with_options
    from rlx.models.exporting import model_program

    program = model_program(str(Path(rlx.models.__file__).parent / "data" / "tiny.gguf"))
    compiled = compile_with_options(program.graph, "wgpu", CompileOptions())
    assert "matmul" in {k.kind for k in compiled.lir.kernels} and "layout" not in {k.kind for k in compiled.lir.kernels}
    assert "layout" in {k.kind for k in compiled.prepare.kernels}


@pytest.mark.real
@on_gpu
def test_smollm2_writes_what_it_writes_on_the_cpu():
    from rlx.errors import RlxError
    from rlx.models.pull import locate

    try:
        path = locate("smollm2")
    except RlxError as error:
        pytest.skip(f"{error}")
    cpu, gpu = (rlx.load(path, device=d).complete(["The capital of France is"], 32)[0] for d in ("cpu", "wgpu"))
    assert gpu.token_ids == cpu.token_ids and len(gpu.token_ids) > 20
