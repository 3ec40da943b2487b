"""`rlx convert`: a file says the same as the directory it was made from."""

import json

import numpy as np
import pytest

import rlx
from models.random_directories import COMMON, FAMILIES, random_directory
from rlx.cli import main
from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, quantize_file, write_gguf
from rlx.models.convert import convert
from rlx.models.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOKENS = np.random.default_rng(0).integers(0, 260, 36).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stay(family, tmp_path):
    folder = random_directory(tmp_path / "hf", FAMILIES[family], template=TEMPLATE)
    convert(folder, tmp_path / "m.gguf", "F32")
    wanted, found = (rlx.load(place, device="reference") for place in (folder, tmp_path / "m.gguf"))
    expected = wanted.logits(TOKENS)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found.logits(TOKENS), expected, atol=2e-4 * np.abs(expected).max())
    assert found.tokenizer.chat_template == TEMPLATE
    assert found.config.context == (40 if family == "mistral" else wanted.config.context)


def bpe_directory(folder, **changes):
    """A tokenizer of words with merges, trained on a few lines."""
    tokenizers = pytest.importorskip("tokenizers")
    random_directory(folder, COMMON | {"model_type": "llama", "vocab_size": 400})
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=changes.get("ignore_merges", False)))
    made.normalizer = changes.get("normalizer")
    made.pre_tokenizer = changes.get("pre_tokenizer") or tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["the quick brown fox don't jump over 12345 lazy dogs"] * 9, trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


TEXTS = ["the quick brown fox", "don't jump 12345!", "  spaces\n\nand ünïcode 你好 <|im_end|>", "", "e\u0301"]


