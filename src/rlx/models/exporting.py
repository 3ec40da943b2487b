"""Models as a program, its weights, and what a target needs to run it on text: what exporters take.

Notes of a decoder, for targets that bring their own loop around the program (`backends/wasm/web/language_model.js`):

    kind        "decoder"                     caches      the inputs that hold keys and values
    context     tokens at most                capacity    places of the first caches; they double
    chunk       tokens of a prompt at once    rope        of each table the angle per position, and a gain
    ends        tokens that end an answer     tokenizer   see `page_tokenizer`
    chat        texts around the turns of a conversation, or null

Notes of an encoder have `kind` "encoder", `context`, `rope` and `tokenizer` as well; `pad` is the token of padding,
`lowercase` says that texts are made lower case first, and `pools` that the program gives a vector for each text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.models.config import DecoderConfig, EncoderConfig, RopeConfig
from rlx.models.config_hf_encoders import is_encoder_directory
from rlx.models.decoder import build_decoder
from rlx.models.encoder import build_encoder
from rlx.models.kv_cache import FIRST_CAPACITY
from rlx.models.model_files import open_decoder
from rlx.models.page_tokenizer import page_tokenizer
from rlx.models.pull import find_model
from rlx.models.rope_tables import attention_gain, changes_at, frequencies
from rlx.models.text_encoder import lowers_case, open_encoder
from rlx.models.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]

# Positions of a prompt that a page reads at once: whoever stops it is heard after each.
PAGE_CHUNK = 128


class ModelProgram(NamedTuple):
    """A graph, its weights by name as they are stored, and what makes the notes, which need the tokenizer."""

    graph: Graph
    weights: dict[str, Array]
    notes: Callable[[], dict[str, Any]]


def model_program(path_or_name: str) -> ModelProgram:
    """The program of a decoder or of an encoder."""
    path = find_model(path_or_name)
    return _encoder_program(path) if is_encoder_directory(path) else _decoder_program(path)


def _decoder_program(path: Path) -> ModelProgram:
    files = open_decoder(path)
    built = build_decoder(files.config, files.weights)
    weights = {name: weight.read() for name, weight in built.weights.items()}
    return ModelProgram(
        built.graph,
        weights,
        lambda: decoder_notes(files.config, built.caches, files.tokenizer(), files.path.stem),
    )


def _encoder_program(path: Path) -> ModelProgram:
    config, file = open_encoder(path)
    built = build_encoder(config, file)
    weights = {name: weight.read() for name, weight in built.weights.items()}
    return ModelProgram(built.graph, weights, lambda: encoder_notes(config, path))


def encoder_notes(config: EncoderConfig, path: Path) -> dict[str, Any]:
    if config.relative_buckets:
        raise RlxError(f"export: {path.name} has relative positions, which a page does not make; export its graph")
    return {
        "kind": "encoder",
        "name": path.name,
        "context": config.context,
        "pad": config.pad_id,
        "lowercase": lowers_case(path),
        "pools": bool(config.pooling),
        "rope": _rope_notes(config.rope, config.local_rope, config.context),
        "tokenizer": page_tokenizer(Tokenizer.from_directory(path)),
    }


def _rope_notes(rope: RopeConfig | None, local: RopeConfig | None, length: int) -> dict[str, Any]:
    return {
        table: {"angles": frequencies(found, length).tolist(), "gain": attention_gain(found)}
        for table, found in (("rope", rope), ("rope.local", local))
        if found is not None
    }


def decoder_notes(config: DecoderConfig, caches: tuple[str, ...], tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    if config.recurrent_layers:
        raise RlxError(f"export: {name} keeps states, which a page does not; export its graph")
    # Tables of longer caches are others; sequences stay in those that the first ones are right for.
    limit = changes_at(config.rope, config.local_rope)
    context = config.context if limit is None else min(config.context, limit)
    return {
        "kind": "decoder",
        "name": name,
        "context": context,
        "vocab": config.vocab,
        "capacity": FIRST_CAPACITY,
        "chunk": PAGE_CHUNK,
        "caches": list(caches),
        "rope": _rope_notes(config.rope, config.local_rope, context),
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
