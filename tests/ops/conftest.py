"""Shared by the tests of functional constructors: the same function on arrays and in a graph."""

import numpy as np
import pytest

import rlx.ops  # noqa: F401  (gives tensors their methods)
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all


def run_traced(function, *arrays, dims=None):
    """The value of `function` recorded in a graph on inputs like `arrays`; `dims` gives symbolic dims to some."""
    graph = Graph("traced")
    names = dims or [None] * len(arrays)
    inputs = [graph.input(f"x{i}", d or a.shape, a.dtype) for i, (a, d) in enumerate(zip(arrays, names, strict=True))]
    result = function(*inputs)
    several = isinstance(result, tuple | list)
    graph.set_outputs(result if several else [result])
    assert verify_all(graph) == []
    values = interpret(graph, list(arrays))
    return values if several else values[0]


def run_both(function, *arrays, dims=None):
    """The value of `function` on arrays; a graph (with symbolic dims, if given) must compute the same."""
    eager = function(*arrays)
    traced = run_traced(function, *arrays, dims=dims)
    for a, b in zip(*((v if isinstance(v, tuple | list) else [v]) for v in (eager, traced)), strict=True):
        assert np.asarray(a).dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12, atol=1e-12)
    return eager


@pytest.fixture
def traced():
    return run_traced


@pytest.fixture
def both():
    return run_both
