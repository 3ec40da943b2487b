"""Attention to keys and values as caches store them: f16, bf16, or i8 codes with a scale for each row.

The oracle reads what is stored as f64 and uses SciPy's softmax. Sizes are symbolic, so that one kernel is tried on few
and on many rows, short caches and long ones whose keys are cut into parts.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy.special import softmax

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.native.kernels import check_symbols
from rlx.ir.dims import bind_dim
from rlx.ir.shape import Shape
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret as run_in_interpreter
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import AVX2, AVX512, NEON, RISCV, SSE2
from rlx.ops.attn.attention import Attention

# The type of q, and that of k and v: those of caches, and others that the op allows.
TYPES = [("f32", "f16"), ("f32", "bf16"), ("f32", "i8")]
OTHER_TYPES = [("bf16", "f32"), ("f64", "f16"), ("f64", "i8"), ("f16", "f64")]
# Error relative to the largest element: roundings of the result's type, and of sums.
LIMIT = {"f32": 4e-6, "f64": 1e-14, "bf16": 8e-3, "f16": 1e-3}


def numpy_type(name):
    return rlx.DType.of(name).numpy


def exact(attributes, q, k, v, mask=None, kv_len=None, positions=None, k_scale=None, v_scale=None):
    """Attention in f64, [B,H,S,D]."""
    q, k, v = (np.asarray(x, "f8") for x in (q, k, v))
    if k_scale is not None:
        k, v = k * np.asarray(k_scale, "f8")[..., None], v * np.asarray(v_scale, "f8")[..., None]
    batch, heads, seq_q, depth = q.shape
    seq_k, group = k.shape[2], heads // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    lengths = np.full(batch, seq_k) if kv_len is None else np.asarray(kv_len)
    out = np.zeros((batch, heads, seq_q, v.shape[3]))
    for b, n in enumerate(lengths):
        keys = np.arange(n)
        scores = q[b] @ k[b, :, :n].swapaxes(-1, -2) / np.sqrt(depth)
        if (cap := attributes.get("softcap")) is not None:
            scores = cap * np.tanh(scores / cap)
        kind = attributes["mask_kind"]
        seen = np.ones((1, 1, n), bool)
        if kind in ("causal", "sliding_window"):
            at = np.asarray(positions[b] if positions is not None else max(0, n - seq_q) + np.arange(seq_q))[:, None]
            seen = (keys <= at) & (keys >= at - attributes.get("window", n + seq_q + 10**6))
            seen = np.broadcast_to(seen, (1, seq_q, n))
        elif kind == "custom":
            seen = np.broadcast_to(mask[b], (heads, seq_q, seq_k))[..., :n]
        elif kind == "bias":
            scores = scores + np.broadcast_to(mask[b], (heads, seq_q, seq_k))[..., :n].astype("f8")
        scores = np.where(seen, scores, -np.inf)
        some = scores.max(-1, initial=-np.inf) > -np.inf
        weights = np.zeros_like(scores)
        if some.any():
            weights[some] = softmax(scores[some], axis=-1)
        out[b] = weights @ v[b, :, :n]
    return out


def operands(types, attributes, sizes, heads, width, rng):
    """q, k, v and what the attributes ask for, by name."""
    of_q, of_kv = types
    batch, seq_q, seq_k = sizes
    depth, kv_heads = attributes["head_dim"], attributes["num_kv_heads"]
    found = {"q": rng.normal(size=(batch, heads, seq_q, depth)).astype(numpy_type(of_q))}
    for name, size in (("k", depth), ("v", width)):
        dims = (batch, kv_heads, seq_k, size)
        codes = rng.integers(-127, 128, dims) if of_kv == "i8" else rng.normal(size=dims)
        found[name] = codes.astype(numpy_type(of_kv))
    if attributes["mask_kind"] == "custom":
        found["mask"] = rng.random((batch, 1, seq_q, seq_k)) > 0.3
    if attributes["mask_kind"] == "bias":
        found["mask"] = rng.normal(size=(batch, heads, seq_q, seq_k)).astype("f4")
    if attributes.get("has_kv_len"):
        found["kv_len"] = rng.integers(seq_k // 2, seq_k + 1, batch).astype("i4")
    if attributes.get("has_positions"):
        found["positions"] = rng.integers(0, seq_k + 3, (batch, seq_q)).astype("i4")
    if of_kv == "i8":
        for name in ("k_scale", "v_scale"):
            scale = "f4" if of_q == "f32" else "f8"
            found[name] = rng.uniform(0.002, 0.02, (batch, kv_heads, seq_k)).astype(scale)
    return found


def symbolic(name, array):
    axes = {
        "q": ("B", None, "S", None),
        "mask": ("B", None, "S", "T"),
        "kv_len": ("B",),
        "positions": ("B", "S"),
        "k_scale": ("B", None, "T"),
        "v_scale": ("B", None, "T"),
    }.get(name, ("B", None, "T", None))
    dims = tuple(n if axis is None else axis for n, axis in zip(array.shape, axes))
    return Shape(dims, rlx.DType.of(array.dtype))


@functools.cache
def _compiled(op, shapes, name):
    graph = rlx.Graph(name)
    graph.set_outputs([op(*(graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)))])
    return CpuBackend().compile(graph, CompileOptions())


def compiled(attributes, given, name="stored"):
    op = Attention(**attributes, has_scales="k_scale" in given)
    return _compiled(op, tuple(symbolic(n, a) for n, a in given.items()), name)


def run(executable, given):
    (found,) = executable.run({f"x{i}": a for i, a in enumerate(given.values())}, {})
    return np.asarray(found)


def check(attributes, given):
    executable = compiled(attributes, given)
    assert {k.kind for k in executable.lir.kernels} <= {"attention", "view", "attention_join"}
    found, wanted = run(executable, given), exact(attributes, **given)
    assert found.dtype == given["q"].dtype
    size = np.abs(wanted).max(initial=1e-30)
    limit = LIMIT[str(rlx.DType.of(given["q"].dtype))]
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=0, atol=limit * size)


# Group, head width of q and k, that of v, and attributes: every mask with and without what else there is.
CASES = [
    (1, 64, 64, {"mask_kind": "none", "has_kv_len": True}),
    (3, 64, 64, {"mask_kind": "causal", "has_kv_len": True, "has_positions": True}),
    (2, 32, 48, {"mask_kind": "sliding_window", "window": 37, "has_kv_len": True}),
    (4, 16, 32, {"mask_kind": "custom", "softcap": 2.5}),
    (1, 128, 16, {"mask_kind": "bias", "has_kv_len": True, "softcap": 3.0}),
    (9, 24, 7, {"mask_kind": "causal", "softcap": 2.0}),
]
SIZES = [(2, 1, 5), (1, 2, 130), (2, 19, 67), (1, 70, 300), (1, 1, 1100), (2, 2, 1029), (0, 3, 4), (1, 0, 9)]


@pytest.mark.parametrize(
    ("types", "case"),
    [*itertools.product(TYPES, CASES), *zip(OTHER_TYPES, CASES[1:])],
    ids=lambda x: "-".join(x) if len(x) == 2 else x[3]["mask_kind"],
)
def test_every_stored_type(types, case):
    group, depth, width, attributes = case
    attributes = {"num_heads": 2 * group, "head_dim": depth, "num_kv_heads": 2, **attributes}
    rng = np.random.default_rng(3)
    for sizes in SIZES:
        check(attributes, operands(types, attributes, sizes, 2 * group, width, rng))


@pytest.mark.parametrize("layout", ["bshd", "bsm"])
def test_scales_belong_to_heads_in_every_layout(layout):
    attributes = {"num_heads": 4, "head_dim": 16, "num_kv_heads": 2, "mask_kind": "causal"}
    given = operands(("f32", "i8"), attributes, (2, 3, 40), 4, 16, np.random.default_rng(4))
    wanted = exact(attributes, **given)

    def turned(x):
        x = x.swapaxes(1, 2)
        return x.reshape(*x.shape[:2], -1) if layout == "bsm" else x

    given = {n: turned(a) if n in "qkv" else a for n, a in given.items()}
    op = Attention(**attributes, layout=layout, has_scales=True)
    shapes = tuple(Shape(a.shape, rlx.DType.of(a.dtype)) for a in given.values())
    found = run(_compiled(op, shapes, "turned"), given)
    np.testing.assert_allclose(found, turned(wanted), rtol=0, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("of_kv", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("seq_q", [1, 33])
def test_what_lies_behind_a_cache_is_never_seen(of_kv, seq_q):
    attributes = {"num_heads": 6, "head_dim": 32, "num_kv_heads": 2, "mask_kind": "causal", "has_kv_len": True}
    given = operands(("f32", of_kv), attributes, (2, seq_q, 1200), 6, 32, np.random.default_rng(5))
    given["kv_len"] = np.array([853, 0], "i4")
    executable = compiled(attributes, given)
    clean = run(executable, given)
    np.testing.assert_array_equal(clean[1], 0.0)
    for name in ("k", "v", "k_scale", "v_scale"):
        for b, n in enumerate(given["kv_len"]):
            if name in given:
                given[name][b, :, n:] = 77 if given[name].dtype == np.int8 else np.nan
    np.testing.assert_array_equal(run(executable, given), clean)


DECODE = {"num_heads": 9, "head_dim": 64, "num_kv_heads": 3, "mask_kind": "causal", "has_kv_len": True}


@pytest.mark.parametrize("of_kv", ["f32", "f16", "i8"])
@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), [(1, 1, 2000), (1, 2, 700), (2, 1, 512), (5, 1, 1024)])
def test_parts_of_the_keys_give_what_all_of_them_give(monkeypatch, of_kv, batch, seq_q, seq_k):
    given = operands(("f32", of_kv), DECODE, (batch, seq_q, seq_k), 9, 64, np.random.default_rng(6))
    cut = compiled(DECODE, given)
    monkeypatch.setattr("rlx.compile.lower.attention.MOST_PAIRS", 0)
    whole = compiled(DECODE, given, "whole")
    assert [k.kind for k in whole.lir.kernels] == ["attention"]
    assert [k.kind for k in cut.lir.kernels] == ["attention", "view", "attention_join"]
    found, wanted = run(cut, given), run(whole, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("of_kv", ["f32", "bf16", "i8"])
def test_the_same_bits_for_any_number_of_threads(monkeypatch, of_kv):
    monkeypatch.setattr("rlx.backends.program.command_table.WORTH_SHARING", 0)
    for seq_q, seq_k in ((1, 2300), (2, 900), (40, 600)):
        given = operands(("f32", of_kv), DECODE, (1, seq_q, seq_k), 9, 64, np.random.default_rng(7))
        executable = compiled(DECODE, given, "threads")
        with rlx.threads(1):
            alone = run(executable, given)
        for count in (2, 3):
            with rlx.threads(count):
                np.testing.assert_array_equal(run(executable, given), alone)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1999])
def test_caches_filled_up_to_the_ends_of_parts(length):
    given = operands(("f32", "f32"), DECODE, (1, 1, 2048), 9, 64, np.random.default_rng(8))
    given["kv_len"] = np.array([length], "i4")
    check(DECODE, given)


def test_nan_in_one_part_reaches_its_row_alone():
    given = operands(("f32", "f32"), DECODE, (1, 1, 2048), 9, 64, np.random.default_rng(9))
    given["kv_len"][:] = 2000
    clean = run(compiled(DECODE, given), given)
    given["v"][0, 1, 1500, 5] = np.nan
    found = run(compiled(DECODE, given), given)
    assert np.isnan(found[0, 3:6, 0, 5]).all()
    found[0, 3:6, 0, 5] = clean[0, 3:6, 0, 5]
    np.testing.assert_array_equal(found, clean)


def test_no_arena_for_parts_where_keys_are_not_cut():
    given = operands(("f32", "f32"), DECODE, (1, 1, 600), 9, 64, np.random.default_rng(10))
    arena = compiled(DECODE, given).lir.arena_size
    runs = ((1, 1, 600), (1, 3, 600), (1, 1, 511), (6, 1, 600))
    sizes = [bind_dim(arena, {"B": b, "S": s, "T": t}) for b, s, t in runs]
    assert sizes[0] > 0 and sizes[1:] == [0, 0, 0]


@pytest.mark.parametrize("target", [AVX512, AVX2, SSE2], ids=lambda t: t.name)
@pytest.mark.parametrize("of_kv", ["f32", "f16", "bf16", "i8"])
@pytest.mark.parametrize(("seq_q", "seq_k", "depth"), [(1, 21, 16), (5, 23, 16), (1, 525, 16), (1, 513, 6)])
def test_every_access_is_inside_its_array(target, of_kv, seq_q, seq_k, depth):
    """The interpreter checks each of them, for machines that this one may not be."""
    attributes = {"num_heads": 3, "head_dim": depth, "num_kv_heads": 1, "mask_kind": "causal", "has_kv_len": True}
    given = operands(("f32", of_kv), attributes, (1, seq_q, seq_k), 3, depth, np.random.default_rng(11))
    op = Attention(**attributes, has_scales=of_kv == "i8")
    shapes = tuple(Shape(a.shape, rlx.DType.of(a.dtype)) for a in given.values())
    lir = _compiled(op, shapes, "fixed").lir
    graph = lir.as_graph()
    values = {n.id: a.reshape(-1) for n, a in zip(graph.inputs, given.values())}
    for kernel in lir.kernels:
        if kernel.kind == "view":
            values[kernel.outputs[0]] = values[graph.nodes[kernel.outputs[0]].inputs[0]]
            continue
        made = make_kernel("attention", graph, kernel, target)
        names = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
        for result in kernel.outputs:
            shape = graph.shape(result)
            values[result] = np.zeros(shape.static_dims, shape.dtype.numpy).reshape(-1)
        if kernel.kind == "attention_join":
            # It stores over its first operand.
            values[kernel.outputs[0]] = values[graph.nodes[kernel.nodes[0]].inputs[0]]
        run_in_interpreter(made.kernel, {n: values[i] for n, i in zip(names, made.buffers, strict=True)})
    found, wanted = values[graph.outputs[0]], exact(attributes, **given)
    np.testing.assert_allclose(found, wanted.reshape(-1), rtol=0, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON, RISCV], ids=lambda t: t.name)
@pytest.mark.parametrize("of_kv", ["f16", "bf16", "i8"])
def test_no_calls_on_any_machine(target, of_kv):
    given = operands(("f32", of_kv), DECODE, (1, 1, 600), 9, 64, np.random.default_rng(12))
    lir = compiled(DECODE, given).lir
    for kernel in lir.kernels:
        if kernel.kind != "view":
            check_symbols(compile_object(make_kernel("k", lir.as_graph(), kernel, target).kernel, target))
