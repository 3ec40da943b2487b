"""`DecoderConfig` of the families whose layers keep states, from a Hugging Face `config.json`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, SsmConfig
from rlx.models.config_hf_common import common_fields, granite_multipliers
from rlx.models.config_hf_experts import granite_experts
from rlx.models.hf_fields import HfFields

# Nothing in a state-space model counts positions; so long are texts at most where files do not say it.
ANY_LENGTH = 2**20


def _state_spaces_alone(f: HfFields, ssm: SsmConfig, tied: bool) -> DecoderConfig:
    """A model of such layers, which have no feed-forward halves."""
    f.refuse("hidden_act", "silu")
    layers, hidden = f.layers("num_hidden_layers"), f.size("hidden_size")
    return DecoderConfig(
        family=f.family,
        layers=layers,
        hidden=hidden,
        heads=1,
        kv_heads=1,
        head_dim=hidden,
        ffn=0,
        vocab=f.size("vocab_size"),
        context=f.size("max_position_embeddings", ANY_LENGTH),
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        tied=f.flag("tie_word_embeddings", tied),
        recurrent_layers=frozenset(range(layers)),
        ssm=ssm,
    )


def mamba(f: HfFields) -> DecoderConfig:
    hidden = f.size("hidden_size")
    automatic = f.with_value("time_step_rank", None) if f.text_or_none("time_step_rank") == "auto" else f
    ssm = SsmConfig(
        inner=int(f.number("expand", 2) * hidden),
        state=f.size("state_size", 16),
        taps=f.size("conv_kernel", 4),
        rank=automatic.size("time_step_rank", math.ceil(hidden / 16)),
    )
    return _state_spaces_alone(f, ssm, True)


def falcon_mamba(f: HfFields) -> DecoderConfig:
    """Mamba in which steps, and what enters and leaves states, are normalised."""
    config = mamba(f)
    assert config.ssm is not None
    return replace(config, ssm=replace(config.ssm, part_norm_eps=f.number("mixer_rms_eps", 1e-6)))


def mamba2(f: HfFields) -> DecoderConfig:
    names = {"n_heads": "num_heads", "d_head": "head_dim", "n_groups": "n_groups", "d_state": "state_size"}
    names |= {"d_conv": "conv_kernel", "expand": "expand"}
    return _state_spaces_alone(f, _heads(f.renamed({f"mamba_{name}": own for name, own in names.items()})), False)


def _heads(f: HfFields) -> SsmConfig:
    """Layers of Mamba-2, as most families name their sizes."""
    inner, heads = int(f.number("mamba_expand", 2) * f.size("hidden_size")), f.size("mamba_n_heads")
    automatic = f.text_or_none("mamba_d_head") == "auto" or not f.has("mamba_d_head")
    width = inner // heads if automatic else f.size("mamba_d_head")
    if width * heads != inner:
        raise FormatError(f"config.json: {heads} heads of {width} features are not the {inner} of a state-space layer")
    return SsmConfig(
        inner=inner,
        state=f.size("mamba_d_state"),
        taps=f.size("mamba_d_conv", 4),
        heads=heads,
        groups=f.size("mamba_n_groups", 1),
        step_limits=_limits(f),
    )


def _limits(f: HfFields) -> tuple[float, float] | None:
    """Between which steps are cut; None where that is no limit."""
    limits = f.listed("time_step_limit")
    if limits is None:
        return None
    # JSON has no infinity; newer files write it as an object.
    limits = [math.inf if x == {"__float__": "Infinity"} else x for x in limits]
    if len(limits) != 2 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in limits):
        raise FormatError(f"config.json: time_step_limit must be two numbers, got {limits!r:.80}")
    low, high = map(float, limits)
    if not 0 <= low <= high:
        raise FormatError(f"config.json: time_step_limit must be two numbers from 0 on, the lesser first, got {limits}")
    return None if low == 0 and high > 1e30 else (low, min(high, 1e30))


def _recurrent(f: HfFields, types: list[Any] | None, layers: int, others: tuple[str, ...]) -> frozenset[int]:
    """The layers that keep states, of a list with the type of each; without one all do."""
    if types is None:
        return frozenset(range(layers))
    attends = ("attention", "full_attention")
    if len(types) != layers or any(t not in (*attends, *others) for t in types):
        raise FormatError(
            f"config.json: layer types must be one of {', '.join((*attends, *others))} for each of {layers} layers, "
            f"got {types!r:.100}"
        )
    return frozenset(i for i, t in enumerate(types) if t not in attends)


def granitemoehybrid(f: HfFields) -> DecoderConfig:
    """Layers of attention among those of Mamba-2; without experts all tokens meet the shared one alone."""
    common, experts = common_fields(f), f.size("num_local_experts", 0, least=0)
    types = f.listed("layer_types") or f.listed("layers_block_type")
    recurrent = _recurrent(f, types, common["layers"], ("mamba", "linear_attention"))
    if f.text("position_embedding_type", "nope") != "rope":
        common["rope"] = None
    common |= {"recurrent_layers": recurrent, "ssm": _heads(f) if recurrent else None, **granite_multipliers(f)}
    if experts:
        return DecoderConfig(**common, moe=granite_experts(f, common["ffn"]))
    return DecoderConfig(**common | {"ffn": f.size("shared_intermediate_size")})


def bamba(f: HfFields) -> DecoderConfig:
    common = common_fields(f, partial=0.5)
    attends = f.listed("attn_layer_indices") or []
    recurrent = frozenset(range(common["layers"])) - frozenset(i for i in attends if isinstance(i, int))
    return DecoderConfig(**common, recurrent_layers=recurrent, ssm=_heads(f))


def lfm2(f: HfFields) -> DecoderConfig:
    """Layers of attention among short convolutions."""
    f = f.with_value("hidden_act", "silu")
    f = f.with_value("intermediate_size", f.size("block_ff_dim", f.size("intermediate_size", 12288)))
    common = common_fields(f, "norm_eps", base=1e6)
    layers, types = common["layers"], f.listed("layer_types")
    attends = f.listed("full_attn_idxs")
    if types is None and attends is not None:
        types = ["full_attention" if i in attends else "conv" for i in range(layers)]
    recurrent = _recurrent(f, types, layers, ("conv",)) if types is not None else frozenset()
    common["tied"] = f.flag("tie_embedding", f.flag("tie_word_embeddings", True))
    common["ffn"] = _adjusted(f, common["ffn"])
    return DecoderConfig(
        **common, qk_norm=True, recurrent_layers=recurrent, short_conv=f.size("conv_L_cache", 3) if recurrent else 0
    )


def _adjusted(f: HfFields, ffn: int) -> int:
    """The width of feed-forward halves: two thirds of what is written, times a factor, up to a multiple."""
    if not f.flag("block_auto_adjust_ff_dim", True):
        return ffn
    width, multiple = int(2 * ffn / 3), f.size("block_multiple_of", 256)
    width = int(f.number("block_ffn_dim_multiplier", 1.0) * width)
    return -(-width // multiple) * multiple
