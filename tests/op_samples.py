"""The samples that every op brings, for tests that are made from the registry of ops."""

from __future__ import annotations

import functools

import rlx.ops
import rlx.sparse  # noqa: F401  (both fill the registry)
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES

# Ops without samples of their own: leaves, and the projection that every op with several results uses.
LEAVES = {"Input", "Param", "Constant", "Project"}


@functools.cache
def samples_of(name):
    return list(OP_CLASSES[name].samples())


def applied(op, shapes):
    """A graph that applies `op` to one input per type and returns all results."""
    graph = Graph("sample")
    result = graph.append_node(op, [graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)])
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph


def sample_graph(sample, dtype):
    """The op of a sample on operands of its types; sizes stay symbolic."""
    return applied(sample.op, sample.shapes(dtype))
