"""Tokens that are no words: rows of pictures in the place of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class PictureToken(int):
    """A row of a picture. As a number it lies beyond the vocabulary, and is the same for the same row of the same
    picture, so that texts that begin alike are found by their tokens."""

    row: F32

    def __new__(cls, number: int, row: F32) -> PictureToken:
        made = super().__new__(cls, number)
        made.row = row
        return made


def plain_token(token: int) -> int:
    """A token as Python's own number; rows of pictures stay what they are."""
    return token if isinstance(token, PictureToken) else int(token)


def rows_and_places(tokens: Sequence[Sequence[int]], length: int, hidden: int) -> dict[str, npt.NDArray[np.generic]]:
    """The inputs `pictures` and `seen` of a step: the rows in these texts, of which none is longer than `length`, and
    which of them stands at each place."""
    seen = np.full((len(tokens), length), -1, np.int32)
    rows: list[F32] = []
    for number, text in enumerate(tokens):
        for place, token in enumerate(text):
            if isinstance(token, PictureToken):
                seen[number, place] = len(rows)
                rows.append(token.row)
    return {"pictures": np.stack(rows) if rows else np.zeros((1, hidden), np.float32), "seen": seen}
