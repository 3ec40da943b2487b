"""Thin lowerings against NumPy."""

import numpy as np
import pytest
from fusion_programs import assert_same_values, program, values_of

from rlx import ops
from rlx.fusion import (
    LowerBackwardOps,
    LowerDotGeneral,
    LowerGroupNorm,
    LowerNonLastAxisReduce,
    LowerResizeNearest2x,
    UnfuseFusedOps,
    unfuse_fused_for_autodiff,
)
from rlx.ir.interpret import interpret
from rlx.ir.text.pretty import kind_counts


@pytest.mark.parametrize(
    ("subscripts", "a", "b", "axes"),
    [
        ("ij,jk->ik", (2, 3), (3, 4), ((1,), (0,))),
        ("ij,kj->ik", (2, 3), (4, 3), ((1,), (1,))),
        ("bij,bkj->bik", (2, 3, 4), (2, 5, 4), ((2,), (2,), (0,), (0,))),
        ("ibj,kbj->bik", (3, 2, 4), (5, 2, 4), ((2,), (2,), (1,), (1,))),
        ("ijk,kjl->il", (2, 3, 4), (4, 3, 5), ((1, 2), (1, 0))),
        ("i,j->ij", (2,), (3,), ((), ())),
        ("i,i->", (3,), (3,), ((0,), (0,))),
    ],
)
def test_every_contraction_becomes_a_matmul(subscripts, a, b, axes):
    graph = program("dot", lambda g: ops.dot_general(g.input("a", a, "f64"), g.input("b", b, "f64"), *axes))
    after = LowerDotGeneral().run(graph)
    assert "DotGeneral" not in kind_counts(after) and kind_counts(after)["MatMul"] == 1
    values = values_of(graph)
    np.testing.assert_allclose(interpret(after, values)[0], np.einsum(subscripts, values["a"], values["b"]), rtol=1e-13)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (-2, 0), (0, 1, 2), (2,)])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod"])
def test_reductions_run_along_the_last_axis(kind, axes, keep):
    graph = program("reduce", lambda g: ops.Reduce(kind, axes, keep)(g.input("x", (2, 3, 4), "f64")))
    after = LowerNonLastAxisReduce().run(graph)
    for node in after.nodes:
        if isinstance(node.op, ops.Reduce):
            rank = after.shape(node.inputs[0]).rank
            assert [a % rank for a in node.op.axes] == [rank - 1]
    values = values_of(graph)
    want = getattr(np, kind)(values["x"], axis=axes, keepdims=keep)
    np.testing.assert_allclose(interpret(after, values)[0], want, rtol=1e-13)
    assert LowerNonLastAxisReduce().run(after) is after


def test_reductions_without_axes_and_of_nothing():
    graph = program("none", lambda g: ops.Reduce("sum", ())(g.input("x", (2, 3), "f64")))
    assert LowerNonLastAxisReduce().run(graph) is graph
    empty = program("empty", lambda g: ops.Reduce("max", (0,))(g.input("x", (0, 3), "f64")))
    assert_same_values(empty, LowerNonLastAxisReduce().run(empty))


def test_group_norm_does_not_cancel():
    """Values far from 0 with a small spread: E[x²] - E[x]² would be noise."""
    graph = program(
        "groups",
        lambda g: ops.group_norm(g.input("x", (1, 2, 8), "f32"), g.param("gamma", (2,)), g.param("beta", (2,)), 1),
    )
    after = LowerGroupNorm().run(graph)
    assert "GroupNorm" not in kind_counts(after)
    x = (1000 + np.random.default_rng(0).uniform(-0.5, 0.5, (1, 2, 8))).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    got = interpret(after, {"x": x, "gamma": np.ones(2, np.float32), "beta": np.zeros(2, np.float32)})[0]
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_resize_repeats_pixels_not_the_image():
    graph = program("resize", lambda g: ops.ResizeNearest2x()(g.input("x", (1, 2, 2, 3), "f64")))
    after = LowerResizeNearest2x().run(graph)
    assert "ResizeNearest2x" not in kind_counts(after)
    values = values_of(graph)
    np.testing.assert_array_equal(interpret(after, values)[0], values["x"].repeat(2, 2).repeat(2, 3))


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "tan", "abs", "tanh", "sqrt"])
def test_backward_ops_are_the_derivative(kind):
    graph = program(
        "gradient", lambda g: ops.activation_backward(kind, g.input("x", (5,), "f64"), g.input("dy", (5,), "f64"))
    )
    after = LowerBackwardOps().run(graph)
    assert not {"ActivationBackward", "ReluBackward"} & set(kind_counts(after))
    x, dy, h = np.array([0.3, 0.7, 1.1, 0.9, 0.2]), np.linspace(-1, 1, 5), 1e-6
    f = ops.Activation(kind).eval
    np.testing.assert_allclose(interpret(after, {"x": x, "dy": dy})[0], dy * (f(x + h) - f(x - h)) / (2 * h), rtol=1e-8)


def test_unfusing_only_what_is_asked():
    def build(g):
        x = g.input("x", (2, 4), "f64")
        y = ops.fused_matmul_bias_act(x, g.param("w", (4, 8), "f64"), g.param("b", (8,), "f64"), "gelu")
        return ops.fused_swiglu(y, gate_first=True)

    graph = program("fused", build)
    one = UnfuseFusedOps({"FusedSwiGLU"}).run(graph)
    assert {"FusedMatMulBiasAct", "FusedSwiGLU"} & set(kind_counts(one)) == {"FusedMatMulBiasAct"}
    assert_same_values(graph, one)
    for apart in (UnfuseFusedOps().run(graph), unfuse_fused_for_autodiff(graph).graph):
        assert not any(k.startswith("Fused") for k in kind_counts(apart))
        assert_same_values(graph, apart)
    assert UnfuseFusedOps({"FusedResidualLN"}).run(graph) is graph


def test_recurrences_become_scans():
    def build(g):
        x = g.input("x", (2, 5, 3), "f64")
        a, b = g.input("a", (3, 2), "f64"), g.input("b", (2, 5, 2), "f64")
        return ops.selective_scan(x, x, a, b, b, state_size=2)

    graph = program("ssm", build)
    apart = UnfuseFusedOps().run(graph)
    assert "SelectiveScan" not in kind_counts(apart) and kind_counts(apart)["Scan"] == 1
    assert_same_values(graph, apart)
