"""`DecoderConfig` from the metadata of a GGUF file. One table: architecture -> function.

Keys are those of the format, `<architecture>.block_count` and so on. Converters have already folded some things into
the weights: q and k of llama are stored for rotary pairs (2i, 2i+1), norms of gemma hold 1 + w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, MoeConfig, RopeConfig, SsmConfig
from rlx.models.config_hf_layer_norm import alibi_slopes
from rlx.models.gguf_keys import Factors, GgufKeys, common_keys
from rlx.models.weight_names import GGUF_PAIRS_TOGETHER
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind

_GELU_TANH = ActivationKind.GeluApprox


def decoder_config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], factors: Factors
) -> DecoderConfig:
    """The config of a GGUF language model.

    `tensors` are dims by name; they tell the vocabulary, and whether the head is the embedding. `factors` reads a small
    float tensor: frequency factors are kept as one.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in DECODERS:
        raise FormatError(
            f"GGUF architecture {architecture!r} is not supported; supported: {', '.join(sorted(DECODERS))}"
        )
    keys = GgufKeys(str(architecture), metadata, tensors)
    common = common_keys(keys, factors)
    if architecture in GGUF_PAIRS_TOGETHER | _PAIRS_TOGETHER_EVERYWHERE and "rope" in common:
        common["rope"] = replace(common["rope"], style=RopeStyle.GptJ)
    return DECODERS[str(architecture)](keys, common)


def _moe(keys: GgufKeys, renormalize: bool, shared: bool = False) -> MoeConfig | None:
    if not keys.integer("expert_count", 0):
        return None
    ffn = keys.integer("expert_feed_forward_length", keys.one_for_all_layers("feed_forward_length"))
    return MoeConfig(
        experts=keys.integer("expert_count"),
        top_k=keys.integer("expert_used_count"),
        ffn=ffn,
        renormalize=renormalize,
        shared_ffn=keys.integer("expert_shared_feed_forward_length", 0) if shared else 0,
    )


def _llama(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    """llama, mistral and mixtral."""
    return DecoderConfig(**common, moe=_moe(keys, renormalize=True))


def _plain(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common)


def _qwen3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm=True)


def _qwen2moe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, moe=_moe(keys, renormalize=False, shared=True))


def _qwen3moe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm=True, moe=_moe(keys, renormalize=True))


def _gemma2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window = keys.integer("attention.sliding_window", 4096)
    return DecoderConfig(
        **common,
        activation=_GELU_TANH,
        post_norms=True,
        windows=tuple(window if i % 2 == 0 else None for i in range(common["layers"])),
        attention_scale=_gemma_scale(common, large=46),
        attention_softcap=keys.number("attn_logit_softcapping", 50.0),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        embed_scale=math.sqrt(common["hidden"]),
    )


def _gemma3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window, every = keys.integer("attention.sliding_window"), keys.integer("attention.sliding_window_pattern", 6)
    if every < 1:
        raise FormatError(f"GGUF key 'gemma3.attention.sliding_window_pattern' must be positive, got {every}")
    return DecoderConfig(
        **common,
        activation=_GELU_TANH,
        post_norms=True,
        qk_norm=True,
        windows=tuple(None if (i + 1) % every == 0 else window for i in range(common["layers"])),
        local_rope=RopeConfig(base=keys.number("rope.freq_base_swa", 10000.0), dims=common["rope"].dims),
        attention_scale=_gemma_scale(common, large=62),
        final_softcap=keys.number("final_logit_softcapping") if keys.has("final_logit_softcapping") else None,
        embed_scale=math.sqrt(common["hidden"]),
    )


def _gemma_scale(common: dict[str, Any], large: int) -> float:
    """The files do not say it: the largest model of each generation, known by its depth, scales by hidden/heads."""
    width = common["hidden"] // common["heads"] if common["layers"] == large else common["head_dim"]
    return float(max(width, 1) ** -0.5)


def _phi3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window = keys.integer("attention.sliding_window", 0)
    windows = (window,) * common["layers"] if window else ()
    return DecoderConfig(**common, windows=windows, fused_qkv=True, fused_gate_up=True)


