"""How attention operands lie in memory: geometry from shapes, strides for kernels, packed QKV, reference attentions.

Two layouts exist for rank 4: BHSD `[batch, heads, seq, head_dim]` and BSHD `[batch, seq, heads, head_dim]`; rank 3
`[batch, seq, heads*head_dim]` is BSHD with the last two axes joined. Strides count elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, dims_equal, product
from rlx.ir.shape import Shape

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node, NodeId

Size = int | Dim
Layout = Literal["bhsd", "bshd"]

# Head widths above this do not fit the tiled kernel's registers.
ATTENTION_FLASH_MAX_HEAD_DIM = 128


class HeadStrides(NamedTuple):
    """Steps between batches, heads and sequence positions; the head_dim axis is contiguous."""

    batch: Size
    head: Size
    seq: Size


class MaskStrides(NamedTuple):
    """Steps through a mask; 0 where one row serves all batches, heads or queries."""

    batch: Size
    head: Size
    q: Size
    k: Size


class AttentionGeom(NamedTuple):
    """The sizes of one attention call."""

    batch: Size
    seq_q: Size
    seq_k: Size
    heads: int
    head_dim: int
    bhsd: bool

    def is_bshd(self) -> bool:
        return not self.bhsd


class AttentionLaunchStrides(NamedTuple):
    """Every stride a kernel needs; `mask` is None without a mask."""

    q: HeadStrides
    k: HeadStrides
    v: HeadStrides
    o: HeadStrides
    mask: MaskStrides | None


def attention_geom(q: Shape, k: Shape, num_heads: int, head_dim: int, layout: Layout | None = None) -> AttentionGeom:
    """Geometry from the shapes of q and k.

    Rank 4 is BHSD when axis 1 counts the heads, and BSHD otherwise; where both fit, `layout` decides.
    """
    if q.rank != k.rank or q.rank not in (2, 3, 4):
        raise ShapeError(f"attention: q and k need one rank of 2, 3 or 4, got {q} and {k}")
    bhsd = _is_bhsd(q, num_heads, layout)
    if q.rank == 2:
        batch: Size = 1
        seq_q, seq_k = q.dims[0], k.dims[0]
    else:
        seq_axis = 2 if bhsd else 1
        batch, seq_q, seq_k = q.dims[0], q.dims[seq_axis], k.dims[seq_axis]
    width = q.dims[-1]
    wanted = head_dim if q.rank == 4 else num_heads * head_dim
    if dims_equal(width, wanted) is False:
        raise ShapeError(f"attention: the last axis of q {q} must be {wanted} for {num_heads} heads of {head_dim}")
    return AttentionGeom(batch, seq_q, seq_k, num_heads, head_dim, bhsd)


def _is_bhsd(shape: Shape, num_heads: int, layout: Layout | None = None) -> bool:
    if layout is not None and layout not in ("bhsd", "bshd"):
        raise OpError(f"attention: the layout must be 'bhsd' or 'bshd', got {layout!r}")
    if shape.rank != 4:
        return False
    return layout == "bhsd" if layout is not None else shape.dims[1] == num_heads


def strides_bhsd(heads: Size, head_dim: int, seq: Size) -> HeadStrides:
    """
    >>> strides_bhsd(2, 8, 16)
    HeadStrides(batch=256, head=128, seq=8)
    """
    return HeadStrides(heads * head_dim * seq, seq * head_dim, head_dim)


def strides_bshd(heads: Size, head_dim: int, seq: Size) -> HeadStrides:
    """
    >>> strides_bshd(2, 8, 16)
    HeadStrides(batch=256, head=8, seq=16)
    """
    return HeadStrides(seq * (heads * head_dim), head_dim, heads * head_dim)


def strides_for_shape(shape: Shape, heads: Size, head_dim: int, seq: Size, bhsd: bool) -> HeadStrides:
    """BHSD only for a rank-4 tensor in that layout; joined heads are always beside each other."""
    return strides_bhsd(heads, head_dim, seq) if shape.rank == 4 and bhsd else strides_bshd(heads, head_dim, seq)


def mask_strides_bhsd(heads: int, seq_q: Size, seq_k: Size) -> MaskStrides:
    """Strides of a full mask `[batch, heads, seq_q, seq_k]`."""
    return MaskStrides(seq_q * seq_k * heads, seq_q * seq_k, seq_k, 1)


def mask_strides_for_shape(mask: Shape, heads: int, seq_q: Size, seq_k: Size) -> MaskStrides:
    """Strides by rank: `[batch, k]`, `[batch, q, k]` or `[batch, heads, q, k]`; an axis of size 1 is broadcast."""
    if mask.rank == 2:
        batch, cols = mask.dims
        sizes: tuple[Size, ...] = (batch, 1, 1, cols)
    elif mask.rank == 3:
        batch, rows, cols = mask.dims
        sizes = (batch, 1, rows, cols)
    elif mask.rank == 4:
        sizes = mask.dims
    else:
        return mask_strides_bhsd(heads, seq_q, seq_k)
    dense = (product(sizes[1:]), product(sizes[2:]), sizes[3], 1)
    return MaskStrides(*(0 if size == 1 else step for size, step in zip(sizes, dense)))


def attention_launch_strides(
    geom: AttentionGeom, q: Shape, k: Shape, v: Shape, out: Shape, mask: Shape | None = None
) -> AttentionLaunchStrides:
    """All strides of one attention call whose operands are dense; k and v may have fewer heads than q."""

    def strides(shape: Shape, seq: Size) -> HeadStrides:
        if shape.rank == 4:
            heads = shape.dims[1 if geom.bhsd else 2]
        else:
            heads = shape.dims[-1] // geom.head_dim
        return strides_for_shape(shape, heads, geom.head_dim, seq, geom.bhsd)

    return AttentionLaunchStrides(
        q=strides(q, geom.seq_q),
        k=strides(k, geom.seq_k),
        v=strides(v, geom.seq_k),
        o=strides(out, geom.seq_q),
        mask=None if mask is None else mask_strides_for_shape(mask, geom.heads, geom.seq_q, geom.seq_k),
    )


def attention_dispatch_use_row(head_dim: int, force_row: bool = False) -> bool:
    """Whether to run the one-row-at-a-time kernel: the tiled one has a widest head, or the user asked for it."""
    return head_dim > ATTENTION_FLASH_MAX_HEAD_DIM or force_row


def packed_bshd_qkv_strides(heads: Size, head_dim: int, seq: Size) -> HeadStrides:
    """Strides of q, k or v read in place from a packed `[batch, seq, 3, heads, head_dim]` tensor."""
    width = 3 * heads * head_dim
    return HeadStrides(seq * width, head_dim, width)


class PackedQkv(NamedTuple):
    """q, k and v are slices of `parent`, each `head_width = heads·head_dim` wide."""

    parent: NodeId
    head_width: Size
    narrows: tuple[NodeId, NodeId, NodeId]


def detect_packed_bshd_qkv_attention(graph: Graph, q: int, k: int, v: int) -> PackedQkv | None:
    """The packed `[batch, seq, 3, heads, head_dim]` tensor behind q, k and v, when a kernel may read it directly.

    Each operand must be slice 0, 1 or 2 of axis 2 of one parent, reshaped to `[batch, seq, heads, head_dim]` or
    `[batch, seq, heads·head_dim]`. Casts in between are seen through only when they change nothing, because a kernel
    reads the parent's own elements.
    """
    found = [_packed_slice(graph, operand) for operand in (q, k, v)]
    narrows = [n for n in found if n is not None]
    if len(narrows) != 3 or [n.op.start for n in narrows] != [0, 1, 2]:  # type: ignore[attr-defined]
        return None
    parents = {n.inputs[0] for n in narrows}
    if len(parents) != 1:
        return None
    parent = graph.node(parents.pop())
    batch, seq, _, heads, head_dim = parent.shape.dims
    joined, split = (batch, seq, heads * head_dim), (batch, seq, heads, head_dim)
    for operand in (q, k, v):
        dims = graph.node(operand).shape.dims
        # With seq == heads a rank-4 operand would be taken for BHSD, which these strides do not describe.
        if dims != joined and not (dims == split and dims_equal(seq, heads) is False):
            return None
    return PackedQkv(parent.id, heads * head_dim, (narrows[0].id, narrows[1].id, narrows[2].id))


def packed_bshd_narrow_elidable(graph: Graph, narrow: int) -> bool:
    """Whether slice `narrow` of a packed QKV needs no copy: only attentions read it, and it is no graph output."""
    if _packed_slice(graph, narrow) is None:
        return False
    waiting = [graph.node(narrow).id]
    while waiting:
        here = waiting.pop()
        if here in graph.outputs:
            return False
        for user in map(graph.node, graph.users(here)):
            if _is_view(graph, user):
                waiting.append(user.id)
            elif not _reads_packed(graph, user, here):
                return False
    return True


def _reads_packed(graph: Graph, user: Node, value: NodeId) -> bool:
    if _kind(user) != "Attention" or value in user.inputs[3:]:
        return False
    return detect_packed_bshd_qkv_attention(graph, *user.inputs[:3]) is not None


def _packed_slice(graph: Graph, node_id: int) -> Node | None:
    """The Narrow of axis 2 of a `[.., .., 3, .., ..]` tensor that `node_id` is a view of."""
    node = graph.node(node_id)
    while _is_view(graph, node):
        node = graph.node(node.inputs[0])
    if _kind(node) != "Narrow":
        return None
    axis, length = node.op.axis, node.op.len  # type: ignore[attr-defined]
    parent = graph.node(node.inputs[0]).shape
    is_packed = parent.rank == 5 and parent.dims[2] == 3
    return node if is_packed and axis % 5 == 2 and length == 1 else None


def _is_view(graph: Graph, node: Node) -> bool:
    """Reshape, or a Cast to the type the operand already has."""
    if _kind(node) == "Cast":
        return node.shape.dtype is graph.node(node.inputs[0]).shape.dtype
    return _kind(node) == "Reshape"


def _kind(node: Node) -> str:
    return type(node.op).__name__


Floats = npt.NDArray[np.floating]


def cpu_attention_bshd(q: Floats, k: Floats, v: Floats) -> Floats:
    """softmax(q kᵀ / √D) v per head, on `[batch, seq, heads, head_dim]`; computed in f64, rounded once to q's type."""
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q64, k64) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("bhqk,bkhd->bqhd", weights, v64), dtype=q.dtype)


def cpu_attention_packed_bshd_qkv(qkv: Floats) -> Floats:
    """The same on packed `[batch, seq, 3, heads, head_dim]`."""
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ShapeError(f"packed attention: wanted [batch, seq, 3, heads, head_dim], got {list(qkv.shape)}")
    return cpu_attention_bshd(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
