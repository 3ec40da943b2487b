"""Enums whose members users write as words: `g.binary("add", ...)`, `mode="clip"`.

A word that is no member is an `OpError` that lists those that are, and names the nearest. Other spellings that users
know (`+` for `add`) are read as the member they mean; text and files always hold the member's own word.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from rlx.errors import OpError


def nearest(word: object, known: Iterable[str]) -> str:
    """ " (did you mean 'relu'?)" for a near miss of a known word, else nothing."""
    import difflib  # only where something is wrong

    found = difflib.get_close_matches(str(word), [str(k) for k in known], 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


class Words(enum.StrEnum):
    """A StrEnum that teaches its words."""

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        """Spelling -> the word it stands for."""
        return {}

    @classmethod
    def _missing_(cls, value: object) -> Words:
        meant = cls.other_spellings().get(value) if isinstance(value, str) else None
        if meant is not None:
            return cls(meant)
        raise OpError(f"{value!r} is no {cls.__name__}{nearest(value, cls)}; use one of: {', '.join(cls)}")