def _gpt2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    common.update(rope=None, norm_eps=keys.number("attention.layer_norm_epsilon"))
    return DecoderConfig(
        **common, norm="layer", activation=_GELU_TANH, gated=False, fused_qkv=True, learned_positions=True
    )


def _olmo2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, pre_norms=False, post_norms=True, qk_norm_whole=True)


def _gptneox(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    common.update(norm_eps=keys.number("attention.layer_norm_epsilon"))
    return DecoderConfig(
        **common,
        norm="layer",
        activation=ActivationKind.Gelu,
        gated=False,
        fused_qkv=True,
        parallel_residual=keys.flag("use_parallel_residual", True),
    )


def _layer_norms(keys: GgufKeys, common: dict[str, Any]) -> dict[str, Any]:
    return common | {"norm": "layer", "norm_eps": keys.number("attention.layer_norm_epsilon")}


def _smollm3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    # Files do not say which.
    return DecoderConfig(**common, no_rope_layers=frozenset(range(3, common["layers"], 4)))


def _granite(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **common,
        embed_scale=keys.number("embedding_scale", 1.0),
        attention_scale=keys.number("attention.scale", common["head_dim"] ** -0.5),
        residual_multiplier=keys.number("residual_scale", 1.0),
        logit_multiplier=1.0 / keys.number("logit_scale", 1.0),
    )


def _gemma(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, activation=_GELU_TANH, embed_scale=math.sqrt(common["hidden"]))


def _starcoder2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**_layer_norms(keys, common), activation=_GELU_TANH, gated=False)


