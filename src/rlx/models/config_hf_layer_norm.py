"""`DecoderConfig` of the families whose layers have layer norms, from a Hugging Face `config.json`.

They are GPT-2 and what came after it in its line: most have biases, several add both halves of a layer at once.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import FormatError
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
    f.refuse("add_cross_attention", False)
    return _named_as_gpt2(f, "gpt2", tied=True, learned_positions=True, fused_qkv=True, **_gpt2_scale(f))


def _gpt2_scale(f: HfFields) -> dict[str, Any]:
    return {} if f.flag("scale_attn_weights", True) else {"attention_scale": 1.0}


def gpt_bigcode(f: HfFields) -> DecoderConfig:
    """GPT-2 with one head of keys, unless the file says otherwise."""
    f.refuse("add_cross_attention", False)
    more = _gpt2_scale(f) | ({"kv_heads": 1} if f.flag("multi_query", True) else {})
    return _named_as_gpt2(f, "gpt_bigcode", tied=True, learned_positions=True, fused_qkv=True, **more)


def gpt_neo(f: HfFields) -> DecoderConfig:
    layers, hidden = f.layers("num_layers"), f.size("hidden_size")
    kinds = f.listed("attention_layers") or _repeated(f, layers)
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise FormatError(f"config.json: attention_types must name {layers} global or local layers, got {kinds!r:.100}")
    window = f.size("window_size")
    is_local = [kind == "local" for kind in kinds]
    return _without_gates(
        *(f, "gpt_neo", "hidden_size num_heads num_layers max_position_embeddings"),
        ffn=f.size("intermediate_size", 4 * hidden),
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        activation=f.activation("activation_function"),
        attention_scale=1.0,
        learned_positions=True,
        windows=tuple(window if local else None for local in is_local) if any(is_local) else (),
        tied=f.flag("tie_word_embeddings", True),
    )


def _repeated(f: HfFields, layers: int) -> list[Any]:
    """The kinds of layers, of `[[["global", "local"], 12]]`: lists of kinds, and how often each is repeated."""
    found: list[Any] = []
    for entry in f.listed("attention_types") or []:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise FormatError(f"config.json: attention_types must be lists of kinds with a number, got {entry!r:.100}")
        if isinstance(entry[1], bool) or not isinstance(entry[1], int) or not 1 <= entry[1] <= layers:
            raise FormatError(f"config.json: attention_types must be repeated up to {layers} times, got {entry[1]!r}")
        found += entry[0] * entry[1]
    return found


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


def codegen(f: HfFields) -> DecoderConfig:
    rope = RopeConfig(base=10000.0, dims=f.size("rotary_dim"), style=RopeStyle.GptJ)
    return _named_as_gpt2(f, "codegen", tied=False, rope=rope, fused_qkv=True, parallel_residual=True, shared_norm=True)


# Rows of the table of positions that are before the first one.
_OPT_OFFSET = 2


def opt(f: HfFields) -> DecoderConfig:
    """One of its sizes has norms behind the sums, and embeddings that are narrower than its layers."""
    hidden, is_before = f.size("hidden_size"), f.flag("do_layer_norm_before", True)
    width = f.size("word_embed_proj_dim", hidden)
    return _without_gates(
        *(f, "opt", _LONG),
        ffn=f.size("ffn_dim"),
        norm_eps=1e-5,
        norm_affine=f.flag("layer_norm_elementwise_affine", True),
        activation=f.activation("activation_function"),
        learned_positions=True,
        position_offset=_OPT_OFFSET,
        pre_norms=is_before,
        sum_norms=not is_before,
        final_norm=is_before and not f.flag("_remove_final_layer_norm", False),
        embed_width=0 if width == hidden else width,
        tied=f.flag("tie_word_embeddings", True),
    )


def falcon(f: HfFields) -> DecoderConfig:
    """Falcon-7B has one head of keys and one norm in each layer, Falcon-40B (`new_decoder_architecture`) several heads
    and a norm for each half; Falcon-RW knows distances in the place of positions."""
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
    places: dict[str, Any] = {"rope": rope_from_hf(f, head_dim, context=context)}
    if f.flag("alibi", False):
        # Distances are added before scores are scaled.
        places = {"alibi_slopes": tuple(slope * head_dim**-0.5 for slope in alibi_slopes(heads))}
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
        fused_qkv=True,
        parallel_residual=is_parallel,
        shared_norm=is_parallel and norms == 1,
        tied=f.flag("tie_word_embeddings", True),
        **places,
    )


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """2^(-most·i/n) for i = 1..n heads, where n is a power of two. Of other numbers the first come from the power of
    two below, and the rest are every second one of the power above.

    >>> alibi_slopes(4), alibi_slopes(3)
    ((0.25, 0.0625, 0.015625, 0.00390625), (0.0625, 0.00390625, 0.25))
    """
    above = 1 << (heads - 1).bit_length()
    slopes = tuple(2.0 ** (-most * (i + 1) / above) for i in range(above))
    return slopes if above == heads else (slopes[1::2] + slopes[::2])[:heads]


# The length of texts that files of these families need not say.
_BLOOM_CONTEXT = 2048


def bloom(f: HfFields) -> DecoderConfig:
    f.refuse("apply_residual_connection_post_layernorm", False)
    hidden = f.size("hidden_size" if f.has("hidden_size") else "n_embed")
    heads = f.size("n_head" if f.has("n_head") else "num_attention_heads")
    return DecoderConfig(
        family="bloom",
        layers=f.layers("n_layer" if f.has("n_layer") else "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        ffn=4 * hidden,
        vocab=f.size("vocab_size"),
        context=f.size("seq_length", _BLOOM_CONTEXT),
        norm="layer",
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        activation=ActivationKind.GeluApprox,
        gated=False,
        fused_qkv=True,
        embed_norm=True,
        alibi_slopes=alibi_slopes(heads),
        tied=f.flag("tie_word_embeddings", True),
    )


def mpt(f: HfFields) -> DecoderConfig:
    hidden, heads = f.size("d_model"), f.size("n_heads")
    attention = HfFields({"model_type": f.family, **f.table("attn_config")})
    for name, accepted in (
        ("attn_type", "multihead_attention"),
        ("prefix_lm", False),
        ("qk_ln", False),
        ("alibi", True),
        ("rope", False),
    ):
        attention.refuse(name, accepted)
    f.refuse("logit_scale")
    return DecoderConfig(
        family="mpt",
        layers=f.layers("n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        ffn=f.size("expansion_ratio", 4) * hidden,
        vocab=f.size("vocab_size"),
        context=f.size("max_seq_len"),
        norm="layer",
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        activation=ActivationKind.Gelu,
        gated=False,
        fused_qkv=True,
        attention_scale=attention.optional_number("softmax_scale"),
        qkv_limit=attention.optional_number("clip_qkv"),
        alibi_slopes=alibi_slopes(heads, attention.number("alibi_bias_max", 8.0)),
        tied=f.flag("tie_word_embeddings", True),
    )


def nemotron(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f, "norm_eps", partial=0.5), norm="layer", gated=False)


def persimmon(f: HfFields) -> DecoderConfig:
    common = common_fields(f, "layer_norm_eps", partial=0.5)
    return DecoderConfig(**common, norm="layer", gated=False, fused_qkv=True, qk_norm=f.flag("qk_layernorm", True))


def starcoder2(f: HfFields) -> DecoderConfig:
    f.refuse("norm_type", "layer_norm")
    f.refuse("mlp_type", "default")
    common = common_fields(f, "norm_epsilon")
    common["tied"] = f.flag("tie_word_embeddings", True)
    windows = windows_from_hf(f, common["layers"], lambda i: True)
    return DecoderConfig(**common, norm="layer", gated=False, windows=windows)


def stablelm(f: HfFields) -> DecoderConfig:
    parallel, has_norms = f.flag("use_parallel_residual", False), f.flag("qk_layernorm", False)
    return DecoderConfig(
        **common_fields(f, "layer_norm_eps", partial=0.25),
        norm="layer",
        qk_norm=has_norms,
        qk_norm_by_head=has_norms,
        parallel_residual=parallel,
        shared_norm=parallel,
    )


def olmo(f: HfFields) -> DecoderConfig:
    common = common_fields(f, 1e-5)
    return DecoderConfig(**common, norm="layer", norm_affine=False, qkv_limit=f.optional_number("clip_qkv"))


def phi(f: HfFields) -> DecoderConfig:
    common = common_fields(f, "layer_norm_eps", partial=0.5)
    qk_norm = f.flag("qk_layernorm", False)
    return DecoderConfig(**common, norm="layer", gated=False, qk_norm=qk_norm, parallel_residual=True, shared_norm=True)


def _cohere(f: HfFields, **more: Any) -> DecoderConfig:
    has_norms = f.flag("use_qk_norm", False)
    f.refuse("use_parallel_block", True)
    f.refuse("use_gated_activation", True)
    common = common_fields(f, "layer_norm_eps", style=RopeStyle.GptJ)
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(
        **common,
        norm="layer",
        qk_norm=has_norms,
        qk_norm_by_head=has_norms,
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
