"""Tokenizers of Hugging Face folders, and text that comes token by token."""

import json

import pytest

pytest.importorskip("tokenizers")

from tokenizers import pre_tokenizers, processors

from rlx.errors import FormatError, RlxError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.models.tokenizer import SpecialTokens, Tokenizer
from tokenizer_cases import TEXTS, random_texts, sentencepiece_metadata, train_bytes, train_wordpiece

ALL_TEXTS = TEXTS + random_texts(200, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT-like folder whose tokenizer.json has padding and truncation switched on."""
    backend = train_wordpiece(True)
    cls, sep = backend.token_to_id("[CLS]"), backend.token_to_id("[SEP]")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    backend.enable_padding(length=64, pad_id=0)
    backend.enable_truncation(8)
    path = tmp_path_factory.mktemp("bert")
    backend.save(str(path / "tokenizer.json"))
    config = {"cls_token": {"content": "[CLS]"}, "sep_token": "[SEP]", "pad_token": "[PAD]", "model_max_length": 512}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "special_tokens_map.json").write_text(json.dumps({"mask_token": "[MASK]", "unk_token": "[UNK]"}))
    return path


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes")
    train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False)).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|special|>"}))
    return path


def test_a_folder(folder):
    tokenizer = Tokenizer.from_directory(folder)
    special = tokenizer.special
    assert [special.pad_id, special.unk_id, special.cls_id, special.sep_id, special.mask_id] == [0, 1, 2, 3, 4]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.max_length) == (None, (), 512)
    oracle = train_wordpiece(True)
    for text, ids in zip(ALL_TEXTS, tokenizer.encode_batch(ALL_TEXTS)):
        assert ids == [2, *oracle.encode(text).ids, 3] == tokenizer.encode(text)
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("limit", [2, 3, 5, 10])
def test_truncation_keeps_the_tokens_around(folder, limit):
    tokenizer = Tokenizer.from_directory(folder)
    oracle = train_wordpiece(True)
    for text in ALL_TEXTS:
        assert tokenizer.encode(text, max_length=limit) == [2, *oracle.encode(text).ids[: limit - 2], 3]
        assert tokenizer.encode(text, False, max_length=limit) == oracle.encode(text).ids[:limit]
    with pytest.raises(RlxError, match="room for 2 special tokens, got 1"):
        tokenizer.encode("a b c", max_length=1)


def test_special_tokens_of_generation_configs(byte_level):
    (byte_level / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert Tokenizer.from_directory(byte_level).eos_ids == (0, 7, 9)
    (byte_level / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert Tokenizer.from_directory(byte_level).eos_ids == (0, 7)
    (byte_level / "generation_config.json").unlink()
    (byte_level / "config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert Tokenizer.from_directory(byte_level).eos_ids == (0, 5, 6)
    (byte_level / "config.json").unlink()
    assert Tokenizer.from_directory(byte_level).eos_ids == (0,)


def test_chat_templates_of_folders(byte_level, tmp_path):
    (tmp_path / "tokenizer.json").write_text((byte_level / "tokenizer.json").read_text())
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RlxError, match="no chat template"):
        Tokenizer.from_directory(tmp_path).render_chat(messages)
    config = {"eos_token": "<|special|>", "chat_template": "{{ messages[0].content }}{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_directory(tmp_path).render_chat(messages) == "hi<|special|>"
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.from_directory(tmp_path).render_chat(messages) == "plain"
    assert Tokenizer.from_directory(tmp_path).render_chat(messages, tools=[{"name": "f"}]) == "tool"
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "beside"}))
    assert Tokenizer.from_directory(tmp_path).render_chat(messages) == "beside"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with {{ tools[0].name }}")
    assert Tokenizer.from_directory(tmp_path).render_chat(messages, tools=[{"name": "f"}]) == "with f"
    (tmp_path / "chat_template.jinja").write_text("own file {{ extra }}")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.render_chat(messages, extra=3) == "own file 3"
    tokenizer.chat_template = "changed"
    assert tokenizer.render_chat(messages) == "changed"


def test_templates_are_told_the_tokens_that_have_names(byte_level):
    """What ends an answer may be other tokens, which `generation_config.json` lists."""
    names = {"eos_token": "<|special|>", "pad_token": {"content": "a"}, "image_token": "b", "add_bos_token": True}
    template = "{{ eos_token }}{{ pad_token }}{{ image_token }}{{ bos_token }}{{ add_bos_token is defined }}"
    (byte_level / "tokenizer_config.json").write_text(json.dumps(names | {"chat_template": template}))
    (byte_level / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    assert Tokenizer.from_directory(byte_level).render_chat([]) == "<|special|>abFalse"


def test_folders_that_have_no_tokenizer(tmp_path):
    with pytest.raises(FormatError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="tokenizers cannot read it"):
        Tokenizer.from_directory(tmp_path)
    train_wordpiece(True).save(str(tmp_path / "tokenizer.json"))
    for text, message in [("[", "not JSON"), ("[]", "JSON object is needed, got list"), ("[" * 100_000, "not JSON")]:
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            Tokenizer.from_directory(tmp_path)


def test_wrong_arguments(byte_level):
    tokenizer = Tokenizer.from_directory(byte_level)
    with pytest.raises(RlxError, match="text must be str, got bytes"):
        tokenizer.encode(b"a")
    for wrong in (-1, tokenizer.vocab_size, 10**12):
        with pytest.raises(RlxError, match=rf"ids of this model are 0 to {tokenizer.vocab_size - 1}, got {wrong}"):
            tokenizer.decode([wrong])


def test_lone_surrogates_become_replacement_characters(byte_level):
    tokenizer = Tokenizer.from_directory(byte_level)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def tokenizers_to_stream(byte_level, folder, tmp_path):
    write_gguf(tmp_path / "m.gguf", sentencepiece_metadata(), {})
    return {
        "bytes": Tokenizer.from_directory(byte_level),
        "sentencepiece": Tokenizer.from_gguf(open_gguf(tmp_path / "m.gguf")),
        "wordpiece": Tokenizer.from_directory(folder),
    }


def test_streams_give_the_text_in_whole_characters(byte_level, folder, tmp_path):
    for name, tokenizer in tokenizers_to_stream(byte_level, folder, tmp_path).items():
        for text in ALL_TEXTS:
            ids = tokenizer.encode(text)
            decoder = tokenizer.stream_decoder()
            pieces = [decoder.push(id) for id in ids]
            whole = tokenizer.decode(ids)
            assert "".join(pieces) + decoder.flush() == whole, (name, text)
            if "\ufffd" not in whole:
                assert not any("\ufffd" in piece for piece in pieces)


def test_streams_begin_with_as_many_spaces_as_the_text():
    """Decoders of SentencePiece take one space away, which is a token without text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.BPE({"<s>": 0, "\u2581": 1, "\u2581a": 2, "b": 3}, []))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(backend, SpecialTokens(bos_id=0))
    for ids in ([1, 2, 3], [1, 1, 1, 2], [0, 1, 2, 2], [1, 0, 2], [0, 0, 2, 1, 1, 2], [1], [1, 1], [2, 1, 2]):
        decoder = tokenizer.stream_decoder()
        assert "".join(decoder.push(id) for id in ids) + decoder.flush() == tokenizer.decode(ids)


