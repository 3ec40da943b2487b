"""The tokenizer of a Hugging Face directory as metadata of a GGUF file.

Byte-level BPE becomes a `gpt2` vocabulary, BPE with byte fallback (SentencePiece) a `llama` one. How text is cut into
words is a name in the format; the name is found by trying all of them on texts that tell them apart, so that a rule
which has no name is refused and no token id changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.gguf import MetadataValue, TypedValue, ValueType
from rlx.models.tokenizer import Tokenizer
from rlx.models.tokenizer_gguf import TokenKind
from rlx.models.tokenizer_patterns import WORD_RULES, WordRule, normalizer, pre_tokenizer

# Contractions, digits, capitals, marks, spaces, lines, other scripts: what rules treat differently.
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog; SPHINX OF BLACK QUARTZ, JUDGE MY VOW: 0123456789",
    "I'm he'LL don't 'S 12345 1 22 333 4444 a1b2 x²",
    "  two  spaces\ttab\n\nlines \r\n  end   ",
    "camelCase HTTPServer ABCdef éÉ ñandú naïve e\u0301 \u212b",
    "你好，世界 こんにちは 안녕하세요 привет مرحبا 123你好",
    "!?... (a[b]{c}) == != <= #tag @user $5.00 50% a/b\\c `x` ~y|z^w_v",
    "\u3000 \u00a0 \u2028 \u200b emoji 😀👍🏽 ▁ ｡",
    "'s't're've'm'll'd 'S'T'RE ''' \"q\" --- /// \n/",
)


def tokenizer_metadata(folder: Path, vocab: int) -> dict[str, Any]:
    """The `tokenizer.*` keys of a file whose model has `vocab` tokens."""
    tokenizer = Tokenizer.from_directory(folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise FormatError(f"{folder}: convert: tokenizers of type {kind!r} cannot be written; byte-pair encodings can")
    tokens, kinds = _vocabulary(document, vocab)
    keys: dict[str, Any] = {"tokens": tokens, "token_type": np.array(kinds, np.int32)}
    listed = [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges", [])]
    merges = TypedValue(ValueType.ARRAY, ValueType.STRING, list[MetadataValue](listed))
    if model.get("byte_fallback"):
        keys |= {"model": "llama", "scores": _scores(tokens, listed), "add_space_prefix": _adds_space(tokenizer)}
    else:
        keys |= {"model": "gpt2", "pre": _word_rule(folder, tokenizer, document), "merges": merges}
    keys |= _roles(tokenizer)
    found = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    return found


def _vocabulary(document: dict[str, Any], vocab: int) -> tuple[list[str], list[int]]:
    """Tokens in order of id with their kinds; ids that the tokenizer leaves out are unused."""
    model, unknown = document["model"], document["model"].get("unk_token")
    by_id: dict[int, tuple[str, int]] = {}
    for token, id in model["vocab"].items():
        is_byte = model.get("byte_fallback") and len(token) == 6 and token.startswith("<0x")
        by_id[id] = (token, TokenKind.BYTE if is_byte else TokenKind.NORMAL)
    for added in document.get("added_tokens", []):
        kind = TokenKind.CONTROL if added.get("special") else TokenKind.USER_DEFINED
        by_id[added["id"]] = (added["content"], kind)
    if unknown in model["vocab"]:
        by_id[model["vocab"][unknown]] = (unknown, TokenKind.UNKNOWN)
    count = max([vocab, *(id + 1 for id in by_id)])
    if count > vocab:
        raise FormatError(f"convert: the tokenizer has {count} tokens, the model {vocab}")
    filled = [by_id.get(id, (f"[PAD{id}]", int(TokenKind.UNUSED))) for id in range(count)]
    return [token for token, _ in filled], [int(kind) for _, kind in filled]


def _scores(tokens: list[str], merges: list[str]) -> Any:
    """A better score for tokens that are merged earlier, which is all that scores decide."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        ranks.setdefault(left + right, rank)
    return np.array([-float(ranks[t]) if t in ranks else -1e6 for t in tokens], np.float32)


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether a text is read as if a space stood before it."""
    backend = tokenizer._backend
    text = backend.normalizer.normalize_str("a") if backend.normalizer is not None else "a"
    pieces = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer is not None else [(text, (0, 1))]
    return bool(pieces[0][0].startswith("\u2581"))


def _word_rule(folder: Path, tokenizer: Tokenizer, document: dict[str, Any]) -> str:
    """The name of the rule that cuts text as this tokenizer does."""
    wanted = [_cut(tokenizer._backend.normalizer, tokenizer._backend.pre_tokenizer, text) for text in _SAMPLES]
    whole = bool(document["model"].get("ignore_merges", False))
    for name, rule in WORD_RULES.items():
        if rule.whole_words == whole and [_cut_by(rule, text) for text in _SAMPLES] == wanted:
            return name
    raise FormatError(
        f"{folder}: convert: the way in which this tokenizer cuts words has no name in GGUF that is known here "
        f"({', '.join(sorted(WORD_RULES))})"
    )


def _cut_by(rule: WordRule, text: str) -> list[str]:
    return _cut(normalizer(rule), pre_tokenizer(rule), text)


def _cut(normal: Any, pre: Any, text: str) -> list[str]:
    cleaned = normal.normalize_str(text) if normal is not None else text
    return [piece for piece, _ in pre.pre_tokenize_str(cleaned)] if pre is not None else [cleaned]


def _roles(tokenizer: Tokenizer) -> dict[str, Any]:
    """Ids of the tokens with a role, and which of them are put around a text."""
    special, ends = tokenizer.special, list(tokenizer.special.eos_ids)
    roles = {"bos": special.bos_id, "unknown": special.unk_id, "padding": special.pad_id}
    roles |= {"eos": ends[0] if ends else None, "eot": ends[1] if len(ends) > 1 else None}
    around = tokenizer.encode("a")
    found: dict[str, Any] = {f"{role}_token_id": np.uint32(id) for role, id in roles.items() if id is not None}
    found["add_bos_token"] = bool(around) and around[0] == special.bos_id
    found["add_eos_token"] = bool(around) and around[-1] in ends
    return found
