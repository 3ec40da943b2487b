"""Attention on the CPU is one native kernel: every mask, layout, type and size against f64, for any thread count."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import softmax

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.native.kernels import load
from rlx.backends.program import command_table
from rlx.ir.shape import Shape
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret as run_in_interpreter
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import AVX2, AVX512, SSE2, runs_here
from rlx.ops.attn.attention import Attention

rng = np.random.default_rng(17)
# Error of a result relative to its largest element: some roundings of the type.
LIMIT = {"f32": 4e-6, "f64": 1e-14, "bf16": 8e-3, "f16": 1e-3}


def graph_of(op, shapes):
    graph = rlx.Graph("attention")
    operands = [graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    graph.set_outputs([op(*operands)])
    return graph


def compiled(op, shapes):
    return CpuBackend().compile(graph_of(op, shapes), CompileOptions())


def kinds(executable):
    return [k.kind for k in executable.lir.kernels]


def assert_native(executable):
    """One kernel, and where keys may be cut into parts the one that joins them."""
    assert kinds(executable) in (["attention"], ["attention", "view", "attention_join"])


def run(executable, arrays):
    (result,) = executable.run({f"x{i}": a for i, a in enumerate(arrays)}, {})
    return np.asarray(result)


def normal(*dims, dtype="f32"):
    return rng.normal(size=dims).astype(rlx.DType.of(dtype).numpy)


def shapes_of(arrays):
    return [Shape(a.shape, rlx.DType.of(a.dtype)) for a in arrays]


def assert_close(found, exact, dtype):
    found, exact = found.astype("f8"), np.asarray(exact, "f8")
    assert found.shape == exact.shape
    size = np.abs(exact).max(initial=1e-30)
    np.testing.assert_allclose(found, exact, rtol=0, atol=LIMIT[dtype] * size)


def check(op, arrays, dtype):
    executable = compiled(op, shapes_of(arrays))
    assert_native(executable)
    assert_close(run(executable, arrays), op.eval(*arrays), dtype)


@pytest.mark.parametrize("sample", list(Attention.samples()), ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_samples(sample, dtype):
    executable = compiled(sample.op, sample.shapes(dtype))
    assert_native(executable)
    arrays = sample.arrays(dtype)
    assert_close(run(executable, arrays), sample.op.eval(*arrays), dtype)


@pytest.mark.parametrize(("seq_q", "seq_k", "depth"), [(128, 128, 64), (100, 37, 64), (17, 300, 128), (1, 1000, 128)])
def test_against_scipy(seq_q, seq_k, depth):
    q, k, v = normal(2, 3, seq_q, depth), normal(2, 3, seq_k, depth), normal(2, 3, seq_k, depth)
    found = run(compiled(Attention(3, depth), shapes_of([q, k, v])), [q, k, v])
    scores = q.astype("f8") @ k.swapaxes(-1, -2).astype("f8") / np.sqrt(depth)
    assert_close(found, softmax(scores, axis=-1) @ v.astype("f8"), "f32")


SIZES = st.sampled_from([1, 2, 3, 7, 16, 17, 33, 48, 49, 64, 65, 100, 130])
WIDTHS = st.sampled_from([1, 3, 8, 16, 32, 64, 80])


@st.composite
def cases(draw):
    """An attention with any attributes, and operands for it."""
    heads, group = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 3, 9]))
    batch, seq_q, seq_k = draw(st.sampled_from([1, 2])), draw(SIZES), draw(SIZES)
    depth, width = draw(WIDTHS), draw(WIDTHS)
    layout = draw(st.sampled_from(["bhsd", "bshd", "bsm"]))
    kind = draw(st.sampled_from(["none", "causal", "sliding_window", "custom", "bias"]))
    dtype = draw(st.sampled_from(["f32", "f64", "bf16", "f16"]))

    def dims(count, seq, size):
        joined = {"bhsd": (count, seq, size), "bshd": (seq, count, size), "bsm": (seq, count * size)}
        return batch, *joined[layout]

    every = heads * group
    sides = [dims(every, seq_q, depth), dims(heads, seq_k, depth), dims(heads, seq_k, width)]
    arrays = [normal(*d, dtype=dtype) for d in sides]
    attributes = {"num_heads": every, "head_dim": depth, "num_kv_heads": heads, "layout": layout, "mask_kind": kind}
    attributes["softcap"] = draw(st.sampled_from([None, 2.5]))
    attributes["score_scale"] = draw(st.sampled_from([None, 0.4]))
    if kind == "sliding_window":
        attributes["window"] = draw(st.sampled_from([0, 1, 5, 60]))
    if kind in ("custom", "bias"):
        full = (batch, every, seq_q, seq_k)
        kept = draw(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.just(True)))
        mask = rng.normal(size=[size if keep else 1 for size, keep in zip(full, kept)])
        names = ["f32", "f64", "bf16"] if kind == "bias" else ["bool", "i32", "f32", "f16", "f64"]
        name = draw(st.sampled_from(names))
        arrays.append((mask > 0 if kind == "custom" else mask).astype(rlx.DType.of(name).numpy))
    if draw(st.booleans()):
        attributes["has_kv_len"] = True
        arrays.append(rng.integers(0, seq_k + 1, size=(batch,)).astype(draw(st.sampled_from(["i4", "i8", "f4"]))))
    if kind in ("causal", "sliding_window") and draw(st.booleans()):
        attributes["has_positions"] = True
        shape = draw(st.sampled_from([(seq_q,), (batch, seq_q)]))
        arrays.append(rng.integers(-2, seq_k + 5, size=shape).astype("i4"))
    return Attention(**attributes), arrays, dtype


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_attributes(case):
    check(*case)


@pytest.mark.parametrize(("depth", "width"), [(16, 80), (48, 16), (80, 112), (128, 64), (208, 144)])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_decode_with_heads_of_any_number_of_vectors(depth, width, group):
    op = Attention(2 * group, depth, num_kv_heads=2, has_kv_len=True)
    arrays = [normal(2, 2 * group, 1, depth), normal(2, 2, 150, depth), normal(2, 2, 150, width)]
    check(op, [*arrays, np.array([131, 64], "i4")], "f32")


@functools.cache
def symbolic(**attributes):
    op = Attention(6, 64, num_kv_heads=2, mask_kind="causal", **attributes)
    return op, compiled(op, [Shape(("B", h, s, 64), "f32") for h, s in ((6, "S"), (2, "T"), (2, "T"))])


@pytest.mark.parametrize(
    ("batch", "seq_q", "seq_k"), [(1, 1, 1), (2, 2, 500), (1, 3, 3), (3, 64, 90), (0, 4, 4), (2, 0, 7)]
)
def test_one_compile_for_all_sizes(batch, seq_q, seq_k):
    op, executable = symbolic()
    arrays = [normal(batch, 6, seq_q, 64), normal(batch, 2, seq_k, 64), normal(batch, 2, seq_k, 64)]
    assert_close(run(executable, arrays), op.eval(*arrays), "f32")


def test_no_keys_give_zeros():
    _, executable = symbolic()
    found = run(executable, [normal(1, 6, 5, 64), normal(1, 2, 0, 64), normal(1, 2, 0, 64)])
    np.testing.assert_array_equal(found, np.zeros((1, 6, 5, 64), "f4"))


@pytest.mark.parametrize("seq_q", [1, 40])
def test_what_lies_behind_a_cache_is_never_seen(seq_q):
    op = Attention(4, 32, num_kv_heads=2, mask_kind="causal", has_kv_len=True)
    q, k, v = normal(2, 4, seq_q, 32), normal(2, 2, 90, 32), normal(2, 2, 90, 32)
    lengths = np.array([53, 0], "i4")
    executable = compiled(op, shapes_of([q, k, v, lengths]))
    clean = run(executable, [q, k, v, lengths])
    for batch, length in enumerate(lengths):
        k[batch, :, length:], v[batch, :, length:] = np.nan, np.inf
    np.testing.assert_array_equal(run(executable, [q, k, v, lengths]), clean)
    np.testing.assert_array_equal(clean[1], 0.0)


@pytest.mark.parametrize("seq_q", [1, 20, 64])
@pytest.mark.parametrize("kind", ["custom", "bias"])
def test_fully_masked_rows_are_zero(seq_q, kind):
    q, k, v = normal(1, 2, seq_q, 16), normal(1, 2, 50, 16), normal(1, 2, 50, 16)
    hidden = np.full((1, 2, seq_q, 50), -np.inf if kind == "bias" else 0.0, "f4")
    hidden[:, 0] = 1.0
    op = Attention(2, 16, mask_kind=kind)
    found = run(compiled(op, shapes_of([q, k, v, hidden])), [q, k, v, hidden])
    np.testing.assert_array_equal(found[:, 1], 0.0)
    assert_close(found, op.eval(q, k, v, hidden), "f32")


@pytest.mark.parametrize("seq_q", [1, 64])
def test_nan_and_infinite_scores(seq_q):
    """A NaN in a row stays in it; large scores do not overflow."""
    q, k, v = normal(1, 2, seq_q, 16) * 1e4, normal(1, 2, 50, 16) * 1e4, normal(1, 2, 50, 16)
    executable = compiled(Attention(2, 16), shapes_of([q, k, v]))
    found = run(executable, [q, k, v])
    best = (q @ k.swapaxes(-1, -2)).argmax(-1)
    np.testing.assert_allclose(found, np.take_along_axis(v, best[..., None], 2), rtol=1e-6)
    q[0, 1, 0, 3] = np.nan
    spoiled = run(executable, [q, k, v])
    assert np.isnan(spoiled[0, 1, 0]).all()
    np.testing.assert_array_equal(spoiled[0, 0], found[0, 0])


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 700), (70, 300), (130, 130)])
def test_the_same_bits_for_any_number_of_threads(monkeypatch, seq_q, seq_k):
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)
    _, executable = symbolic()
    arrays = [normal(2, 6, seq_q, 64), normal(2, 2, seq_k, 64), normal(2, 2, seq_k, 64)]
    with rlx.threads(1):
        alone = run(executable, arrays)
    for count in (2, 3):
        with rlx.threads(count):
            np.testing.assert_array_equal(run(executable, arrays), alone)


def test_views_are_read_where_they_lie():
    """q, k and v as slices of one product, split into heads and transposed: nothing is copied."""
    graph = rlx.Graph("packed")
    x = graph.input("x", ("B", "S", 3 * 4 * 16))
    parts = [ops.narrow(x, 2, i * 64, 64) for i in range(3)]
    heads = [ops.transpose(ops.reshape(p, (*p.shape[:2], 4, 16)), (0, 2, 1, 3)) for p in parts]
    y = ops.attention(*heads, num_heads=4, head_dim=16, layout="bhsd")
    graph.set_outputs([ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (y.shape[0], y.shape[2], 64))])
    executable = CpuBackend().compile(graph, CompileOptions())
    assert sorted(set(kinds(executable))) == ["attention", "map"]
    x = normal(2, 33, 192)
    q, k, v = (x[..., i * 64 : (i + 1) * 64].reshape(2, 33, 4, 16).swapaxes(1, 2) for i in range(3))
    exact = Attention(4, 16).eval(q, k, v).swapaxes(1, 2).reshape(2, 33, 64)
    (found,) = executable.run({"x": x}, {})
    assert_close(np.asarray(found), exact, "f32")


SMALL = [
    ("rows", {"num_kv_heads": 1, "mask_kind": "sliding_window", "window": 2}, (1, 2, 5, 6), (1, 1, 7, 6)),
    ("decode", {"num_kv_heads": 1}, (1, 3, 1, 16), (1, 1, 19, 16)),
    # More rows than a vector of SSE, Neon or WebAssembly has lanes.
    ("decode of many heads", {"num_kv_heads": 1}, (1, 7, 1, 16), (1, 1, 19, 16)),
]


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE2], ids=lambda t: t.name)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c[0])
def test_interpreter_agrees_with_native_code(case, target):
    """Every access of the kernel is inside its arrays, for machines that this one may not be."""
    _, attributes, q_dims, k_dims = case
    op = Attention(q_dims[1], q_dims[3], **attributes)
    arrays = [normal(*q_dims), normal(*k_dims), normal(*k_dims)]
    lir = compiled(op, shapes_of(arrays)).lir
    made = make_kernel("attention", lir.as_graph(), lir.kernels[0], target)
    names = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
    result = np.zeros(q_dims, "f4")
    args = dict(zip(names, [*(a.reshape(-1) for a in arrays), result.reshape(-1)], strict=True))
    run_in_interpreter(made.kernel, args)
    assert_close(result, op.eval(*arrays), "f32")
    if runs_here(target):
        interpreted = result.copy()
        result[:] = 0.0
        load(made.kernel, target)(*args.values())
        np.testing.assert_allclose(result, interpreted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3, 40])
def test_values_without_elements(rows):
    graph = rlx.Graph("f")
    q, k = graph.input("q", (2, 2, rows, 4)), graph.input("k", (2, 2, 3, 4))
    graph.set_outputs([rlx.ops.Attention(2, 4)(q, k, graph.input("v", (2, 2, 3, 0)))])
    arrays = {"q": np.ones((2, 2, rows, 4), "f4"), "k": np.ones((2, 2, 3, 4), "f4"), "v": np.ones((2, 2, 3, 0), "f4")}
    [y] = rlx.Session("cpu").compile(graph).run(arrays)
    assert y.shape == (2, 2, rows, 0)
