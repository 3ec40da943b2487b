"""The text of programs: what it looks like, the law `show(parse(t)) == t`, and errors with line numbers."""

import numpy as np
import pytest

import rlx
from rlx.errors import ParseError
from rlx.ir.graph import Graph
from rlx.ir.text.graph_text import large_constants, parse, parse_value, show, show_value

PROGRAM = """mir @layer(%x: f32[B,4], %"blk.0/w": f32[4] {param}) {
  %0: f32[] = constant() {value=2.0}
  %1: f32[B,4] = mul(%x, %0)
  %2: f32[B,4] = add(%1, %"blk.0/w")
  %3: f16[B,4] = cast(%2) {to=f16}
  return %3, %x
}
"""


def test_the_printed_form():
    g = Graph("layer")
    x, w = g.input("x", ("B", 4)), g.param("blk.0/w", (4,))
    g.set_outputs([(x * 2.0 + w).astype("f16"), x])
    assert str(g) == PROGRAM
    assert parse(PROGRAM) == g
    assert show(parse(PROGRAM)) == PROGRAM


def test_layout_and_comments_do_not_matter():
    loose = PROGRAM.replace("\n", "  # a comment\n").replace(", ", " ,\n   ")
    assert parse(loose) == parse(PROGRAM)


def test_locations_are_comments_outside_the_law():
    g = Graph()
    g.set_outputs([-g.input("x", (2,))])
    text = show(g, locations=True)
    assert "# test_text.py:" in text
    assert parse(text) == g


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.float32(1e-45),
        np.float32(3.4028235e38),
        np.array([-0.0, 0.0, np.inf, -np.inf, np.nan], "f4"),
        np.array([1 / 3, 1e300, 5e-324]),
        np.array([[1, -2], [3, 4]], "i8"),
        np.array([2**63, 2**64 - 1], "u8").astype("u8"),
        np.array([2**64 - 1], np.uint64),
        np.array([True, False]),
        np.array([1 + 2j, complex("nan"), -0.0j], "c8"),
        np.array([0.1, 65504.0], "f2"),
        np.array([1.5, 3e38]).astype(rlx.DType.BF16.numpy),
        np.array([1.0, 448.0]).astype(rlx.DType.F8E4M3.numpy),
        np.array([-8, 7]).astype(rlx.DType.I4.numpy),
        np.zeros((0, 3), "f4"),
        np.zeros((2, 0), "i4"),
        np.arange(100.0),
        np.array(0x7FC12345, np.uint32).view("f4"),
    ],
    ids=lambda v: f"{v.dtype}-{v.shape}-{v.tobytes().hex()[:12]}",
)
def test_constants_survive_to_the_bit(value):
    g = Graph()
    g.set_outputs([g.constant(value)])
    again = parse(show(g), large_constants(g))
    assert again == g
    assert again.nodes[0].op.value.array.tobytes() == np.asarray(value).tobytes()


def test_large_constants_live_in_a_side_table():
    g = Graph()
    g.set_outputs([g.constant(np.arange(100.0))])
    digest = g.nodes[0].op.value.digest
    assert f'data="{digest}"' in str(g)
    assert list(large_constants(g)) == [digest]
    with pytest.raises(ParseError, match=rf"line 2: the values of constant {digest} are missing"):
        parse(str(g))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -7,
        1.5,
        -0.0,
        float("inf"),
        float("-inf"),
        1e-300,
        'a "quoted" \n text',
        b"\x00\xff",
        rlx.DType.BF16,
        rlx.Shape(("B", 4), "i8"),
        rlx.Dim.symbol("S") + 1,
        (),
        (1,),
        (1, (2.0, "x"), rlx.DType.F32),
    ],
    ids=repr,
)
def test_attribute_values_round_trip(value):
    again = parse_value(show_value(value))
    assert again == value
    assert type(again) is type(value)
    assert show_value(again) == show_value(value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("mir @", "lower @"), r"line 1: a program starts with one of mir.*got 'lower'"),
        (("f32[B,4] = mul", "f32[B,5] = mul"), r"line 3: %1 is written f32\[B,5\], but mul infers f32\[B,4\]"),
        (("= mul(", "= mulx("), r"line 3: unknown op 'mulx'"),
        (("mul(%x, %0)", "mul(%x, %9)"), r"line 3: %9 is used before it is defined"),
        (("mul(%x, %0)", "mul(%y, %0)"), r"line 3: %y is used before it is defined"),
        (("mul(%x, %0)", "mul(%x)"), r"line 3: mul: needs 2 operands, got 1"),
        (("%1: f32", "%5: f32"), r"line 3: nodes are numbered in order: expected %1, got %5"),
        (("{to=f16}", "{to=f99}"), r"line 5: Cast: to=f99 is not valid"),
        (("{to=f16}", "{}"), r"line 5: Cast needs the attribute 'to'"),
        (("{to=f16}", "{to=f16, more=1}"), r"line 5: Cast has no attribute 'more'"),
        (("{value=2.0}", "{value=[2.0, 3.0]}"), r"line 2: the value does not have the type f32\[\]"),
        (("f32[4] {param}", "f32[4 {param}"), r"line 1: "),
        (("return %3, %x\n}", "return %3, %x"), r"line 1: '{' is not closed; '}' is missing"),
        (("%x\n}", "%x\n} extra"), r"line 7: expected the end of the program, got 'extra'"),
        (("%x: f32", "%x: g32"), r"line 1: unknown dtype 'g32'"),
        (("(%x: f32[B,4],", "(%x: f32[B,4], %x: f32[B,4],"), r"line 1: graph @layer already has an input"),
        (("cast(%2)", "cast(%2) $"), r"line 5: unexpected character '\$'"),
        (("return %3, %x", "return %3 into %q"), r"line 7: graph @layer has no input or param 'q'"),
    ],
)
def test_broken_text_is_refused_with_its_line(edit, message):
    broken = PROGRAM.replace(*edit)
    assert broken != PROGRAM
    with pytest.raises(ParseError, match=message):
        parse(broken)


@pytest.mark.parametrize("cut", range(0, len(PROGRAM) - 2, 7))
def test_text_cut_anywhere_is_refused(cut):
    with pytest.raises(ParseError, match="line "):
        parse(PROGRAM[:cut])
