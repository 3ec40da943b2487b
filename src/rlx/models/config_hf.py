"""`DecoderConfig` from a Hugging Face `config.json`. One table: `model_type` -> function.

Rotary settings are read in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, MoeConfig, RopeConfig
from rlx.models.hf_fields import HfFields


def decoder_config_from_hf(fields: Mapping[str, Any]) -> DecoderConfig:
    """The config of a language model."""
    read = HfFields(fields)
    if read.family not in DECODERS:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is not a supported language model; "
            f"supported: {', '.join(sorted(DECODERS))}. Encoders are loaded with rlx.load_encoder"
        )
    read.refuse_quantized()
    return DECODERS[read.family](read)


def _common(f: HfFields) -> dict[str, Any]:
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    head_dim = f.size("head_dim", max(hidden // heads, 1))
    return {
        "family": f.family,
        "layers": f.layers("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": f.size("num_key_value_heads", heads),
        "head_dim": head_dim,
        "ffn": f.size("intermediate_size"),
        "vocab": f.size("vocab_size"),
        "context": f.size("max_position_embeddings"),
        "norm_eps": f.number("rms_norm_eps"),
        "activation": f.activation("hidden_act", "hidden_activation"),
        "tied": f.flag("tie_word_embeddings", False),
        "rope": rope_from_hf(f, head_dim),
    }


def rope_from_hf(f: HfFields, head_dim: int, layer_type: str | None = None) -> RopeConfig:
    """Rotary positions; `layer_type` picks those of one kind of layers where they differ."""
    settings = f.table("rope_parameters") or f.table("rope_scaling")
    if layer_type is not None and isinstance(settings.get(layer_type), Mapping):
        settings = settings[layer_type]
    kind = settings.get("rope_type", settings.get("type", "default"))
    read = HfFields(settings, f"{f.family} (rope {kind})")
    partial = read.number("partial_rotary_factor", f.number("partial_rotary_factor", 1.0))
    context = f.size("max_position_embeddings")
    original_default = f.size("original_max_position_embeddings", context)
    common: dict[str, Any] = {
        "base": read.number("rope_theta", f.number("rope_theta", 10000.0)),
        "dims": int(head_dim * partial),
    }
    if kind == "default":
        return RopeConfig(**common)
    if kind == "linear":
        return RopeConfig(**common, scaling="linear", factor=read.number("factor"))
    common["original_context"] = read.size("original_max_position_embeddings", original_default)
    if kind == "llama3":
        return RopeConfig(
            **common,
            scaling="llama3",
            factor=read.number("factor"),
            low_freq_factor=read.number("low_freq_factor"),
            high_freq_factor=read.number("high_freq_factor"),
        )
    if kind == "yarn":
        read.refuse("mscale", 0)
        read.refuse("mscale_all_dim", 0)
        return RopeConfig(
            **common,
            scaling="yarn",
            factor=read.number("factor", context / common["original_context"]),
            beta_fast=read.number("beta_fast", 32.0),
            beta_slow=read.number("beta_slow", 1.0),
            truncate=read.flag("truncate", True),
            attention_factor=read.optional_number("attention_factor"),
        )
    if kind in ("longrope", "su"):
        return RopeConfig(
            **common,
            scaling="longrope",
            factor=context / common["original_context"],
            attention_factor=read.optional_number("attention_factor"),
            factors=read.numbers("short_factor"),
            long_factors=read.numbers("long_factor"),
        )
    raise FormatError(
        f"config.json: rope type {kind!r} is not supported; supported: default, linear, llama3, yarn, longrope"
    )


def _windows(f: HfFields, layers: int, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Which layers see a window: as `layer_types` says, or by the rule of the family."""
    window = f.size("sliding_window", 0, least=0)
    types = f.listed("layer_types")
    if types is not None:
        if len(types) != layers or any(t not in ("full_attention", "sliding_attention") for t in types):
            raise FormatError(f"config.json: layer_types must name {layers} full or sliding layers, got {types}")
        slides = [t == "sliding_attention" for t in types]
    else:
        slides = [bool(window) and default(i) for i in range(layers)]
    if any(slides) and not window:
        raise FormatError("config.json: layer_types names sliding layers, but there is no sliding_window")
    return tuple(window if s else None for s in slides) if any(slides) else ()


def _llama(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**_common(f))


def _mistral(f: HfFields) -> DecoderConfig:
    common = _common(f)
    return DecoderConfig(**common, windows=_windows(f, common["layers"], lambda i: True))


def _mixtral(f: HfFields) -> DecoderConfig:
    common = _common(f)
    moe = MoeConfig(f.size("num_local_experts"), f.size("num_experts_per_tok"), common["ffn"], renormalize=True)
    return DecoderConfig(**common, moe=moe, windows=_windows(f, common["layers"], lambda i: True))


def _qwen(f: HfFields, **more: Any) -> DecoderConfig:
    common = _common(f)
    uses, first = f.flag("use_sliding_window", False), f.size("max_window_layers", 0, least=0)
    windows = _windows(f, common["layers"], lambda i: uses and i >= first)
    return DecoderConfig(**common, windows=windows if uses else (), **more)


