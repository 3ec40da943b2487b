"""Beam search: several answers to a text are written side by side, of which the likeliest go on in each step.

Of n answers the 2n likeliest continuations are looked at. Those that end are kept with the score
sum of log p / length^penalty, the n best of them; the n likeliest others go on. The search ends when no answer that is
still open can become better than all n that have ended, by its score at the length that it has, or when answers are
full.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.models.sampling import log_probabilities

if TYPE_CHECKING:
    from rlx.models.kv_cache import SequenceBatch

_NEVER = -1e9


class Written(NamedTuple):
    """An answer, with the token that ended it if one did."""

    score: float
    tokens: list[int]


def search(
    batch: SequenceBatch,
    logits: npt.NDArray[np.float32],
    ends: Collection[int],
    max_tokens: int,
    length_penalty: float = 1.0,
) -> list[Written]:
    """The best answers, best first, as many as `batch` has equal sequences, whose next tokens have `logits` [n, V]."""
    count, prompt = len(batch.tokens), len(batch.tokens[0])
    # All sequences are the same at first, so one of them is enough.
    scores = np.array([0.0, *[_NEVER] * (count - 1)])
    done: list[Written] = []
    for length in range(1, max_tokens + 1):
        chances = scores[:, None] + np.stack([log_probabilities(row) for row in logits])
        looked_at = _best(chances.reshape(-1), 2 * count)
        rows, tokens = np.divmod(looked_at, logits.shape[1])
        is_last = length == max_tokens
        going: list[int] = []
        for rank, (place, row, token) in enumerate(zip(looked_at, rows, tokens)):
            ended = token in ends
            if (ended or is_last) and rank < count:
                answer = [*batch.tokens[row][prompt:], int(token)]
                done.append(Written(float(chances.reshape(-1)[place]) / length**length_penalty, answer))
            if not ended and len(going) < count:
                going.append(rank)
        done = sorted(done, key=lambda answer: -answer.score)[:count]
        if is_last or len(going) < count:
            break
        scores = chances.reshape(-1)[looked_at[going]]
        if len(done) == count and scores[0] / length**length_penalty <= done[-1].score:
            break
        batch.reorder([int(rows[rank]) for rank in going])
        logits = batch.extend([[int(tokens[rank])] for rank in going])
    return done


def _best(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Where the largest values stand, the largest first."""
    chosen = np.argpartition(-values, min(count, len(values)) - 1)[:count]
    return np.asarray(chosen[np.argsort(-values[chosen], kind="stable")])
