"""Norms, softmax, losses, their gradients and anything around them: native kernels against f64, at every size."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

import rlx
from op_samples import LEAVES, sample_graph, samples_of
from random_graphs import BINDING, STEPS, graphs, inputs_for
from rlx import ops
from rlx.autodiff.graphs import grad_with_loss
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret as run_in_interpreter
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import host

rng = np.random.default_rng(41)
# Error of a result relative to its largest element: some roundings of the type.
LIMIT = {"f32": 4e-6, "f64": 1e-14, "bf16": 8e-3, "f16": 1e-3}


@functools.cache
def compiled(build, dtype):
    graph = rlx.Graph("g")
    with building(graph):
        result = build(graph, dtype)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph, CpuBackend().compile(graph.copy(), CompileOptions())


def kinds(executable):
    return [k.kind for k in executable.lir.kernels]


def run(graph, executable, values):
    inputs = {n.op.key: values[n.op.key] for n in graph.inputs}
    return [np.asarray(a) for a in executable.run(inputs, {n.op.key: values[n.op.key] for n in graph.params})]


def normal(dims, dtype, scale=1.0):
    return (rng.normal(size=dims) * scale).astype(rlx.DType.of(dtype).numpy)


def assert_close(found, exact, dtype):
    found, exact = found.astype("f8"), np.asarray(exact, "f8")
    assert found.shape == exact.shape
    size = np.abs(exact[np.isfinite(exact)]).max(initial=1e-30)
    np.testing.assert_allclose(found, exact, rtol=LIMIT[dtype], atol=LIMIT[dtype] * size)


def layer_norm(g, dtype):
    x = g.input("x", ("B", "S", 48), dtype)
    return ops.layer_norm(x, g.param("gamma", (48,), dtype), g.param("beta", (48,), dtype), eps=1e-5)


def rms_norm(g, dtype):
    x = g.input("x", ("B", "S", 48), dtype)
    return ops.rms_norm(x, g.param("gamma", (48,), dtype), g.param("beta", (48,), dtype), eps=1e-5)


def residual_norm(g, dtype):
    x, h = g.input("x", ("B", "S", 48), dtype), g.input("h", ("B", "S", 48), dtype)
    total = x + h
    return ops.layer_norm(total, g.param("gamma", (48,), dtype), g.param("beta", (48,), dtype), eps=1e-5), total


def exact_norm(x, gamma, beta, centre):
    wide = x.astype("f8")
    wide = wide - wide.mean(-1, keepdims=True) if centre else wide
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * gamma.astype("f8") + beta.astype("f8")


SIZES = [(1, 1), (2, 3), (0, 4), (3, 0), (5, 17)]


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("build", [layer_norm, rms_norm, residual_norm])
def test_norms(build, dtype):
    graph, executable = compiled(build, dtype)
    assert kinds(executable) == ["row"]
    for b, s in SIZES:
        values = {k: normal((48,), dtype) for k in ("gamma", "beta")}
        values |= {k: normal((b, s, 48), dtype) for k in ("x", "h")}
        result, *rest = run(graph, executable, values)
        x = values["x"]
        if rest:
            x = values["x"].astype("f8") + values["h"].astype("f8")
            assert_close(rest[0], x, dtype)
            if dtype in ("bf16", "f16"):
                # The sum is normalised as it is, and only its stored copy is rounded.
                assert_close(result, exact_norm(x, values["gamma"], values["beta"], True), dtype)
                continue
        assert_close(result, exact_norm(x, values["gamma"], values["beta"], build is not rms_norm), dtype)


def last_axis(g, dtype):
    x = g.input("x", ("B", "S"), dtype)
    return ops.softmax(x), ops.log_softmax(x), ops.logsumexp(x, -1)


def first_axis(g, dtype):
    x = g.input("x", ("B", "S"), dtype)
    return ops.softmax(x, 0), ops.log_softmax(x, 0), ops.logsumexp(x, 0)


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("build", [last_axis, first_axis])
def test_softmax(build, dtype):
    graph, executable = compiled(build, dtype)
    assert set(kinds(executable)) == {"row"}
    axis = -1 if build is last_axis else 0
    for b, s in [(1, 1), (3, 7), (4, 64), (2, 130), (0, 3), (40, 33)]:
        x = normal((b, s), dtype, 20.0 if dtype in ("f32", "f64") else 1.0)
        found = run(graph, executable, {"x": x})
        if x.shape[axis] == 0:
            assert found[0].shape == x.shape
            continue
        wide = x.astype("f8")
        for a, exact in zip(found, (softmax(wide, axis), log_softmax(wide, axis), logsumexp(wide, axis)), strict=True):
            assert_close(a, exact, dtype)


def cross_entropy(g, dtype):
    logits = g.input("x", ("B", "C"), dtype)
    return ops.softmax_cross_entropy_with_logits(logits, g.input("labels", ("B",), "i32"))


@pytest.mark.parametrize("dtype", LIMIT)
def test_cross_entropy(dtype):
    graph, executable = compiled(cross_entropy, dtype)
    assert kinds(executable) == ["reduce"]
    for b, c in [(1, 1), (3, 5), (7, 100), (0, 4)]:
        x, labels = normal((b, c), dtype, 3.0), rng.integers(-c, c, b).astype("i4")
        (loss,) = run(graph, executable, {"x": x, "labels": labels})
        wide = x.astype("f8")
        assert_close(loss, logsumexp(wide, -1) - wide[np.arange(b), labels], dtype)


def reductions(g, dtype):
    x = g.input("x", ("B", "S", 20), dtype)
    everything = [ops.reduce_sum(x), ops.reduce_max(x), ops.reduce_mean(x)]
    return (
        *everything,
        ops.reduce_sum(x, (0, 1)),
        ops.reduce_min(x, 0),
        ops.reduce_mean(x, (0, 2)),
        ops.variance(x, 1),
    )


@pytest.mark.parametrize("dtype", LIMIT)
def test_reductions_over_any_axes(dtype):
    graph, executable = compiled(reductions, dtype)
    assert set(kinds(executable)) <= {"reduce", "row", "map"}
    for b, s in [(1, 1), (3, 4), (2, 50), (33, 5)]:
        x = normal((b, s, 20), dtype)
        wide = x.astype("f8")
        exact = [wide.sum(), wide.max(), wide.mean(), wide.sum((0, 1)), wide.min(0), wide.mean((0, 2)), wide.var(1)]
        size = np.abs(wide).sum()
        for found, wanted in zip(run(graph, executable, {"x": x}), exact, strict=True):
            # A sum is as exact as its terms are large.
            limit = LIMIT[dtype] * max(1.0, size / wide.size)
            np.testing.assert_allclose(found.astype("f8"), wanted, rtol=limit, atol=limit)


def test_empty_reductions():
    graph, executable = compiled(reductions, "f32")
    total, highest, mean, columns, lowest, *_ = run(graph, executable, {"x": np.zeros((0, 3, 20), "f4")})
    assert total == 0 and highest == -np.inf and np.isnan(mean)
    np.testing.assert_array_equal(columns, np.zeros(20))
    np.testing.assert_array_equal(lowest, np.full((3, 20), np.inf))


def gradient(build, wrt):
    """The gradients of mean(y**3) over all leaves, as a graph with symbolic sizes."""
    graph = rlx.Graph("loss")
    y = build(graph, "f32")
    y = y[0] if isinstance(y, tuple) else y
    graph.set_outputs([ops.reduce_mean(y * y * y)])
    return grad_with_loss(graph, wrt, None)


@pytest.mark.parametrize(
    ("build", "wrt"),
    [
        (layer_norm, ["x", "gamma", "beta"]),
        (rms_norm, ["x", "gamma", "beta"]),
        (residual_norm, ["x", "h", "gamma"]),
        (last_axis, ["x"]),
        (first_axis, ["x"]),
        (cross_entropy, ["x"]),
    ],
)
def test_gradients(build, wrt):
    graph = gradient(build, wrt)
    executable = CpuBackend().compile(graph.copy(), CompileOptions())
    assert "call" not in kinds(executable)
    for binding in ({"B": 2, "S": 3, "C": 9}, {"B": 1, "S": 1, "C": 1}, {"B": 5, "S": 40, "C": 70}):
        sizes = {k: v for k, v in binding.items() if k in graph.dynamic_symbols()}
        values = {n.op.key: normal(n.shape.bind(sizes).dims, "f32") for n in graph.nodes if n.is_leaf}
        if "labels" in values:
            values["labels"] = rng.integers(0, sizes["C"], sizes["B"]).astype("i4")
        wide = graph.bind(sizes)
        exact = interpret(as_f64(wide), {k: v.astype("f8") if v.dtype.kind == "f" else v for k, v in values.items()})
        for found, wanted in zip(run(graph, executable, values), exact, strict=True):
            size = max(np.abs(wanted).max(initial=0.0), 1e-3)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * size)


def as_f64(graph):
    """The same program with f64 in the place of f32."""
    return rlx.parse(str(graph).replace("f32", "f64"))


def test_one_kernel_forward_and_backward():
    """The whole step of a norm, but the sums over rows, in one visit of its rows."""
    executable = CpuBackend().compile(gradient(layer_norm, ["x", "gamma", "beta"]), CompileOptions())
    assert kinds(executable) == ["row", "reduce", "reduce"]


def network(g, dtype):
    """Everything at once: lookups, norm, products with epilogues, rotation, joined halves, padding, loss per row."""
    ids = g.input("ids", ("B", "S"), "i32")
    x = ops.gather(g.param("words", (50, 32), dtype), ids, 0)
    h = ops.rms_norm(x, g.param("gamma", (32,), dtype), g.param("beta", (32,), dtype))
    q = ops.rope(h @ g.param("w", (32, 32), dtype), g.input("cos", ("P", 4), dtype), g.input("sin", ("P", 4), dtype), 8)
    up = q @ g.param("up", (32, 24), dtype)
    gated = rlx.silu(ops.narrow(up, 2, 0, 12)) * ops.narrow(up, 2, 12, 12)
    padded = ops.pad(gated, 0.0, [0, 0, 1], [0, 0, 3])
    mask = ops.ge(ops.iota((ids.shape[1], 16), axis=0), ops.iota((ids.shape[1], 16), axis=1))
    return ops.log_softmax(ops.where(mask, padded, -30.0)), ops.reduce_sum(gated, 1)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_a_network_has_no_host_calls(dtype):
    graph, executable = compiled(network, dtype)
    assert "call" not in kinds(executable)
    for b, s in [(1, 1), (2, 5), (0, 3), (3, 20)]:
        binding = {"B": b, "S": s, "P": 24}
        values = {n.op.key: normal(n.shape.bind(binding).dims, dtype, 0.5) for n in graph.nodes if n.is_leaf}
        values["ids"] = rng.integers(0, 50, (b, s)).astype("i4")
        exact = interpret(graph.bind(binding), values)
        for found, wanted in zip(run(graph, executable, values), exact, strict=True):
            limit = {"f32": 2e-5, "f64": 1e-12, "bf16": 0.05}[dtype]
            size = max(np.abs(wanted.astype("f8")).max(initial=0.0), 1e-3)
            np.testing.assert_allclose(found.astype("f8"), wanted.astype("f8"), rtol=limit, atol=limit * size)


@pytest.mark.parametrize("build", [layer_norm, last_axis, first_axis, cross_entropy, reductions])
def test_every_kernel_means_the_same_in_the_interpreter(build):
    """The loop kernels of a program, each run by the interpreter of the loop IR, which checks every access."""
    graph, executable = compiled(build, "f32")
    binding = {"B": 3, "S": 5, "C": 5}
    values = {n.op.key: normal(n.shape.bind(binding).dims, "f32") for n in graph.nodes if n.is_leaf}
    values |= {"labels": np.array([0, 4, 2], "i4")} if "labels" in values else {}
    lir = executable.lir.as_graph()
    memory = {n.id: np.ascontiguousarray(values[n.op.key]).reshape(-1) for n in lir.nodes if n.is_leaf}
    memory |= {n.id: n.op.value.array.reshape(-1) for n in lir.nodes if n.op.mnemonic == "constant"}
    for number, kernel in enumerate(executable.lir.kernels):
        made = make_kernel(f"{kernel.kind}{number}", lir, kernel, host())
        for node in kernel.outputs:
            shape = lir.shape(node).bind(binding)
            memory[node] = np.zeros(int(np.prod(shape.static_dims)), shape.dtype.numpy)
        names = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
        arguments = dict(zip(names, (memory[i] for i in made.buffers), strict=True))
        sizes = [p.name for p in made.kernel.params if not isinstance(p, Buffer)]
        bound = [e if isinstance(e, int) else e.bind(binding) for e in made.extents]
        run_in_interpreter(made.kernel, arguments | dict(zip(sizes, bound, strict=True)))
    for output, found in zip(executable.lir.as_graph().outputs, run(graph, executable, values), strict=True):
        np.testing.assert_allclose(memory[output], found.reshape(-1), rtol=2e-6, atol=1e-6)


def test_any_number_of_threads_gives_the_same_bits():
    graph, executable = compiled(first_axis, "f32")
    x = normal((300, 500), "f32")
    with rlx.threads(1):
        alone = run(graph, executable, {"x": x})
    for count in (2, 3):
        with rlx.threads(count):
            for a, b in zip(alone, run(graph, executable, {"x": x}), strict=True):
                np.testing.assert_array_equal(a, b)


# Every op that has kernels, on its own samples.

SWEPT = ("f32", "bf16", "i32", "bool")


# Their vectors may have either sign: test_factorization_kernels and test_pair_factors compare what they stand for.
UP_TO_SIGNS = ("Eig", "Eigh", "Svd")
COMPUTED = [n for n, c in OP_CLASSES.items() if not c.effect and n not in (*LEAVES, *UP_TO_SIGNS)]


@pytest.mark.parametrize("name", COMPUTED)
def test_samples_of_every_op(name):
    """Two samples, in two types where there are two. tests/conformance has the others, and values of all kinds: a tenth
    of them in `make test`, all in `make test-long`."""
    for number, sample in enumerate(samples_of(name)[:2]):
        dtypes = [d for d in sample.dtypes if d in SWEPT][:2]
        if dtypes:
            check_sample(sample, dtypes[number % len(dtypes)])


def check_sample(sample, dtype):
    graph = sample_graph(sample, dtype)
    known = {s for n in graph.inputs for s in n.shape.dynamic_symbols()}
    if set(graph.dynamic_symbols()) - known:
        graph = graph.bind(sample.binding)
    executable = CpuBackend().compile(graph.copy(), CompileOptions())
    if set(kinds(executable)) <= {"call", "view"}:
        return
    arrays = sample.arrays(dtype)
    found = executable.run({f"x{i}": a for i, a in enumerate(arrays)}, {})
    for a, b in zip(interpret(graph, arrays, sample.binding), found, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        limit = {np.dtype("f4"): 1e-5, np.dtype(ml_dtypes.bfloat16): 1.6e-2}.get(a.dtype, 0.0)
        if a.dtype.kind == "c":
            continue
        wide = a.astype("f8")
        size = max(np.abs(wide[np.isfinite(wide)]).max(initial=0.0), 1e-6)
        np.testing.assert_allclose(np.asarray(b).astype("f8"), wide, rtol=limit, atol=limit * size, err_msg=str(sample))


# A rounding difference must not become a jump, so comparisons and casts are left out.
CONTINUOUS = tuple((step, fits) for step, fits in STEPS if step.__name__ not in ("compare", "cast"))


@settings(max_examples=40)
@given(
    graphs(steps=CONTINUOUS, max_nodes=12, dtypes=("f32", "f64", "i32", "bf16", "f16")),
    st.sampled_from([0, 1, 3, 17]),
    st.sampled_from([0, 1, 2, 33]),
)
def test_random_graphs_at_random_sizes(graph, b, s):
    before = dict(BINDING)
    BINDING.update(B=b, S=s)
    try:
        values = inputs_for(graph)
    finally:
        BINDING.update(before)
    sizes = {"B": b, "S": s}
    known = {name for n in graph.nodes if n.is_leaf for name in n.shape.dynamic_symbols()}
    program = graph if set(graph.dynamic_symbols()) <= known else graph.bind(sizes)
    found = run(graph, CpuBackend().compile(program.copy(), CompileOptions()), values)
    # What goes through a coarse type is as coarse as that, whatever it becomes later.
    inside = {n.shape.dtype.numpy.name for n in graph.nodes if len(n.shapes) == 1}
    for a, b_ in zip(interpret(graph.bind(sizes), values), found, strict=True):
        assert a.dtype == b_.dtype and a.shape == b_.shape
        limits = {"float32": 2e-4, "float64": 1e-9, "float16": 3e-2, "bfloat16": 0.2}
        limit = max(limits.get(name, 0.0) for name in inside) if a.dtype.name in limits else 0.0
        wide = a.astype("f8")
        scale = max(1.0, float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0)))
        np.testing.assert_allclose(b_.astype("f8"), wide, rtol=limit, atol=limit * scale)
