"""Adapters as files: names and shapes as PEFT and llama.cpp have them, the same change whichever file the base is."""

import dataclasses
import json

import numpy as np
import pytest
from small_decoders import ONE_LAYER_BERT, SHIPPED, bert_arrays, decoder_files

import rlx
from models import decoder_fields
from models.random_directories import FAMILIES, random_directory
from rlx.errors import FormatError, OpError
from rlx.finetune import AdapterConfig
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models.adapter_files import adapter_sites, read_adapter, row_orders, write_gguf_adapter, write_peft
from rlx.models.adapters import new_adapter
from rlx.models.config_hf import decoder_config_from_hf
from rlx.models.convert import convert
from rlx.models.encoder_names import HF_ENCODERS
from rlx.models.merging import write_merged
from rlx.models.model_files import open_decoder
from rlx.models.weights import WeightFile, plain_weight

IDS = [1, 7, 30, 200, 3, 99, 14, 5]


def random_adapter(config, weights, adapter_config, seed=0):
    """One that changes something."""
    rng = np.random.default_rng(seed)
    made = new_adapter(adapter_config, weights, adapter_sites(adapter_config.targets, config, weights), seed)
    changed = {name: a + rng.normal(size=a.shape) * 0.3 for name, a in made.params(weights).items()}
    return made.with_params(changed, weights)


def tensors_of(folder):
    with open_safetensors(folder / "adapter_model.safetensors") as file:
        return {name: np.array(t.array()) for name, t in file.tensors.items()}


def logits(path, *adapters):
    return rlx.load(path, device="reference", adapter=list(adapters) or None).logits(IDS)


def directory(folder, name, layers=1):
    counts = {key: layers for key in ("num_hidden_layers", "n_layer") if key in FAMILIES[name]}
    return random_directory(folder, FAMILIES[name] | counts)


# Names and shapes of the files that PEFT 0.21 saves for such models, rank 4, one of each kind.
PEFT_TENSORS = {
    "llama": {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 4),
        "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight": (16, 4),
        "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight": (4, 32),
        "base_model.model.model.layers.0.mlp.gate_proj.lora_B.weight": (64, 4),
        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight": (4, 64),
        "base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector": (32,),
    },
    "phi3": {
        "base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight": (64, 4),
        "base_model.model.model.layers.0.mlp.gate_up_proj.lora_B.weight": (128, 4),
        "base_model.model.model.layers.0.mlp.gate_up_proj.lora_magnitude_vector": (128,),
    },
    "gpt2": {
        "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": (4, 32),
        "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight": (96, 4),
        "base_model.model.transformer.h.0.mlp.c_proj.lora_A.weight": (4, 128),
    },
    "gpt_neox": {
        "base_model.model.gpt_neox.layers.0.attention.query_key_value.lora_B.weight": (96, 4),
        "base_model.model.gpt_neox.layers.0.mlp.dense_4h_to_h.lora_A.weight": (4, 64),
    },
}
MODULES = {"llama": 7, "phi3": 4, "gpt2": 4, "gpt_neox": 4}


@pytest.mark.parametrize("family", PEFT_TENSORS)
def test_peft_names_and_shapes(family, tmp_path):
    files = open_decoder(directory(tmp_path / "hf", family))
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=4, alpha=8, is_dora=True))
    write_peft(tmp_path / "run", adapter, files.config, files.weights, "base")
    found = tensors_of(tmp_path / "run")
    assert len(found) == 3 * MODULES[family]
    assert {name: found[name].shape for name in PEFT_TENSORS[family]} == PEFT_TENSORS[family]
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}
    settings = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    wanted = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": True, "task_type": "CAUSAL_LM", "bias": "none"}
    assert {key: settings[key] for key in wanted} == wanted
    assert settings["fan_in_fan_out"] is (family == "gpt2")
    back = read_adapter(tmp_path / "run", files.config, files.weights)
    assert back.pairs.keys() == adapter.pairs.keys()
    for site, pair in adapter.pairs.items():
        assert back.pairs[site].scale == pair.scale == 2.0
        for part, array in pair.arrays().items():
            np.testing.assert_array_equal(back.pairs[site].arrays()[part], array)


