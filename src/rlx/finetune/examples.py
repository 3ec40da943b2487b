"""What a model is tuned on: plain text, or chats of which only the answers count.

    batches = text_batches("book.txt", tokenizer, batch=4, length=128, vocab=49152)
    batches = chat_batches("chats.jsonl", tokenizer, batch=4, length=256)
    batches(0)          # {"tokens": i32 [4, 255], "rows": i32 [4, 60], "labels": i32 [4, 60]}

A line of a .jsonl file is an object with `messages` ([{"role": .., "content": ..}, ..]), which the model's own template
turns into text, or with `prompt` and `completion`, which are taken as they are. `labels` are the tokens that follow
those at `rows`, or all tokens where there are no rows; -100 is the label of what does not count. A batch is a function
of the step; see `rlx.train.token_batches`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, RlxError
from rlx.train import ArrayBatches, TokenBatches

if TYPE_CHECKING:
    from rlx.models.tokenizer import Tokenizer

__all__ = ["IGNORED", "ExampleBatches", "chat_batches", "example_batches", "text_batches"]

# The label of what does not count.
IGNORED = -100

Ids = list[int]
I32 = npt.NDArray[np.int32]


class ExampleBatches:
    """`batches(step)` is {"tokens": i32[B, S], "labels": i32[B, S]}, or with "rows": i32[B, R], "labels": i32[B, R]."""

    def __init__(self, batch_of: Callable[[int], dict[str, I32]], count: int, tokens_per_batch: int) -> None:
        self._batch_of = batch_of
        # How many windows or conversations there are.
        self.count, self.tokens_per_batch = count, tokens_per_batch

    def __call__(self, step: int) -> dict[str, I32]:
        return self._batch_of(step)


def example_batches(
    path: str | os.PathLike[str], tokenizer: Tokenizer, batch: int, length: int, vocab: int, seed: int = 0
) -> ExampleBatches:
    """The batches of a .txt or a .jsonl file."""
    kind = Path(path).suffix.lower()
    if kind == ".jsonl":
        return chat_batches(path, tokenizer, batch, length, seed)
    if kind == ".txt":
        return text_batches(path, tokenizer, batch, length, vocab, seed)
    raise FormatError(f"{path}: a .txt file, or a .jsonl file of chats is needed")


def text_batches(
    path: str | os.PathLike[str], tokenizer: Tokenizer, batch: int, length: int, vocab: int, seed: int = 0
) -> ExampleBatches:
    """Windows of `length` tokens of a text, every token of which counts."""
    ids = np.array(tokenizer.encode(_read(Path(path))), np.int32)
    windows = TokenBatches(ids, batch, length, seed, vocab, str(path))

    def batch_of(step: int) -> dict[str, I32]:
        found = windows(step)
        return {"tokens": found[:, :-1], "labels": found[:, 1:]}

    return ExampleBatches(batch_of, (len(ids) - 1) // length, batch * length)


def chat_batches(
    path: str | os.PathLike[str], tokenizer: Tokenizer, batch: int, length: int, seed: int = 0
) -> ExampleBatches:
    """Conversations of at most `length` tokens, padded to the longest; only the answers count."""
    place = Path(path)
    found = [
        _checked(f"{place}: line {number}", line, tokenizer, length) for number, line in _lines(place, _read(place))
    ]
    if len(found) < batch:
        raise FormatError(f"{place}: {len(found)} conversations are fewer than a batch of {batch}; use a smaller batch")
    width = max(len(ids) for ids, _ in found) - 1
    tokens = np.zeros((len(found), width), np.int32)
    # Scores of a whole vocabulary are only computed where an answer follows.
    most = max(sum(counts[1:]) for _, counts in found)
    rows = np.zeros((len(found), most), np.int32)
    labels = np.full((len(found), most), IGNORED, np.int32)
    for number, (ids, counts) in enumerate(found):
        tokens[number, : len(ids) - 1] = ids[:-1]
        places = np.flatnonzero(counts[1:])
        rows[number, : len(places)] = places
        labels[number, : len(places)] = np.array(ids)[places + 1]
    batches = ArrayBatches({"tokens": tokens, "rows": rows, "labels": labels}, batch, seed)
    return ExampleBatches(batches, len(found), batch * width)


def _read(path: Path) -> str:
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file")
    try:
        # Editors on Windows begin files with a mark (BOM), which is neither text nor JSON.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    if not text.strip():
        raise FormatError(f"{path}: the file is empty; there is nothing to learn from")
    return text


def _lines(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # Not splitlines: text may hold other characters that end lines, and JSON lines end in \n alone.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise FormatError(f"{path}: line {number} must be an object, got {line[:60]!r}")
        yield number, value


def _checked(what: str, line: Mapping[str, Any], tokenizer: Tokenizer, length: int) -> tuple[Ids, list[bool]]:
    """The tokens of a conversation, and which of them count."""
    try:
        pieces = list(_pieces(line, tokenizer))
    except RlxError as error:
        raise FormatError(f"{what}: {error}") from None
    ids = [i for piece, _ in pieces for i in piece]
    counts = [is_answer for piece, is_answer in pieces for _ in piece]
    if len(ids) - 1 > length:
        raise FormatError(f"{what} has {len(ids)} tokens, more than {length + 1}; shorten it, or use a larger length")
    if not any(counts[1:]):
        raise FormatError(f"{what} has no answer to learn from; it needs a message of the assistant, or a completion")
    return ids, counts


def _pieces(line: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[tuple[Ids, bool]]:
    """Tokens of what is said to the model, and of what it answers, in turn."""
    if "messages" in line:
        yield from _turns(line["messages"], tokenizer)
        return
    prompt, completion = line.get("prompt"), line.get("completion")
    if not isinstance(prompt, str) or not isinstance(completion, str):
        raise FormatError(f"`messages`, or `prompt` and `completion` are needed; it has {', '.join(line) or 'nothing'}")
    yield tokenizer.encode(prompt), False
    # An answer ends: without that token the model would learn to go on for ever.
    yield [*tokenizer.encode(completion, add_special=False), *tuple(tokenizer.eos_ids)[:1]], True


def _turns(messages: Any, tokenizer: Tokenizer) -> Iterator[tuple[Ids, bool]]:
    """By the template: an answer is what a conversation that ends with it has more than the prompt before it."""
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    ):
        raise FormatError("messages must be a list of objects with the texts role and content")
    if tokenizer.chat_template is None:
        raise FormatError(
            "the model has no chat template, so that nobody knows how `messages` are written; give `prompt` and "
            "`completion`, or a .txt file"
        )
    done = ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.render_chat(messages[:place], add_generation_prompt=True)
        whole = tokenizer.render_chat(messages[: place + 1], add_generation_prompt=False)
        if not whole.startswith(prompt) or not prompt.startswith(done):
            raise FormatError(
                "the chat template of this model changes what was said before, so that answers cannot be told apart; "
                "give `prompt` and `completion`"
            )
        yield tokenizer.encode(prompt[len(done) :], add_special=False), False
        yield tokenizer.encode(whole[len(prompt) :], add_special=False), True
        done = whole
