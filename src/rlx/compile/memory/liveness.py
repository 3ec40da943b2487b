"""From when to when values live, which are views of others, and which may be written over their own operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.lir import LirViewAlias
from rlx.ir.shape import Size
from rlx.ops.lowered.complex_pairs import AsComplex, AsReals
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import StopGradient
from rlx.ops.shape.movement import Narrow, Reshape


def is_pure_view(graph: Graph, node: Node) -> bool:
    """Whether a node merely names (a part of) its operand: nothing has to run for it."""
    op = node.op
    if isinstance(op, Reshape | StopGradient | AsReals | AsComplex):
        return True
    if isinstance(op, Cast):
        return graph.shape(node.inputs[0]).dtype is op.to
    return isinstance(op, Narrow) and op.axis % graph.shape(node.inputs[0]).rank == 0


def view_offset(graph: Graph, node: Node) -> Size:
    """How many bytes after the start of its operand a view begins; results of one op lie one after the other."""
    if isinstance(node.op, Project):
        before: Size = 0
        for shape in graph.nodes[node.inputs[0]].shapes[: node.op.index]:
            before = before + shape.byte_size
        return before
    if not isinstance(node.op, Narrow):
        return 0
    row: Size = node.shape.dtype.size_bytes
    for d in node.shape.dims[1:]:
        row = row * d
    return node.op.start * row


def collect_view_aliases(graph: Graph) -> dict[NodeId, LirViewAlias]:
    """For every view the value that owns the memory, and where in it the view begins."""
    aliases: dict[NodeId, LirViewAlias] = {}
    for node in graph.nodes:
        if len(node.shapes) == 1 and node.inputs and is_pure_view(graph, node):
            parent = aliases.get(node.inputs[0], LirViewAlias(node.inputs[0]))
            aliases[node.id] = LirViewAlias(parent.root, parent.byte_offset + view_offset(graph, node))
    return aliases


class LiveRange(NamedTuple):
    """First and last step at which a value is needed."""

    birth: int
    death: int


def live_ranges(graph: Graph, steps: Sequence[NodeId], aliases: dict[NodeId, LirViewAlias]) -> dict[NodeId, LiveRange]:
    """The life of every value that owns memory, in steps of the schedule.

    Reading a view reads its root. Outputs live to the end; leaves and constants the whole time.
    """
    end = len(steps)
    step_of = {node: i for i, node in enumerate(steps)}
    birth: dict[NodeId, int] = {}
    death: dict[NodeId, int] = {}

    def root(node: NodeId) -> NodeId:
        return aliases[node].root if node in aliases else node

    for node in graph.nodes:
        if node.id not in aliases:
            whole = isinstance(node.op, Input | Param | Constant)
            birth[node.id] = 0 if whole else step_of[node.id]
            death[node.id] = end if whole else step_of[node.id]
    for node in graph.nodes:
        for i in node.inputs:
            owner = root(i)
            death[owner] = max(death[owner], step_of[node.id])
    for output in graph.outputs:
        death[root(output)] = end
    return {node: LiveRange(birth[node], death[node]) for node in birth}