def _qwen2(f: HfFields) -> DecoderConfig:
    return _qwen(f)


def _qwen3(f: HfFields) -> DecoderConfig:
    return _qwen(f, qk_norm=True)


def _qwen_moe(f: HfFields, shared: int) -> MoeConfig:
    step, layers = f.size("decoder_sparse_step", 1), f.layers("num_hidden_layers")
    only_dense = f.listed("mlp_only_layers") or []
    return MoeConfig(
        experts=f.size("num_experts" if f.has("num_experts") else "num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=f.size("moe_intermediate_size"),
        renormalize=f.flag("norm_topk_prob", False),
        shared_ffn=shared,
        dense_layers=frozenset(i for i in range(layers) if (i + 1) % step or i in only_dense),
    )


def _qwen2_moe(f: HfFields) -> DecoderConfig:
    return _qwen(f, moe=_qwen_moe(f, f.size("shared_expert_intermediate_size")))


def _qwen3_moe(f: HfFields) -> DecoderConfig:
    return _qwen(f, qk_norm=True, moe=_qwen_moe(f, 0))


def _gemma(f: HfFields, every: int, **more: Any) -> DecoderConfig:
    f.refuse("use_bidirectional_attention", False)
    common = _common(f)
    common["rope"] = rope_from_hf(f, common["head_dim"], "full_attention")
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(
        **common,
        post_norms=True,
        windows=_windows(f, common["layers"], lambda i: (i + 1) % every != 0),
        attention_scale=f.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=f.optional_number("attn_logit_softcapping"),
        final_softcap=f.optional_number("final_logit_softcapping"),
        embed_scale=math.sqrt(common["hidden"]),
        **more,
    )


def _gemma2(f: HfFields) -> DecoderConfig:
    return _gemma(f, every=2)


def _gemma3(f: HfFields) -> DecoderConfig:
    head_dim = f.size("head_dim")
    if "sliding_attention" in f.table("rope_parameters"):
        local = rope_from_hf(f, head_dim, "sliding_attention")
    else:
        local = RopeConfig(base=f.number("rope_local_base_freq", 10000.0), dims=head_dim)
    every = f.size("sliding_window_pattern", f.size("_sliding_window_pattern", 6))
    return _gemma(f, every, qk_norm=True, local_rope=local)


def _phi3(f: HfFields) -> DecoderConfig:
    common = _common(f)
    windows = _windows(f, common["layers"], lambda i: True)
    return DecoderConfig(**common, windows=windows, fused_qkv=True, fused_gate_up=True)


def _gpt2(f: HfFields) -> DecoderConfig:
    f.refuse("scale_attn_by_inverse_layer_idx", False)
    f.refuse("scale_attn_weights", True)
    f.refuse("add_cross_attention", False)
    hidden, heads = f.size("n_embd"), f.size("n_head")
    return DecoderConfig(
        family="gpt2",
        layers=f.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=f.size("n_inner", 4 * hidden),
        vocab=f.size("vocab_size"),
        context=f.size("n_positions"),
        norm="layer",
        norm_eps=f.number("layer_norm_epsilon"),
        activation=f.activation("activation_function"),
        gated=False,
        learned_positions=True,
        fused_qkv=True,
        tied=f.flag("tie_word_embeddings", True),
    )


def _olmo2(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**_common(f), pre_norms=False, post_norms=True, qk_norm_whole=True)


def _gpt_neox(f: HfFields) -> DecoderConfig:
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    head_dim = max(hidden // heads, 1)
    if f.table("rope_parameters") or f.table("rope_scaling"):
        rope = rope_from_hf(f, head_dim)
    else:
        dims = int(head_dim * f.number("rotary_pct", 0.25))
        rope = RopeConfig(base=f.number("rotary_emb_base", 10000.0), dims=dims)
    return DecoderConfig(
        family="gpt_neox",
        layers=f.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=f.size("intermediate_size"),
        vocab=f.size("vocab_size"),
        context=f.size("max_position_embeddings"),
        norm="layer",
        norm_eps=f.number("layer_norm_eps", 1e-5),
        activation=f.activation("hidden_act"),
        gated=False,
        rope=rope,
        fused_qkv=True,
        parallel_residual=f.flag("use_parallel_residual", True),
        tied=f.flag("tie_word_embeddings", False),
    )


# Rows of the table of positions that are before the first one.
_OPT_OFFSET = 2


def _opt(f: HfFields) -> DecoderConfig:
    f.refuse("do_layer_norm_before", True)
    f.refuse("_remove_final_layer_norm", False)
    f.refuse("layer_norm_elementwise_affine", True)
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    f.refuse("word_embed_proj_dim", hidden)
    return DecoderConfig(
        family="opt",
        layers=f.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        ffn=f.size("ffn_dim"),
        vocab=f.size("vocab_size"),
        context=f.size("max_position_embeddings"),
        norm="layer",
        norm_eps=1e-5,
        activation=f.activation("activation_function"),
        gated=False,
        learned_positions=True,
        position_offset=_OPT_OFFSET,
        tied=f.flag("tie_word_embeddings", True),
    )


DECODERS: dict[str, Callable[[HfFields], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "olmo2": _olmo2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
}
