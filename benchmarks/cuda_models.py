"""Decoders with weights from a seed, as rlx runs them and as torch does: what `cuda_peers.py` measures of whole models.

    python3 benchmarks/cuda_models.py 1B          # how long a start takes: compile, load code, first token

rlx runs the program that `rlx.load` builds, with caches in place; torch runs a hand-written model with a static cache,
eager or with `torch.compile`, as one CUDA graph.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

import rlx
from rlx.ir.dtype import DType
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.decoder import build_decoder
from rlx.models.kv_cache import DecoderRunner
from rlx.models.language_model import compile_options
from rlx.models.weight_names import HF_DECODERS
from rlx.models.weights import Weight, WeightFile, read_weights
from rlx.quant.schemes import QuantScheme
from rlx.runtime.session import Session

CONTEXT = 16384
ROPE_BASE = 5e5


def config_of(name: str, layers: int) -> DecoderConfig:
    """A shape by its name, with so many of its layers."""
    hidden, heads, head_dim, ffn, tied = {"1B": (2048, 32, 64, 8192, True), "8B": (4096, 32, 128, 14336, False)}[name]
    rope = RopeConfig(ROPE_BASE, head_dim)
    return DecoderConfig(
        "llama", layers, hidden, heads, 8, head_dim, ffn, 128256, CONTEXT, norm_eps=1e-5, rope=rope, tied=tied
    )


def weight_dims(c: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """By name as files have them."""
    names = HF_DECODERS["llama"]
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    of_layer = {
        "attn_norm": (c.hidden,),
        "q": (q, c.hidden),
        "k": (kv, c.hidden),
        "v": (kv, c.hidden),
        "o": (c.hidden, q),
        "ffn_norm": (c.hidden,),
        "gate": (c.ffn, c.hidden),
        "up": (c.ffn, c.hidden),
        "down": (c.hidden, c.ffn),
    }
    found = {"embed": (c.vocab, c.hidden), "final_norm": (c.hidden,)}
    if not c.tied:
        found["head"] = (c.vocab, c.hidden)
    dims = {f"{names[role]}.weight": d for role, d in found.items()}
    for i in range(c.layers):
        dims |= {f"{names[role].replace('{i}', str(i))}.weight": d for role, d in of_layer.items()}
    return dims


def step_bytes(
    c: DecoderConfig, context: int, schemes: Mapping[str, QuantScheme] = MappingProxyType({}), batch: int = 1
) -> int:
    """What a step of one token must read: all weights but the embeddings of other tokens, keys and values."""
    sizes = {
        name: schemes[name].packed_bytes(d[-1], d[0]) if name in schemes else 2 * int(np.prod(d))
        for name, d in weight_dims(c).items()
    }
    if not c.tied:
        del sizes[f"{HF_DECODERS['llama']['embed']}.weight"]
    return sum(sizes.values()) + 4 * batch * c.layers * c.kv_heads * c.head_dim * context


def stored_as(c: DecoderConfig, name: str) -> dict[str, QuantScheme]:
    """All matrices as one GGUF type, or as files called Q4_K_M have them: head, and v and down of half of the layers,
    with six bits."""
    names, found = HF_DECODERS["llama"], {}
    for i in range(c.layers):
        is_more = i < c.layers // 8 or i >= 7 * c.layers // 8 or (i - c.layers // 8) % 3 == 2
        for role in ("q", "k", "v", "o", "gate", "up", "down"):
            more = "Q6_K" if is_more and role in ("v", "down") else "Q4_K"
            found[f"{names[role].replace('{i}', str(i))}.weight"] = more if name == "Q4_K_M" else name
    for role in ("embed",) if c.tied else ("embed", "head"):
        more = "Q6_K" if role == "head" or c.tied else "Q4_K"
        found[f"{names[role]}.weight"] = more if name == "Q4_K_M" else name
    return {n: QuantScheme.of_ggml(kind) for n, kind in found.items()}


def stored_model(c: DecoderConfig, name: str) -> OwnModel:
    """A model whose matrices are blocks of a GGUF type. Those of one size are the same array: what they are does not
    matter for times."""
    from rlx.formats.gguf import quantize

    dims, schemes = weight_dims(c), stored_as(c, name)
    some = np.random.default_rng(3).standard_normal((256, 1024)).astype("f4")
    made: dict[tuple[Any, ...], Any] = {}

    def read(n: str) -> Any:
        d, scheme = dims[n], schemes.get(n)
        key = d, scheme
        if key not in made:
            if scheme is None:
                made[key] = np.resize(1 + 0.1 * some, d).astype(ml_dtypes.bfloat16)
            else:
                blocks = quantize(some * d[-1] ** -0.5, str(scheme.ggml_name).lower())
                made[key] = np.resize(blocks, (d[0], scheme.packed_bytes(d[-1], 1)))
            # Nobody needs a copy of what does not change.
            made[key].flags.writeable = False
        return made[key]

    return OwnModel(c, read, schemes=schemes)


def prefill_flops(c: DecoderConfig, tokens: int) -> float:
    """Products and causal attention of a prompt; logits are of its last token alone."""
    layer = sum(int(np.prod(d)) for n, d in weight_dims(c).items() if ".0." in n and len(d) == 2)
    return c.layers * (2.0 * layer * tokens + 2.0 * c.heads * c.head_dim * tokens * tokens)


class OwnModel:
    """The model as `rlx.load` makes it."""

    def __init__(
        self,
        c: DecoderConfig,
        read: Callable[[str], Any],
        activations: str = "bf16",
        schemes: Mapping[str, QuantScheme] = MappingProxyType({}),
    ) -> None:
        """`read` gives a weight by its name, as an array of the host: bf16, or packed rows of one of `schemes`."""
        self.config, self._read, self.schemes = c, read, schemes
        weights = {
            n: Weight(d, DType.U8 if n in schemes else DType.BF16, schemes.get(n), lambda n=n: read(n))
            for n, d in weight_dims(c).items()
        }
        started = time.perf_counter()
        built = build_decoder(c, WeightFile("seeded", HF_DECODERS["llama"], weights), DType.BF16)
        self.program = Session("cuda", compile_options(None, activations)).compile(built.graph)
        self.compile_seconds = time.perf_counter() - started
        read_weights(built.weights, self.program)
        self.runner = DecoderRunner(c, self.program, built.caches)
        self.caches: list[Any] = []

    def with_activations(self, activations: str) -> OwnModel:
        """The same weights in another program."""
        return OwnModel(self.config, self._read, activations, self.schemes)

    def start(self, capacity: int, batch: int = 1) -> None:
        """Empty caches of so many sequences on the device."""
        self.caches = [rlx.device_put(cache, "cuda") for cache in self.runner.new_caches(batch, capacity + 1)]
        self._tables = self.runner._tables(capacity + 1)

    def run(self, inputs: dict[str, Any]) -> Any:
        """One step of the program on arrays of the device; the logits stay there."""
        given = inputs | self._tables | dict(zip(self.runner.cache_names, self.caches))
        logits, *self.caches = self.program.run(given)
        return logits

    def inputs(self, tokens: Any, start: int) -> dict[str, Any]:
        """Tokens of one sequence, or of each of several, that stand at `start` and behind it, on the device; logits of
        the last one are asked for."""
        ids = np.atleast_2d(np.asarray(tokens, np.int32))
        batch, count = ids.shape
        given = {
            "tokens": ids,
            "positions": np.tile(np.arange(start, start + count, dtype=np.int32), (batch, 1)),
            "kv_len": np.full(batch, start + count, np.int32),
            "rows": np.full((batch, 1), count - 1, np.int32),
        }
        return {name: rlx.device_put(array, "cuda") for name, array in given.items()}


def start_times(name: str, layers: int) -> dict[str, float]:
    """How long a process takes to its first token, without reading the weights of a file: they are zeros."""
    zeros = {d: np.zeros(d, ml_dtypes.bfloat16) for d in set(weight_dims(config_of(name, layers)).values())}
    dims = weight_dims(config_of(name, layers))
    began = time.perf_counter()
    model = OwnModel(config_of(name, layers), lambda n: zeros[dims[n]])
    loaded = time.perf_counter()
    model.start(1023)
    found = {"compile": model.compile_seconds, "weights": loaded - began - model.compile_seconds}
    for step in ("first step", "second step", "third step"):
        at = time.perf_counter()
        np.asarray(model.run(model.inputs([1], 5)))
        found[step] = time.perf_counter() - at
    at = time.perf_counter()
    np.asarray(model.run(model.inputs(range(512), 5)))
    found["first prompt"] = time.perf_counter() - at
    return found


if __name__ == "__main__":
    print(json.dumps(start_times(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16)))
