"""Attention of few rows to long caches, cut into parts of the keys, so that more threads than heads can take part.

Whether a run has use for it depends on its sizes, so both forms are one program: the number of parts is a size like any
other. With none the first op is attention, and the second one has nothing to do.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.generators import Generator
from rlx.ir.dims import dim_max, dim_min
from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.shape import Shape, Size
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionLayout
from rlx.ops.lowered.attention_parts import AttentionJoin, AttentionParts

# Rows of q for each head of k and v at most: more of them keep threads busy by themselves.
FEW_ROWS = 8
# Keys for which two parts more are worth what they cost, and pairs of parts of all heads together at most.
PAIR_KEYS, MOST_PAIRS = 512, 16


def split_attention(graph: Graph, generator: Generator) -> Graph:
    """The graph with attention in two steps wherever some sizes of a run may have use for it."""

    def parts_of(node: Node) -> Size:
        if type(node.op) is not Attention or generator.own_kernel(graph, node) is None:
            return 0
        if not generator.cuts_attention(graph, node):
            return 0
        return part_count(node.op, *(graph.shape(i) for i in node.inputs[:2]))

    cut = {node.id: parts for node in graph.nodes if (parts := parts_of(node)) != 0}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if node.id not in cut:
            return None
        op, parts = node.op, cut[node.id]
        assert isinstance(op, Attention)
        out, sums, statistics = AttentionParts(**op.attributes, parts=parts)(*operands)
        return AttentionJoin(op.num_heads, op.kv_heads, op.layout, parts)(out, sums, statistics)

    return rebuild(graph, visit, "split_attention").graph if cut else graph


def part_count(op: Attention, q: Shape, k: Shape) -> Size:
    """Into how many parts keys are cut, none or an even number: none for many rows, many heads or few keys."""
    group = op.num_heads // op.kv_heads
    batch, seq_q = _batch_and_length(op.layout, q)
    _, seq_k = _batch_and_length(op.layout, k)
    if group > FEW_ROWS or op.kv_heads > MOST_PAIRS or seq_q == seq_k:
        return 0
    is_small = dim_max(0, dim_min(1, FEW_ROWS + 1 - seq_q * group))
    return 2 * is_small * dim_min(seq_k // PAIR_KEYS, MOST_PAIRS // dim_max(1, batch * op.kv_heads))


def _batch_and_length(layout: AttentionLayout, x: Shape) -> tuple[Size, Size]:
    if layout is AttentionLayout.Bsm:
        return (1, x.dims[0]) if x.rank == 2 else (x.dims[0], x.dims[1])
    return x.dims[0], x.dims[2 if layout is AttentionLayout.Bhsd else 1]
