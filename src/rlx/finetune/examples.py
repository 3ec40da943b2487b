"""What a model is tuned on: plain text, or chats of which only the answers count.

    batches = text_batches("book.txt", tokenizer, batch=4, length=128, vocab=49152)
    batches = chat_batches("chats.jsonl", tokenizer, batch=4, length=256)
    batches(0)          # {"tokens": i32 [4, 255], "rows": i32 [4, 60], "labels": i32 [4, 60]}

A line of a .jsonl file is an object with `messages` ([{"role": .., "content": ..}, ..]), and perhaps `tools`, which the
model's own template turns into text, or with `prompt` and `completion`: texts, taken as they are, or lists of messages.
`labels` are the tokens that follow those at `rows`, or all tokens where there are no rows; -100 is the label of what
does not count. A batch is a function of the step; see `rlx.train.token_batches`.
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
# Tokens in turn, and whether they are an answer.
Pieces = list[tuple[Ids, bool]]
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
        example
        for number, line in _lines(place, _read(place))
        for example in _checked(f"{place}: line {number}", line, tokenizer, length)
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


def _checked(what: str, line: Mapping[str, Any], tokenizer: Tokenizer, length: int) -> list[tuple[Ids, list[bool]]]:
    """The examples of a line: tokens, and which of them count."""
    try:
        examples = _examples(line, tokenizer)
    except RlxError as error:
        raise FormatError(f"{what}: {error}") from None
    found = []
    for pieces in examples:
        ids = [i for piece, _ in pieces for i in piece]
        counts = [is_answer for piece, is_answer in pieces for _ in piece]
        if len(ids) - 1 > length:
            raise FormatError(
                f"{what} has {len(ids)} tokens, more than {length + 1}; shorten it, or use a larger length"
            )
        if any(counts[1:]):
            found.append((ids, counts))
    if not found:
        raise FormatError(f"{what} has no answer to learn from; it needs a message of the assistant, or a completion")
    return found


def _examples(line: Mapping[str, Any], tokenizer: Tokenizer) -> list[Pieces]:
    """Tokens of what is said to the model, and of what it answers, in turn; mostly one example for a line."""
    if "messages" in line:
        return _turns(_messages("messages", line["messages"]), tokenizer, line.get("tools"))
    prompt, completion = line.get("prompt"), line.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        before = _messages("prompt", prompt)
        return _turns([*before, *_messages("completion", completion)], tokenizer, line.get("tools"), len(before))
    if not isinstance(prompt, str) or not isinstance(completion, str):
        raise FormatError(f"`messages`, or `prompt` and `completion` are needed; it has {', '.join(line) or 'nothing'}")
    # An answer ends: without that token the model would learn to go on for ever.
    answer = [*tokenizer.encode(completion, add_special=False), *tuple(tokenizer.eos_ids)[:1]]
    return [[(tokenizer.encode(prompt), False), (answer, True)]]


def _messages(name: str, messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list):
        raise FormatError(f"{name} must be a list of objects with the texts role and content")
    return [_message(f"{name}[{place}]", message) for place, message in enumerate(messages)]


def _message(what: str, message: Any) -> dict[str, Any]:
    """A message whose content is one text: it may be given in parts, and is empty where a tool is called instead."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise FormatError(f"{what} must be an object with the texts role and content")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise FormatError(f'{what}: only parts {{"type": "text", "text": ".."}} can be learned from')
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise FormatError(f"{what} must be an object with the texts role and content")
    return {**message, "content": content}


def _turns(messages: list[dict[str, Any]], tokenizer: Tokenizer, tools: Any, first: int = 0) -> list[Pieces]:
    """By the template: an answer is what a conversation that ends with it has more than the prompt before it.

    Templates may leave out of earlier answers what later ones need not see, as thoughts. Each answer is then learned
    after what the model will see before it, so that a conversation becomes several examples. Answers before message
    number `first` do not count.
    """
    if tokenizer.chat_template is None:
        raise FormatError(
            "the model has no chat template, so that nobody knows how `messages` are written; give `prompt` and "
            "`completion` as texts, or a .txt file"
        )
    examples: list[Pieces] = []
    done = ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or place < first:
            continue
        prompt = tokenizer.render_chat(messages[:place], add_generation_prompt=True, tools=tools)
        whole = tokenizer.render_chat(messages[: place + 1], add_generation_prompt=False, tools=tools)
        if not whole.startswith(prompt):
            raise FormatError(
                "the chat template of this model does not write an answer behind its prompt, so that they cannot be "
                "told apart; give `prompt` and `completion` as texts"
            )
        if not examples or not prompt.startswith(done):
            examples.append([])
            done = ""
        examples[-1] += [
            (tokenizer.encode(prompt[len(done) :], add_special=False), False),
            (tokenizer.encode(whole[len(prompt) :], add_special=False), True),
        ]
        done = whole
    return examples
