"""Index maps against NumPy: any chain of views of a buffer is strides and an offset, or is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.compile.fuse.index_maps import Unmappable, exact_quotient, layout, reshape_map, spread, through, without_ones
from rlx.compile.fuse.loop_nest import Nest, points_of
from rlx.ir.dims import as_dim
from rlx.ir.interpret import interpret


@st.composite
def view_chains(draw):
    """A graph that is one input and a chain of views of it."""
    graph = rlx.Graph("views")
    x = graph.input("x", draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)), "i32")
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["transpose", "narrow", "slice", "reverse", "expand", "split", "join", "ones"]))
        axis = draw(st.integers(0, x.ndim - 1))
        length = x.shape[axis]
        if kind == "transpose":
            x = ops.transpose(x, draw(st.permutations(range(x.ndim))))
        elif kind == "narrow":
            start = draw(st.integers(0, length - 1))
            x = ops.narrow(x, axis, start, draw(st.integers(1, length - start)))
        elif kind == "slice":
            limits = list(x.shape)
            x = ops.slice_(x, [0] * x.ndim, limits, [2 if a == axis else 1 for a in range(x.ndim)])
        elif kind == "reverse":
            x = ops.reverse(x, (axis,))
        elif kind == "expand" and x.ndim < 5:
            x = ops.expand(x, (draw(st.integers(1, 3)), *x.shape))
        elif kind == "split":
            inner = draw(st.sampled_from([d for d in (1, 2, 3) if length % d == 0]))
            x = ops.reshape(x, (*x.shape[:axis], length // inner, inner, *x.shape[axis + 1 :]))
        elif kind == "join" and axis + 1 < x.ndim:
            x = ops.reshape(x, (*x.shape[:axis], length * x.shape[axis + 1], *x.shape[axis + 2 :]))
        elif kind == "ones":
            x = ops.expand_dims(x, axis)
    graph.set_outputs([x])
    return graph


@settings(max_examples=150)
@given(view_chains())
def test_a_chain_of_views_is_strides_and_an_offset(graph):
    (root,) = graph.outputs
    covered = {n.id for n in graph.nodes if n.inputs}
    source = np.arange(int(np.prod(graph.nodes[0].shape.static_dims)), dtype="i4")
    wanted = interpret(graph, [source.reshape(graph.nodes[0].shape.static_dims)])[0]
    if not covered:
        return
    try:
        points = points_of(graph, covered, (), [root])
    except Unmappable as failure:
        # Only a reshape of elements that do not lie in order can fail.
        assert failure.view is not None and graph.nodes[failure.view].op.mnemonic == "reshape"
        return
    point = points.points[points.roots[0]]
    assert point.node.id == 0
    place = layout(point.dims, point.maps, len(points.nest.sizes))
    offsets = sum(
        (i * s for i, s in zip(np.indices(points.nest.sizes), place.strides)), np.full(points.nest.sizes, place.offset)
    )
    np.testing.assert_array_equal(source[offsets].reshape(wanted.shape), wanted)


def test_a_reshape_of_a_transpose_splits_the_axis_that_runs_over_two():
    g = rlx.Graph()
    x = g.input("x", ("B", "S", 64))
    heads = ops.transpose(ops.reshape(x, ("B", "S", 4, 16)), (0, 2, 1, 3))
    rows = ops.reshape(heads, ("B", 4, "S*16"))
    points = points_of(g, {n.id for n in g.nodes if n.inputs}, (), [rows.id])
    assert [str(s) for s in points.nest.sizes] == ["B", "4", "S", "16"]
    place = layout(points.points[0].dims, points.points[0].maps, 4)
    assert [str(s) for s in place.strides] == ["64*S", "16", "64", "1"]


def test_a_reshape_that_no_split_helps_is_refused():
    with pytest.raises(Unmappable) as refused:
        reshape_map((3, 2), (2, 3), spread((2, 3), (2, 3)), (2, 3))
    assert refused.value.split is None
    with pytest.raises(Unmappable) as helped:
        reshape_map((2, 3), (6,), spread((6,), (6,)), (6,))
    assert helped.value.split == (0, 3)


def test_symbolic_sizes_are_compared_as_symbols():
    b, s = as_dim("B"), as_dim("S")
    assert exact_quotient(b * s * 4, s * 2) == 2 * b
    assert exact_quotient(b * 4, s) is None
    assert exact_quotient(0, s) is None and exact_quotient(s, 0) is None
    assert spread((b * s, 1, 4), (b, s, 4)) is not None
    assert spread((b, 4), (4, b)) is None
    assert without_ones((1, b, 1)) == (b,)


def test_rows_and_joined_axes_of_a_nest():
    nest = Nest((as_dim("B"), 6, 8), (False, False, True))
    assert nest.rows == (0, 1)
    finer = nest.refined((as_dim("B"), 2, 3))
    assert finer == Nest((as_dim("B"), 2, 3, 8), (False, False, False, True))
    assert finer.refined((as_dim("B") * 6, 4, 2)) == Nest((as_dim("B"), 2, 3, 4, 2), (False, False, False, True, True))
    assert nest.refined((5,)) is None
    assert nest.per_row((as_dim("B"), 6, 1)) is not None and nest.full((as_dim("B"), 6, 1)) is None


def test_views_of_nothing():
    g = rlx.Graph()
    x = g.input("x", (0, 4))
    y = ops.reshape(x, (2, 0, 3))
    assert through(g, y.node, spread((2, 0, 3), (2, 0, 3)), (2, 0, 3)) is not None
    points_of(g, {y.id}, (), [y.id])
