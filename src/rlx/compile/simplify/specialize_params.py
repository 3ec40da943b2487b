"""Bake the values of weights into a program, so that folding and simplification see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.errors import BindingError
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Param
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ir.tensor_data import TensorData


class SpecializeParams(Pass):
    """Replace the params that `values` names by constants; all others stay."""

    name = "specialize_params"

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def run(self, graph: Graph) -> Graph:
        chosen = {n.op.key: n.shape for n in graph.params if isinstance(n.op, Param) and n.op.key in self.values}
        if not chosen:
            return graph
        arrays = {key: _converted(key, shape, self.values[key]) for key, shape in chosen.items()}
        # A weight whose value is known decides the sizes that it names.
        sizes = infer_binding([(f"param {k}", s, arrays[k].shape) for k, s in chosen.items() if not s.is_static])
        data = {k: TensorData(arrays[k], shape.bind(sizes)) for k, shape in chosen.items()}

        def visit(node: Node, operands: list[Tensor]) -> Replacement:
            if not isinstance(node.op, Param) or node.op.key not in data:
                return None
            return new.constant(data[node.op.key])

        bound = bind_graph(graph, sizes) if sizes else graph
        new = bound.empty_like()
        return rebuild(bound, visit, self.name, into=new).graph


def specialize_params(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """The graph with the named params as constants. A value has as many elements as the type of its param.

    >>> g = Graph("scale")
    >>> g.set_outputs([g.input("x", (2,), "f32") * g.param("w", (2,), "f32")])
    >>> print(specialize_params(g, {"w": [1.0, 2.0]}))
    mir @scale(%x: f32[2]) {
      %0: f32[2] = constant() {value=[1.0, 2.0]}
      %1: f32[2] = mul(%x, %0)
      return %1
    }
    <BLANKLINE>
    """
    return SpecializeParams(values).run(graph)


def _converted(key: str, declared: Shape, value: Any) -> np.ndarray[Any, Any]:
    """The value in the declared dtype, and in the declared dims where they are fixed."""
    array = np.asarray(value)
    if array.dtype != declared.dtype.numpy:
        given = DType.of(array.dtype)
        if not declared.dtype.is_float or not (given.is_float or given.is_int):
            raise BindingError(f"specialize_params: param {key!r} is {declared}, got values of {given}")
        array = array.astype(declared.dtype.numpy)
    if not declared.is_static:
        return array
    if array.size != declared.element_count:
        raise BindingError(
            f"specialize_params: param {key!r} is {declared}, which has {declared.element_count} elements, "
            f"got {array.size} (shape {list(array.shape)})"
        )
    return array.reshape(declared.static_dims)
