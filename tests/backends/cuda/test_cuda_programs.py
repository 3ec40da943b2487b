"""Whole programs on a GPU that is none: every launch runs in the interpreter, which checks every access."""

import gc
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_libcuda import FakeCuda

import rlx
import rlx.numpy as rnp
from rlx import nn, ops
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.backend import REPLACED, CudaBackend
from rlx.backends.cuda.errors import CudaError
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.program.device_programs import DeviceParams
from rlx.compile.compiler import CompilePipeline
from rlx.errors import BackendError, BindingError
from rlx.ir.dtype import DType
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.models import kv_cache
from rlx.models.model_files import open_decoder

rng = np.random.default_rng(0)


def normal(*dims):
    return rng.standard_normal(dims).astype("f4")


def test_jit_runs_on_the_device(fake):
    f = rlx.jit(lambda x, w: nn.softmax(rnp.tanh(x @ w + 1.0)), device="cuda")
    x, w = normal(3, 5), normal(5, 4)
    y = np.tanh(x @ w + 1)
    np.testing.assert_allclose(f(x, w), np.exp(y) / np.exp(y).sum(-1, keepdims=True), rtol=1e-5)
    assert len(fake.launches) == 2


def test_one_compile_serves_every_size(fake):
    graph = rlx.Graph("layer")
    x, w = graph.input("x", ("B", 6), "f32"), graph.param("w", (6, 3), "f32")
    graph.set_outputs([rlx.relu(x @ w), ops.reduce_sum(x, (0,))])
    c = rlx.Session("cuda").compile(graph)
    assert "native sm_90a" in str(c.report)
    weights = normal(6, 3)
    c.set_param("w", weights)
    for batch in (1, 5, 0, 33, 5):
        x = normal(batch, 6)
        y, s = c.run(x=x)
        np.testing.assert_allclose(y, np.maximum(x @ weights, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(s, x.sum(0), rtol=1e-5, atol=1e-6)
    c.set_param("w", 2 * weights)
    x = normal(2, 6)
    np.testing.assert_allclose(c.run(x=x)[0], np.maximum(x @ weights * 2, 0), rtol=1e-5, atol=1e-6)


def test_weights_are_copied_once(fake):
    graph = rlx.Graph("layer")
    x, w = graph.input("x", (2, 6), "f32"), graph.param("w", (6, 3), "f32")
    graph.set_outputs([x @ w])
    executable = CudaBackend().compile(graph)
    params = executable.prepare({"w": normal(6, 3)})
    assert isinstance(params, DeviceParams) and params.byte_size == 6 * 3 * 4
    executable.run({"x": normal(2, 6)}, params)
    fake.log.clear()
    executable.run({"x": normal(2, 6)}, params)
    assert fake.log.count("cuMemcpyHtoDAsync_v2") == 1
    assert executable.prepare({}, params).arrays["w"] is params.arrays["w"]


def test_a_loop_runs_its_rounds_with_moving_addresses(fake):
    def f(xs):
        return rlx.scan(lambda c, x: (c * 0.5 + x, c + x), rnp.zeros(3, dtype="f4"), xs)

    xs = normal(7, 3)
    last, all_sums = rlx.jit(f, device="cuda")(xs)
    wanted_last, wanted_all = rlx.jit(f, device="cpu")(xs)
    np.testing.assert_allclose(last, wanted_last, rtol=1e-6)
    np.testing.assert_allclose(all_sums, wanted_all, rtol=1e-6)


def test_branches_and_while_loops_look_at_values(fake):
    def f(x):
        grown = rlx.while_loop(lambda v: rnp.sum(v) < 100.0, lambda v: v * 2.0, x)
        return rlx.cond(rnp.sum(x) > 0.0, lambda v: v + 1.0, lambda v: v - 1.0, grown)

    for x in (np.ones(3, "f4"), np.full(3, 50, "f4"), np.full(3, 0.25, "f4")):
        np.testing.assert_allclose(rlx.jit(f, device="cuda")(x), rlx.jit(f, device="cpu")(x), rtol=1e-6)


def test_what_has_no_kernel_runs_on_the_host_and_the_report_says_so(fake):
    graph = rlx.Graph("mixed")
    x = graph.input("x", (4, 4), "c64")
    graph.set_outputs([ops.sqrtm(x * 2.0) + 1.0])
    c = rlx.Session("cuda").compile(graph)
    assert "host (no native kernel)  sqrtm" in str(c.report)
    x = np.diag([1.0, 4.0, 9.0, 16.0]).astype("c8")
    np.testing.assert_allclose(c.run(x=x)[0], np.sqrt(x * 2) + 1, rtol=1e-6)


def appending():
    """A cache that a step writes a row of, in place."""
    graph = rlx.Graph("append")
    cache, row, at = (
        graph.input("cache", (8, 4), "f32"),
        graph.input("row", (1, 4), "f32"),
        graph.input("at", (), "i32"),
    )
    changed = ops.dynamic_update_slice(cache, row, (at, 0))
    graph.set_outputs([changed, ops.reduce_sum(changed, (0,))])
    graph.aliases[0] = "cache"
    return graph


def test_a_cache_stays_on_the_device_and_where_it_is(fake, gpu):
    executable = CudaBackend().compile(appending())
    cache = DeviceArray.of(np.zeros((8, 4), "f4"), gpu.stream)
    params, wanted = executable.prepare({}), np.zeros((8, 4), "f4")
    for at in range(3):
        row = normal(1, 4)
        changed, sums = executable.run({"cache": cache, "row": row, "at": np.array(at, "i4")}, params)
        wanted[at] = row
        assert changed.address == cache.address
        np.testing.assert_allclose(sums.numpy(), wanted.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(changed.numpy(), wanted)


def test_an_array_of_the_host_stays_as_it_is(fake):
    c = rlx.Session("cuda").compile(appending())
    cache = np.zeros((8, 4), "f4")
    changed, _ = c.run(cache=cache, row=np.ones((1, 4), "f4"), at=np.array(2, "i4"))
    assert not cache.any() and np.asarray(changed)[2].all()


def test_memory_between_runs_does_not_grow(fake):
    c = rlx.Session("cuda").compile(appending())
    used = []
    for at in range(4):
        c.run(cache=np.zeros((8, 4), "f4"), row=np.ones((1, 4), "f4"), at=np.array(at, "i4"))
        gc.collect()
        used.append(fake.used)
    assert len(set(used)) == 1


def test_a_run_without_memory_fails_cleanly_and_the_next_works(fake):
    f = rlx.jit(lambda x: rnp.cumsum(rnp.exp(x)) + rnp.sum(x), device="cuda")
    small = normal(16)
    f(small)
    limit, fake.memory = fake.memory, fake.used
    with pytest.raises(CudaError, match=r"OUT_OF_MEMORY: the GPU has no memory left .*wanted for the input"):
        f(normal(4096))
    fake.memory = limit
    np.testing.assert_allclose(f(small), np.cumsum(np.exp(small)) + small.sum(), rtol=1e-5)


FAILING = {
    "cuMemAllocFromPoolAsync": 2,
    "cuMemHostAlloc": 2,
    "cuLinkCreate_v2": 2,
    "cuModuleLoadDataEx": 999,
    "cuModuleGetFunction": 500,
    "cuMemcpyHtoDAsync_v2": 999,
    "cuLaunchKernelEx": 701,
    "cuMemcpyDtoHAsync_v2": 999,
    "cuStreamSynchronize": 999,
    "cuStreamBeginCapture_v2": 900,
    "cuStreamEndCapture": 901,
    "cuGraphInstantiateWithFlags": 2,
    "cuGraphLaunch": 999,
}


@pytest.mark.parametrize("name", FAILING)
def test_a_call_that_fails_is_named_and_those_behind_it_are_right(fake, name):
    """The first or the third call of a function; a run that fails holds nothing."""
    run = rlx.jit(lambda x: rnp.cumsum(rnp.cumsum(rnp.cumsum(rnp.cumsum(x)))), device="cuda")
    x, said, used = np.float32([1, 2, 3]), [], []
    fake.fail[name] = [FAILING[name], None, FAILING[name]]
    for _ in range(8):
        try:
            np.testing.assert_array_equal(np.asarray(run(x)), [1, 6, 21])
            used.append(fake.used)
        except CudaError as error:
            said.append(str(error))
    assert len(fake.fail[name]) < 3 and len(used) >= 5 and len(set(used[-3:])) == 1
    # Memory is asked for again when what is idle has been given back.
    assert said or name == "cuMemAllocFromPoolAsync"
    assert all(re.search(f"{name}|could not be|kernel", text) for text in said), said


def test_a_call_that_comes_again_asks_the_driver_for_its_launch_alone(fake):
    f = rlx.jit(lambda x: rnp.tanh(x * 2.0 + 1.0), device="cuda")
    x = rlx.device_put(normal(16, 16), "cuda")
    for _ in range(2):
        y = f(x)
    del y
    gc.collect()
    fake.log.clear()
    y = f(x)
    # Memory of the result before is used again, and so are the arguments.
    assert fake.log == ["cuCtxSetCurrent", "cuLaunchKernelEx"]
    np.testing.assert_allclose(y, np.tanh(np.asarray(x) * 2 + 1), rtol=1e-5)


def test_weights_that_were_replaced_are_freed_and_not_read(fake):
    graph = rlx.Graph("scaled")
    x, w = graph.input("x", (4,)), graph.param("w", (4,))
    graph.set_outputs([x * w])
    c = rlx.Session("cuda").compile(graph)
    x = normal(4)
    used = []
    for factor in (1.0, 2.0, 3.0, 4.0):
        c.set_params({"w": np.full(4, factor, "f4")})
        np.testing.assert_allclose(np.asarray(c.run(x=x)[0]), x * factor, rtol=1e-6)
        gc.collect()
        used.append(fake.used)
    assert used[-1] == used[-2]


def test_rotary_tables_of_a_model_go_to_the_device_once(fake):
    files = open_decoder(Path(kv_cache.__file__).parent / "data" / "tiny.gguf", True)
    tables = []
    for device in ("cpu", "cuda"):
        runner = kv_cache.DecoderRunner(files.config, SimpleNamespace(device=device, input_types={}), [])
        tables.append(runner._tables(16))
        assert runner._tables(16) is tables[-1]
    host, placed = tables
    assert host.keys() == placed.keys() == {"rope.cos", "rope.sin"}
    for name in host:
        assert isinstance(host[name], np.ndarray) and isinstance(placed[name], rlx.DeviceArray)
        np.testing.assert_array_equal(np.asarray(placed[name]), host[name])


def test_times_of_kernels(fake):
    c = rlx.Session("cuda").compile(appending())
    given = {"cache": np.zeros((8, 4), "f4"), "row": np.ones((1, 4), "f4"), "at": np.array(1, "i4")}
    profile = c.profile(given, runs=2)
    assert [k.kind for k in profile.kernels] == ["update", "reduce"] and profile.seconds > 0
    assert str(profile).splitlines()[0].endswith("in 2 kernels, cuda")


def test_threads_share_an_executable(fake):
    f = rlx.jit(lambda x: rnp.exp(x) * 2.0, device="cuda")
    xs, results = [normal(i + 1) for i in range(4)], [None] * 4

    def work(i):
        results[i] = f(xs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, y in zip(xs, results, strict=True):
        np.testing.assert_allclose(y, np.exp(x) * 2, rtol=1e-6)


def test_wrong_inputs_are_refused(fake, gpu):
    executable = CudaBackend().compile(appending())
    with pytest.raises(BindingError, match="no value for input 'cache'"):
        executable.run({}, {})
    with pytest.raises(BindingError, match=r"input 'cache' is declared .* got float64"):
        executable.run({"cache": np.zeros((8, 4)), "row": np.ones((1, 4), "f4"), "at": np.array(1, "i4")}, {})


def test_code_can_be_made_without_a_gpu():
    executable = CudaExecutable.of(CompilePipeline.new("cuda").compile(appending()), arch="sm_80")
    assert executable.arch == "sm_80" and ".target sm_80" in executable.programs.main.steps[0].code.ptx
    with pytest.raises(BackendError, match="compiled for sm_80 without a GPU"):
        executable.run({}, {})
    with pytest.raises(BackendError, match="'gfx942' is no NVIDIA architecture"):
        CudaExecutable.of(CompilePipeline.new("cuda").compile(appending()), arch="gfx942")


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 100])
def test_a_thread_for_each_iteration(n):
    k = KernelBuilder("rows")
    x, y, count = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    local = k.local("row", DType.F32, 3)
    with k.parallel("row", count) as row:
        with k.loop("i", 0, 3) as i:
            k.store(local, i, k.load(x, row * 3 + i))
        with k.fold("i", 0, 3, init=[k.const(0.0, DType.F32)]) as f:
            f.next(f.values[0] + k.load(local, f.index))
        k.store(y, row, f.results[0])
    before = k.build()
    after = iterations_as_threads(before)
    verify(after)
    assert after.thread_count == 32 and iterations_as_threads(after) is after
    values = np.arange(3 * n, dtype="f4")
    results = [np.full(n, np.nan, "f4") for _ in range(2)]
    for kernel, result in zip((before, after), results):
        interpret(kernel, {"x": values, "y": result, "n": n})
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0], values.reshape(-1, 3).sum(1))


