"""HIR, MIR and GraphModule containers: stages, delegation, policies, lowering and its provenance."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import FormatError, LowerError, OpError, ParseError, ShapeError
from rlx.hir import Linear
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.leaves import Constant
from rlx.ir.module import (
    FusionPolicy,
    GraphModule,
    GraphStage,
    HirModule,
    HirMut,
    HirNodeId,
    MirModule,
    MissingBias,
    WrongInputCount,
    WrongStage,
    hir_from_json,
    hir_to_graph,
    hir_to_json,
)
from rlx.ir.provenance import node_label
from rlx.ir.serialize import to_json
from rlx.ir.shape import Shape
from rlx.ir.text.graph_text import parse


def small(policy: FusionPolicy = FusionPolicy.Fusable) -> HirModule:
    """relu(x·w) + 1, the product as a block."""
    m = HirModule("small", policy)
    x, w = m.input("x", ("B", 3)), m.param("w", (3, 2))
    m.set_outputs([m.linear(x, w, act="relu") + 1.0])
    return m


def test_policies():
    assert FusionPolicy.Direct.is_direct() and not FusionPolicy.Fusable.is_direct()
    assert FusionPolicy.for_autodiff() is FusionPolicy.Fusable
    assert HirModule("m").fusion_policy is FusionPolicy.Direct
    m = small()
    assert m.with_fusion_policy("direct") is m and m.fusion_policy is FusionPolicy.Direct
    with pytest.raises(ValueError, match="eager"):
        m.with_fusion_policy("eager")


def test_hir_ids_print_with_h():
    m = small()
    assert str(HirNodeId(3)) == "h3"
    assert repr(m.nodes[2]) == "h2: f32[B,2] = hir.linear(h0, h1)"


def test_policy_is_part_of_identity_and_text():
    fusable, direct = small(), small(FusionPolicy.Direct)
    assert fusable != direct and fusable == small()
    assert fusable.copy() == fusable and fusable.bind({}) == fusable
    for m in (fusable, direct):
        text = str(m)
        assert text.startswith(f"hir {m.fusion_policy} @small(")
        assert parse(text) == m and str(parse(text)) == text
    with pytest.raises(ParseError, match="'eager' is not a fusion policy"):
        parse(str(fusable).replace("fusable", "eager"))


def test_json_keeps_blocks_and_policy():
    m = small(FusionPolicy.Direct)
    again = hir_from_json(hir_to_json(m))
    assert again == m and again.fusion_policy is FusionPolicy.Direct
    with pytest.raises(FormatError, match="at level mir, not hir"):
        hir_from_json(to_json(hir_to_graph(m)))


def test_binding_reaches_blocks():
    bound = small().bind({"B": 4})
    assert isinstance(bound, HirModule) and bound.shape(2) == Shape((4, 2))


def test_lowering_replaces_blocks_and_keeps_everything_else():
    m = small()
    graph = m.lower_to_mir().into_graph()
    assert type(graph) is Graph and graph.level == "mir"
    assert [n.op.mnemonic for n in graph.nodes] == ["input", "param", "matmul", "relu", "constant", "add"]
    x = np.arange(6, dtype="f4").reshape(2, 3) - 3
    w = np.array([[1, -1], [2, 0], [0, 3]], "f4")
    [got] = interpret(graph, {"x": x, "w": w})
    np.testing.assert_array_equal(got, np.maximum(x @ w, 0) + 1)
    np.testing.assert_array_equal(interpret(m, {"x": x, "w": w})[0], got)


def test_lowered_nodes_remember_block_label_and_line():
    m = HirModule("m")
    x, w = m.input("x", (2, 3)), m.param("w", (3, 2))
    named = m.named("layer0.up", lambda h: h.linear(x, w, act="gelu"))
    plain = m.linear(x, w)
    m.set_outputs([m.add(named, plain)])
    graph = hir_to_graph(m)
    product, gelu = (n for n in graph.nodes if n.origin.hir == named.id and not n.is_leaf)
    assert product.origin.label == gelu.origin.label == product.name == gelu.name == "layer0.up"
    assert product.origin.source.file == __file__ and product.origin.pass_name is None
    assert str(product.origin) == 'hir=h2, "layer0.up"'
    last, total = graph.nodes[-2], graph.nodes[-1]
    assert last.name == last.origin.label == "linear"
    assert total.origin.hir == m.outputs[0] and total.origin.label is None and total.name is None
    assert node_label(graph, total.id) == f"h{int(m.outputs[0])}"
    assert graph.nodes[0].origin.hir == 0


def test_lowering_keeps_aliases_and_results_of_several():
    m = HirModule("m")
    x = m.input("x", (4, 4))
    values, ids = m.append_node(ops.TopKWithValues(4), [x])
    m.set_outputs([values, ids])
    m.alias(values, "x")
    graph = hir_to_graph(m)
    assert graph.aliases == {0: "x"}
    assert [n.op for n in graph.nodes] == [n.op for n in m.nodes]


def test_lower_for_autodiff_ignores_the_policy():
    m = HirModule("m", FusionPolicy.Direct)
    x, w, b = m.input("x", (2, 3)), m.param("w", (3, 2)), m.param("b", (2,))
    m.set_outputs([m.linear(x, w, b, "gelu")])
    kinds = [type(n.op).__name__ for n in m.lower_for_autodiff().as_graph().nodes if not n.is_leaf]
    assert kinds == ["MatMul", "Binary", "Activation"]
    assert m.fusion_policy is FusionPolicy.Direct


def test_wrong_operand_counts():
    m = HirModule("m")
    x, w = m.input("x", (2, 3)), m.param("w", (3, 2))
    with pytest.raises(OpError, match="needs 2 to 3 operands, got 1"):
        m.append_node(Linear(), [x])
    with pytest.raises(OpError, match="has_bias=True does not fit 2 operands"):
        m.append_node(Linear(has_bias=True), [x, w])
    y = m.linear(x, w)
    m.set_inputs(y, [x])
    with pytest.raises(WrongInputCount, match=r"hir\.linear: needs 2 to 3 operands to lower, got 1") as caught:
        m.lower_to_mir()
    assert (caught.value.op, caught.value.got) == ("hir.linear", 1)
    z = m.linear(x, w, m.param("b", (2,)))
    m.set_inputs(y, [x, w])
    m.set_inputs(z, [x, w])
    with pytest.raises(MissingBias, match="no bias operand") as missing:
        m.lower_to_mir()
    assert isinstance(missing.value, LowerError)


def test_declared_output_shapes_are_checked():
    m = HirModule("m")
    x, w = m.input("x", (2, 3)), m.param("w", (3, 2))
    assert m.linear(x, w, out_shape=Shape((2, 2))).shape == (2, 2)
    with pytest.raises(ShapeError, match=r"hir\.linear: the declared output is f32\[2,3\]"):
        m.linear(x, w, out_shape=Shape((2, 3)))


def test_hir_mut_reaches_the_vocabulary_of_graphs():
    m = HirModule("m")
    x, gamma, beta = m.input("x", (2, 4)), m.param("gamma", (4,)), m.param("beta", (4,))
    assert m.rms_norm(x, gamma, beta).node.op.is_block
    primitive = HirMut(m).rms_norm(x, gamma, beta, 1e-5)
    assert primitive.node.op == ops.RmsNorm(eps=1e-5) and primitive.graph is m
    assert HirMut(m).shape(x) == Shape((2, 4)) and HirMut(m).name == "m"
    with pytest.raises(AttributeError):
        HirMut(m).no_such_op(x)


def test_constants_and_batch_seq_inputs_exist_at_hir():
    m = HirModule("m")
    assert isinstance(m.constant(2.0).node.op, Constant)
    assert m.input_batch_seq("x", "B", "S", 8, "f16").type == Shape(("B", "S", 8), "f16")


def test_mir_op_is_held_as_it_is():
    m = HirModule("m")
    x = m.input("x", (2, 3))
    assert m.mir(ops.Reshape((3, 2)), [x], Shape((3, 2))).node.op == ops.Reshape((3, 2))


def test_wrap_mir_graph():
    graph = hir_to_graph(small())
    wrapped = HirModule.wrap_mir_graph(graph)
    assert isinstance(wrapped, HirModule) and hir_to_graph(wrapped) == graph


def test_mir_module_is_a_thin_wrapper():
    mir = MirModule.new("m")
    assert mir.is_empty() and len(mir) == 0
    x = mir.as_graph_mut().input("x", (2,))
    mir.set_outputs([x])
    assert mir.outputs == [0] and mir.name == "m" and len(mir) == 1
    twin = MirModule.from_graph(mir.into_graph().copy())
    assert twin == mir and str(twin) == str(mir.graph)


def test_define_builds_the_output():
    module = Graph.define("mlp", lambda m: m.linear(m.input("x", (1, 4)), m.param("w", (4, 2)), act="relu"))
    assert module.stage is GraphStage.Hir and module.name == "mlp"
    assert module.as_hir().outputs == [2] and module.as_graph() is None and module.as_mir() is None
    lowered = module.lower()
    assert lowered.stage is GraphStage.Mir and lowered.lower() is lowered
    assert lowered.as_graph() == module.into_graph() == Graph.from_hir(module.into_hir())
    assert lowered.into_hir() is None and lowered.into_lir() is None


def test_graph_module_builds_at_every_stage():
    module = GraphModule.hir("m")
    x, w = module.input("x", (2, 3)), module.param("w", (3, 2))
    y = module.linear(x, w)
    z = module.hir_mir(ops.Binary("add"), [y, y])
    module.finish_hir(z)
    assert module.as_hir().outputs == [z.id]
    module.set_hir_outputs([y])
    module.set_outputs([y, z])
    assert module.named("twice", lambda m: m.add(z, z)).node.name == "twice"
    assert GraphModule.block(module.as_hir(), "thrice", lambda m: m.add(z, y).id).node.name == "thrice"
    assert module.with_fusion_policy("fusable").fusion_policy is FusionPolicy.Fusable

    mir = GraphModule.mir("g")
    a = mir.input("a", (2, 2))
    b = mir.matmul(a, mir.param("b", (2, 2)))
    mir.set_outputs([b])
    assert mir.outputs == [b.id] and len(mir.nodes) == 3
    assert mir == GraphModule.from_graph(mir.as_graph()) == GraphModule.from_mir(mir.into_mir())


def test_graph_module_teaches_about_stages():
    hir, mir = GraphModule.hir("h"), GraphModule.mir("g")
    with pytest.raises(WrongStage, match=r"matmul belongs to graphs, but module @h is at stage hir; call lower\(\)"):
        _ = hir.matmul
    with pytest.raises(WrongStage, match="linear needs a module at stage hir, but @g is at mir"):
        _ = mir.linear
    with pytest.raises(WrongStage, match="with_fusion_policy needs"):
        mir.with_fusion_policy("direct")
    with pytest.raises(WrongStage):
        _ = mir.fusion_policy
    assert not hasattr(hir, "nodes") and hasattr(mir, "nodes") and not hasattr(mir, "no_such_thing")


def test_from_graph_knows_hir():
    m = small()
    assert GraphModule.from_graph(m).as_hir() is m and m.module().stage is GraphStage.Hir
    assert GraphModule.from_hir(m) == GraphModule.from_graph(m)
