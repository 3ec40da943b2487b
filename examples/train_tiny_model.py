"""Train a small Llama-shaped language model from scratch and write it as a GGUF file.

    python examples/train_tiny_model.py path/to/text.txt --out tiny.gguf --steps 3000
    rlx generate tiny.gguf --prompt "ROMEO:"

Everything is rlx: the tokenizer is learnt here (byte-level BPE), the model is a Python function, `rlx.value_and_grad`
differentiates it, one `rlx.jit` program per step computes loss, gradients and the AdamW update. The model that the
package ships for machines without a network was made by this script.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp

END = "<|endoftext|>"


class Sizes(NamedTuple):
    """The shape of the model; all weights have rows of a multiple of 32, which is what Q8_0 blocks need."""

    vocab: int = 1024
    width: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    hidden: int = 512
    context: int = 256

    @property
    def head_width(self) -> int:
        return self.width // self.heads


# Tokenizer: byte-level BPE.


def byte_letters() -> dict[int, str]:
    """A printable letter for every byte: itself where it is printable, else one from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The most frequent pair of neighbours becomes one token, `count` times."""
    letters = byte_letters()
    pieces = {w: [letters[b] for b in w.encode()] for w in words}
    pairs: Counter[tuple[str, str]] = Counter()
    for word, parts in pieces.items():
        for pair in pairwise(parts):
            pairs[pair] += words[word]
    merges: list[tuple[str, str]] = []
    while len(merges) < count and pairs:
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for word, parts in pieces.items():
            if (changed := joined(parts, best)) is parts:
                continue
            pairs.subtract({p: n * words[word] for p, n in Counter(pairwise(parts)).items()})
            pairs.update({p: n * words[word] for p, n in Counter(pairwise(changed)).items()})
            pieces[word] = changed
        del pairs[best]
    return merges


def joined(parts: list[str], pair: tuple[str, str]) -> list[str]:
    if pair not in pairwise(parts):
        return parts
    result: list[str] = []
    for part in parts:
        if result and (result[-1], part) == pair:
            result[-1] += part
        else:
            result.append(part)
    return result


class Vocabulary:
    """Tokens, merges, and the ids of a text; words are cut as GPT-2 cuts them."""

    def __init__(self, text: str, size: int) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        self._cutter = ByteLevel(add_prefix_space=False)
        letters = byte_letters()
        back = {v: k for k, v in letters.items()}
        cut = [bytes(back[c] for c in word).decode() for word, _ in self._cutter.pre_tokenize_str(text)]
        words = Counter(cut)
        self.merges = learn_merges(words, size - 256 - 1)
        self.tokens = [*letters.values(), *(a + b for a, b in self.merges), END]
        ids = {t: i for i, t in enumerate(self.tokens)}
        rank = {pair: i for i, pair in enumerate(self.merges)}
        known: dict[str, list[int]] = {}
        for word in words:
            parts = [letters[b] for b in word.encode()]
            while pairs := [p for p in pairwise(parts) if p in rank]:
                parts = joined(parts, min(pairs, key=rank.__getitem__))
            known[word] = [ids[p] for p in parts]
        self.ids = np.array([i for word in cut for i in known[word]], np.int32)


# The model.


def initial_params(sizes: Sizes, seed: int) -> dict[str, Any]:
    """Weights by their GGUF names, as matrices [in, out]; those that end a residual branch start smaller."""
    rng = np.random.default_rng(seed)
    d, f, kv = sizes.width, sizes.hidden, sizes.kv_heads * sizes.head_width

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(rows)).astype("f4")

    params: dict[str, Any] = {"token_embd": (rng.standard_normal((sizes.vocab, d)) * 0.02).astype("f4")}
    small = 1.0 / np.sqrt(2 * sizes.layers)
    for i in range(sizes.layers):
        params |= {
            f"blk.{i}.attn_norm": np.ones(d, "f4"),
            f"blk.{i}.attn_q": matrix(d, d),
            f"blk.{i}.attn_k": matrix(d, kv),
            f"blk.{i}.attn_v": matrix(d, kv),
            f"blk.{i}.attn_output": matrix(d, d, small),
            f"blk.{i}.ffn_norm": np.ones(d, "f4"),
            f"blk.{i}.ffn_gate": matrix(d, f),
            f"blk.{i}.ffn_up": matrix(d, f),
            f"blk.{i}.ffn_down": matrix(f, d, small),
        }
    return params | {"output_norm": np.ones(d, "f4")}


EPSILON = 1e-5
ROPE_BASE = 10000.0


def forward(params: dict[str, Any], tokens: Any, sizes: Sizes) -> Any:
    """Logits [B, S, vocab] of token ids [B, S]."""
    batch, length = tokens.shape
    x = params["token_embd"][tokens]
    for i in range(sizes.layers):
        p = {name.removeprefix(f"blk.{i}."): w for name, w in params.items() if name.startswith(f"blk.{i}.")}
        h = rlx.nn.rms_norm(x, p["attn_norm"], eps=EPSILON)
        q = (h @ p["attn_q"]).reshape(batch, length, sizes.heads, sizes.head_width)
        k, v = ((h @ p[n]).reshape(batch, length, sizes.kv_heads, sizes.head_width) for n in ("attn_k", "attn_v"))
        q, k = (rlx.nn.rope(t, theta=ROPE_BASE, interleaved=True) for t in (q, k))
        out = rlx.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + out.reshape(batch, length, sizes.width) @ p["attn_output"]
        h = rlx.nn.rms_norm(x, p["ffn_norm"], eps=EPSILON)
        x = x + (rlx.nn.silu(h @ p["ffn_gate"]) * (h @ p["ffn_up"])) @ p["ffn_down"]
    return rlx.nn.rms_norm(x, params["output_norm"], eps=EPSILON) @ params["token_embd"].T


def loss_of(params: dict[str, Any], window: Any, sizes: Sizes) -> Any:
    logits = forward(params, window[:, :-1], sizes)
    return rnp.mean(rlx.nn.softmax_cross_entropy_with_integer_labels(logits, window[:, 1:]))


# AdamW.

DECAY, BETA1, BETA2 = 0.1, 0.9, 0.95


def update(params: dict[str, Any], state: dict[str, Any], window: Any, rate: Any, step: Any, sizes: Sizes) -> Any:
    loss, gradients = rlx.value_and_grad(lambda p: loss_of(p, window, sizes))(params)
    norm = rnp.sqrt(sum(rnp.sum(g * g) for g in gradients.values()))
    scale = rnp.minimum(1.0, 1.0 / (norm + 1e-6))
    new_params, new_state = {}, {}
    for name, weight in params.items():
        g = gradients[name] * scale
        m = BETA1 * state[name][0] + (1 - BETA1) * g
        v = BETA2 * state[name][1] + (1 - BETA2) * g * g
        change = (m / (1 - BETA1**step)) / (rnp.sqrt(v / (1 - BETA2**step)) + 1e-8)
        if len(weight.shape) == 2:
            change = change + DECAY * weight
        new_params[name], new_state[name] = weight - rate * change, (m, v)
    return loss, new_params, new_state


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Up in the first 100 steps, then down along a cosine to a tenth."""
    if step < 100:
        return peak * (step + 1) / 100
    return float(peak * (0.1 + 0.45 * (1 + np.cos(np.pi * (step - 100) / max(1, steps - 100)))))


