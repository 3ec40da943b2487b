"""Tokenizers of older directories, which have no `tokenizer.json`: `vocab.txt` of the BERT family, and `vocab.json`
with `merges.txt` of GPT-2 and RoBERTa."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import FormatError

if TYPE_CHECKING:
    import tokenizers

Builder = Callable[[Path, Mapping[str, object]], "tokenizers.Tokenizer"]


def tokenizer_of_parts(
    folder: Path, settings: Mapping[str, object], model_type: object
) -> tuple[tokenizers.Tokenizer, dict[str, str]] | None:
    """The tokenizer, and its tokens with a role by their names, of a kind that is known; None where it is not.

    The kind is the `tokenizer_class` of the settings, or the one of the model.
    """
    named = settings.get("tokenizer_class")
    kind = named.removesuffix("Fast").removesuffix("Tokenizer").lower() if isinstance(named, str) else str(model_type)
    if kind not in _KINDS:
        return None
    files, build, roles = _KINDS[kind]
    if not all((folder / name).is_file() for name in files):
        return None
    backend = build(folder, settings)
    _add_more(backend, folder / "added_tokens.json")
    backend.add_special_tokens([token for token in roles.values() if backend.token_to_id(token) is not None])
    return backend, roles


def _add_more(backend: tokenizers.Tokenizer, file: Path) -> None:
    """Tokens that were added to a vocabulary, whose ids follow those of the others."""
    more = _json_object(file) if file.is_file() else {}
    backend.add_tokens(sorted(more, key=lambda token: more[token]))
    wrong = next((token for token, id in more.items() if backend.token_to_id(token) != id), None)
    if wrong is not None:
        raise FormatError(f"{file}: the id {more[wrong]} of {wrong!r} does not follow those of the vocabulary")


def _bert(folder: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokens = [line.rstrip("\r") for line in (lines[:-1] if not lines[-1] else lines)]
    ids = {token: id for id, token in enumerate(tokens)}
    if not {"[UNK]", "[CLS]", "[SEP]"} <= ids.keys():
        raise FormatError(f"{folder / 'vocab.txt'}: a vocabulary of BERT has the tokens [UNK], [CLS] and [SEP]")
    accents = settings.get("strip_accents")
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return backend


def _gpt2(folder: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    ids, merges = _json_object(folder / "vocab.json"), []
    for line in (folder / "merges.txt").read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#version"):
            left, _, right = line.rstrip("\r").partition(" ")
            merges.append((left, right))
    try:
        backend = Tokenizer(models.BPE(ids, merges))
    except Exception as error:  # the package raises bare Exception for whatever it cannot use
        raise FormatError(f"{folder}: tokenizers cannot use vocab.json and merges.txt: {error}") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def _roberta(folder: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer:
    from tokenizers import processors

    backend = _gpt2(folder, settings)
    ids = {token: backend.token_to_id(token) for token in ("<s>", "</s>")}
    if None in ids.values():
        raise FormatError(f"{folder / 'vocab.json'}: a vocabulary of RoBERTa has the tokens <s> and </s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=list(ids.items())
    )
    return backend


def _json_object(path: Path) -> dict[str, int]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(id, int) for id in value.values()):
        raise FormatError(f"{path}: a JSON object of tokens with their ids is needed")
    return value


_BERT_ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_GPT2_ROLES = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_ROBERTA_ROLES = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
# The files that a kind needs, what makes it of them, and its tokens with a role.
_KINDS: dict[str, tuple[tuple[str, ...], Builder, dict[str, str]]] = {
    **dict.fromkeys(("bert", "distilbert", "electra"), (("vocab.txt",), _bert, _BERT_ROLES)),
    "gpt2": (("vocab.json", "merges.txt"), _gpt2, _GPT2_ROLES),
    "roberta": (("vocab.json", "merges.txt"), _roberta, _ROBERTA_ROLES),
}
