"""The graph: building, reading, rewriting in place, identity, and the errors of misuse."""

import copy
import threading

import numpy as np
import pytest

import rlx
from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Input
from rlx.ir.provenance import NodeOrigin, node_label, stamp_pass_origins


def small_graph():
    g = Graph("small")
    x = g.input("x", ("B", 4), "f32")
    w = g.param("w", (4,), "f32")
    y = rlx.relu(x * w)
    g.set_outputs([y])
    return g


def test_reading():
    g = small_graph()
    assert len(g) == 4
    assert not g.is_empty()
    assert Graph("empty").is_empty()
    assert [n.op.mnemonic for n in g.nodes] == ["input", "param", "mul", "relu"]
    assert str(g.node(2).id) == "%2"
    assert g.shape(2) == rlx.Shape(("B", 4))
    assert g.users(0) == [NodeId(2)]
    assert g.use_count(2) == 1
    assert g.use_map() == [[2], [2], [3], []]
    assert list(g.topo_order()) == list(reversed(list(g.reverse_topo())))
    assert g.leaf("w").id == 1
    assert [n.op.key for n in g.inputs] == ["x"]
    assert [n.op.key for n in g.params] == ["w"]
    assert g.dynamic_symbols() == ("B",)
    assert g.bind({"B": 3}).shape(3) == rlx.Shape((3, 4))


def test_a_node_that_uses_a_value_twice_is_one_user():
    g = Graph()
    x = g.input("x", (2,))
    y = x * x
    assert g.users(x) == [y.id]
    assert g.use_count(x) == 1


def test_the_users_source_line_is_on_every_node():
    g = Graph()
    x = g.input("x", (2,))
    y = rlx.gelu(x + 1.0)
    for node in (x.node, y.node, g.nodes[2]):
        assert node.origin.source.file == __file__
    assert y.node.origin.source.line == x.node.origin.source.line + 1
    assert y.node.origin.source.function == "test_the_users_source_line_is_on_every_node"


def test_equality_is_structural():
    assert small_graph() == small_graph()
    other = small_graph()
    other.nodes[3].op = rlx.ops.Activation("gelu")
    assert other != small_graph()
    renamed = small_graph()
    renamed.name = "other"
    assert renamed != small_graph()
    assert small_graph().fingerprint() == small_graph().fingerprint()
    assert small_graph().fingerprint() != other.fingerprint()


def test_equality_ignores_where_leaves_are_declared():
    early, late = Graph(), Graph()
    for g, first in ((early, True), (late, False)):
        x = g.input("x", (2,))
        w = g.param("w", (2,)) if first else None
        y = rlx.exp(x)
        w = w if first else g.param("w", (2,))
        g.set_outputs([y * w])
    assert early == late
    assert early.fingerprint() == late.fingerprint()


def test_copies_are_independent():
    g = small_graph()
    for twin in (g.copy(), copy.copy(g), copy.deepcopy(g)):
        assert twin == g
        twin.input("more", (1,))
        assert twin != g
    assert len(g) == 4


def test_scalars_share_a_constant_but_types_do_not():
    g = Graph()
    x, h = g.input("x", (2,)), g.input("h", (2,), "f16")
    a, b = x * 2.0, x + 2.0
    c = h * 2.0
    assert a.node.inputs[1] == b.node.inputs[1] != c.node.inputs[1]
    assert c.dtype is rlx.DType.F16


def test_a_declared_shape_is_checked():
    g = Graph()
    x = g.input("x", ("B", 4))
    g.append_node(rlx.ops.Activation("exp"), [x], rlx.Shape(("B", 4)))
    with pytest.raises(ShapeError, match=r"exp: the declared output is f32\[B,5\], but inference gives f32\[B,4\]"):
        g.append_node(rlx.ops.Activation("exp"), [x], rlx.Shape(("B", 5)))
    # A size that only a run can tell becomes a constraint.
    g.append_node(rlx.ops.Activation("exp"), [x], rlx.Shape((3, 4)))
    assert [(str(c.left), c.right) for c in g.constraints] == [("B", 3)]


def test_errors_name_the_op_and_the_users_line():
    g = Graph()
    a, b = g.input("a", (2, 3)), g.input("b", (4,))
    with pytest.raises(ShapeError, match=r"add: \[2,3\] and \[4\] do not broadcast: 3 against 4") as caught:
        a + b
    assert f"at {__file__}:" in str(caught.value)


