"""Opening models that read one text and write another, and the program between their two sides.

The encoder is that of `rlx.models.encoder`, the decoder that of `rlx.models.decoder`. Between them, for B texts of E
tokens, padding included: states f32[B,E,D] to the keys and values f32[B,Hkv,E,D/H] that each layer of the decoder
reads of them, `source.k.0`, `source.v.0`, `source.k.1`, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.module import HirModule
from rlx.models.config import DecoderConfig, Seq2SeqConfig
from rlx.models.config_hf_seq2seq import seq2seq_config_from_hf
from rlx.models.hf_layouts import REARRANGED
from rlx.models.layers import Layers
from rlx.models.model_files import open_weights, read_json
from rlx.models.seq2seq_names import side_names
from rlx.models.weights import Weight, WeightFile, hf_weights, plain_weight

F32 = npt.NDArray[np.float32]


class Seq2SeqFiles(NamedTuple):
    """The config of a model, and the weights of its two sides."""

    config: Seq2SeqConfig
    encoder: WeightFile
    decoder: WeightFile


class SourceProgram(NamedTuple):
    """A graph, the weights that its params need, and the names of its outputs."""

    graph: Graph
    weights: dict[str, Weight]
    names: tuple[str, ...]


def open_seq2seq(path: Path, mmap: bool = True) -> Seq2SeqFiles:
    """A Hugging Face directory."""
    generation = path / "generation_config.json"
    config = seq2seq_config_from_hf(
        read_json(path / "config.json"), read_json(generation) if generation.is_file() else {}
    )
    family, layers = config.decoder.family, max(config.encoder.layers, config.decoder.layers)
    names = side_names(config)
    found = dict(
        hf_weights(
            open_weights(path, mmap), names[1], path.name, layers=layers, rearrange=REARRANGED.get(family)
        ).items()
    )
    # A file without words to write has those that are read.
    config = replace(config, decoder=replace(config.decoder, tied="lm_head.weight" not in found))
    if family in _SINUSOIDS:
        rows, width = config.encoder.table_rows, config.encoder.hidden
        table = plain_weight(_SINUSOIDS[family](rows, width))
        found |= {f"{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
    if config.never:
        found["lm_head.bias"] = _without(found.get("lm_head.bias"), config)
    encoder = {name: weight for name, weight in found.items() if name.startswith("encoder.")}
    decoder = {name: weight for name, weight in found.items() if name not in encoder}
    return Seq2SeqFiles(config, WeightFile(path.name, names[0], encoder), WeightFile(path.name, names[1], decoder))


def _without(bias: Weight | None, config: Seq2SeqConfig) -> Weight:
    """What is added to the scores of words, so that some are never written."""
    added = np.zeros(config.decoder.vocab, np.float32) if bias is None else bias.read().astype(np.float32)
    if added.shape == (config.decoder.vocab,):
        added[list(config.never)] = -np.inf
    return plain_weight(added)


def _halves(rows: int, width: int) -> F32:
    """Sines of place·10000^(-2i/width) in the first half of each row, cosines in the second."""
    even = np.arange(0, width, 2, dtype=np.float64)
    angles = np.arange(rows)[:, None] / 10000.0 ** (even / width)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : width // 2])], 1).astype(np.float32)


def _geometric(rows: int, width: int) -> F32:
    """The same with frequencies from 1 to 1/10000, both included; the last of an odd width is 0."""
    half = width // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / max(half - 1, 1)))
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((rows, width % 2))], 1).astype(np.float32)


_SINUSOIDS: Mapping[str, Callable[[int, int], F32]] = {"marian": _halves, "pegasus": _halves, "m2m_100": _geometric}


def build_source(config: DecoderConfig, file: WeightFile) -> SourceProgram:
    """The program between the two sides, on the weights of the decoder."""
    graph = HirModule(f"{config.family}_source")
    layers = Layers(graph, file)
    states = graph.input("states", ("B", "E", config.hidden), DType.F32)
    batch, length, _ = states.shape
    made = {}
    for layer in range(config.layers):
        for part in "kv":
            flat = layers.linear(states, f"source_{part}", layer, config.kv_heads * config.head_dim)
            by_head = ops.reshape(flat, (batch, length, config.kv_heads, config.head_dim))
            made[f"source.{part}.{layer}"] = ops.transpose(by_head, (0, 2, 1, 3))
    graph.set_outputs(list(made.values()))
    return SourceProgram(layers.lowered(), layers.weights, tuple(made))
