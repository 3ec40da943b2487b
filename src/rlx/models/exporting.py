"""Models as a program, its weights, and what a target needs to run it on text: what exporters take.

Notes of a decoder, for targets that bring their own loop around the program (`backends/wasm/web/language_model.js`):

    kind        "decoder"                     caches      the inputs that hold keys and values
    context     tokens at most                capacity    places of the first caches; they double
    chunk       tokens of a prompt at once    rope        of each table the angle per position, and a gain
    ends        tokens that end an answer     tokenizer   see `page_tokenizer`
    chat        texts around the turns of a conversation, or null
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.models.config import DecoderConfig
from rlx.models.decoder import build_decoder
from rlx.models.kv_cache import FIRST_CAPACITY, PREFILL_CHUNK
from rlx.models.model_files import DecoderFiles, open_decoder
from rlx.models.page_tokenizer import page_tokenizer
from rlx.models.pull import find_model
from rlx.models.rope_tables import attention_gain, changes_at, frequencies
from rlx.models.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]


class ModelProgram(NamedTuple):
    """A graph, its weights by name as they are stored, and where the model and its caches come from."""

    graph: Graph
    weights: dict[str, Array]
    files: DecoderFiles
    caches: tuple[str, ...]

    def notes(self) -> dict[str, Any]:
        """How the program is run on text."""
        return decoder_notes(self.files.config, self.caches, self.files.tokenizer(), self.files.path.stem)


def model_program(path_or_name: str) -> ModelProgram:
    """The program of a decoder."""
    files = open_decoder(find_model(path_or_name))
    built = build_decoder(files.config, files.weights)
    weights = {name: weight.read() for name, weight in built.weights.items()}
    return ModelProgram(built.graph, weights, files, built.caches)


def decoder_notes(config: DecoderConfig, caches: tuple[str, ...], tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    # Tables of longer caches are others; sequences stay in those that the first ones are right for.
    limit = changes_at(config.rope)
    context = config.context if limit is None else min(config.context, limit)
    ropes = {"rope": config.rope, "rope.local": config.local_rope}
    return {
        "kind": "decoder",
        "name": name,
        "context": context,
        "vocab": config.vocab,
        "capacity": FIRST_CAPACITY,
        "chunk": PREFILL_CHUNK,
        "caches": list(caches),
        "rope": {
            table: {"angles": frequencies(rope, context).tolist(), "gain": attention_gain(rope)}
            for table, rope in ropes.items()
            if rope is not None
        },
        "ends": list(tokenizer.eos_ids),
        "chat": chat_texts(tokenizer),
        "tokenizer": page_tokenizer(tokenizer),
    }


def chat_texts(tokenizer: Tokenizer) -> Mapping[str, str] | None:
    """The texts around turns: a conversation is `start` user `answer` assistant `next` user `answer` ... None for a
    model without a template, or with one that is no such sequence."""
    if tokenizer.chat_template is None:
        return None
    marks = [f"turn{number}mark" for number in range(5)]
    turns: list[dict[str, object]] = [
        {"role": "assistant" if i % 2 else "user", "content": mark} for i, mark in enumerate(marks)
    ]
    try:
        found = [tokenizer.render_chat(turns[:count]) for count in (1, 3, 5)]
    except RlxError:
        return None
    start, *between = _between(found[2], marks)
    if len(between) != 5:
        return None
    texts = {"start": start, "answer": between[0], "next": between[1]}
    written = [texts["start"] + marks[0] + texts["answer"]]
    for number in (1, 3):
        written.append(written[-1] + marks[number] + texts["next"] + marks[number + 1] + texts["answer"])
    return texts if written == found else None


def _between(text: str, marks: list[str]) -> list[str]:
    """What stands before, between and after the marks; less where one is missing."""
    found = []
    for mark in marks:
        before, mark_found, text = text.partition(mark)
        if not mark_found:
            return [before]
        found.append(before)
    return [*found, text]
