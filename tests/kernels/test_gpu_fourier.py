"""Fourier transforms by blocks of a GPU, in the interpreter, against NumPy: rows, columns, long lines in two steps, and
what is done to values before and behind; and which steps lengths are planned as."""

import numpy as np
import pytest

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower.fft_plan import plan_transform
from rlx.ir.graph import Graph
from rlx.ir.tensor import building
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import fourier_blocks
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.fourier_lines import FftLines, FftRealLines, factors_of
from rlx.ops.signal.fourier import Fft

SM_90A = machine_named("sm_90a")


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setattr(fourier_blocks, "THREADS", 32)
    monkeypatch.setattr(fourier_blocks, "LEAST_POINTS", 64)


def signal(*dims, dtype="c8"):
    rng = np.random.default_rng(len(dims) + dims[-1])
    return (rng.normal(size=dims) + 1j * rng.normal(size=dims)).astype(dtype)


def kernel_of(op, shape, dtype, factors):
    graph = Graph("transform")
    x, f = graph.input("x", shape, dtype), graph.input("f", factors.shape, factors.dtype.name.replace("float", "f"))
    graph.set_outputs([graph.append_node(op, [x, f])])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind == "fft")
    return make_kernel("fft", lir.as_graph(), kernel, SM_90A).kernel


def ran(op, x, before=(), behind=(), seed=None):
    """The op on complex numbers, by its kernel."""
    real = np.float32 if x.dtype == np.complex64 else np.float64
    factors = factors_of(op, before, behind).astype(real)
    kernel = kernel_of(op, x.shape, "c64" if real is np.float32 else "c128", factors)
    verify(kernel)
    assert kernel.thread_count == 32 and any(a.name == "real" for a in kernel.arrays)
    shape = list(x.shape)
    shape[op.axis] = op.result_points
    y = np.full(shape, np.nan, x.dtype)
    given = {"x0": x.view(real).reshape(-1), "x1": factors, "y0": y.view(real).reshape(-1)}
    names = [p.name for p in kernel.params]
    interpret(kernel, {n: given[n] for n in names}, seed=seed)
    return y


def check(got, want, dtype="c8"):
    bound = 1e-6 if np.dtype(dtype) == np.complex64 else 1e-14
    assert np.abs(got - want).max() <= bound * np.abs(want).max()


@pytest.mark.parametrize("points", [1, 2, 3, 8, 31, 32, 60, 64, 120])
def test_rows(points):
    x = signal(3, points)
    check(ran(FftLines(points), x), np.fft.fft(x.astype("c16")))


def test_threads_may_run_in_any_order():
    x = signal(5, 24)
    check(ran(FftLines(24), x, seed=1), np.fft.fft(x.astype("c16")))


@pytest.mark.parametrize("inverse", [False, True])
def test_double_precision_and_scales(inverse):
    x = signal(2, 30, dtype="c16")
    want = np.fft.ifft(x) if inverse else np.fft.fft(x) / 30
    check(ran(FftLines(30, inverse=inverse, scale=1 / 30), x), want, "c16")


def test_other_axes():
    x = signal(2, 12, 19)
    check(ran(FftLines(12, axis=-2), x), np.fft.fft(x.astype("c16"), axis=-2))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("first", "second"), [(4, 6), (16, 3), (5, 24)])
def test_long_lines_in_two_steps(first, second, inverse):
    x = signal(3, first * second)
    columns = FftLines(first * second, first, inverse=inverse, step="columns")
    rows = FftLines(first * second, first, inverse=inverse, step="rows", scale=0.5)
    want = np.fft.ifft(x.astype("c16"), norm="forward") if inverse else np.fft.fft(x.astype("c16"))
    check(ran(rows, ran(columns, x)), 0.5 * want)


def test_values_are_multiplied_and_left_away():
    x = signal(2, 5)
    before, behind = np.exp(0.3j * np.arange(5)), np.exp(0.7j * np.arange(7))
    op = FftLines(12, kept=7, before=5, behind=True)
    want = np.fft.fft(x.astype("c16") * before, 12)[..., :7] * behind
    check(ran(op, x, before, behind), want)


# Plans.


def steps_of(points, dtype="c64", bytes=fourier_blocks.LINE_BYTES):
    graph = Graph("plan")
    x = graph.input("x", (2, points), dtype)
    with building(graph):
        planned = plan_transform(Fft(), x, bytes, shared=True)
        graph.set_outputs([planned(x)])
    return graph, [n.op for n in graph.nodes if isinstance(n.op, FftLines)]


@pytest.mark.parametrize(
    ("points", "steps"),
    [(1024, ["whole"]), (4096, ["whole"]), (8192, ["columns", "rows"]), (1 << 20, ["columns", "rows"])],
)
def test_lengths_are_planned_for_shared_memory(points, steps):
    found = steps_of(points)[1]
    assert [op.step.value for op in found] == steps
    # Both steps of long lines are about as long.
    assert len(steps) == 1 or max(found[0].first, found[0].second) <= 2 * min(found[0].first, found[0].second)


def test_prime_lengths_are_convolutions():
    graph, found = steps_of(37)
    assert [bool(op.before) for op in found] == [True, False] and all(op.behind for op in found)
    x = np.concatenate([signal(1, 37)] * 2)
    (got,) = rlx.Session("reference").compile(graph).run(x=x)
    check(np.asarray(got), np.fft.fft(x.astype("c16")))


def test_whole_programs_have_no_products_left():
    graph = Graph("fft")
    graph.set_outputs([Fft()(graph.input("x", (8, 1024), "c64"))])
    kinds = [k.kind for k in CompilePipeline.new("cuda").compile(graph).lir.kernels]
    assert kinds == ["fft"]


def test_code():
    op = FftLines(1024)
    kernel = kernel_of(op, (8, 1024), "c64", factors_of(op).astype(np.float32))
    ptx = compile_assembly(kernel, SM_90A)
    assert ".shared" in ptx and "bar.sync" in ptx and ".local" not in ptx


@pytest.mark.parametrize("points", [2, 6, 64, 62])
@pytest.mark.parametrize("inverse", [False, True])
def test_real_numbers(points, inverse):
    op = FftRealLines(points, inverse, 0.5)
    factors = op.all_factors.astype(np.float32)
    x = signal(3, points // 2 + 1) if inverse else signal(3, points).real.copy()
    graph = Graph("transform")
    given = [graph.input("x", x.shape, "c64" if inverse else "f32"), graph.input("f", factors.shape, "f32")]
    graph.set_outputs([graph.append_node(op, given)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    kernel = make_kernel("fft", lir.as_graph(), lir.kernels[0], SM_90A).kernel
    verify(kernel)
    # With scale 1/2 forward it is the transform, backward that of half as many points.
    want = np.fft.irfft(x, points) * points / 2 if inverse else np.fft.rfft(x)
    y = np.full(want.shape, np.nan, np.float32 if inverse else np.complex64)
    arrays = {"x0": x.view(np.float32).reshape(-1), "x1": factors, "y0": y.view(np.float32).reshape(-1)}
    interpret(kernel, {p.name: arrays[p.name] for p in kernel.params}, seed=2)
    np.testing.assert_allclose(y, want, atol=3e-6 * np.abs(want).max())
    np.testing.assert_allclose(op.eval(x, op.all_factors), want, atol=3e-6 * np.abs(want).max())
