"""Fields of `config.json` for small models of the families that `test_decoder_families` is about."""

from __future__ import annotations

COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
}
FALCON = {k: v for k, v in COMMON.items() if not k.endswith(("act", "eps", "key_value_heads", "embeddings"))}
FALCON |= {"model_type": "falcon", "ffn_hidden_size": 24}
MULTIPLIERS = {"embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.6}

GPT2 = {
    "n_embd": 16,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "vocab_size": 260,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6}
OPT = {
    "model_type": "opt",
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "activation_function": "relu",
}

MAMBA = {k: COMMON[k] for k in ("hidden_size", "num_hidden_layers", "vocab_size")} | {"state_size": 5}
HEADS = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 3}

FAMILIES = {
    "smollm3": COMMON | {"model_type": "smollm3", "num_hidden_layers": 4},
    "granite": COMMON | MULTIPLIERS | {"model_type": "granite", "logits_scaling": 0.5},
    "gemma": COMMON | {"model_type": "gemma", "head_dim": 8, "hidden_act": "gelu"},
    "starcoder2": COMMON | {"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5},
    "stablelm": COMMON | {"model_type": "stablelm", "partial_rotary_factor": 0.5},
    "stablelm_parallel": COMMON
    | {"model_type": "stablelm", "partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "olmo": COMMON | {"model_type": "olmo", "clip_qkv": 0.7},
    "phi": COMMON | {"model_type": "phi", "hidden_act": "gelu_new"},
    "cohere": COMMON | {"model_type": "cohere", "logit_scale": 0.25},
    "cohere2": COMMON | {"model_type": "cohere2", "logit_scale": 0.25, "num_hidden_layers": 4, "sliding_window": 6},
    "glm": COMMON | {"model_type": "glm"},
    "glm4": COMMON | {"model_type": "glm4"},
    "gptj": {
        "model_type": "gptj",
        "n_embd": 16,
        "n_head": 2,
        "n_layer": 2,
        "n_positions": 64,
        "vocab_size": 260,
        "rotary_dim": 4,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
    "falcon_7b": FALCON,
    "falcon_40b": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "exaone4": COMMON | {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 6},
    "ernie4_5": COMMON | {"model_type": "ernie4_5", "head_dim": 4},
    "seed_oss": COMMON | {"model_type": "seed_oss", "head_dim": 4},
    "gpt_oss": COMMON
    | {
        "model_type": "gpt_oss",
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
        "rope_theta": 150000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
    },
    "hunyuan": COMMON
    | {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
    "arcee": COMMON | {"model_type": "arcee", "hidden_act": "relu2"},
    "nemotron": COMMON | {"model_type": "nemotron", "hidden_act": "relu2", "norm_eps": 1e-5},
    "persimmon": COMMON | {"model_type": "persimmon", "num_key_value_heads": 4, "hidden_act": "relu2"},
    "helium": COMMON | {"model_type": "helium"},
    "cwm": COMMON | {"model_type": "cwm", "sliding_window": 6},
    "olmo3": COMMON | {"model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 6},
    "vaultgemma": COMMON | {"model_type": "vaultgemma", "head_dim": 8, "sliding_window": 6},
    "internlm2": COMMON | {"model_type": "internlm2"},
    "baichuan": COMMON | {"model_type": "baichuan", "num_key_value_heads": 4},
    "exaone": COMMON
    | {"model_type": "exaone", "num_layers": 2, "activation_function": "silu", "layer_norm_epsilon": 1e-5},
    "minicpm": COMMON | {"model_type": "minicpm", "scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 8},
    "gpt_bigcode": GPT2 | {"model_type": "gpt_bigcode"},
    "gpt_bigcode_heads": GPT2 | {"model_type": "gpt_bigcode", "multi_query": False},
    "gpt_neo": {
        "model_type": "gpt_neo",
        "hidden_size": 16,
        "num_heads": 2,
        "num_layers": 2,
        "vocab_size": 260,
        "max_position_embeddings": 64,
        "window_size": 6,
        "attention_types": [[["global", "local"], 1]],
        "activation_function": "gelu_new",
    },
    "codegen": GPT2 | {"model_type": "codegen", "rotary_dim": 4},
    "bloom": {"model_type": "bloom", "hidden_size": 18, "n_head": 3, "n_layer": 2, "vocab_size": 260},
    "mpt": {
        "model_type": "mpt",
        "d_model": 16,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "vocab_size": 260,
        "attn_config": {"alibi": True, "clip_qkv": 0.7},
    },
    "falcon_rw": FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False},
    "cohere_norms": COMMON | {"model_type": "cohere", "logit_scale": 0.25, "use_qk_norm": True},
    "opt_350m": OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False},
    "olmoe": COMMON | {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": COMMON
    | MULTIPLIERS
    | {"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 8},
    "granitemoehybrid": COMMON
    | MULTIPLIERS
    | {
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 8,
        "layer_types": ["attention"] * 2,
    },
    "deepseek_v2": COMMON | LATENT | EXPERTS | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
    "deepseek_v3": COMMON | LATENT | EXPERTS | {"model_type": "deepseek_v3"},
    "glm4_moe": COMMON | EXPERTS | {"model_type": "glm4_moe", "head_dim": 8, "use_qk_norm": True},
    "dots1": COMMON | EXPERTS | {"model_type": "dots1", "sliding_window": 6, "max_window_layers": 1},
    "ernie4_5_moe": COMMON
    | {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 8}
    | {"moe_num_shared_experts": 2},
    "hunyuan_moe": COMMON | {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2, 2]},
    "granitemoehybrid_states": COMMON
    | MULTIPLIERS
    | HEADS
    | {
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 8,
        "layer_types": ["mamba", "attention"],
    },
    "mamba": MAMBA | {"model_type": "mamba"},
    "falcon_mamba": MAMBA | {"model_type": "falcon_mamba", "expand": 1, "mixer_rms_eps": 1e-5},
    "mamba2": MAMBA | {"model_type": "mamba2", "num_heads": 4, "head_dim": 8, "n_groups": 2},
    "bamba": COMMON | HEADS | {"model_type": "bamba", "attn_layer_indices": [1]},
    "lfm2": COMMON
    | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "norm_eps": 1e-5}
    | {"block_multiple_of": 8},
    "minimax_m2": COMMON
    | {"model_type": "minimax_m2", "head_dim": 8, "rotary_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
}
