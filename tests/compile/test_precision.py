"""Mixed precision: the policy matrix, every op under every policy, and what must never be rounded."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from pass_checks import mnemonics, run_and_check

import rlx
import rlx.ops  # fills the registry
from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.autodiff import grad_with_loss
from rlx.compile.compiler import CompilePipeline
from rlx.compile.precision.apply import STAY_F32, WIDE_OPERANDS, AutoMixedPrecision, round_constant
from rlx.compile.precision.policy import (
    CastConfig,
    OpKind,
    Precision,
    PrecisionClass,
    PrecisionPolicy,
    op_kind,
)
from rlx.errors import RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES, kind_of
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.tensor_data import TensorData
from rlx.ir.verify import verify_all
from rlx.ops.control.bodies import build_body

F32, F16, BF16 = Precision.F32, Precision.F16, Precision.BF16
POLICIES = [PrecisionPolicy.AlwaysF16, PrecisionPolicy.AutoMixedConservative, PrecisionPolicy.AutoMixed]
POLICIES += [PrecisionPolicy.AutoMixedBf16, PrecisionPolicy.Custom({OpKind.Compute: BF16, OpKind.Elementwise: F16})]
RNG = np.random.default_rng(5)


def test_precisions():
    assert [p.dtype() for p in Precision] == [DType.F32, DType.F16, DType.BF16]
    assert [(str(p), p.size_bytes, p.bytes) for p in Precision] == [("f32", 4, 4), ("f16", 2, 2), ("bf16", 2, 2)]


@pytest.mark.parametrize(
    ("policy", "row"),
    [
        (PrecisionPolicy.AlwaysF32, (F32, F32, F32, F32, F32)),
        (PrecisionPolicy.AlwaysF16, (F16, F16, F16, F16, F32)),
        (PrecisionPolicy.AutoMixedConservative, (F16, F32, F16, F16, F32)),
        (PrecisionPolicy.AutoMixed, (F16, F16, F16, F16, F32)),
        (PrecisionPolicy.AutoMixedBf16, (BF16, BF16, BF16, BF16, F32)),
        (PrecisionPolicy.Custom({"compute": "bf16", OpKind.Boundary: F16}), (BF16, F32, F32, F32, F32)),
    ],
    ids=str,
)
def test_policy_matrix(policy, row):
    assert tuple(policy.precision_for(c) for c in PrecisionClass) == row


def test_policies_by_name_and_precision():
    assert PrecisionPolicy.of("AutoMixed") is PrecisionPolicy.of(F16) is PrecisionPolicy.AutoMixed
    assert PrecisionPolicy.of("bf16") is PrecisionPolicy.AutoMixedBf16
    assert PrecisionPolicy.of(F32) is PrecisionPolicy.AlwaysF32 is AutoMixedPrecision().policy
    assert str(PrecisionPolicy.Custom({OpKind.Reduction: F16})) == "Custom(reduction=f16)"
    assert PrecisionPolicy.Custom({"compute": "f16"}) == PrecisionPolicy.Custom({OpKind.Compute: F16})
    with pytest.raises(RlxError, match="there is no precision policy 'f8'; use one of AlwaysF32, AlwaysF16"):
        PrecisionPolicy.of("f8")


def test_the_classification_names_ops_that_exist():
    """An op that says nothing counts as Compute; what classes say is a class."""
    assert [k for k in (*STAY_F32, *WIDE_OPERANDS) if k not in OP_CLASSES] == []
    assert {cls.precision_class for cls in OP_CLASSES.values()} == set(PrecisionClass)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (OpKind.Compute, "MatMul Conv Attention AttentionBackward DotGeneral DenseSolve LoraMatMul QMatMul Scan Fft"),
        (OpKind.Reduction, "LayerNorm RmsNorm Softmax Reduce Cumsum Sample SelectiveScan GatedDeltaNet GroupNorm"),
        (OpKind.Elementwise, "Activation Binary Compare Where FusedSwiGLU ElementwiseRegion Quantize FakeQuantize"),
        (OpKind.DataMovement, "Gather Narrow Reshape Transpose Concat Expand Cast Rope Pool TopK ScatterAdd If While"),
        (OpKind.Boundary, "Input Param Constant"),
    ],
)
def test_classes_of_the_seed_documents(kind, names):
    for name in names.split():
        assert OP_CLASSES[name].precision_class == kind, name


def test_an_op_that_nobody_has_classified_computes():
    class Unheard(ops.MatMul):
        pass

    assert op_kind(Unheard()) is OpKind.Compute


def test_cast_config():
    plain = CastConfig.plain("f16")
    assert plain == CastConfig(DType.F16, None, False)
    assert plain.is_noop("f16")
    assert not plain.is_noop("f32")
    assert not CastConfig(DType.F8E4M3, (1, 128), True).is_noop("f8e4m3")


def matmul_graph():
    graph = Graph("matmul")
    graph.set_outputs([graph.input("x", (4, 8), "f32") @ graph.param("w", (8, 2), "f32")])
    return graph


def test_always_f32_is_noop():
    graph = matmul_graph()
    assert AutoMixedPrecision(PrecisionPolicy.AlwaysF32).run(graph) is graph
    assert len(graph) == 3


@pytest.mark.parametrize("policy", ["AutoMixed", "AutoMixedBf16"])
def test_auto_mixed_inserts_casts_at_boundary(policy):
    graph = matmul_graph()
    mixed = AutoMixedPrecision(policy).run(graph)
    assert len(mixed) == 6
    output = mixed.node(mixed.outputs[0])
    assert output.op == ops.Cast(DType.F32)
    low = PrecisionPolicy.of(policy).precision_for(OpKind.Compute).dtype()
    product = mixed.node(output.inputs[0])
    assert isinstance(product.op, ops.MatMul)
    assert [mixed.shape(i).dtype for i in (*product.inputs, product.id)] == [low] * 3
    x, w = RNG.random((4, 8)).astype("f4"), RNG.random((8, 2)).astype("f4")
    # Rounded operands, exact sum, one rounding of the result.
    want = (x.astype(low.numpy).astype("f8") @ w.astype(low.numpy).astype("f8")).astype(low.numpy).astype("f4")
    np.testing.assert_array_equal(interpret(mixed, {"x": x, "w": w})[0], want)


def test_a_value_is_converted_once_and_a_weight_by_a_node_of_its_own():
    graph = Graph("shared")
    x, w = graph.input("x", (4, 4), "f32"), graph.param("w", (4, 4), "f32")
    graph.set_outputs([(x @ w) @ w + x])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    casts = [n for n in mixed.nodes if n.op == ops.Cast(DType.F16)]
    assert [mixed.node(c.inputs[0]).op.key for c in casts] == ["x", "w"]


def test_between_ops_of_one_precision_there_are_no_casts():
    graph = Graph("chain")
    x = graph.input("x", (4, 4), "f32")
    graph.set_outputs([ops.softmax(ops.gelu(x @ x), -1)])
    mixed = run_and_check(graph, AutoMixedPrecision("AutoMixed"))
    assert mnemonics(mixed) == ["cast", "matmul", "gelu", "softmax", "cast"]


def test_a_product_that_only_f32_reads_is_not_rounded():
    graph = Graph("conservative")
    x, w = graph.input("x", (4, 8), "f32"), graph.param("w", (8, 2), "f32")
    scores = x @ w
    graph.set_outputs([ops.softmax(scores, -1), ops.reduce_max(scores, (0,))])
    mixed = AutoMixedPrecision("AutoMixedConservative").run(graph)
    product = next(n for n in mixed.nodes if isinstance(n.op, ops.MatMul))
    assert product.op.out_dtype is DType.F32
    assert mnemonics(mixed) == ["cast", "cast", "matmul", "softmax", "reduce_max"]
    graph.set_outputs([ops.softmax(scores, -1), scores])
    mixed = AutoMixedPrecision("AutoMixedConservative").run(graph)
    assert next(n.op.out_dtype for n in mixed.nodes if isinstance(n.op, ops.MatMul)) is None


@pytest.mark.parametrize("dtype", ["i32", "bool", "f64", "c64", "f16", "bf16", "u8"])
def test_other_types_are_untouched(dtype):
    graph = Graph("typed")
    x = graph.input("x", (4,), dtype)
    y = ops.where(ops.eq(x, x), x, x)
    graph.set_outputs([ops.reverse(y, (0,)), ops.concat([y, y], 0)])
    for policy in POLICIES:
        assert AutoMixedPrecision(policy).run(graph) is graph


def test_masks_and_ids_beside_floats_keep_their_types():
    graph = Graph("mixed")
    table, ids = graph.param("table", (5000, 4), "f32"), graph.input("ids", (3,), "i32")
    rows = ops.gather(table, ids)
    graph.set_outputs([ops.where(rows > 0.0, rows, 0.0), ops.argmax(rows, -1), rows > 0.5])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    assert [mixed.shape(o).dtype for o in mixed.outputs] == [DType.F32, DType.I32, DType.BOOL]
    gather = next(n for n in mixed.nodes if n.op.mnemonic == "gather")
    assert [mixed.shape(i).dtype for i in gather.inputs] == [DType.F16, DType.I32]


def test_ids_that_are_floats_are_not_rounded():
    graph = Graph("float_ids")
    table, ids = graph.param("table", (5000, 1), "f32"), graph.input("ids", (2,), "f32")
    graph.set_outputs([ops.gather(table, ids)])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    rows = interpret(mixed, {"table": np.arange(5000, dtype="f4")[:, None] % 7, "ids": np.array([4097, 4999], "f4")})[0]
    np.testing.assert_array_equal(rows[:, 0], [4097 % 7, 4999 % 7])


def test_positions_are_computed_in_f32():
    """sin(position / 10000) of a late position, multiplied with data: only the product is rounded."""
    graph = Graph("rope_table")
    with building(graph):
        x, at = graph.input("x", (2,), "f32"), graph.input("at", (2,), "i64")
        angle = ops.cast(at, "f32") * 0.731
        graph.set_outputs([x * ops.sin(angle)])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    at = np.array([40_001, 99_999])
    got = interpret(mixed, {"x": np.ones(2, "f4"), "at": at})[0]
    np.testing.assert_allclose(got, np.sin((at.astype("f4") * np.float32(0.731)).astype("f8")), atol=5e-4)


def test_user_casts_are_respected():
    graph = Graph("casts")
    x = graph.input("x", (4,), "f32")
    half = ops.cast(ops.sin(x), "f16")
    double = ops.cast(ops.cos(x), "f64")
    graph.set_outputs([half + half, double * double, ops.cast(half, "f32") * x, ops.cast(x * x, "i32")])
    mixed = AutoMixedPrecision("AutoMixedBf16").run(graph)
    assert verify_all(mixed) == []
    assert [mixed.shape(o).dtype for o in mixed.outputs] == [DType.F16, DType.F64, DType.F32, DType.I32]
    assert mixed.node(mixed.outputs[0]).op.mnemonic == "add"
    assert mixed.node(mixed.outputs[1]).op.mnemonic == "mul"


def test_what_does_not_take_the_precision_stays():
    graph = Graph("bits")
    x = graph.input("x", (3, 3), "f32")
    graph.set_outputs([ops.Bitcast("i32")(x), ops.MakeComplex()(x, x), ops.cholesky(x)])
    for policy in POLICIES:
        assert AutoMixedPrecision(policy).run(graph) is graph


def test_effects_see_the_types_the_user_wrote(capsys):
    graph = Graph("loud")
    x = graph.input("x", (), "f32")
    graph.set_outputs([ops.debug_print("{}", x * 0.1)])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    assert mixed.shape(mixed.outputs[0]).dtype is DType.F32
    interpret(mixed, [np.float32(1)])
    assert capsys.readouterr().out == f"{float(np.float16(0.1))}\n"


def test_finite_constants_stay_finite_and_others_do_not_vanish():
    values = np.array([-1e9, 1e9, 1e-12, -1e-12, np.inf, -np.inf, np.nan, 0.0, -0.0, 0.1], "f4")
    rounded = round_constant(TensorData(values), DType.F16).array
    np.testing.assert_array_equal(np.isfinite(rounded), np.isfinite(values))
    np.testing.assert_array_equal(rounded == 0, values == 0)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(values))
    assert rounded[-1] == np.float16(0.1)
    exact = np.array([1.5, -3.0], "f4")
    assert round_constant(TensorData(exact), DType.BF16).array.dtype == ml_dtypes.bfloat16


def test_fully_masked_attention_scores_do_not_become_nan():
    graph = Graph("mask")
    scores, mask = graph.input("scores", (1, 4), "f32"), graph.input("mask", (1, 4), "f32")
    graph.set_outputs([ops.softmax(scores + (1.0 - mask) * -1e9, -1)])
    mixed = AutoMixedPrecision("AutoMixed").run(graph)
    got = interpret(mixed, [np.ones((1, 4), "f4"), np.zeros((1, 4), "f4")])[0]
    np.testing.assert_array_equal(got, np.full((1, 4), 0.25))


def scan_graph():
    body = Graph("step")
    h, w, x = body.input("h", (2, 3), "f32"), body.input("w", (3, 3), "f32"), body.input("x", (2, 3), "f32")
    y = ops.tanh(h @ w + x)
    body.set_outputs([y, ops.reduce_sum(y, (1,))])
    graph = Graph("rnn")
    h0, weights = graph.input("h0", (2, 3), "f32"), graph.param("w", (3, 3), "f32")
    xs = graph.input("xs", (5, 2, 3), "f32")
    graph.set_outputs(ops.Scan(body.freeze(), 5, num_carry=1, num_bcast=1, num_xs=1)(h0, weights, xs))
    return graph


def test_weights_of_a_loop_are_converted_outside():
    graph = scan_graph()
    mixed = run_and_check(graph, AutoMixedPrecision("AutoMixed"))
    scan = next(n for n in mixed.nodes if isinstance(n.op, ops.Scan))
    assert [mixed.shape(i).dtype for i in scan.inputs] == [DType.F32, DType.F16, DType.F16]
    assert [n.shape.dtype for n in scan.op.body.inputs] == [DType.F32, DType.F16, DType.F16]
    assert [s.dtype for s in scan.shapes] == [DType.F32, DType.F32]
    # Inside, only the carry changes its type.
    assert mnemonics(scan.op.body).count("cast") == 3
    leaves = {"h0": RNG.random((2, 3)).astype("f4"), "w": RNG.random((3, 3)).astype("f4") - 0.5}
    leaves["xs"] = RNG.random((5, 2, 3)).astype("f4")
    for a, b in zip(interpret(graph, leaves), interpret(mixed, leaves), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-3)


def test_captures_of_branches_are_converted_outside():
    square = build_body("square", lambda w, b: w @ w + b, w=Shape((2, 2), "f32"), b=Shape((2, 2), "f32"))
    plain = build_body("plain", lambda w, b: b, w=Shape((2, 2), "f32"), b=Shape((2, 2), "f32"))
    graph = Graph("branch")
    w, b, p = graph.param("w", (2, 2), "f32"), graph.input("b", (2, 2), "f32"), graph.input("p", (), "bool")
    graph.set_outputs([ops.If(square, plain)(p, w, b)])
    mixed = run_and_check(graph, AutoMixedPrecision("AutoMixed"))
    branch = next(n for n in mixed.nodes if isinstance(n.op, ops.If))
    # b is returned by one branch as it is, so it stays; w is rounded before the branch.
    assert [mixed.shape(i).dtype for i in branch.inputs] == [DType.BOOL, DType.F16, DType.F32]


@pytest.mark.parametrize("policy", ["AutoMixed", "AutoMixedBf16", "AutoMixedConservative"])
def test_gradients_of_a_loop_stay_close(policy):
    """The backward programs of a loop have operands of their own, which must not be mixed up with captures."""
    graph = scan_graph()
    with building(graph):
        graph.set_outputs([ops.reduce_sum(graph.tensor(graph.outputs[0]) * graph.tensor(graph.outputs[0]))])
    backward = grad_with_loss(graph, ["w"])
    rng = np.random.default_rng(9)
    leaves = {n.op.key: rng.normal(0, 0.5, n.shape.dims).astype("f4") for n in backward.nodes if n.is_leaf}
    leaves |= {k: np.ones_like(v) for k, v in leaves.items() if k == "d_output"}
    mixed = run_and_check(backward, AutoMixedPrecision(policy))
    assert any(n.op == ops.Cast(DType.F32) for n in mixed.nodes)
    for a, b in zip(interpret(backward, leaves), interpret(mixed, leaves), strict=True):
        assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(a)


def picked(x, ids):
    """A row whose number is computed in floats; number 301 would be 300 in bf16."""
    return ops.take(x, ops.cast(ops.round_(ids * 1.0), "i32"), axis=0) * 2.0


def kept_graph(wrap):
    graph = Graph("kept")
    with building(graph):
        x, ids = graph.param("x", (400,), "f32"), graph.input("ids", (2,), "f32")
        graph.set_outputs([ops.reduce_sum(ops.sin(wrap(picked)(x, ids)))])
    return graph


KEPT_LEAVES = {"x": np.arange(400, dtype="f4") / 400, "ids": np.array([301, 3], "f4"), "d_output": np.float32(1)}


def test_what_keeps_its_precision_is_left_alone_and_so_are_its_derivatives():
    graph = kept_graph(rlx.keep_precision)
    (kept,) = (n.op for n in graph.nodes if isinstance(n.op, ops.KeepPrecision))
    mixed = run_and_check(graph, AutoMixedPrecision("AutoMixedBf16"))
    assert kept in [n.op for n in mixed.nodes]
    assert any(s.dtype is DType.BF16 for n in mixed.nodes for s in n.shapes)
    backward = grad_with_loss(graph, ["x"])
    mixed = run_and_check(backward, AutoMixedPrecision("AutoMixedBf16"))
    wanted, got = (interpret(g, KEPT_LEAVES)[1] for g in (backward, mixed))
    np.testing.assert_array_equal(np.flatnonzero(got), np.flatnonzero(wanted))
    np.testing.assert_allclose(got, wanted, atol=2e-2)
    # The same program without protection reads, and blames, another row.
    plain = AutoMixedPrecision("AutoMixedBf16").run(grad_with_loss(kept_graph(lambda f: f), ["x"]))
    assert np.flatnonzero(interpret(plain, KEPT_LEAVES)[1]).tolist() == [3, 300]


@pytest.mark.parametrize("policy", ["AlwaysF32", "AutoMixedBf16"])
def test_kept_programs_are_opened_when_types_are_settled(policy):
    result = CompilePipeline.new("cpu").with_precision(policy).compile(kept_graph(rlx.keep_precision))
    assert not any(isinstance(n.op, ops.KeepPrecision) for n in result.lir.as_graph().nodes)
    np.testing.assert_allclose(
        result.interpret(KEPT_LEAVES)[0], interpret(kept_graph(lambda f: f), KEPT_LEAVES)[0], rtol=2e-2
    )


def test_keep_precision_of_arrays_and_static_arguments():
    @rlx.keep_precision(static_argnums=1)
    def power(x, n):
        return x**n

    assert float(power(np.float32(3), 2)) == 9
    assert float(rlx.grad(power)(np.float32(3), 2)) == 6
    np.testing.assert_array_equal(rlx.vmap(lambda x: power(x, 3))(np.arange(3, dtype="f4")), [0, 1, 8])


def f32_samples():
    for name, cls in OP_CLASSES.items():
        if cls.is_structural or cls.is_block:
            continue
        for index, sample in enumerate(cls.samples()):
            if "f32" in sample.dtypes:
                yield pytest.param(sample, id=f"{name}-{index}")


@pytest.mark.parametrize("sample", list(f32_samples()))
def test_every_op_under_auto_mixed(sample):
    """Valid, runs, keeps the types of what leaves the program; f32 in, the same ids and masks out."""
    graph = Graph("sample")
    inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes("f32"))]
    result = graph.append_node(sample.op, inputs)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    for policy in ("AutoMixed", "AutoMixedBf16"):
        mixed = AutoMixedPrecision(policy).run(graph)
        assert verify_all(mixed) == []
        assert AutoMixedPrecision(policy).run(mixed) is mixed
        assert [mixed.shape(o) for o in mixed.outputs] == [graph.shape(o) for o in graph.outputs]
        if kind_of(sample.op) != "Custom":
            interpret(mixed, sample.arrays("f32"), sample.binding)


def test_every_other_op_does_compute_in_the_lower_precision():
    reads_f32, lowered = set(), set()
    for parameters in f32_samples():
        (sample,) = parameters.values
        graph = Graph("sample")
        inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes("f32"))]
        result = graph.append_node(sample.op, inputs)
        graph.set_outputs(result if isinstance(result, tuple) else [result])
        if any(x.dtype is DType.F32 for x in inputs):
            reads_f32.add(kind_of(sample.op))
            if AutoMixedPrecision("AutoMixed").run(graph) is not graph:
                lowered.add(kind_of(sample.op))
    # Effects see the user's types; bits and complex numbers exist in f32 only.
    refuse = {"DebugPrint", "RuntimeAssert", "HostCallback", "Bitcast", "MakeComplex"}
    # Sparse ops, which are known here when another test has used them, have f32 and f64 only.
    refuse |= {name for name, cls in OP_CLASSES.items() if cls.__module__.startswith("rlx.sparse")}
    # Ops that only the compiler makes come after the choice of precision.
    made = {name for name, cls in OP_CLASSES.items() if cls.lowered}
    assert reads_f32 - lowered - made == {k for k in (STAY_F32 | refuse) - made if k in reads_f32}


@settings(max_examples=40)
@given(graphs())
def test_random_graphs_stay_valid_and_keep_their_types(graph):
    leaves = inputs_for(graph)
    for policy in POLICIES:
        mixed = run_and_check(graph, AutoMixedPrecision(policy))
        for a, b in zip(interpret(graph, leaves, BINDING), interpret(mixed, leaves, BINDING), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)


def block_graph():
    """Pre-norm attention and SwiGLU with shared weights: what mixed precision is for."""
    graph = Graph("block")
    with building(graph):
        x = graph.input("x", (2, 5, 16), "f32")
        gamma, beta = graph.param("gamma", (16,), "f32"), graph.param("beta", (16,), "f32")
        w = [graph.param(f"w{i}", (16, 16), "f32") for i in range(6)]
        normed = ops.layer_norm(x, gamma, beta)
        q, k, v = (normed @ w[i] for i in range(3))
        h = x + ops.attention(q, k, v, num_heads=2, head_dim=8, mask_kind="causal") @ w[3]
        normed = ops.layer_norm(h, gamma, beta)
        graph.set_outputs([h + (ops.silu(normed @ w[4]) * (normed @ w[5])) @ w[0]])
    return graph


@pytest.mark.parametrize(("policy", "unit"), [("AutoMixed", 2.0**-11), ("AutoMixedBf16", 2.0**-8)])
@pytest.mark.parametrize("conservative", [False, True])
def test_a_transformer_block_is_as_close_as_its_precision_allows(policy, unit, conservative):
    graph = block_graph()
    rng = np.random.default_rng(11)
    leaves = {n.op.key: rng.normal(0, 0.3, n.shape.dims).astype("f4") for n in graph.nodes if n.is_leaf}
    want = interpret(graph, leaves)[0]
    if conservative:
        choice = PrecisionPolicy.of(policy).precision_for(OpKind.Compute)
        policy = PrecisionPolicy.Custom(dict.fromkeys((OpKind.Compute, OpKind.Elementwise), choice))
    mixed = run_and_check(graph, AutoMixedPrecision(policy))
    got = interpret(mixed, leaves)[0]
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < error < 4 * unit
