"""Attention and its gradients by tiles in shared memory: against the definitions of the ops, in the interpreter, and
whole programs of them as GPUs get them."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.gpu.attention_gradient_tiles import tile_gradients_kernel
from rlx.kernels.gpu.attention_tiles import SHAPES, TileShape, has_tiles, tile_attention_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Buffer, Space
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import GFX942, SM_90A, machine_named
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.gradients import AttentionBackward
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs
from rlx.ops.lowered.attention_parts import score_unit

rng = np.random.default_rng(11)


def normal(*dims, dtype="f4"):
    return rng.standard_normal(dims).astype(dtype)


# A warp to a block: the interpreter runs one thread after the other.
A_WARP = TileShape(8, 16, 2, 2)


def run(op, arrays, machine=SM_90A, target="cuda", shape=A_WARP):
    """The results of one op by its kernel."""
    graph = rlx.Graph("attention")
    result = op(*(graph.input(f"a{i}", Shape(x.shape, DType.of(x.dtype))) for i, x in enumerate(arrays)))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    lir = CompilePipeline(target).run(graph).lir
    [kernel] = lir.kernels
    site = OpSite("attention", lir.as_graph(), kernel, machine, lambda size: size, str)
    make = tile_gradients_kernel if isinstance(op, AttentionGradients) else tile_attention_kernel
    made = make(site, shape)
    verify(made)
    names = [p.name for p in made.params if isinstance(p, Buffer)]
    results = [np.full(shape.dims, np.nan, shape.dtype.numpy) for shape in map(graph.shape, graph.outputs)]
    interpret(made, dict(zip(names, [a.reshape(-1) for a in (*arrays, *results)], strict=True)))
    return results, made


def check(op, arrays, tolerance=2e-6, **options):
    got, kernel = run(op, arrays, **options)
    want = op.eval(*arrays)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    shared = [a for a in kernel.arrays if a.space is Space.SHARED]
    assert shared and sum(a.size * a.dtype.size_bytes for a in shared) <= 48 << 10
    assert not [a for a in kernel.arrays if a.space is Space.LOCAL], "something lies on the stack of a thread"


LENGTHS, PLACES = np.array([19], "i4"), np.array([[3, 0, 18, 9, 4]], "i4")
MASK = rng.random((1, 1, 5, 19)) < 0.7
FORMS = {
    "none": ({}, ()),
    "causal": ({"mask_kind": "causal"}, ()),
    "window": ({"mask_kind": "sliding_window", "window": 3}, ()),
    "softcap": ({"mask_kind": "causal", "softcap": 2.0}, ()),
    "length": ({"mask_kind": "causal", "has_kv_len": True}, (LENGTHS,)),
    "positions": ({"mask_kind": "causal", "has_positions": True}, (PLACES,)),
    "mask": ({"mask_kind": "custom"}, (MASK,)),
}


def operands(dtype="f4", depth=6, width=5, layout="bhsd"):
    dims = [(1, h, s, w) for h, s, w in ((2, 5, depth), (1, 19, depth), (1, 19, width))]
    return [normal(*(d if layout == "bhsd" else (d[0], d[2], d[1], d[3])), dtype=dtype) for d in dims]


def in_parts(quick, forms):
    """Some always, the others where there is time."""
    return [form if form in quick else pytest.param(form, marks=pytest.mark.targets) for form in forms]


@pytest.mark.parametrize("form", in_parts({"causal", "mask"}, FORMS))
def test_attention_is_that_of_its_definition(form):
    """Two heads share keys, and the last keys are half a tile."""
    options, extras = FORMS[form]
    check(Attention(2, 6, num_kv_heads=1, **options), [*operands(), *extras])


@pytest.mark.parametrize("form", in_parts({"softcap"}, sorted(set(FORMS) - {"positions"})))
def test_logarithms_and_gradients(form):
    options, extras = FORMS[form]
    q, k, v = operands()
    forward = AttentionWithLogs(2, 6, num_kv_heads=1, **options)
    check(forward, [q, k, v, *extras])
    y, logs = forward.eval(q, k, v, *extras)
    dy = normal(*y.shape)
    check(AttentionGradients(2, 6, num_kv_heads=1, **options), [q, k, v, dy, y, logs, *extras], 2e-5)


def in_f64(x):
    """Logarithms, the only operands in f32, have another unit in f64."""
    if x.dtype.kind in "biu":
        return x
    return x.astype("f8") * (score_unit(DType.F64) / score_unit(DType.F32) if x.dtype == np.float32 else 1.0)


def check_halves(op, arrays):
    """Against f64: sums are as exact as those of f32, and results that have the type of the queries are rounded."""
    got, _ = run(op, arrays)
    want = op.eval(*(in_f64(x) for x in arrays))
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        step = ROUNDING[DType.of(a.dtype).value] if a.dtype == arrays[0].dtype else 0.0
        np.testing.assert_allclose(a.astype("f8"), b, rtol=step + 2e-5, atol=2e-5)


# The most that rounding moves a number, as a part of it.
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}


def halves(arrays, dtype):
    return [x.astype(DType.of(dtype).numpy) for x in arrays]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("form", in_parts({"mask"}, ["causal", "softcap", "mask"]))
def test_halves_are_widened_and_only_results_are_rounded(form, dtype):
    options, extras = FORMS[form]
    check_halves(Attention(2, 6, num_kv_heads=1, **options), [*halves(operands(), dtype), *extras])


@pytest.mark.parametrize("dtype", in_parts({"bf16"}, ["f16", "bf16"]))
def test_gradients_of_halves(dtype):
    """From logarithms in f32; dq is f32 as well."""
    q, k, v = halves(operands(), dtype)
    forward = AttentionWithLogs(2, 6, num_kv_heads=1, mask_kind="custom")
    y, logs = forward.eval(q, k, v, MASK)
    (dy,) = halves([normal(*y.shape)], dtype)
    check_halves(AttentionGradients(2, 6, num_kv_heads=1, mask_kind="custom"), [q, k, v, dy, y, logs, MASK])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_have_tiles_where_waves_do_not_multiply_them(dtype):
    shapes = [Shape((2, 4, 100, 64), dtype)] * 3
    mask = Shape((2, 1, 100, 100), "bool")
    for name, expected in (("sm_90a", True), ("sm_80", True), ("gfx1030", True), ("gfx942", False), ("gfx1100", False)):
        machine = machine_named(name)
        assert has_tiles(machine, Attention(4, 64, mask_kind="custom"), [*shapes, mask]) is expected
        assert has_tiles(machine, AttentionBackward(4, 64, wrt="all"), shapes) is expected
    # Nothing but f32 is made of them.
    wide = [shapes[0], *[Shape((2, 4, 100, 64), "f64")] * 2]
    assert not has_tiles(SM_90A, Attention(4, 64), wide)


@pytest.mark.targets
def test_other_types_layouts_and_widths():
    check(Attention(2, 6, num_kv_heads=1, layout="bshd", mask_kind="causal"), operands("f8", layout="bshd"), 1e-13)
    check(Attention(2, 40, num_kv_heads=1), operands(depth=40, width=70))
    bias = normal(1, 2, 5, 19)
    check(Attention(2, 6, num_kv_heads=1, mask_kind="bias"), [*operands(), bias])


def test_wide_heads():
    """A thread has one row of each side; where rows are no multiple of what threads bring, they come in pieces."""
    check(
        Attention(2, 290, num_kv_heads=1, mask_kind="causal"),
        operands(depth=290, width=300),
        shape=TileShape(4, 8, 1, 1),
    )
    check(Attention(2, 70, num_kv_heads=1), operands(depth=70, width=90), shape=TileShape(16, 8, 2, 1))


@pytest.mark.targets
def test_amd_gets_the_same():
    check(Attention(2, 6, num_kv_heads=1, mask_kind="causal"), operands(), machine=GFX942, target="rocm")


@pytest.mark.parametrize("depth", [64, 128, 256, 512])
def test_every_width_of_heads_has_a_shape(depth):
    """Also the gradients in f64 as far as a block can share what they need."""
    shapes = [Shape((2, 4, 100, depth), "f32")] * 3
    assert has_tiles(SM_90A, Attention(4, depth), shapes)
    assert has_tiles(SM_90A, AttentionBackward(4, depth, wrt="all"), shapes) == (depth <= 128)
    assert {shape.threads for shape in SHAPES} == {64}


def test_a_training_step_in_f32_has_no_matrix_of_all_scores():
    graph = rlx.Graph("step")
    q, k, v, dy = (graph.input(name, Shape(("B", 4, "S", 64), "f32")) for name in ("q", "k", "v", "dy"))
    y = Attention(4, 64, mask_kind="causal")(q, k, v)
    graph.set_outputs([y, *AttentionBackward(4, 64, mask_kind="causal", wrt="all")(q, k, v, dy)])
    kinds = [kernel.kind for kernel in CompilePipeline.new("cuda").compile(graph).lir.kernels]
    assert sorted(set(kinds) - {"map"}) == ["attention", "attention_gradients"]
