"""The graph-level names: outputs, names of added inputs, id maps, options, errors."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import autodiff, ops
from rlx.errors import AutodiffError, NoGradient, NoJvpRule, NoVjpRule, OpError
from rlx.ir.interpret import interpret
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.module import GraphModule, HirModule
from rlx.ir.verify import verify_all
from rlx.ops.control.bodies import build_body

rng = np.random.default_rng(6)
X, W = rng.normal(size=(2, 3)), rng.normal(size=(3, 2))
VALUES = {"x": X, "w": W}


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


def model():
    """Outputs: Σ tanh(x w)², and tanh(x w)."""
    graph = rlx.Graph("model")
    x, w = graph.input("x", (2, 3), "f64"), graph.param("w", (3, 2), "f64")
    h = rnp.tanh(x @ w)
    graph.set_outputs([rnp.sum(h * h), h])
    return graph


def expected_gradient():
    h = np.tanh(X @ W)
    return X.T @ (2 * h * (1 - h**2))


def test_grad_with_loss():
    result = autodiff.grad_with_loss(model(), ["w"])
    assert result.name == "model_grad"
    assert [n.name for n in result.inputs] == ["x", "d_output"]
    assert verify_all(result) == []
    loss, h, gradient = interpret(result, VALUES | {"d_output": np.float64(2.0)})
    close(loss, np.sum(np.tanh(X @ W) ** 2))
    close(h, np.tanh(X @ W))
    close(gradient, 2 * expected_gradient())
    close(interpret(autodiff.grad_with_loss(model(), ["w"], seed=None), VALUES)[-1], expected_gradient())


def test_leaves_by_name_id_or_handle():
    graph = model()
    w = graph.leaf("w").id
    for ref in ("w", w, graph.tensor(w)):
        close(interpret(autodiff.grad(graph, [ref], seed=None), VALUES)[0], expected_gradient())
    with pytest.raises(AutodiffError, match="is not an input or param"):
        autodiff.grad(graph, [graph.outputs[0]])
    with pytest.raises(OpError, match="no input or param 'nothing'"):
        autodiff.grad(graph, ["nothing"])


def test_top_level_names_act_on_graphs_too():
    result = rlx.grad(model(), ["w", "x"], seed=None)
    gradient, dx = interpret(result, VALUES)
    close(gradient, expected_gradient())
    close(dx, (2 * np.tanh(X @ W) * (1 - np.tanh(X @ W) ** 2)) @ W.T)


def test_jvp_outputs():
    result = rlx.jvp(model(), ["w"])
    t = rng.normal(size=(3, 2))
    _, h, dloss, dh = interpret(result, VALUES | {"tangent_w": t})
    close(dloss, np.sum(expected_gradient() * t))
    close(dh, (1 - h**2) * (X @ t))


def test_hvp_outputs():
    result = rlx.hvp(model(), ["w", "x"])
    v, u = rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    _, gw, gx, slope, hw, hx = interpret(result, VALUES | {"tangent_w": v, "tangent_x": u})
    close(slope, np.sum(gw * v) + np.sum(gx * u))
    gradient = rlx.grad(model(), ["w", "x"], seed=None)
    moved = [interpret(gradient, {"x": X + h * u, "w": W + h * v}) for h in (1e-5, -1e-5)]
    close(hw, (moved[0][0] - moved[1][0]) / 2e-5, 1e-7)
    close(hx, (moved[0][1] - moved[1][1]) / 2e-5, 1e-7)


def test_vmap_of_graphs():
    result = rlx.vmap(model(), ["x"], 4)
    xs = rng.normal(size=(4, 2, 3))
    losses, hs = interpret(result, {"x": xs, "w": W})
    close(losses, np.sum(np.tanh(xs @ W) ** 2, (1, 2)))
    close(hs, np.tanh(xs @ W))
    moved = rlx.vmap(model(), {"x": 1, "w": None}, "B", out_axes=[0, -1])
    losses, hs = interpret(moved, {"x": xs.swapaxes(0, 1), "w": W})
    close(np.moveaxis(hs, -1, 0), np.tanh(xs @ W))
    # Parameters may be mapped too, and what does not vary is repeated.
    graph = model()
    graph.set_outputs([graph.outputs[0], graph.leaf("x").id])
    losses, xs = interpret(rlx.vmap(graph, ["w"], 3), {"x": X, "w": np.stack([W] * 3)})
    close(xs, np.stack([X] * 3))


def test_unused_leaves():
    graph = model()
    graph.input("unused", (2,), "f16")
    with pytest.raises(NoGradient, match="'unused'"):
        autodiff.grad_with_loss(graph, ["w", "unused"])
    zeros = autodiff.grad_with_loss_opts(graph, ["unused"], autodiff.GradWithLossOptions.TRAINING, seed=None)
    result = interpret(zeros, VALUES | {"unused": np.zeros(2, np.float16)})[-1]
    assert result.dtype == np.float16
    assert not result.any()


def test_ops_without_rules_are_named():
    graph = rlx.Graph("g")
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([ops.Bitcast("f64")(x)])
    with pytest.raises(NoVjpRule, match="bitcast has no gradient: bits have no derivative"):
        autodiff.grad_with_loss(graph, ["x"])
    with pytest.raises(NoJvpRule, match="bitcast"):
        autodiff.jvp(graph, ["x"])


def test_added_inputs_need_free_names():
    graph = rlx.Graph("g")
    graph.set_outputs([rnp.sum(graph.input("d_output", (3,), "f64") ** 2)])
    with pytest.raises(OpError, match="already has a leaf called 'd_output'"):
        autodiff.grad_with_loss(graph, ["d_output"])
    close(interpret(autodiff.grad_with_loss(graph, ["d_output"], seed=None), [X[0]])[1], 2 * X[0])


def test_graphs_without_outputs_or_with_integer_losses():
    graph = rlx.Graph("g")
    graph.input("x", (3,), "f64")
    with pytest.raises(AutodiffError, match="has no outputs"):
        autodiff.grad_with_loss(graph, ["x"])
    graph.set_outputs([rnp.argmax(graph.tensor(0))])
    with pytest.raises(AutodiffError, match="only float and complex"):
        autodiff.grad_with_loss(graph, ["x"])


def fused_model():
    graph = rlx.Graph("fused")
    x, w, b = graph.input("x", (2, 3), "f64"), graph.param("w", (3, 2), "f64"), graph.param("b", (2,), "f64")
    h = ops.fused_matmul_bias_act(x, w, b, "gelu")
    vector = rlx.Shape((2,), "f64")
    step = build_body("step", lambda c, x: rnp.tanh(c + x), carry=vector, x=vector)
    final = ops.Scan(step, 2, num_xs=1)(b, h)
    square = ops.CustomFn(build_body("square", lambda x: x * x, x=vector))
    total = ops.Reduce("sum", (0, 1), False)(h)
    graph.set_outputs([rnp.sum(square(final)) + total])
    return graph


def test_prepared_graphs_have_the_same_gradients():
    graph = fused_model()
    values = VALUES | {"b": rng.normal(size=2)}
    expected = interpret(autodiff.grad_with_loss(graph, ["x", "w", "b"], seed=None), values)
    prepared = autodiff.prepare_graph_for_ad(graph)
    kinds = {n.op.mnemonic for n in prepared.graph.nodes}
    assert "fused_matmul_bias_act" not in kinds
    assert "custom_fn" not in kinds
    # Ids of leaves and outputs are mapped, not assumed.
    wrt = [prepared.id(graph.leaf(k).id) for k in ("x", "w", "b")]
    got = interpret(autodiff.grad_with_loss(prepared.graph, wrt, seed=None), values)
    for a, b in zip(got, expected, strict=True):
        close(a, b)
    assert prepared.graph.outputs == [prepared.id(graph.outputs[0])]
    assert autodiff.PrepareForAutodiff().run(graph) == prepared.graph
    assert autodiff.PrepareForAutodiff.name == "prepare_for_autodiff"


def test_single_pre_passes():
    graph = fused_model()
    values = VALUES | {"b": rng.normal(size=2)}
    expected = interpret(graph, values)[0]
    for rewrite in (
        autodiff.decompose_fusion_regions,
        autodiff.unfuse_fused_for_autodiff,
        autodiff.lower_dot_general,
        autodiff.legalize_multi_axis_reduce,
        autodiff.inline_custom_fn_for_autodiff,
        autodiff.convert_scans_for_ad,
        autodiff.fuse_decomposed_gaussian_splat,
    ):
        result = rewrite(graph)
        assert verify_all(result.graph) == []
        close(interpret(result.graph, values)[0], expected)
        for node in graph.nodes:
            if node.is_leaf:
                assert result.graph.node(result.id(node.id)).name == node.name
    split = autodiff.legalize_multi_axis_reduce(graph).graph
    assert all(len(n.op.axes) == 1 for n in split.nodes if isinstance(n.op, ops.Reduce))


def test_pre_passes_reach_into_bodies():
    vector = rlx.Shape((2,), "f64")
    square = ops.CustomFn(build_body("square", lambda x: x * x, x=vector))
    graph = rlx.Graph("g")
    step = build_body("step", lambda c: square(c), carry=vector)
    graph.set_outputs([ops.Scan(step, 3)(graph.input("x", (2,), "f64"))])
    inlined = autodiff.inline_custom_fn_for_autodiff(graph).graph
    assert "custom_fn" not in str(inlined)
    close(interpret(inlined, [X[0, :2]])[0], X[0, :2] ** 8)


def test_backward_ops_are_decomposed():
    graph = rlx.Graph("g")
    x = graph.input("x", (2, 3), "f64")
    graph.set_outputs([rnp.sum(ops.relu(x) * ops.softmax(x)) + rnp.sum(ops.gelu(x))])
    backward = autodiff.grad_with_loss(graph, ["x"])
    kinds = {rlx.kind_of(n.op) for n in backward.nodes}
    assert {"ReluBackward", "ActivationBackward"} <= kinds
    plain = autodiff.decompose_backward_ops(backward)
    assert not any("Backward" in rlx.kind_of(n.op) for n in plain.graph.nodes)
    kept = autodiff.decompose_backward_ops_except(backward, ["ReluBackward"])
    assert {rlx.kind_of(n.op) for n in kept.graph.nodes if "Backward" in rlx.kind_of(n.op)} == {"ReluBackward"}
    with pytest.raises(AutodiffError, match="not backward ops"):
        autodiff.decompose_backward_ops_except(backward, ["Relu"])
    values = {"x": X, "d_output": np.float64(1.5)}
    for other in (plain.graph, kept.graph):
        close(interpret(other, values)[1], interpret(backward, values)[1])
    assert plain.id(backward.leaf("x").id) == plain.graph.leaf("x").id


def test_gradient_graphs_can_be_differentiated_again():
    graph = model()
    graph.set_outputs(graph.outputs[:1])
    backward = autodiff.grad_with_loss(graph, ["w", "x"])
    ready = autodiff.prepare_grad_graph_for_jvp(backward).graph
    assert not ready.has_leaf("d_output")
    only = autodiff.decompose_backward_for_ad(backward, 0).graph
    assert only.shape(only.outputs[0]).dims == (3, 2)
    close(interpret(only, VALUES)[0], expected_gradient())
    v = rng.normal(size=(3, 2))
    close(
        interpret(autodiff.jvp(ready, ["w"]), VALUES | {"tangent_w": v})[4],
        interpret(autodiff.hvp(graph, ["w"]), VALUES | {"tangent_w": v})[3],
    )
    with pytest.raises(AutodiffError, match="there is none of 2"):
        autodiff.decompose_backward_for_ad(backward, 2)


def test_cse_merges_equal_nodes_and_maps_ids():
    graph = rlx.Graph("g")
    x = graph.input("x", (3,), "f64")
    first, second = rnp.sin(x), rnp.sin(x)
    (values, _), (_, places) = ops.top_k(x, 2), ops.top_k(x, 2)
    graph.set_outputs([first + second, values, places, ops.barrier(first)[0], ops.barrier(first)[0]])
    merged = autodiff.cse(graph)
    assert merged.id(first.id) == merged.id(second.id)
    mnemonics = [n.op.mnemonic for n in merged.graph.nodes]
    assert mnemonics.count("sin") == mnemonics.count("top_k") == 1
    assert mnemonics.count("barrier") == 2
    again = autodiff.cse(merged.graph)
    assert again.graph == merged.graph
    close(interpret(merged.graph, [X[0]])[0], 2 * np.sin(X[0]))


def test_quantized_weight_bits():
    graph = rlx.Graph("g")
    w = graph.param("w", (4, 4), "f32")
    q, lsq = ops.fake_quantize(w, bits=4), ops.fake_quantize_lsq(w, graph.param("s", (1,), "f32"), bits=3)
    assert autodiff.quantized_weight_bits(graph, q) == 4
    assert autodiff.quantized_weight_bits(graph, lsq.id) == 3
    assert autodiff.quantized_weight_bits(graph, w) is None


def block_module():
    module = GraphModule.hir("mlp")
    x, w = module.input("x", (2, 3), "f64"), module.param("w", (3, 2), "f64")
    y = module.linear(x, w, act="tanh")
    hir = module.as_hir()
    return module.finish_hir(hir.mir(ops.Reduce("sum", (0, 1), False), [y]))


def test_modules():
    module = block_module()
    expected = X.T @ (1 - np.tanh(X @ W) ** 2)
    backward = autodiff.grad_with_loss_module(module, ["w"])
    assert backward.stage == "mir"
    loss, gradient = interpret(backward.into_graph(), VALUES | {"d_output": np.float64(1)})
    close(gradient, expected)
    tangent = interpret(autodiff.jvp_module(module, ["w"]).into_graph(), VALUES | {"tangent_w": W})[1]
    close(tangent, np.sum(expected * W))
    product = interpret(autodiff.hvp_module(module, ["w"]).into_graph(), VALUES | {"tangent_w": W})[3]
    assert product.shape == (3, 2)
    second = autodiff.nth_order_grad_module(module, "w", 2).into_graph()
    assert second.name == "mlp_d2"
    prepared = autodiff.prepare_module_for_ad(module)
    close(interpret(prepared.into_graph(), VALUES)[0], loss)
    # An HIR module is a graph, too.
    close(interpret(rlx.grad(module.as_hir(), ["w"], seed=None), VALUES)[0], expected)


def test_mir_extension():
    mir = model().to_mir()
    extended = autodiff.MirAutodiffExt(mir)
    close(interpret(extended.prepare_for_autodiff().into_graph(), VALUES)[1], np.tanh(X @ W))
    result = interpret(extended.grad_with_loss(["w"]).into_graph(), VALUES | {"d_output": np.float64(1)})
    close(result[2], expected_gradient())


def test_wrong_stage():
    lir = GraphModule.from_lir(LirModule(model(), LirBufferPlan()))
    with pytest.raises(autodiff.WrongStage, match=r"stage lir cannot be differentiated.*into_mir") as error:
        autodiff.grad_with_loss_module(lir, ["w"])
    assert error.value.got == "lir"


def test_lowering_errors_are_wrapped():
    hir = HirModule("broken")
    x = hir.input("x", (2, 3), "f64")
    w = hir.param("w", (3, 2), "f64")
    y = hir.linear(x, w)
    node = hir.node(y)
    node.inputs = node.inputs[:1]
    hir.set_outputs([y])
    with pytest.raises(AutodiffError, match="cannot be lowered"):
        autodiff.jvp_module(GraphModule.from_hir(hir), ["x"])


def test_names_are_listed():
    for name in ("grad", "vmap", "nth_order_grad", "build_force_energy_loss", "MirAutodiffExt", "UnboundedWhile"):
        assert name in dir(autodiff)
        assert getattr(autodiff, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = autodiff.nothing


def test_building_a_gradient_is_linear_in_the_size():
    """Ten thousand nodes in a chain: no recursion, and a gradient graph of proportional size."""
    graph = rlx.Graph("deep")
    x = graph.input("x", (2,), "f64")
    y = x
    for _ in range(5000):
        y = rnp.sin(y) * 1.001
    graph.set_outputs([rnp.sum(y)])
    assert len(graph) > 10_000
    backward = autodiff.grad_with_loss(graph, ["x"], seed=None)
    assert len(backward) < 4 * len(graph)
    assert len(autodiff.jvp(graph, ["x"])) < 4 * len(graph)
    assert len(autodiff.vmap(graph, ["x"], 3)) < 3 * len(graph)


def test_prepared_and_rasterized_scenes_become_one_render():
    sample = next(iter(ops.GaussianSplatRender.samples()))
    graph = rlx.Graph("scene")
    scene = [graph.input(f"x{i}", s.bind(sample.binding)) for i, s in enumerate(sample.shapes("f32"))]
    settings = sample.op.attributes
    prepared = ops.GaussianSplatPrepare(**settings)(*scene)
    coarse = {k: v for k, v in settings.items() if k != "radius_scale"}
    graph.set_outputs([ops.GaussianSplatRasterize(**coarse)(prepared, scene[-1])])
    fused = autodiff.fuse_decomposed_gaussian_splat(graph)
    assert "gaussian_splat_render" in [n.op.mnemonic for n in fused.graph.nodes]
    arrays = sample.arrays("f32")
    close(interpret(fused.graph, arrays)[0], interpret(graph, arrays)[0], 1e-6)
    # What others read stays as it is.
    graph.set_outputs([graph.outputs[0], prepared])
    assert "gaussian_splat_render" not in str(autodiff.fuse_decomposed_gaussian_splat(graph).graph)
