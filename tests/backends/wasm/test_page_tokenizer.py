"""The tokenizer of pages against the one that it was made of: the same ids, and the same text."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from page_runs import run_node
from tokenizers import Regex, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.models.page_tokenizer import javascript_pattern, page_tokenizer
from rlx.models.tokenizer import SpecialTokens, Tokenizer
from rlx.models.tokenizer_patterns import WORD_RULES, pre_tokenizer
from tokenizer_cases import (
    TEXTS,
    random_texts,
    sentencepiece_metadata,
    train_bytes,
    train_wordpiece,
)

_SCRIPT = """
import { Tokenizer } from "./tokenizer.js";
import { readFileSync } from "node:fs";
const { rules, texts } = JSON.parse(readFileSync("case.json")), tokenizer = new Tokenizer(rules);
console.log(JSON.stringify(texts.map((text) => {
  const ids = tokenizer.encode(text), stream = tokenizer.decoder();
  const written = ids.map((id) => stream.push(id)).join("") + stream.flush();
  return { ids, plain: tokenizer.encode(text, false), text: written };
})));
"""


def assert_same(tokenizer, folder, texts=None, has_text=True):
    """Ids with and without what is put around a text, and the text of the ids."""
    texts = [*TEXTS, *random_texts(300)] if texts is None else texts
    (folder / "tokenizer.js").write_text((resources.files("rlx.backends.wasm") / "web" / "tokenizer.js").read_text())
    (folder / "case.json").write_text(json.dumps({"rules": page_tokenizer(tokenizer), "texts": texts}))
    wrong = []
    for text, said in zip(texts, run_node(_SCRIPT, folder), strict=True):
        ids = tokenizer.encode(text)
        wanted = {"ids": ids, "plain": tokenizer.encode(text, add_special=False), "text": tokenizer.decode(ids)}
        wrong += [(text, key, wanted[key], said[key]) for key in wanted if said[key] != wanted[key]]
    assert [w for w in wrong if has_text or w[1] != "text"] == []


def with_frame(backend):
    """Start and end tokens, and tokens that are found in text."""
    backend.add_special_tokens(["<s>", "</s>", "<|special|>"])
    backend.add_tokens(["[UNK]"])
    pairs = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A", "</s>"], special_tokens=pairs)
    return Tokenizer(backend, SpecialTokens())


@pytest.mark.targets
@pytest.mark.parametrize("name", sorted(WORD_RULES))
def test_byte_pairs_by_every_rule_for_words(name, tmp_path):
    rule = WORD_RULES[name]
    backend = train_bytes(pre_tokenizer(rule), ignore_merges=rule.whole_words)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(backend, SpecialTokens()) if rule.nfc else with_frame(backend)
    assert_same(tokenizer, tmp_path)


@pytest.mark.targets
@pytest.mark.parametrize("spaced", [True, False])
def test_sentencepiece(spaced, tmp_path):
    path = tmp_path / "vocabulary.gguf"
    write_gguf(path, sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": spaced}), {})
    assert_same(Tokenizer.from_gguf(open_gguf(path)), tmp_path)


@pytest.mark.targets
@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece(lowercase, tmp_path):
    assert_same(Tokenizer(train_wordpiece(lowercase), SpecialTokens()), tmp_path, has_text=False)


def test_patterns_in_the_words_of_javascript():
    assert javascript_pattern(r"[^\r\n\p{L}]?\p{L}+") == r"[^\r\n\p{L}]?\p{L}+"
    assert javascript_pattern(r"[\s\p{P}]|\S") == r"[\p{White_Space}\p{P}]|\P{White_Space}"
    assert javascript_pattern(r"(?i:'LL|[a-z]x)|ll") == r"(?:'[lL][lL]|[a-z][xX])|ll"
    assert javascript_pattern(r"\!\-\<\$") == r"!\-<\$"
    with pytest.raises(FormatError, match="does not know the pattern"):
        javascript_pattern(r"\p{L}++")


def test_what_a_page_does_not_know_is_refused_by_name():
    unigram = Tokenizer(Backend(Unigram([("a", 0.0)], 0)), SpecialTokens())
    with pytest.raises(
        FormatError, match="a page does not know the model 'Unigram' of this tokenizer, so its ids would"
    ):
        page_tokenizer(unigram)
    backend = train_bytes(pre_tokenizers.Split(Regex("a"), "merged_with_next"))
    with pytest.raises(FormatError, match="the way to cut words 'Split'"):
        page_tokenizer(Tokenizer(backend, SpecialTokens()))
