"""Layers of sequences [B, T, width]: attention, feed-forward and transformer blocks, experts, LSTM, GRU.

block = nn.transformer_block(heads=6, hidden=1536, is_causal=True)
params = block.init(key, (8, 128, 384))
y = block.apply(params, x, key)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import rlx
import rlx.numpy as rnp
from rlx import random
from rlx.errors import OpError, ShapeError
from rlx.nn import initializers
from rlx.nn.activations import gelu, sigmoid, silu, softmax, tanh
from rlx.nn.attention_functions import dot_product_attention, rope
from rlx.nn.layer_pairs import Dims, Layer, chain, dense, dropout_layer, norm_layer, residual

__all__ = ["feed_forward", "gru", "load_balance_loss", "lstm", "moe", "self_attention", "transformer_block"]


def _same(shape: Sequence[int]) -> Dims:
    return tuple(shape)


def _require_sequence(what: str, shape: Sequence[int]) -> None:
    if len(shape) != 3:
        raise ShapeError(f"{what}: x must be [B, T, width], got the shape {tuple(shape)}")


def self_attention(
    heads: int,
    *,
    kv_heads: int | None = None,
    is_causal: bool = False,
    use_rope: bool = False,
    rope_theta: float = 10000.0,
    use_bias: bool = False,
) -> Layer:
    """Every position looks at all others, or at earlier ones; `kv_heads` below `heads` are shared by groups of them.

    The weights are "q", "k", "v" and "out", each a dense layer's.
    """
    shared = heads if kv_heads is None else kv_heads
    if heads < 1 or shared < 1 or heads % shared:
        raise OpError(f"self_attention: heads must be a multiple of kv_heads, got {heads} and {shared}")

    def parts(width: int) -> dict[str, Layer]:
        if width % heads:
            raise ShapeError(f"self_attention: the width {width} is not a multiple of {heads} heads")
        sizes = {"q": width, "k": width // heads * shared, "v": width // heads * shared, "out": width}
        return {name: dense(size, use_bias=use_bias) for name, size in sizes.items()}

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        _require_sequence("self_attention", shape)
        made = parts(shape[-1])
        return {name: part.init(random.fold_in(key, n), shape) for n, (name, part) in enumerate(made.items())}

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        batch, length, width = x.shape
        made = parts(width)
        q, k, v = (
            made[name].apply(params[name], x).reshape(batch, length, count, width // heads)
            for name, count in (("q", heads), ("k", shared), ("v", shared))
        )
        if use_rope:
            q, k = (rope(t, theta=rope_theta) for t in (q, k))
        seen = dot_product_attention(q, k, v, is_causal=is_causal)
        return made["out"].apply(params["out"], seen.reshape(batch, length, width))

    return Layer(init, apply, _same)


def feed_forward(
    hidden: int, *, activation: Callable[[Any], Any] | None = None, gated: bool = False, use_bias: bool = True
) -> Layer:
    """Up to `hidden` features and back: down(act(up(x))), or down(act(gate(x))·up(x)) with `gated`.

    The activation is gelu, and silu where it is gated.
    """
    act = (silu if gated else gelu) if activation is None else activation
    names = ("gate", "up") if gated else ("up",)

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        up, down = dense(hidden, use_bias=use_bias), dense(shape[-1], use_bias=use_bias)
        params = {name: up.init(random.fold_in(key, n), shape) for n, name in enumerate(names)}
        return params | {"down": down.init(random.fold_in(key, 2), (*shape[:-1], hidden))}

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        up = dense(hidden, use_bias=use_bias)
        inner = act(up.apply(params[names[0]], x))
        if gated:
            inner = inner * up.apply(params["up"], x)
        return dense(x.shape[-1], use_bias=use_bias).apply(params["down"], inner)

    return Layer(init, apply, _same)


def transformer_block(
    heads: int,
    hidden: int,
    *,
    kv_heads: int | None = None,
    is_causal: bool = False,
    norm: str = "layer",
    gated: bool = False,
    use_rope: bool = False,
    use_bias: bool = False,
    dropout: float = 0.0,
    inner: Layer | None = None,
) -> Layer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); `inner` (such as `moe`) takes the place of the latter."""
    attention = self_attention(heads, kv_heads=kv_heads, is_causal=is_causal, use_rope=use_rope, use_bias=use_bias)
    forward = feed_forward(hidden, gated=gated, use_bias=use_bias) if inner is None else inner
    dropped = [dropout_layer(dropout)] if dropout else []
    whole = chain(
        residual(norm_layer(norm), attention, *dropped),
        residual(norm_layer(norm), forward, *dropped),
    )
    return Layer(whole.init, whole.apply, _same)


