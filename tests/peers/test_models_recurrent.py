"""Families whose layers keep states, against transformers from their directories, and against llama.cpp from the GGUF
files that `rlx convert` makes of them."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

import rlx  # noqa: E402
from peers.test_convert_oracle import save_tokenizer  # noqa: E402
from peers.test_models_decoders import peer_logits, saved_as  # noqa: E402
from rlx.models.convert import ARCHITECTURES, convert  # noqa: E402
from rlx.models.kv_cache import SequenceBatch  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

WORDS = {"vocab_size": 260, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 0}
MAMBA = WORDS | {"hidden_size": 32, "num_hidden_layers": 3}
MAMBA2 = MAMBA | {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2}
LAYERS = MAMBA | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 56}
LAYERS |= {"max_position_embeddings": 640, "num_hidden_layers": 4}
HEADS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}
GRANITE = LAYERS | HEADS | {"shared_intermediate_size": 40, "num_local_experts": 0, "embedding_multiplier": 3.0}
GRANITE |= {"attention_multiplier": 0.25, "residual_multiplier": 0.6, "logits_scaling": 0.5}
GRANITE |= {"layer_types": ["mamba", "attention", "mamba", "mamba"]}
LFM2 = LAYERS | {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 8}

FAMILIES = {
    "mamba": ("mamba", MAMBA),
    "mamba-other-sizes": (
        "mamba",
        MAMBA | {"hidden_size": 24, "expand": 3, "state_size": 5, "conv_kernel": 2, "time_step_rank": 7},
    ),
    "mamba-biases": (
        "mamba",
        MAMBA | {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    ),
    "falcon-mamba": ("falcon_mamba", MAMBA | {"mixer_rms_eps": 1e-5}),
    "mamba2": ("mamba2", MAMBA2),
    "mamba2-one-group": ("mamba2", MAMBA2 | {"n_groups": 1, "num_heads": 4, "head_dim": 16, "state_size": 6}),
    "mamba2-biases": (
        "mamba2",
        MAMBA2
        | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "tie_word_embeddings": True, "expand": 1}
        | {"num_heads": 4, "n_groups": 4},
    ),
    "granite": ("granitemoehybrid", GRANITE),
    "granite-rope": ("granitemoehybrid", GRANITE | {"position_embedding_type": "rope", "mamba_n_groups": 2}),
    "granite-experts": (
        "granitemoehybrid",
        GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "granite-biases": ("granitemoehybrid", GRANITE | {"mamba_proj_bias": True, "mamba_conv_bias": False}),
    "bamba": ("bamba", LAYERS | HEADS | {"attn_layer_indices": [1, 3], "mamba_conv_bias": False}),
    "lfm2": ("lfm2", LFM2),
    "lfm2-biases": (
        "lfm2",
        LFM2 | {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    ),
}
TOKENS = np.random.default_rng(5).integers(0, 255, 23).tolist()


def saved(name, folder):
    kind, settings = FAMILIES[name]
    return saved_as(kind, settings, folder, len(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_agree(name, tmp_path):
    expected = peer_logits(saved(name, tmp_path), TOKENS)
    lm = rlx.load(tmp_path)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=1e-4)
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS[:8]), expected[7], rtol=0, atol=1e-4)
    np.testing.assert_allclose(session.prefill(TOKENS[8:11]), expected[10], rtol=0, atol=1e-4)
    for place in range(11, 23):
        np.testing.assert_allclose(session.step(TOKENS[place]), expected[place], rtol=0, atol=1e-4)
    # Back to the last prompt, and to where nothing was kept.
    for length in (11, 9):
        session.truncate(length)
        np.testing.assert_allclose(session.step(TOKENS[length]), expected[length], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_of_different_lengths_together(name, tmp_path):
    model = saved(name, tmp_path)
    batch = SequenceBatch(rlx.load(tmp_path)._runner, 3)
    texts = [[], [], []]
    for more in ([TOKENS[:9], TOKENS[3:5], []], [[1], [], TOKENS[:4]], [[2], [3], [4]], [[], TOKENS[:3], [5]]):
        found = batch.extend(more)
        for text, new, logits in zip(texts, more, found):
            text += new
            if new:
                np.testing.assert_allclose(logits, peer_logits(model, text)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "granite", "lfm2"])
def test_long_texts_and_greedy_answers(name, tmp_path):
    model = saved(name, tmp_path)
    tokens = np.random.default_rng(9).integers(0, 255, 600).tolist()
    expected = peer_logits(model, tokens)
    session = rlx.load(tmp_path).session()
    logits, got = session.prefill(tokens), []
    np.testing.assert_allclose(logits, expected[-1], rtol=0, atol=1e-4)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones((1, 600), dtype=torch.int64),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, 600:].tolist()
    for _ in made:
        got.append(int(logits.argmax()))
        logits = session.step(got[-1])
    assert got == made


# Files of Bamba turn whole heads.
WITHOUT_GGUF = {"bamba"}
# llama.cpp has no biases of projections in these layers, and wants them twice as wide as a token.
NOT_IN_LLAMA_CPP = {"mamba-biases", "mamba2-biases", "granite-biases", "lfm2-biases", "mamba-other-sizes"}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITHOUT_GGUF])
def test_files_hold_the_same_model(name, tmp_path):
    expected = peer_logits(saved(name, tmp_path / "hf"), TOKENS)
    save_tokenizer(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    lm = rlx.load(tmp_path / "m.gguf")
    np.testing.assert_allclose(lm.logits(TOKENS), expected, rtol=0, atol=1e-4)
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == ARCHITECTURES[FAMILIES[name][0]])
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[architecture]}
    found = [tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors]
    assert {re.sub(r"blk\.\d+", "blk.{bid}", n).removesuffix(".weight").removesuffix(".bias") for n in found} <= known
    if name in NOT_IN_LLAMA_CPP:
        return
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, logits_all=True, verbose=False)
    theirs.eval(TOKENS)
    scores = np.array(theirs.scores[: len(TOKENS)])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=5e-3 * np.abs(scores).max())
