"""Families of language models, each by its `config.json`: what is read, what is refused, that text is read the same in
one piece and token by token, and that GGUF files hold the same model; some against their formulas in f64 NumPy."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from models.decoder_fields import COMMON, FALCON, FAMILIES
from models.numpy_forward import layer_norm, rms_norm, rotate, softmax
from models.random_directories import random_directory
from models.test_model_configs import JSON
from rlx.errors import FormatError
from rlx.formats.safetensors import open_safetensors
from rlx.models.config_hf import decoder_config_from_hf
from rlx.models.convert import ARCHITECTURES, convert

TOKENS = np.random.default_rng(3).integers(0, 256, 15).tolist()


# What GGUF files cannot say of variants whose families they have.
WITHOUT_FILES = {"falcon_rw": "rope", "cohere_norms": "qk_norm"}


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_and_files_give_the_logits_of_the_whole_text(family, tmp_path):
    folder = random_directory(tmp_path / "hf", FAMILIES[family])
    lm = rlx.load(folder, device="reference")
    expected = lm.logits(TOKENS)
    assert np.abs(expected).max() > 0.1
    close = 2e-5 * np.abs(expected).max()
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS[:9]), expected[8], rtol=0, atol=close)
    for place in (9, 10):
        np.testing.assert_allclose(session.step(TOKENS[place]), expected[place], rtol=0, atol=close)
    if family in WITHOUT_FILES:
        with pytest.raises(FormatError, match=f"cannot say that {WITHOUT_FILES[family]} is"):
            convert(folder, tmp_path / "m.gguf", "F32")
    elif FAMILIES[family]["model_type"] in ARCHITECTURES:
        convert(folder, tmp_path / "m.gguf", "F32")
        read = rlx.load(tmp_path / "m.gguf", device="reference")
        np.testing.assert_allclose(read.logits(TOKENS), expected, rtol=0, atol=close)
    else:
        with pytest.raises(FormatError, match=f"{lm.config.family} models cannot be written as GGUF here"):
            convert(folder, tmp_path / "m.gguf", "F32")


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("smollm3", {"no_rope_layers": {3}, "tied": True}),
        (
            "granite",
            {"embed_scale": 3.0, "attention_scale": 0.25, "residual_multiplier": 0.6, "logit_multiplier": 2.0},
        ),
        ("gemma", {"activation": "gelu_approx", "embed_scale": 4.0, "post_norms": False, "tied": True}),
        ("starcoder2", {"norm": "layer", "gated": False, "activation": "gelu_approx", "tied": True}),
        ("stablelm", {"norm": "layer", "gated": True, "parallel_residual": False}),
        ("stablelm_parallel", {"parallel_residual": True, "shared_norm": True}),
        ("olmo", {"norm": "layer", "norm_affine": False, "qkv_limit": 0.7, "norm_eps": 1e-5}),
        ("phi", {"shared_norm": True, "gated": False, "tied": False}),
        ("cohere", {"shared_norm": True, "logit_multiplier": 0.25, "no_rope_layers": set()}),
        ("cohere2", {"windows": (6, 6, 6, None), "no_rope_layers": {3}}),
        ("glm", {"fused_gate_up": True, "fused_qkv": False, "post_norms": False}),
        ("glm4", {"fused_gate_up": True, "post_norms": True, "pre_norms": True}),
        ("gptj", {"shared_norm": True, "ffn": 64, "head_dim": 8}),
        ("falcon_7b", {"kv_heads": 1, "shared_norm": True, "context": 2048, "tied": True}),
        ("falcon_40b", {"kv_heads": 2, "shared_norm": False, "parallel_residual": True}),
        ("exaone4", {"windows": (6, 6, 6, None), "no_rope_layers": {3}, "pre_norms": False, "qk_norm": True}),
        ("ernie4_5", {"tied": True, "head_dim": 4}),
        ("gpt_oss", {"windows": (6, None), "attention_sinks": True}),
        ("hunyuan", {"qk_norm": True, "qk_norm_after_rope": True}),
    ],
)
def test_what_a_family_is(family, expected):
    config = decoder_config_from_hf(FAMILIES[family])
    assert {name: getattr(config, name) for name in expected} == expected


def test_which_features_turn():
    found = {name: decoder_config_from_hf(fields).rope for name, fields in FAMILIES.items()}
    none = {name for name, rope in found.items() if rope is None}
    assert none == {"bloom", "mpt", "falcon_rw", "gpt_bigcode", "gpt_bigcode_heads", "gpt_neo", "opt_350m"} | {
        *("granitemoehybrid", "granitemoehybrid_states", "mamba", "falcon_mamba", "mamba2")
    }
    found = {name: rope for name, rope in found.items() if rope is not None}
    neighbours = {name for name, rope in found.items() if rope.style == "gptj"}
    assert neighbours == {"cohere", "cohere2", "glm", "glm4", "gptj", "ernie4_5"} | {
        *("helium", "codegen", "cohere_norms", "ernie4_5_moe", "deepseek_v2", "deepseek_v3")
    }
    assert {name: rope.dims for name, rope in found.items() if rope.dims != 4} == {
        "nemotron": 2,
        "persimmon": 2,
        "bamba": 2,
        "vaultgemma": 8,
        "stablelm": 2,
        "stablelm_parallel": 2,
        "phi": 2,
        "glm": 2,
        "glm4": 2,
        "gemma": 8,
        "gpt_oss": 8,
    }
    assert found["hunyuan"].base == pytest.approx(10000.0 * 50.0**2)
    full = decoder_config_from_hf(FAMILIES["exaone4"] | {"sliding_window": None})
    assert full.windows == () and full.no_rope_layers == frozenset()


def test_windows_of_smollm3_are_those_of_layers_without_positions():
    fields = FAMILIES["smollm3"] | {"use_sliding_window": True, "sliding_window": 6}
    assert decoder_config_from_hf(fields).windows == (None, None, None, 6)
    assert decoder_config_from_hf(fields | {"use_sliding_window": False}).windows == ()


@pytest.mark.parametrize(
    ("family", "field", "name", "expected"),
    [
        ("cohere", "logit_scale", "logit_multiplier", 0.0625),
        ("cohere2", "sliding_window", "windows", (4096, 4096, 4096, None)),
        ("exaone4", "sliding_window", "no_rope_layers", {3}),
        ("gpt_oss", "rope_theta", "rope", 150000.0),
        ("smollm3", "rope_theta", "rope", 2e6),
        ("ernie4_5", "rope_theta", "rope", 5e5),
    ],
)
def test_fields_that_a_file_leaves_out_are_those_of_the_family(family, field, name, expected):
    found = getattr(decoder_config_from_hf({k: v for k, v in FAMILIES[family].items() if k != field}), name)
    assert (found.base if name == "rope" else found) == expected


def test_gemma2_without_limits_says_so():
    fields = COMMON | {"model_type": "gemma2", "head_dim": 8, "sliding_window": 6}
    usual = decoder_config_from_hf(fields)
    assert (usual.attention_softcap, usual.final_softcap, usual.attention_scale) == (50.0, 30.0, 1 / 16)
    none = decoder_config_from_hf(fields | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (none.attention_softcap, none.final_softcap) == (None, None)


def test_gemma3_has_no_limit_of_attention_scores():
    fields = COMMON | {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0}
    assert decoder_config_from_hf(fields).attention_softcap is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (FAMILIES["bamba"] | {"mamba_n_heads": 3}, "3 heads of 10 features are not the 32 of a state-space"),
        (FAMILIES["bamba"] | {"mamba_n_groups": 3}, "4 heads in 3 groups do not divide 32 features"),
        (FAMILIES["mamba2"] | {"head_dim": 4}, "4 heads of 4 features are not the 32 of a state-space layer"),
        (FAMILIES["mamba"] | {"conv_kernel": 1}, "convolutions are of 2 tokens or more, got 1"),
        (FAMILIES["mamba"] | {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported: 'silu'"),
        (FAMILIES["mamba2"] | {"time_step_limit": [1.0]}, "time_step_limit must be two numbers, got"),
        (FAMILIES["lfm2"] | {"layer_types": ["conv"]}, "layer types must be one of .* conv for each of 2 layers"),
        ({"model_type": "baichuan", "vocab_size": 125696}, "baichuan models of the second generation"),
        ({"model_type": "baichuan", "max_position_embeddings": None}, "baichuan models without max_position_embed"),
        (FAMILIES["deepseek_v2"] | {"n_group": 3}, "1 of 3 groups of 4 experts"),
        (FAMILIES["deepseek_v2"] | {"num_experts_per_tok": 3}, "1 groups of 2 experts are too small for 3 per token"),
        (FAMILIES["deepseek_v3"] | {"num_experts_per_tok": 5}, "a token meets 5 of 4"),
        (FAMILIES["hunyuan_moe"] | {"moe_topk": [1, 2]}, r"moe_topk must be the same for all layers, got \[1, 2\]"),
        (FAMILIES["mpt"] | {"attn_config": {"qk_ln": True}}, "qk_ln=True is not supported; supported: False"),
        (FAMILIES["gpt_neo"] | {"attention_types": [[["global"], 1]]}, "must name 2 global or local layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 1]}, "no_rope_layers must be 2 times 0 or 1"),
        ({"model_type": "starcoder2", "norm_epsilon": 1e-5, "norm_type": "rms_norm"}, "norm_type='rms_norm'"),
        ({"model_type": "hunyuan_v1_dense", "use_cla": True}, "use_cla=True is not supported"),
        ({"model_type": "olmo", "clip_qkv": -1.0}, "clip_qkv must be a positive number"),
        ({"model_type": "llama", "rope_scaling": {"type": "proportional"}}, "rope type 'proportional'"),
    ],
)
def test_variants_that_are_refused(fields, message):
    with pytest.raises(FormatError, match=message):
        decoder_config_from_hf(COMMON | fields)


EXTRAS = ("rope_scaling", "layer_types", "sliding_window", "sliding_window_pattern", "no_rope_layers", "clip_qkv")
EXTRAS += ("num_ln_in_parallel_attn", "use_parallel_residual", "logit_scale", "quantization_config", "swiglu_limit")


@given(st.sampled_from(sorted(FAMILIES)), st.data())
def test_any_field_may_hold_anything(family, data):
    names = data.draw(st.lists(st.sampled_from([*FAMILIES[family], *EXTRAS]), min_size=1, max_size=3))
    with contextlib.suppress(FormatError):
        decoder_config_from_hf({**FAMILIES[family], **{name: data.draw(JSON) for name in names}})


def test_what_files_cannot_say_is_refused(tmp_path):
    sequential = FALCON | {"parallel_attn": False}
    folder = random_directory(tmp_path / "falcon", sequential)
    with pytest.raises(FormatError, match="GGUF files of falcon cannot say that parallel_residual is False"):
        convert(folder, tmp_path / "m.gguf", "F32")
    turned = FAMILIES["smollm3"] | {"no_rope_layers": [1, 0, 1, 1]}
    with pytest.raises(FormatError, match="cannot say that no_rope_layers is"):
        convert(random_directory(tmp_path / "smollm3", turned), tmp_path / "m.gguf", "F32")


def heads_of(x, count):
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def attended(q, k, v, turn, window=None, after=lambda x, name: x):
    """Causal attention [S, H·D] of heads [H, S, D]; `after` is what happens to turned queries and keys."""
    seq = q.shape[1]
    distance = np.arange(seq)[:, None] - np.arange(seq)
    visible = (distance >= 0) & (distance < (window or seq))
    out = []
    for head, rows in enumerate(q):
        shared = head // (len(q) // len(k))
        scores = after(turn(rows), "query") @ after(turn(k[shared]), "key").T / np.sqrt(rows.shape[1])
        out.append(softmax(np.where(visible, scores, -np.inf)) @ v[shared])
    return np.concatenate(out, -1)


def silu(x):
    return x / (1 + np.exp(-x))


def gated(x, w, layer):
    gate, up = (x @ w[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return (silu(gate) * up) @ w[f"{layer}mlp.down_proj.weight"].T


def qkv(x, w, layer):
    counts = {"q": 4, "k": 2, "v": 2}
    return [heads_of(x @ w[f"{layer}self_attn.{name}_proj.weight"].T, count) for name, count in counts.items()]


def olmo(w, x):
    for layer in ("model.layers.0.", "model.layers.1."):
        q, k, v = (np.clip(part, -0.7, 0.7) for part in qkv(layer_norm(x, 1, 0, 1e-5), w, layer))
        y = attended(q, k, v, lambda rows: rotate(rows, 10000.0, False))
        x = x + y @ w[layer + "self_attn.o_proj.weight"].T
        x = x + gated(layer_norm(x, 1, 0, 1e-5), w, layer)
    return layer_norm(x, 1, 0, 1e-5) @ w["lm_head.weight"].T


def cohere2(w, x):
    for i in range(4):
        layer, local = f"model.layers.{i}.", i < 3
        h = layer_norm(x, w[layer + "input_layernorm.weight"], 0, 1e-5)
        turn = (lambda rows: rotate(rows, 10000.0, True)) if local else (lambda rows: rows)
        y = attended(*qkv(h, w, layer), turn, 6 if local else None)
        x = x + y @ w[layer + "self_attn.o_proj.weight"].T + gated(h, w, layer)
    return layer_norm(x, w["model.norm.weight"], 0, 1e-5) @ w["model.embed_tokens.weight"].T * 0.25


def hunyuan(w, x):
    for layer in ("model.layers.0.", "model.layers.1."):

        def norm(rows, name, at=layer):
            return rms_norm(rows, w[f"{at}self_attn.{name}_layernorm.weight"], 1e-5)

        h = rms_norm(x, w[layer + "input_layernorm.weight"], 1e-5)
        y = attended(*qkv(h, w, layer), lambda rows: rotate(rows, 10000.0 * 50.0**2, False), after=norm)
        x = x + y @ w[layer + "self_attn.o_proj.weight"].T
        x = x + gated(rms_norm(x, w[layer + "post_attention_layernorm.weight"], 1e-5), w, layer)
    return rms_norm(x, w["model.norm.weight"], 1e-5) @ w["lm_head.weight"].T


def bloom(w, x):
    """Distances in the place of positions, and rows of q, k and v head by head."""

    def norm(rows, name):
        return layer_norm(rows, w[f"{name}.weight"], w.get(f"{name}.bias", 0), 1e-5)

    slopes, seq = (2.0**-4, 2.0**-8, 2.0**-2), len(x)
    x = norm(x, "transformer.word_embeddings_layernorm")
    back = np.arange(seq) - np.arange(seq)[:, None]
    for layer in ("transformer.h.0.", "transformer.h.1."):
        h = norm(x, layer + "input_layernorm")
        qkv = (h @ w[layer + "self_attention.query_key_value.weight"].T).reshape(seq, 3, 3, 6)
        heads = []
        for head, slope in enumerate(slopes):
            q, k, v = (qkv[:, head, part] for part in range(3))
            scores = q @ k.T / np.sqrt(6) + slope * back
            heads.append(softmax(np.where(back <= 0, scores, -np.inf)) @ v)
        x = x + np.concatenate(heads, -1) @ w[layer + "self_attention.dense.weight"].T
        inner = norm(x, layer + "post_attention_layernorm") @ w[layer + "mlp.dense_h_to_4h.weight"].T
        inner = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = x + inner @ w[layer + "mlp.dense_4h_to_h.weight"].T
    return norm(x, "transformer.ln_f") @ w["transformer.word_embeddings.weight"].T


def deepseek_v3(w, x):
    """Keys and values are made of one vector of each token; experts of the better half are judged with a bias."""

    def turn(rows):
        return rotate(rows, 10000.0, True)

    def swiglu(rows, name):
        gate, up = (rows @ w[f"{name}{part}_proj.weight"].T for part in ("gate", "up"))
        return (silu(gate) * up) @ w[f"{name}down_proj.weight"].T

    for layer in ("model.layers.0.", "model.layers.1."):
        at = layer + "self_attn."
        h = rms_norm(x, w[layer + "input_layernorm.weight"], 1e-5)
        low = rms_norm(h @ w[at + "q_a_proj.weight"].T, w[at + "q_a_layernorm.weight"], 1e-6)
        q = (low @ w[at + "q_b_proj.weight"].T).reshape(len(x), 4, 8)
        vectors, shared = np.split(h @ w[at + "kv_a_proj_with_mqa.weight"].T, [8], -1)
        vectors = rms_norm(vectors, w[at + "kv_a_layernorm.weight"], 1e-6)
        kv = (vectors @ w[at + "kv_b_proj.weight"].T).reshape(len(x), 4, 10)
        heads = []
        for head in range(4):
            queries = np.concatenate([q[:, head, :4], turn(q[:, head, 4:])], -1)
            keys = np.concatenate([kv[:, head, :4], turn(shared)], -1)
            seen = np.tril(np.ones((len(x), len(x)), bool))
            heads.append(softmax(np.where(seen, queries @ keys.T / np.sqrt(8), -np.inf)) @ kv[:, head, 4:])
        x = x + np.concatenate(heads, -1) @ w[at + "o_proj.weight"].T
        h, mlp = rms_norm(x, w[layer + "post_attention_layernorm.weight"], 1e-5), layer + "mlp."
        if layer.endswith("0."):
            x = x + swiglu(h, mlp)
            continue
        scores = 1 / (1 + np.exp(-h @ w[mlp + "gate.weight"].T))
        judged = scores + w[mlp + "gate.e_score_correction_bias"]
        y = swiglu(h, mlp + "shared_experts.")
        for place, row in enumerate(judged):
            # Two of four experts, both of the group of two whose scores add up to more.
            first = 0 if row[:2].sum() > row[2:].sum() else 2
            total = scores[place, first : first + 2].sum()
            for expert in (first, first + 1):
                weight = 1.5 * scores[place, expert] / total
                y[place] += weight * swiglu(h[place : place + 1], f"{mlp}experts.{expert}.")[0]
        x = x + y
    return rms_norm(x, w["model.norm.weight"], 1e-5) @ w["lm_head.weight"].T


@pytest.mark.parametrize("forward", [olmo, cohere2, hunyuan, bloom, deepseek_v3])
def test_logits_are_those_of_the_formulas(forward, tmp_path):
    folder = random_directory(tmp_path, FAMILIES[forward.__name__])
    w = {name: t.array().astype(np.float64) for name, t in open_safetensors(folder).tensors.items()}
    embedding = next(w[name] for name in w if "embed_tokens" in name or name.endswith("word_embeddings.weight"))
    expected = forward(w, embedding[TOKENS])
    found = rlx.load(folder, device="reference").logits(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
