"""A small Whisper model with random weights as a Hugging Face directory, and what it computes, in plain NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlx.formats.safetensors import write_safetensors

CONFIG = {
    "model_type": "whisper",
    "vocab_size": 270,
    "num_mel_bins": 80,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 56,
    "max_source_positions": 50,
    "max_target_positions": 24,
    "activation_function": "gelu",
}
GENERATION = {
    "decoder_start_token_id": 258,
    "eos_token_id": 257,
    "no_timestamps_token_id": 263,
    "lang_to_id": {"<|en|>": 259, "<|de|>": 260},
    "task_to_id": {"transcribe": 261, "translate": 262},
    "suppress_tokens": list(range(256, 257)) + list(range(258, 270)),
    "begin_suppress_tokens": [32, 257],
}


def whisper_arrays(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by their names in a file."""
    rng = np.random.default_rng(seed)
    d = config["d_model"]
    dims: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (d, config["num_mel_bins"], 3),
        "model.encoder.conv1.bias": (d,),
        "model.encoder.conv2.weight": (d, d, 3),
        "model.encoder.conv2.bias": (d,),
        "model.encoder.embed_positions.weight": (config["max_source_positions"], d),
        "model.decoder.embed_positions.weight": (config["max_target_positions"], d),
        "model.decoder.embed_tokens.weight": (config["vocab_size"], d),
    }
    for side in ("encoder", "decoder"):
        for i in range(config[f"{side}_layers"]):
            prefix = f"model.{side}.layers.{i}"
            for module in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    dims[f"{prefix}.{module}.{part}.weight"] = (d, d)
                    if part != "k_proj":
                        dims[f"{prefix}.{module}.{part}.bias"] = (d,)
                dims |= {f"{prefix}.{module}_layer_norm.{part}": (d,) for part in ("weight", "bias")}
            ffn = config[f"{side}_ffn_dim"]
            dims |= {f"{prefix}.fc1.weight": (ffn, d), f"{prefix}.fc1.bias": (ffn,)}
            dims |= {f"{prefix}.fc2.weight": (d, ffn), f"{prefix}.fc2.bias": (d,)}
            dims |= {f"{prefix}.final_layer_norm.{part}": (d,) for part in ("weight", "bias")}
        dims |= {f"model.{side}.layer_norm.{part}": (d,) for part in ("weight", "bias")}
    return {
        name: (rng.normal(size=s) / (math.prod(s[1:]) ** 0.5 if len(s) > 1 else 3)).astype("f4")
        for name, s in dims.items()
    }


def write_whisper(
    folder: Path, config: dict | None = None, generation: dict | None = None, arrays: dict | None = None
) -> Path:
    """The directory of a model; the tokens are bytes and a few that mean something."""
    tokenizers = pytest.importorskip("tokenizers")
    config = CONFIG if config is None else config
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", whisper_arrays(config) if arrays is None else arrays)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION if generation is None else generation))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab |= {f"<|x{i}|>": i for i in range(256, config["vocab_size"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.add_special_tokens([f"<|x{i}|>" for i in range(256, config["vocab_size"])])
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return folder


class NumpyWhisper:
    """The same model in f64, without caches: every step computes everything again."""

    def __init__(self, config: dict, arrays: dict[str, np.ndarray]) -> None:
        self.c = config
        self.w = {name: a.astype("f8") for name, a in arrays.items()}

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def attention(self, x, read, name, heads, causal=False):
        q, k, v = (
            self.linear(y, f"{name}.{part}_proj").reshape(len(y), heads, -1).swapaxes(0, 1)
            for y, part in ((x, "q"), (read, "k"), (read, "v"))
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        y = (powers / powers.sum(-1, keepdims=True)) @ v
        return self.linear(y.swapaxes(0, 1).reshape(len(x), -1), f"{name}.out_proj")

    def feed_forward(self, x, name):
        up = self.linear(self.norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
        return x + self.linear(gelu(up), f"{name}.fc2")

    def encode(self, features):
        """Hidden states [S, D] of features [mels, frames]."""
        x = features.astype("f8")
        for name, stride in (("conv1", 1), ("conv2", 2)):
            kernel, bias = (self.w[f"model.encoder.{name}.{part}"] for part in ("weight", "bias"))
            windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1))), 3, axis=1)[:, ::stride]
            x = gelu(np.einsum("ock,csk->os", kernel, windows) + bias[:, None])
        x = x.T + self.w["model.encoder.embed_positions.weight"]
        for i in range(self.c["encoder_layers"]):
            name = f"model.encoder.layers.{i}"
            h = self.norm(x, f"{name}.self_attn_layer_norm")
            x = x + self.attention(h, h, f"{name}.self_attn", self.c["encoder_attention_heads"])
            x = self.feed_forward(x, name)
        return self.norm(x, "model.encoder.layer_norm")

    def logits(self, hidden, tokens):
        """Logits [V] after the last of `tokens`."""
        table = self.w["model.decoder.embed_tokens.weight"]
        x = table[tokens] + self.w["model.decoder.embed_positions.weight"][: len(tokens)]
        heads = self.c["decoder_attention_heads"]
        for i in range(self.c["decoder_layers"]):
            name = f"model.decoder.layers.{i}"
            h = self.norm(x, f"{name}.self_attn_layer_norm")
            x = x + self.attention(h, h, f"{name}.self_attn", heads, causal=True)
            h = self.norm(x, f"{name}.encoder_attn_layer_norm")
            x = x + self.attention(h, hidden, f"{name}.encoder_attn", heads)
            x = self.feed_forward(x, name)
        return self.norm(x[-1], "model.decoder.layer_norm") @ table.T

    def greedy(self, hidden, prompt, generation):
        """Tokens up to the end or a full context."""
        tokens = list(prompt)
        while len(tokens) <= self.c["max_target_positions"]:
            logits = self.logits(hidden, tokens)
            logits[generation["suppress_tokens"]] = -np.inf
            if len(tokens) == len(prompt):
                logits[generation["begin_suppress_tokens"]] = -np.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == generation["eos_token_id"]:
                return tokens[len(prompt) : -1]
        return tokens[len(prompt) :]


def gelu(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