def train(ids: np.ndarray[Any, Any], sizes: Sizes, args: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(args.seed)
    params = initial_params(sizes, args.seed)
    state = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in params.items()}
    step_program = rlx.jit(lambda p, s, w, r, t: update(p, s, w, r, t, sizes), donate_argnums=(0, 1))
    start, kept = time.perf_counter(), 0.0
    for step in range(args.steps):
        starts = rng.integers(0, len(ids) - args.length - 1, args.batch)
        window = np.stack([ids[s : s + args.length + 1] for s in starts])
        rate = np.float32(learning_rate(step, args.steps, args.rate))
        loss, params, state = step_program(params, state, window, rate, np.float32(step + 1))
        kept = float(loss) if step == 0 else 0.98 * kept + 0.02 * float(loss)
        if step % 20 == 0 or step == args.steps - 1:
            spent = time.perf_counter() - start
            tokens = (step + 1) * args.batch * args.length
            print(f"step {step:5}  loss {kept:.3f}  {tokens / spent:,.0f} tokens/s", file=sys.stderr, flush=True)
    return {name: np.asarray(w) for name, w in params.items()}


def save(path: Path, params: dict[str, Any], vocabulary: Vocabulary, sizes: Sizes) -> None:
    """A GGUF file: matrices [out, in] in Q8_0, the rest in f32."""
    from rlx.formats.gguf import GgufTensor, quantize, write_gguf

    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "rlx tiny",
        "llama.block_count": sizes.layers,
        "llama.context_length": sizes.context,
        "llama.embedding_length": sizes.width,
        "llama.feed_forward_length": sizes.hidden,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": np.float32(EPSILON),
        "llama.rope.freq_base": np.float32(ROPE_BASE),
        "llama.rope.dimension_count": sizes.head_width,
        "llama.vocab_size": len(vocabulary.tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(vocabulary.tokens) - 1) + [3], np.int32),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in vocabulary.merges],
        "tokenizer.ggml.bos_token_id": len(vocabulary.tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(vocabulary.tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    tensors = []
    for name, weight in params.items():
        # Embeddings are rows already; products are stored [out, in].
        value = np.ascontiguousarray(weight if name == "token_embd" else weight.T)
        kind = "Q8_0" if weight.ndim == 2 else "F32"
        tensors.append(GgufTensor(f"{name}.weight", value.shape, kind, quantize(value, kind)))
    write_gguf(path, metadata, tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text file to learn from")
    parser.add_argument("--out", type=Path, default=Path("tiny.gguf"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of one training window")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sizes = Sizes()
    vocabulary = Vocabulary(args.text.read_text(encoding="utf-8"), sizes.vocab)
    print(f"{len(vocabulary.ids):,} tokens of {sizes.vocab} kinds", file=sys.stderr)
    params = train(vocabulary.ids, sizes, args)
    save(args.out, params, vocabulary, sizes)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
