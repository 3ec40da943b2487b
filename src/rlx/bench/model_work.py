"""The least work of a case that runs a model: floating-point operations, and bytes that must be read."""

from __future__ import annotations

import math
from pathlib import Path

from rlx.bench.sentences import sentences
from rlx.bench.suites import Case
from rlx.formats.gguf import open_gguf
from rlx.models.config import DecoderConfig
from rlx.models.model_files import open_decoder

# Keys and values are kept in f32.
_CACHE_BYTES = 4


def work_of(case: Case, model: Path | None) -> tuple[float, float]:
    """Floating-point operations and bytes, (0, 0) where they are not known."""
    if model is None:
        return case.work
    if case.program == "embed":
        return encoder_work(model, case.sizes["texts"])
    if model.suffix != ".gguf":
        return 0.0, 0.0
    return decoder_work(model, case.program, case.sizes["tokens"], case.sizes.get("sequences", 1))


def decoder_work(path: Path, program: str, tokens: int, sequences: int = 1) -> tuple[float, float]:
    """Of `prefill` of so many tokens, of `decode` of one token after them, or of `decode many`, one for each sequence.

    A token meets every matrix once, of experts those that are chosen; only the last one meets the output matrix, and
    the embeddings are looked up, unless they are the output matrix too. Queries see the keys before them.
    """
    c = open_decoder(path).config
    flops = nbytes = 0.0
    read = tokens if program == "prefill" else sequences
    with open_gguf(path) as file:
        head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        for name, tensor in file.tensors.items():
            is_looked_up = name == "token_embd.weight" and name != head
            if is_looked_up:
                continue
            share = _share_of_experts(c, name)
            # Many tokens together meet all experts.
            nbytes += tensor.nbytes * (share if read == 1 else 1.0)
            if len(tensor.shape) > 1:
                flops += 2.0 * math.prod(tensor.shape) * share * (sequences if name == head else read)
    keys = tokens * (tokens + 1) / 2 if program == "prefill" else sequences * (tokens + 1.0)
    flops += 4.0 * c.layers * c.heads * c.head_dim * keys
    if program != "prefill":
        nbytes += 2.0 * c.layers * c.kv_heads * c.head_dim * _CACHE_BYTES * keys
    return flops, nbytes


def _share_of_experts(config: DecoderConfig, name: str) -> float:
    return config.moe.top_k / config.moe.experts if config.moe is not None and "_exps." in name else 1.0


def encoder_work(path: Path, count: int) -> tuple[float, float]:
    """Of `embed` of so many sentences, as if none were padded; tokenisation is not counted."""
    from rlx.models.config_hf_encoders import encoder_config_from_directory
    from rlx.models.tokenizer import Tokenizer

    c = encoder_config_from_directory(path)
    found = Tokenizer.from_directory(path).encode_batch(sentences(count), max_length=c.context)
    lengths = [len(ids) for ids in found]
    weights = c.layers * (4 * c.hidden * c.hidden + (3 if c.gated else 2) * c.hidden * c.ffn)
    scores = 4.0 * c.layers * c.hidden * sum(n * n for n in lengths)
    return 2.0 * weights * sum(lengths) + scores, 4.0 * weights
