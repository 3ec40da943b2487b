"""Where directories of models with an encoder and a decoder keep each weight, after `rlx.models.hf_layouts` has given
both sides names of their own; see `rlx.models.weight_names`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.models.config import Seq2SeqConfig

_PARTS = ("q", "k", "v", "o")


def _t5_side(side: str, ffn: int) -> dict[str, str]:
    layer = f"{side}.block.{{i}}.layer"
    return {
        "embed": f"{side}.embed_tokens",
        "final_norm": f"{side}.final_layer_norm",
        "relative_bias": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        "attn_norm": f"{layer}.0.layer_norm",
        **{part: f"{layer}.0.SelfAttention.{part}" for part in _PARTS},
        "ffn_norm": f"{layer}.{ffn}.layer_norm",
        "gate": f"{layer}.{ffn}.DenseReluDense.wi_0",
        "up": f"{layer}.{ffn}.DenseReluDense.wi_1",
        "down": f"{layer}.{ffn}.DenseReluDense.wo",
    }


def _bart_attention(side: str, module: str, role: str = "") -> dict[str, str]:
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    names = {f"{role}{part}": f"{side}.layers.{{i}}.{module}.{name}" for part, name in parts.items()}
    return names | {f"{role or 'attn_'}norm": f"{side}.layers.{{i}}.{module}_layer_norm"}


def _bart_side(side: str) -> dict[str, str]:
    return {
        "embed": f"{side}.embed_tokens",
        "positions": f"{side}.embed_positions",
        "embed_norm": f"{side}.layernorm_embedding",
        "final_norm": f"{side}.layer_norm",
        **_bart_attention(side, "self_attn"),
        "ffn_norm": f"{side}.layers.{{i}}.final_layer_norm",
        "up": f"{side}.layers.{{i}}.fc1",
        "down": f"{side}.layers.{{i}}.fc2",
    }


_T5_SOURCE = {f"source_{part}": f"decoder.block.{{i}}.layer.1.EncDecAttention.{part}" for part in _PARTS}
_T5_SOURCE |= {"source_norm": "decoder.block.{i}.layer.1.layer_norm"}

T5_ENCODER: dict[str, str] = _t5_side("encoder", ffn=1)
_T5_DECODER: dict[str, str] = _t5_side("decoder", ffn=2) | _T5_SOURCE
_BART_ENCODER: dict[str, str] = _bart_side("encoder")
_BART_DECODER: dict[str, str] = _bart_side("decoder") | _bart_attention("decoder", "encoder_attn", "source_")


def side_names(config: Seq2SeqConfig) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the encoder, and those of the decoder."""
    if not config.decoder.relative_buckets:
        return _BART_ENCODER, _BART_DECODER | {"head": "lm_head"}
    names = T5_ENCODER, _T5_DECODER | {"head": "lm_head"}
    if config.decoder.relative_by_layer:
        return by_layer(names[0]), by_layer(names[1])
    return names


def by_layer(names: dict[str, str]) -> dict[str, str]:
    """The names of a model whose layers each have a table of distances."""
    return names | {"relative_bias": names["relative_bias"].replace(".0.", ".{i}.", 1)}
