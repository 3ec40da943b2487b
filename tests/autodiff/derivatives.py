"""Derivatives and batches of functions written with ops, run by the reference interpreter."""

import numpy as np

from rlx.autodiff.batching import batch_graph
from rlx.autodiff.graphs import GradWithLossOptions, copy_leaves, grad_with_loss_opts, jvp
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building
from rlx.ops.define.rules import mapped_axis, put_batch_first


def graph_of(function, *arrays):
    """`function` recorded on inputs x0, x1, .. like `arrays`."""
    graph = Graph("function")
    result = function(*(graph.input(f"x{i}", np.shape(a), np.asarray(a).dtype) for i, a in enumerate(arrays)))
    graph.set_outputs(result if isinstance(result, tuple | list) else [result])
    return graph


def named(arrays, prefix="x"):
    return {f"{prefix}{i}": np.asarray(a) for i, a in enumerate(arrays)}


def gradients(function, arrays, ct, wrt=None):
    """The cotangents of the arrays (or of those numbered in `wrt`) for the cotangent `ct` of the first result."""
    keys = [f"x{i}" for i in (range(len(arrays)) if wrt is None else wrt)]
    backward = grad_with_loss_opts(graph_of(function, *arrays), keys, GradWithLossOptions.TRAINING)
    return interpret(backward, named(arrays) | {"d_output": np.asarray(ct)})[-len(keys) :]


def tangent(function, arrays, directions):
    """The tangent of the only result; `directions` has None for arrays that do not move."""
    moving = {f"x{i}": d for i, d in enumerate(directions) if d is not None}
    forward = jvp(graph_of(function, *arrays), list(moving))
    return interpret(forward, named(arrays) | {f"tangent_{k}": np.asarray(d) for k, d in moving.items()})[-1]


def mapped_graph(function, arrays, flags, axis_name=None):
    """The graph of `function` over axis 0 of the arrays whose flag is set."""
    size = next(len(a) for a, flag in zip(arrays, flags) if flag)
    graph = graph_of(function, *(a[0] if flag else a for a, flag in zip(arrays, flags)))
    new = Graph("mapped")
    with building(new):
        changed = {n.id: n.shape.with_dims(a.shape) for n, a in zip(graph.inputs, arrays)}
        leaves = copy_leaves(graph, new, changed)
        chosen = [n.id for n, flag in zip(graph.inputs, flags) if flag]
        with mapped_axis(axis_name):
            outputs, batched = batch_graph(graph, leaves, chosen, size, axis_name)
            new.set_outputs([put_batch_first(o, b, size) for o, b in zip(outputs, batched)])
    return new


def mapped(function, arrays, flags=None, axis_name=None):
    """The results of `function` over axis 0 of the arrays whose flag is set (all by default)."""
    arrays = [np.asarray(a) for a in arrays]
    results = interpret(mapped_graph(function, arrays, flags or [True] * len(arrays), axis_name), named(arrays))
    return results[0] if len(results) == 1 else results


def difference(function, arrays, directions, step=1e-6):
    """The central difference of a NumPy function along `directions`."""
    up, down = (
        function(*(a if d is None else a + sign * step * d for a, d in zip(arrays, directions))) for sign in (1, -1)
    )
    return (np.asarray(up) - np.asarray(down)) / (2 * step)