def test_streams_come_early(byte_level):
    tokenizer = Tokenizer.from_directory(byte_level)
    decoder = tokenizer.stream_decoder()
    ids = tokenizer.encode("The fox 🙂 jumps")
    pieces = [decoder.push(id) for id in ids]
    assert pieces[0] != "" and "🙂" in "".join(pieces) and decoder.flush() == ""
    # A character of several tokens comes with the last of them.
    smile = tokenizer.encode("🪐", add_special=False)
    assert len(smile) > 1
    assert [decoder.push(id) for id in smile] == [""] * (len(smile) - 1) + ["🪐"]


def test_streams_of_bytes_that_are_no_characters(byte_level):
    tokenizer = Tokenizer.from_directory(byte_level)
    half = tokenizer.encode("🪐", add_special=False)[:-1]
    decoder = tokenizer.stream_decoder()
    assert [decoder.push(id) for id in half] == [""] * len(half)
    assert decoder.flush() == tokenizer.decode(half) and decoder.flush() == ""
    # Endless rubbish is let out in the end, so that nothing grows without bound.
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(half[0]) for _ in range(300)]
    assert any(pieces)


def test_streams_skip_special_tokens(byte_level):
    tokenizer = Tokenizer.from_directory(byte_level)
    ids = tokenizer.encode("a<|special|> b")
    decoder = tokenizer.stream_decoder()
    assert "".join(decoder.push(id) for id in ids) == "a b"
    decoder = tokenizer.stream_decoder(skip_special=False)
    assert "".join(decoder.push(id) for id in ids) == "a<|special|> b"


def test_bert_has_a_list_of_words(tmp_path):
    """As directories had before tokenizer.json."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "world", "!"]
    (tmp_path / "vocab.txt").write_text("\r\n".join(words) + "\r\n")
    with pytest.raises(FormatError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "added_tokens.json").write_text('{"<new>": 9}')
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("Hellos [MASK] w\u00f6rld <new>! x") == [2, 5, 6, 4, 7, 9, 8, 1, 3]
    assert tokenizer.decode([2, 5, 6, 7, 3]) == "hellos world"
    assert (tokenizer.pad_id, tokenizer.special.cls_id, tokenizer.special.mask_id) == (0, 2, 4)
    (tmp_path / "added_tokens.json").write_text('{"<new>": 11}')
    with pytest.raises(FormatError, match="the id 11 of '<new>' does not follow"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "vocab.txt").write_text("hello\n")
    with pytest.raises(FormatError, match=r"has the tokens \[UNK\], \[CLS\] and \[SEP\]"):
        Tokenizer.from_directory(tmp_path)


def test_gpt2_has_words_and_merges(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2TokenizerFast"}')
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<|endoftext|>": 4}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("ab a<|endoftext|>") == [2, 3, 0, 4] and tokenizer.eos_ids == (4,)
    (tmp_path / "merges.txt").write_text("a c\n")
    with pytest.raises(FormatError, match=r"cannot use vocab\.json and merges\.txt"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(FormatError, match="a JSON object of tokens with their ids"):
        Tokenizer.from_directory(tmp_path)
