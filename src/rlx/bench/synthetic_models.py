"""Language models of real widths with random weights, for `rlx bench llm --shape 1b --type Q4_K`.

Speed depends on the widths, types and bytes of a model and not on what it says, and files of billions of parameters are
neither here nor quickly made. `synthetic_model` writes a GGUF file with the widths of a known model, fewer layers and
a smaller vocabulary, which rlx and llama.cpp both load. Weights are blocks of a small pool of Gaussian numbers, which
the format's own encoder made, picked at random: every block is one that a real file could have, and a file of half
a gigabyte is there in seconds. Norms are 1; matrices keep the size of what they multiply, logits have a deviation of 3.

    path = synthetic_model("1b", "Q4_K")        # made once, kept in the cache
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import RlxError
from rlx.formats.gguf import quantize, write_gguf
from rlx.formats.gguf.metadata import MetadataValue, TypedValue
from rlx.formats.gguf.quantizer import can_write, type_mix
from rlx.formats.gguf.tensor_types import TYPES, TensorType
from rlx.formats.gguf.type_mix import TypeMix, wanted_type
from rlx.formats.gguf.writer import PackedTensor
from rlx.models.pull_cache import lock, models_directory
from rlx.quant.decode import IQ4_VALUES

U8 = npt.NDArray[np.uint8]

FOLDER = "synthetic"
SEED = 16
# The real vocabularies have 128,256 and 151,936 entries: with few layers their matrix would be most of the work.
VOCABULARY = 32768
CONTEXT = 40960
LOGIT_DEVIATION = 3.0
# Numbers in the pool of a matrix.
POOL = 1 << 18
MODEL_TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q8_0", "Q4_K_M", "IQ4_NL", "F16", "BF16")


class ModelShape(NamedTuple):
    """The widths of a known model; `layers` of its `real_layers` are made."""

    name: str
    architecture: str
    layers: int
    real_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_base: float
    is_tied: bool

    @property
    def has_head_norms(self) -> bool:
        return self.architecture == "qwen3"


# About 450 million parameters each.
SHAPES = {
    "1b": ModelShape("Llama-3.2-1B", "llama", 8, 16, 2048, 8192, 32, 8, 64, 500000.0, True),
    "4b": ModelShape("Qwen3-4B", "qwen3", 4, 36, 2560, 9728, 32, 8, 128, 1000000.0, True),
    "8b": ModelShape("Llama-3-8B", "llama", 2, 32, 4096, 14336, 32, 8, 128, 500000.0, False),
}


def synthetic_model(shape: str, type: str, progress: Callable[[str], None] = lambda text: None) -> Path:
    """The file of a shape with all matrices in a type, or in the mix Q4_K_M; made where it is not there."""
    if shape not in SHAPES:
        raise RlxError(f"bench: no shape is called {shape!r}; there are: {', '.join(SHAPES)}")
    if type.upper() not in MODEL_TYPES:
        raise RlxError(f"bench: models are made in the types {', '.join(MODEL_TYPES)}, got {type!r}")
    target = models_directory() / FOLDER / f"{shape}-{type.upper()}-{SEED}.gguf"
    with lock(FOLDER):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            progress(f"making a model of {described(shape)} in {type.upper()}")
            write_model(target, SHAPES[shape], type.upper())
    return target


def described(shape: str) -> str:
    """
    >>> described("8b")
    "Llama-3-8B's widths, 2 of its 32 layers, vocabulary cut to 32768"
    """
    s = SHAPES[shape]
    return f"{s.name}'s widths, {s.layers} of its {s.real_layers} layers, vocabulary cut to {VOCABULARY}"


def write_model(path: Path, shape: ModelShape, type: str, vocabulary: int = VOCABULARY) -> None:
    """Write a model with random weights, the same in every run."""
    mix = TypeMix(type, False, None) if type in TYPES and not can_write(TYPES[type]) else type_mix(type)
    tensors: list[PackedTensor] = []
    for name, dims, deviation in _weights(shape, vocabulary):
        kind = wanted_type(mix, name, shape.layers, shape.is_tied) if len(dims) > 1 else TYPES["F32"]
        tensors.append(_RandomTensor(name, dims, kind, deviation))
    write_gguf(path, {**_settings(shape, vocabulary), **_tokenizer(vocabulary)}, tensors)


def _weights(s: ModelShape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Names, sizes [out, in] and deviations of all weights; those of one dimension are norms."""
    logits = LOGIT_DEVIATION / s.hidden**0.5
    yield "token_embd.weight", (vocabulary, s.hidden), logits
    for i in range(s.layers):
        yield f"blk.{i}.attn_norm.weight", (s.hidden,), 0.0
        for name, rows, columns in (
            ("attn_q", s.heads * s.head_dim, s.hidden),
            ("attn_k", s.kv_heads * s.head_dim, s.hidden),
            ("attn_v", s.kv_heads * s.head_dim, s.hidden),
            ("attn_output", s.hidden, s.heads * s.head_dim),
            ("ffn_gate", s.ffn, s.hidden),
            ("ffn_up", s.ffn, s.hidden),
            ("ffn_down", s.hidden, s.ffn),
        ):
            yield f"blk.{i}.{name}.weight", (rows, columns), columns**-0.5
        yield f"blk.{i}.ffn_norm.weight", (s.hidden,), 0.0
        if s.has_head_norms:
            yield f"blk.{i}.attn_q_norm.weight", (s.head_dim,), 0.0
            yield f"blk.{i}.attn_k_norm.weight", (s.head_dim,), 0.0
    yield "output_norm.weight", (s.hidden,), 0.0
    if not s.is_tied:
        yield "output.weight", (vocabulary, s.hidden), logits