def test_misuse():
    g = small_graph()
    with pytest.raises(OpError, match="already has an input or param called 'w'"):
        g.input("w", (1,))
    with pytest.raises(OpError, match="has no node %9; it has 4 nodes"):
        g.node(9)
    with pytest.raises(OpError, match="has no input or param 'q'; it has: x, w"):
        g.leaf("q")
    with pytest.raises(OpError, match="relu: operand %7 does not exist"):
        g.append(rlx.ops.Activation("relu"), [7])
    with pytest.raises(OpError, match="mul: needs 2 operands, got 1"):
        g.append(rlx.ops.Binary("mul"), [0])
    with pytest.raises(OpError, match="is frozen"):
        g.freeze().input("late", (1,))


def test_values_of_other_graphs_are_refused():
    g, other = Graph("one"), Graph("two")
    x, y = g.input("x", (2,)), other.input("y", (2,))
    with pytest.raises(TraceError, match=r"is used in another program, @one"):
        x + y


def test_a_tensor_has_no_value():
    x = Graph().input("x", (2,))
    for use in (bool, int, float, np.asarray, lambda t: [1, 2][t]):
        with pytest.raises(TraceError, match="has no value while the program is being built"):
            use(x)


def test_aliases():
    g = Graph()
    cache, x = g.input("cache", (4,)), g.input("x", (4,))
    y = cache + x
    with pytest.raises(OpError, match="alias: needs an output"):
        g.alias(y, cache)
    g.set_outputs([y])
    g.alias(y, cache)
    assert g.aliases == {0: "cache"}
    assert "return %0 into %cache" in str(g)
    z = g.input("z", (5,))
    with pytest.raises(ShapeError, match="alias: the output is"):
        g.alias(y, z)


def test_rewiring_in_place():
    g = small_graph()
    extra = g.append(Input("x2", rlx.Shape(("B", 4))))
    g.set_inputs(3, [0])
    assert g.node(3).inputs == (0,)
    assert g.node_mut(3) is g.nodes_mut()[3]
    assert extra.id == 4


def test_attributes_are_checked_when_an_op_is_made():
    with pytest.raises(OpError, match="Cast: to='f33' is not valid: unknown dtype"):
        rlx.ops.Cast("f33")
    with pytest.raises(OpError, match="Cast needs the attribute 'to'"):
        rlx.ops.Cast()
    with pytest.raises(OpError, match="Cast has no attribute 'dtype'"):
        rlx.ops.Cast(dtype="f32")
    with pytest.raises(OpError, match="Activation: kind='nope' is not valid"):
        rlx.ops.Activation("nope")
    with pytest.raises(AttributeError, match="Cast is immutable"):
        rlx.ops.Cast("f32").to = "f16"


def test_ops_are_values():
    a, b = rlx.ops.Cast("f32"), rlx.ops.Cast("float32")
    assert a == b
    assert hash(a) == hash(b)
    assert a != rlx.ops.Cast("f16")
    assert a.replace(to="f16") == rlx.ops.Cast("f16")
    assert repr(a) == "Cast(to=DType.F32)"


def test_provenance():
    g = small_graph()
    g.nodes[2].origin = NodeOrigin.from_hir(5, "linear")
    g.nodes[3].origin = None
    stamp_pass_origins(g, "fuse")
    assert g.nodes[3].origin[:3] == (5, "linear", "fuse")
    assert str(g.nodes[3].origin) == 'hir=h5, "linear", pass=fuse'
    assert str(NodeOrigin()) == "—"
    assert node_label(g, 3) == "linear"
    assert node_label(g, 0) == "x"
    g.nodes[3].origin = NodeOrigin(hir=7)
    assert node_label(g, 3) == "h7"
    anonymous = Graph()
    y = -anonymous.input("x", (1,))
    assert node_label(anonymous, y.id) == "%1"


def test_graphs_are_built_in_threads_independently():
    graphs = [Graph(f"t{i}") for i in range(8)]

    def build(g):
        y = g.input("x", (2,))
        for _ in range(50):
            y = rlx.tanh(y * 2.0)
        g.set_outputs([y])

    threads = [threading.Thread(target=build, args=(g,)) for g in graphs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    first = graphs[0]
    for g in graphs[1:]:
        g.name = first.name
        assert g == first
