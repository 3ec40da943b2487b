"""Random programs: gradients against differences, batches against loops, and both together."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import random_graphs
import rlx
from random_graphs import BINDING, STEPS, floats, graphs, inputs_for, same_type
from rlx import autodiff, ops
from rlx.autodiff import GradWithLossOptions
from rlx.ir.binding import bind_graph
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all

RUN = settings(max_examples=40)


def smooth_unary(draw, values):
    x = draw(st.sampled_from(floats(values)))
    return ops.activation(draw(st.sampled_from(["tanh", "neg", "sigmoid", "sin", "gelu", "erf"])), x)


def smooth_binary(draw, values):
    x = draw(st.sampled_from(floats(values)))
    partners = same_type(values, x) + [v for v in floats(values) if v.ndim == 0]
    return ops.binary(draw(st.sampled_from(["add", "sub", "mul"])), x, draw(st.sampled_from(partners)))


def smooth_reduce(draw, values):
    x = draw(st.sampled_from(random_graphs.ranked(values)))
    return ops.Reduce(draw(st.sampled_from(["sum", "mean"])), (draw(st.integers(0, x.ndim - 1)),), draw(st.booleans()))(
        x
    )


def loop(draw, values):
    """A scan over the rows of a value, with itself as what every step reads."""
    x = draw(st.sampled_from([v for v in random_graphs.ranked(values) if v.shape[0] in (1, 2, 3)]))
    return rlx.scan(lambda c, row: (ops.tanh(c * row), c + x[0]), x[0], x, reverse=draw(st.booleans()))[1]


def branch(draw, values):
    x = draw(st.sampled_from(floats(values)))
    return rlx.cond(ops.reduce_sum(x) > 0, ops.sin, lambda v: v * v, x)


MOVES = ("softmax", "cumsum", "transpose", "flatten", "expand", "concat", "reverse", "gram")
SMOOTH = (
    (smooth_unary, floats),
    (smooth_unary, floats),
    (smooth_binary, floats),
    (smooth_binary, floats),
    (smooth_reduce, random_graphs.ranked),
    (branch, floats),
    (loop, lambda values: [v for v in random_graphs.ranked(values) if v.shape[0] in (1, 2, 3)]),
    *(step for step in STEPS if step[0].__name__ in MOVES),
)


def scalar_graph(graph):
    """One output: a weighted sum of all outputs, with the symbols bound."""
    graph = bind_graph(graph, BINDING).copy()
    total = sum(ops.reduce_sum(ops.sin(graph.tensor(o))) for o in graph.outputs)
    graph.set_outputs([total])
    return graph


def leaves_of(graph):
    return [n.op.key for n in graph.nodes if n.is_leaf]


@RUN
@given(graphs(steps=SMOOTH, dtypes=("f64",), max_nodes=10), st.integers(0, 100))
def test_gradients_are_directional_derivatives(graph, seed):
    graph = scalar_graph(graph)
    values = {k: v / 2 for k, v in inputs_for(graph, seed).items()}
    keys = leaves_of(graph)
    backward = autodiff.grad_with_loss_opts(graph, keys, GradWithLossOptions.TRAINING, seed=None)
    assert verify_all(backward) == []
    gradients = interpret(backward, values)[1:]
    rng = np.random.default_rng(seed)
    directions = {k: rng.normal(size=v.shape) for k, v in values.items()}
    slope = sum(np.sum(g * directions[k]) for k, g in zip(keys, gradients))

    def at(h):
        return float(interpret(graph, {k: v + h * directions[k] for k, v in values.items()})[0])

    coarse, fine = (at(1e-3) - at(-1e-3)) / 2e-3, (at(5e-4) - at(-5e-4)) / 1e-3
    scale = 1 + sum(np.abs(g * directions[k]).sum() for k, g in zip(keys, gradients))
    # Where two step sizes disagree, a branch was crossed and there is nothing to compare.
    if abs(coarse - fine) < 1e-4 * scale:
        assert abs(slope - (4 * fine - coarse) / 3) < 1e-6 * scale
    tangents = autodiff.jvp(graph, keys)
    pushed = interpret(tangents, values | {f"tangent_{k}": d for k, d in directions.items()})[1]
    assert abs(slope - float(pushed)) < 1e-9 * scale


@RUN
@given(graphs(), st.data())
def test_batches_are_loops(graph, data):
    graph = bind_graph(graph, BINDING)
    keys = leaves_of(graph)
    chosen = data.draw(st.lists(st.sampled_from(keys), unique=True, min_size=1))
    rows = [inputs_for(graph, seed) for seed in range(3)]
    shared = {k: v for k, v in rows[0].items() if k not in chosen}
    batched = autodiff.vmap(graph, chosen, 3)
    assert verify_all(batched) == []
    with np.errstate(all="ignore"):
        results = interpret(batched, shared | {k: np.stack([r[k] for r in rows]) for k in chosen})
        expected = [interpret(graph, r | shared) for r in rows]
    for i, result in enumerate(results):
        for row, wanted in zip(result, expected):
            assert row.dtype == wanted[i].dtype
            # The same ops in the same order, except that a reduction may run along another axis.
            tolerance = 1e-2 if row.dtype.itemsize < 4 else 1e-5
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(
                    row.astype(np.float64), wanted[i].astype(np.float64), rtol=tolerance, atol=tolerance
                )


@RUN
@given(graphs(steps=SMOOTH, dtypes=("f64",), max_nodes=8), st.data())
def test_per_example_gradients_are_a_loop_of_gradients(graph, data):
    graph = scalar_graph(graph)
    keys = leaves_of(graph)
    chosen = data.draw(st.lists(st.sampled_from(keys), unique=True, min_size=1))
    backward = autodiff.grad_with_loss_opts(graph, keys, GradWithLossOptions.TRAINING, seed=None)
    rows = [inputs_for(graph, seed) for seed in range(2)]
    shared = {k: v for k, v in rows[0].items() if k not in chosen}
    batched = autodiff.vmap(backward, chosen, 2)
    results = interpret(batched, shared | {k: np.stack([r[k] for r in rows]) for k in chosen})
    for s, row in enumerate(rows):
        for got, wanted in zip(results, interpret(backward, row | shared), strict=True):
            np.testing.assert_allclose(got[s], wanted, rtol=1e-9, atol=1e-9 * (1 + np.abs(wanted).max(initial=0)))


@RUN
@given(graphs(steps=SMOOTH, dtypes=("f64",), max_nodes=6), st.integers(0, 100))
def test_hessians_are_symmetric(graph, seed):
    """Forward over reverse along v, contracted with u, is the same with u and v exchanged."""
    graph = scalar_graph(graph)
    values = {k: v / 2 for k, v in inputs_for(graph, seed).items()}
    keys = leaves_of(graph)
    backward = autodiff.grad_with_loss_opts(graph, keys, GradWithLossOptions.TRAINING, seed=None)
    second = autodiff.jvp(backward, keys)
    rng = np.random.default_rng(seed)
    u, v = ({k: rng.normal(size=x.shape) for k, x in values.items()} for _ in range(2))

    def product(a, b):
        pushed = interpret(second, values | {f"tangent_{k}": t for k, t in a.items()})[-len(keys) :]
        terms = [p * b[k] for k, p in zip(keys, pushed)]
        return sum(t.sum() for t in terms), sum(np.abs(t).sum() for t in terms)

    (left, size), (right, _) = product(u, v), product(v, u)
    assert abs(left - right) <= 1e-9 * (1 + size)
