"""The bytes that each token of a vocabulary stands for, as its decoder would write them in the middle of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import RlxError


class TokenBytes:
    """The bytes of every token, None for those that stand for no text; also all of them in a row, with where those of
    each token begin and how many they are."""

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        self.tokens = tokens
        self.lengths = np.array([len(text or b"") for text in tokens], np.int64)
        self.begins = np.cumsum(self.lengths) - self.lengths
        self.joined = np.frombuffer(b"".join(text or b"" for text in tokens), np.uint8)

    def with_texts(self, texts: Mapping[int, bytes]) -> TokenBytes:
        """The same but for some tokens."""
        return TokenBytes([texts.get(token, text) for token, text in enumerate(self.tokens)])

    def of(self, token: int) -> bytes:
        """The bytes of one token, none for one without text."""
        return (self.tokens[token] if token < len(self.tokens) else None) or b""


def token_bytes(text: str) -> TokenBytes:
    """The bytes of the tokens of a tokenizer, given as the `tokenizers` package writes it."""
    document = json.loads(text)
    model, vocabulary = document["model"], document["model"]["vocab"]
    # A unigram model has pairs of tokens and scores, in the order of their numbers.
    ids = vocabulary if isinstance(vocabulary, dict) else {token: id for id, (token, _) in enumerate(vocabulary)}
    added = document["added_tokens"]
    found: list[bytes | None] = [None] * (1 + max([*ids.values(), *(token["id"] for token in added)], default=-1))
    spell = _spelling(_decoders(document["decoder"]), bool(model.get("byte_fallback")))
    for token, id in ids.items():
        found[id] = spell(token)
    for token in added:
        found[token["id"]] = None if token["special"] else token["content"].encode()
    return TokenBytes(found)


def _decoders(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [one for inner in part["decoders"] for one in _decoders(inner)] if part["type"] == "Sequence" else [part]


def _spelling(decoders: Sequence[dict[str, Any]], has_byte_tokens: bool) -> Callable[[str], bytes]:
    """How a token of the vocabulary is written; refused where that depends on what stands beside it."""
    kinds = {decoder["type"] for decoder in decoders}
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda token: b"".join(letters.get(c, c.encode()) for c in token)
    if kinds - {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        raise RlxError(
            f"a schema needs a vocabulary of bytes or of pieces, and not one with {', '.join(sorted(kinds))}"
        )
    space = next((d["replacement"] for d in decoders if d["type"] == "Metaspace"), "\u2581")

    def spell(token: str) -> bytes:
        if (has_byte_tokens or "ByteFallback" in kinds) and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace(space, " ").encode()

    return spell


def _byte_letters() -> dict[str, bytes]:
    """The letter that stands for each byte in vocabularies of bytes: itself where it can be seen, else one of those
    from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(b): bytes([b]) for b in seen} | {chr(0x100 + i): bytes([b]) for i, b in enumerate(hidden)}
