"""Tokenizers as the small documents that a page reads (`backends/wasm/web/tokenizer.js`).

    {"vocab", "added", "normalizers", "words", "model", "before", "after", "decoders"}

What comes in is the JSON of the `tokenizers` package. A step that the page does not know would give other ids, so it is
refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.errors import FormatError

if TYPE_CHECKING:
    from rlx.models.tokenizer import Tokenizer

# A JSON value.
Json = Any

_BEHAVIORS = {"Isolated": "isolated", "Removed": "removed"}
# In patterns of JavaScript that know Unicode, only these may follow a backslash.
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")
_CLASSES = frozenset("pPdDwWbBnrtfv0uxk123456789")
_SPACES = {"s": r"\p{White_Space}", "S": r"\P{White_Space}"}


def page_tokenizer(tokenizer: Tokenizer) -> dict[str, Json]:
    """The document of a tokenizer."""
    given = json.loads(tokenizer._backend.to_str())
    added = given["added_tokens"]
    tokens = _tokens(given["model"], added)
    normalizers = [step for part in _each(given["normalizer"], "normalizers") for step in _normalizer(part)]
    before, after = _frame(given["post_processor"], tokens)
    return {
        "vocab": tokens,
        "added": [_added(token, bool(normalizers)) for token in added],
        "normalizers": normalizers,
        "words": [_words(part) for part in _each(given["pre_tokenizer"], "pretokenizers")],
        "model": _model(given["model"]),
        "before": before,
        "after": after,
        "decoders": [_decoder(part) for part in _each(given["decoder"], "decoders")],
    }


def _refused(what: str, value: object) -> FormatError:
    return FormatError(f"export: a page does not know {what} {value!r} of this tokenizer, so its ids would be wrong")


def _tokens(model: Mapping[str, Json], added: Sequence[Mapping[str, Json]]) -> list[str]:
    """All tokens in order of their ids; numbers without a token are empty."""
    if not isinstance(model.get("vocab"), dict):
        raise _refused("the model", model["type"])
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    tokens = [""] * (1 + max(ids.values(), default=-1))
    for token, id in ids.items():
        tokens[id] = token
    return tokens


def _added(token: Mapping[str, Json], has_normalizer: bool) -> list[Json]:
    if token["single_word"] or (token["normalized"] and has_normalizer):
        raise _refused("the way to find the added token", token["content"])
    return [token["id"], int(token["special"]), int(token["lstrip"]), int(token["rstrip"])]


def _each(part: Mapping[str, Json] | None, inside: str) -> Iterator[Mapping[str, Json]]:
    """The steps of a part, of which a sequence has several."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part[inside]:
            yield from _each(step, inside)
    else:
        yield part


def _pattern(pattern: Mapping[str, str]) -> str:
    return re.escape(pattern["String"]) if "String" in pattern else javascript_pattern(pattern["Regex"])


def _normalizer(part: Mapping[str, Json]) -> list[list[Json]]:
    match part["type"]:
        case "NFC" | "NFD" | "NFKC" | "NFKD":
            return [["unicode", part["type"]]]
        case "Lowercase":
            return [["lowercase"]]
        case "Prepend":
            return [["prepend", part["prepend"]]]
        case "Replace" if "String" in part["pattern"]:
            return [["replace", part["pattern"]["String"], part["content"]]]
        case "BertNormalizer":
            strips = part["lowercase"] if part["strip_accents"] is None else part["strip_accents"]
            return [["bert", part["clean_text"], part["handle_chinese_chars"], strips, part["lowercase"]]]
    raise _refused("the normalizer", part["type"])


