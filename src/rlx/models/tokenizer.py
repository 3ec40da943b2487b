"""Text to token ids and back, by the `tokenizers` package (`pip install 'rlx[llm]'`).

tokenizer = Tokenizer.from_directory("path/to/hf_dir")      # or Tokenizer.from_gguf(open_gguf(path))
ids = tokenizer.encode("Hello")
decoder = tokenizer.stream_decoder()
text = "".join(decoder.push(i) for i in ids) + decoder.flush()
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlx.errors import FormatError, RlxError

if TYPE_CHECKING:
    import tokenizers

    from rlx.formats.gguf import GgufFile
    from rlx.models.chat_template import ChatTemplate
    from rlx.models.token_bytes import TokenBytes

# What decoders put in the place of bytes that are not, or not yet, a character.
_REPLACEMENT = "\ufffd"
# Tokens held back at most while a character is incomplete; a character has at most four bytes.
_MAX_HELD = 64
# A JSON file beside a tokenizer is small; a larger one is not what it claims to be.
_MAX_CONFIG_BYTES = 64 << 20


class SpecialTokens(NamedTuple):
    """The ids of tokens with a role; None where the model has none. `eos_ids` are all that end an answer."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    unk_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None


def require_tokenizers() -> None:
    """Say what to install when the `tokenizers` package is missing."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise RlxError("tokenizers is needed to turn text into tokens; pip install 'rlx[llm]'") from None


class EncodedPair(NamedTuple):
    """The tokens of a text, or of two that belong together: ids, to which text each belongs, where it stands in that
    text, and whether it stands for no part of it."""

    ids: list[int]
    types: list[int]
    places: list[tuple[int, int]]
    is_special: list[bool]


class Tokenizer:
    """A model's vocabulary and rules. Encoding the same text always gives the same ids; threads may share one."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens,
        chat_template: str | None = None,
        max_length: int | None = None,
        named: Mapping[str, str] | None = None,
        tool_template: str | None = None,
    ) -> None:
        """`named` are tokens that chat templates may ask for, such as eos_token; without them they are told the first
        of each role. Conversations with tools have the `tool_template`, where there is one."""
        # Padding and truncation saved in a file would hide in every answer; here they are the caller's choice.
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.special = special
        self.chat_template, self.tool_template = chat_template, tool_template
        self._named = dict(named or {})
        self.max_length = max_length
        # How many ids are known; a model may have more than there are tokens, which stand for no text.
        self.ids = self.vocab_size
        self._template: ChatTemplate | None = None
        self._marked: dict[tuple[int, ...], TokenBytes] = {}
        self._alike: weakref.WeakSet[Tokenizer] = weakref.WeakSet()

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a Hugging Face directory: `tokenizer.json` and the files beside it."""
        require_tokenizers()
        import tokenizers

        from rlx.models.tokenizer_parts import tokenizer_of_parts

        folder = Path(path)
        file = folder / "tokenizer.json"
        config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
        if file.is_file():
            try:
                backend = tokenizers.Tokenizer.from_file(str(file))
            except Exception as error:  # the package raises bare Exception for whatever it cannot read
                raise FormatError(f"{file}: tokenizers cannot read it: {error}") from None
        else:
            made = tokenizer_of_parts(folder, config, _read_json(folder / "config.json").get("model_type"))
            if made is None:
                raise FormatError(
                    f"{folder}: there is no tokenizer.json; save the tokenizer again with a fast tokenizer"
                )
            backend, roles = made
            config = {**roles, **config}
        # Older directories say beside the sizes of the model what ends an answer.
        generation = _read_json(folder / "generation_config.json") or _read_json(folder / "config.json")
        templates = _templates_of_config(folder, config)
        return cls(
            backend,
            _special_of_config(backend, config, generation),
            templates.get("default"),
            _max_length_of_config(config),
            {role: name for role in config if role.endswith("_token") and (name := _content(config[role])) is not None},
            templates.get("tool_use"),
        )

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """The tokenizer that a GGUF file carries in its metadata."""
        require_tokenizers()
        from rlx.models.tokenizer_gguf import build

        template = file.metadata.get("tokenizer.chat_template")
        return cls(*build(file), template if isinstance(template, str) else None)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def bos_id(self) -> int | None:
        return self.special.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.special.eos_ids

    @property
    def pad_id(self) -> int | None:
        return self.special.pad_id

    @property
    def unk_id(self) -> int | None:
        return self.special.unk_id

    def has_tokens_of(self, other: Tokenizer) -> bool:
        """Whether both have the same tokens with the same ids."""
        if self is not other and other not in self._alike:
            if self._backend.get_vocab() != other._backend.get_vocab():
                return False
            self._alike.add(other)
        return True

    def id_of(self, token: str) -> int | None:
        """The id of a token, None if the vocabulary does not have it."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def token(self, id: int) -> str | None:
        """The token with this id as the vocabulary spells it."""
        return self._backend.id_to_token(id)

    def encode(self, text: str, add_special: bool = True, max_length: int | None = None) -> list[int]:
        """The ids of `text`. `add_special` puts the model's own start and end tokens around it; `max_length` cuts the
        text so that everything fits."""
        return self.encode_batch([text], add_special, max_length)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special: bool = True, max_length: int | None = None
    ) -> list[list[int]]:
        """The ids of each text; several texts are encoded in parallel."""
        for text in texts:
            if not isinstance(text, str):
                raise RlxError(f"encode: text must be str, got {type(text).__name__}")
        encodings = self._backend.encode_batch_fast([_valid(t) for t in texts], add_special_tokens=add_special)
        found = [encoding.ids for encoding in encodings]
        if max_length is None:
            return found
        return [i if len(i) <= max_length else self._cut(t, add_special, max_length) for i, t in zip(found, texts)]

    def encode_pair(self, text: str, second: str | None = None, max_length: int | None = None) -> EncodedPair:
        """The tokens of a text, or of a pair of texts, as the model reads them. Where they do not fit, the longer text
        is cut, and both once they are equally long."""
        for given in (text, second):
            if not isinstance(given, str | None) or text is None:
                raise RlxError(f"encode_pair: text must be str, got {type(given).__name__}")
        one = self._backend.encode(_valid(text), add_special_tokens=False)
        two = None if second is None else self._backend.encode(_valid(second), add_special_tokens=False)
        if max_length is not None:
            extra = self._backend.num_special_tokens_to_add(two is not None)
            if max_length < extra:
                raise RlxError(f"encode: max_length must leave room for {extra} special tokens, got {max_length}")
            kept = _shares(len(one.ids), 0 if two is None else len(two.ids), max_length - extra)
            one.truncate(kept[0])
            if two is not None:
                two.truncate(kept[1])
        found = self._backend.post_process(one, two, True)
        marks = [bool(mark) for mark in found.special_tokens_mask]
        return EncodedPair(list(found.ids), list(found.type_ids), list(found.offsets), marks)

    def _cut(self, text: str, add_special: bool, max_length: int) -> list[int]:
        """As many ids of the text as fit, with the special tokens around them."""
        extra = self._backend.num_special_tokens_to_add(False) if add_special else 0
        if max_length < extra:
            raise RlxError(f"encode: max_length must leave room for {extra} special tokens, got {max_length}")
        encoding = self._backend.encode(_valid(text), add_special_tokens=False)
        encoding.truncate(max_length - extra)
        return list(self._backend.post_process(encoding, None, add_special).ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no character become U+FFFD, and ids without a token nothing."""
        wanted = [int(i) for i in ids]
        for i in wanted:
            if not 0 <= i < self.ids:
                raise RlxError(f"decode: token ids of this model are 0 to {self.ids - 1}, got {i}")
        return str(self._backend.decode(wanted, skip_special_tokens=skip_special))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes that each token stands for."""
        from rlx.models.token_bytes import token_bytes  # for answers of a form only

        return token_bytes(self._backend.to_str())

    def bytes_with(self, marks: Sequence[str]) -> TokenBytes:
        """The same, with the text of these tokens even where they are special."""
        silent = {id: mark.encode() for mark in marks if (id := self.id_of(mark)) is not None}
        silent = {id: text for id, text in silent.items() if not self.token_bytes.of(id)}
        key = tuple(silent)
        if silent and key not in self._marked:
            self._marked[key] = self.token_bytes.with_texts(silent)
        return self._marked[key] if silent else self.token_bytes

    def stream_decoder(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder that takes one id at a time."""
        return StreamDecoder(self, skip_special)

    def render_chat(
        self, messages: Sequence[dict[str, object]], add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """The prompt text of a conversation, by the model's own chat template."""
        has_tools = extra.get("tools") is not None and self.tool_template is not None
        source = self.tool_template if has_tools else self.chat_template
        if source is None:
            raise RlxError(
                "this model has no chat template, so that it can only continue a text (generate); for chats take a "
                "model that was trained for them, such as smollm2, or set tokenizer.chat_template"
            )
        from rlx.models.chat_template import ChatTemplate

        if self._template is None or self._template.source != source:
            roles = {"bos_token": self.bos_id, "eos_token": next(iter(self.eos_ids), None)}
            names = {role: "" if id is None else self.token(id) or "" for role, id in roles.items()}
            self._template = ChatTemplate(source, **names | self._named)
        return self._template.render(messages, add_generation_prompt, **extra)


class StreamDecoder:
    """Text from ids that come one by one. Only whole characters come out; what is incomplete waits for more ids.

    The pieces and a last `flush()` join to `decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        # What a token means depends on its neighbours, so new ids are decoded after those of the last piece.
        self._context: list[int] = []
        self._context_text = ""
        self._has_begun = False
        self._held: list[int] = []

    def push(self, id: int) -> str:
        """Take an id; the text that is certain now, often one token's, sometimes none."""
        self._held.append(id)
        text = self._text()
        unsure = text.endswith(_REPLACEMENT) or not text.startswith(self._context_text)
        if unsure and len(self._held) < _MAX_HELD:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """What is still held back, at the end of the answer."""
        return self._release(self._text()) if self._held else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._context + self._held, self._skip_special)

    def _release(self, text: str) -> str:
        piece, held = text[len(self._context_text) :], self._held
        self._held = []
        if piece:
            self._context, self._has_begun = held, True
            self._context_text = self._tokenizer.decode(held, self._skip_special)
        elif not self._has_begun:
            # A space that decoders take away from the beginning of a text: the next one is not at its beginning.
            self._context += held
        # Later tokens without text, such as skipped special ones, change nothing for what follows.
        return piece


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens are kept of two texts that share a room: all of the shorter one while there is room.

    >>> _shares(3, 9, 8), _shares(9, 9, 7), _shares(9, 0, 4)
    ((3, 5), (3, 4), (4, 0))
    """
    if first + second <= room:
        return first, second
    short, long = sorted((first, second))
    if short > room // 2:
        short = room // 2
    kept = (short, min(long, room - short))
    return kept if first <= second else (kept[1], kept[0])


def _valid(text: str) -> str:
    """Lone surrogates, which are no characters, as U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() and _has_surrogates(text) else text


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _read_json(path: Path) -> dict[str, object]:
    """A small JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise FormatError(f"{path}: a configuration of {path.stat().st_size} bytes is too large to be one")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: a JSON object is needed, got {type(value).__name__}")
    return value


def _special_of_config(
    backend: tokenizers.Tokenizer, config: dict[str, object], generation: dict[str, object]
) -> SpecialTokens:
    def find(role: str) -> int | None:
        name = _content(config.get(role))
        return None if name is None else backend.token_to_id(name)

    ends = generation.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    # The one that has the name first: it is what a template, a converted file or an example for training ends with.
    found = [i for i in (find("eos_token"), *listed) if isinstance(i, int) and not isinstance(i, bool)]
    return SpecialTokens(
        bos_id=find("bos_token"),
        eos_ids=tuple(dict.fromkeys(found)),
        pad_id=find("pad_token"),
        unk_id=find("unk_token"),
        cls_id=find("cls_token"),
        sep_id=find("sep_token"),
        mask_id=find("mask_token"),
    )


def _content(entry: object) -> str | None:
    """The text of a token, which is written as such or as an object with settings."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else None


def _templates_of_config(folder: Path, config: dict[str, object]) -> dict[str, str]:
    """Chat templates by name: files of their own, or in the configuration, where there may be several with names."""
    entry = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    listed = entry if isinstance(entry, list) else [{"name": "default", "template": entry}]
    found = {
        str(e.get("name")): template
        for e in listed
        if isinstance(e, dict) and isinstance(template := e.get("template"), str)
    }
    more = (folder / "additional_chat_templates").glob("*.jinja")
    files = {"default": folder / "chat_template.jinja", **{file.stem: file for file in more}}
    return found | {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}


def _max_length_of_config(config: dict[str, object]) -> int | None:
    """The longest input the model was made for; files write a huge number for "no limit"."""
    value = config.get("model_max_length")
    return int(value) if isinstance(value, int | float) and 0 < value < 1 << 31 else None
