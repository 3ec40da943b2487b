"""Tokenizers from GGUF metadata: byte-level BPE (`gpt2`), SentencePiece BPE (`llama`), unigram (`t5`) and WordPiece
(`bert`).

A file lists the tokens in order of id, with a kind for each and, depending on the model, scores or merges.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.models.tokenizer import SpecialTokens
from rlx.models.tokenizer_patterns import normalizer, pre_tokenizer, word_rule

if TYPE_CHECKING:
    import tokenizers

    from rlx.formats.gguf import GgufFile

_SPACE = "\u2581"  # SentencePiece's mark for a space
# Tokens that end an answer, in files that name only one of them as end token.
_END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<｜end▁of▁sentence｜>",
    }
)


class TokenKind(enum.IntEnum):
    """The kinds in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build(file: GgufFile) -> tuple[tokenizers.Tokenizer, SpecialTokens]:
    """The tokenizer described by the metadata, ready to encode, and the ids of its tokens with a role."""
    model = file.metadata.text("tokenizer.ggml.model")
    if model not in _BUILDERS:
        raise FormatError(
            f"{file.path}: tokenizer.ggml.model is {model!r}; known are {', '.join(_BUILDERS)}. "
            "A Hugging Face directory with tokenizer.json will work"
        )
    vocabulary = _Vocabulary(file)
    special = vocabulary.special()
    try:
        backend = _BUILDERS[model](vocabulary)
        _add_marked_tokens(backend, vocabulary)
    except FormatError:
        raise
    except Exception as error:  # the package raises bare Exception for whatever it cannot use
        raise FormatError(f"{file.path}: tokenizers cannot use its {model!r} vocabulary: {error}") from None
    return backend, special


class _Vocabulary:
    """Tokens, their kinds and the settings of the file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.tokens = file.metadata.texts("tokenizer.ggml.tokens")
        self.kinds: list[int] = [TokenKind.NORMAL] * len(self.tokens)
        if "tokenizer.ggml.token_type" in file.metadata:
            self.kinds = self._numbers("token_type").astype(np.int64).tolist()

    def _numbers(self, name: str) -> npt.NDArray[np.generic]:
        """One number per token."""
        values = self.file.metadata.numbers(f"tokenizer.ggml.{name}")
        if len(values) != len(self.tokens):
            raise FormatError(
                f"{self.file.path}: tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens"
            )
        return values

    def scores(self) -> list[float]:
        values: list[float] = self._numbers("scores").astype(np.float64).tolist()
        return values

    def ids(self) -> dict[str, int]:
        """The id of every token."""
        found = dict(zip(self.tokens, range(len(self.tokens))))
        if len(found) != len(self.tokens):
            twice = next(token for id, token in enumerate(self.tokens) if found[token] != id)
            raise FormatError(f"{self.file.path}: token {twice!r} occurs twice in tokenizer.ggml.tokens")
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.file.metadata.flag(f"tokenizer.ggml.{name}", default)

    def role(self, *names: str) -> int | None:
        """The id of the token with the first of these roles that the file gives."""
        for key in (f"tokenizer.ggml.{name}_token_id" for name in names):
            if key not in self.file.metadata:
                continue
            id = self.file.metadata.integer(key)
            # Some writers put -1, also as a large unsigned number, for "none".
            if id in (-1, 2**32 - 1):
                continue
            if not 0 <= id < len(self.tokens):
                raise FormatError(f"{self.file.path}: {key} is {id}, but the file has {len(self.tokens)} tokens")
            return id
        return None

    def special(self) -> SpecialTokens:
        marked = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
        named = [i for i, token in enumerate(self.tokens) if token in _END_NAMES and self.kinds[i] in marked]
        ends = [self.role("eos"), self.role("eot"), self.role("eom"), *named]
        return SpecialTokens(
            bos_id=self.role("bos"),
            eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
            pad_id=self.role("padding"),
            unk_id=self.role("unknown"),
            cls_id=self.role("cls", "bos"),
            sep_id=self.role("seperator", "separator", "eos"),
            mask_id=self.role("mask"),
        )

    def unknown(self) -> str | None:
        id = self.role("unknown")
        return None if id is None else self.tokens[id]


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """BPE over bytes written as printable characters."""
    from tokenizers import Tokenizer, decoders, models

    file = vocabulary.file
    rule = word_rule(file.metadata.text("tokenizer.ggml.pre", "default"))
    merges = _merges(vocabulary)
    ids = vocabulary.ids()
    try:
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=rule.whole_words)
    except Exception as error:  # the package has no type for it
        raise _wrong_merge(file, merges, ids) or error from None
    backend = Tokenizer(model)
    backend.normalizer = normalizer(rule)
    backend.pre_tokenizer = pre_tokenizer(rule)
    backend.decoder = decoders.ByteLevel()
    _frame(backend, vocabulary, add_bos=rule.add_bos, add_eos=False)
    return backend


def _merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    file = vocabulary.file
    lines = file.metadata.texts("tokenizer.ggml.merges")
    # Tokens may hold spaces in some vocabularies; the separator is the first space after the first character.
    merges = [(line[:at], line[at + 1 :]) for line in lines if (at := line.find(" ", 1)) > 0]
    if len(merges) != len(lines):
        wrong = next(line for line in lines if line.find(" ", 1) < 0)
        raise FormatError(f"{file.path}: {wrong!r} in tokenizer.ggml.merges is not two tokens with a space between")
    return merges


def _wrong_merge(file: GgufFile, merges: list[tuple[str, str]], ids: dict[str, int]) -> FormatError | None:
    """What is wrong with the merges, if one names an unknown token."""
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            return FormatError(
                f"{file.path}: the merge {left!r} + {right!r} names a token that is not in the vocabulary"
            )
    return None


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """BPE whose merges follow from the scores of the tokens; unknown characters are spelled in bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids(),
            merges=_merges_of_scores(vocabulary),
            unk_token=vocabulary.unknown(),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = vocabulary.flag("add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(_SPACE)] if spaced else []), normalizers.Replace(" ", _SPACE)]
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
    _frame(backend, vocabulary, add_bos=True, add_eos=False)
    return backend


def _merges_of_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to put a token together from two others; the token with the better score first."""
    ids, scores = vocabulary.ids(), vocabulary.scores()
    found: list[tuple[float, int, int, str, str]] = []
    for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.kinds):
        if kind not in (TokenKind.NORMAL, TokenKind.USER_DEFINED):
            continue
        pairs = [
            (ids[token[:at]], ids[token[at:]], token[:at], token[at:])
            for at in range(1, len(token))
            if token[:at] in ids and token[at:] in ids
        ]
        found += [(score, len(left), len(right), left, right) for _, _, left, right in sorted(pairs)]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _unigram(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """The most likely way to cut the text, by the log probabilities of the tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    metadata = vocabulary.file.metadata
    pairs = list(zip(vocabulary.tokens, vocabulary.scores()))
    backend = Tokenizer(models.Unigram(pairs, unk_id=vocabulary.role("unknown"), byte_fallback=False))
    steps: list[normalizers.Normalizer] = []
    if "tokenizer.ggml.precompiled_charsmap" in metadata:
        charsmap = metadata.numbers("tokenizer.ggml.precompiled_charsmap").astype(np.uint8).tobytes()
        steps.append(normalizers.Precompiled(charsmap))
    if vocabulary.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), _SPACE)]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme=scheme)
    _frame(backend, vocabulary, add_bos=False, add_eos=True)
    return backend


