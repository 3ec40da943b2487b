"""Choosing the next token from logits, in NumPy on one row at a time.

The steps, in this order, each optional:

1. repetition penalty r: logits of tokens that occurred are divided by r if positive, multiplied by r if negative
2. temperature t: logits / t (0 takes the largest logit and skips the rest)
3. top_k: only the k largest logits stay (and those equal to the k-th)
4. top_p: the smallest set of most probable tokens whose probabilities reach p
5. min_p: tokens at least min_p times as probable as the most probable one

Then a token is drawn from the softmax of what is left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn; the defaults take the most probable one."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        self._require("temperature", self.temperature >= 0, "0 or more", self.temperature)
        self._require("top_k", self.top_k is None or self.top_k >= 1, "1 or more", self.top_k)
        self._require("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1", self.top_p)
        self._require("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1", self.min_p)
        self._require("repetition_penalty", self.repetition_penalty > 0, "positive", self.repetition_penalty)
        self._require("seed", self.seed is None or self.seed >= 0, "0 or more", self.seed)

    @staticmethod
    def _require(name: str, holds: bool, wanted: str, got: object) -> None:
        if not holds:
            raise OpError(f"sampling: {name} must be {wanted}, got {got}")


class Sampler:
    """Draws tokens for one sequence. The same seed and row give the same tokens for the same logits."""

    def __init__(self, options: SamplingOptions, row: int = 0) -> None:
        self.options = options
        seed = np.random.SeedSequence(options.seed, spawn_key=(row,))
        self._random = np.random.Generator(np.random.Philox(seed))

    def choose(self, logits: npt.NDArray[np.floating], seen: Collection[int] = ()) -> int:
        """The next token after the tokens `seen`."""
        scores = penalized(logits.astype(np.float64), seen, self.options.repetition_penalty)
        if self.options.temperature == 0:
            return int(scores.argmax())
        return int(self._random.choice(len(scores), p=probabilities(scores, self.options)))


def penalized(scores: F64, seen: Collection[int], penalty: float) -> F64:
    """Scores with the repetition penalty applied to the tokens `seen`; each counts once.

    >>> penalized(np.array([2.0, -2.0, 1.0]), [0, 1, 1], 2.0).tolist()
    [1.0, -4.0, 1.0]
    """
    if penalty == 1.0 or not seen:
        return scores
    ids = np.unique(np.fromiter(seen, np.int64, len(seen)))
    changed = scores.copy()
    changed[ids] = np.where(scores[ids] > 0, scores[ids] / penalty, scores[ids] * penalty)
    return changed


def probabilities(scores: F64, options: SamplingOptions) -> F64:
    """What each token is drawn with."""
    scaled = scores / options.temperature if options.temperature else scores
    kept = np.ones(len(scaled), bool)
    if options.top_k is not None and options.top_k < len(scaled):
        kept &= scaled >= np.partition(scaled, -options.top_k)[-options.top_k]
    if options.top_p is not None and options.top_p < 1:
        kept &= _most_probable(_softmax(scaled, kept), options.top_p)
    if options.min_p is not None:
        chances = _softmax(scaled, kept)
        kept &= chances >= options.min_p * chances.max()
    return _softmax(scaled, kept)


def _softmax(scores: F64, kept: npt.NDArray[np.bool_]) -> F64:
    weights = np.where(kept, np.exp(scores - scores[kept].max()), 0.0)
    return np.asarray(weights / weights.sum())


def _most_probable(chances: F64, share: float) -> npt.NDArray[np.bool_]:
    """The fewest tokens that have at least `share` of the probability, most probable first."""
    order = np.argsort(-chances, kind="stable")
    before = np.cumsum(chances[order]) - chances[order]
    kept = np.zeros(len(chances), bool)
    kept[order[before < share]] = True
    return kept
