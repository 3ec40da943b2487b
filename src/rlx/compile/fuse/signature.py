"""Keys of sets of nodes: equal where ops, types and wiring are, wherever the nodes stand and whatever they read.

Two kernels with equal keys are one piece of code; only the buffers that they are called with differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rlx.compile.fuse.node_roles import is_literal
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant

Key = tuple[Any, ...]


class KernelForm(NamedTuple):
    """A key, and the values outside of the nodes that these read, in the order in which the key numbers them."""

    key: Key
    operands: tuple[NodeId, ...]


class FormKeys:
    """Forms of sets of nodes of one graph; keys mean something in this graph only. A number for which `is_passed` holds
    is an operand like any other: kernels that differ in it alone have one form."""

    def __init__(self, graph: Graph, is_passed: Callable[[Node], bool] = lambda node: False) -> None:
        self.graph, self._is_passed = graph, is_passed
        self._numbers: dict[Any, int] = {}
        self._computed: dict[NodeId, int] = {}
        self._read: dict[NodeId, int] = {}

    def form(self, covered: Sequence[NodeId], marked: Sequence[NodeId], own: Iterable[NodeId] = ()) -> KernelForm:
        """The form of nodes in the order of the graph, of which some are `marked`, in order, and some are its `own`."""
        place = {n: i for i, n in enumerate(covered)}
        mine = set(own)
        outside: dict[NodeId, int] = {}
        parts: list[int] = []
        nodes = self.graph.nodes
        for node_id in covered:
            parts.append(self._number(node_id, self._computed, _computed_form) * 2 + (node_id in mine))
            for operand in nodes[node_id].inputs:
                inner = place.get(operand)
                if inner is not None:
                    parts.append(inner)
                elif operand in outside:
                    parts.append(outside[operand])
                else:
                    outside[operand] = -1 - len(outside)
                    parts += (outside[operand], self._number(operand, self._read, self._read_form))
        return KernelForm((*parts, None, *(place[m] for m in marked)), tuple(outside))

    def _number(self, node_id: NodeId, known: dict[NodeId, int], form: Callable[[Node], Key]) -> int:
        found = known.get(node_id)
        if found is None:
            content = form(self.graph.nodes[node_id])
            found = known[node_id] = self._numbers.setdefault(content, len(self._numbers))
        return found

    def _read_form(self, node: Node) -> Key:
        """What a kernel knows of a value that it reads: its type, and the number itself where it is in the code."""
        if is_literal(node):
            assert isinstance(node.op, Constant)
            return (node.shapes, "passed") if self._is_passed(node) else (node.shapes, node.op.value.array.tobytes())
        return (node.shapes,)


def _computed_form(node: Node) -> Key:
    return type(node.op), node.op, node.shapes, len(node.inputs)