def test_encoders_are_named_as_the_bare_model(tmp_path):
    arrays = {name: plain_weight(a) for name, a in bert_arrays(ONE_LAYER_BERT).items()}
    weights = WeightFile("a test", HF_ENCODERS["bert"], arrays)
    adapter = random_adapter(ONE_LAYER_BERT, weights, AdapterConfig(rank=2, targets=("query", "dense")))
    write_peft(tmp_path, adapter, ONE_LAYER_BERT, weights)
    found = tensors_of(tmp_path)
    assert {name.removesuffix(".lora_A.weight") for name in found if "lora_A" in name} == {
        "base_model.model.encoder.layer.0.attention.self.query",
        "base_model.model.encoder.layer.0.attention.output.dense",
        "base_model.model.encoder.layer.0.intermediate.dense",
        "base_model.model.encoder.layer.0.output.dense",
    }
    assert json.loads((tmp_path / "adapter_config.json").read_text())["task_type"] == "FEATURE_EXTRACTION"
    assert read_adapter(tmp_path, ONE_LAYER_BERT, weights).pairs.keys() == adapter.pairs.keys()
    # Files of classes that hold the encoder have its prefix.
    write_safetensors(
        tmp_path / "adapter_model.safetensors",
        {name.replace("model.encoder", "model.bert.encoder"): a for name, a in found.items()},
    )
    assert read_adapter(tmp_path, ONE_LAYER_BERT, weights).pairs.keys() == adapter.pairs.keys()


def test_rows_follow_those_of_the_base(tmp_path):
    """Llama files keep the features of q and k in another order in GGUF: 0, 2, 4 of a head of 8 are 0, 1, 2 there."""
    files = decoder_files()
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=2, targets=("q_proj", "v_proj")))
    write_peft(tmp_path, adapter, files.config, files.weights)
    found = tensors_of(tmp_path)
    name = "base_model.model.model.layers.0.self_attn.{}_proj.lora_B.weight"
    heads = adapter.pairs["q", 0].b.reshape(4, 8, 2)
    in_order = heads[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(32, 2)
    np.testing.assert_array_equal(found[name.format("q")], in_order)
    np.testing.assert_array_equal(found[name.format("v")], adapter.pairs["v", 0].b)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "phi3", "qwen3"])
def test_one_adapter_serves_both_files_and_both_formats(family, tmp_path):
    folder = directory(tmp_path / "hf", family)
    convert(folder, tmp_path / "model.gguf", "F32")
    files = open_decoder(folder)
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=3, alpha=2))
    write_peft(tmp_path / "run", adapter, files.config, files.weights)
    wanted = logits(folder, tmp_path / "run")
    assert np.abs(wanted - logits(folder)).max() > 0.05
    np.testing.assert_allclose(logits(tmp_path / "model.gguf", tmp_path / "run"), wanted, rtol=1e-4, atol=1e-4)

    # Out of the GGUF base, into a GGUF adapter, and back onto the directory.
    gguf = open_decoder(tmp_path / "model.gguf")
    again = read_adapter(tmp_path / "run", gguf.config, gguf.weights)
    write_gguf_adapter(tmp_path / "adapter.gguf", again, gguf.config, gguf.weights)
    for base in (folder, tmp_path / "model.gguf"):
        np.testing.assert_allclose(logits(base, tmp_path / "adapter.gguf"), wanted, rtol=1e-4, atol=1e-4)
    write_peft(tmp_path / "back", again, gguf.config, gguf.weights)
    assert tensors_of(tmp_path / "back").keys() == tensors_of(tmp_path / "run").keys()
    for name, array in tensors_of(tmp_path / "run").items():
        np.testing.assert_array_equal(tensors_of(tmp_path / "back")[name], array)


