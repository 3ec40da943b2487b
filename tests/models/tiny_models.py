"""Small models with random weights, made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx.models.config import DecoderConfig, EncoderConfig, RopeConfig
from rlx.models.encoder_names import HF_ENCODERS
from rlx.models.language_model import LanguageModel
from rlx.models.model_files import DecoderFiles
from rlx.models.text_encoder import TextEncoder
from rlx.models.weight_names import GGUF
from rlx.models.weights import WeightFile, plain_weight

LLAMA = DecoderConfig(
    family="llama",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=48,
    vocab=260,
    context=96,
    norm_eps=1e-5,
    rope=RopeConfig(base=10000.0, dims=8, style="gptj"),
)


BERT = EncoderConfig(
    family="bert",
    layers=2,
    hidden=24,
    heads=3,
    ffn=40,
    vocab=260,
    context=64,
    table_rows=64,
    token_types=2,
    pooling=("mean",),
)


def llama_arrays(config: DecoderConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by GGUF names."""
    rng = np.random.default_rng(seed)
    c, q, kv = config, config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = {
        "attn_norm": (c.hidden,),
        "attn_q": (q, c.hidden),
        "attn_k": (kv, c.hidden),
        "attn_v": (kv, c.hidden),
        "attn_output": (c.hidden, q),
        "ffn_norm": (c.hidden,),
        "ffn_gate": (c.ffn, c.hidden),
        "ffn_up": (c.ffn, c.hidden),
        "ffn_down": (c.hidden, c.ffn),
    }
    dims = {f"blk.{i}.{name}.weight": d for i in range(c.layers) for name, d in layer.items()}
    dims |= {"token_embd.weight": (c.vocab, c.hidden), "output_norm.weight": (c.hidden,)}
    if not c.tied:
        dims["output.weight"] = (c.vocab, c.hidden)
    return {
        name: (rng.normal(size=d) / (np.sqrt(d[-1]) if len(d) > 1 else 4) + (len(d) == 1)).astype(np.float32)
        for name, d in dims.items()
    }


def gguf_file(arrays: dict[str, np.ndarray]) -> WeightFile:
    return WeightFile("a test", GGUF, {name: plain_weight(a) for name, a in arrays.items()})


def byte_tokenizer(eos: int = 257):
    """A tokenizer whose ids are bytes; 256 begins a text where asked for, 257 ends an answer."""
    tokenizers = pytest.importorskip("tokenizers")
    from rlx.models.tokenizer import SpecialTokens, Tokenizer

    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {b: chr(b) for b in printable}
    spelled |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in printable)}
    assert set(spelled.values()) == set(alphabet)
    vocab = {spelled[b]: b for b in range(256)} | {"<s>": 256, "</s>": 257, "<x>": 258, "<y>": 259}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, SpecialTokens(bos_id=256, eos_ids=(eos,)))


def language_model(
    config: DecoderConfig = LLAMA, seed: int = 0, weights: WeightFile | None = None, eos: int = 257, **options
) -> LanguageModel:
    file = gguf_file(llama_arrays(config, seed)) if weights is None else weights
    return LanguageModel(DecoderFiles(Path("tiny"), config, file, lambda: byte_tokenizer(eos)), **options)


def bert_arrays(c: EncoderConfig, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    linear = {"q": c.hidden, "k": c.hidden, "v": c.hidden, "o": c.hidden, "up": c.ffn, "down": c.hidden}
    arrays = {}

    def put(name, *dims):
        arrays[name] = (rng.normal(size=dims) / np.sqrt(dims[-1])).astype(np.float32)

    names = HF_ENCODERS["bert"]
    put(names["embed"] + ".weight", c.vocab, c.hidden)
    put(names["positions"] + ".weight", c.table_rows, c.hidden)
    put(names["token_types"] + ".weight", 2, c.hidden)
    norms = [names["embed_norm"]]
    for i in range(c.layers):
        for role, outputs in linear.items():
            put(names[role].format(i=i) + ".weight", outputs, c.ffn if role == "down" else c.hidden)
            put(names[role].format(i=i) + ".bias", outputs)
        norms += [names[role].format(i=i) for role in ("attn_norm", "ffn_norm")]
    for name in norms:
        put(name + ".weight", c.hidden)
        put(name + ".bias", c.hidden)
        arrays[name + ".weight"] += 1
    return arrays


def encoder_weights(arrays: dict[str, np.ndarray]) -> WeightFile:
    return WeightFile("a test", HF_ENCODERS["bert"], {n: plain_weight(a) for n, a in arrays.items()})


def encoder(config: EncoderConfig = BERT, folder: Path = Path("tiny")) -> TextEncoder:
    return TextEncoder(config, encoder_weights(bert_arrays(BERT)), byte_tokenizer, folder)
