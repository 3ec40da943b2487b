"""The program that one device runs under a layout, and what it costs; nothing is compiled and no weight exists.

    costs = local_cost(shape, layout, Work(batch=64, length=4096))
    costs.flops, costs.peak_bytes, costs.argument_bytes

Under data, FSDP and tensor parallelism the program of one device is that of a smaller model: fewer texts, and where
weights are divided by heads, features or words, fewer of those. Its training step is traced with one layer and with
two, lowered as XLA gets it, and analysed (`rlx.compile.cost`); all layers follow from the difference, since layers are
alike. A device that has a part of each text has as much of everything as one with fewer texts; what it gathers from
others is added by `rlx.planning.exchanges`.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx import optim, train, tree
from rlx.backends.xla.lowering import lowered
from rlx.compile.cost import Cost, cost_of
from rlx.distributed.layouts import Layout
from rlx.finetune.run import causal_loss
from rlx.finetune.trainable import trainable_decoder
from rlx.ir.dtype import DType
from rlx.models.adapter_files import adapter_sites
from rlx.models.adapters import AdapterConfig
from rlx.models.config import DecoderConfig
from rlx.models.layouts import divides_attention, divides_ffn, weight_shardings
from rlx.models.model_files import DecoderFiles
from rlx.models.weights import Weight
from rlx.planning.shapes import ModelShape, ShapeFile
from rlx.trace.abstract import eval_shape
from rlx.trace.tracing import Spec

__all__ = ["LocalCost", "Work", "local_config", "local_cost"]


class Work(NamedTuple):
    """A training step in f32: texts of all devices together, tokens of each, and the rank of the adapter that is
    trained; without one all weights are."""

    batch: int
    length: int
    lora: int | None = None


class LocalCost(NamedTuple):
    """One step on one device. `argument_bytes` are weights, what the optimiser keeps, and the batch; `weight_bytes` the
    weights alone; `gathered_bytes` the weights that FSDP brings together; `trained_bytes` their gradients."""

    flops: float
    moved_bytes: float
    peak_bytes: float
    argument_bytes: float
    weight_bytes: float
    gathered_bytes: float
    trained_bytes: float


def local_config(config: DecoderConfig, layout: Layout) -> DecoderConfig:
    """The model of which one device computes all."""
    sizes: dict[str, Any] = {}
    parts = 1 if layout.tensor is None else layout.mesh.shape[layout.tensor]
    if divides_attention(layout, config):
        sizes |= {"heads": config.heads // parts, "kv_heads": config.kv_heads // parts}
    if divides_ffn(layout, config):
        sizes["ffn"] = config.ffn // parts
    if config.vocab % parts == 0:
        sizes["vocab"] = config.vocab // parts
    if config.moe is not None:
        experts = 1 if layout.expert is None else layout.mesh.shape[layout.expert]
        own, ffn = config.moe.experts // experts, config.moe.ffn // parts
        if config.moe.experts % experts or config.moe.ffn % parts:
            own, ffn = config.moe.experts, config.moe.ffn
        sizes["moe"] = dataclasses.replace(config.moe, experts=own, ffn=ffn, top_k=min(config.moe.top_k, own))
    return dataclasses.replace(config, **sizes)


def local_cost(shape: ModelShape, layout: Layout, work: Work) -> LocalCost:
    """What one device does and holds in a step."""
    parts = layout.mesh.axis_size(layout.batch_axes) * _size(layout, layout.sequence)
    config = local_config(shape.config, layout)
    cost = _texts_cost(shape, config, work, work.batch / parts)
    weights = _held(shape, layout, work)
    tokens = 2 * 4 * work.batch * work.length / layout.mesh.axis_size(layout.batch_axes)
    # What is trained has two moments beside it.
    kept = weights.frozen + 3 * weights.trained
    peak = cost.peak_bytes + weights.gathered
    moved = cost.read_bytes + cost.written_bytes
    return LocalCost(
        cost.flops,
        moved,
        peak,
        kept + tokens,
        weights.trained + weights.frozen,
        weights.gathered,
        weights.gradients,
    )


def _size(layout: Layout, axis: str | None) -> int:
    return 1 if axis is None else layout.mesh.shape[axis]


class _Held(NamedTuple):
    """Bytes on one device: weights that are trained, others, those that are gathered, and gradients before FSDP."""

    trained: float
    frozen: float
    gathered: float
    gradients: float


def _held(shape: ModelShape, layout: Layout, work: Work) -> _Held:
    config = shape.config
    dtype = DType.F32 if work.lora is None else shape.stored
    file = _whole_file(shape, dtype)
    weights = dict(file.items())
    shardings = weight_shardings(layout, config, file, weights)
    own = gathered = whole = 0.0
    for name, weight in weights.items():
        part = _bytes(shardings[name].shard_shape(weight.dims), dtype)
        divided = layout.fsdp is not None and layout.fsdp in shardings[name].spec
        full = part * _size(layout, layout.fsdp) if divided else part
        own, whole = own + part, whole + full
        gathered += full if divided and _size(layout, layout.fsdp) > 1 else 0
    if work.lora is None:
        return _Held(own, 0.0, gathered, whole)
    adapter = 0.0
    pairs = _adapter(shape, work.lora)
    for name, sharding in weight_shardings(layout, config, file, pairs).items():
        adapter += _bytes(sharding.shard_shape(pairs[name].dims), DType.F32)
    return _Held(adapter, own, gathered, adapter)


@lru_cache(8)
def _whole_file(shape: ModelShape, dtype: DType) -> ShapeFile:
    return shape.file(dtype=dtype)


def _adapter(shape: ModelShape, rank: int) -> dict[str, Weight]:
    """The parts of an adapter of all linear layers."""
    file = _whole_file(shape, shape.stored)
    pairs = {}
    for site in adapter_sites(AdapterConfig(rank).targets, shape.config, file):
        outputs, inputs = file.weight(*site).dims
        for part, dims in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
            pairs[f"{file.name(*site)}.{part}"] = Weight(dims, DType.F32, None, lambda: np.zeros(()))
    return pairs


def _bytes(dims: tuple[int, ...], dtype: DType) -> float:
    return float(math.prod(dims)) * dtype.size_bytes


def _texts_cost(shape: ModelShape, config: DecoderConfig, work: Work, texts: float) -> Cost:
    """The cost of a step for so many texts, which need not be whole where each device has parts of some."""
    if texts == int(texts):
        return _step_cost(shape, config, work, int(texts))
    one, two = (_step_cost(shape, config, work, n) for n in (1, 2))
    return Cost(*(int(a + (b - a) * (texts - 1)) for a, b in zip(one, two)))


def _step_cost(shape: ModelShape, config: DecoderConfig, work: Work, texts: int) -> Cost:
    one = _layers_cost(shape, config, work, texts, 1)
    if config.layers == 1:
        return one
    two = _layers_cost(shape, config, work, texts, 2)
    return Cost(*(a + (b - a) * (config.layers - 1) for a, b in zip(one, two)))


@lru_cache(256)
def _layers_cost(shape: ModelShape, config: DecoderConfig, work: Work, texts: int, layers: int) -> Cost:
    small = dataclasses.replace(config, layers=layers, windows=config.windows[:layers])
    dtype = DType.F32 if work.lora is None else shape.stored
    files = DecoderFiles(Path(shape.name), small, shape.file(small, dtype), lambda: None)
    adapter = None if work.lora is None else AdapterConfig(rank=work.lora)
    model = trainable_decoder(files, adapter)
    # As `rlx.finetune.finetune` trains.
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-4, weight_decay=0.0))
    params, frozen = (tree.map(_spec, arrays) for arrays in (model.params, model.frozen))
    number, key = Spec((), DType.I32), Spec((2,), DType.U32)
    opt_state = tree.map(_spec, eval_shape(optimizer.init, params))
    state = train.TrainState(params, opt_state, number, key, None)
    tokens = Spec((texts, work.length), DType.I32)
    batch = {"tokens": tokens, "labels": tokens, "frozen": frozen}
    step = train.make_step(causal_loss(model), optimizer)
    return cost_of(lowered(step.lower(state, batch).graph))


def _spec(x: Any) -> Spec:
    return Spec(x.shape, DType.of(x.dtype))