def moe(
    experts: int,
    hidden: int,
    *,
    top_k: int = 2,
    activation: Callable[[Any], Any] = gelu,
    capacity_factor: float | None = None,
) -> Layer:
    """Feed-forward experts, of which a router gives each token its `top_k`, weighted by the softmax of their scores.

    Every expert has room for tokens·top_k/experts·capacity_factor tokens, and what does not fit is left out; without a
    factor there is room for all. Use `load_balance_loss` to keep the experts evenly busy.
    """
    if not 1 <= top_k <= experts:
        raise OpError(f"moe: top_k must be between 1 and the {experts} experts, got {top_k}")

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        width = shape[-1]
        scale = initializers.lecun_normal()
        keys = [random.fold_in(key, n) for n in range(3)]
        return {
            "router": scale(keys[0], (width, experts)),
            "up": scale(keys[1], (experts, width, hidden)) * math.sqrt(experts),
            "down": scale(keys[2], (experts, hidden, width)) * math.sqrt(experts),
        }

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        width = x.shape[-1]
        tokens = x.reshape(-1, width)
        count = tokens.shape[0]
        scores, chosen = rlx.top_k(tokens @ params["router"], top_k)
        weights = softmax(scores).reshape(-1)
        expert = chosen.reshape(-1)
        room = _room(count, experts, top_k, capacity_factor)
        # The same number as a value: a symbolic size has one only when the program runs.
        places = room if isinstance(room, int) else rlx.dim_value(room)
        # The place of every choice among those of its expert, in the order of the tokens.
        taken = rnp.astype(rlx.one_hot(expert, experts), "i32")
        place = rnp.sum((rnp.cumsum(taken, axis=0) - 1) * taken, axis=1)
        fits = place < places
        slot = rnp.where(fits, expert * places + place, experts * places)
        rows = rnp.repeat(tokens, top_k, axis=0)
        buffer = rnp.zeros((experts * room + 1, width), x.dtype).at[slot].add(rows)
        inputs = buffer[:-1].reshape(experts, room, width)
        outputs = activation(inputs @ params["up"]) @ params["down"]
        back = outputs.reshape(experts * room, width)[rnp.where(fits, slot, 0)]
        share = rnp.where(fits, weights, 0)
        result = (back * share[:, None]).reshape(count, top_k, width).sum(1)
        return result.reshape(x.shape)

    return Layer(init, apply, _same)


def _room(tokens: Any, experts: int, top_k: int, capacity_factor: float | None) -> Any:
    """How many tokens an expert takes."""
    if capacity_factor is None:
        return tokens
    if not isinstance(tokens, int):
        raise ShapeError(f"moe: a capacity_factor needs a fixed number of tokens, got the symbolic size {tokens}")
    return math.ceil(capacity_factor * top_k * tokens / experts)


def load_balance_loss(scores: Any, top_k: int = 1) -> Any:
    """experts·Σ(share of choices · mean probability): 1 when all experts get as much (Fedus et al. 2021).

    `scores` are the router's, [tokens, experts]: `x.reshape(-1, width) @ params["router"]`.
    """
    experts = scores.shape[-1]
    _, chosen = rlx.top_k(scores, top_k)
    share = rnp.mean(rnp.astype(rlx.one_hot(chosen.reshape(-1), experts), scores.dtype), axis=0)
    return experts * rnp.sum(share * rnp.mean(softmax(scores), axis=0))


def _recurrent(
    size: int, gates: int, cell: Callable[[dict[str, Any], Any, Any], tuple[Any, Any]], start: int, reverse: bool
) -> Layer:
    """A layer that carries `start` vectors along the axis of time; weights as in torch, turned to [in, out]."""
    spread = initializers.uniform(2 / math.sqrt(size), low=-1 / math.sqrt(size))

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        _require_sequence("lstm" if gates == 4 else "gru", shape)
        shapes = {
            "wx": (shape[-1], gates * size),
            "wh": (size, gates * size),
            "bx": (gates * size,),
            "bh": (gates * size,),
        }
        return {name: spread(random.fold_in(key, n), dims) for n, (name, dims) in enumerate(shapes.items())}

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        # All products with inputs at once; only those with the carry wait for each other.
        inputs = rnp.swapaxes(x @ params["wx"] + params["bx"], 0, 1)
        zero = rnp.zeros((x.shape[0], size), inputs.dtype)
        _, outputs = rlx.scan(lambda carry, row: cell(params, carry, row), (zero,) * start, inputs, reverse=reverse)
        return rnp.swapaxes(outputs, 0, 1)

    return Layer(init, apply, lambda shape: (*shape[:-1], size))


def lstm(size: int, *, reverse: bool = False) -> Layer:
    """[B, T, width] to [B, T, size]: gates i, f, g, o; c = f·c + i·g; h = o·tanh(c). Starts at 0."""

    def cell(params: dict[str, Any], carry: Any, row: Any) -> tuple[Any, Any]:
        h, c = carry
        i, f, g, o = rnp.split(row + h @ params["wh"] + params["bh"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        return (h, c), h

    return _recurrent(size, 4, cell, 2, reverse)


def gru(size: int, *, reverse: bool = False) -> Layer:
    """[B, T, width] to [B, T, size]: gates r, z, n; n sees r·(h @ wh); h = (1 - z)·n + z·h. Starts at 0."""

    def cell(params: dict[str, Any], carry: Any, row: Any) -> tuple[Any, Any]:
        (h,) = carry
        r, z, n = rnp.split(row, 3, axis=-1)
        hr, hz, hn = rnp.split(h @ params["wh"] + params["bh"], 3, axis=-1)
        z = sigmoid(z + hz)
        h = (1 - z) * tanh(n + sigmoid(r + hr) * hn) + z * h
        return (h,), h

    return _recurrent(size, 3, cell, 1, reverse)
