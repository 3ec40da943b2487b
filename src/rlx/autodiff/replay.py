"""Copying a graph into the program being built, with its leaves replaced: what every transform starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.tensor import Tensor, emit_into, target_graph

# The value of a node: a tensor, or a tuple of them for several results.
Value = Tensor | tuple[Tensor, ...]


class Replay:
    """Values of the nodes of `graph` in the program being built, filled in order by `step`."""

    def __init__(self, graph: Graph, leaves: Mapping[NodeId, Tensor]) -> None:
        self.graph = graph
        self.leaves = leaves
        self.values: dict[NodeId, Value] = {}
        into = target_graph(list(leaves.values()))
        assert into is not None, "a transform needs a program to build into"
        self.into = into

    def operands(self, node: Node) -> list[Any]:
        return [self.values[i] for i in node.inputs]

    def step(self, node: Node) -> Value:
        """Copy one node; its operands must have values."""
        if isinstance(node.op, Input | Param):
            value: Value = self.leaves[node.id]
        elif isinstance(node.op, Constant):
            value = Tensor(self.into, self.into.constant(node.op.value).id)
        elif isinstance(node.op, Project):
            source = self.values[node.inputs[0]]
            assert isinstance(source, tuple)
            value = source[node.op.index]
        else:
            with self.into.originating(node.origin):
                value = emit_into(self.into, node.op, self.operands(node))
            if node.name and isinstance(value, Tensor):
                value.node.name = node.name
        self.values[node.id] = value
        return value

    def run(self) -> dict[NodeId, Value]:
        for node in self.graph.nodes:
            self.step(node)
        return self.values

    def outputs(self) -> list[Tensor]:
        return [tensor(self.values[o]) for o in self.graph.outputs]


def tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value
