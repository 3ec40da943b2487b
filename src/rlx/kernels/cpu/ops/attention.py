"""Attention as one kernel: an online softmax over blocks of keys, so that scores never leave the cache.

A parallel iteration is a block of query rows of one head of k and v; the heads of q that share it are rows of the same
block. Two forms compute a block: `ForwardBlocks` has one query in each lane and reads k and v element by element, which
suits any layout of them and many rows; `DepthLanes` has few rows and runs along the keys as fast as memory gives them,
all of them or (`attention_parts`) the part that belongs to an iteration. Keys and values may be stored in another type
than sums are held in: they are widened in registers, or block by block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.attention_blocks import ForwardBlocks
from rlx.kernels.cpu.ops.attention_case import AttentionCase, value_width
from rlx.kernels.cpu.ops.attention_decode import DepthLanes
from rlx.kernels.cpu.ops.attention_parts import PartSums
from rlx.kernels.ir.loop_ir import Const, Value
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionBase
from rlx.ops.attn.sinks import AttentionWithSinks
from rlx.ops.lowered.attention_parts import AttentionParts

# Elements of a row of q and of v together: a vector of rows must fit onto the stack of a thread.
WIDEST_HEADS = 1024


def supports(op: AttentionBase, operands: Sequence[Shape]) -> bool:
    """Heads of fixed width that fit into a block; masks of a type that kernels load."""
    if any(t.dtype.is_storage or t.dtype.is_complex for t in operands) or not isinstance(operands[2].dims[-1], int):
        return False
    return (op.head_dim + value_width(op, operands[2])) <= WIDEST_HEADS


@op_kernel(Attention, AttentionWithSinks, AttentionParts, kind="attention", supports=supports, strided=range(8))
def attention(site: OpSite) -> None:
    case = AttentionCase(site, site.inputs[3:])
    k, rows = case.k, case.rows
    out = case.heads(site.outputs[0], case.width)
    parts = None
    if isinstance(site.op, AttentionParts):
        parts = PartSums(case, site.outputs[1], site.outputs[2], site.size(site.op.parts))
    few = DepthLanes(case, out, parts) if DepthLanes.fits(case) and may_be(rows, most=DepthLanes.most_rows) else None
    many = ForwardBlocks(case, out) if few is None or may_be(rows, least=few.most_rows + 1) else None
    block_rows = many.block_rows if many is not None else DepthLanes.most_rows
    per_head = k.ceildiv(rows, block_rows)
    heads = case.op.kv_heads
    part_count = k.as_index(1) if parts is None else parts.count
    with k.parallel("block", case.batch * heads * per_head * part_count) as block:
        part, block = block % part_count, block // part_count
        # The last rows of a causal mask see most: they come first, so that no thread ends up with one alone.
        number, rest = per_head - 1 - block % per_head, block // per_head
        batch, head = rest // heads, rest % heads
        if many is None:
            assert few is not None
            few.all_rows(batch, head, part)
        elif few is None and parts is not None:
            # Without a form for single parts all keys are those of the result, and of no part.
            with k.when(parts.is_cut):
                parts.clear(parts.item(batch, head, part))
            with k.when(k.eq(part, 0)):
                many.block(batch, head, number * block_rows)
        elif few is None:
            many.block(batch, head, number * block_rows)
        else:
            is_small = rows <= few.most_rows
            with k.when(is_small if parts is None else is_small | parts.is_cut):
                few.all_rows(batch, head, part)
            with k.otherwise():
                many.block(batch, head, number * block_rows)


def may_be(size: Value, least: int = 0, most: float = math.inf) -> bool:
    """Whether a size can be in a range; one that is not fixed can."""
    return not isinstance(size, Const) or least <= size.literal <= most
