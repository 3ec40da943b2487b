"""The reference meaning of a graph: `eval` of every node, in order. Simple, complete, never optimised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import BindingError, InternalError, OutOfMemory, RlxError
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.graph import Graph, Node
from rlx.ir.index_checks import check_ids, id_checks
from rlx.ir.leaves import Input, Param
from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]

# More than any machine can address; NumPy has errors of several kinds for such arrays. Definitions take twice as much.
_LARGEST_BYTES = 1 << 57

_LEAVES = (Input, Param)


def interpret(
    graph: Graph,
    leaves: Sequence[Array] | Mapping[str, Array],
    binding: Mapping[str, int] | None = None,
    outside: bool = True,
) -> list[Array]:
    """The outputs of `graph` for the given leaves: by name, or positionally for the Inputs in declaration order.

    Symbols are bound from the shapes of the leaves; `binding` adds those that no leaf mentions. Ids among the inputs
    are checked when they come from `outside`, not when another program computed them for this one, its body.
    """
    values = leaves if isinstance(leaves, Mapping) else _by_position(graph, leaves)
    typed = {node.op.key: _checked(node, values) for node in graph.nodes if isinstance(node.op, _LEAVES)}
    graph = bound_to(graph, typed, binding)
    for check in id_checks(graph) if outside else ():
        check_ids(check.op, typed[check.key], check.sizes, check.key)
    results: list[tuple[Array, ...]] = []
    for node in graph.nodes:
        if isinstance(node.op, _LEAVES):
            results.append((typed[node.op.key],))
            continue
        operands = [array for i in node.inputs for array in results[i]]
        results.append(evaluate(node, operands))
    return [results[o][0] for o in graph.outputs]


def bound_to(graph: Graph, leaves: Mapping[str, Array], binding: Mapping[str, int] | None = None) -> Graph:
    """The graph with all sizes fixed, as the shapes of its leaves and `binding` say."""
    if not graph.has_dynamic_dims():
        return graph
    declared = [(k, graph.leaf(k).shape, v.shape) for k, v in leaves.items()]
    sizes = {**(binding or {}), **infer_binding(declared)}
    free = [s for s in graph.dynamic_symbols() if s not in sizes]
    if free:
        raise BindingError(f"graph @{graph.name}: no input determines the size of {', '.join(free)}; bind it first")
    return bind_graph(graph, sizes)


def _by_position(graph: Graph, leaves: Sequence[Array]) -> dict[str, Array]:
    keys = [n.op.key for n in graph.nodes if isinstance(n.op, Input)]
    if len(keys) != len(leaves):
        raise BindingError(f"graph @{graph.name} has {len(keys)} inputs ({', '.join(keys)}), got {len(leaves)} values")
    return dict(zip(keys, leaves))


def _checked(node: Node, values: Mapping[str, Array]) -> Array:
    assert isinstance(node.op, Input | Param)
    key, shape = node.op.key, node.shape
    if key not in values:
        raise BindingError(f"no value for {node.op.mnemonic} {key!r} ({shape})")
    array = np.asarray(values[key])
    if array.dtype != shape.dtype.numpy:
        raise BindingError(f"{key!r} is declared {shape}, got an array of {array.dtype} with shape {array.shape}")
    if shape.is_static and array.shape != shape.dims:
        raise BindingError(f"{key!r} is declared {shape}, got an array of shape {array.shape}")
    return array


def evaluate(node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The results of a node by the definition of its op, which must have the types that are inferred."""
    try:
        value = node.op.eval(*operands)
    except RlxError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or max(map(_byte_size, node.shapes)) > _LARGEST_BYTES:
            raise OutOfMemory(f"there is no memory for {node!r}; run the program on smaller inputs") from None
        raise InternalError(f"eval of {node!r} failed: {type(error).__name__}: {error}") from error
    results = tuple([np.asarray(r) for r in value]) if isinstance(value, tuple) else (np.asarray(value),)
    for result, shape in zip(results, node.shapes, strict=True):
        _check_result(node, result, shape)
    return results


def _byte_size(shape: Shape) -> int:
    return math.prod(shape.static_dims) * shape.dtype.numpy.itemsize


def _check_result(node: Node, result: Array, shape: Shape) -> None:
    if result.shape != shape.dims or result.dtype != shape.dtype.numpy:
        raise InternalError(f"eval of {node!r} gave {result.dtype}{list(result.shape)}, but infer says {shape}")
