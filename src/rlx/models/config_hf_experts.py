"""`DecoderConfig` of the families with experts, or with latent attention, from a Hugging Face `config.json`."""

from __future__ import annotations

from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, ExpertScore, LatentConfig, MoeConfig
from rlx.models.config_hf_common import (
    common_fields,
    granite_multipliers,
    qwen_windows,
    rope_from_hf,
    windows_from_hf,
    yarn_score_gain,
)
from rlx.models.hf_fields import HfFields
from rlx.ops.nn.rotary import RopeStyle


def mixtral(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    moe = MoeConfig(f.size("num_local_experts"), f.size("num_experts_per_tok"), common["ffn"], renormalize=True)
    return DecoderConfig(**common, moe=moe, windows=windows_from_hf(f, common["layers"], lambda i: True))


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


def qwen2_moe(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    moe = _qwen_moe(f, f.size("shared_expert_intermediate_size"))
    return DecoderConfig(**common, windows=qwen_windows(f, common["layers"]), moe=moe)


def qwen3_moe(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=qwen_windows(f, common["layers"]), qk_norm=True, moe=_qwen_moe(f, 0))


def gpt_oss(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    moe = MoeConfig(
        experts=f.size("num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=common["ffn"],
        # Softmax over the chosen experts alone is the same.
        renormalize=True,
        swiglu_limit=f.number("swiglu_limit", 7.0),
        swiglu_slope=f.number("swiglu_alpha", 1.702),
    )
    windows = windows_from_hf(f, common["layers"], lambda i: i % 2 == 0)
    return DecoderConfig(**common, moe=moe, windows=windows, attention_sinks=True)


def olmoe(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    moe = MoeConfig(
        experts=f.size("num_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=common["ffn"],
        renormalize=f.flag("norm_topk_prob", False),
    )
    # Keys and queries are cut behind their norms there, and before them here.
    f.refuse("clip_qkv")
    return DecoderConfig(**common, qk_norm_whole=True, moe=moe)


def granitemoe(f: HfFields) -> DecoderConfig:
    """With and without an expert that all tokens meet."""
    common = common_fields(f)
    return DecoderConfig(**common, **granite_multipliers(f), moe=granite_experts(f, common["ffn"]))


def granite_experts(f: HfFields, ffn: int) -> MoeConfig:
    return MoeConfig(
        experts=f.size("num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=ffn,
        renormalize=True,
        shared_ffn=f.size("shared_intermediate_size", 0, least=0),
        shared_gate=False,
    )


def _sparse_layers(f: HfFields, first: int) -> frozenset[int]:
    """The layers without experts: as `mlp_layer_types` says, or those before the first one with experts."""
    layers, types = f.layers("num_hidden_layers"), f.listed("mlp_layer_types")
    if types is None:
        return frozenset(range(min(first, layers)))
    if len(types) != layers or any(t not in ("dense", "sparse") for t in types):
        raise FormatError(f"config.json: mlp_layer_types must name {layers} dense or sparse layers, got {types!r:.100}")
    return frozenset(i for i, t in enumerate(types) if t == "dense")


def _deepseek_experts(f: HfFields, first: int, score: ExpertScore = "sigmoid") -> MoeConfig:
    """Experts as DeepSeek's models have them, from the second generation on."""
    ffn, groups = f.size("moe_intermediate_size"), f.size("n_group", 1)
    return MoeConfig(
        experts=f.size("n_routed_experts" if f.has("n_routed_experts") else "num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=ffn,
        renormalize=f.flag("norm_topk_prob", True),
        score=score,
        corrected=score == "sigmoid",
        groups=groups,
        top_groups=f.size("topk_group", groups),
        group_judges=2 if score == "sigmoid" else 1,
        scale=f.number("routed_scaling_factor", 1.0),
        shared_ffn=ffn * f.size("n_shared_experts", 0, least=0),
        shared_gate=False,
        dense_layers=_sparse_layers(f, f.size("first_k_dense_replace", first, least=0)),
    )


def _latent_fields(f: HfFields) -> dict[str, Any]:
    """Sizes of a model with latent attention, as arguments of `DecoderConfig`."""
    turned = f.size("qk_rope_head_dim")
    latent = LatentConfig(
        rank=f.size("kv_lora_rank"),
        plain=f.size("qk_nope_head_dim"),
        rope=turned,
        value=f.size("v_head_dim"),
        query_rank=f.size("q_lora_rank", 0, least=0),
    )
    style = RopeStyle.GptJ if f.flag("rope_interleave", True) else RopeStyle.NeoX
    return common_fields(f) | {
        "kv_heads": 1,
        "head_dim": latent.rank + latent.rope,
        "rope": rope_from_hf(f, turned, style=style),
        "attention_scale": (latent.plain + latent.rope) ** -0.5 * yarn_score_gain(f),
        "latent": latent,
    }


def _guessing_layers(f: HfFields) -> int:
    """Layers behind the last one, which guess the tokens after the next."""
    return f.size("num_nextn_predict_layers", f.size("num_mtp_layers", 0, least=0), least=0)


def deepseek_v2(f: HfFields) -> DecoderConfig:
    """Of its two ways of choosing experts one knows no groups."""
    f.refuse("topk_method", "greedy", "group_limited_greedy")
    f.refuse("norm_topk_prob", False)
    f.refuse("moe_layer_freq", 1)
    f.refuse("scoring_func", "softmax")
    greedy = f.without("n_group", "topk_group") if f.text("topk_method", "greedy") == "greedy" else f
    return DecoderConfig(**_latent_fields(f), moe=_deepseek_experts(greedy, 0, "softmax"))


def deepseek_v3(f: HfFields) -> DecoderConfig:
    f.refuse("topk_method", "noaux_tc")
    f.refuse("scoring_func", "sigmoid")
    f.refuse("moe_layer_freq", 1)
    return DecoderConfig(**_latent_fields(f), moe=_deepseek_experts(f, 3), extra_layers=_guessing_layers(f))


def glm4_moe_lite(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**_latent_fields(f), moe=_deepseek_experts(f, 1), extra_layers=_guessing_layers(f))


def glm4_moe(f: HfFields) -> DecoderConfig:
    return DecoderConfig(
        **common_fields(f, partial=0.5),
        qk_norm=f.flag("use_qk_norm", False),
        moe=_deepseek_experts(f, 1),
        extra_layers=_guessing_layers(f),
    )


def dots1(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    first = f.size("max_window_layers", common["layers"], least=0)
    windows = windows_from_hf(f, common["layers"], lambda i: i >= first)
    return DecoderConfig(**common, qk_norm=True, windows=windows, moe=_deepseek_experts(f, 0))


def ernie4_5_moe(f: HfFields) -> DecoderConfig:
    common = common_fields(f, style=RopeStyle.GptJ)
    common["tied"] = f.flag("tie_word_embeddings", True)
    layers, ffn = common["layers"], f.size("moe_intermediate_size")
    step, first = f.size("moe_layer_interval", 1), f.size("moe_layer_start_index", 1, least=0)
    last = f.size("moe_layer_end_index", layers - 1, least=-1)
    last = layers - 1 if last == -1 else last
    moe = MoeConfig(
        experts=f.size("moe_num_experts"),
        top_k=f.size("moe_k", 6),
        ffn=ffn,
        renormalize=True,
        corrected=True,
        shared_ffn=ffn * f.size("moe_num_shared_experts", 0, least=0),
        shared_gate=False,
        dense_layers=frozenset(i for i in range(layers) if (i + 1) % step or not first <= i <= last),
    )
    return DecoderConfig(**common, moe=moe)


def hunyuan_v1_moe(f: HfFields) -> DecoderConfig:
    """Numbers may be written once for each layer, and must then be the same."""
    f.refuse("use_cla", False)
    common = common_fields(f)
    moe = MoeConfig(
        experts=f.same_for_all("num_experts"),
        top_k=f.same_for_all("moe_topk", "num_experts_per_tok"),
        ffn=f.same_for_all("moe_intermediate_size", "intermediate_size"),
        renormalize=True,
        shared_ffn=common["ffn"],
        shared_gate=False,
    )
    return DecoderConfig(**common, moe=moe, qk_norm=True, qk_norm_after_rope=True)


def minimax_m2(f: HfFields) -> DecoderConfig:
    head_dim = f.size("head_dim", 128)
    common = common_fields(f, partial=f.size("rotary_dim", head_dim) / head_dim)
    moe = MoeConfig(
        experts=f.size("num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        ffn=common["ffn"],
        renormalize=True,
        score="sigmoid",
        corrected=True,
    )
    return DecoderConfig(**common, qk_norm_whole=True, moe=moe)
