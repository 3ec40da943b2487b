"""`DecoderConfig` from a Hugging Face `config.json`. One table: `model_type` -> function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models import config_hf_layer_norm as layer_norm_families
from rlx.models.config import DecoderConfig, MoeConfig, RopeConfig
from rlx.models.config_hf_common import common_fields, rope_from_hf, windows_from_hf
from rlx.models.hf_fields import HfFields
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind


def decoder_config_from_hf(fields: Mapping[str, Any]) -> DecoderConfig:
    """The config of a language model."""
    read = HfFields({**ABSENT.get(str(fields.get("model_type")), {}), **fields})
    if read.family not in DECODERS:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is not a supported language model; "
            f"supported: {', '.join(sorted(DECODERS))}. Encoders are loaded with rlx.load_encoder"
        )
    read.refuse_quantized(*QUANTIZED.get(read.family, ()))
    return DECODERS[read.family](read)


def _llama(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f))


def _mistral(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=windows_from_hf(f, common["layers"], lambda i: True))


def _mixtral(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    moe = MoeConfig(f.size("num_local_experts"), f.size("num_experts_per_tok"), common["ffn"], renormalize=True)
    return DecoderConfig(**common, moe=moe, windows=windows_from_hf(f, common["layers"], lambda i: True))


def _qwen(f: HfFields, **more: Any) -> DecoderConfig:
    common = common_fields(f)
    uses, first = f.flag("use_sliding_window", False), f.size("max_window_layers", 0, least=0)
    windows = windows_from_hf(f, common["layers"], lambda i: uses and i >= first)
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
    common = common_fields(f)
    common["rope"] = rope_from_hf(f, common["head_dim"], "full_attention")
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(
        **common,
        post_norms=True,
        windows=windows_from_hf(f, common["layers"], lambda i: (i + 1) % every != 0),
        attention_scale=f.number("query_pre_attn_scalar") ** -0.5,
        final_softcap=f.optional_number("final_logit_softcapping"),
        embed_scale=math.sqrt(common["hidden"]),
        **more,
    )


def _gemma2(f: HfFields) -> DecoderConfig:
    return _gemma(f, every=2, attention_softcap=f.optional_number("attn_logit_softcapping"))


def _gemma3(f: HfFields) -> DecoderConfig:
    head_dim = f.size("head_dim")
    if "sliding_attention" in f.table("rope_parameters"):
        local = rope_from_hf(f, head_dim, "sliding_attention")
    else:
        local = RopeConfig(base=f.number("rope_local_base_freq", 10000.0), dims=head_dim)
    every = f.size("sliding_window_pattern", f.size("_sliding_window_pattern", 6))
    return _gemma(f, every, qk_norm=True, local_rope=local)


def _phi3(f: HfFields) -> DecoderConfig:
    common = common_fields(f, partial=1.0)
    windows = windows_from_hf(f, common["layers"], lambda i: True)
    return DecoderConfig(**common, windows=windows, fused_qkv=True, fused_gate_up=True)


def _olmo2(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f), pre_norms=False, post_norms=True, qk_norm_whole=True)


def _smollm3(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    layers, every = common["layers"], f.size("no_rope_layer_interval", 4)
    # 1 stands for a layer with rotary positions, whatever the name of the field says.
    turned = f.listed("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    if len(turned) != layers or any(t not in (0, 1) for t in turned):
        raise FormatError(f"config.json: no_rope_layers must be {layers} times 0 or 1, got {turned}")
    common["tied"] = f.flag("tie_word_embeddings", True)
    no_rope = frozenset(i for i in range(layers) if not turned[i])
    uses_windows = f.flag("use_sliding_window", False)
    windows = windows_from_hf(f, layers, no_rope.__contains__) if uses_windows else ()
    return DecoderConfig(**common, windows=windows, no_rope_layers=no_rope)


def _granite(f: HfFields) -> DecoderConfig:
    return DecoderConfig(
        **common_fields(f),
        embed_scale=f.number("embedding_multiplier", 1.0),
        attention_scale=f.number("attention_multiplier", 1.0),
        residual_multiplier=f.number("residual_multiplier", 1.0),
        logit_multiplier=1.0 / f.number("logits_scaling", 1.0),
    )


def _gemma1(f: HfFields) -> DecoderConfig:
    f.refuse("use_bidirectional_attention", False)
    common = common_fields(f)
    if common["activation"] is ActivationKind.Gelu:
        # The first files say "gelu" and mean the approximation that the model was trained with.
        common["activation"] = ActivationKind.GeluApprox
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(**common, embed_scale=math.sqrt(common["hidden"]))


def _glm(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f, partial=0.5, style=RopeStyle.GptJ), fused_gate_up=True)


def _glm4(f: HfFields) -> DecoderConfig:
    common = common_fields(f, partial=0.5, style=RopeStyle.GptJ)
    return DecoderConfig(**common, fused_gate_up=True, post_norms=True)


def _exaone4(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    layers = common["layers"]
    every = f.size("sliding_window_pattern", 4) if f.has("sliding_window") else 0
    windows = windows_from_hf(f, layers, lambda i: (i + 1) % every != 0)
    # Where some layers have a window, those that see all keys have no positions.
    no_rope = frozenset(i for i in range(layers) if f.has("sliding_window") and (not windows or windows[i] is None))
    return DecoderConfig(
        **common, pre_norms=False, post_norms=True, qk_norm=True, windows=windows, no_rope_layers=no_rope
    )


def _ernie(f: HfFields) -> DecoderConfig:
    common = common_fields(f, style=RopeStyle.GptJ)
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(**common)


def _gpt_oss(f: HfFields) -> DecoderConfig:
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


def _hunyuan(f: HfFields) -> DecoderConfig:
    f.refuse("use_qk_norm", True)
    f.refuse("use_cla", False)
    return DecoderConfig(**common_fields(f), qk_norm=True, qk_norm_after_rope=True)


# What fields mean that a file leaves out, where it is not what null means; a file that says null is taken at its word.
ABSENT: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 4096},
    "mixtral": {"rope_theta": 1e6},
    "gemma2": {
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {"sliding_window": 4096, "query_pre_attn_scalar": 256, "rope_theta": 1e6},
    "phi3": {"original_max_position_embeddings": 4096},
    "smollm3": {"rope_theta": 2e6},
    "exaone4": {"sliding_window": 4096},
    "ernie4_5": {"rope_theta": 5e5},
    "gpt_oss": {"sliding_window": 128, "rope_theta": 150000.0},
    "cohere": {"logit_scale": 0.0625, "rope_theta": 5e5},
    "cohere2": {"logit_scale": 0.0625, "sliding_window": 4096},
}
# Layouts of quantised weights that are read, by family.
QUANTIZED: dict[str, tuple[str, ...]] = {"gpt_oss": ("mxfp4",)}

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
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "granite": _granite,
    "gemma": _gemma1,
    "glm": _glm,
    "glm4": _glm4,
    "exaone4": _exaone4,
    "ernie4_5": _ernie,
    "seed_oss": _llama,
    "hunyuan_v1_dense": _hunyuan,
    "gpt_oss": _gpt_oss,
    "gpt2": layer_norm_families.gpt2,
    "gpt_neox": layer_norm_families.gpt_neox,
    "opt": layer_norm_families.opt,
    "gptj": layer_norm_families.gptj,
    "falcon": layer_norm_families.falcon,
    "starcoder2": layer_norm_families.starcoder2,
    "stablelm": layer_norm_families.stablelm,
    "olmo": layer_norm_families.olmo,
    "phi": layer_norm_families.phi,
    "cohere": layer_norm_families.cohere,
    "cohere2": layer_norm_families.cohere2,
}
