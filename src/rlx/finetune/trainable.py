"""Models as functions of what is trained, to be differentiated: `trainable_decoder`, `trainable_encoder`.

    model = trainable_decoder(files, AdapterConfig(rank=8))
    logits = model.logits(params, model.frozen, tokens)        # inside a loss; params begins as model.params

`params` are the parts of an adapter, or with no adapter all weights. `frozen` is everything else, as it is stored:
packed weights go into every step as arguments and are decoded where they are multiplied, forward and backward, so that
nobody keeps them as floats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx.backends.memory import drop_pages
from rlx.compile.simplify.promote_params import promote_params_to_inputs
from rlx.compile.weights.pack_blocks import pack_quantized
from rlx.compile.weights.split import Programs, split_prepare
from rlx.errors import OpError
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.models.adapter_files import adapter_sites
from rlx.models.adapters import Adapter, AdapterConfig, new_adapter
from rlx.models.config import DecoderConfig, EncoderConfig, RopeConfig
from rlx.models.decoder import build_decoder
from rlx.models.encoder import build_encoder
from rlx.models.layouts import ValuePlaces
from rlx.models.model_files import DecoderFiles
from rlx.models.relative_positions import relative_buckets
from rlx.models.rope_tables import rope_tables
from rlx.models.weights import Array, Weight, WeightFile
from rlx.ops.lowered.quantized_panels import QuantPanels

__all__ = ["Trainable", "trainable_decoder", "trainable_encoder"]


@dataclass(frozen=True)
class Trainable:
    """A model whose `params` can be trained, the arrays that stay as they are, and the adapter that the params are of;
    None where they are the weights themselves."""

    config: DecoderConfig | EncoderConfig
    weights: WeightFile
    params: dict[str, Array]
    frozen: dict[str, Array]
    adapter: Adapter | None
    graph: Graph

    def __call__(self, params: Mapping[str, Any], frozen: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """The outputs of the program for all its inputs, by name."""
        given = {**frozen, **params, **inputs}
        leaves = [(str(node.name), node.shape) for node in self.graph.inputs]
        sizes = infer_binding((name, shape, rnp.asarray(given[name]).shape) for name, shape in leaves)
        return inline_graph(bind_graph(self.graph, sizes), [given[name] for name, _ in leaves])

    def logits(
        self, params: Mapping[str, Any], frozen: Mapping[str, Any], tokens: Any, key: Any = None, rows: Any = None
    ) -> Any:
        """Of a decoder: f32[B, S, V], the scores of what follows each of the tokens i32[B, S], or f32[B, R, V] of those
        at `rows` i32[B, R]. `key` is for adapters that drop inputs."""
        if key is None and self.adapter is not None and self.adapter.dropout:
            raise OpError("logits: the adapter drops inputs, so a random key is needed, such as rlx.random.key(0)")
        batch, length = tokens.shape
        places = rnp.broadcast_to(rnp.arange(length, dtype="i32"), (batch, length))
        inputs = {
            "tokens": tokens,
            "positions": places,
            "rows": places if rows is None else rows,
            **self._tables(length),
        }
        (logits,) = self(params, frozen, inputs if key is None else {**inputs, "dropout_key": key})
        return logits

    def vectors(self, params: Mapping[str, Any], frozen: Mapping[str, Any], ids: Any, lengths: Any) -> Any:
        """Of an encoder with pooling: f32[B, E], one vector per text. ids i32[B, S] are padded behind `lengths`."""
        if isinstance(self.config, DecoderConfig) or not self.config.pooling:
            raise OpError(f"vectors: an encoder with pooling is needed; this is {self.config.family}")
        inputs = {"ids": ids, "lengths": lengths, **self._tables(ids.shape[1])}
        if self.config.relative_buckets:
            sizes = (self.config.relative_buckets, self.config.relative_max_distance)
            inputs["buckets"] = relative_buckets(ids.shape[1], *sizes)
        return self(params, frozen, inputs)[1]

    def trained(self, params: Mapping[str, Any]) -> Adapter:
        """The adapter with these numbers."""
        assert self.adapter is not None, "all weights were trained"
        return self.adapter.with_params(params, self.weights)

    def in_panels(self) -> Trainable:
        """The same model with its packed weights as products read them: laid out once, not in every step. The pages of
        the file that they were read from are given back. For devices whose kernels rlx writes."""
        packed = {name for name, array in self.frozen.items() if array.dtype == np.uint8}
        programs = _split_packed(self.graph, packed)
        if programs.prepare is None:
            return self
        used = [str(node.name) for node in programs.prepare.inputs]
        lay_out = rlx.jit(lambda arrays: inline_graph(programs.prepare, arrays))
        made = map(np.asarray, lay_out([self.frozen[name] for name in used]))
        drop_pages(self.frozen[name] for name in used)
        left = {str(node.name) for node in programs.main.inputs}
        kept = {name: array for name, array in self.frozen.items() if name in left}
        return replace(self, frozen={**kept, **dict(zip(programs.prepared, made, strict=True))}, graph=programs.main)

    def _tables(self, length: int) -> dict[str, Any]:
        tables: dict[str, Any] = {}
        for name, rope in (("rope", self.config.rope), ("rope.local", self.config.local_rope)):
            if isinstance(rope, RopeConfig):
                tables[f"{name}.cos"], tables[f"{name}.sin"] = rope_tables(rope, length)
        return tables


def trainable_decoder(
    files: DecoderFiles,
    adapter: AdapterConfig | Adapter | None,
    seed: int = 0,
    places: ValuePlaces | None = None,
) -> Trainable:
    """A language model whose `adapter` is trained, a new one or one that exists; with None all weights are. `places`
    say where the values between layers lie if the training is divided over devices."""
    weights, made = _prepared(files.config, files.weights, adapter, seed)
    built = build_decoder(files.config, weights, None, adapters=[] if made is None else [made], places=places)
    return _trainable(files.config, weights, made, built.graph, built.weights)


def trainable_encoder(
    config: EncoderConfig, weights: WeightFile, adapter: AdapterConfig | Adapter | None, seed: int = 0
) -> Trainable:
    """The same for a text encoder."""
    if isinstance(adapter, AdapterConfig) and adapter.dropout:
        raise OpError("trainable_encoder: adapters of encoders drop no inputs; leave dropout out")
    weights, made = _prepared(config, weights, adapter, seed)
    built = build_encoder(config, weights, [] if made is None else [made])
    return _trainable(config, weights, made, built.graph, built.weights)


def _prepared(
    config: DecoderConfig | EncoderConfig, weights: WeightFile, adapter: AdapterConfig | Adapter | None, seed: int
) -> tuple[WeightFile, Adapter | None]:
    if adapter is None:
        return _as_floats(weights), None
    if isinstance(adapter, Adapter):
        return weights, adapter
    return weights, new_adapter(adapter, weights, adapter_sites(adapter.targets, config, weights), seed)


def _as_floats(weights: WeightFile) -> WeightFile:
    """Weights that are trained are f32, however they are stored."""
    packed = next((name for name, weight in weights.items() if weight.scheme is not None), None)
    if packed is not None:
        raise OpError(f"finetune: {packed!r} is quantised, and cannot be trained; train an adapter, or a float model")

    def wide(weight: Weight) -> Weight:
        return weight._replace(dtype=DType.F32, read=lambda: np.asarray(weight.read(), np.float32))

    return weights.replaced({name: wide(weight) for name, weight in weights.items()})


def _trainable(
    config: DecoderConfig | EncoderConfig,
    weights: WeightFile,
    adapter: Adapter | None,
    graph: Graph,
    needed: Mapping[str, Weight],
) -> Trainable:
    names = set(needed) if adapter is None else set(adapter.params(weights))
    params = {name: weight.read() for name, weight in needed.items() if name in names}
    frozen = {name: weight.read() for name, weight in needed.items() if name not in names}
    return Trainable(config, weights, params, frozen, adapter, promote_params_to_inputs(graph, needed))


def _split_packed(graph: Graph, packed: Collection[str]) -> Programs:
    """A program that lays packed weights out, and the one that reads them so; all weights are inputs of both."""

    def fixed(node: Node, _: list[Any]) -> Replacement:
        if not isinstance(node.op, Input) or node.op.key not in packed:
            return None
        param: Replacement = Param(node.op.key, node.op.type)()
        return param

    laid_out = pack_quantized(rebuild(graph, fixed).graph)
    stored = {node.id for node in laid_out.nodes if isinstance(node.op, QuantPanels)}
    programs = split_prepare(laid_out, stored)
    if programs.prepare is None:
        return programs
    names = [*packed, *programs.prepared]
    return Programs(
        promote_params_to_inputs(programs.main, names),
        promote_params_to_inputs(programs.prepare, names),
        programs.prepared,
    )