def test_a_fake_without_the_code_would_fail():
    """The tests above run code that a driver was given, and nothing else."""
    from rlx.backends.cuda.driver import using

    given = {"cache": np.zeros((8, 4), "f4"), "row": np.ones((1, 4), "f4"), "at": np.array(1, "i4")}
    with using(FakeCuda()), pytest.raises(CudaError, match="INVALID_PTX"):
        CudaBackend().compile(appending()).run(given, {})


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_threads_access_whole_vectors_where_memory_begins_at_one(fake, dtype):
    """The same kernel with rows of a matrix that begin anywhere: a slice of a value, and rows of a scan."""

    def f(x):
        shifted = x.reshape(-1)[3:35].reshape(2, 16)
        return rnp.exp(x) * 2.0, rnp.exp(shifted) * 2.0, nn.softmax(x, axis=-1)

    x = normal(4, 16).astype(DType.of(dtype).numpy)
    got, wanted = rlx.jit(f, device="cuda")(x), rlx.jit(f, device="cpu")(x)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a, "f4"), np.asarray(b, "f4"), rtol=1e-2 if dtype == "bf16" else 1e-6)
    texts = "\n".join(fake.kernels)
    assert f"{dtype}x{8 if dtype == 'bf16' else 4}" in texts


def test_rows_of_a_loop_that_begin_anywhere(fake):
    def f(xs):
        return rlx.scan(lambda c, x: (c + rnp.sum(rnp.exp(x[:4])), rnp.exp(x[:4])), np.float32(0), xs)

    xs = normal(3, 5)
    for a, b in zip(rlx.jit(f, device="cuda")(xs), rlx.jit(f, device="cpu")(xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_runs_with_the_same_addresses_become_one_graph(fake):
    def f(x, w):
        for _ in range(2):
            x = nn.softmax(x @ w, axis=-1)
        return x

    run, w = rlx.jit(f, device="cuda"), normal(4, 4)
    for number in range(6):
        x = normal(3, 4)
        fake.log.clear()
        got = np.asarray(run(x, w))
        wanted = np.asarray(rlx.jit(f, device="cpu")(x, w))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        assert number or "cuGraphLaunch" not in fake.log
        del got
    assert "cuGraphLaunch" in fake.log and "cuLaunchKernel" not in fake.log


def test_a_loop_is_recorded_with_its_moving_addresses(fake):
    def f(xs):
        return rlx.scan(lambda c, x: (c * 0.5 + x, c + x), rnp.zeros(3, dtype="f4"), xs)

    run, wanted = rlx.jit(f, device="cuda"), rlx.jit(f, device="cpu")
    for _ in range(4):
        xs = normal(5, 3)
        for a, b in zip(run(xs), wanted(xs), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)


@pytest.mark.parametrize("name", REPLACED)
def test_variables_of_elsewhere_are_refused_with_what_replaces_them(fake, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(BackendError, match=f"{name} is not read; .*Unset it"):
        rlx.Session("cuda").compile(appending())
    monkeypatch.setenv(name, "")
    rlx.Session("cuda").compile(appending())


@pytest.mark.parametrize(("capability", "is_product"), [((9, 0), True), ((8, 6), False)])
def test_programs_are_cut_for_the_chip_that_runs_them(fake, capability, is_product):
    """Windows of pictures are products where wgmma multiplies them."""
    fake.capability = capability
    x, w = np.ones((1, 8, 9, 9), np.float16), np.ones((16, 8, 3, 3), np.float16)
    program = rlx.jit(lambda x, w: rlx.lax.conv(x, w, (1, 1), "SAME"), device="cuda")
    assert np.asarray(program(x, w))[0, 0, 0, 0] == 8 * 4
    report = str(program.lower(x, w).compile().report)
    assert ("window_matmul" in report) == is_product, report
