"""Configs from GGUF metadata and from config.json: what is read, and what is refused."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import FormatError
from rlx.models.config_gguf import decoder_config_from_gguf
from rlx.models.config_hf import decoder_config_from_hf
from rlx.models.config_hf_encoders import encoder_config_from_directory, encoder_config_from_hf
from rlx.models.hf_wrappers import text_tensors
from rlx.models.rope_tables import attention_gain, rope_tables

GGUF = {
    "general.architecture": "llama",
    "llama.block_count": np.uint32(2),
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {"token_embd.weight": (99, 32)}
HF = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "hidden_act": "gelu",
}


def from_gguf(metadata, tensors=TENSORS, factors=None):
    return decoder_config_from_gguf(metadata, tensors, (factors or {}).__getitem__)


def renamed(architecture, **more):
    found = {k.replace("llama.", f"{architecture}."): v for k, v in GGUF.items()}
    return found | {"general.architecture": architecture} | {f"{architecture}.{k}": v for k, v in more.items()}


def test_gguf_and_json_describe_the_same_model():
    a, b = from_gguf(GGUF), decoder_config_from_hf({**HF, "tie_word_embeddings": True})
    assert a.rope.style == "gptj" and b.rope.style == "neox"
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context", "norm_eps", "tied"):
        assert getattr(a, name) == getattr(b, name), name


def test_factors_of_frequencies_come_from_a_tensor():
    tensors = TENSORS | {"rope_freqs.weight": (4,)}
    config = from_gguf(GGUF, tensors, {"rope_freqs.weight": (1.0, 2.0, 4.0, 8.0)})
    cos, _ = rope_tables(config.rope, 3)
    expected = np.cos(2 * 10000.0 ** (-np.arange(4) / 4) / [1, 2, 4, 8])
    np.testing.assert_allclose(cos[2], expected, rtol=1e-6)


def test_yarn_of_gguf_multiplies_its_gain():
    yarn = {**GGUF, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    usual = 0.1 * np.log(4) + 1
    assert attention_gain(from_gguf(yarn).rope) == pytest.approx(usual)
    assert attention_gain(from_gguf({**yarn, "llama.rope.scaling.attn_factor": 1.3}).rope) == pytest.approx(1.3 * usual)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_type_is_linear(key):
    _, found = rope_tables(from_gguf({**GGUF, f"llama.{key}": 2.5}).rope, 4)
    _, plain = rope_tables(from_gguf({**GGUF, f"llama.{key}": 2.5, "llama.rope.scaling.type": "none"}).rope, 4)
    np.testing.assert_allclose(found[2, 0], np.sin(2 / 2.5), rtol=1e-6)
    np.testing.assert_allclose(plain[2, 0], np.sin(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("qwen2", {}, {"qk_norm": False, "gated": True}),
        ("qwen3", {"attention.key_length": 16, "attention.value_length": 16}, {"qk_norm": True, "head_dim": 16}),
        ("gemma2", {"attention.sliding_window": 8}, {"windows": (8, None), "final_softcap": 30.0, "post_norms": True}),
        ("gemma3", {"attention.sliding_window": 8}, {"windows": (8, 8), "qk_norm": True, "final_softcap": None}),
        ("phi3", {"rope.dimension_count": 8}, {"fused_qkv": True, "fused_gate_up": True, "windows": ()}),
        ("gpt2", {"attention.layer_norm_epsilon": 1e-5}, {"rope": None, "norm": "layer", "learned_positions": True}),
    ],
)
def test_architectures_of_gguf(architecture, keys, expected):
    config = from_gguf(renamed(architecture, **keys))
    assert {name: getattr(config, name) for name in expected} == expected


def test_experts_of_gguf():
    moe = from_gguf({**GGUF, "llama.expert_count": 8, "llama.expert_used_count": 2}).moe
    assert (moe.experts, moe.top_k, moe.ffn, moe.renormalize) == (8, 2, 64, True)
    keys = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
    moe = from_gguf(renamed("qwen2moe", **keys, expert_shared_feed_forward_length=24)).moe
    assert (moe.ffn, moe.shared_ffn, moe.renormalize) == (16, 24, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "rwkv6"}, "architecture 'rwkv6' is not supported; supported: arcee, bloom, chatglm"),
        ({"llama.block_count": "two"}, "'llama.block_count' must be a number, got 'two'"),
        ({"llama.block_count": 0}, "a model has from 1 to 4096 layers, got 0"),
        ({"llama.attention.head_count_kv": 3}, "4 heads are not a multiple of 3"),
        ({"llama.attention.head_count_kv": np.array([2, 1])}, "differs between layers"),
        ({"llama.rope.scaling.type": "cubic"}, "rope scaling 'cubic' is not supported"),
        ({"llama.rope.dimension_count": 7}, "rotary positions of 7 features"),
        ({"llama.attention.value_length": 4}, "keys and values of different width"),
        ({"llama.attention.head_count_kv": 2.0}, "'llama.attention.head_count_kv' must be a number, got 2.0"),
        ({"llama.attention.head_count_kv": "22"}, "'llama.attention.head_count_kv' must be a number, got '22'"),
        ({"llama.attention.head_count": ["4", "4"]}, "must be a whole number, or one for each layer"),
        ({"llama.feed_forward_length": np.array([64.0, 64.0])}, "must be a whole number, or one for each layer"),
        ({"llama.feed_forward_length": [np.array([64]), np.array([64])]}, "must be a whole number, or one for each"),
        ({"llama.feed_forward_length": np.array([], np.uint32)}, "must be a whole number, or one for each layer"),
        ({"llama.attention.head_count_kv": np.array([True, True])}, "must be a whole number, or one for each layer"),
        ({"llama.rope.freq_base": float("nan")}, "must be a positive number, got nan"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.freq_base": 1.0}, "yarn needs a base other than 1"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 0},
            "yarn needs an original context of at least 1, got 0",
        ),
    ],
)
def test_gguf_files_that_are_refused(change, message):
    with pytest.raises(FormatError, match=message):
        from_gguf({**GGUF, **change})


@pytest.mark.parametrize("context", [0, 1])
def test_longrope_needs_a_context_with_a_logarithm(context):
    tensors = TENSORS | {"rope_factors_long.weight": (4,), "rope_factors_short.weight": (4,)}
    ones = dict.fromkeys(tensors, (1.0,) * 4)
    with pytest.raises(FormatError, match=f"longrope needs an original context of at least 2, got {context}"):
        from_gguf({**GGUF, "llama.rope.scaling.original_context_length": context}, tensors, ones)
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
    with pytest.raises(FormatError, match=r"original"):
        decoder_config_from_hf({**HF, "original_max_position_embeddings": context, "rope_scaling": scaling})


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_factors_of_frequencies_are_positive(bad):
    with pytest.raises(FormatError, match="factors of frequencies must be positive"):
        from_gguf(GGUF, TENSORS | {"rope_freqs.weight": (4,)}, {"rope_freqs.weight": (1.0, 1.0, bad, 1.0)})


SOME_VALUES = [
    *(0, 1, -1, 3, 2**40, 2**63, 1.0, -0.5, float("nan"), float("inf"), 1e300, True, "", "22", "yarn", "linear"),
    *([], ["a", "b"], [2, 2], [[2], [2]], [np.array([2, 2])], np.array([2, 2]), np.array([2.0, 2.0]), np.array(["4"])),
]
KEYS = (
    "block_count context_length embedding_length feed_forward_length attention.head_count attention.head_count_kv "
    "attention.key_length attention.value_length attention.layer_norm_rms_epsilon attention.layer_norm_epsilon "
    "rope.freq_base rope.dimension_count rope.scaling.type rope.scaling.factor rope.scaling.original_context_length "
    "rope.scaling.attn_factor expert_count expert_used_count expert_feed_forward_length attention.sliding_window "
    "attention.sliding_window_pattern attn_logit_softcapping final_logit_softcapping rope.freq_base_swa"
)


@pytest.mark.parametrize("architecture", ["llama", "qwen2moe", "gemma2", "gemma3", "phi3", "gpt2"])
def test_any_key_may_hold_anything(architecture):
    start = renamed(architecture, **{"attention.sliding_window": 8, "attention.layer_norm_epsilon": 1e-5})
    tensors = TENSORS | {"rope_factors_long.weight": (4,), "rope_factors_short.weight": (4,)}
    ones, read = dict.fromkeys(tensors, (1.0,) * 4), 0
    for key in KEYS.split():
        for value in SOME_VALUES:
            for more in ({}, {f"{architecture}.rope.scaling.type": "yarn"}):
                for present in (TENSORS, tensors):
                    with contextlib.suppress(FormatError):
                        config = from_gguf(start | more | {f"{architecture}.{key}": value}, present, ones)
                        for rope in (config.rope, config.local_rope):
                            if rope is not None:
                                assert np.isfinite(rope_tables(rope, 3)).all(), (key, value)
                        read += 1
    assert read


def test_a_missing_key_is_named():
    with pytest.raises(FormatError, match=r"'llama\.embedding_length' is missing; a llama model needs it"):
        from_gguf({k: v for k, v in GGUF.items() if "embedding" not in k})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv' is not a supported language model"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
        ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported"),
        ({"rope_scaling": {"type": "cubic", "factor": 2}}, "rope type 'cubic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq' are not supported"),
        ({"num_hidden_layers": 10**9}, "from 1 to 4096 layers"),
        ({"hidden_size": 2**40}, "hidden_size must be a whole number"),
    ],
)
def test_configs_that_are_refused(change, message):
    with pytest.raises(FormatError, match=message):
        decoder_config_from_hf({**HF, **change})


def test_both_spellings_of_rotary_positions():
    old = decoder_config_from_hf({**HF, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})
    new = decoder_config_from_hf({**HF, "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}})
    assert old.rope == new.rope and old.rope.factor == 4.0


def test_dynamic_positions_are_plain_ones_within_the_context():
    dynamic = decoder_config_from_hf({**HF, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert dynamic.rope == decoder_config_from_hf(HF).rope


@pytest.mark.parametrize(
    ("weights", "gain"),
    [
        ({"mscale": 0.7, "mscale_all_dim": 0.9}, (0.07 * np.log(4) + 1) / (0.09 * np.log(4) + 1)),
        ({"mscale": 1, "mscale_all_dim": 1}, 1.0),
        ({"mscale": 0.7}, 0.1 * np.log(4) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 0}, 0.1 * np.log(4) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 0.9, "attention_factor": 1.5}, 1.5),
    ],
)
def test_two_weights_of_the_gain_of_yarn(weights, gain):
    config = decoder_config_from_hf({**HF, "rope_scaling": {"type": "yarn", "factor": 4.0, **weights}})
    assert attention_gain(config.rope) == pytest.approx(gain)


def test_whole_heads_turn_in_families_without_shares():
    share = {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    assert decoder_config_from_hf({**HF, **share}).rope.dims == 8
    assert decoder_config_from_hf({**HF, **share, "model_type": "phi3"}).rope.dims == 4


def test_both_spellings_of_neox_are_read_with_scaling():
    own = {"rotary_pct": 0.5, "rotary_emb_base": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    found = decoder_config_from_hf({**BERT, "model_type": "gpt_neox", **own}).rope
    assert (found.base, found.dims, found.factor) == (5000.0, 4, 2.0)


def test_the_original_context_beside_the_settings_counts_first():
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling = {"type": "longrope", "original_max_position_embeddings": 16, **factors}
    fields = {**HF, "model_type": "phi3", "rope_scaling": scaling}
    beside = decoder_config_from_hf({**fields, "original_max_position_embeddings": 32}).rope
    assert (beside.original_context, beside.factor) == (32, 4.0)
    assert decoder_config_from_hf(fields).rope.original_context == 4096
    assert decoder_config_from_hf({**fields, "model_type": "llama"}).rope.original_context == 16
    said = {**fields, "model_type": "llama", "rope_scaling": {**scaling, "factor": 3.0}}
    assert decoder_config_from_hf(said).rope.factor == 3.0


def test_layer_types_say_which_layers_slide():
    fields = {**HF, "model_type": "mistral", "sliding_window": 7}
    assert decoder_config_from_hf(fields).windows == (7, 7)
    types = ["full_attention", "sliding_attention"]
    assert decoder_config_from_hf({**fields, "layer_types": types}).windows == (None, 7)
    with pytest.raises(FormatError, match="layer_types must name 2 full or sliding layers"):
        decoder_config_from_hf({**fields, "layer_types": ["chunked_attention", "full_attention"]})


def test_roberta_counts_positions_from_behind_the_padding():
    config = encoder_config_from_hf({**BERT, "model_type": "roberta", "pad_token_id": 1})
    assert (config.position_offset, config.context, config.table_rows) == (2, 126, 128)


def test_fields_of_encoders_that_a_file_leaves_out():
    assert encoder_config_from_hf(BERT).token_types == 2
    modern = encoder_config_from_hf({**BERT, "model_type": "modernbert"})
    assert (modern.rope.base, modern.local_rope.base) == (160000.0, 10000.0)
    null = encoder_config_from_hf({**BERT, "model_type": "modernbert", "local_rope_theta": None})
    assert null.local_rope.base == 160000.0


def test_nomic_files_in_both_spellings():
    own = {
        "model_type": "nomic_bert",
        "n_embd": 32,
        "n_head": 4,
        "n_inner": 64,
        "n_layer": 2,
        "n_positions": 128,
        "vocab_size": 99,
        "rotary_emb_base": 1000,
        "activation_function": "swiglu",
        "type_vocab_size": 2,
    }
    theirs = {**BERT, "model_type": "nomic_bert", "hidden_act": "silu", "rope_parameters": {"rope_theta": 1000}}
    assert encoder_config_from_hf(own) == encoder_config_from_hf({**theirs, "type_vocab_size": 2})
    with pytest.raises(FormatError, match="prenorm=True is not supported"):
        encoder_config_from_hf({**own, "prenorm": True})


def write_modules(folder, *kinds, pooling=None, limit=None):
    (folder / "config.json").write_text(json.dumps(BERT))
    modules = [{"path": f"{i}_{k}", "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if limit is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))


def test_pooling_is_read_from_the_directory(tmp_path):
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", pooling=flags, limit=100)
    config = encoder_config_from_directory(tmp_path)
    assert (config.pooling, config.normalize, config.context) == (("cls",), True, 100)


def test_unknown_modules_and_modes_are_refused(tmp_path):
    write_modules(tmp_path, "Transformer", "Pooling", "LSTM", pooling={"pooling_mode": "mean"})
    with pytest.raises(FormatError, match=r"module 'sentence_transformers\.models\.LSTM' is not supported"):
        encoder_config_from_directory(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "median"}')
    with pytest.raises(FormatError, match="pooling_mode 'median' is not one of"):
        encoder_config_from_directory(tmp_path)
    write_modules(tmp_path, "Transformer")
    with pytest.raises(FormatError, match="there is no Pooling module"):
        encoder_config_from_directory(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-2, 9) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "factor", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
GEMMA3 = {**HF, "model_type": "gemma3_text", "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
MOE = {**HF, "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MOE |= {"shared_expert_intermediate_size": 8, "norm_topk_prob": True}
MODERNBERT = {**BERT, "model_type": "modernbert", "local_attention": 8, "global_attn_every_n_layers": 2}
NEOX = {**BERT, "model_type": "gpt_neox", "use_parallel_residual": True, "rotary_pct": 0.5}
EXTRAS = ("rope_scaling", "rope_parameters", "layer_types", "quantization_config", "mlp_only_layers", "head_dim")


@given(st.sampled_from([HF, GEMMA3, MOE, BERT, {**BERT, "model_type": "mpnet"}, MODERNBERT, NEOX]), st.data())
def test_any_field_may_hold_anything(fields, data):
    read = encoder_config_from_hf if "bert" in fields["model_type"] or "mpnet" in fields["model_type"] else None
    names = data.draw(st.lists(st.sampled_from([*fields, *EXTRAS]), min_size=1, max_size=3))
    changed = {**fields, **{name: data.draw(JSON) for name in names}}
    with contextlib.suppress(FormatError):
        (read or decoder_config_from_hf)(changed)


def test_the_language_model_of_a_model_that_also_sees():
    inner = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}
    config = decoder_config_from_hf({"model_type": "gemma3", "text_config": inner | {"sliding_window": 1024}})
    assert (config.family, config.heads, config.kv_heads, config.head_dim) == ("gemma3_text", 8, 4, 256)
    assert (config.vocab, config.windows[:6], config.tied) == (262208, (1024,) * 5 + (None,), True)
    axes = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    flat = decoder_config_from_hf({**HF, **axes, "model_type": "qwen2_vl", "tie_word_embeddings": True})
    assert flat == decoder_config_from_hf({**HF, "model_type": "qwen2", "tie_word_embeddings": True})
    outer = {"model_type": "qwen2_5_vl", "text_config": {**HF, "model_type": "qwen2_5_vl_text"}}
    assert decoder_config_from_hf({**outer, "tie_word_embeddings": True}) == flat
    with pytest.raises(FormatError, match=r"text_config must be an object, got \[1\]"):
        decoder_config_from_hf({"model_type": "gemma3", "text_config": [1]})
    with pytest.raises(FormatError, match="quantised by 'awq' are not supported"):
        decoder_config_from_hf({**outer, "quantization_config": {"quant_method": "awq"}})


def test_tensors_of_a_language_model_by_their_usual_names():
    names = ("model.language_model.norm.weight", "language_model.model.norm.weight", "model.text_model.norm.weight")
    for name in (*names, "model.norm.weight"):
        found = text_tensors({name: 1, "vision_tower.x": 2, "model.visual.y": 3, "language_model.lm_head.weight": 4})
        assert found == {"model.norm.weight": 1, "lm_head.weight": 4}