def test_gguf_adapters_have_the_keys_of_llama_cpp(tmp_path):
    files = decoder_files()
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=2, alpha=5, targets=("q_proj",)))
    write_gguf_adapter(tmp_path / "a.gguf", adapter, files.config, files.weights)
    with open_gguf(tmp_path / "a.gguf") as file:
        assert {key: file.metadata[key] for key in ("general.type", "adapter.type", "adapter.lora.alpha")} == {
            "general.type": "adapter",
            "adapter.type": "lora",
            "adapter.lora.alpha": 5.0,
        }
        assert file.metadata["general.architecture"] == "llama"
        # [r, in] and [out, r]; in the order of ggml [in, r] and [r, out].
        assert {name: t.shape for name, t in file.tensors.items()} == {
            "blk.0.attn_q.weight.lora_a": (2, 32),
            "blk.0.attn_q.weight.lora_b": (32, 2),
        }
    dora = random_adapter(files.config, files.weights, AdapterConfig(rank=2, is_dora=True))
    with pytest.raises(FormatError, match="no place for the magnitudes of DoRA; merge it"):
        write_gguf_adapter(tmp_path / "b.gguf", dora, files.config, files.weights)
    assert not (tmp_path / "b.gguf").exists()


@pytest.mark.parametrize("is_dora", [False, True])
def test_merged_models_say_what_adapters_say(is_dora, tmp_path):
    """Two adapters at once, over a directory and over packed weights."""
    folder = directory(tmp_path / "hf", "llama")
    convert(folder, tmp_path / "packed.gguf", "Q8_0")
    files = open_decoder(folder)
    for seed, targets in enumerate((("q_proj", "up_proj"), ("all-linear",))):
        adapter = random_adapter(
            files.config, files.weights, AdapterConfig(rank=2, alpha=1, targets=targets, is_dora=is_dora), seed
        )
        write_peft(tmp_path / str(seed), adapter, files.config, files.weights)
    adapters = [tmp_path / "0", tmp_path / "1"]
    for base in (folder, tmp_path / "packed.gguf"):
        before = base.read_bytes() if base.is_file() else b""
        write_merged(base, tmp_path / "merged.gguf", adapters, "F32")
        wanted = logits(base, *adapters)
        assert np.abs(wanted - logits(base, adapters[0])).max() > 0.05
        np.testing.assert_allclose(logits(tmp_path / "merged.gguf"), wanted, rtol=2e-4, atol=2e-4)
        assert (base.read_bytes() if base.is_file() else b"") == before


def test_merged_matrices_keep_their_type_unless_told(tmp_path):
    files = open_decoder(SHIPPED)
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=2, targets=("v_proj",)))
    write_peft(tmp_path, adapter, files.config, files.weights)
    for type, wanted in ((None, "Q8_0"), ("F16", "F16")):
        write_merged(SHIPPED, tmp_path / "m.gguf", [tmp_path], type)
        with open_gguf(SHIPPED) as old, open_gguf(tmp_path / "m.gguf") as new:
            assert new.tensors["blk.2.attn_v.weight"].type.name == wanted
            assert not np.array_equal(
                new.tensors["blk.2.attn_v.weight"].data(), old.tensors["blk.2.attn_v.weight"].data()
            )
            same = [n for n in old.tensors if not n.endswith("attn_v.weight")]
            assert all(np.array_equal(new.tensors[n].data(), old.tensors[n].data()) for n in same)


