"""`DecoderConfig` of the families whose layers have layer norms, from a Hugging Face `config.json`.

They are GPT-2 and what came after it in its line: most have biases, several add both halves of a layer at once.
"""

from __future__ import annotations

from typing import Any

from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.config_hf_common import common_fields, rope_from_hf, windows_from_hf
from rlx.models.hf_fields import HfFields
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind


def _without_gates(f: HfFields, family: str, names: str, **more: Any) -> DecoderConfig:
    """What GPT-2's line shares; `names` are the fields of width, heads, layers and context, in this order."""
    width, head_count, layers, context = names.split()
    hidden, heads = f.size(width), f.size(head_count)
    return DecoderConfig(
        family=family,
        layers=f.layers(layers),
        hidden=hidden,
        heads=heads,
        head_dim=max(hidden // heads, 1),
        vocab=f.size("vocab_size"),
        context=f.size(context),
        norm="layer",
        gated=False,
        **({"kv_heads": heads} | more),
    )


_SHORT = "n_embd n_head n_layer n_positions"
_LONG = "hidden_size num_attention_heads num_hidden_layers max_position_embeddings"


def _named_as_gpt2(f: HfFields, family: str, tied: bool, **more: Any) -> DecoderConfig:
    """With the names of fields that the first of them had."""
    return _without_gates(
        *(f, family, _SHORT),
        ffn=f.size("n_inner", 4 * f.size("n_embd")),
        norm_eps=f.number("layer_norm_epsilon"),
        activation=f.activation("activation_function"),
        tied=f.flag("tie_word_embeddings", tied),
        **more,
    )


def gpt2(f: HfFields) -> DecoderConfig:
    f.refuse("scale_attn_by_inverse_layer_idx", False)
    f.refuse("scale_attn_weights", True)
    f.refuse("add_cross_attention", False)
    return _named_as_gpt2(f, "gpt2", tied=True, learned_positions=True, fused_qkv=True)


def gptj(f: HfFields) -> DecoderConfig:
    rope = RopeConfig(base=10000.0, dims=f.size("rotary_dim"), style=RopeStyle.GptJ)
    return _named_as_gpt2(f, "gptj", tied=False, rope=rope, parallel_residual=True, shared_norm=True)


def gpt_neox(f: HfFields) -> DecoderConfig:
    head_dim = max(f.size("hidden_size") // f.size("num_attention_heads"), 1)
    base, share = f.number("rotary_emb_base", 10000.0), f.number("rotary_pct", 0.25)
    return _without_gates(
        *(f, "gpt_neox", _LONG),
        ffn=f.size("intermediate_size"),
        norm_eps=f.number("layer_norm_eps", 1e-5),
        activation=f.activation("hidden_act"),
        rope=rope_from_hf(f, head_dim, base=base, partial=share),
        fused_qkv=True,
        parallel_residual=f.flag("use_parallel_residual", True),
        tied=f.flag("tie_word_embeddings", False),
    )


# Rows of the table of positions that are before the first one.
_OPT_OFFSET = 2


def opt(f: HfFields) -> DecoderConfig:
    f.refuse("do_layer_norm_before", True)
    f.refuse("_remove_final_layer_norm", False)
    f.refuse("layer_norm_elementwise_affine", True)
    f.refuse("word_embed_proj_dim", f.size("hidden_size"))
    return _without_gates(
        *(f, "opt", _LONG),
        ffn=f.size("ffn_dim"),
        norm_eps=1e-5,
        activation=f.activation("activation_function"),
        learned_positions=True,
        position_offset=_OPT_OFFSET,
        tied=f.flag("tie_word_embeddings", True),
    )


def falcon(f: HfFields) -> DecoderConfig:
    """Falcon-7B has one head of keys and one norm in each layer, Falcon-40B (`new_decoder_architecture`) several heads
    and a norm for each half."""
    f.refuse("alibi", False)
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    head_dim, context = max(hidden // heads, 1), f.size("max_position_embeddings", 2048)
    is_new = f.flag("new_decoder_architecture", False)
    is_parallel = is_new or f.flag("parallel_attn", True)
    if is_new:
        kv_heads = f.size("num_kv_heads", heads)
        f.refuse("parallel_attn", True)
    else:
        kv_heads = 1 if f.flag("multi_query", True) else heads
    norms = f.size("num_ln_in_parallel_attn", 2 if is_new else 1)
    return DecoderConfig(
        family="falcon",
        layers=f.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=f.size("ffn_hidden_size", 4 * hidden),
        vocab=f.size("vocab_size"),
        context=context,
        norm="layer",
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        activation=f.activation("activation") if f.has("activation") else ActivationKind.Gelu,
        gated=False,
        rope=rope_from_hf(f, head_dim, context=context),
        fused_qkv=True,
        parallel_residual=is_parallel,
        shared_norm=is_parallel and norms == 1,
        tied=f.flag("tie_word_embeddings", True),
    )


def starcoder2(f: HfFields) -> DecoderConfig:
    f.refuse("norm_type", "layer_norm")
    f.refuse("mlp_type", "default")
    common = common_fields(f, "norm_epsilon")
    common["tied"] = f.flag("tie_word_embeddings", True)
    windows = windows_from_hf(f, common["layers"], lambda i: True)
    return DecoderConfig(**common, norm="layer", gated=False, windows=windows)


def stablelm(f: HfFields) -> DecoderConfig:
    f.refuse("qk_layernorm", False)
    parallel = f.flag("use_parallel_residual", False)
    common = common_fields(f, "layer_norm_eps", partial=0.25)
    return DecoderConfig(**common, norm="layer", parallel_residual=parallel, shared_norm=parallel)


def olmo(f: HfFields) -> DecoderConfig:
    common = common_fields(f, 1e-5)
    return DecoderConfig(**common, norm="layer", norm_affine=False, qkv_limit=f.optional_number("clip_qkv"))


def phi(f: HfFields) -> DecoderConfig:
    f.refuse("qk_layernorm", False)
    common = common_fields(f, "layer_norm_eps", partial=0.5)
    return DecoderConfig(**common, norm="layer", gated=False, parallel_residual=True, shared_norm=True)


def _cohere(f: HfFields, **more: Any) -> DecoderConfig:
    f.refuse("use_qk_norm", False)
    f.refuse("use_parallel_block", True)
    f.refuse("use_gated_activation", True)
    common = common_fields(f, "layer_norm_eps", style=RopeStyle.GptJ)
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(
        **common,
        norm="layer",
        parallel_residual=True,
        shared_norm=True,
        logit_multiplier=f.number("logit_scale", 1.0),
        **more,
    )


def cohere(f: HfFields) -> DecoderConfig:
    return _cohere(f)


def cohere2(f: HfFields) -> DecoderConfig:
    layers, every = f.layers("num_hidden_layers"), f.size("sliding_window_pattern", 4)
    windows = windows_from_hf(f, layers, lambda i: (i + 1) % every != 0)
    # Layers that see all keys have no positions.
    no_rope = frozenset(i for i in range(layers) if not windows or windows[i] is None)
    return _cohere(f, windows=windows, no_rope_layers=no_rope)
