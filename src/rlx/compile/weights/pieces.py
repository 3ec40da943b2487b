"""A `prepare` program in pieces that need nothing of each other, so that weights can be prepared one after the other.

    prepare(w0, w1, w2):  concat(w0, w1), panels(w2)   ->   concat(w0, w1)   |   panels(w2)

While a piece runs, only its own weights and results must be in memory.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.lir import LirModule

# What a piece reads and makes, as long as there are no more than so many pieces: each has its own plan and files.
PIECE_BYTES = 16 << 20
MAX_PIECES = 64


class Piece(NamedTuple):
    """A part of a program: its kernels with the same nodes and places. `outputs` are the numbers, among the outputs of
    the whole, of its own."""

    lir: LirModule
    outputs: tuple[int, ...]


def prepare_pieces(lir: LirModule, limit: int = PIECE_BYTES) -> list[Piece]:
    """The pieces, in the order of their first outputs. Together they make all outputs; weights that are read for
    several of them are read in several pieces."""
    graph = lir.as_graph()
    group_of = _groups(lir)
    members: dict[NodeId, list[int]] = {}
    for number, node in enumerate(graph.outputs):
        members.setdefault(group_of[node], []).append(number)
    sizes = _sizes(graph, group_of)
    limit = max(limit, sum(sizes[group] for group in members) // MAX_PIECES)
    pieces: list[list[NodeId]] = []
    room = 0
    for group in members:
        if not pieces or sizes[group] > room:
            pieces.append([])
            room = limit
        pieces[-1].append(group)
        room -= sizes[group]
    if len(pieces) == 1:
        return [Piece(lir, tuple(range(len(graph.outputs))))]
    return [_piece(lir, group_of, piece, [n for group in piece for n in members[group]]) for piece in pieces]


def _piece(lir: LirModule, group_of: list[NodeId], groups: list[NodeId], outputs: list[int]) -> Piece:
    graph = lir.as_graph().copy()
    graph.outputs = [lir.as_graph().outputs[n] for n in outputs]
    inside = frozenset(groups)
    kernels = [k for k in lir.kernels if group_of[k.nodes[0]] in inside]
    return Piece(LirModule(graph.freeze(), lir.buffers, kernels), tuple(outputs))


def _groups(lir: LirModule) -> list[NodeId]:
    """For every node, one that stands for all that are computed from each other or by one kernel. Leaves join none."""
    graph = lir.as_graph()
    parent = [node.id for node in graph.nodes]

    def root(node: NodeId) -> NodeId:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for node in graph.nodes:
        for operand in node.inputs:
            if not isinstance(graph.nodes[operand].op, Param | Constant):
                parent[root(operand)] = root(node.id)
    for kernel in lir.kernels:
        for member in kernel.nodes:
            parent[root(member)] = root(kernel.nodes[0])
    return [root(node.id) for node in graph.nodes]


def _sizes(graph: Graph, group_of: list[NodeId]) -> dict[NodeId, int]:
    """The bytes of the weights that each group reads and of what it makes."""
    outputs, sizes = frozenset(graph.outputs), dict.fromkeys(group_of, 0)
    for node in graph.nodes:
        weights = {i for i in node.inputs if isinstance(graph.nodes[i].op, Param)}
        made = [node.id] if node.id in outputs else []
        sizes[group_of[node.id]] += sum(graph.nodes[i].shape.size_bytes() or 0 for i in (*weights, *made))
    return sizes
