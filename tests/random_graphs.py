"""Random typed graphs for property tests: `graphs()` is a Hypothesis strategy, `inputs_for(graph)` gives values.

Every step applies one op from a table to values that fit it, so each graph is valid by construction. Sizes are small
and some are symbolic; dtypes are mixed. Other test files reuse this generator; add ops to `STEPS`.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.tensor import building

BINDING = {"B": 3, "S": 2}
DTYPES = ("f32", "f32", "f64", "f16", "bf16", "i32", "bool")
DIMS = (1, 2, 3, "B", "S")


def floats(values):
    return [v for v in values if v.dtype.is_float]


def numbers(values):
    return [v for v in values if v.dtype.is_float or v.dtype.is_int]


def ranked(values, rank=1):
    return [v for v in values if v.ndim >= rank]


def same_type(values, x):
    return [v for v in values if v.type == x.type]


def unary(draw, values):
    x = draw(st.sampled_from(floats(values)))
    return ops.activation(draw(st.sampled_from(["tanh", "neg", "abs", "sigmoid", "sin", "relu", "gelu", "erf"])), x)


def binary(draw, values):
    x = draw(st.sampled_from(numbers(values)))
    # A partner that broadcasts for certain: the same type, a row of it, or a scalar.
    partners = same_type(values, x) + [v for v in numbers(values) if v.ndim == 0]
    y = draw(st.sampled_from(partners) | st.just(2))
    return ops.binary(draw(st.sampled_from(["add", "sub", "mul", "max", "min"])), x, y)


def compare(draw, values):
    x = draw(st.sampled_from(numbers(values)))
    return ops.compare(draw(st.sampled_from(["lt", "ge", "eq"])), x, draw(st.sampled_from(same_type(values, x))))


def select(draw, values):
    x = draw(st.sampled_from(numbers(values)))
    y = draw(st.sampled_from(same_type(values, x)))
    return ops.where(ops.gt(x, y), x, y)


def cast(draw, values):
    return ops.cast(draw(st.sampled_from(values)), draw(st.sampled_from(["f32", "f64", "i32", "f16"])))


def reduce(draw, values):
    x = draw(st.sampled_from(ranked(numbers(values))))
    axis = draw(st.integers(0, x.ndim - 1))
    kind = draw(st.sampled_from(["sum", "max", "min", "mean"] if x.dtype.is_float else ["sum", "max", "min"]))
    return ops.Reduce(kind, (axis,), draw(st.booleans()))(x)


def softmax(draw, values):
    x = draw(st.sampled_from(ranked(floats(values))))
    return ops.softmax(x, draw(st.integers(-1, x.ndim - 1)))


def cumsum(draw, values):
    x = draw(st.sampled_from(ranked(floats(values))))
    return ops.cumsum(x, draw(st.integers(0, x.ndim - 1)))


def transpose(draw, values):
    x = draw(st.sampled_from(values))
    return ops.transpose(x, tuple(draw(st.permutations(range(x.ndim)))))


def flatten(draw, values):
    x = draw(st.sampled_from(ranked(values)))
    return ops.reshape(x, (-1,)) if all(d != 0 for d in x.shape) else x


def expand(draw, values):
    x = draw(st.sampled_from([v for v in values if v.ndim < 3]))
    size = draw(st.sampled_from(DIMS))
    return ops.expand(x, (Dim.symbol(size) if isinstance(size, str) else size, *x.shape))


def concat(draw, values):
    x = draw(st.sampled_from(ranked(values)))
    return ops.concat([x, x], draw(st.integers(0, x.ndim - 1)))


def reverse(draw, values):
    x = draw(st.sampled_from(ranked(values)))
    return ops.reverse(x, (draw(st.integers(0, x.ndim - 1)),))


def gram(draw, values):
    x = draw(st.sampled_from(ranked(floats(values), 2)))
    swapped = ops.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))
    return ops.matmul(x, swapped)


STEPS = (
    (unary, floats),
    (unary, floats),
    (binary, numbers),
    (binary, numbers),
    (compare, numbers),
    (select, numbers),
    (cast, list),
    (reduce, lambda v: ranked(numbers(v))),
    (softmax, lambda v: ranked(floats(v))),
    (cumsum, lambda v: ranked(floats(v))),
    (transpose, list),
    (flatten, ranked),
    (expand, lambda v: [x for x in v if x.ndim < 3]),
    (concat, ranked),
    (reverse, ranked),
    (gram, lambda v: ranked(floats(v), 2)),
)


@st.composite
def graphs(draw, max_nodes=12, steps=STEPS, dtypes=DTYPES):
    """A valid random graph with one to three outputs."""
    graph = Graph("random")
    with building(graph):
        values = []
        for i in range(draw(st.integers(1, 3))):
            dims = draw(st.lists(st.sampled_from(DIMS), max_size=3))
            make = graph.param if i and draw(st.booleans()) else graph.input
            values.append(make(f"x{i}", dims, draw(st.sampled_from(dtypes))))
        for _ in range(draw(st.integers(1, max_nodes))):
            step, fitting = draw(st.sampled_from(steps))
            if fitting(values):
                result = step(draw, values)
                if result.ndim <= 4 and len(graph) < 200:
                    values.append(result)
    graph.set_outputs(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return graph


def inputs_for(graph, seed=0):
    """Values for the leaves of a random graph, with the symbols at `BINDING`."""
    rng = np.random.default_rng(seed)
    values = {}
    for node in graph.nodes:
        if node.is_leaf:
            shape = node.shape.bind(BINDING)
            values[node.op.key] = rng.uniform(-2, 2, shape.dims).astype(shape.dtype.numpy)
            if shape.dtype is rlx.DType.BOOL:
                values[node.op.key] = rng.integers(0, 2, shape.dims).astype(bool)
    return values
