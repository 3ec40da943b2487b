"""Plain f64 NumPy forward passes of a llama and a BERT, written from the papers, as oracles: whole sequence at once, no
cache, no batch."""

from __future__ import annotations

import numpy as np
from scipy.special import erf


def rms_norm(x, gamma, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gamma


def layer_norm(x, gamma, beta, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * gamma + beta


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x, base, interleaved):
    """Each pair of features of x [S, D] as a complex number, times e^(i·position·frequency)."""
    seq, width = x.shape
    angle = np.outer(np.arange(seq), base ** (-np.arange(0, width, 2) / width))
    turn = np.exp(1j * angle)
    if interleaved:
        z = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
        return np.stack([z.real, z.imag], -1).reshape(seq, width)
    z = (x[:, : width // 2] + 1j * x[:, width // 2 :]) * turn
    return np.concatenate([z.real, z.imag], -1)


# Queries whose scores are in memory at once: a long text has more pairs than there is room for.
CHUNK = 512


def causal_attention(q, k, v, positions):
    """Softmax of q·k over the keys up to the position of each row of q, times v."""
    out = []
    for start in range(0, len(q), CHUNK):
        rows, at = q[start : start + CHUNK], positions[start : start + CHUNK]
        end = at.max() + 1
        scores = rows @ k[:end].T / np.sqrt(q.shape[1])
        out.append(softmax(np.where(np.arange(end) <= at[:, None], scores, -np.inf)) @ v[:end])
    return np.concatenate(out)


class _Exact:
    """Weights in f64, each when it is asked for."""

    def __init__(self, weights):
        self._weights = weights

    def __getitem__(self, name):
        return np.asarray(self._weights[name], np.float64)


def llama_logits(
    w,
    tokens,
    *,
    layers,
    heads,
    kv_heads,
    base,
    eps,
    interleaved,
    head="output.weight",
    stored=lambda rows: rows,
    positions=None,
):
    """f64[S, V] from weights `w` by GGUF names; linear weights are [out, in].

    `stored` is what a cache makes of the keys or values [S, D] of one head. Norms of the queries and keys of heads are
    those of qwen3. With `positions` only the rows of those are computed, where that can be.
    """
    weights, w = w, _Exact(w)
    x = np.asarray(weights["token_embd.weight"][np.asarray(tokens)], np.float64)
    for i in range(layers):
        b = f"blk.{i}."
        is_last = i == layers - 1 and positions is not None
        at = np.asarray(positions) if is_last else np.arange(len(tokens))
        h = rms_norm(x, w[b + "attn_norm.weight"], eps)
        q, k, v = (h @ w[f"{b}attn_{n}.weight"].T for n in "qkv")
        d = q.shape[1] // heads
        out = []
        for head_no in range(heads):
            shared = head_no // (heads // kv_heads)
            qh, kh = q[:, head_no * d : (head_no + 1) * d], k[:, shared * d : (shared + 1) * d]
            if f"{b}attn_q_norm.weight" in weights:
                qh, kh = (rms_norm(rows, w[f"{b}attn_{n}_norm.weight"], eps) for rows, n in ((qh, "q"), (kh, "k")))
            qh, kh = rotate(qh, base, interleaved), stored(rotate(kh, base, interleaved))
            out.append(causal_attention(qh[at], kh, stored(v[:, shared * d : (shared + 1) * d]), at))
        x = x[at] + np.concatenate(out, -1) @ w[b + "attn_output.weight"].T
        h = rms_norm(x, w[b + "ffn_norm.weight"], eps)
        gate = h @ w[b + "ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (h @ w[b + "ffn_up.weight"].T)
        x = x + inner @ w[b + "ffn_down.weight"].T
    x = rms_norm(x, w["output_norm.weight"], eps)
    return x @ w[head if head in weights else "token_embd.weight"].T


def bert_hidden(w, tokens, *, layers, heads, eps, prefix="bert."):
    """f64[S, D]: the last hidden states of one unpadded sequence, from weights by Hugging Face names."""
    w = {name.removeprefix(prefix): np.asarray(value, np.float64) for name, value in w.items()}

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps)

    seq = len(tokens)
    x = w["embeddings.word_embeddings.weight"][np.asarray(tokens)]
    x = x + w["embeddings.position_embeddings.weight"][:seq] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(layers):
        b = f"encoder.layer.{i}."
        q, k, v = (linear(x, f"{b}attention.self.{n}") for n in ("query", "key", "value"))
        d = x.shape[1] // heads
        parts = [slice(h * d, (h + 1) * d) for h in range(heads)]
        mixed = np.concatenate([softmax(q[:, p] @ k[:, p].T / np.sqrt(d)) @ v[:, p] for p in parts], -1)
        x = norm(x + linear(mixed, b + "attention.output.dense"), b + "attention.output.LayerNorm")
        inner = linear(x, b + "intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
        x = norm(x + linear(inner, b + "output.dense"), b + "output.LayerNorm")
    return x
