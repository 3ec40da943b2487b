"""Small decoders with weights from a seed, for the one-kernel decode step: program, arrays by name, and what is right.

case = decoder_case("qwen3", batch=2, qk_norm=True)
case.step, case.arrays, case.wanted
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import rlx
from rlx.backends.cuda.persistent.matching import decode_step
from rlx.backends.cuda.persistent.plan import Plan
from rlx.backends.cuda.persistent.step import Step
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.compile.memory.interpret import interpret_lir
from rlx.formats.gguf import quantize
from rlx.ir.dtype import DType
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.decoder import DecoderProgram, build_decoder
from rlx.models.kv_cache import DecoderRunner, SequenceBatch
from rlx.models.language_model import compile_options
from rlx.models.weight_names import HF_DECODERS
from rlx.models.weights import Weight, WeightFile, plain_weight, read_weights
from rlx.ops.nn.rotary import RopeStyle
from rlx.quant.schemes import QuantScheme

SHARED = 232448
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


# Sizes whose rows are whole blocks, and matrices that files store as such.
BLOCK_SIZES = {"hidden": 256, "heads": 2, "kv_heads": 1, "head_dim": 128, "ffn": 256, "layers": 1, "past": 5}
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def stored_all(kind: str, **others: str) -> dict[str, str]:
    """All matrices as blocks of a GGUF type, but for some roles."""
    return dict.fromkeys((*MATRICES, "embed"), kind) | others


# Forms of decode steps: options of `decoder_case`, blocks that share them, and how often they are launched.
STEPS: dict[str, tuple[dict[str, Any], int, int]] = {
    "two layers, twice": ({"layers": 2}, 4, 2),
    "three sequences": ({"batch": 3, "layers": 1}, 4, 1),
    "eight sequences": ({"batch": 8, "layers": 1, "past": 3}, 3, 1),
    "three heads of one of k": ({"heads": 3, "kv_heads": 1, "layers": 1, "past": 70}, 3, 1),
    "biases": ({"family": "qwen2", "biases": ("q", "k", "v"), "layers": 1}, 3, 1),
    "norms of heads": ({"family": "qwen3", "qk_norm": True, "layers": 1}, 3, 1),
    "windows": ({"family": "mistral", "windows": (9, None), "past": 70}, 2, 1),
    "neighbours turn": ({"rope": RopeConfig(1e4, 16, RopeStyle.GptJ), "layers": 1, "past": 9}, 2, 1),
    "softcaps": ({"attention_softcap": 2.0, "final_softcap": 3.0, "layers": 1}, 2, 1),
    "f16": ({"element": "f16", "layers": 1}, 2, 1),
    "heads of 128": ({"head_dim": 128, "heads": 2, "kv_heads": 1, "layers": 1}, 3, 1),
    "heads of 80": ({"head_dim": 80, "heads": 2, "kv_heads": 1, "layers": 1}, 2, 1),
    "heads of 256": ({"head_dim": 256, "heads": 1, "kv_heads": 1, "layers": 1}, 3, 1),
    "norms behind halves": ({"family": "gemma2", "post_norms": True, "attention_softcap": 9.0}, 3, 2),
    "norms behind halves, three": ({"family": "gemma2", "post_norms": True, "batch": 3, "layers": 1, "past": 9}, 4, 1),
    "layer norms": ({"family": "llama", "norm": "layer", "layers": 1, "past": 9}, 3, 1),
    "layer norms behind halves": (
        {"family": "gemma2", "norm": "layer", "post_norms": True, "batch": 2, "past": 9, "layers": 1},
        3,
        2,
    ),
    "deep": ({"hidden": 1096, "layers": 1, "heads": 1, "kv_heads": 1, "ffn": 16, "past": 2, "vocab": 16}, 3, 1),
    "Q4_K": (BLOCK_SIZES | {"stored": stored_all("Q4_K")}, 2, 2),
    "Q6_K": (BLOCK_SIZES | {"stored": stored_all("Q6_K")}, 2, 1),
    "Q8_0, three sequences": (BLOCK_SIZES | {"stored": stored_all("Q8_0"), "batch": 3}, 2, 1),
    "Q4_0, f16": (BLOCK_SIZES | {"stored": stored_all("Q4_0"), "element": "f16", "ffn": 2560}, 3, 1),
    "Q4_K and Q6_K, six sequences": (
        BLOCK_SIZES
        | {"stored": stored_all("Q4_K", **{"v.1": "Q6_K", "down.0": "Q6_K"}, head="Q6_K"), "tied": False}
        | {"layers": 2, "batch": 6, "past": 2},
        5,
        1,
    ),
    "Q5_K, a head of numbers": (
        BLOCK_SIZES | {"stored": dict.fromkeys(MATRICES, "Q5_K"), "family": "qwen2", "biases": ("q", "k", "v")},
        3,
        1,
    ),
    "more blocks than rows": ({"hidden": 16, "heads": 1, "kv_heads": 1, "ffn": 16, "layers": 2}, 7, 1),
}


class Case(NamedTuple):
    """`wanted` are the logits of the CPU engine, `after` its caches."""

    step: Step
    arrays: dict[str, Any]
    wanted: Any
    after: dict[str, Any]
    built: DecoderProgram

    def plan(self, blocks: int, batch: int = 1) -> Plan:
        return Plan(self.step, batch, blocks, SHARED)


def decoder(
    family: str = "llama",
    layers: int = 2,
    biases: tuple[str, ...] = (),
    element: str = "bf16",
    stored: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> tuple[DecoderConfig, DecoderProgram, dict[str, Any]]:
    """Config, program and weights by name. `stored` has GGUF types by role, or by role and layer: "v", "v.1"."""
    sizes: dict[str, Any] = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 48, "vocab": 44}
    sizes |= {"context": 128, "norm_eps": 1e-5, "rope": RopeConfig(1e4, more.get("head_dim", 16)), "tied": True} | more
    c = DecoderConfig(family, layers, **sizes)
    names, rng, q, kv = HF_DECODERS[family], np.random.default_rng(3), c.heads * c.head_dim, c.kv_heads * c.head_dim
    dims: dict[str, tuple[int, ...]] = {"q": (q, c.hidden), "k": (kv, c.hidden), "v": (kv, c.hidden)}
    dims |= {"o": (c.hidden, q), "up": (c.ffn, c.hidden), "down": (c.hidden, c.ffn)}
    dims |= {"attn_norm": (c.hidden,), "ffn_norm": (c.hidden,)}
    dims |= {"gate": (c.ffn, c.hidden)} if c.gated else {}
    dims |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)} if c.qk_norm else {}
    dims |= {"post_attn_norm": (c.hidden,), "post_ffn_norm": (c.hidden,)} if c.post_norms else {}
    dims |= {"embed": (c.vocab, c.hidden), "final_norm": (c.hidden,)} | (
        {} if c.tied else {"head": (c.vocab, c.hidden)}
    )
    arrays = {}
    for role, size in dims.items():
        for name in {names[role].replace("{i}", str(i)) for i in range(layers)}:
            is_norm = len(size) == 1
            scale = 0.2 if is_norm else 1.0 if role == "embed" else size[-1] ** -0.5
            arrays[f"{name}.weight"] = (rng.standard_normal(size) * scale + is_norm).astype(TYPES[element])
            if role in biases or (is_norm and c.norm == "layer"):
                arrays[f"{name}.bias"] = (0.3 * rng.standard_normal(size[:1])).astype(TYPES[element])
    weights = {name: plain_weight(a) for name, a in arrays.items()}
    for role in dims:
        for i in range(layers):
            name, kind = f"{names[role].replace('{i}', str(i))}.weight", stored.get(f"{role}.{i}", stored.get(role))
            if kind is not None:
                scheme = QuantScheme.of_ggml(kind)
                weights[name] = Weight(dims[role], DType.U8, scheme, partial(_blocks, arrays[name], kind))
    arrays = {name: weight.read() for name, weight in weights.items()}
    return c, build_decoder(c, WeightFile("a test", names, weights), DType(element)), arrays


def _blocks(array: Any, kind: str) -> Any:
    packed = quantize(array.astype(np.float32), kind.lower())
    return packed.reshape(len(array), -1)


def decoder_case(family: str = "llama", batch: int = 1, past: int = 37, element: str = "bf16", **more: Any) -> Case:
    """A step of `batch` sequences, of which the first has `past` tokens before it."""
    c, built, arrays = decoder(family, element=element, **more)
    compiled = compile_with_options(built.graph, "cuda", compile_options(None, element))
    step = decode_step(compiled.lir.as_graph())
    if compiled.prepare is not None:
        needed = {name: arrays[name] for name in arrays if compiled.prepare.as_graph().has_leaf(name)}
        arrays |= dict(zip(compiled.prepared, map(np.asarray, interpret_lir(compiled.prepare, needed)), strict=True))
    program = rlx.Session("cpu").compile(built.graph)
    read_weights(built.weights, program)
    runner = DecoderRunner(c, program, built.caches)
    sequences, rng = SequenceBatch(runner, batch), np.random.default_rng(5)
    before = [rng.integers(0, c.vocab, past + 5 * i).tolist() for i in range(batch)]
    sequences.extend(before)
    new = rng.integers(0, c.vocab, batch).tolist()
    places = np.array([len(tokens) for tokens in before], np.int32)
    arrays |= {name: np.array(a) for name, a in zip(built.caches, sequences._caches)}
    arrays |= {name: np.array(a) for name, a in runner._tables(sequences._caches[0].shape[2]).items()}
    arrays |= {"tokens": np.array(new, np.int32)[:, None], "positions": places[:, None], "kv_len": places + 1}
    wanted = sequences.extend([[token] for token in new])
    after = {name: np.array(a) for name, a in zip(built.caches, sequences._caches)}
    return Case(step, arrays, wanted, after, built)


def inputs_of(case: Case) -> dict[str, Any]:
    """What the program of a case is given besides weights; copies, since it stores over caches."""
    names = [n for n in case.arrays if n.startswith("rope.") or n in case.after]
    inputs = {name: np.array(case.arrays[name]) for name in ("tokens", "positions", "kv_len", *names)}
    return inputs | {"rows": np.zeros_like(inputs["tokens"])}


def distance(got: Any, want: Any) -> float:
    a, b = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
