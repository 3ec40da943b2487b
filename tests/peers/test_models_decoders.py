"""Every language-model family against transformers: small random models, saved by transformers and loaded by rlx."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}

NEOX = {name: value for name, value in BASE.items() if name != "num_key_value_heads"}
OPT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}

FAMILIES = {
    "llama": ("llama", BASE),
    "llama-tied": ("llama", BASE | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", BASE | {"head_dim": 12}),
    "llama3-rope": ("llama", BASE | {"rope_parameters": LLAMA3}),
    "yarn-rope": ("llama", BASE | {"rope_parameters": YARN}),
    "linear-rope": ("llama", BASE | {"rope_parameters": LINEAR}),
    "mistral": ("mistral", BASE | {"sliding_window": 5}),
    "mistral-full": ("mistral", BASE | {"sliding_window": None}),
    "qwen2": ("qwen2", BASE),
    "qwen2-window": ("qwen2", BASE | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", BASE | {"head_dim": 16}),
    "gemma2": (
        "gemma2",
        BASE | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "gemma3_text",
        BASE | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "phi3": ("phi3", BASE | {"pad_token_id": 0, "sliding_window": 9}),
    "phi3-longrope-short": (
        "phi3",
        BASE | {"pad_token_id": 0, "original_max_position_embeddings": 32, "rope_parameters": LONGROPE},
    ),
    "gpt2": ("gpt2", {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "olmo2": ("olmo2", BASE),
    "olmo2-full": ("olmo2", BASE | {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "gpt-neox": ("gpt_neox", NEOX),
    "gpt-neox-sequential": ("gpt_neox", NEOX | {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "opt": ("opt", OPT),
    "opt-untied": ("opt", OPT | {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "mixtral": ("mixtral", BASE | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "qwen2_moe",
        BASE
        | {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-moe": (
        "qwen3_moe",
        BASE
        | {
            "head_dim": 16,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
}


def randomize(model, seed):
    """Weights that make every part of a model matter: biases, norms and attention included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)


def saved_model(name, folder, dtype=torch.float32):
    return saved_as(*FAMILIES[name], folder, len(name), dtype)


def saved_as(kind, settings, folder, seed, dtype=torch.float32):
    config = transformers.AutoConfig.for_model(kind, **settings)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomize(model, seed)
    model.to(dtype).save_pretrained(folder)
    # Loaded again, because conversions also round tables that are not weights.
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def peer_logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


TOKENS = np.random.default_rng(5).integers(0, 96, 21).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_agree(name, tmp_path):
    expected = peer_logits(saved_model(name, tmp_path), TOKENS)
    lm = rlx.load(tmp_path)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=1e-4)
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS[:8]), expected[7], rtol=0, atol=1e-4)
    for place in range(8, 21):
        np.testing.assert_allclose(session.step(TOKENS[place]), expected[place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files(dtype, tmp_path):
    expected = peer_logits(saved_model("llama", tmp_path, dtype), TOKENS)
    np.testing.assert_allclose(rlx.load(tmp_path).logits(TOKENS), expected, rtol=0, atol=1e-4)


def test_sharded_files(tmp_path):
    model = saved_model("qwen3", tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert (tmp_path / "parts" / "model.safetensors.index.json").is_file()
    np.testing.assert_allclose(
        rlx.load(tmp_path / "parts").logits(TOKENS), peer_logits(model, TOKENS), rtol=0, atol=1e-4
    )


def test_long_rope_changes_beyond_the_original_context(tmp_path):
    model = saved_model("phi3-longrope-short", tmp_path)
    tokens = (TOKENS * 3)[:40]
    session = rlx.load(tmp_path).session()
    np.testing.assert_allclose(session.prefill(tokens[:20]), peer_logits(model, tokens[:20])[-1], rtol=0, atol=1e-4)
    np.testing.assert_allclose(session.prefill(tokens[20:]), peer_logits(model, tokens)[-1], rtol=0, atol=1e-4)


def test_greedy_text_agrees(tmp_path):
    model = saved_model("gemma2", tmp_path)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([TOKENS]),
            attention_mask=torch.ones((1, 21), dtype=torch.int64),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, 21:].tolist()
    session = rlx.load(tmp_path).session()
    logits, got = session.prefill(TOKENS), []
    for _ in made:
        got.append(int(logits.argmax()))
        logits = session.step(got[-1])
    assert got == made
