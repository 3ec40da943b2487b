"""Tokenizers built from GGUF metadata against the `tokenizers` objects the metadata was taken from."""

import pytest

pytest.importorskip("tokenizers")

import numpy as np
from tokenizers import Regex, pre_tokenizers

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.models.tokenizer import Tokenizer
from rlx.models.tokenizer_patterns import WORD_RULES
from tokenizer_cases import (
    SPACE,
    TEXTS,
    bytes_metadata,
    random_texts,
    sentencepiece_metadata,
    sentencepiece_vocabulary,
    train_bytes,
    train_wordpiece,
    wordpiece_metadata,
)

ALL_TEXTS = TEXTS + random_texts(300)


def from_metadata(folder, metadata):
    write_gguf(folder / "m.gguf", metadata, {})
    return Tokenizer.from_gguf(open_gguf(folder / "m.gguf"))


def split_then_bytes(*patterns):
    """How tokenizer.json files of such models spell their pre-tokeniser."""
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The patterns as the tokenizer.json files of Llama 3, Qwen2 and GPT-4o have them, each written out in full.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
PUBLISHED = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": split_then_bytes(LLAMA3),
    "qwen2": split_then_bytes(QWEN2),
}


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_ids(pre, tmp_path):
    oracle = train_bytes(PUBLISHED[pre], ignore_merges=pre == "llama-bpe")
    if pre == "qwen2":
        from tokenizers import normalizers

        oracle.normalizer = normalizers.NFC()
    tokenizer = from_metadata(tmp_path, bytes_metadata(oracle, pre))
    assert tokenizer.vocab_size == oracle.get_vocab_size()
    for text in ALL_TEXTS:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text).ids, text
        assert tokenizer.decode(ids, skip_special=False) == oracle.decode(ids, skip_special_tokens=False)
        if pre != "qwen2":
            assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("pre", sorted(WORD_RULES))
def test_every_way_of_cutting_keeps_the_text(pre, tmp_path):
    tokenizer = from_metadata(tmp_path, bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), pre))
    for text in ALL_TEXTS:
        if not WORD_RULES[pre].nfc:
            assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_ways_of_cutting_that_differ(tmp_path):
    oracle = train_bytes(PUBLISHED["gpt-2"])
    cuts = {}
    for pre in WORD_RULES:
        tokenizer = from_metadata(tmp_path, bytes_metadata(oracle, pre))
        pieces = tokenizer._backend.pre_tokenizer.pre_tokenize_str("HelloWorld's 12345 (x)\n\n  y")
        cuts[pre] = [piece for piece, _ in pieces]
    assert "12345" not in cuts["smollm"] and "Ġ12345" in cuts["gpt-2"] and {"123", "45"} <= set(cuts["llama-bpe"])
    assert "HelloWorld" in cuts["qwen2"] and {"Hello", "World's"} <= set(cuts["gpt-4o"])
    assert {"Hello", "World"} <= set(cuts["tekken"])
    assert len({tuple(cut) for cut in cuts.values()}) >= 7


@pytest.mark.parametrize(
    ("name", "like"),
    [("pixtral", "llama-bpe"), ("trillion", "gpt-2"), ("hunyuan", "stablelm2"), ("minerva-7b", "smollm")],
)
def test_names_that_stand_for_the_rule_of_another(name, like):
    assert WORD_RULES[name] == WORD_RULES[like]


def test_unknown_ways_of_cutting_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"'klingon', whose way of cutting words is not known.*llama-bpe"):
        from_metadata(tmp_path, bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), "klingon"))


def test_start_and_end_tokens(tmp_path):
    oracle = train_bytes(PUBLISHED["gpt-2"])
    roles = {"tokenizer.ggml.bos_token_id": 5, "tokenizer.ggml.eos_token_id": 0}
    plain = from_metadata(tmp_path, bytes_metadata(oracle, "gpt-2", **roles))
    assert plain.encode("a") == oracle.encode("a").ids
    assert (plain.bos_id, plain.eos_ids, plain.pad_id) == (5, (0,), None)
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    framed = from_metadata(tmp_path, bytes_metadata(oracle, "gpt-2", **roles, **both))
    assert framed.encode("a") == [5, *oracle.encode("a").ids, 0]
    assert framed.encode("a", add_special=False) == oracle.encode("a").ids
    assert framed.encode("", add_special=True) == [5, 0]
    # Llama 3 files do not say that the start token belongs there.
    assert from_metadata(tmp_path, bytes_metadata(oracle, "llama-bpe", **roles)).encode("a")[0] == 5


def test_control_tokens_are_found_in_text_and_left_out_of_it(tmp_path):
    tokenizer = from_metadata(tmp_path, bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), "gpt-2"))
    special = tokenizer.id_of("<|special|>")
    ids = tokenizer.encode("a<|special|>b")
    assert special in ids
    assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)) == ("ab", "a<|special|>b")


