"""What the generated tests of rules cannot see: which ops the gradients of norms, attention, rope, conv and pooling are
made of, rules that hold for some operands only, and that graphs do not grow with kernel sizes."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.autodiff.graphs import grad_with_loss, jvp, vmap
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rebuild import decompose_all

rng = np.random.default_rng(11)


def graph_of(op, *dims, dtype="f64"):
    graph = Graph("net")
    result = graph.append_node(op, [graph.input(f"x{i}", d, dtype) for i, d in enumerate(dims)])
    graph.set_outputs([result])
    return graph


def arrays_of(graph):
    return {n.op.key: rng.normal(size=n.shape.static_dims) for n in graph.inputs}


def mnemonics(graph):
    return [n.op.mnemonic for n in graph.nodes]


def gradient(graph, *wrt):
    return grad_with_loss(graph, wrt or [n.op.key for n in graph.inputs])


@pytest.mark.parametrize(
    ("op", "dims", "expected"),
    [
        (
            ops.LayerNorm(),
            [(3, 4), (4,), (4,)],
            ["layer_norm_backward_input", "layer_norm_backward_gamma", "reduce_sum"],
        ),
        (ops.LayerNorm2d(), [(2, 3, 2, 2), (3,), (3,)], ["layer_norm_backward_input", "layer_norm_backward_gamma"]),
        (ops.RmsNorm(), [(3, 4), (4,), (4,)], [f"rms_norm_backward_{x}" for x in ("input", "gamma", "beta")]),
        (ops.GroupNorm(2), [(2, 4, 3), (4,), (4,)], [f"group_norm_backward_{x}" for x in ("input", "gamma", "beta")]),
        (
            ops.BatchNormInference(),
            [(3, 4), (4,), (4,), (4,), (4,)],
            [f"batch_norm_inference_backward_{x}" for x in ("input", "gamma", "beta")],
        ),
        (
            ops.Conv((2, 2), (1, 1), (0, 0), (1, 1)),
            [(1, 2, 3, 3), (2, 2, 2, 2)],
            ["conv2d_backward_input", "conv2d_backward_weight"],
        ),
        (ops.Pool("max", (2, 2), (1, 1), (0, 0)), [(1, 2, 3, 3)], ["maxpool2d_backward"]),
        (ops.Pool("min", (2, 2), (1, 1), (0, 0)), [(1, 2, 3, 3)], ["maxpool2d_backward"]),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, ops.Op) else None,
)
def test_gradients_are_the_named_ops_and_the_forward_op_stays(op, dims, expected):
    names = mnemonics(gradient(graph_of(op, *dims)))
    assert op.mnemonic in names
    assert set(expected) <= set(names)


def test_the_gradient_of_a_loss_is_one_op():
    graph = Graph("loss")
    logits, labels = graph.input("logits", (3, 4), "f32"), graph.input("labels", (3,), "i32")
    graph.set_outputs([ops.softmax_cross_entropy_with_logits(logits, labels)])
    assert "softmax_cross_entropy_backward" in mnemonics(gradient(graph, "logits"))


@pytest.mark.parametrize("mask_kind", ["none", "causal", "bias"])
def test_attention_keeps_nothing_of_the_size_of_the_scores(mask_kind):
    seq = 7
    operands = [(2, 2, seq, 4)] * 3 + [(1, 2, seq, seq)] * (mask_kind == "bias")
    backward = gradient(graph_of(ops.Attention(2, 4, mask_kind), *operands))
    assert mnemonics(backward).count("attention_backward") == 1
    leaves = {n.id for n in backward.inputs}
    computed = [n for n in backward.nodes if n.id not in leaves for s in n.shapes if s.dims[-2:] == (seq, seq)]
    # Only the gradient of a bias is that large, and it is a result.
    assert {n.op.mnemonic for n in computed} == ({"attention_backward", "project"} if mask_kind == "bias" else set())


@pytest.mark.parametrize("cls", [ops.Rope, ops.RopeBackward])
@pytest.mark.parametrize(("style", "n_rot"), [("neox", 6), ("gptj", 4)])
def test_rope_turns_back_where_tables_are_constant_and_differentiates_them_where_asked(cls, style, n_rot):
    graph = graph_of(cls(6, n_rot, style), (2, 3, 12), (5, 3), (5, 3))
    arrays = arrays_of(graph)
    ct = {"d_output": rng.normal(size=(2, 3, 12))}
    alone, together = gradient(graph, "x0"), gradient(graph)
    assert {"rope", "rope_backward"} <= set(mnemonics(alone))
    assert "gather_nd" not in mnemonics(alone)
    expected = interpret(together, arrays | ct)
    np.testing.assert_allclose(interpret(alone, arrays | ct)[1], expected[1], rtol=1e-12)
    tangent = {"tangent_x0": rng.normal(size=(2, 3, 12))}
    forward = jvp(graph, ["x0"])
    assert mnemonics(forward).count(cls.name) == 2
    y_dot = interpret(forward, arrays | tangent)[1]
    np.testing.assert_allclose(np.sum(y_dot * ct["d_output"]), np.sum(tangent["tangent_x0"] * expected[1]), rtol=1e-12)


def test_half_precision_convolutions_with_a_wide_result_are_pulled_back_wide():
    graph = Graph("conv")
    x, w = graph.input("x", (1, 2, 4, 4), "f16"), graph.input("w", (3, 2, 3, 3), "f16")
    graph.set_outputs([ops.conv(x, w, out_dtype="f32", precision="highest")])
    backward = gradient(graph)
    nodes = [n for n in backward.nodes if n.op.mnemonic.startswith("conv2d_backward")]
    assert [n.op.attributes["precision"] for n in nodes] == ["highest"] * 2
    assert {str(n.shape.dtype) for n in nodes} == {"f32"}
    assert [str(backward.shape(o).dtype) for o in backward.outputs] == ["f32", "f16", "f16"]


def test_examples_with_their_own_weights_are_groups_of_one_convolution():
    graph = graph_of(ops.Conv((2, 2), (1, 1), (0, 0), (1, 1), 2), (2, 4, 3, 3), (6, 2, 2, 2))
    convs = [n.op for n in vmap(graph, ["x0", "x1"], 5).nodes if n.op.mnemonic == "conv"]
    assert [c.groups for c in convs] == [10]
    shared = [n for n in vmap(graph, ["x0"], 5).nodes if n.op.mnemonic == "conv"]
    assert [n.shape.dims for n in shared] == [(10, 6, 2, 2)]


def test_per_example_gradients_of_a_convolution():
    graph = graph_of(ops.Conv((2, 2), (2, 1), (1, 0), (1, 1)), (2, 3, 5, 4), (4, 3, 2, 2))
    backward = gradient(graph)
    arrays = {k: rng.normal(size=(3, *a.shape)) if k == "x0" else a for k, a in arrays_of(graph).items()}
    ct = rng.normal(size=(3, *graph.shape(graph.outputs[0]).static_dims))
    got = interpret(vmap(backward, ["x0", "d_output"], 3), arrays | {"d_output": ct})
    for i in range(3):
        one = interpret(backward, arrays | {"x0": arrays["x0"][i], "d_output": ct[i]})
        for a, b in zip(got, one):
            np.testing.assert_allclose(a[i], b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda k: graph_of(ops.Im2Col((k, k), (1, 1), (0, 0), (1, 1)), (1, 2, 8, 8)),
        lambda k: graph_of(ops.MaxPool2dBackward((k, k), (k, k), (0, 0)), (1, 2, 6, 6), (1, 2, 6 // k, 6 // k)),
        lambda k: gradient(graph_of(ops.Im2Col((k, k), (1, 1), (0, 0), (1, 1)), (1, 2, 8, 8))),
        lambda k: gradient(graph_of(ops.Pool("max", (k, k), (k, k), (0, 0)), (1, 2, 6, 6))),
        lambda k: jvp(graph_of(ops.Pool("max", (k, k), (k, k), (0, 0)), (1, 2, 6, 6)), ["x0"]),
    ],
)
def test_graphs_do_not_grow_with_the_kernel(make):
    assert len(decompose_all(make(2)).nodes) == len(decompose_all(make(3)).nodes)


def test_gains_of_each_example_are_batched_by_parts():
    graph = graph_of(ops.LayerNorm(), (3, 4), (4,), (4,))
    assert "layer_norm" in mnemonics(vmap(graph, ["x0"], 2))
    assert "layer_norm" not in mnemonics(vmap(graph, ["x1"], 2))