@pytest.mark.parametrize("rule", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3"])
def test_token_ids_stay(rule, tmp_path):
    from rlx.models.tokenizer_patterns import WORD_RULES, normalizer, pre_tokenizer

    chosen = WORD_RULES[rule]
    folder = bpe_directory(
        tmp_path / "hf",
        normalizer=normalizer(chosen),
        pre_tokenizer=pre_tokenizer(chosen),
        ignore_merges=chosen.whole_words,
    )
    convert(folder, tmp_path / "m.gguf", "Q8_0")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert WORD_RULES[file.metadata["tokenizer.ggml.pre"]].splits == chosen.splits
        after = Tokenizer.from_gguf(file)
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 400
    before = Tokenizer.from_directory(folder)
    for text in TEXTS:
        assert after.encode(text) == before.encode(text)
        assert after.decode(after.encode(text)) == before.decode(before.encode(text))
    assert after.bos_id == before.bos_id and set(before.eos_ids) <= set(after.eos_ids)


def test_gains_of_yarn_stay(tmp_path):
    weights = {"mscale": 1.0, "mscale_all_dim": 0.5}
    fields = FAMILIES["yarn"] | {"rope_scaling": FAMILIES["yarn"]["rope_scaling"] | weights}
    folder = random_directory(tmp_path / "hf", fields)
    convert(folder, tmp_path / "m.gguf", "F32")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["qwen3.rope.scaling.attn_factor"] < 1
    expected, found = (rlx.load(p, device="reference").logits(TOKENS) for p in (folder, tmp_path / "m.gguf"))
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


def test_sentencepiece_ids_stay(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    folder = random_directory(tmp_path / "hf", COMMON | {"model_type": "llama", "vocab_size": 330})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *"\u2581theabdo"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("d", "o"), ("\u2581", "b"), ("\u2581b", "a")]
    tokens += ["".join(pair) for pair in merges]
    vocab = {token: id for id, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    )
    convert(folder, tmp_path / "m.gguf", "F16")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["tokenizer.ggml.model"] == "llama"
        after = Tokenizer.from_gguf(file)
    before = Tokenizer.from_directory(folder)
    for text in ("the bad", "do the thing", "é you", "a b  c", ""):
        assert after.encode(text) == before.encode(text), text


def test_mixes_spend_bits_where_they_matter(tmp_path):
    roles = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = [f"blk.{i}.{role}.weight" for i in range(8) for role in roles] + ["token_embd.weight", "output.weight"]
    arrays = {name: np.random.default_rng(0).normal(size=(1, 256)).astype("f4") for name in names}
    arrays |= {f"blk.{i}.attn_norm.weight": np.ones(256, "f4") for i in range(8)}
    metadata = {"general.architecture": "llama", "llama.block_count": np.uint32(8)}
    write_gguf(tmp_path / "f32.gguf", metadata, arrays)
    types = quantize_file(tmp_path / "f32.gguf", tmp_path / "q.gguf", "q4_k_m")
    with open_gguf(tmp_path / "q.gguf") as file:
        kinds = {name: t.type.name for name, t in file.tensors.items()}
        assert file.metadata["general.file_type"] == 15
    assert [i for i in range(8) if kinds[f"blk.{i}.attn_v.weight"] == "Q6_K"] == [0, 3, 6, 7]
    assert [i for i in range(8) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [0, 3, 6, 7]
    assert kinds["output.weight"] == "Q6_K" and kinds["token_embd.weight"] == kinds["blk.1.attn_q.weight"] == "Q4_K"
    assert types == {"Q4_K": 8 * 5 + 8 + 1, "Q6_K": 9, "F32": 8}
    del arrays["output.weight"]
    write_gguf(tmp_path / "tied.gguf", metadata, arrays)
    quantize_file(tmp_path / "tied.gguf", tmp_path / "q.gguf", "Q5_K_M")
    with open_gguf(tmp_path / "q.gguf") as file:
        assert file.tensors["token_embd.weight"].type.name == "Q6_K" and file.metadata["general.file_type"] == 17


def test_the_command(tmp_path, capsys):
    folder = random_directory(tmp_path / "hf", FAMILIES["llama"])
    assert main(["convert", str(folder), str(tmp_path / "m.gguf"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tensors"] == {"F16": 3 * 7 + 2, "F32": 7} and document["bytes"] > 1000
    assert main(["convert", str(folder), str(tmp_path / "m.gguf")]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(folder), str(tmp_path / "m.gguf"), "--force", "--type", "Q4_K_M"]) == 0
    assert main(["convert", str(folder), str(tmp_path / "n.gguf"), "--type", "IQ2_S"]) == 1
    assert "can be read but not written" in capsys.readouterr().err and not (tmp_path / "n.gguf").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {
                "model_type": "qwen3_moe",
                "mlp_only_layers": [1],
                **dict.fromkeys(("num_experts", "num_experts_per_tok"), 2),
            }
            | {"moe_intermediate_size": 16},
            "cannot say that moe is",
        ),
        ({"model_type": "qwen2", "hidden_act": "relu"}, "cannot say that activation is"),
    ],
)
def test_models_that_the_format_cannot_describe_are_refused(change, message, tmp_path):
    folder = random_directory(tmp_path / "hf", COMMON | change)
    with pytest.raises(FormatError, match=message):
        convert(folder, tmp_path / "m.gguf", "F32")
    assert not (tmp_path / "m.gguf").exists()


def test_directories_that_cannot_be_converted(tmp_path):
    with pytest.raises(FormatError, match=r"a Hugging Face directory with a config\.json is needed"):
        convert(tmp_path, tmp_path / "m.gguf")
    tokenizers = pytest.importorskip("tokenizers")
    folder = bpe_directory(
        tmp_path / "hf",
        pre_tokenizer=tokenizers.pre_tokenizers.Sequence(
            [tokenizers.pre_tokenizers.Split("q", "isolated"), tokenizers.pre_tokenizers.ByteLevel(False)]
        ),
    )
    with pytest.raises(FormatError, match="has no name in GGUF that is known here"):
        convert(folder, tmp_path / "m.gguf")
