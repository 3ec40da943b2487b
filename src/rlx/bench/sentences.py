"""Sentences to embed: ordinary words, lengths as mixed as those of real texts, the same in every process."""

from __future__ import annotations

import functools
import random

_SEED = 7
_WORDS = """
the a this every some old new small large bright quiet river mountain city teacher engine program garden letter market
winter summer morning evening question answer window road train station music painting history science water bread
coffee paper number language computer network measurement weather harbour compiler runs reads writes finds builds opens
closes carries explains follows crosses remembers describes improves measures before after because while although under
over between through without against slowly quickly often never always seventy international understanding
responsibility unbelievably photosynthesis
"""
# Words of a sentence: half have less than the median, some are whole paragraphs.
_MEDIAN, _SPREAD, _FEWEST, _MOST = 14, 0.8, 2, 180


@functools.cache
def sentences(count: int) -> tuple[str, ...]:
    """
    >>> sentences(2)[0] == sentences(300)[0], len(sentences(300))
    (True, 300)
    """
    choose, words = random.Random(_SEED), _WORDS.split()
    return tuple(_sentence(choose, words) for _ in range(count))


def _sentence(choose: random.Random, words: list[str]) -> str:
    length = min(max(round(_MEDIAN * choose.lognormvariate(0.0, _SPREAD)), _FEWEST), _MOST)
    return " ".join(choose.choices(words, k=length)).capitalize() + "."
