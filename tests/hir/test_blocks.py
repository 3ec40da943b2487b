"""Every block: both policies mean the same, and what they lower to is the table of the specification."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError
from rlx.hir import (
    Block,
    DepthwiseConv1dCausal,
    HirAttention,
    HirDequantMatMul,
    HirGatedDeltaNet,
    HirOp,
    HirRmsNorm,
    HirRoPE,
    Linear,
    LinearFused,
    LlamaDecoderBlock,
    Qwen35MtpHead,
    ResidualRmsNorm,
    SharedLinearPair,
    SwiGLU,
)
from rlx.ir.interpret import interpret
from rlx.ir.module import FusionPolicy, HirModule
from rlx.ir.op import OP_CLASSES
from rlx.ir.text.graph_text import parse
from rlx.ir.verify import verify_all

BLOCKS = [c for c in OP_CLASSES.values() if issubclass(c, Block)]
SAMPLES = [pytest.param(s, id=f"{c.__name__}-{i}") for c in BLOCKS for i, s in enumerate(c.samples())]


def module_of(sample, dtype, policy=FusionPolicy.Direct):
    module = HirModule("block", policy)
    inputs = [module.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes(dtype))]
    result = module.append_node(sample.op, inputs)
    module.set_outputs(result if isinstance(result, tuple) else [result])
    return module


def kinds(module, policy):
    graph = module.with_fusion_policy(policy).lower_to_mir().as_graph()
    return [n.op.mnemonic for n in graph.nodes if not n.is_leaf]


def test_all_blocks_of_the_specification_exist():
    specified = {
        "DepthwiseConv1dCausal",
        "HirAttention",
        "HirDequantMatMul",
        "HirGatedDeltaNet",
        "HirRmsNorm",
        "HirRoPE",
        "Linear",
        "LinearFused",
        "LlamaDecoderBlock",
        "Qwen35MtpHead",
        "ResidualRmsNorm",
        "SharedLinearPair",
        "SwiGLU",
    }
    # And those that real models need beside them.
    assert {c.__name__ for c in BLOCKS} == specified | {"HirGated", "HirLayerNorm"}
    assert HirOp.Attention is HirAttention and HirOp.RmsNorm is HirRmsNorm and HirOp.Linear is Linear
    assert HirOp.Mir(ops.Binary("add")) == ops.Binary("add")


@pytest.mark.parametrize("sample", SAMPLES)
def test_policies_agree(sample):
    dtype = "f64" if "f64" in sample.dtypes else sample.dtypes[0]
    arrays = sample.arrays(dtype)
    module = module_of(sample, dtype)
    expected = interpret(module, arrays, sample.binding)
    for policy in FusionPolicy:
        graph = module.with_fusion_policy(policy).lower_to_mir().as_graph()
        assert not any(n.op.is_block for n in graph.nodes) and verify_all(graph) == []
        for want, got in zip(expected, interpret(graph, arrays, sample.binding), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12 if dtype == "f64" else 1e-5, atol=1e-12)


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_of_modules_round_trips(sample):
    for policy in FusionPolicy:
        module = module_of(sample, sample.dtypes[0], policy)
        text = str(module)
        assert text.startswith(f"hir {policy} @block(")
        assert parse(text) == module and str(parse(text)) == text


@pytest.mark.parametrize("sample", SAMPLES)
def test_origin_and_label_of_lowered_nodes(sample):
    module = module_of(sample, sample.dtypes[0])
    block = next(n for n in module.nodes if n.op.is_block)
    for policy in FusionPolicy:
        graph = module.with_fusion_policy(policy).lower_to_mir().as_graph()
        made = [n for n in graph.nodes if not n.is_leaf]
        assert made and {n.origin.hir for n in made} == {block.id}
        assert {n.origin.label for n in made} == {n.name for n in made} == {block.op.label}
        assert all(n.origin.source.file == __file__ for n in made)


def test_lowering_table():
    m = HirModule("m")
    x, w, b = m.input("x", ("B", 4)), m.param("w", (4, 4)), m.param("b", (4,))
    v = m.param("v", (4, 4))

    def lowered(result):
        m.set_outputs(result if isinstance(result, tuple) else [result])
        found = {}
        for policy in FusionPolicy:
            graph = m.with_fusion_policy(policy).lower_to_mir().as_graph()
            ids = {t.id for t in (result if isinstance(result, tuple) else (result,))}
            made = [n.op.mnemonic for n in graph.nodes if n.origin.hir in ids]
            found[policy.value] = " ".join(made)
        return found["direct"], found["fusable"]

    assert lowered(m.linear(x, w, b, "gelu")) == ("fused_matmul_bias_act", "matmul add gelu")
    assert lowered(m.linear(x, w, b)) == ("fused_matmul_bias_act", "matmul add")
    assert lowered(m.linear(x, w, act="silu")) == ("matmul silu", "matmul silu")
    assert lowered(m.linear(x, w)) == ("matmul", "matmul")
    assert lowered(m.linear_fused(x, w, b, "relu")) == ("fused_matmul_bias_act", "fused_matmul_bias_act")
    assert lowered(m.shared_linear_pair(x, w, v)) == ("matmul matmul", "matmul matmul")
    direct, fusable = lowered(m.swiglu_ffn(x, w, v, w))
    assert (direct, fusable) == ("concat matmul fused_swiglu matmul", "matmul matmul silu mul matmul")
    assert lowered(m.residual_rms_norm(x, x, b, b)) == ("fused_residual_rms_norm", "add rms_norm")
    assert lowered(m.rms_norm(x, b, b)) == ("rms_norm", "rms_norm")


def test_fusable_swiglu_has_nine_nodes():
    m = HirModule("m", FusionPolicy.Fusable)
    x = m.input("x", (2, 4))
    m.set_outputs([m.swiglu_ffn(x, m.param("up", (4, 8)), m.param("gate", (4, 8)), m.param("down", (8, 4)))])
    graph = m.lower_to_mir().as_graph()
    assert len(graph) == 9
    up, gate = (n for n in graph.nodes if n.op == ops.MatMul() and n.inputs[0] == 0)
    assert (graph.nodes[up.inputs[1]].name, graph.nodes[gate.inputs[1]].name) == ("up", "gate")


def test_fused_ops_carry_the_attributes_of_their_blocks():
    m = HirModule("m")
    x, b = m.input("x", (2, 4)), m.param("b", (4,))
    normal, total = m.residual_rms_norm(x, x, b, b, 1e-3, with_sum=True)
    m.set_outputs([normal, total, m.rope(m.input("y", (1, 2, 8)), m.param("c", (2, 2)), m.param("s", (2, 2)), 4, 2)])
    found = {n.op.mnemonic: n.op for n in m.lower_to_mir().as_graph().nodes}
    assert found["fused_residual_rms_norm"].attributes == {"has_bias": False, "eps": 1e-3, "with_sum": True}
    assert (found["rope"].head_dim, found["rope"].n_rot) == (4, 2)


LABELS = {
    Linear(): "linear",
    LinearFused(): "linear_fused",
    SharedLinearPair(1): "shared_linear_pair[1]",
    SwiGLU(): "swiglu_ffn",
    ResidualRmsNorm(): "residual_rms_norm",
    HirAttention(2, 4): "attention",
    DepthwiseConv1dCausal(3): "depthwise_conv1d_causal",
    HirDequantMatMul("gguf_q4k"): "dequant_matmul(gguf_q4k)",
    HirGatedDeltaNet(4): "gated_delta_net",
    HirGatedDeltaNet(4, True): "gated_delta_net_carry",
    HirRoPE(4, 4): "rope",
    HirRmsNorm(): "rms_norm",
    LlamaDecoderBlock(2, 4, 1): "llama_decoder_block",
    Qwen35MtpHead(2, 1, 4, 4, 8, 8, 8): "qwen35_mtp_head",
}


@pytest.mark.parametrize("block", LABELS, ids=LABELS.get)
def test_labels(block):
    assert block.label == LABELS[block]


def test_summaries_show_what_a_linear_is_made_of():
    assert Linear("gelu", True).summary == "linear+bias+Gelu"
    assert Linear().summary == "linear" and LinearFused("relu").summary == "linear_fused+Relu"


def refuse(message, build):
    with pytest.raises(OpError, match=message):
        build(HirModule("m"))


def test_wrong_operands_are_refused_with_the_block_named():
    refuse(
        r"hir\.linear: matmul: .*inner",
        lambda m: m.linear(m.input("x", (2, 3)), m.param("w", (4, 2))),
    )
    refuse("slot must be 0 or 1", lambda m: SharedLinearPair(2))
    refuse(
        r"left_pad must be \[B,2,C\]",
        lambda m: m.depthwise_conv1d_causal(
            m.input("x", (1, 4, 3)), m.param("w", (3, 1, 1, 3)), m.input("p", (1, 3, 3)), 3
        ),
    )
    refuse(
        r"w \[C,1,1,2\]",
        lambda m: m.depthwise_conv1d_causal(
            m.input("x", (1, 4, 3)), m.param("w", (3, 1, 1, 3)), m.input("p", (1, 2, 3)), 2
        ),
    )
    refuse("kernel_size must be positive", lambda m: DepthwiseConv1dCausal(0))
    refuse("must be a multiple of num_kv_heads", lambda m: HirAttention(3, 4, num_kv_heads=2))
    refuse("n_rot must be even", lambda m: HirRoPE(4, 3))
    refuse(
        r"hir\.attention: attention: .*optional operands",
        lambda m: m.attention(*[m.input(n, (1, 2, 8)) for n in "qkv"], m.input("m", (1, 2)), 2, 4, "causal"),
    )


def test_symbolic_sizes_that_must_agree_become_constraints():
    m = HirModule("m")
    x, r = m.input("x", ("B", 4)), m.input("r", ("N", 4))
    m.residual_rms_norm(x, r, m.param("g", (4,)), m.param("b", (4,)))
    assert [(str(c.left), str(c.right)) for c in m.constraints] == [("B", "N")]
