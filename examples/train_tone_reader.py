"""Teach a small Whisper model to write down melodies, and let `rlx transcribe` read a recording with it.

    python examples/train_tone_reader.py --out tone_reader
    rlx transcribe tone_reader/melody.wav --model tone_reader

The model is a Python function on weights that have the names of a Hugging Face file. It learns from tones made here:
up to five notes in two seconds, in any octave and with any overtones, in noise. What comes out is a directory that
`rlx.load_speech` and transformers read, and a melody of eight seconds to try it on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import audio
from rlx.formats.safetensors import write_safetensors

NOTES = ["do", "re", "mi", "fa", "so", "la", "ti"]
HALF_STEPS = [0, 2, 4, 5, 7, 9, 11]
START, END, NO_TIMES = len(NOTES), len(NOTES) + 1, len(NOTES) + 2
RATE, SECONDS, MOST = 16000, 2.0, 5
CONFIG = {
    "model_type": "whisper",
    "vocab_size": len(NOTES) + 3,
    "num_mel_bins": 80,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 128,
    "max_source_positions": int(SECONDS * 50),
    "max_target_positions": MOST + 4,
    "activation_function": "gelu",
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "bos_token_id": END,
    "pad_token_id": END,
}
GENERATION = {"decoder_start_token_id": START, "eos_token_id": END, "no_timestamps_token_id": NO_TIMES}

Params = dict[str, Any]


def initial_params(seed: int) -> Params:
    """Weights by their names in the file."""
    rng = np.random.default_rng(seed)
    d, params = CONFIG["d_model"], {}

    def matrix(name: str, *dims: int) -> None:
        params[name] = (rng.standard_normal(dims) * np.prod(dims[1:]) ** -0.5).astype("f4")

    def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> None:
        matrix(f"{name}.weight", outputs, inputs)
        if bias:
            params[f"{name}.bias"] = np.zeros(outputs, "f4")

    def norm(name: str) -> None:
        params[f"{name}.weight"], params[f"{name}.bias"] = np.ones(d, "f4"), np.zeros(d, "f4")

    for name, channels in (("conv1", CONFIG["num_mel_bins"]), ("conv2", d)):
        matrix(f"model.encoder.{name}.weight", d, channels, 3)
        params[f"model.encoder.{name}.bias"] = np.zeros(d, "f4")
    for side, places in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        params[f"model.{side}.embed_positions.weight"] = waves(CONFIG[places], d)
        norm(f"model.{side}.layer_norm")
        for i in range(CONFIG[f"{side}_layers"]):
            prefix = f"model.{side}.layers.{i}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{prefix}.{attention}.{part}", d, d, bias=part != "k_proj")
                norm(f"{prefix}.{attention}_layer_norm")
            linear(f"{prefix}.fc1", CONFIG[f"{side}_ffn_dim"], d)
            linear(f"{prefix}.fc2", d, CONFIG[f"{side}_ffn_dim"])
            norm(f"{prefix}.final_layer_norm")
    params["model.decoder.embed_tokens.weight"] = 0.3 * rng.standard_normal((CONFIG["vocab_size"], d)).astype("f4")
    return params


def waves(places: int, width: int) -> Any:
    """Sines and cosines of rising wavelength: neighbours are similar from the start."""
    angle = np.arange(places)[:, None] * np.exp(-np.log(10000) * np.arange(width // 2) / (width // 2 - 1))
    return np.concatenate([np.sin(angle), np.cos(angle)], -1).astype("f4")


def linear(p: Params, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def norm(p: Params, name: str, x: Any) -> Any:
    return rlx.nn.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], eps=1e-5)


def attention(p: Params, name: str, x: Any, read: Any, heads: int, causal: bool = False) -> Any:
    """x [B, S, D] looks at read [B, T, D]."""

    def split(y: Any) -> Any:
        return y.reshape(*y.shape[:2], heads, -1)

    q, k, v = (split(linear(p, f"{name}.{part}_proj", y)) for part, y in (("q", x), ("k", read), ("v", read)))
    return linear(p, f"{name}.out_proj", rlx.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(*x.shape))


def feed_forward(p: Params, name: str, x: Any) -> Any:
    up = linear(p, f"{name}.fc1", norm(p, f"{name}.final_layer_norm", x))
    return x + linear(p, f"{name}.fc2", rlx.nn.gelu(up, approximate=False))


def logits(p: Params, features: Any, tokens: Any) -> Any:
    """[B, T, V] of features [B, mels, frames] and tokens [B, T]."""
    x = features
    for name, stride in (("conv1", 1), ("conv2", 2)):
        kernel, bias = p[f"model.encoder.{name}.weight"], p[f"model.encoder.{name}.bias"]
        x = rlx.nn.gelu(rlx.nn.conv(x, kernel, bias, stride=stride, padding=1), approximate=False)
    x = rnp.swapaxes(x, 1, 2) + p["model.encoder.embed_positions.weight"]
    for i in range(CONFIG["encoder_layers"]):
        name = f"model.encoder.layers.{i}"
        h = norm(p, f"{name}.self_attn_layer_norm", x)
        x = x + attention(p, f"{name}.self_attn", h, h, CONFIG["encoder_attention_heads"])
        x = feed_forward(p, name, x)
    heard = norm(p, "model.encoder.layer_norm", x)
    table = p["model.decoder.embed_tokens.weight"]
    x = table[tokens] + p["model.decoder.embed_positions.weight"][: tokens.shape[1]]
    for i in range(CONFIG["decoder_layers"]):
        name = f"model.decoder.layers.{i}"
        h = norm(p, f"{name}.self_attn_layer_norm", x)
        x = x + attention(p, f"{name}.self_attn", h, h, CONFIG["decoder_attention_heads"], causal=True)
        h = norm(p, f"{name}.encoder_attn_layer_norm", x)
        x = x + attention(p, f"{name}.encoder_attn", h, heard, CONFIG["decoder_attention_heads"])
        x = feed_forward(p, name, x)
    return norm(p, "model.decoder.layer_norm", x) @ table.T


def melody(notes: Any, rng: np.random.Generator) -> Any:
    """Samples of one window: notes one after the other, of different lengths, timbre and strength."""
    total = int(RATE * SECONDS)
    ends = np.cumsum(rng.uniform(0.7, 1.3, len(notes)))
    ends = (ends / ends[-1] * total * rng.uniform(0.85, 1.0)).astype(int)
    octave, strength = rng.integers(0, 3), rng.uniform(0.1, 0.5)
    overtones = rng.uniform(0, 0.6, 4) ** np.arange(1, 5)
    wave, start = np.zeros(total), 0
    for note, end in zip(notes, ends):
        time = np.arange(end - start) / RATE
        tone = 220.0 * 2 ** (octave + HALF_STEPS[note] / 12) * rng.uniform(0.99, 1.01)
        sound = np.sin(2 * np.pi * tone * time)
        sound += sum(a * np.sin(2 * np.pi * (k + 2) * tone * time) for k, a in enumerate(overtones))
        wave[start:end] = sound * np.minimum(1, time / 0.02) * np.exp(-1.5 * time)
        start = end
    return (strength * wave + 0.01 * rng.standard_normal(total)).astype("f4")


def random_notes(rng: np.random.Generator) -> list[int]:
    """One to five notes, no two neighbours the same."""
    notes = [int(rng.integers(len(NOTES)))]
    for _ in range(rng.integers(0, MOST)):
        notes.append(int((notes[-1] + rng.integers(1, len(NOTES))) % len(NOTES)))
    return notes


def lessons(count: int, seed: int) -> tuple[Any, Any, Any]:
    """Features [n, mels, frames], tokens [n, T] and what should follow each of them, -1 where nothing."""
    rng = np.random.default_rng(seed)
    chosen = [random_notes(rng) for _ in range(count)]
    features = rlx.jit(audio.whisper_log_mel)
    heard = np.stack([np.asarray(features(melody(notes, rng))) for notes in chosen])
    tokens = np.full((count, MOST + 2), END, np.int32)
    follow = np.full((count, MOST + 2), -1, np.int32)
    for row, notes in enumerate(chosen):
        tokens[row, : len(notes) + 2] = [START, NO_TIMES, *notes]
        follow[row, 1 : len(notes) + 2] = [*notes, END]
    return heard, tokens, follow


def loss(p: Params, features: Any, tokens: Any, follow: Any) -> Any:
    each = rlx.nn.softmax_cross_entropy_with_integer_labels(logits(p, features, tokens), rnp.maximum(follow, 0))
    counts = (follow >= 0).astype("float32")
    return rnp.sum(each * counts) / rnp.sum(counts)


def train(steps: int, seed: int = 0, size: int = 32) -> tuple[Params, list[float]]:
    heard, tokens, follow = lessons(2000, seed)

    @rlx.jit
    def update(p: Params, m: Params, v: Params, rate: Any, t: Any, batch: Any) -> Any:
        value, slope = rlx.value_and_grad(loss)(p, *batch)
        m = rlx.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, slope)
        v = rlx.tree.map(lambda a, g: 0.98 * a + 0.02 * g * g, v, slope)
        scale = rate * rnp.sqrt(1 - 0.98**t) / (1 - 0.9**t)
        return value, rlx.tree.map(lambda w, a, b: w - scale * a / (rnp.sqrt(b) + 1e-8), p, m, v), m, v

    p = initial_params(seed)
    m = v = rlx.tree.map(np.zeros_like, p)
    rng, losses = np.random.default_rng(seed + 1), []
    for t in range(1, steps + 1):
        rows = rng.integers(0, len(tokens), size)
        rate = np.float32(2e-3 * min(1, t / 50) * (1 - 0.9 * t / steps))
        value, p, m, v = update(p, m, v, rate, np.float32(t), (heard[rows], tokens[rows], follow[rows]))
        losses.append(float(value))
        if t % 100 == 0:
            print(f"step {t}: loss {np.mean(losses[-50:]):.3f}", flush=True)
    return {name: np.asarray(w) for name, w in p.items()}, losses


def save(folder: Path, params: Params) -> None:
    """A Hugging Face directory, with a vocabulary of words."""
    import tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", params)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=1))
    special = ["<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"]
    words = {word: i for i, word in enumerate([*NOTES, *special])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<|endoftext|>"))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tone_reader"))
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    params, _ = train(args.steps)
    save(args.out, params)
    rng = np.random.default_rng(99)
    played = [random_notes(rng) for _ in range(4)]
    wave = np.concatenate([melody(notes, rng) for notes in played])
    audio.write_wav(args.out / "melody.wav", wave, RATE)
    print("played:", " ".join(NOTES[n] for notes in played for n in notes))
    print("read:  ", rlx.load_speech(args.out).transcribe(args.out / "melody.wav").text)


if __name__ == "__main__":
    main()