def _wordpiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """Longest match from the left. The file marks the start of words; WordPiece marks what is not a start."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    def spelled(token: str, kind: int) -> str:
        if kind != TokenKind.NORMAL or (token.startswith("[") and token.endswith("]")):
            return token
        return token.removeprefix(_SPACE) if token.startswith(_SPACE) else "##" + token

    tokens = vocabulary.tokens = [spelled(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.kinds)]
    backend = Tokenizer(models.WordPiece(vocabulary.ids(), unk_token=vocabulary.unknown() or "[UNK]"))
    # The file does not say whether text is made lower case; a vocabulary without a capital can mean nothing else.
    marked = (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    words = (t for t, kind in zip(tokens, vocabulary.kinds) if kind in marked and not t.startswith("["))
    backend.normalizer = normalizers.BertNormalizer(lowercase=not any(word != word.lower() for word in words))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _frame(backend, vocabulary, add_bos=True, add_eos=True)
    return backend


def _frame(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, *, add_bos: bool, add_eos: bool) -> None:
    """Put the start and end tokens around a text, where the file (or its kind of model) wants them."""
    from tokenizers import processors

    starts = [vocabulary.role("bos", "cls")] if vocabulary.flag("add_bos_token", add_bos) else []
    ends = [vocabulary.role("eos", "seperator", "separator")] if vocabulary.flag("add_eos_token", add_eos) else []
    around = {vocabulary.tokens[id]: id for id in (*starts, *ends) if id is not None}
    if not around:
        return
    if any(":" in token or token.startswith("$") for token in around):
        raise FormatError(f"{vocabulary.file.path}: start or end tokens {list(around)} cannot be put around a text")
    before, after = ([vocabulary.tokens[id] for id in part if id is not None] for part in (starts, ends))
    template = [*before, "$A", *after]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(around.items()))


def _add_marked_tokens(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    """Control tokens are found in text before anything else and left out of decoded text; user-defined ones stay."""
    from tokenizers import AddedToken

    # Plain numbers: there are as many comparisons as tokens.
    controls, defines = {int(TokenKind.CONTROL), int(TokenKind.UNKNOWN)}, int(TokenKind.USER_DEFINED)
    pairs = list(zip(vocabulary.tokens, vocabulary.kinds))
    control = [token for token, kind in pairs if kind in controls and token]
    defined = [token for token, kind in pairs if kind == defines and token]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in defined])


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram, "bert": _wordpiece}
