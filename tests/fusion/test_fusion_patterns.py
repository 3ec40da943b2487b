"""The named fusions: the facts of the specification, and what the text cases do not show (names, lines, reasons)."""

from pathlib import Path

import pytest
from fusion_programs import assert_same_values, bert_block, program, swiglu_ffn

import rlx
from rlx import ops
from rlx.fusion import (
    FuseAttentionBlock,
    FuseMatMulBiasAct,
    FuseResidualLN,
    FuseResidualRmsNorm,
    FuseRmsNormReshape,
    FuseSharedInputMatMul,
    FuseSwiGLU,
    FuseSwiGLUDualMatmul,
    FuseTransformerLayer,
    FusionTarget,
    MissReason,
    UnfuseFusedOps,
    fusion_passes,
)
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.tensor import building
from rlx.ir.text.pretty import kind_counts
from rlx.ops.pointwise.unary import ActivationKind


def leaves(g, *dims, dtype="f32"):
    x = g.input("x", dims, dtype)
    return x, g.param("w", (dims[-1], 8), dtype), g.param("b", (8,), dtype)


def linear(activation=None, dtype="f32"):
    def build(g):
        x, w, b = leaves(g, 2, 4, dtype=dtype)
        y = ops.matmul(x, w) + b
        return y if activation is None else ops.activation(activation, y)

    return program("linear", build)


def reasons(step, graph):
    return [miss.reason for miss in step.missed(graph)]


def test_matmul_bias_gelu_is_one_op():
    graph = linear("gelu")
    after = FuseMatMulBiasAct().run(graph)
    assert (len(graph), len(after)) == (6, 4)
    assert after.nodes[-1].op == ops.FusedMatMulBiasAct("gelu")


def test_exp_stays_behind_the_product():
    after = FuseMatMulBiasAct().run(linear("exp"))
    assert len(after) == 5 and [n.op.mnemonic for n in after.nodes[3:]] == ["fused_matmul_bias_act", "exp"]
    assert len(FuseMatMulBiasAct(frozenset({ActivationKind.Exp})).run(linear("exp"))) == 4


@pytest.mark.parametrize("kind", ["gelu", "gelu_approx", "silu", "relu", "sigmoid", "tanh"])
def test_activations_that_join(kind):
    graph = linear(kind, "f64")
    after = FuseMatMulBiasAct().run(graph)
    assert len(after) == 4
    assert_same_values(graph, after)


def test_bias_declared_after_the_matmul():
    def build(g):
        x, w = g.input("x", (2, 4)), g.param("w", (4, 8))
        y = ops.matmul(x, w)
        return y + g.param("late", (8,))

    after = FuseMatMulBiasAct().run(program("late", build))
    assert kind_counts(after) == {"Input": 1, "Param": 2, "FusedMatMulBiasAct": 1}


@pytest.mark.parametrize(("step", "norm"), [(FuseResidualLN(), "layer_norm"), (FuseResidualRmsNorm(), "rms_norm")])
def test_residual_norm_is_one_op(step, norm):
    def build(g):
        x, r, gamma, beta = (g.input(n, (2, 4) if n in "xr" else (4,)) for n in ("x", "r", "gamma", "beta"))
        return getattr(ops, norm)(x + r, gamma, beta, eps=0.25)

    graph = program("norm", build)
    after = step.run(graph)
    assert (len(graph), len(after)) == (6, 5)
    assert after.nodes[-1].op.eps == 0.25


def test_names_origins_and_aliases_survive():
    g = Graph("g")
    x, w, b = leaves(g, 2, 8)
    y = ops.relu(ops.matmul(x, w) + b).named("hidden")
    g.set_outputs([y])
    g.alias(y, "x")
    (line,) = {n.origin.source.line for n in g.nodes if n.op.mnemonic == "relu"}
    after = FuseMatMulBiasAct().run(g)
    fused = after.nodes[after.outputs[0]]
    assert (fused.name, after.aliases) == ("hidden", {0: "x"})
    assert (fused.origin.source.line, fused.origin.pass_name) == (line, "fuse_matmul_bias_act")


