"""Shapes and the shape rules shared by ops; NumPy is the oracle where it has the rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import ParseError, ShapeError
from rlx.ir.dims import Dim, as_dim, collect_constraints
from rlx.ir.shape import (
    Shape,
    broadcast,
    broadcast_dims,
    compare_shape,
    concat_shape,
    conv2d_output_shape,
    conv_transpose2d_output_shape,
    gather_shape,
    leading_flatten_fused_shape,
    leading_flatten_shape,
    matmul_shape,
    narrow_shape,
    normalize_axes,
    normalize_axis,
    parse_shape,
    reduce_shape,
    reshape_shape,
    transpose_shape,
)

small_dims = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(small_dims, small_dims)
def test_broadcast_agrees_with_numpy(a, b):
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast_dims(a, b)
        return
    assert broadcast_dims(a, b) == expected


@given(small_dims, st.sampled_from(["f32", "i8", "bool"]))
def test_text_round_trip(dims, dtype):
    shape = Shape(dims, dtype)
    assert parse_shape(str(shape)) == shape
    assert shape.num_elements() == int(np.prod(dims))
    assert hash(parse_shape(str(shape))) == hash(shape)


def test_text_of_symbolic_shapes():
    shape = Shape(("B", "max(S, P)", "S//2 + 1"), "bf16")
    assert str(shape) == "bf16[B,max(P, S),floordiv(S, 2) + 1]"
    assert parse_shape(str(shape)) == shape
    assert shape.dynamic_symbols() == ("B", "P", "S")
    assert shape.num_elements() is None
    assert shape.size_bytes() is None
    assert shape.bind({"S": 4, "P": 2, "B": 3}) == Shape((3, 4, 3), "bf16")
    assert not shape.is_static
    with pytest.raises(ShapeError, match="symbolic dimension B where a fixed size is needed"):
        _ = shape.static_dims


@pytest.mark.parametrize("text", ["f32", "[4]", "f32[4", "f32[4]]"])
def test_broken_types_are_refused(text):
    with pytest.raises(ParseError, match=r"is not a type; write it like f32\[4,S\]"):
        parse_shape(text)


def test_symbolic_broadcast_records_what_must_hold():
    found = []
    with collect_constraints(found):
        assert broadcast_dims((as_dim("B"), 4), (3, 1), "add") == (3, 4)
        assert broadcast_dims((as_dim("B"),), (as_dim("S"),), "add") == (as_dim("B"),)
        assert broadcast_dims((as_dim("B"), 1), (as_dim("S"),), "add") == (as_dim("B"), as_dim("S"))
    assert [(str(c.left), str(c.right)) for c in found] == [("B", "3"), ("B", "S")]


def test_matmul():
    assert matmul_shape(Shape(("B", 1, 3, 4)), Shape((5, 4, 6), "f64")) == Shape(("B", 5, 3, 6), "f64")
    with pytest.raises(ShapeError, match="the inner sizes differ, 4 against 5"):
        matmul_shape(Shape((3, 4)), Shape((5, 6)))
    with pytest.raises(ShapeError, match="both operands need rank 2 or more"):
        matmul_shape(Shape((4,)), Shape((4, 6)))


def test_reductions_and_axes():
    assert reduce_shape(Shape((2, 3, 4)), (0, -1), False) == Shape((3,))
    assert reduce_shape(Shape((2, 3, 4)), (1,), True) == Shape((2, 1, 4))
    assert normalize_axis(-1, 3, "op") == 2
    with pytest.raises(ShapeError, match="axis 3 is out of range for rank 3"):
        normalize_axis(3, 3, "op")
    with pytest.raises(ShapeError, match="name one axis twice"):
        normalize_axes((0, -2), 2, "op")


def test_movement():
    assert transpose_shape(Shape((2, 3, 4)), (2, 0, 1)) == Shape((4, 2, 3))
    with pytest.raises(ShapeError, match="is not a permutation of the 2 axes"):
        transpose_shape(Shape((2, 3)), (0, 0))
    assert narrow_shape(Shape((5, 3)), 0, 2, 3) == Shape((2, 3))
    with pytest.raises(ShapeError, match=r"3\.\.6 exceeds axis 0"):
        narrow_shape(Shape((5, 3)), 0, 3, 3)
    s = Dim.symbol("S")
    assert concat_shape([Shape((s, 2)), Shape((3, 2)), Shape((s, 2))], 0) == Shape((2 * s + 3, 2))
    with pytest.raises(ShapeError, match="differ on axis 1"):
        concat_shape([Shape((2, 2)), Shape((2, 3))], 0)
    assert gather_shape(Shape((2, 7, 4)), Shape(("N", 3), "i32"), 1) == Shape((2, "N", 3, 4))
    assert compare_shape(Shape((2, 1)), Shape((3,))) == Shape((2, 3), "bool")
    assert broadcast(Shape((2, 1), "f16"), Shape((3,), "bf16")) == Shape((2, 3), "f32")


def test_reshape():
    s = Dim.symbol("S")
    assert reshape_shape(Shape((6, 4)), (-1, 8)) == Shape((3, 8))
    assert reshape_shape(Shape(("B", s, 4)), (-1, 4)) == Shape(("B*S", 4))
    assert reshape_shape(Shape(("B", s, 8)), ("B", s, 2, 4)) == Shape(("B", s, 2, 4))
    with pytest.raises(ShapeError, match=r"has 24 elements, the new shape \[5,5\] has 25"):
        reshape_shape(Shape((6, 4)), (5, 5))
    with pytest.raises(ShapeError, match="does not divide"):
        reshape_shape(Shape((6, 4)), (-1, 5))
    with pytest.raises(ShapeError, match="only one -1"):
        reshape_shape(Shape((6, 4)), (-1, -1))
    found = []
    with collect_constraints(found):
        assert reshape_shape(Shape((s, 4)), (8, 3)) == Shape((8, 3))
    assert [(str(c.left), c.right) for c in found] == [("4*S", 24)]
    assert leading_flatten_fused_shape(Shape(("B", "S", 8))) == Shape(("B*S", 8))
    assert leading_flatten_shape(Shape(("B", "S", 8)), (-1, 8)) == Shape(("B*S", 8))
    assert leading_flatten_shape(Shape((2, 3, 8)), (12, 4)) is None


def test_convolutions():
    x, w = Shape(("N", 4, 9, 8)), Shape((6, 2, 3, 3))
    assert conv2d_output_shape(x, w, (2, 1), (1, 0), (1, 2), 2) == Shape(("N", 6, 5, 4))
    with pytest.raises(ShapeError, match=r"x has 4 channels, w expects 2\*1"):
        conv2d_output_shape(x, w, (1, 1), (0, 0), (1, 1), 1)
    with pytest.raises(ShapeError, match="does not fit into"):
        conv2d_output_shape(Shape((1, 2, 2, 2)), w, (1, 1), (0, 0), (1, 1), 1)
    t = conv_transpose2d_output_shape(Shape((1, 4, 5, 5)), Shape((4, 3, 3, 3)), (2, 2), (1, 1), (1, 1), (1, 1), 2)
    assert t == Shape((1, 6, 10, 10))
