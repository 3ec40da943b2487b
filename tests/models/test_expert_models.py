"""A small mixture of experts whose weights are GGUF blocks, against a forward pass in f64 on the decoded weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from models.numpy_forward import rms_norm, rotate, softmax
from models.tiny_models import LLAMA, llama_arrays
from rlx.formats.gguf import open_gguf, quantize_file, write_gguf
from rlx.models.config import MoeConfig

MOE = MoeConfig(experts=6, top_k=2, ffn=64, renormalize=True)
CONFIG = replace(LLAMA, hidden=64, head_dim=16, rope=replace(LLAMA.rope, dims=16), moe=MOE)
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 256, 40)]


def moe_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {n: a for n, a in llama_arrays(CONFIG, seed).items() if ".ffn_" not in n or "norm" in n}
    for i in range(CONFIG.layers):
        for part, (n, k) in {"gate": (MOE.ffn, 64), "up": (MOE.ffn, 64), "down": (64, MOE.ffn)}.items():
            w = rng.normal(size=(MOE.experts, n, k)) / np.sqrt(k)
            arrays[f"blk.{i}.ffn_{part}_exps.weight"] = w.astype(np.float32)
        arrays[f"blk.{i}.ffn_gate_inp.weight"] = rng.normal(size=(MOE.experts, 64)).astype(np.float32)
    return arrays


METADATA = {
    "general.architecture": "llama",
    "llama.block_count": CONFIG.layers,
    "llama.context_length": CONFIG.context,
    "llama.embedding_length": CONFIG.hidden,
    "llama.feed_forward_length": MOE.ffn,
    "llama.attention.head_count": CONFIG.heads,
    "llama.attention.head_count_kv": CONFIG.kv_heads,
    "llama.attention.layer_norm_rms_epsilon": np.float32(CONFIG.norm_eps),
    "llama.expert_count": MOE.experts,
    "llama.expert_used_count": MOE.top_k,
}


def quantized_file(type: str, folder: Path) -> Path:
    write_gguf(folder / "plain.gguf", METADATA, moe_arrays())
    quantize_file(folder / "plain.gguf", folder / "model.gguf", type)
    return folder / "model.gguf"


def stored_weights(path: Path) -> dict[str, np.ndarray]:
    """What a file holds, decoded."""
    with open_gguf(path) as file:
        return {name: np.array(tensor.array(), np.float64) for name, tensor in file.tensors.items()}


def logits(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """f64[S, V]: attention over all before, then the two best experts of every token, weighted."""
    c, d, seq = CONFIG, CONFIG.head_dim, len(tokens)
    x = w["token_embd.weight"][tokens]
    visible = np.tril(np.ones((seq, seq), bool))
    for i in range(c.layers):
        b = f"blk.{i}."
        h = rms_norm(x, w[b + "attn_norm.weight"], c.norm_eps)
        q, k, v = (h @ w[f"{b}attn_{n}.weight"].T for n in "qkv")
        heads = []
        for head in range(c.heads):
            own, shared = (slice(j * d, (j + 1) * d) for j in (head, head // (c.heads // c.kv_heads)))
            scores = rotate(q[:, own], c.rope.base, True) @ rotate(k[:, shared], c.rope.base, True).T / np.sqrt(d)
            heads.append(softmax(np.where(visible, scores, -np.inf)) @ v[:, shared])
        x = x + np.concatenate(heads, -1) @ w[b + "attn_output.weight"].T
        h = rms_norm(x, w[b + "ffn_norm.weight"], c.norm_eps)
        chances = softmax(h @ w[b + "ffn_gate_inp.weight"].T)
        gate, up, down = (w[f"{b}ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        mixed = np.zeros_like(x)
        for t, row in enumerate(h):
            best = np.argsort(-chances[t])[: MOE.top_k]
            for e in best:
                opened = row @ gate[e].T
                inner = opened / (1 + np.exp(-opened)) * (row @ up[e].T)
                mixed[t] += chances[t, e] / chances[t, best].sum() * (inner @ down[e].T)
        x = x + mixed
    return rms_norm(x, w["output_norm.weight"], c.norm_eps) @ w["token_embd.weight" if c.tied else "output.weight"].T


@pytest.mark.parametrize("type", ["Q4_0", "Q8_0", "Q5_1"])
def test_a_quantised_mixture_is_the_model_of_its_decoded_weights(type, tmp_path):
    path = quantized_file(type, tmp_path)
    with open_gguf(path) as file:
        assert file.tensors["blk.1.ffn_down_exps.weight"].type.name == type
    wanted = logits(stored_weights(path), TOKENS)
    model = rlx.load(path, activations="f32")
    np.testing.assert_allclose(model.logits(TOKENS), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    session = model.session()
    session.prefill(TOKENS[:30])
    for position in range(30, len(TOKENS)):
        step = session.step(TOKENS[position])
        np.testing.assert_allclose(step, wanted[position], rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_nothing_of_a_mixture_runs_on_the_host(tmp_path):
    report = str(rlx.load(quantized_file("Q4_0", tmp_path)).report)
    assert "expert_matmul + silu + mul" in report and "no native kernel" not in report
