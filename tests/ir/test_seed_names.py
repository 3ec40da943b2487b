"""Names of the Rust RLX and of pyrlx: predicates of ops, shapes, plans, lengths, reprs, builders."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import rlx
from rlx.errors import RlxError, ShapeError
from rlx.opt import plan_memory


@pytest.fixture
def graph():
    g = rlx.Graph("seed")
    x = g.input("x", ("B", 4))
    g.set_outputs([rlx.softmax(rlx.relu(x @ g.param("w", (4, 2))), -1)])
    return g


def test_predicates_of_ops(graph):
    by_name = {node.op.mnemonic: node.op for node in graph.nodes}
    for name, is_elementwise, is_blas, is_reduction in [
        ("relu", True, False, False),
        ("matmul", False, True, False),
        ("softmax", False, False, True),
        ("input", False, False, False),
    ]:
        op = by_name[name]
        assert (op.is_elementwise, op.is_blas, op.is_reduction) == (is_elementwise, is_blas, is_reduction), name
        assert op.is_fusion_boundary == is_blas
    assert rlx.ops.Cast("f16").is_elementwise and rlx.ops.StopGradient().is_elementwise
    assert rlx.ops.TopK(2).is_reduction


def test_shape_of(graph):
    x = graph.inputs[0].id
    assert graph.shape_of(x) == (("B", 4), rlx.DType.F32) or graph.shape_of(x)[0] == (rlx.sym.BATCH, 4)
    assert graph.shape_of(graph.outputs[0])[1] is rlx.DType.F32


def test_lengths(graph):
    assert len(rlx.GraphModule.from_graph(graph)) == len(graph) == len(graph.nodes)
    hir = rlx.GraphModule.define("h", lambda m: m.relu(m.input("x", (2, 4))))
    assert len(hir) == 2


def test_memory_plan_report():
    g = rlx.Graph("plan")
    x = g.input("x", (16,))
    g.set_outputs([rlx.relu(rlx.exp(x) + 1.0)])
    plan = plan_memory(g)
    header, *rows = plan.report().splitlines()
    numbers = f"arena_size={plan.arena_size} total_unshared={plan.total_unshared_bytes} saved={plan.bytes_saved}"
    assert header == f"# {numbers}"
    offsets = [int(row.split("\t")[0]) for row in rows]
    assert offsets == sorted(offsets) and len(rows) == len(plan.assignments)
    assert rows[0].split("\t")[1] == "64"
    symbolic = rlx.Graph("any")
    symbolic.set_outputs([rlx.relu(rlx.exp(symbolic.input("x", ("B", 4))))])
    assert "16*B" in plan_memory(symbolic).report()


def test_reprs(graph):
    session = rlx.Session("cpu", precision="f16")
    assert repr(session) == "Session('cpu', policy='AutoMixed')"
    compiled = rlx.Session("cpu").compile(graph)
    assert repr(compiled) == "CompiledGraph(@seed on cpu: x: f32[B,4]; 1 params -> f32[B,2])"


def test_builders_of_the_seed():
    g = rlx.Graph("builders")
    x = g.input("x", (2, 3))
    outputs = [
        g.pad_axis_to_len(x, 1, 5),
        g.reverse_last_axis(x),
        g.zeros_tensor((2, 2), "i32"),
        g.activation_by_kind("relu", x),
        g.where_(g.lt_(x, g.eq_(x, x)), x, x),
        g.transpose(x, (1, 0)),
        g.narrow(x, 1, 1, 2),
        g.fft_norm(g.input("f", (2, 8))),
    ]
    g.set_outputs(outputs)
    given = np.float32([[1, -2, 3], [4, 5, -6]])
    found = rlx.Session("cpu").compile(g).run(x=given, f=np.ones((2, 8), "f4"))
    wanted = [
        *(np.pad(given, ((0, 0), (0, 2))), given[:, ::-1], np.zeros((2, 2), "i4"), np.maximum(given, 0), given),
        *(given.T, given[:, 1:]),
    ]
    for ours, theirs in zip(found, wanted):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ShapeError, match="cannot be padded to 2"):
        g.pad_axis_to_len(x, 1, 2)


@pytest.mark.parametrize(
    "name",
    [
        *("inspect_graph", "inspect_hir", "inspect_hir_stats", "inspect_mir", "inspect_mir_stats", "inspect_lir"),
        *("inspect_buffer_plan", "inspect_pipeline"),
    ],
)
def test_inspection_refuses_other_things(name):
    for other in (3, None, "text"):
        with pytest.raises(RlxError, match=f"{name}: it shows a .*, got a"):
            getattr(rlx, name)(other)


def test_inspection_of_two_things_refuses_others(graph):
    for call in (
        lambda: rlx.inspect_graph_diff(graph, 3),
        lambda: rlx.inspect_mir_diff(None, graph),
        lambda: rlx.inspect_hir(graph),
        lambda: rlx.inspect_compiled("", 3),
    ):
        with pytest.raises(RlxError, match="it shows a"):
            call()


TEXT = "mir @f(%x: f32[2]) {\n  %0: f32[2] = relu(%x)\n  %1: f32[] = reduce_sum(%0) {axes=(0,)}\n  return %1\n}\n"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("relu(", "rellu(", r"line 2: unknown op 'rellu' \(did you mean 'relu'\?\)"),
        ("relu(%x)", "relu(%x", r"line 2: '\(' is not closed; '\)' is missing"),
        ("f32[2]) {", "f32[2] {", r"line 1: '\(' is not closed; '\)' is missing"),
        ("x: f32[2]", "x: f32[2", r"line 1: '\[' is not closed; '\]' is missing"),
        ("(0,)}", "(0,}", r"line 3: '\(' is not closed; '\)' is missing"),
        ("(0,)}", "(0,)", r"line 3: '\{' is not closed; '\}' is missing"),
        ("%1\n}", "%1\n", r"line 1: '\{' is not closed; '\}' is missing"),
        ("%1\n}", "%1\n}}", r"line 5: '\}' closes nothing"),
        ("(%0)", "(%7)", "line 3: %7 is used before it is defined"),
    ],
)
def test_parse_points_at_the_mistake(right, wrong, message):
    assert str(rlx.parse(TEXT)) == TEXT and right in TEXT
    with pytest.raises(rlx.errors.ParseError, match=message):
        rlx.parse(TEXT.replace(right, wrong, 1))


# What pyrlx has under another name here; docs/coming_from_pyrlx.md says which.
RENAMED = {"matmul_with_shape", "fftfreq", "rfftfreq", "run_flat"}
PYRLX = {
    rlx.Graph: """input param set_outputs shape_of matmul matmul_with_shape lora_matmul dense_solve batched_dense_solve
        custom_fn fused_matmul_bias_act binary add sub mul div activation gelu silu relu exp sqrt neg tanh compare eq_
        lt_ where_ reduce sum mean softmax cumsum sample reshape transpose narrow concat gather cast fft fft_norm
        fft_real rfft irfft fftfreq rfftfreq psd psd_real layer_norm rms_norm attention attention_kind rope __len__""",
    rlx.Session: "device precision compile",
    rlx.CompiledGraph: "device set_param run run_flat set_param_typed run_typed",
    rlx: "available_devices is_available grad jvp vmap jacfwd Graph Session CompiledGraph __version__",
}


def test_pyrlx_is_reachable_by_renames_alone():
    missing = {name for home, names in PYRLX.items() for name in names.split() if not hasattr(home, name)}
    assert missing == RENAMED
    page = (pathlib.Path(__file__).parents[2] / "docs" / "coming_from_pyrlx.md").read_text()
    assert all(f"`{name}" in page for name in RENAMED)
