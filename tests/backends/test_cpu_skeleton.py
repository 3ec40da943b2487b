"""From HIR to machine code: `gelu(x @ w + b)` with a symbolic batch, and random graphs against the reference."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.special import erf

import rlx
from random_graphs import BINDING, STEPS, graphs, inputs_for
from rlx import ops
from rlx.backends.cpu import CpuBackend
from rlx.backends.cuda import compile_to_ptx
from rlx.errors import BackendError
from rlx.ir.interpret import interpret
from rlx.ir.text.lir_text import parse_lir
from rlx.kernels.from_lir import is_pointwise, make_kernel
from rlx.kernels.ir.interpret import interpret as run_in_interpreter
from rlx.kernels.machines import host

rng = np.random.default_rng(0)
# So many columns are one panel on every machine, which is read as it lies.
N = 16
W = rng.normal(size=(64, N)).astype("f4")
B = rng.normal(size=N).astype("f4")


def layer(policy="direct"):
    def build(h):
        h.fusion_policy = rlx.FusionPolicy(policy)
        x = h.input("x", ("B", "S", 64), "f32")
        return h.linear(x, h.param("w", (64, N), "f32"), h.param("b", (N,), "f32"), "gelu")

    return rlx.Graph.define("layer", build)


def exact(x):
    y = x.astype("f8") @ W + B
    return 0.5 * y * (1 + erf(y / np.sqrt(2)))


@pytest.mark.parametrize("policy", ["direct", "fusable"])
def test_one_compile_serves_every_batch(policy):
    c = rlx.Session("cpu").compile(layer(policy))
    c.set_params({"w": W, "b": B})
    for dims in ((1, 1), (2, 3), (5, 17), (0, 3), (7, 1), (1, 100)):
        x = rng.normal(size=(*dims, 64)).astype("f4")
        [y] = c.run(x=x)
        assert y.shape == (*dims, N)
        np.testing.assert_allclose(np.asarray(y), exact(x), rtol=1e-5, atol=1e-5)


def test_the_whole_layer_is_one_kernel():
    c = rlx.Session("cpu").compile(layer())
    assert "1 matmul; arena 0 bytes" in c.report
    assert "matmul + add + gelu" in c.report
    assert f"native {host().name}" in c.report


def executable(graph):
    return CpuBackend().compile(graph, None)


def test_lir_has_a_text_that_reads_back():
    lir = executable(layer().into_graph()).lir
    text = str(lir)
    assert text.startswith("lir @layer(%x: f32[B,S,64]")
    assert "kernel matmul (%x, %w, %b) -> (%2) covers (%0, %1, %2)" in text
    assert parse_lir(text) == lir
    assert str(parse_lir(text)) == text


def test_the_loop_kernel_means_the_same_in_the_interpreter():
    lir = executable(layer().into_graph()).lir
    (kernel,) = lir.kernels
    made = make_kernel("layer", lir.as_graph(), kernel, host())
    x = rng.normal(size=(3, 64)).astype("f4")
    y = np.zeros((3, N), "f4")
    names = [p.name for p in made.kernel.params]
    flat = [x.reshape(-1), W.reshape(-1), y.reshape(-1), B, 3]
    run_in_interpreter(made.kernel, dict(zip(names, flat, strict=True)))
    np.testing.assert_allclose(y, exact(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptx_needs_no_gpu(arch):
    ptx = compile_to_ptx(layer(), arch)
    assert f".target {arch}" in ptx
    assert ".entry matmul0" in ptx
    assert "fma.rn.f32" in ptx
    assert rlx.backends.cuda.compile_to_ptx is compile_to_ptx


def test_ptx_names_what_it_cannot_do():
    g = rlx.Graph("root")
    g.set_outputs([ops.sqrtm(g.input("x", (4, 4), "c64"))])
    with pytest.raises(BackendError, match="compile_to_ptx: sqrtm has no GPU kernel yet"):
        compile_to_ptx(g)


def test_host_calls_are_reported():
    g = rlx.Graph("mixed")
    x = g.input("x", (4, 4), "c64")
    g.set_outputs([ops.sqrtm(x * 2.0) + 1.0])
    c = rlx.Session("cpu").compile(g)
    assert "call    host (no native kernel)  sqrtm" in c.report
    x = np.diag([1.0, 4.0, 9.0, 16.0]).astype("c8")
    np.testing.assert_allclose(c.run(x=x)[0], np.sqrt(x * 2) + 1, rtol=1e-6)


def test_values_between_kernels_live_in_the_arena_and_outputs_do_not():
    g = rlx.Graph("chain")
    x, w = g.input("x", ("B", 16)), g.param("w", (16, 16))
    hidden = rlx.tanh(x @ w)
    g.set_outputs([rlx.relu(hidden @ w), hidden.reshape((-1,))])
    run = executable(g)
    assert str(run.lir.arena_size) == "64*B"
    weights = rng.normal(size=(16, 16)).astype("f4")
    first = run.run({"x": np.ones((2, 16), "f4")}, {"w": weights})
    kept = [a.copy() for a in first]
    run.run({"x": np.zeros((9, 16), "f4")}, {"w": weights})
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_host_call_that_returns_a_view_outlives_the_slot_it_looks_into():
    g = rlx.Graph("view_of_arena")
    x, w = g.input("x", (4, 16)), g.param("w", (16, 16))
    early = rlx.narrow(x @ w, 1, 3, 5)
    y = x
    for _ in range(4):
        y = y @ w
    g.set_outputs([early + 1.0, y])
    weights = rng.normal(size=(16, 16)).astype("f4")
    x = rng.normal(size=(4, 16)).astype("f4")
    got, _ = executable(g).run({"x": x}, {"w": weights})
    np.testing.assert_allclose(got, (x.astype("f8") @ weights)[:, 3:8] + 1.0, rtol=1e-4, atol=1e-4)


def test_threads_share_an_executable():
    c = rlx.Session("cpu").compile(layer())
    c.set_params({"w": W, "b": B})
    xs = [rng.normal(size=(i + 1, 2, 64)).astype("f4") for i in range(8)]
    results = [None] * len(xs)

    def work(i):
        for _ in range(5):
            results[i] = c.run(x=xs[i])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, y in zip(xs, results, strict=True):
        np.testing.assert_allclose(np.asarray(y), exact(x), rtol=1e-5, atol=1e-5)


# A rounding difference must not become a jump, so comparisons and casts are left out.
CONTINUOUS = tuple((step, fits) for step, fits in STEPS if step.__name__ not in ("compare", "cast"))


@settings(max_examples=25)
@given(graphs(steps=CONTINUOUS, dtypes=("f32", "f64", "i32"), max_nodes=8))
def test_random_graphs_agree_with_the_reference(graph):
    values = inputs_for(graph)
    bound = graph.bind(BINDING)
    inputs = {n.op.key: values[n.op.key] for n in bound.inputs}
    params = {n.op.key: values[n.op.key] for n in bound.params}
    for a, b in zip(interpret(bound, values), executable(bound).run(inputs, params), strict=True):
        assert a.dtype == b.dtype
        limit = {"f": 2e-4 if a.dtype == np.float32 else 1e-9}.get(a.dtype.kind, 0)
        scale = max(1.0, float(np.abs(a.astype("f8")).max(initial=0.0)))
        np.testing.assert_allclose(b, a, rtol=limit, atol=limit * scale)


def test_pointwise_is_what_the_generator_can_lower():
    g = rlx.Graph()
    x = g.input("x", (2,))
    for node, expected in ((rlx.gelu(x), True), (x + 1.0, True), (rlx.softmax(x, -1), False)):
        assert is_pointwise(g, node.node) is expected
