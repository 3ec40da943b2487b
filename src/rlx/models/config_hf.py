"""`DecoderConfig` from a Hugging Face `config.json`. One table: `model_type` -> function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models import config_hf_experts as expert_families
from rlx.models import config_hf_layer_norm as layer_norm_families
from rlx.models import config_hf_recurrent as recurrent_families
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.config_hf_common import common_fields, granite_multipliers, qwen_windows, rope_from_hf, windows_from_hf
from rlx.models.hf_fields import HfFields
from rlx.models.hf_wrappers import WRAPPERS, text_fields
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind


def decoder_config_from_hf(fields: Mapping[str, Any]) -> DecoderConfig:
    """The config of a language model."""
    fields = text_fields(fields)
    read = HfFields({**ABSENT.get(str(fields.get("model_type")), {}), **fields})
    if read.family not in DECODERS:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is "
            + (
                _elsewhere(read.family)
                or f"not a supported language model; supported: {', '.join(sorted(DECODERS))}, "
                f"and the language models in {', '.join(sorted(WRAPPERS))}"
            )
        )
    read.refuse_quantized(*QUANTIZED.get(read.family, ()))
    return DECODERS[read.family](read)


def _elsewhere(family: str) -> str:
    """What a model is that is loaded by another function; nothing where it is none."""
    # Only where something is wrong.
    from rlx.models.config_hf_encoders import ENCODERS
    from rlx.models.config_hf_seq2seq import SEQ2SEQ
    from rlx.models.config_hf_vision import VISION

    if family in SEQ2SEQ:
        return "no language model: it reads one text and writes another; use rlx.load_seq2seq, or rlx generate"
    if family in ENCODERS:
        return "no language model, but a text encoder; use rlx.load_encoder (rlx embed) or rlx.load_classifier"
    if family in VISION:
        return "no language model, but one that sees; use rlx.load_vision"
    return "no language model, but one that hears; use rlx.load_speech" if family == "whisper" else ""


def _llama(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f))


def _mistral(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=windows_from_hf(f, common["layers"], lambda i: True))


def _qwen2(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=qwen_windows(f, common["layers"]))


def _qwen3(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=qwen_windows(f, common["layers"]), qk_norm=True)


def _gemma(f: HfFields, every: int, post_norms: bool = True, **more: Any) -> DecoderConfig:
    f.refuse("use_bidirectional_attention", False)
    common = common_fields(f)
    common["rope"] = rope_from_hf(f, common["head_dim"], "full_attention")
    common["tied"] = f.flag("tie_word_embeddings", True)
    return DecoderConfig(
        **common,
        post_norms=post_norms,
        windows=windows_from_hf(f, common["layers"], lambda i: (i + 1) % every != 0),
        attention_scale=f.number("query_pre_attn_scalar") ** -0.5,
        final_softcap=f.optional_number("final_logit_softcapping"),
        embed_scale=math.sqrt(common["hidden"]),
        **more,
    )


def _gemma2(f: HfFields) -> DecoderConfig:
    return _gemma(f, every=2, attention_softcap=f.optional_number("attn_logit_softcapping"))


def _vaultgemma(f: HfFields) -> DecoderConfig:
    return _gemma(f, every=2, post_norms=False, attention_softcap=f.optional_number("attn_logit_softcapping"))


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


def _olmo3(f: HfFields) -> DecoderConfig:
    """Positions are stretched in the layers that see all keys alone."""
    common = common_fields(f)
    layers, local = common["layers"], RopeConfig(base=common["rope"].base, dims=common["head_dim"])
    if "sliding_attention" in f.table("rope_parameters"):
        common["rope"] = rope_from_hf(f, common["head_dim"], "full_attention")
        local = rope_from_hf(f, common["head_dim"], "sliding_attention")
    windows = windows_from_hf(f, layers, lambda i: (i + 1) % 4 != 0)
    return DecoderConfig(
        **common, pre_norms=False, post_norms=True, qk_norm_whole=True, windows=windows, local_rope=local
    )


def _arcee(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f), gated=False)


def _helium(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f, style=RopeStyle.GptJ))


def _cwm(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(**common, windows=windows_from_hf(f, common["layers"], lambda i: i % 4 != 0))


def _internlm2(f: HfFields) -> DecoderConfig:
    return DecoderConfig(**common_fields(f), fused_qkv=True)


def _baichuan(f: HfFields) -> DecoderConfig:
    """The models that turn their heads; the larger ones of this family know distances only, and have no field for a
    length of their positions."""
    if not f.has("max_position_embeddings"):
        raise FormatError("config.json: baichuan models without max_position_embeddings are not supported")
    if f.size("vocab_size") > _FIRST_BAICHUAN_WORDS:
        raise FormatError(
            "config.json: baichuan models of the second generation, whose heads are normalised, are not supported"
        )
    return DecoderConfig(**common_fields(f), fused_qkv=True)


def _exaone(f: HfFields) -> DecoderConfig:
    renamed = {"hidden_act": "activation_function", "num_hidden_layers": "num_layers"}
    return DecoderConfig(**common_fields(f.renamed(renamed), "layer_norm_epsilon"))


def _minicpm(f: HfFields) -> DecoderConfig:
    common = common_fields(f)
    return DecoderConfig(
        **common,
        embed_scale=f.number("scale_emb", 1.0),
        residual_multiplier=f.number("scale_depth", 1.0) * common["layers"] ** -0.5,
        logit_multiplier=f.number("dim_model_base", common["hidden"]) / common["hidden"],
    )


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
    return DecoderConfig(**common_fields(f), **granite_multipliers(f))


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


def _hunyuan(f: HfFields) -> DecoderConfig:
    f.refuse("use_qk_norm", True)
    f.refuse("use_cla", False)
    return DecoderConfig(**common_fields(f), qk_norm=True, qk_norm_after_rope=True)


# Words of baichuan models of the first generation.
_FIRST_BAICHUAN_WORDS = 64000

# What fields mean that a file leaves out, where it is not what null means; a file that says null is taken at its word.
_GEMMA2 = {
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "num_key_value_heads": 4,
}
ABSENT: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "mixtral": {"rope_theta": 1e6, "num_key_value_heads": 8},
    "qwen3_moe": {"num_key_value_heads": 4},
    "gemma": {"head_dim": 256},
    "gemma2": _GEMMA2,
    "gemma3_text": {
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "head_dim": 256,
        "num_key_value_heads": 4,
    },
    "phi3": {"original_max_position_embeddings": 4096},
    "smollm3": {"rope_theta": 2e6, "num_key_value_heads": 4},
    "glm": {"num_key_value_heads": 2},
    "glm4": {"num_key_value_heads": 2},
    "exaone4": {"sliding_window": 4096},
    "vaultgemma": _GEMMA2,
    "olmo3": {"sliding_window": 4096},
    "ministral": {"sliding_window": 4096, "num_key_value_heads": 8},
    "cwm": {"sliding_window": 8192, "rope_theta": 1e6, "num_key_value_heads": 8},
    "helium": {"rope_theta": 1e5},
    "internlm3": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2},
    "seed_oss": {"head_dim": 128, "num_key_value_heads": 8},
    "deepseek_v3": {
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 1536,
    },
    "glm4_moe_lite": {"n_shared_experts": 1, "routed_scaling_factor": 1.8, "q_lora_rank": 768},
    "dots1": {"norm_topk_prob": False},
    "ernie4_5_moe": {"rope_theta": 5e5, "moe_num_shared_experts": 2, "num_key_value_heads": 4},
    "minimax_m2": {"rope_theta": 5e6, "head_dim": 128, "num_key_value_heads": 8},
    "gpt_neo": {"window_size": 256},
    "ernie4_5": {"rope_theta": 5e5, "head_dim": 128, "num_key_value_heads": 2},
    "gpt_oss": {"sliding_window": 128, "rope_theta": 150000.0, "head_dim": 64, "num_key_value_heads": 8},
    "mamba2": {"n_groups": 8},
    "bamba": {"num_key_value_heads": 8},
    "granitemoehybrid": {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
    "lfm2": {"num_key_value_heads": 8},
    "cohere": {"logit_scale": 0.0625, "rope_theta": 5e5},
    "cohere2": {"logit_scale": 0.0625, "sliding_window": 4096},
}
# Layouts of quantised weights that are read, by family.
QUANTIZED: dict[str, tuple[str, ...]] = {"gpt_oss": ("mxfp4",)}

DECODERS: dict[str, Callable[[HfFields], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": expert_families.mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": expert_families.qwen2_moe,
    "qwen3_moe": expert_families.qwen3_moe,
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
    "gpt_oss": expert_families.gpt_oss,
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
    "ministral": _mistral,
    "olmo3": _olmo3,
    "vaultgemma": _vaultgemma,
    "arcee": _arcee,
    "helium": _helium,
    "cwm": _cwm,
    "internlm2": _internlm2,
    "internlm3": _llama,
    "baichuan": _baichuan,
    "exaone": _exaone,
    "minicpm": _minicpm,
    "olmoe": expert_families.olmoe,
    "granitemoe": expert_families.granitemoe,
    "granitemoeshared": expert_families.granitemoe,
    "granitemoehybrid": recurrent_families.granitemoehybrid,
    "deepseek_v2": expert_families.deepseek_v2,
    "deepseek_v3": expert_families.deepseek_v3,
    "glm4_moe": expert_families.glm4_moe,
    "glm4_moe_lite": expert_families.glm4_moe_lite,
    "dots1": expert_families.dots1,
    "ernie4_5_moe": expert_families.ernie4_5_moe,
    "hunyuan_v1_moe": expert_families.hunyuan_v1_moe,
    "minimax_m2": expert_families.minimax_m2,
    "gpt_neo": layer_norm_families.gpt_neo,
    "gpt_bigcode": layer_norm_families.gpt_bigcode,
    "codegen": layer_norm_families.codegen,
    "bloom": layer_norm_families.bloom,
    "mpt": layer_norm_families.mpt,
    "nemotron": layer_norm_families.nemotron,
    "persimmon": layer_norm_families.persimmon,
    "mamba": recurrent_families.mamba,
    "falcon_mamba": recurrent_families.falcon_mamba,
    "mamba2": recurrent_families.mamba2,
    "bamba": recurrent_families.bamba,
    "lfm2": recurrent_families.lfm2,
}