def test_user_defined_tokens_stay_in_text(tmp_path):
    metadata = bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), "gpt-2")
    metadata["tokenizer.ggml.tokens"].append("<tool>")
    metadata["tokenizer.ggml.token_type"].append(4)
    tokenizer = from_metadata(tmp_path, metadata)
    ids = tokenizer.encode("a<tool>b")
    assert tokenizer.id_of("<tool>") in ids and tokenizer.decode(ids) == "a<tool>b"


def reference_sentencepiece(text, tokens, scores):
    """SentencePiece's own rule: merge the neighbours whose joint token has the best score, the leftmost of equals."""
    rank = dict(zip(tokens, scores))
    normal = set(tokens[259:])
    pieces = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        best = None
        for place in range(len(pieces) - 1):
            joined = pieces[place] + pieces[place + 1]
            if joined in normal and (best is None or rank[joined] > rank[pieces[best] + pieces[best + 1]]):
                best = place
        if best is None:
            break
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    ids = {token: id for id, token in enumerate(tokens)}
    found = []
    for piece in pieces:
        found += [ids[piece]] if piece in normal else [3 + value for value in piece.encode()]
    return found


def test_sentencepiece_ids(tmp_path):
    tokens, scores, _ = sentencepiece_vocabulary()
    tokenizer = from_metadata(tmp_path, sentencepiece_metadata())
    for text in ALL_TEXTS:
        if "<s>" in text or "<0x" in text:
            continue
        ids = tokenizer.encode(text)
        assert ids == [1, *reference_sentencepiece(text, tokens, scores)], text
        assert tokenizer.decode(ids) == text


def test_sentencepiece_without_the_space_in_front(tmp_path):
    tokenizer = from_metadata(tmp_path, sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.token(tokenizer.encode("The")[1])[0] == "T"
    for text in ALL_TEXTS:
        if "<s>" not in text and "<0x" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece_ids(lowercase, tmp_path):
    oracle = train_wordpiece(lowercase)
    tokenizer = from_metadata(tmp_path, wordpiece_metadata(oracle))
    cls, sep = oracle.token_to_id("[CLS]"), oracle.token_to_id("[SEP]")
    assert (tokenizer.special.cls_id, tokenizer.special.sep_id, tokenizer.pad_id) == (cls, sep, 0)
    for text in ALL_TEXTS:
        assert tokenizer.encode(text) == [cls, *oracle.encode(text).ids, sep], text
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == oracle.decode(ids)


def test_unigram_ids(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -2.0), ("a", -3.0), ("b", -3.5), ("ab", -4.0)]
    pieces += [(SPACE + "a", -4.5), ("ba", -5.0), (SPACE + "ab", -7.9)]
    oracle = Backend(models.Unigram(pieces, unk_id=2))
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces],
        "tokenizer.ggml.token_type": [3, 3, 2, *[1] * 7],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }
    tokenizer = from_metadata(tmp_path, metadata)
    for text in ["ab", "a b", "abba abab", "aab  b", "xa"]:
        assert tokenizer.encode(text) == [*oracle.encode(text).ids, 1], text
    assert tokenizer.decode(tokenizer.encode("ab ba")) == "ab ba"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; known are gpt2, llama, t5, bert"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries for"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000, but the file has"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab' in tokenizer.ggml.merges is not two tokens"),
        ({"tokenizer.ggml.merges": ["zzz qqq"]}, "the merge 'zzz' \\+ 'qqq' names a token that is not"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "token 'a' occurs twice"),
        ({"tokenizer.ggml.tokens": np.array([1, 2])}, "'tokenizer.ggml.tokens' must be a list of strings"),
    ],
)
def test_metadata_that_makes_no_tokenizer(change, message, tmp_path):
    metadata = {**bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), "gpt-2"), **change}
    with pytest.raises(FormatError, match=message):
        from_metadata(tmp_path, metadata)


def test_missing_metadata(tmp_path):
    with pytest.raises(FormatError, match=r"'tokenizer\.ggml\.model' is missing"):
        from_metadata(tmp_path, {"general.architecture": "llama"})
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(FormatError, match=r"'tokenizer\.ggml\.scores' is missing"):
        from_metadata(tmp_path, metadata)


def test_a_vocabulary_that_the_package_refuses(tmp_path):
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.scores": [0.0, -1.0],
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(b"rubbish that is no table", np.uint8),
    }
    with pytest.raises(FormatError, match="tokenizers cannot use its 't5' vocabulary"):
        from_metadata(tmp_path, metadata)


def test_tokens_that_end_an_answer(tmp_path):
    metadata = bytes_metadata(train_bytes(PUBLISHED["gpt-2"]), "gpt-2")
    size = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += ["<|im_end|>", "<|eot_id|>", "<|end|>"]
    metadata["tokenizer.ggml.token_type"] += [3, 3, 1]
    metadata |= {"tokenizer.ggml.eos_token_id": size + 1, "tokenizer.ggml.padding_token_id": np.uint32(2**32 - 1)}
    tokenizer = from_metadata(tmp_path, metadata)
    # A plain token is text, whatever its name.
    assert tokenizer.eos_ids == (size + 1, size) and tokenizer.pad_id is None
