"""What a llama or a qwen3 in a GGUF file says, in f64, from its dequantised weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.numpy_forward import llama_logits
from rlx.formats.gguf import open_gguf


class _Weights(Mapping):
    """The weights of a file, each decoded when it is asked for: a model of half a billion numbers would not fit."""

    def __init__(self, tensors):
        self._tensors = tensors

    def __getitem__(self, name):
        return np.asarray(self._tensors[name].array(), np.float32)

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


def gguf_logits(path, tokens):
    """f64[len(tokens), V]: the scores of the token after each position."""
    with open_gguf(path) as file:
        family = file.metadata["general.architecture"]
        read = {key: file.metadata[f"{family}.{key}"] for key in ("block_count", "rope.freq_base")}
        read |= {key: file.metadata[f"{family}.attention.{key}"] for key in ("head_count", "head_count_kv")}
        return llama_logits(
            _Weights(file.tensors),
            tokens,
            layers=read["block_count"],
            heads=read["head_count"],
            kv_heads=read["head_count_kv"],
            base=read["rope.freq_base"],
            eps=file.metadata[f"{family}.attention.layer_norm_rms_epsilon"],
            interleaved=family == "llama",
        )
