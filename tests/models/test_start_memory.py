"""How much memory a model takes from the start of a process, at its most: first where everything has to be compiled and
prepared, then where it is found on disk. Other processes are measured, which this one has not grown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from models.tiny_models import BERT, bert_arrays
from rlx.formats.gguf import quantize, tensor_type, write_gguf
from rlx.formats.safetensors import write_safetensors

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")

MB = 1_000_000

# Prints the most memory that the process has had at any time, and what its program has planned.
PEAK = """
import json, re
from pathlib import Path
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"peak": peak, **planned}))
"""
ENCODE = """
import sys, numpy as np, rlx
encoder = rlx.load_encoder(sys.argv[1])
encoder.forward(np.ones((8, 128), np.int32))
memory = encoder._compiled.memory_info()
planned = {"weights": memory.weights, "arena": memory.arena.bind({"B": 8, "S": 128})}
"""
GENERATE = """
import sys, rlx
session = rlx.load(sys.argv[1]).session()
session.prefill(list(range(1, 65)))
for token in range(16):
    session.step(token)
planned = {}
"""


def peaks(program: str, model: Path, cache: Path) -> list[dict[str, int]]:
    """What a cold process says, and a warm one."""
    said = []
    for _ in range(2):
        process = subprocess.run(
            [sys.executable, "-c", program + PEAK, str(model)],
            env={**os.environ, "RLX_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert process.returncode == 0, process.stderr
        said.append(json.loads(process.stdout))
    return said


def test_an_encoder_takes_its_weights_the_arena_and_little_else(tmp_path):
    config = replace(BERT, layers=4, hidden=512, heads=8, ffn=2048, vocab=5000, context=128, table_rows=128)
    model = tmp_path / "model"
    model.mkdir()
    write_safetensors(model / "model.safetensors", bert_arrays(config))
    settings = {
        "model_type": "bert",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    (model / "config.json").write_text(json.dumps(settings))
    cold, warm = peaks(ENCODE, model, tmp_path / "cache")
    assert 55 * MB < cold["weights"] < 65 * MB
    assert cold["peak"] <= cold["weights"] + cold["arena"] + 100 * MB
    assert warm["peak"] <= warm["weights"] + warm["arena"] + 60 * MB


class Packed(NamedTuple):
    """Random weights in 8 bits; those of one shape are all the same."""

    name: str
    shape: tuple[int, int]

    type = tensor_type("Q8_0")

    def data(self):
        return packed_rows(self.shape)


@cache
def packed_rows(shape):
    return quantize(np.random.default_rng(0).normal(size=shape).astype(np.float32) / np.sqrt(shape[1]), "Q8_0")


LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, CONTEXT = 8, 768, 12, 2, 2048, 4000, 512
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": CONTEXT,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
}


def write_language_model(path: Path) -> None:
    narrow = HIDDEN // HEADS * KV_HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (narrow, HIDDEN), "attn_v": (narrow, HIDDEN)}
    shapes |= {"attn_output": (HIDDEN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up"), (FFN, HIDDEN))
    tensors = {"token_embd.weight": Packed("token_embd.weight", (VOCAB, HIDDEN))}
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    for i in range(LAYERS):
        names = {name: f"blk.{i}.{name}.weight" for name in (*shapes, "attn_norm", "ffn_norm")}
        tensors |= {names[name]: Packed(names[name], shape) for name, shape in shapes.items()}
        tensors |= {names[norm]: np.ones(HIDDEN, np.float32) for norm in ("attn_norm", "ffn_norm")}
    write_gguf(path, METADATA, tensors)


def test_a_language_model_takes_its_file_the_caches_and_little_else(tmp_path):
    model = tmp_path / "model.gguf"
    write_language_model(model)
    size = model.stat().st_size
    caches = 2 * LAYERS * KV_HEADS * (HIDDEN // HEADS) * 4 * CONTEXT
    cold, warm = peaks(GENERATE, model, tmp_path / "cache")
    assert 55 * MB < size < 65 * MB
    # The bound that is promised is 200 MB; a second copy of these weights would stay below it.
    assert cold["peak"] <= size + caches + 130 * MB
    assert warm["peak"] <= size + caches + 80 * MB
