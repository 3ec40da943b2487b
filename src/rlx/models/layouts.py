"""How language models and text encoders are divided over a mesh: the kinds of division of `rlx.distributed.Layout`,
applied to weights by their role and to the values between layers.

    layout = rlx.distributed.layout_of(rlx.Mesh.of("fsdp=2,tensor=4"))
    weight_shardings(layout, config, file, built.weights)     # {"blk.0.attn_q.weight": NamedSharding(...), ...}

Matrices are [out, in]. Tensor parallelism divides `q k v gate up` by rows and `o down` by columns, so that one sum
joins each pair, and words of embedding and head; attention only where it divides into whole heads of keys. Fused `qkv`
and `gate_up` stay whole, since their parts would not lie beside what they are used with. Packed weights are cut between
blocks. What does not divide stays whole: the numbers are the same in any case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlx.distributed.layouts import Layout
from rlx.models.config import DecoderConfig, EncoderConfig
from rlx.models.weights import Weight, WeightFile
from rlx.ops.parallel.sharding_constraint import ShardingConstraint
from rlx.sharding import UNCONSTRAINED, NamedSharding
from rlx.sharding.partition_spec import Entry

__all__ = [
    "ValuePlaces",
    "cache_sharding",
    "divides_attention",
    "divides_ffn",
    "training_places",
    "weight_shardings",
    "whole_places",
]

_ATTENTION_ROWS, _ATTENTION_COLUMNS = frozenset("qkv"), frozenset("o")
_FFN_ROWS, _FFN_COLUMNS = frozenset({"gate", "up"}), frozenset({"down"})
_WORDS = frozenset({"embed", "head"})
# Stacks of matrices [expert, out, in]: the axis that tensor parallelism divides.
_EXPERTS = {"experts_gate": 1, "experts_up": 1, "experts_down": 2}

# A is [rank, in], B is [out, rank]; a number follows the names of a second adapter.
_ADAPTER = re.compile(r"(.+)\.(lora_A|lora_B)(?:\.\d+)?")
_ADAPTER_AXES = {"lora_A": 1, "lora_B": 0}


class ValuePlaces(NamedTuple):
    """Where the values between layers lie: hidden states [B, S, D], those of the rows asked for [B, R, D], logits
    [B, R, V] as they are made, and what the program gives [B, R, ..]."""

    hidden: NamedSharding
    rows: NamedSharding
    logits: NamedSharding
    result: NamedSharding

    def of_hidden(self, x: Any) -> Any:
        return ShardingConstraint(self.hidden)(x)

    def of_rows(self, x: Any) -> Any:
        return ShardingConstraint(self.rows)(x)

    def of_logits(self, x: Any) -> Any:
        return ShardingConstraint(self.logits)(x)

    def of_result(self, x: Any) -> Any:
        return ShardingConstraint(self.result)(x)


def training_places(layout: Layout, all_rows: bool = True) -> ValuePlaces:
    """Texts and tokens of one step lie on several devices; of rows, tokens only where all are asked for, since other
    numbers of them need not divide. How logits lie along words is left to the compiler."""
    batch = layout.batch_axes or None
    rows = layout.sequence if all_rows else None
    logits = layout.sharding(batch, rows, UNCONSTRAINED)
    return ValuePlaces(layout.sharding(batch, layout.sequence), layout.sharding(batch, rows), logits, logits)


def whole_places(layout: Layout, config: DecoderConfig | EncoderConfig) -> ValuePlaces:
    """Hidden states and results are on every device, so that every process can read the results. Logits are made where
    the words of the head lie: otherwise the head would move, and not they."""
    whole = layout.sharding()
    words = layout.tensor is not None and config.vocab % layout.mesh.shape[layout.tensor] == 0
    return ValuePlaces(whole, whole, layout.sharding(None, None, layout.tensor) if words else whole, whole)


def divides_attention(layout: Layout, config: DecoderConfig | EncoderConfig) -> bool:
    """Whether heads are divided: those of keys must be, or a device would need heads of another. Those with sinks are
    not, nor those beside layers that keep states."""
    if isinstance(config, DecoderConfig) and (config.attention_sinks or config.recurrent_layers):
        return False
    heads = config.kv_heads if isinstance(config, DecoderConfig) else config.heads
    return layout.tensor is not None and not config.fused_qkv and heads % layout.mesh.shape[layout.tensor] == 0


def divides_ffn(layout: Layout, config: DecoderConfig | EncoderConfig) -> bool:
    """Whether hidden features of feed-forward layers are divided."""
    return layout.tensor is not None and not config.fused_gate_up and config.ffn % layout.mesh.shape[layout.tensor] == 0


def cache_sharding(layout: Layout, config: DecoderConfig) -> NamedSharding:
    """Where caches [B, Hkv, C, ..] lie: heads as their weights do."""
    return layout.sharding(None, layout.tensor if divides_attention(layout, config) else None)


def weight_shardings(
    layout: Layout, config: DecoderConfig | EncoderConfig, file: WeightFile, weights: Mapping[str, Weight]
) -> dict[str, NamedSharding]:
    """The sharding of each weight that a program needs. Of adapters the side that lies beside a divided axis of their
    matrix is divided like it, over tensor alone; what has no role is on every device."""
    layout.checked()
    roles = file.roles(config.layers)
    found = {}
    for name, weight in weights.items():
        entries: list[Entry] = [None] * len(weight.packed_dims)
        adapted = _ADAPTER.fullmatch(name)
        if name in roles:
            _divide(entries, layout, config, *roles[name], weight)
        elif adapted and f"{adapted[1]}.weight" in roles and layout.tensor is not None:
            role, axis = roles[f"{adapted[1]}.weight"][0], _ADAPTER_AXES[adapted[2]]
            fits = weight.dims[axis] % layout.mesh.shape[layout.tensor] == 0
            if fits and _tensor_axis(layout, config, role, "weight") == axis:
                entries[axis] = layout.tensor
        found[name] = layout.sharding(*entries)
    return found


def _divide(
    entries: list[Entry],
    layout: Layout,
    config: DecoderConfig | EncoderConfig,
    role: str,
    part: str,
    weight: Weight,
) -> None:
    units = _units(weight)

    def cut(axis: int, name: str | None) -> bool:
        if name is None or entries[axis] is not None or units[axis] % layout.mesh.shape[name]:
            return False
        entries[axis] = name
        return True

    if role in _EXPERTS and part == "weight":
        cut(0, layout.expert)
    axis = _tensor_axis(layout, config, role, part)
    if axis is not None:
        cut(axis, layout.tensor)
    if len(entries) > 1:
        for axis in sorted(range(len(entries)), key=lambda i: -weight.dims[i]):
            if cut(axis, layout.fsdp):
                break


def _tensor_axis(layout: Layout, config: DecoderConfig | EncoderConfig, role: str, part: str) -> int | None:
    """The axis that tensor parallelism divides; None if it divides none."""
    rows = role in _WORDS
    columns = False
    if divides_attention(layout, config):
        rows, columns = rows or role in _ATTENTION_ROWS, role in _ATTENTION_COLUMNS
    if divides_ffn(layout, config):
        rows, columns = rows or role in _FFN_ROWS, columns or role in _FFN_COLUMNS
    if role in _EXPERTS and part == "weight":
        return _EXPERTS[role]
    if rows:
        return 0
    return 1 if columns and part == "weight" else None


def _units(weight: Weight) -> tuple[int, ...]:
    """Into how many pieces each axis may be cut: rows of packed weights between blocks only."""
    block = weight.scheme.gguf_block_size if weight.scheme is not None else None
    return weight.dims if block is None else (*weight.dims[:-1], weight.dims[-1] // block)
