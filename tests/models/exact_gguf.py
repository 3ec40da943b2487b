"""What a llama in a GGUF file says, in f64, from its dequantised weights."""

from __future__ import annotations

import numpy as np

from models.numpy_forward import llama_logits
from rlx.formats.gguf import open_gguf


def gguf_logits(path, tokens):
    """f64[len(tokens), V]: the scores of the token after each position."""
    with open_gguf(path) as file:
        weights = {name: np.asarray(tensor.array(), np.float32) for name, tensor in file.tensors.items()}
        read = {key: file.metadata[f"llama.{key}"] for key in ("block_count", "rope.freq_base")}
        read |= {key: file.metadata[f"llama.attention.{key}"] for key in ("head_count", "head_count_kv")}
        eps = file.metadata["llama.attention.layer_norm_rms_epsilon"]
    return llama_logits(
        weights,
        tokens,
        layers=read["block_count"],
        heads=read["head_count"],
        kv_heads=read["head_count_kv"],
        base=read["rope.freq_base"],
        eps=eps,
        interleaved=True,
    )
