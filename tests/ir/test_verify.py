"""The verifier finds what the builders would have refused: graphs broken by hand."""

import pytest

import rlx
from rlx.errors import VerificationError
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Input
from rlx.ir.verify import check, debug_assert_valid, infer_output_shape, verify, verify_all, verify_shapes


def sound():
    g = Graph("g")
    x, w = g.input("x", ("B", 4)), g.param("w", (4,))
    g.set_outputs([rlx.exp(x * w)])
    return g


def test_a_sound_graph_has_no_findings():
    assert verify_all(sound()) == []
    check(sound())
    debug_assert_valid(sound(), "test")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: g.set_inputs(2, [0, 3]), r"%2: operand %3 is not defined before it is used \(not a DAG\)"),
        (lambda g: g.set_inputs(2, [2, 1]), r"%2: operand %2 is not defined before it is used"),
        (lambda g: g.set_inputs(2, [0, 9]), r"%2: operand %9 does not exist"),
        (lambda g: g.set_inputs(2, [0]), r"%2: mul has 1 operands"),
        (lambda g: g.outputs.append(NodeId(8)), r"output %8 does not exist"),
        (lambda g: g.nodes.reverse(), r"stands at position"),
        (lambda g: setattr(g.nodes[1], "op", Input("x", rlx.Shape((4,)))), r"the name 'x' is used by two"),
        (lambda g: g.aliases.update({3: "x"}), r"alias of output 3 to 'x': no such output"),
        (
            lambda g: setattr(g.nodes[2], "shapes", (rlx.Shape(("B", 5)),)),
            r"%2: mul infers f32\[B,4\], the node declares",
        ),
        (lambda g: setattr(g.nodes[3], "op", rlx.ops.Binary("and")), r"%3: and has 1 operands"),
        (lambda g: setattr(g.nodes[2], "op", rlx.ops.Binary("and")), r"%2: and: needs integer or bool operands"),
    ],
)
def test_findings(damage, message):
    g = sound()
    damage(g)
    with pytest.raises(VerificationError, match=message):
        check(g, "some pass")


def test_all_findings_are_reported_with_the_stage():
    g = sound()
    g.set_inputs(2, [0])
    g.outputs.append(NodeId(8))
    assert len(verify(g)) == 2
    with pytest.raises(VerificationError, match=r"graph @g is not valid after some pass:\n  %2.*\n  output %8"):
        check(g, "some pass")


def test_scalars_and_single_elements_are_compatible():
    g = sound()
    g.nodes[3].shapes = (rlx.Shape((2, 4)),)
    assert verify_shapes(g) == []  # B may be 2
    one = Graph()
    y = -one.input("x", ())
    one.nodes[y.id].shapes = (rlx.Shape((1,)),)
    assert verify_shapes(one) == []


def test_inferred_shape_of_a_node():
    g = sound()
    assert infer_output_shape(g, g.nodes[0]) is None
    assert infer_output_shape(g, g.nodes[2]) == rlx.Shape(("B", 4))
