"""Families of language models beyond those of `test_models_decoders`, each against transformers from its directory, and
against llama.cpp and transformers from the GGUF file that `rlx convert` makes of it."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

import rlx  # noqa: E402
from peers.test_convert_oracle import save_tokenizer  # noqa: E402
from peers.test_models_decoders import LLAMA3, TOKENS, YARN, peer_logits, saved_as  # noqa: E402
from rlx.models.convert import ARCHITECTURES, convert  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

BASE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
FALCON = {k: v for k, v in BASE.items() if k not in ("num_key_value_heads", "intermediate_size")} | {
    "ffn_hidden_size": 56
}
FALCON_40B = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.5,
}
GPTJ = {"vocab_size": 260, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
STARCODER = {name: value for name, value in GPTJ.items() if name != "rotary_dim"}
STARCODER |= {name: BASE[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
BLOOM = {"vocab_size": 260, "hidden_size": 32, "n_layer": 3, "bos_token_id": 256, "eos_token_id": 257}
MPT = {"vocab_size": 260, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}
GPT_OSS = BASE | {
    "hidden_size": 64,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

FAMILIES = {
    "smollm3": ("smollm3", BASE | {"num_hidden_layers": 5, "tie_word_embeddings": False}),
    "granite": ("granite", BASE | MULTIPLIERS),
    "granite-biases": ("granite", BASE | MULTIPLIERS | {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("gemma", BASE | {"head_dim": 16}),
    "starcoder2": ("starcoder2", BASE),
    "starcoder2-untied": ("starcoder2", BASE | {"use_bias": False, "tie_word_embeddings": False}),
    "stablelm": ("stablelm", BASE | {"partial_rotary_factor": 0.25}),
    "stablelm-biases": ("stablelm", BASE | {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm-parallel": ("stablelm", BASE | {"partial_rotary_factor": 0.5, "use_parallel_residual": True}),
    "olmo": ("olmo", BASE),
    "olmo-clipped": ("olmo", BASE | {"clip_qkv": 0.7}),
    "phi": ("phi", BASE),
    "cohere": ("cohere", BASE | {"logit_scale": 0.25}),
    "cohere2": ("cohere2", BASE | {"logit_scale": 0.25, "num_hidden_layers": 5, "sliding_window": 6}),
    "glm": ("glm", BASE | {"head_dim": 8}),
    "glm4": ("glm4", BASE | {"head_dim": 8}),
    "gptj": ("gptj", GPTJ),
    "falcon-7b": ("falcon", FALCON),
    "falcon-40b": ("falcon", FALCON_40B),
    "falcon-11b": ("falcon", FALCON_40B | {"num_ln_in_parallel_attn": 1}),
    "falcon-sequential": ("falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True}),
    "exaone4": (
        "exaone4",
        BASE | {"sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": LLAMA3},
    ),
    "exaone4-windows": ("exaone4", BASE | {"num_hidden_layers": 5, "sliding_window": 6}),
    "ernie4_5": ("ernie4_5", BASE | {"head_dim": 8}),
    "ernie4_5-biases": ("ernie4_5", BASE | {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False}),
    "seed_oss": ("seed_oss", BASE | {"head_dim": 8, "rope_parameters": YARN}),
    "seed_oss-biases": ("seed_oss", BASE | {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "hunyuan": ("hunyuan_v1_dense", BASE | {"head_dim": 8}),
    "hunyuan-alpha": (
        "hunyuan_v1_dense",
        BASE
        | {
            "head_dim": 8,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0},
        },
    ),
    "arcee": ("arcee", BASE),
    "nemotron": ("nemotron", BASE),
    "olmoe": ("olmoe", BASE | {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}),
    "granitemoe": ("granitemoe", BASE | MULTIPLIERS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "granitemoeshared": (
        "granitemoeshared",
        BASE | MULTIPLIERS | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 24},
    ),
    "gpt_bigcode": ("gpt_bigcode", STARCODER),
    "bloom": ("bloom", BLOOM | {"n_head": 4}),
    "bloom-3": ("bloom", BLOOM | {"n_head": 3, "hidden_size": 24}),
    "mpt": ("mpt", MPT),
    "mpt-clipped": ("mpt", MPT | {"attn_config": {"clip_qkv": 0.5}}),
    "gpt-oss": ("gpt_oss", GPT_OSS),
    "gpt-oss-yarn": (
        "gpt_oss",
        GPT_OSS
        | {"num_hidden_layers": 2, "rope_parameters": YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}},
    ),
}
# llama.cpp has no GPT-J; it knows Falcon only with both halves of a layer side by side.
WITHOUT_GGUF = ("gptj", "falcon-sequential")
# llama.cpp gives windows to EXAONE 4 of 64 layers alone, wants all biases of StarCoder2, and has none for the
# feed-forward halves of the other two. It rounds the bounds between which YaRN stretches, where gpt-oss does not.
NOT_IN_LLAMA_CPP = ("gpt-oss-yarn", "exaone4-windows", "starcoder2-untied", "ernie4_5-biases", "seed_oss-biases")


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_agree(name, tmp_path):
    kind, settings = FAMILIES[name]
    expected = peer_logits(saved_as(kind, settings, tmp_path, len(name)), TOKENS)
    lm = rlx.load(tmp_path)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=1e-4)
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS[:8]), expected[7], rtol=0, atol=1e-4)
    for place in range(8, 21):
        np.testing.assert_allclose(session.step(TOKENS[place]), expected[place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITHOUT_GGUF])
def test_files_hold_the_same_model(name, tmp_path):
    kind, settings = FAMILIES[name]
    expected = peer_logits(saved_as(kind, settings, tmp_path / "hf", len(name)), TOKENS)
    save_tokenizer(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    lm = rlx.load(tmp_path / "m.gguf", device="reference")
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=1e-4)
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == ARCHITECTURES[kind])
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[architecture]}
    found = [tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors]
    assert {re.sub(r"blk\.\d+", "blk.{bid}", n).rsplit(".", 1)[0] for n in found} <= known
    if name in NOT_IN_LLAMA_CPP:
        return
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, logits_all=True, verbose=False)
    theirs.eval(TOKENS)
    scores = np.array(theirs.scores[: len(TOKENS)])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=5e-3 * np.abs(scores).max())


def test_packed_experts_of_gpt_oss(tmp_path):
    """Experts in MXFP4, decoded by transformers."""
    from models.test_gpt_oss import packed_directories

    _, packed, _ = packed_directories(tmp_path)
    options = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packed, dtype=torch.float32, attn_implementation="eager", quantization_config=options
    )
    expected = peer_logits(model.float().eval(), TOKENS)
    found = rlx.load(packed, activations="f32").logits(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
