"""Rules of attention and rotary positions, of the standard and of Microsoft's runtime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import nn, ops
from rlx.ir.dtype import DType
from rlx.onnx.values import MICROSOFT, Call, dtype_of, rank_of, rule


def _heads(x: Any, heads: int) -> Any:
    """[B, T, heads·width] as [B, heads, T, width]."""
    batch, time, width = x.shape
    return rnp.transpose(rnp.reshape(x, (batch, time, heads, width // heads)), (0, 2, 1, 3))


def _joined(x: Any) -> Any:
    batch, heads, time, width = x.shape
    return rnp.reshape(rnp.transpose(x, (0, 2, 1, 3)), (batch, time, heads * width))


@rule("Attention")
def _attention(call: Call) -> Any:
    q, k, v = call[0], call[1], call[2]
    is_flat = rank_of(q) == 3
    if is_flat:
        q = _heads(q, int(call.attribute("q_num_heads")))
        k, v = (_heads(x, int(call.attribute("kv_num_heads"))) for x in (k, v))
    if call.has(4):
        k, v = rnp.concatenate([call[4], k], axis=2), rnp.concatenate([call[5], v], axis=2)
    if call.wants(3):
        call.unsupported("an output with the scores")
    if call.attribute("left_window_size", -1) >= 0 or call.attribute("right_window_size", -1) >= 0:
        call.unsupported("a window of neighbours")
    seen_k, seen_v = _repeated(k, q), _repeated(v, q)
    scale = call.attribute("scale") or 1 / math.sqrt(q.shape[-1])
    scores = rnp.matmul(q, rnp.swapaxes(seen_k, -1, -2)) * np.asarray(scale, dtype_of(q).numpy)
    cap = call.attribute("softcap", 0.0)
    if cap:
        scores = cap * rnp.tanh(scores / cap)
    visible, mask = None, call.optional(3)
    if mask is not None and dtype_of(mask) is not DType.BOOL:
        scores, mask = scores + _as_wide(mask, k), None
    if mask is not None:
        visible = _as_wide(mask, k)
    rows, columns = (ops.iota((q.shape[2], k.shape[2]), DType.I32, axis) for axis in (0, 1))
    # Without earlier keys the first query sees the first key alone, however many keys there are.
    earlier = rnp.dim_value(call.value(4).shape[2] if call.has(4) else 0)
    if call.has(6):
        lengths = rnp.reshape(rnp.astype(call[6], DType.I32), (-1, 1, 1, 1))
        visible, earlier = _and(visible, rnp.less(columns, lengths)), lengths - rnp.dim_value(q.shape[2])
    if call.attribute("is_causal", 0):
        visible = _and(visible, rnp.less_equal(columns, rows + earlier))
    if visible is None:
        y = rnp.matmul(nn.softmax(scores, axis=-1), seen_v)
    else:
        shares = nn.softmax(rnp.where(visible, scores, np.asarray(-np.inf, dtype_of(q).numpy)), axis=-1)
        # A query that sees nothing gets nothing.
        y = rnp.matmul(rnp.where(visible, shares, np.zeros((), dtype_of(q).numpy)), seen_v)
    return _joined(y) if is_flat else y, k, v


def _and(a: Any, b: Any) -> Any:
    return b if a is None else rnp.logical_and(a, b)


def _as_wide(mask: Any, k: Any) -> Any:
    """A mask may be shorter than the keys; what it lacks is hidden."""
    have, wanted = mask.shape[-1], k.shape[2]
    if not isinstance(have, int) or not isinstance(wanted, int) or have in (1, wanted):
        return mask
    widths = [(0, 0)] * (rank_of(mask) - 1) + [(0, wanted - have)]
    is_bool = dtype_of(mask) is DType.BOOL
    return rnp.pad(mask, widths, constant_values=np.asarray(False if is_bool else -np.inf, dtype_of(mask).numpy))


def _repeated(x: Any, q: Any) -> Any:
    """Heads of keys and values as often as heads of queries share them."""
    times = q.shape[1] // x.shape[1]
    return x if times == 1 else rnp.repeat(x, times, axis=1)


@rule("RotaryEmbedding")
def _rotary(call: Call) -> Any:
    x, cos, sin = call[0], call[1], call[2]
    is_flat = rank_of(x) == 3
    if is_flat:
        x = _heads(x, int(call.attribute("num_heads", 1)))
    if call.has(3):
        cos, sin = (rnp.take(table, rnp.astype(call[3], DType.I64), axis=0) for table in (cos, sin))
    cos, sin = rnp.expand_dims(cos, 1), rnp.expand_dims(sin, 1)
    width = int(call.attribute("rotary_embedding_dim", 0)) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    half = width // 2
    if call.attribute("interleaved", 0):
        a, b = turned[..., ::2], turned[..., 1::2]
    else:
        a, b = turned[..., :half], turned[..., half:]
    cos, sin = cos[..., :half], sin[..., :half]
    real, imag = a * cos - b * sin, b * cos + a * sin
    if call.attribute("interleaved", 0):
        found = rnp.reshape(rnp.stack([real, imag], axis=-1), turned.shape)
    else:
        found = rnp.concatenate([real, imag], axis=-1)
    found = found if width == x.shape[-1] else rnp.concatenate([found, rest], axis=-1)
    return _joined(found) if is_flat else found


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(call: Call) -> Any:
    if not (call.has(1) and call.has(2)) or rank_of(call[1]) != 3 or any(call.has(i) for i in (6, 7)):
        call.unsupported("packed or cached keys and values")
    q, k, v, heads = call[0], call[1], call[2], int(call.attribute("num_heads"))
    if call.has(3):
        parts = rnp.split(call[3], [q.shape[-1], q.shape[-1] + k.shape[-1]])
        q, k, v = (x + part for x, part in zip((q, k, v), parts))
    mask = call.optional(4)
    bias = call.optional(5)
    return _of_heads(call, _heads(q, heads), _heads(k, heads), _heads(v, heads), mask, bias)


@rule("Attention", domain=MICROSOFT)
def _packed_attention(call: Call) -> Any:
    if call.has(4) or call.attribute("qkv_hidden_sizes") or call.attribute("do_rotary", 0):
        call.unsupported("a cache, rotary positions, or widths that differ,")
    heads = int(call.attribute("num_heads"))
    joined = rnp.matmul(call[0], call[1])
    q, k, v = rnp.split(joined if not call.has(2) else joined + call[2], 3, axis=-1)
    return _of_heads(call, _heads(q, heads), _heads(k, heads), _heads(v, heads), call.optional(3), call.optional(5))


def _of_heads(call: Call, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
    scale = call.attribute("scale") or 1 / math.sqrt(q.shape[-1])
    scores = rnp.matmul(q, rnp.swapaxes(k, -1, -2)) * np.asarray(scale, dtype_of(q).numpy)
    if bias is not None:
        scores = scores + bias
    least = np.asarray(call.attribute("mask_filter_value", -10000.0), dtype_of(q).numpy)
    if mask is not None:
        hidden = _hidden(call, mask, q.shape[0], k.shape[2])
        scores = scores + rnp.where(hidden, least, np.zeros((), dtype_of(q).numpy))
    if call.attribute("unidirectional", 0):
        rows, columns = (ops.iota((q.shape[2], k.shape[2]), DType.I32, axis) for axis in (0, 1))
        scores = scores + rnp.where(rnp.greater(columns, rows), least, np.zeros((), dtype_of(q).numpy))
    return _joined(rnp.matmul(nn.softmax(scores, axis=-1), v))


def _hidden(call: Call, mask: Any, batch: Any, keys: Any) -> Any:
    """Which keys a mask of Microsoft's ops hides, beside scores: it holds 0 for them, or how many keys there are."""
    if rank_of(mask) == 1 and mask.shape[0] == batch:
        return rnp.greater_equal(ops.iota((1, 1, 1, keys), DType.I32, 3), rnp.reshape(mask, (-1, 1, 1, 1)))
    if rank_of(mask) not in (2, 3):
        call.unsupported("a mask that is neither [batch], [batch, keys] nor [batch, queries, keys]")
    return rnp.expand_dims(rnp.equal(mask, 0), (1, 2) if rank_of(mask) == 2 else 1)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embedded(call: Call) -> Any:
    ids = call[0]
    places = rnp.take(call[3], call[8], axis=0) if call.has(8) else call[3][: ids.shape[1]]
    total = rnp.take(call[2], ids, axis=0) + places
    if call.has(1):
        total = total + rnp.take(call[4], call[1], axis=0)
    y = nn.layer_norm(total, call[5], call[6], eps=call.attribute("epsilon", 1e-12))
    counts = rnp.astype(rnp.sum(call[7], axis=1), DType.I32) if call.has(7) else rnp.zeros((ids.shape[0],), DType.I32)
    return y, counts, total
