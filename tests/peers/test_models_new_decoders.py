"""Families with experts, latent attention, distances in the place of positions, and unusual norms, against
transformers: small random models, read as a whole, in pieces and token by token."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402
from peers.test_models_decoders import peer_logits, randomize  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

BASE = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALL_HEADS = BASE | {"num_key_value_heads": 3}
IDS = {"vocab_size": 101, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = IDS | {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT_NEO = IDS | {"hidden_size": 24, "num_heads": 3, "max_position_embeddings": 64}
OPT = {"vocab_size": 101, "hidden_size": 24, "ffn_dim": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
OPT |= {"max_position_embeddings": 64, "word_embed_proj_dim": 12}
BLOOM = {"vocab_size": 101, "hidden_size": 24, "n_layer": 2}
MPT = {"vocab_size": 101, "d_model": 24, "n_layers": 2, "max_seq_len": 64}
FALCON = IDS | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "alibi": True}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.5,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0, "factor": 2.0, "original_max_position_embeddings": 32}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.2, 2.9, 3.6]}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 5}
EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 9,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
DEEPSEEK = ALL_HEADS | LATENT | EXPERTS
LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
HYBRID = MULTIPLIERS | {"shared_intermediate_size": 11, "layer_types": ["full_attention"] * 3, "mamba_n_heads": 3}

FAMILIES = {
    "arcee": ("arcee", BASE | {"head_dim": 6, "mlp_bias": True}),
    "nemotron": ("nemotron", BASE | {"mlp_bias": True, "attention_bias": True}),
    "persimmon": ("persimmon", ALL_HEADS),
    "helium": ("helium", BASE | {"head_dim": 8}),
    "cwm": ("cwm", BASE | {"head_dim": 6, "sliding_window": 3, "num_hidden_layers": 5}),
    "ministral": ("ministral", BASE | {"head_dim": 6, "sliding_window": 3}),
    "vaultgemma": ("vaultgemma", BASE | {"head_dim": 6, "sliding_window": 3}),
    "internlm3": ("internlm3", BASE | {"head_dim": 8, "qkv_bias": True, "bias": True}),
    "olmo3": ("olmo3", BASE | {"sliding_window": 3, "num_hidden_layers": 5}),
    "olmo3-yarn": (
        "olmo3",
        BASE
        | {"sliding_window": 3, "num_hidden_layers": 4}
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN | {"rope_theta": 5000.0},
            }
        },
    ),
    "olmo3-local-longrope": (
        "olmo3",
        BASE
        | {"sliding_window": 3, "num_hidden_layers": 4}
        | {"rope_parameters": {"sliding_attention": LONGROPE, "full_attention": YARN}},
    ),
    "gpt_neo": (
        "gpt_neo",
        GPT_NEO | {"num_layers": 4, "window_size": 3, "attention_types": [[["global", "local"], 2]]},
    ),
    "gpt_neo-global": ("gpt_neo", GPT_NEO | {"num_layers": 2, "attention_types": [[["global"], 2]]}),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "gpt_bigcode-heads": ("gpt_bigcode", GPT2 | {"multi_query": False}),
    "codegen": ("codegen", GPT2 | {"rotary_dim": 4}),
    "gpt2-unscaled": ("gpt2", GPT2 | {"scale_attn_weights": False}),
    "bloom-3": ("bloom", BLOOM | {"n_head": 3}),
    "bloom-4": ("bloom", BLOOM | {"n_head": 4}),
    "mpt": ("mpt", MPT | {"n_heads": 3}),
    "mpt-clipped": ("mpt", MPT | {"n_heads": 6, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3}}),
    "falcon-rw": ("falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon-alibi": ("falcon", FALCON),
    "stablelm-norms": ("stablelm", BASE | {"qk_layernorm": True}),
    "phi-norms": ("phi", BASE | {"qk_layernorm": True}),
    "cohere-norms": ("cohere", BASE | {"use_qk_norm": True, "logit_scale": 2.0}),
    "opt-350m": ("opt", OPT | {"do_layer_norm_before": False}),
    "opt-projected": ("opt", OPT | {"tie_word_embeddings": False}),
    "opt-plain-norms": ("opt", OPT | {"word_embed_proj_dim": 24, "layer_norm_elementwise_affine": False}),
    "opt-no-last-norm": ("opt", OPT | {"word_embed_proj_dim": 24, "_remove_final_layer_norm": True}),
    "olmoe": ("olmoe", BASE | {"num_experts": 5, "num_experts_per_tok": 2}),
    "granitemoe": ("granitemoe", BASE | MULTIPLIERS | LOCAL),
    "granitemoeshared": ("granitemoeshared", BASE | MULTIPLIERS | LOCAL | {"shared_intermediate_size": 11}),
    "granitemoehybrid": ("granitemoehybrid", BASE | HYBRID | LOCAL | {"position_embedding_type": "rope"}),
    "granitemoehybrid-dense": ("granitemoehybrid", BASE | HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0}),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK),
    "deepseek_v2-groups": ("deepseek_v2", DEEPSEEK | {"topk_method": "group_limited_greedy"}),
    "deepseek_v2-yarn": ("deepseek_v2", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}}),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK),
    "deepseek_v3-yarn": ("deepseek_v3", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek_v3-plain": ("deepseek_v3", DEEPSEEK | {"q_lora_rank": None, "rope_interleave": False}),
    "glm4_moe": ("glm4_moe", BASE | EXPERTS | {"head_dim": 8, "use_qk_norm": True, "attention_bias": True}),
    "glm4_moe_lite": ("glm4_moe_lite", DEEPSEEK),
    "dots1": ("dots1", BASE | EXPERTS | {"head_dim": 6, "sliding_window": 3, "max_window_layers": 1}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        BASE | {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 9, "moe_num_shared_experts": 2},
    ),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", BASE | {"head_dim": 8, "num_experts": 5, "moe_topk": 2}),
    "minimax_m2": ("minimax_m2", BASE | LOCAL | {"head_dim": 8, "rotary_dim": 4}),
}
TOKENS = np.random.default_rng(5).integers(0, 101, 21).tolist()


def saved(name, folder):
    kind, settings = FAMILIES[name]
    config = transformers.AutoConfig.for_model(kind, **settings)
    # Products of groups of rows need aligned matrices there; and Falcon adds distances twice unless it is fused.
    config._experts_implementation = "eager"
    config._attn_implementation = "sdpa" if kind == "falcon" else "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomize(model, len(name))
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer += 0.1 * torch.randn(buffer.shape, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_agree(name, tmp_path):
    expected = peer_logits(saved(name, tmp_path), TOKENS)
    lm, close = rlx.load(tmp_path), 3e-5 * np.abs(expected).max()
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=close)
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS[:8]), expected[7], rtol=0, atol=close)
    for place in range(8, 21):
        np.testing.assert_allclose(session.step(TOKENS[place]), expected[place], rtol=0, atol=close)


TEXT = {**BASE, "intermediate_size": 40, "num_hidden_layers": 2}
SIGHT = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
SIGHT |= {"image_size": 28, "patch_size": 14}
QWEN_SIGHT = {"hidden_size": 16, "out_hidden_size": 24, "intermediate_size": 20, "depth": 1, "num_heads": 2}
AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
WRAPPERS = {
    "gemma3": (
        {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4},
        {"model_type": "siglip_vision_model"},
    ),
    "mistral3": ({"model_type": "mistral", "head_dim": 8}, {"model_type": "pixtral", "head_dim": 8}),
    "llava": ({"model_type": "llama"}, {"model_type": "clip_vision_model"}),
    "llava_onevision": ({"model_type": "qwen2"}, {"model_type": "siglip_vision_model"}),
    "qwen2_vl": (AXES, {"embed_dim": 16, "hidden_size": 24, "depth": 1, "num_heads": 2}),
    "qwen2_5_vl": (AXES, QWEN_SIGHT),
    "qwen3_vl": (AXES | {"head_dim": 8}, QWEN_SIGHT | {"deepstack_visual_indexes": [0]}),
    "smolvlm": ({"model_type": "llama"}, {}),
    "internvl": (
        {"model_type": "qwen2"},
        {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_language_models_in_models_that_also_see(kind, tmp_path):
    text, sight = WRAPPERS[kind]
    sight = sight if kind.startswith("qwen") else SIGHT | sight
    config = transformers.AutoConfig.for_model(kind, text_config=TEXT | text, vision_config=sight)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    randomize(model, 3)
    model.save_pretrained(tmp_path)
    tokens = [token % 98 + 3 for token in TOKENS]
    expected = peer_logits(model, tokens)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(rlx.load(tmp_path).logits(tokens), expected, rtol=0, atol=1e-4)
