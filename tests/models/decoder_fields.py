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
    "ernie4_5": COMMON | {"model_type": "ernie4_5"},
    "seed_oss": COMMON | {"model_type": "seed_oss"},
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
}