def test_parts_of_a_shared_product_keep_their_names():
    def build(g):
        x = g.input("x", (2, 4))
        return [ops.matmul(x, g.param(n, (4, 3))).named(f"{n}_proj") for n in "qkv"]

    after = FuseSharedInputMatMul().run(program("qkv", build))
    kinds = kind_counts(after)
    assert (kinds["MatMul"], kinds["Narrow"], kinds["Concat"]) == (1, 3, 1)
    assert [after.node(o).name for o in after.outputs] == ["q_proj", "k_proj", "v_proj"]


def test_swiglu_of_two_matmuls():
    graph = swiglu_ffn()
    assert len(graph) == 9
    after = run_passes(graph, fusion_passes(FusionTarget.Cpu))
    assert kind_counts(after)["FusedSwiGLU"] == 1
    gate_first = program(
        "gate_first",
        lambda g: ops.mul(
            ops.silu(ops.matmul(x := g.input("x", (2, 4)), g.param("wg", (4, 6)))),
            ops.matmul(x, g.param("wu", (4, 6))),
        ),
    )
    assert len(FuseSwiGLUDualMatmul().run(gate_first)) <= 6


def test_misses_carry_the_line_of_the_user():
    g = Graph("g")
    x, w, b = leaves(g, 2, 4)
    with building(g):
        y = ops.matmul(x, w)
        z = y + b  # this line
    g.set_outputs([y, z])
    (miss,) = FuseMatMulBiasAct().missed(g)
    assert miss.reason is MissReason.IsOutput
    assert miss.source.file == __file__
    assert "# this line" in Path(__file__).read_text().splitlines()[miss.source.line - 1]


def test_what_would_fire_is_missed_as_not_fused():
    assert reasons(FuseMatMulBiasAct(), linear()) == [MissReason.NotFused]
    assert reasons(FuseSwiGLUDualMatmul(), swiglu_ffn()) == [MissReason.NotFused]
    assert reasons(FuseSharedInputMatMul(), swiglu_ffn()) == [MissReason.NotFused]

    def three(g):
        x = g.input("x", (2, 4))
        return [ops.matmul(x, g.param(n, (4, 3))) for n in "qkv"]

    (miss,) = FuseSharedInputMatMul().missed(program("qkv", three))
    assert (miss.reason, miss.detail) == (MissReason.SharedMatmulCount, '3 matmuls of input "x"')


def test_looking_for_misses_changes_nothing():
    graph = linear("gelu")
    text = str(graph)
    for step in (FuseMatMulBiasAct(), FuseResidualLN(), FuseSharedInputMatMul(), FuseAttentionBlock()):
        step.missed(graph)
    assert str(graph) == text


def test_a_pass_without_work_returns_the_graph_itself():
    graph = program("f", lambda g: ops.tanh(g.input("x", (2,))))
    steps = [FuseAttentionBlock(), FuseMatMulBiasAct(), FuseResidualLN(), FuseResidualRmsNorm(), FuseRmsNormReshape()]
    steps += [FuseTransformerLayer(), FuseSwiGLUDualMatmul(), FuseSharedInputMatMul(), FuseSwiGLU()]
    for step in steps:
        assert step.run(graph) is graph


def test_attention_threshold_comes_from_the_knob():
    graph = bert_block(packed=True)
    assert "FusedAttentionBlock" in kind_counts(FuseAttentionBlock().run(graph))
    with rlx.knobs(fuse_attn_threshold=5):
        assert FuseAttentionBlock().run(graph) is graph
    assert FuseAttentionBlock(threshold=5).run(graph) is graph


def attention(**changes):
    """A packed attention block in which one thing is not as the fused op has it."""

    def build(g):
        x, mask = g.input("x", (2, 3, 8)), g.input("mask", (2, 3))
        qkv = ops.matmul(x, g.param("qkv_w", (8, changes.get("columns", 24))))
        q, k, v = (ops.narrow(qkv, -1, start, 8) for start in changes.get("starts", (0, 8, 16)))
        if "rope" in changes:
            tables = g.param("cos", (3, 2)), g.param("sin", (3, 2))
            q = ops.rope(q, *tables, 4)
            k = ops.rope(k, *tables, 4, style=changes["rope"])
        settings = {"num_heads": 2, "head_dim": 4, "layout": "bsm", **changes.get("settings", {})}
        y = ops.attention(q, k, v, mask, **settings)
        return ops.matmul(y, g.param("out_w", (8, changes.get("width", 8))))

    return program("attention", build)


