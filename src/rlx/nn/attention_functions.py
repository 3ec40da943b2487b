"""Attention and rotary position embedding."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.shape import Size
from rlx.numpy.arguments import array_function, convert, inexact, operand, rank_of, value
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["dot_product_attention", "rope", "rope_tables", "scaled_dot_product_attention"]


@array_function
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    kv_len: Any = None,
    positions: Any = None,
    layout: str = "bshd",
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
) -> Any:
    """softmax(scale·query·keyᵀ + bias, where mask)·value, per head. The scale is 1/√D unless given.

    query is [B, S, H, D], key and value [B, T, K, D] with H a multiple of K (grouped queries); without the batch axis
    it is one sequence. `layout="bhsd"` has heads before positions. `mask` (True: visible) and `bias` broadcast to
    [B, H, S, T]; a query that sees nothing gives 0.

    `is_causal`: query i sees keys up to its position, `window`: only the last window + 1 of them. Query i stands at
    position i; in a cache, whose first `kv_len[b]` keys are filled, the queries are the last of these. `positions` says
    otherwise: [S] or [B, S].

    By JAX's names: the first `query_seq_lengths[b]` queries and `key_value_seq_lengths[b]` keys of a sequence are not
    padding, for which the result is 0; `local_window_size` is how far a query sees to the left and to the right.
    `implementation` is accepted and changes nothing.
    """
    query, key, value = inexact(query, key, value)
    layout = AttentionLayout(layout)
    if layout is AttentionLayout.Bsm or rank_of(query) not in (3, 4) or rank_of(query) != rank_of(key):
        raise ShapeError(
            f"dot_product_attention: needs query, key and value [B, S, H, D] (or [B, H, S, D] with layout='bhsd'), "
            f"got shapes {dims_of(query)}, {dims_of(key)}, {dims_of(value)} and layout={layout.value!r}"
        )
    is_one_sequence = rank_of(query) == 3
    if is_one_sequence:
        query, key, value = (ops.expand_dims(x, 0) for x in (query, key, value))
    seq = 1 if layout is AttentionLayout.Bshd else 2
    queries, keys = dims_of(query)[seq], dims_of(key)[seq]
    if positions is None and kv_len is None and queries != keys:
        positions = ops.iota((queries,))
    limits = [None if mask is None else ops.ne(operand(mask), 0)]
    limits += _lengths(queries, query_seq_lengths, -1), _lengths(keys, key_value_seq_lengths, -2)
    limits.append(None if local_window_size is None else _near(queries, keys, local_window_size))
    visible = functools.reduce(_both, limits)
    options: dict[str, Any] = {}
    if (is_causal or window is not None) and bias is None and visible is None:
        kind = MaskKind.Causal if window is None else MaskKind.SlidingWindow
        options = {"mask_kind": kind, "window": window or 0, "positions": positions}
    elif is_causal or window is not None:
        visible = _both(visible, _seen(queries, keys, positions, kv_len, window))
    if bias is not None:
        bias = convert(operand(bias), dtype_of(query))
        masked = bias if visible is None else ops.where(visible, bias, convert(-math.inf, dtype_of(query)))
        options = {"mask": _four_axes(masked), "mask_kind": MaskKind.Bias}
    elif visible is not None:
        options = {"mask": _four_axes(visible), "mask_kind": MaskKind.Custom}
    result = ops.attention(
        query, key, value, score_scale=scale, softcap=softcap, kv_len=kv_len, layout=layout, **options
    )
    return ops.squeeze(result, 0) if is_one_sequence else result


def _both(a: Any, b: Any) -> Any:
    """What two masks let through; None lets everything through."""
    return a if b is None else b if a is None else ops.and_(a, b)


def _lengths(size: Size, lengths: Any, axis: int) -> Any:
    """Which positions are no padding: [B, 1, S, 1] (axis -1) or [B, 1, 1, T] (axis -2)."""
    if lengths is None:
        return None
    is_there = ops.lt(ops.iota((size,)), ops.expand_dims(value(lengths), -1))
    return ops.expand_dims(ops.expand_dims(is_there, axis), 1)


def _near(queries: Size, keys: Size, sizes: int | tuple[int, int]) -> Any:
    """Which keys are near enough to a query: [S, T]."""
    left, right = (sizes, sizes) if isinstance(sizes, int) else sizes
    row, column = ops.iota((queries, 1)), ops.iota((1, keys), axis=1)
    return ops.and_(ops.ge(column, ops.sub(row, left)), ops.le(column, ops.add(row, right)))


def _four_axes(x: Any) -> Any:
    """A mask or bias with axes of size 1 in front, up to [B, H, S, T]."""
    return ops.expand_dims(x, tuple(range(4 - rank_of(x)))) if rank_of(x) < 4 else x


def _seen(queries: Size, keys: Size, positions: Any, kv_len: Any, window: int | None) -> Any:
    """Which keys a query at its position sees: [S, T], or [B, 1, S, T] when positions differ between rows."""
    if positions is None:
        place = ops.iota((queries, 1))
        if kv_len is not None:
            # The queries are the last of the filled positions.
            first = ops.maximum(operand(kv_len) - ops.dim_value(queries), 0)
            place = ops.add(ops.reshape(first, (-1, 1, 1, 1)), place)
    else:
        place = ops.expand_dims(value(positions), -1)
        place = ops.expand_dims(place, 1) if rank_of(place) == 3 else place
    column = ops.iota((1, keys), axis=1)
    seen = ops.le(column, place)
    return seen if window is None else ops.and_(seen, ops.ge(column, ops.sub(place, window)))


@array_function
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = True,
) -> Any:
    """`dot_product_attention` with heads first, [B, H, S, D]; attn_mask is a mask when it is bool, else a bias."""
    if dropout_p:
        raise OpError("scaled_dot_product_attention: dropout_p needs a random key; apply rlx.nn.dropout to the result")
    is_mask = attn_mask is not None and dtype_of(operand(attn_mask)) is DType.BOOL
    given = {"mask" if is_mask else "bias": attn_mask}
    return dot_product_attention(query, key, value, is_causal=is_causal, scale=scale, layout="bhsd", **given)


@array_function
def rope_tables(
    positions: Any, n_rot: int, *, theta: float = 10000.0, scaling: float = 1.0, dtype: DTypeLike = DType.F32
) -> tuple[Any, Any]:
    """cos and sin of position/scaling·theta^(-2i/n_rot) for i < n_rot/2: one row per position.

    `positions` is a number of positions (an int or symbolic size), or an array of them.
    """
    wide = DType.of(dtype)
    places = ops.iota((positions,)) if isinstance(positions, Size) else value(positions)
    # Known numbers, so they are computed in f64: an error would grow with the position.
    frequencies = (theta ** (-2.0 * np.arange(n_rot // 2) / n_rot) / scaling).astype(wide.numpy)
    angles = ops.mul(ops.expand_dims(convert(places, wide), -1), frequencies)
    return ops.cos(angles), ops.sin(angles)


@array_function
def rope(
    x: Any,
    positions: Any = None,
    *,
    theta: float = 10000.0,
    n_rot: int | None = None,
    interleaved: bool = False,
    scaling: float = 1.0,
    layout: str = "bshd",
) -> Any:
    """Rotary position embedding of x [B, S, H, D] (or [B, H, S, D]): pairs of features turned by position·frequency.

    Feature i is paired with i + n_rot/2, or with its neighbour when `interleaved`. Token i stands at position i unless
    `positions` ([S] or [B, S]) says otherwise.
    """
    (x,) = inexact(x)
    if rank_of(x) != 4:
        raise ShapeError(f"rope: needs x [B, S, H, D] or [B, H, S, D], got shape {dims_of(x)}")
    chosen = AttentionLayout(layout)
    batch, tokens = dims_of(x)[0], dims_of(x)[1 if chosen is AttentionLayout.Bshd else 2]
    head_dim = dims_of(x)[-1]
    if not isinstance(head_dim, int):
        raise ShapeError(f"rope: the head size must be fixed, got {head_dim}")
    width = head_dim if n_rot is None else n_rot
    places = ops.iota((tokens,)) if positions is None else value(positions)
    # The tables have a row per token, in the order of the tokens; a batch of positions chooses its own rows.
    wide = dtype_of(x).accumulator
    cos, sin = rope_tables(ops.flatten(places), width, theta=theta, scaling=scaling, dtype=wide)
    rows = ops.reshape(ops.iota((batch * tokens,)), (batch, tokens)) if rank_of(places) == 2 else None
    style = "gptj" if interleaved else "neox"
    return ops.rope(x, cos, sin, head_dim, width, rows, style=style, layout=chosen)
