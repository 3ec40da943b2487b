"""Conversations with pictures, as the templates of models that read them want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.errors import OpError


def turns_with_pictures(
    turns: Sequence[Mapping[str, object]], images: Sequence[Any]
) -> tuple[list[dict[str, object]], list[Any]]:
    """Turns whose contents are lists of what they are made of, and the pictures in them, in their order. `images` are
    those of entries that have none of their own, or stand before the last message of the user."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise OpError(f"chat: images are a list of pictures, got {images!r:.80}")
    parts = [_entries(turn.get("content")) for turn in turns]
    pictures = [entry for entries in parts for entry in entries if entry.get("type") == "image"]
    open_ones = [entry for entry in pictures if _given(entry) is None]
    if images and not open_ones:
        asked = [number for number, turn in enumerate(turns) if turn.get("role") == "user"]
        if not asked:
            raise OpError("chat: images stand before a message of the user, and there is none")
        parts[asked[-1]][:0] = open_ones = [{"type": "image"} for _ in images]
    if len(open_ones) != len(images):
        raise OpError(
            f"chat: {len(open_ones)} pictures stand in the messages without one, and images has {len(images)}"
        )
    left, found = iter(images), []
    for entries in parts:
        for entry in entries:
            if entry.get("type") == "image":
                given = _given(entry)
                found.append(next(left) if given is None else given)
    # Templates are given the places of pictures alone.
    shown = [[{"type": "image"} if e.get("type") == "image" else e for e in entries] for entries in parts]
    return [{**turn, "content": entries} for turn, entries in zip(turns, shown)], found


def _given(entry: Mapping[str, Any]) -> Any:
    return next((entry[name] for name in ("image", "path") if entry.get(name) is not None), None)


def _entries(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list | tuple) and all(isinstance(entry, Mapping) for entry in content):
        return [dict(entry) for entry in content]
    raise OpError(f"chat: a content is a text or a list of entries with a type, got {content!r:.80}")