def test_attention_that_is_not_the_pattern():
    step = FuseAttentionBlock()
    assert len(step.run(attention())) == 5
    for graph in (attention(starts=(8, 0, 16)), attention(columns=32), attention(rope="gptj")):
        assert step.run(graph) is graph and reasons(step, graph) == []
    for settings in ({"score_scale": 0.25}, {"softcap": 2.0}):
        graph = attention(settings=settings)
        assert step.run(graph) is graph and reasons(step, graph) == [MissReason.UnsupportedAttention]
    assert reasons(step, attention(width=6)) == [MissReason.WeightShapes]


def test_bias_on_one_projection_only():
    def build(g):
        x, mask = g.input("x", (2, 3, 8)), g.input("mask", (2, 3))
        qkv = ops.matmul(x, g.param("qkv_w", (8, 24)))
        q, k, v = (ops.narrow(qkv, -1, 8 * i, 8) for i in range(3))
        y = ops.attention(q, k, v, mask, num_heads=2, head_dim=4, layout="bsm")
        return ops.fused_matmul_bias_act(y, g.param("out_w", (8, 8)), g.param("out_b", (8,)))

    graph = program("half", build)
    assert FuseAttentionBlock().run(graph) is graph
    assert reasons(FuseAttentionBlock(), graph) == [MissReason.BiasShape]


def test_layers_are_fused_only_when_asked():
    graph = bert_block(packed=True)
    assert "FusedTransformerLayer" not in kind_counts(run_passes(graph, fusion_passes(FusionTarget.Wgpu)))
    with rlx.knobs(enable_fuse_transformer_layer=True):
        fused = run_passes(graph, fusion_passes(FusionTarget.Wgpu))
        assert "FusedTransformerLayer" not in kind_counts(run_passes(graph, fusion_passes(FusionTarget.Cpu)))
    layer = fused.node(fused.outputs[0])
    assert isinstance(layer.op, ops.FusedTransformerLayer) and len(layer.inputs) == 14
    assert layer.op.intermediate_size == 12
    assert_same_values(graph, fused)
    parts = [FuseAttentionBlock(), FuseMatMulBiasAct(), FuseResidualLN()]
    misses = FuseTransformerLayer(threshold=5).missed(run_passes(graph, parts))
    assert [m.reason for m in misses] == [MissReason.NotProfitable]


@pytest.mark.parametrize("build", [lambda: bert_block(packed=True), lambda: swiglu_ffn()], ids=["bert", "swiglu"])
def test_fused_unfused_and_fused_again(build):
    passes = fusion_passes(FusionTarget.Cpu)
    fused = run_passes(build(), passes)
    apart = UnfuseFusedOps().run(fused)
    assert not any(k.startswith("Fused") for k in kind_counts(apart))
    assert kind_counts(run_passes(apart, passes)) == kind_counts(fused)


def test_bodies_are_fused_too():
    def step(carry, x):
        y = rlx.relu(x @ w + b)
        return carry + y, y

    g = Graph("scan")
    with building(g):
        xs, w, b = g.input("xs", (5, 2, 4)), g.input("w", (4, 4)), g.input("b", (4,))
        carry, ys = rlx.scan(step, ops.zeros((2, 4), "f32"), xs)
    g.set_outputs([carry, ys])
    after = FuseMatMulBiasAct().run(g)
    (scan,) = [n for n in after.nodes if n.op.mnemonic == "scan"]
    assert "FusedMatMulBiasAct" in kind_counts(scan.op.body) and "MatMul" not in kind_counts(scan.op.body)
    assert FuseMatMulBiasAct().run(after) is after
    assert_same_values(g, after, rtol=1e-6, atol=1e-6)


def test_dead_readers_do_not_count():
    def build(g):
        x, w, b = leaves(g, 2, 4)
        y = ops.matmul(x, w)
        ops.tanh(y)
        return y + b

    after = FuseMatMulBiasAct().run(program("dead", build))
    assert kind_counts(after) == {"Input": 1, "Param": 2, "FusedMatMulBiasAct": 1}