def _stablelm(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    parallel = "blk.0.ffn_norm.weight" not in keys.tensors
    return DecoderConfig(**_layer_norms(keys, common), parallel_residual=parallel, shared_norm=parallel)


def _olmo(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    limit = keys.number("attention.clamp_kqv") if keys.has("attention.clamp_kqv") else None
    return DecoderConfig(**_layer_norms(keys, common), norm_affine=False, qkv_limit=limit)


def _phi2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **_layer_norms(keys, common),
        activation=_GELU_TANH,
        gated=False,
        fused_qkv="blk.0.attn_qkv.weight" in keys.tensors,
        parallel_residual=True,
        shared_norm=True,
    )


def _command_r(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **_layer_norms(keys, common),
        parallel_residual=True,
        shared_norm=True,
        logit_multiplier=keys.number("logit_scale", 1.0),
    )


def _cohere2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    windows = _windows(keys, common["layers"])
    no_rope = frozenset(i for i, w in enumerate(windows) if w is None)
    return replace(_command_r(keys, common), windows=windows, no_rope_layers=no_rope)


def _windows(keys: GgufKeys, layers: int) -> tuple[int | None, ...]:
    """All layers but every fourth have a window, unless the file says which have."""
    window = keys.integer("attention.sliding_window")
    slides = keys.layer_flags("attention.sliding_window_pattern", layers)
    if slides is None:
        every = keys.integer("attention.sliding_window_pattern", 4)
        slides = tuple(every == 0 or (i + 1) % every != 0 for i in range(layers))
    return tuple(window if s else None for s in slides)


def _glm(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, fused_qkv="blk.0.attn_qkv.weight" in keys.tensors, fused_gate_up=True)


def _glm4(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return replace(_glm(keys, common), post_norms=True)


def _falcon(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **_layer_norms(keys, common),
        activation=ActivationKind.Gelu,
        gated=False,
        fused_qkv=True,
        parallel_residual=True,
        shared_norm="blk.0.attn_norm_2.weight" not in keys.tensors,
    )


def _exaone4(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    windows = _windows(keys, common["layers"]) if keys.has("attention.sliding_window") else ()
    return DecoderConfig(
        **common,
        pre_norms=False,
        post_norms=True,
        qk_norm=True,
        windows=windows,
        no_rope_layers=frozenset(i for i, w in enumerate(windows) if w is None),
    )


def _gpt_oss(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window, moe = keys.integer("attention.sliding_window"), _moe(keys, renormalize=True)
    if moe is None:
        raise FormatError("GGUF key 'gpt-oss.expert_count' is missing; a gpt-oss model needs it")
    # The files do not say it: positions are stretched without whole bounds, and experts have a limit.
    common["rope"] = replace(common["rope"], truncate=False)
    return DecoderConfig(
        **common,
        moe=replace(moe, swiglu_limit=7.0),
        windows=tuple(window if i % 2 == 0 else None for i in range(common["layers"])),
        attention_sinks=True,
    )


def _hunyuan(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm=True, qk_norm_after_rope=True)


def _arcee(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, activation=ActivationKind.Relu, squared_activation=True, gated=False)


def _nemotron(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return _arcee(keys, _layer_norms(keys, common))


def _olmoe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm_whole=True, moe=_moe(keys, renormalize=False))


def _granitemoe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    moe = _moe(keys, renormalize=True, shared=True)
    return replace(_granite(keys, common), moe=None if moe is None else replace(moe, shared_gate=False))


def _bloom(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **_layer_norms(keys, common | {"rope": None}),
        activation=_GELU_TANH,
        gated=False,
        fused_qkv=True,
        embed_norm=True,
        alibi_slopes=alibi_slopes(common["heads"]),
    )


def _mpt(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **_layer_norms(keys, common | {"rope": None}),
        activation=ActivationKind.Gelu,
        gated=False,
        fused_qkv=True,
        qkv_limit=keys.number("attention.clamp_kqv") if keys.has("attention.clamp_kqv") else None,
        alibi_slopes=alibi_slopes(common["heads"], keys.number("attention.max_alibi_bias")),
    )


def _ssm(keys: GgufKeys, **more: Any) -> SsmConfig:
    inner, state = keys.integer("ssm.inner_size"), keys.integer("ssm.state_size")
    return SsmConfig(inner, state, keys.integer("ssm.conv_kernel"), **more)


def _ssm_heads(keys: GgufKeys) -> SsmConfig:
    """What files call the rank of steps is here the number of heads."""
    return _ssm(keys, heads=keys.integer("ssm.time_step_rank"), groups=keys.integer("ssm.group_count", 1))


def _mamba(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    """With and without the norms of Falcon Mamba."""
    eps = common["norm_eps"] if keys.flag("ssm.dt_b_c_rms", False) else None
    return DecoderConfig(**common, ssm=_ssm(keys, rank=keys.integer("ssm.time_step_rank"), part_norm_eps=eps))


def _mamba2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, ssm=_ssm_heads(keys))


def _granitehybrid(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    recurrent = keys.layers_without("attention.head_count_kv")
    if not keys.flag("rope.scaling.finetuned", True):
        common["rope"] = None
    return replace(_granitemoe(keys, common), recurrent_layers=recurrent, ssm=_ssm_heads(keys) if recurrent else None)


def _lfm2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    recurrent = keys.layers_without("attention.head_count_kv")
    taps = keys.integer("shortconv.l_cache") if recurrent else 0
    return DecoderConfig(**common, qk_norm=True, recurrent_layers=recurrent, short_conv=taps)


# Architectures whose rotary pairs are neighbours in directories, too.
_PAIRS_TOGETHER_EVERYWHERE = frozenset({"command-r", "cohere2", "chatglm", "glm4", "ernie4_5"})

DECODERS: dict[str, Callable[[GgufKeys, dict[str, Any]], DecoderConfig]] = {
    "llama": _llama,
    "qwen2": _plain,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "olmo2": _olmo2,
    "gptneox": _gptneox,
    "smollm3": _smollm3,
    "granite": _granite,
    "gemma": _gemma,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "olmo": _olmo,
    "phi2": _phi2,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "chatglm": _glm,
    "glm4": _glm4,
    "falcon": _falcon,
    "exaone4": _exaone4,
    "ernie4_5": _plain,
    "seed_oss": _plain,
    "hunyuan-dense": _hunyuan,
    "gpt-oss": _gpt_oss,
    "arcee": _arcee,
    "nemotron": _nemotron,
    "olmoe": _olmoe,
    "granitemoe": _granitemoe,
    "starcoder": _gpt2,
    "bloom": _bloom,
    "mpt": _mpt,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "granitehybrid": _granitehybrid,
    "lfm2": _lfm2,
}
