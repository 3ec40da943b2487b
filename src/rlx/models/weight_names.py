"""Where model files keep each weight: role -> name, `{i}` being the layer.

A name stands for `<name>.weight` and, where the file has one, `<name>.bias`. Hugging Face files may leave out a prefix
that all names share (`model.`, `bert.`), depending on the class that saved them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.models.config import DecoderConfig

GGUF: dict[str, str] = {
    "embed": "token_embd",
    "positions": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
    "attn_norm": "blk.{i}.attn_norm",
    "ffn_norm": "blk.{i}.ffn_norm",
    "post_attn_norm": "blk.{i}.post_attention_norm",
    "post_ffn_norm": "blk.{i}.post_ffw_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "qkv": "blk.{i}.attn_qkv",
    "o": "blk.{i}.attn_output",
    "sinks": "blk.{i}.attn_sinks",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "gate_up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "router": "blk.{i}.ffn_gate_inp",
    "experts_gate": "blk.{i}.ffn_gate_exps",
    "experts_up": "blk.{i}.ffn_up_exps",
    "experts_down": "blk.{i}.ffn_down_exps",
    "shared_router": "blk.{i}.ffn_gate_inp_shexp",
    "shared_gate": "blk.{i}.ffn_gate_shexp",
    "shared_up": "blk.{i}.ffn_up_shexp",
    "shared_down": "blk.{i}.ffn_down_shexp",
    "router_shift": "blk.{i}.exp_probs_b",
    "embed_norm": "token_embd_norm",
    "q_low": "blk.{i}.attn_q_a",
    "q_low_norm": "blk.{i}.attn_q_a_norm",
    "q_high": "blk.{i}.attn_q_b",
    "kv_low": "blk.{i}.attn_kv_a_mqa",
    "kv_low_norm": "blk.{i}.attn_kv_a_norm",
    "kv_high": "blk.{i}.attn_kv_b",
    "ssm_in": "blk.{i}.ssm_in",
    "ssm_conv": "blk.{i}.ssm_conv1d",
    "ssm_x": "blk.{i}.ssm_x",
    "ssm_dt": "blk.{i}.ssm_dt",
    "ssm_a": "blk.{i}.ssm_a",
    "ssm_d": "blk.{i}.ssm_d",
    "ssm_norm": "blk.{i}.ssm_norm",
    "ssm_out": "blk.{i}.ssm_out",
    "conv_in": "blk.{i}.shortconv.in_proj",
    "conv": "blk.{i}.shortconv.conv",
    "conv_out": "blk.{i}.shortconv.out_proj",
}
# Where files of an architecture differ. Of its two norms, Falcon's first stands before the feed-forward half.
_GGUF_DIFFERENT: dict[str, dict[str, str]] = {
    "seed_oss": {"ffn_norm": "blk.{i}.post_attention_norm"},
    "gpt-oss": {"ffn_norm": "blk.{i}.post_attention_norm"},
    "falcon": {"attn_norm": "blk.{i}.attn_norm_2", "ffn_norm": "blk.{i}.attn_norm"},
    # What LFM2 calls the norm of embeddings stands before the head.
    "lfm2": {"final_norm": "token_embd_norm"},
}
# Architectures whose q and k are stored so that the two features of a rotary pair are neighbours, other than in
# directories.
GGUF_PAIRS_TOGETHER = frozenset({"llama", "granite", "granitemoe", "granitehybrid", "smollm3", "olmo", "arcee"})


def gguf_names(config: DecoderConfig) -> dict[str, str]:
    """The names in GGUF files of the architecture that is the family of `config`."""
    if config.family == "falcon" and config.shared_norm:
        return GGUF
    return GGUF | _GGUF_DIFFERENT.get(config.family, {})


_LLAMA: dict[str, str] = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "model.layers.{i}.input_layernorm",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "q": "model.layers.{i}.self_attn.q_proj",
    "k": "model.layers.{i}.self_attn.k_proj",
    "v": "model.layers.{i}.self_attn.v_proj",
    "o": "model.layers.{i}.self_attn.o_proj",
    "q_norm": "model.layers.{i}.self_attn.q_norm",
    "k_norm": "model.layers.{i}.self_attn.k_norm",
    "gate": "model.layers.{i}.mlp.gate_proj",
    "up": "model.layers.{i}.mlp.up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
}
_GEMMA: dict[str, str] = _LLAMA | {
    "post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "post_ffn_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_PHI3: dict[str, str] = _LLAMA | {
    "qkv": "model.layers.{i}.self_attn.qkv_proj",
    "gate_up": "model.layers.{i}.mlp.gate_up_proj",
}
_GPT2: dict[str, str] = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "attn_norm": "transformer.h.{i}.ln_1",
    "ffn_norm": "transformer.h.{i}.ln_2",
    "qkv": "transformer.h.{i}.attn.c_attn",
    "o": "transformer.h.{i}.attn.c_proj",
    "up": "transformer.h.{i}.mlp.c_fc",
    "down": "transformer.h.{i}.mlp.c_proj",
}
_OLMO2: dict[str, str] = {role: name for role, name in _LLAMA.items() if role not in ("attn_norm", "ffn_norm")} | {
    "post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "post_ffn_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_GPT_NEOX: dict[str, str] = {
    "embed": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "attn_norm": "gpt_neox.layers.{i}.input_layernorm",
    "ffn_norm": "gpt_neox.layers.{i}.post_attention_layernorm",
    "qkv": "gpt_neox.layers.{i}.attention.query_key_value",
    "o": "gpt_neox.layers.{i}.attention.dense",
    "up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
    "down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
}
_OPT: dict[str, str] = {
    "embed": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "final_norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    "attn_norm": "model.decoder.layers.{i}.self_attn_layer_norm",
    "ffn_norm": "model.decoder.layers.{i}.final_layer_norm",
    "q": "model.decoder.layers.{i}.self_attn.q_proj",
    "k": "model.decoder.layers.{i}.self_attn.k_proj",
    "v": "model.decoder.layers.{i}.self_attn.v_proj",
    "o": "model.decoder.layers.{i}.self_attn.out_proj",
    "up": "model.decoder.layers.{i}.fc1",
    "down": "model.decoder.layers.{i}.fc2",
    "embed_project": "model.decoder.project_in",
    "head_project": "model.decoder.project_out",
}
_STARCODER2: dict[str, str] = {role: name for role, name in _LLAMA.items() if role != "gate"} | {
    "up": "model.layers.{i}.mlp.c_fc",
    "down": "model.layers.{i}.mlp.c_proj",
}
_PHI: dict[str, str] = {role: name for role, name in _LLAMA.items() if role not in ("gate", "ffn_norm")} | {
    "final_norm": "model.final_layernorm",
    "o": "model.layers.{i}.self_attn.dense",
    "up": "model.layers.{i}.mlp.fc1",
    "down": "model.layers.{i}.mlp.fc2",
    "q_norm": "model.layers.{i}.self_attn.q_layernorm",
    "k_norm": "model.layers.{i}.self_attn.k_layernorm",
}
_STABLELM: dict[str, str] = _LLAMA | {
    "q_norm": "model.layers.{i}.self_attn.q_layernorm.norms",
    "k_norm": "model.layers.{i}.self_attn.k_layernorm.norms",
}
_GLM: dict[str, str] = _LLAMA | {"gate_up": "model.layers.{i}.mlp.gate_up_proj"}
_GLM4: dict[str, str] = _GLM | {
    "post_attn_norm": "model.layers.{i}.post_self_attn_layernorm",
    "post_ffn_norm": "model.layers.{i}.post_mlp_layernorm",
}
_HUNYUAN: dict[str, str] = _LLAMA | {
    "q_norm": "model.layers.{i}.self_attn.query_layernorm",
    "k_norm": "model.layers.{i}.self_attn.key_layernorm",
}
_GPTJ: dict[str, str] = {
    "embed": "transformer.wte",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "attn_norm": "transformer.h.{i}.ln_1",
    "q": "transformer.h.{i}.attn.q_proj",
    "k": "transformer.h.{i}.attn.k_proj",
    "v": "transformer.h.{i}.attn.v_proj",
    "o": "transformer.h.{i}.attn.out_proj",
    "up": "transformer.h.{i}.mlp.fc_in",
    "down": "transformer.h.{i}.mlp.fc_out",
}
_FALCON: dict[str, str] = {
    "embed": "transformer.word_embeddings",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "attn_norm": "transformer.h.{i}.input_layernorm",
    "ffn_norm": "transformer.h.{i}.post_attention_layernorm",
    "qkv": "transformer.h.{i}.self_attention.query_key_value",
    "o": "transformer.h.{i}.self_attention.dense",
    "up": "transformer.h.{i}.mlp.dense_h_to_4h",
    "down": "transformer.h.{i}.mlp.dense_4h_to_h",
}
# Names of the norms in layers with one for each half, which are called otherwise where both read the same.
_FALCON_NORMS: dict[str, str] = {"attn_norm": "transformer.h.{i}.ln_attn", "ffn_norm": "transformer.h.{i}.ln_mlp"}
_QWEN_MOE: dict[str, str] = _LLAMA | {
    "router": "model.layers.{i}.mlp.gate",
    "experts_gate": "model.layers.{i}.mlp.experts.{e}.gate_proj",
    "experts_up": "model.layers.{i}.mlp.experts.{e}.up_proj",
    "experts_down": "model.layers.{i}.mlp.experts.{e}.down_proj",
    "shared_router": "model.layers.{i}.mlp.shared_expert_gate",
    "shared_gate": "model.layers.{i}.mlp.shared_expert.gate_proj",
    "shared_up": "model.layers.{i}.mlp.shared_expert.up_proj",
    "shared_down": "model.layers.{i}.mlp.shared_expert.down_proj",
}
# Experts as `rlx.models.hf_layouts` takes the file's tensors apart.
_GPT_OSS: dict[str, str] = _LLAMA | {
    "sinks": "model.layers.{i}.self_attn.sinks",
    "router": "model.layers.{i}.mlp.router",
    "experts_gate": "model.layers.{i}.mlp.experts.gate",
    "experts_up": "model.layers.{i}.mlp.experts.up",
    "experts_down": "model.layers.{i}.mlp.experts.down",
}
_GPT_NEO: dict[str, str] = _GPTJ | {
    "positions": "transformer.wpe",
    "ffn_norm": "transformer.h.{i}.ln_2",
    "q": "transformer.h.{i}.attn.attention.q_proj",
    "k": "transformer.h.{i}.attn.attention.k_proj",
    "v": "transformer.h.{i}.attn.attention.v_proj",
    "o": "transformer.h.{i}.attn.attention.out_proj",
    "up": "transformer.h.{i}.mlp.c_fc",
    "down": "transformer.h.{i}.mlp.c_proj",
}
_CODEGEN: dict[str, str] = {role: name for role, name in _GPTJ.items() if role not in "qkv"} | {
    "qkv": "transformer.h.{i}.attn.qkv_proj",
}
_BLOOM: dict[str, str] = _FALCON | {"embed_norm": "transformer.word_embeddings_layernorm"}
_MPT: dict[str, str] = {
    "embed": "transformer.wte",
    "final_norm": "transformer.norm_f",
    "head": "lm_head",
    "attn_norm": "transformer.blocks.{i}.norm_1",
    "ffn_norm": "transformer.blocks.{i}.norm_2",
    "qkv": "transformer.blocks.{i}.attn.Wqkv",
    "o": "transformer.blocks.{i}.attn.out_proj",
    "up": "transformer.blocks.{i}.ffn.up_proj",
    "down": "transformer.blocks.{i}.ffn.down_proj",
}
_UNGATED: dict[str, str] = {role: name for role, name in _LLAMA.items() if role != "gate"}
_PERSIMMON: dict[str, str] = {role: name for role, name in _UNGATED.items() if role not in "qkv"} | {
    "final_norm": "model.final_layernorm",
    "qkv": "model.layers.{i}.self_attn.query_key_value",
    "o": "model.layers.{i}.self_attn.dense",
    "q_norm": "model.layers.{i}.self_attn.q_layernorm",
    "k_norm": "model.layers.{i}.self_attn.k_layernorm",
    "up": "model.layers.{i}.mlp.dense_h_to_4h",
    "down": "model.layers.{i}.mlp.dense_4h_to_h",
}
_INTERNLM2: dict[str, str] = {
    "embed": "model.tok_embeddings",
    "final_norm": "model.norm",
    "head": "output",
    "attn_norm": "model.layers.{i}.attention_norm",
    "ffn_norm": "model.layers.{i}.ffn_norm",
    "qkv": "model.layers.{i}.attention.wqkv",
    "o": "model.layers.{i}.attention.wo",
    "gate": "model.layers.{i}.feed_forward.w1",
    "up": "model.layers.{i}.feed_forward.w3",
    "down": "model.layers.{i}.feed_forward.w2",
}
_BAICHUAN: dict[str, str] = _LLAMA | {"qkv": "model.layers.{i}.self_attn.W_pack"}
_EXAONE: dict[str, str] = _GPT_NEO | {
    "gate": "transformer.h.{i}.mlp.c_fc_0",
    "up": "transformer.h.{i}.mlp.c_fc_1",
}
_SHARED_EXPERTS: dict[str, str] = {
    f"shared_{part}": f"model.layers.{{i}}.mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
_DEEPSEEK_MOE: dict[str, str] = (
    _QWEN_MOE | _SHARED_EXPERTS | {"router_shift": "model.layers.{i}.mlp.gate.e_score_correction"}
)
_DEEPSEEK: dict[str, str] = _DEEPSEEK_MOE | {
    "q_low": "model.layers.{i}.self_attn.q_a_proj",
    "q_low_norm": "model.layers.{i}.self_attn.q_a_layernorm",
    "q_high": "model.layers.{i}.self_attn.q_b_proj",
    "kv_low": "model.layers.{i}.self_attn.kv_a_proj_with_mqa",
    "kv_low_norm": "model.layers.{i}.self_attn.kv_a_layernorm",
    "kv_high": "model.layers.{i}.self_attn.kv_b_proj",
}
_ERNIE_MOE: dict[str, str] = _DEEPSEEK_MOE | {
    "router_shift": "model.layers.{i}.mlp.moe_statics.e_score_correction",
}
_HUNYUAN_MOE: dict[str, str] = (
    _QWEN_MOE
    | {role: name for role, name in _HUNYUAN.items() if role.endswith("_norm")}
    | {f"shared_{part}": f"model.layers.{{i}}.mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")}
    | {"router": "model.layers.{i}.mlp.gate.wg"}
)
# Stacks and layers of gates and ups that `rlx.models.hf_layouts` takes apart.
_GRANITE_MOE: dict[str, str] = _LLAMA | {
    "router": "model.layers.{i}.block_sparse_moe.router.layer",
    "experts_gate": "model.layers.{i}.block_sparse_moe.input_linear.gate",
    "experts_up": "model.layers.{i}.block_sparse_moe.input_linear.up",
    "experts_down": "model.layers.{i}.block_sparse_moe.output_linear",
    "shared_gate": "model.layers.{i}.shared_mlp.input_linear.gate",
    "shared_up": "model.layers.{i}.shared_mlp.input_linear.up",
    "shared_down": "model.layers.{i}.shared_mlp.output_linear",
}
# Without experts all tokens meet the shared one alone.
_GRANITE_SHARED_ALONE: dict[str, str] = {part: _GRANITE_MOE[f"shared_{part}"] for part in ("gate", "up", "down")}
_MIXTRAL: dict[str, str] = _LLAMA | {
    "router": "model.layers.{i}.block_sparse_moe.gate",
    "experts_gate": "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
    "experts_up": "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
    "experts_down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
}


def _state_space(mixer: str) -> dict[str, str]:
    """The parts of a state-space layer, as `rlx.models.hf_layouts` names them."""
    parts = {"in": "in_proj", "conv": "conv1d", "x": "x_proj", "dt": "dt_proj", "a": "A", "d": "D", "out": "out_proj"}
    return {f"ssm_{part}": f"{mixer}.{name}" for part, name in parts.items()}


def _state_space_heads(mixer: str) -> dict[str, str]:
    return _state_space(mixer) | {"ssm_dt": f"{mixer}.dt", "ssm_norm": f"{mixer}.norm"}


_MAMBA: dict[str, str] = {
    "embed": "backbone.embeddings",
    "final_norm": "backbone.norm_f",
    "head": "lm_head",
    "attn_norm": "backbone.layers.{i}.norm",
    **_state_space("backbone.layers.{i}.mixer"),
}
_MAMBA2: dict[str, str] = _MAMBA | _state_space_heads("backbone.layers.{i}.mixer")
_BAMBA: dict[str, str] = (
    _LLAMA
    | _state_space_heads("model.layers.{i}.mamba")
    | {
        "final_norm": "model.final_layernorm",
        "ffn_norm": "model.layers.{i}.pre_ff_layernorm",
        "gate": "model.layers.{i}.feed_forward.gate_proj",
        "up": "model.layers.{i}.feed_forward.up_proj",
        "down": "model.layers.{i}.feed_forward.down_proj",
    }
)
_LFM2: dict[str, str] = _LLAMA | {
    "final_norm": "model.embedding_norm",
    "attn_norm": "model.layers.{i}.operator_norm",
    "ffn_norm": "model.layers.{i}.ffn_norm",
    "o": "model.layers.{i}.self_attn.out_proj",
    "q_norm": "model.layers.{i}.self_attn.q_layernorm",
    "k_norm": "model.layers.{i}.self_attn.k_layernorm",
    "gate": "model.layers.{i}.feed_forward.w1",
    "up": "model.layers.{i}.feed_forward.w3",
    "down": "model.layers.{i}.feed_forward.w2",
    "conv_in": "model.layers.{i}.conv.in_proj",
    "conv": "model.layers.{i}.conv.conv",
    "conv_out": "model.layers.{i}.conv.out_proj",
}
_MINIMAX: dict[str, str] = _MIXTRAL | {"router_shift": "model.layers.{i}.block_sparse_moe.e_score_correction"}

HF_DECODERS: dict[str, dict[str, str]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _MIXTRAL,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen2_moe": _QWEN_MOE,
    "qwen3_moe": _QWEN_MOE,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "phi3": _PHI3,
    "gpt2": _GPT2,
    "olmo2": _OLMO2,
    "gpt_neox": _GPT_NEOX,
    "opt": _OPT,
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "gemma": _LLAMA,
    "starcoder2": _STARCODER2,
    "stablelm": _STABLELM,
    "olmo": _LLAMA,
    "phi": _PHI,
    "cohere": _LLAMA,
    "cohere2": _LLAMA,
    "glm": _GLM,
    "glm4": _GLM4,
    "gptj": _GPTJ,
    "falcon": _FALCON,
    "exaone4": _OLMO2,
    "ernie4_5": _LLAMA,
    "seed_oss": _LLAMA,
    "hunyuan_v1_dense": _HUNYUAN,
    "gpt_oss": _GPT_OSS,
    "ministral": _LLAMA,
    "olmo3": _OLMO2,
    "vaultgemma": {role: name for role, name in _GEMMA.items() if not role.startswith("post_")},
    "arcee": _UNGATED,
    "helium": _LLAMA,
    "cwm": _LLAMA,
    "internlm2": _INTERNLM2,
    "internlm3": _LLAMA,
    "baichuan": _BAICHUAN,
    "exaone": _EXAONE,
    "minicpm": _LLAMA,
    "olmoe": _QWEN_MOE,
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": _GRANITE_MOE | _state_space_heads("model.layers.{i}.mamba"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK_MOE,
    "glm4_moe_lite": _DEEPSEEK,
    "dots1": _DEEPSEEK_MOE,
    "ernie4_5_moe": _ERNIE_MOE,
    "hunyuan_v1_moe": _HUNYUAN_MOE,
    "minimax_m2": _MINIMAX,
    "gpt_neo": _GPT_NEO,
    "gpt_bigcode": _GPT2,
    "codegen": _CODEGEN,
    "bloom": _BLOOM,
    "mpt": _MPT,
    "nemotron": _UNGATED,
    "persimmon": _PERSIMMON,
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": _MAMBA2,
    "bamba": _BAMBA,
    "lfm2": _LFM2,
}
# Families whose files keep linear weights as [in, out], and those whose norms keep w for a factor of 1 + w.
HF_IN_OUT = frozenset({"gpt2"})
# Families whose fused q, k and v follow one another: all q that read a head of keys, the head, its values.
HF_QKV_BY_HEAD = frozenset({"gpt_neox", "falcon", "bloom", "persimmon", "internlm2", "gpt_bigcode"})
# Families in which they are stored in four parts, each of q, v and k.
HF_QKV_BY_QUARTER = frozenset({"codegen"})
HF_NORM_PLUS_ONE = frozenset({"gemma", "gemma2", "gemma3_text", "vaultgemma", "nemotron"})
# The prefix that files saved from the bare model (without a head) leave out.
HF_PREFIX = {family: names["embed"].split(".")[0] + "." for family, names in HF_DECODERS.items()}


def hf_names(config: DecoderConfig) -> dict[str, str]:
    """The names in directories of the family of `config`."""
    names, has_two = HF_DECODERS[config.family], config.parallel_residual and not config.shared_norm
    if config.family == "falcon" and has_two:
        return names | _FALCON_NORMS
    if config.family == "granitemoehybrid" and config.moe is None:
        return {role: name for role, name in names.items() if "shared_" not in role} | _GRANITE_SHARED_ALONE
    return names