def test_wrong_adapters_are_refused_by_name(tmp_path):
    files = decoder_files()
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=2, targets=("q_proj",)))
    write_peft(tmp_path, adapter, files.config, files.weights)
    good, settings = tensors_of(tmp_path), json.loads((tmp_path / "adapter_config.json").read_text())
    base = "base_model.model.model.layers.0.self_attn.q_proj"

    def refused(match, tensors=good, **changes):
        write_safetensors(tmp_path / "adapter_model.safetensors", tensors)
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(FormatError, match=match):
            read_adapter(tmp_path, files.config, files.weights)

    moved = {name.replace("layers.0", "layers.9"): a for name, a in good.items()}
    refused(r"of another model: it has '.*layers\.9\.self_attn\.q_proj", moved)
    refused(
        r"changes blk.0.attn_q as \[32, 31\], in a test that is \[32, 32\]",
        good | {f"{base}.lora_A.weight": np.ones((2, 31), "f4")},
    )
    refused("do not fit each other: A is", good | {f"{base}.lora_B.weight": np.ones((32, 3), "f4")})
    refused("lora_B of 'model.layers.0.self_attn.q_proj' is missing", {f"{base}.lora_A.weight": np.ones((2, 32), "f4")})
    refused("lora_magnitude_vector of .* is missing", use_dora=True)
    norms = {f"{base}.lora_magnitude_vector": np.ones(32, "f4")}
    refused("lora_magnitude_vector of .* says that this is no DoRA", good | norms)
    short = {f"{base}.lora_magnitude_vector": np.ones(31, "f4")}
    refused("do not fit each other", good | short, use_dora=True)
    for strange in (np.ones((), "f4"), np.ones((0, 32), "f4"), np.ones((2, 32, 1), "f4")):
        refused("do not fit each other: A is", good | {f"{base}.lora_A.weight": strange})
    refused("alpha nan", lora_alpha=float("nan"))
    for strange in ({"(a+)+$": 4}, [1]):
        refused("rank_pattern must be an object of names of modules", rank_pattern=strange)
    refused("says that .* has rank 4", r=4)
    refused("type LORA are read, this is 'IA3'", peft_type="IA3")
    refused("bias='all' are not supported", bias="all")
    refused("modules_to_save", modules_to_save=["lm_head"])
    with pytest.raises(FormatError, match="there is no such adapter"):
        read_adapter(tmp_path / "nowhere", files.config, files.weights)
    with pytest.raises(FormatError, match="this is no adapter: there is no adapter_config"):
        read_adapter(tmp_path.parent, files.config, files.weights)
    write_gguf(tmp_path / "x.gguf", {"general.architecture": "qwen3", "adapter.type": "lora"}, {})
    with pytest.raises(FormatError, match="of another model: it is for qwen3, a test is llama"):
        read_adapter(tmp_path / "x.gguf", files.config, files.weights)
    with pytest.raises(FormatError, match="no LoRA adapter"):
        read_adapter(SHIPPED, files.config, files.weights)


def test_patterns_and_rslora_set_the_scale(tmp_path):
    files = decoder_files()
    adapter = random_adapter(files.config, files.weights, AdapterConfig(rank=4, alpha=4, targets=("q_proj", "k_proj")))
    write_peft(tmp_path, adapter, files.config, files.weights)
    place = tmp_path / "adapter_config.json"
    settings = json.loads(place.read_text())
    place.write_text(json.dumps(settings | {"alpha_pattern": {"k_proj": 12}, "use_rslora": True}))
    read = read_adapter(tmp_path, files.config, files.weights)
    assert (read.pairs["q", 0].scale, read.pairs["k", 0].scale) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rank": 0}, "rank must be 1 or more"),
        ({"alpha": -1.0}, "alpha must be a number above 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"targets": ()}, "no targets"),
    ],
)
def test_wrong_settings(settings, match):
    with pytest.raises(OpError, match=match):
        AdapterConfig(**settings)


def test_unknown_targets_and_ranks_beyond_the_matrix():
    files = decoder_files()
    with pytest.raises(OpError, match=r"called 'c_attn'; known: down_proj, gate_proj, k_proj, .*, all-linear"):
        adapter_sites(("c_attn",), files.config, files.weights)
    config = dataclasses.replace(AdapterConfig(), rank=17)
    with pytest.raises(OpError, match=r"rank 17 is more than blk.0.attn_k \[16, 32\]"):
        new_adapter(config, files.weights, adapter_sites(config.targets, files.config, files.weights))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (decoder_fields.FAMILIES["bloom"], [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        (decoder_fields.FAMILIES["gpt_bigcode_heads"], [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]),
        (decoder_fields.FAMILIES["codegen"], [0, 3, 6, 9, 2, 5, 8, 11, 1, 4, 7, 10]),
    ],
)
def test_rows_of_fused_queries_keys_and_values_are_found(fields, wanted):
    """The parts of adapters are as the weights of the family's directories are; one row for each part here."""
    order = row_orders(decoder_config_from_hf(fields), in_gguf=False)
    assert order("qkv", len(wanted)).tolist() == wanted
    assert order("o", 4) == slice(None)