class _RandomTensor:
    """A tensor that is made when its bytes are asked for."""

    def __init__(self, name: str, shape: tuple[int, ...], type: TensorType, deviation: float) -> None:
        self.name, self.shape, self.type, self._deviation = name, shape, type, deviation

    def data(self) -> U8:
        if len(self.shape) == 1:
            return np.ones(self.shape, "<f4").view(np.uint8)
        pool = block_pool(self.type, self._deviation)
        rng = np.random.default_rng([SEED, zlib.crc32(self.name.encode())])
        # Numbers that are no blocks are picked in runs as long as a block.
        run = len(pool) * pool.shape[1] // self.type.bytes * self.type.elements // len(pool)
        count = int(np.prod(self.shape)) // run
        return pool[rng.integers(0, len(pool), count, np.int32)].reshape(-1)


@cache
def block_pool(kind: TensorType, deviation: float) -> U8:
    """Gaussian numbers as blocks u8[count, bytes] of a type; floats in runs of 32."""
    numbers = np.random.default_rng(SEED).normal(0.0, deviation, POOL).astype(np.float32)
    packed = _iq4_nl(numbers) if kind.name == "IQ4_NL" else quantize(numbers, kind)
    elements = max(kind.elements, 32)
    return packed.reshape(POOL // elements, -1)


def _iq4_nl(numbers: npt.NDArray[np.float32]) -> U8:
    """Nearest values under a scale that takes the largest number to the end of the table."""
    blocks = numbers.reshape(-1, 32)
    step = (np.abs(blocks).max(1, keepdims=True) / -IQ4_VALUES[0]).astype(np.float16)
    codes = np.abs((blocks / step.astype(np.float32))[..., None] - IQ4_VALUES).argmin(-1).astype(np.uint8)
    return np.concatenate([step.view(np.uint8), codes[:, :16] | codes[:, 16:] << np.uint8(4)], axis=1)


def _settings(s: ModelShape, vocabulary: int) -> dict[str, MetadataValue | np.generic | TypedValue]:
    keys: dict[str, MetadataValue | np.generic | TypedValue] = {
        "block_count": s.layers,
        "context_length": CONTEXT,
        "embedding_length": s.hidden,
        "feed_forward_length": s.ffn,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "rope.freq_base": np.float32(s.rope_base),
        "rope.dimension_count": s.head_dim,
        "vocab_size": vocabulary,
    }
    named = {f"{s.architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": s.architecture, "general.name": f"random weights, {s.name}'s widths", **named}


def _tokenizer(vocabulary: int) -> dict[str, MetadataValue | np.generic | TypedValue]:
    """Byte pairs: every byte, then as many pairs of them as there is room for, and an end of text."""
    bytes_ = _byte_characters()
    pairs = [(a, b) for a in bytes_ for b in bytes_][: vocabulary - len(bytes_) - 1]
    tokens: list[MetadataValue] = [*bytes_, *(a + b for a, b in pairs), "<|end|>"]
    control, normal = 3, 1
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([normal] * (vocabulary - 1) + [control], np.int32),
        "tokenizer.ggml.merges": list[MetadataValue](f"{a} {b}" for a, b in pairs),
        "tokenizer.ggml.bos_token_id": vocabulary - 1,
        "tokenizer.ggml.eos_token_id": vocabulary - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies, letters and signs of text first:
    bytes that print are themselves, others are numbered from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    space = others.index(32)
    characters = [chr(256 + i) for i in range(len(others))]
    return [characters[space], *map(chr, printable), *(c for i, c in enumerate(characters) if i != space)]
