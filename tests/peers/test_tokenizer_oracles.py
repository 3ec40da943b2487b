"""Token ids against transformers and llama.cpp, on vocabularies made on the spot and on the real models."""

import json
import unicodedata
import warnings

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from tokenizers import pre_tokenizers

from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.models.pull import locate
from rlx.models.tokenizer import Tokenizer
from rlx.models.tokenizer_patterns import WORD_RULES
from tokenizer_cases import (
    TEXTS,
    bytes_metadata,
    random_texts,
    sentencepiece_metadata,
    train_bytes,
    train_wordpiece,
    wordpiece_metadata,
)

pytestmark = pytest.mark.peers

ALL_TEXTS = TEXTS + random_texts(2000, seed=11)
# llama.cpp stops at a NUL, and its tables of letters are of another Unicode version than those of `tokenizers`.
KNOWN_TEXTS = [text for text in ALL_TEXTS if "\0" not in text and all(unicodedata.category(c) != "Cn" for c in text)]
TAME_TEXTS = random_texts(1000, seed=12, wild=False)
# What llama.cpp wants to see in a file before it looks at its tokenizer.
LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def pulled(name):
    try:
        return locate(name)
    except RlxError as error:
        pytest.skip(str(error))


def from_metadata(folder, metadata):
    write_gguf(folder / "m.gguf", {**LLAMA, **metadata}, {})
    return Tokenizer.from_gguf(open_gguf(folder / "m.gguf"))


def llama_cpp_ids(path, texts):
    llama_cpp = pytest.importorskip("llama_cpp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        found = [model.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
        model.close()
    return found


def agree(tokenizer, texts, wanted):
    for text, ids in zip(texts, wanted):
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("pre", sorted(WORD_RULES))
def test_llama_cpp_cuts_the_same_words(pre, tmp_path):
    oracle = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer = from_metadata(tmp_path, bytes_metadata(oracle, pre))
    agree(tokenizer, TAME_TEXTS, llama_cpp_ids(tmp_path / "m.gguf", TAME_TEXTS))


@pytest.mark.parametrize("prefix", [True, False])
def test_llama_cpp_sentencepiece(prefix, tmp_path):
    tokenizer = from_metadata(tmp_path, sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": prefix}))
    agree(tokenizer, KNOWN_TEXTS, llama_cpp_ids(tmp_path / "m.gguf", KNOWN_TEXTS))


def test_llama_cpp_wordpiece(tmp_path):
    metadata = {**wordpiece_metadata(train_wordpiece(True)), "tokenizer.ggml.bos_token_id": 2}
    tokenizer = from_metadata(tmp_path, metadata)
    agree(tokenizer, TAME_TEXTS, llama_cpp_ids(tmp_path / "m.gguf", TAME_TEXTS))


def byte_level_parts(metadata):
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    return {token: id for id, token in enumerate(tokens)}, merges


@pytest.mark.parametrize(("pre", "family"), [("gpt-2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")])
def test_transformers_byte_level(pre, family, tmp_path):
    import transformers

    oracle = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False))
    metadata = bytes_metadata(oracle, pre)
    vocabulary, merges = byte_level_parts(metadata)
    names = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "<|special|>")
    wanted = getattr(transformers, family)(vocab=vocabulary, merges=merges, **names)
    tokenizer = from_metadata(tmp_path, metadata)
    agree(tokenizer, ALL_TEXTS, [wanted.encode(text, add_special_tokens=False) for text in ALL_TEXTS])


def test_smollm2_against_llama_cpp():
    path = pulled("smollm2")
    agree(Tokenizer.from_gguf(open_gguf(path)), KNOWN_TEXTS, llama_cpp_ids(path, KNOWN_TEXTS))


def test_smollm2_against_transformers():
    """transformers reads the vocabulary of the file but not how it cuts digits, which is set here by hand."""
    import transformers

    path = pulled("smollm2")
    wanted = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    wanted.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    agree(tokenizer, ALL_TEXTS, [wanted.encode(text, add_special_tokens=False) for text in ALL_TEXTS])
    messages = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Yes?"}]
    assert tokenizer.render_chat(messages) == wanted.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_minilm_against_transformers():
    import transformers

    path = pulled("minilm")
    wanted = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer = Tokenizer.from_directory(path)
    assert tokenizer.encode_batch(ALL_TEXTS) == [wanted.encode(text) for text in ALL_TEXTS]
    cut = [wanted.encode(text, truncation=True, max_length=10) for text in ALL_TEXTS]
    assert tokenizer.encode_batch(ALL_TEXTS, max_length=10) == cut


@pytest.mark.parametrize("lower", [True, False])
def test_bert_without_tokenizer_json(lower, tmp_path):
    import transformers

    vocabulary = train_wordpiece(lower).get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n", encoding="utf-8")
    settings = {"do_lower_case": lower, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    wanted = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower)
    tokenizer, texts = Tokenizer.from_directory(tmp_path), [*ALL_TEXTS, "[MASK] x [SEP]"]
    assert tokenizer.encode_batch(texts) == [wanted.encode(text) for text in texts]
    for text in texts:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == wanted.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(("kind", "family"), [("gpt2", "GPT2Tokenizer"), ("roberta", "RobertaTokenizer")])
def test_byte_level_without_tokenizer_json(kind, family, tmp_path):
    import transformers

    oracle = json.loads(train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False)).to_str())["model"]
    vocabulary = oracle["vocab"]
    for token in ["<|endoftext|>"] if kind == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]:
        vocabulary[token] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in oracle["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    paths = {name: str(tmp_path / file) for name, file in (("vocab", "vocab.json"), ("merges", "merges.txt"))}
    wanted = getattr(transformers, family)(**paths)
    tokenizer, texts = Tokenizer.from_directory(tmp_path), [*ALL_TEXTS, "a <mask> b</s>", "<|endoftext|>x"]
    assert tokenizer.encode_batch(texts) == [wanted.encode(text) for text in texts]