def _words(part: Mapping[str, Json]) -> list[Json]:
    match part["type"]:
        case "ByteLevel":
            return ["bytes", part["use_regex"], part["add_prefix_space"]]
        case "Digits":
            return ["split", r"\p{N}" if part["individual_digits"] else r"\p{N}+", "isolated", False]
        case "Split" if part["behavior"] in _BEHAVIORS:
            return ["split", _pattern(part["pattern"]), _BEHAVIORS[part["behavior"]], part["invert"]]
        case "Metaspace":
            return ["metaspace", part["replacement"], part["prepend_scheme"], part.get("split", True)]
        case "BertPreTokenizer":
            return ["bert"]
    raise _refused("the way to cut words", part["type"])


def _model(model: Mapping[str, Json]) -> dict[str, Json]:
    ids = model["vocab"]
    unknown = ids.get(model.get("unk_token"))
    if model["type"] == "WordPiece":
        return {
            "type": "wordpiece",
            "unknown": unknown,
            "prefix": model["continuing_subword_prefix"],
            "longest": model["max_input_chars_per_word"],
        }
    if model["type"] != "BPE" or model["dropout"] or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise _refused("the model", model["type"])
    pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
    return {
        "type": "bpe",
        "unknown": unknown,
        "fuses": model["fuse_unk"],
        "spells": model["byte_fallback"],
        "wholeWords": model.get("ignore_merges", False),
        "merges": [ids[token] for pair in pairs for token in pair],
    }


def _frame(part: Mapping[str, Json] | None, tokens: Sequence[str]) -> tuple[list[int], list[int]]:
    """The ids that are put before and after a text."""
    before: list[int] = []
    after: list[int] = []
    for step in _each(part, "processors"):
        match step["type"]:
            case "ByteLevel":
                pass
            case "TemplateProcessing":
                side = before
                for piece in step["single"]:
                    if "Sequence" in piece:
                        side = after
                    else:
                        side += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            case "BertProcessing" | "RobertaProcessing":
                before.append(step["cls"][1])
                after.append(step["sep"][1])
            case _:
                raise _refused("the frame", step["type"])
    return before, after


def _decoder(part: Mapping[str, Json]) -> list[Json]:
    match part["type"]:
        case "ByteLevel":
            return ["bytes"]
        case "Replace" if "String" in part["pattern"]:
            return ["replace", part["pattern"]["String"], part["content"]]
        case "ByteFallback":
            return ["spelled"]
        case "Fuse":
            return ["fuse"]
        case "Strip" if part["stop"] == 0:
            return ["strip", part["content"], part["start"]]
        case "Metaspace":
            return ["metaspace", part["replacement"], part["prepend_scheme"]]
        case "WordPiece":
            return ["wordpiece", part["prefix"]]
    raise _refused("the decoder", part["type"])


def javascript_pattern(pattern: str) -> str:
    r"""A pattern of `tokenizers` as JavaScript writes it, for the flag `u`.

    >>> javascript_pattern(r"(?i:'s|'d)|\s+(?!\S)")
    "(?:'[sS]|'[dD])|\\p{White_Space}+(?!\\P{White_Space})"
    """
    # Repetitions that give nothing back, which JavaScript does not have; inside of brackets a + is a sign.
    if re.search(r"(?<!\\)[?*+]\+", re.sub(r"\[(?:\\.|[^\]\\])*\]", "[]", pattern)):
        raise _refused("the pattern", pattern)
    out: list[str] = []
    at, depth, ignoring, in_class = 0, 0, -1, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            following = pattern[at + 1]
            known = following in _SYNTAX or following in _CLASSES
            out.append(_SPACES.get(following, char + following if known else following))
            at += 2
            if following in "pP" and at < len(pattern) and pattern[at] == "{":
                end = pattern.index("}", at) + 1
                out.append(pattern[at:end])
                at = end
            continue
        if not in_class and pattern.startswith("(?i:", at):
            ignoring, depth = depth, depth + 1
            out.append("(?:")
            at += 4
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            ignoring = -1 if depth == ignoring else ignoring
        if not in_class and ignoring >= 0 and char.isalpha():
            char = f"[{char.lower()}{char.upper()}]"
        out.append(char)
        at += 1
    return "".join(out)
