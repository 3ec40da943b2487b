"""Choosing the next token from logits, in NumPy on one row at a time.

The steps, in this order, each optional:

0. a form (`rlx.models.grammar`): tokens that no text of it goes on with are left out; logit bias: what is added to the
   logits of some tokens, and never changes that
1. repetition penalty r: logits of tokens of prompt or answer are divided by r if positive, multiplied by r if negative
2. presence penalty a and frequency penalty b: a + b·count less for tokens that the answer has `count` times
3. temperature t: logits / t (0 takes the largest logit and skips the rest)
4. top_k: only the k largest logits stay (and those equal to the k-th)
5. top_p: the smallest set of most probable tokens whose probabilities reach p
6. min_p: tokens at least min_p times as probable as the most probable one

Then a token is drawn from the softmax of what is left. Log probabilities that are reported are those of the model,
before any of these steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError

if TYPE_CHECKING:
    from rlx.models.grammar import Guide

F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

# Tokens that weigh less than these shares of the heaviest one are sorted only if the others do not reach `top_p`:
# sorting a whole vocabulary takes longer than a step of a small model.
_LEAST_SORTED = (2.0**-4, 2.0**-8, 2.0**-16, 0.0)
# How often, and how many tokens at a time, a guide is asked about before it is asked about all of a vocabulary.
_MOST_TRIES, _MOST_ASKED = 16, 256


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn; the defaults take the most probable one."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _check("sampling", vars(self))

    @classmethod
    def of(cls, caller: str, options: Mapping[str, Any]) -> SamplingOptions:
        """The options that a method was given; errors begin with its name. Numbers may be NumPy's."""
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        plain["logit_bias"] = _bias(caller, plain.get("logit_bias"))
        _check(caller, plain)
        return cls(**plain)


# What each option must be: in words, and as a test of a number.
_ACCEPTED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("0 or more", lambda x: 0 <= x < math.inf),
    "top_k": ("a whole number from 1 on", lambda x: isinstance(x, int) and x >= 1),
    "top_p": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    "min_p": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "repetition_penalty": ("positive", lambda x: 0 < x < math.inf),
    "presence_penalty": ("a finite number", math.isfinite),
    "frequency_penalty": ("a finite number", math.isfinite),
    "seed": ("a whole number from 0 on", lambda x: isinstance(x, int) and x >= 0),
}
_OPTIONAL = ("top_k", "top_p", "min_p", "seed")


def _check(caller: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name == "logit_bias":
            continue
        wanted, holds = _ACCEPTED[name]
        if value is None and name in _OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
            raise OpError(f"{caller}: {name} must be {wanted}, got {value!r:.80}")


def _bias(caller: str, given: object) -> tuple[tuple[int, float], ...]:
    """What is added to the logits of some tokens, in the order of their numbers."""
    found: list[tuple[Any, Any]] = (
        [] if given is None else list(given.items()) if isinstance(given, Mapping) else [(None, None)]
    )
    for token, value in found:
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        is_token = isinstance(token, int | np.integer) and not isinstance(token, bool) and token >= 0
        if not is_token or not is_number or math.isnan(value) or value == math.inf:
            raise OpError(f"{caller}: logit_bias must be numbers by token id, -inf for never, got {given!r:.80}")
    return tuple(sorted((int(token), float(value)) for token, value in found))


class Sampler:
    """Draws tokens for one sequence. The same seed and row give the same tokens for the same logits."""

    def __init__(self, options: SamplingOptions, row: int = 0) -> None:
        self.options = options
        seed = np.random.SeedSequence(options.seed, spawn_key=(row,))
        self._random = np.random.Generator(np.random.Philox(seed))

    def choose(
        self,
        logits: npt.NDArray[np.floating],
        seen: Collection[int] = (),
        written: Collection[int] = (),
        guide: Guide | None = None,
    ) -> int:
        """The next token after the tokens `seen`, of which `written` are the answer's own."""
        options = self.options
        scores = penalized(biased(logits.astype(np.float64), options.logit_bias), seen, options.repetition_penalty)
        scores = without_repeats(scores, written, options.presence_penalty, options.frequency_penalty)
        if not math.isfinite(largest := scores.max()):
            raise OpError(f"sampling: no token can be chosen, since the largest logit is {largest}")
        return self._drawn(scores) if guide is None else self._guided(scores, guide)

    def _drawn(self, scores: F64) -> int:
        if self.options.temperature == 0:
            return int(scores.argmax())
        ids, weights = candidates(scores, self.options)
        running = np.cumsum(weights)
        place = np.searchsorted(running, self._random.random() * running[-1], side="right")
        return int(ids[min(place, len(ids) - 1)])

    def _guided(self, scores: F64, guide: Guide) -> int:
        """What `_drawn` chooses among the permitted tokens.

        To ask about all of a vocabulary may take longer than a step of a small model, so that only those are looked at
        which would be chosen, as long as this finds one soon.
        """
        scores, options = scores.copy(), self.options
        is_narrow = bool(options.temperature) and (options.top_k, options.min_p) != (None, None)
        # The share that `top_p` is of depends on every token that is permitted.
        is_share = bool(options.temperature) and options.top_p is not None and options.top_p < 1
        for _ in range(0 if is_share else _MOST_TRIES):
            # How many are the most probable depends on those before them: there, all candidates must be permitted.
            asked = candidates(scores, options)[0] if is_narrow else np.array([self._drawn(scores)])
            if len(asked) > _MOST_ASKED:
                break
            refused = [int(token) for token in asked if not guide.permits(int(token))]
            if not refused:
                return self._drawn(scores) if is_narrow else int(asked[0])
            scores[refused] = -math.inf
            if not np.isfinite(scores.max()):
                break
        scores[~guide.permitted(len(scores))] = -math.inf
        if not math.isfinite(scores.max()):
            raise OpError("sampling: no token of this model goes on with a text of this form")
        return self._drawn(scores)

    def draws(self, count: int) -> F64:
        """The uniform numbers that `choose` would draw for the next tokens; greedy choices draw none."""
        return self._random.random(count) if self.options.temperature else np.zeros(count)


def biased(scores: F64, bias: Collection[tuple[int, float]]) -> F64:
    """Scores with what is added to some of them; tokens that the model does not have are none of its own.

    >>> biased(np.array([1.0, 2.0]), [(0, 5.0), (7, 1.0)]).tolist()
    [6.0, 2.0]
    """
    for token, value in bias:
        if token < len(scores):
            scores[token] += value
    return scores


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


def without_repeats(scores: F64, written: Collection[int], presence: float, frequency: float) -> F64:
    """Scores with the presence and frequency penalties of the tokens `written`.

    >>> without_repeats(np.array([2.0, 2.0, 2.0]), [0, 1, 1], presence=0.5, frequency=0.25).tolist()
    [1.25, 1.0, 2.0]
    """
    if not written or (presence == 0 and frequency == 0):
        return scores
    ids, counts = np.unique(np.fromiter(written, np.int64, len(written)), return_counts=True)
    changed = scores.copy()
    changed[ids] -= presence + frequency * counts
    return changed


def log_probabilities(logits: npt.NDArray[np.floating]) -> F64:
    """The logarithm of the softmax of logits.

    >>> np.exp(log_probabilities(np.array([1.0, 1.0]))).tolist()
    [0.5, 0.5]
    """
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def probabilities(scores: F64, options: SamplingOptions) -> F64:
    """What each token is drawn with."""
    ids, weights = candidates(scores, options)
    chances = np.zeros(len(scores))
    chances[ids] = weights / weights.sum()
    return chances


def candidates(scores: F64, options: SamplingOptions) -> tuple[Ids, F64]:
    """The tokens that may be drawn, in the order of their numbers, and what each weighs against the others.

    Vocabularies have 100,000 tokens and more, of which a few matter: what a step leaves out no later one looks at.
    """
    scaled = scores / options.temperature if options.temperature else scores
    ids = np.arange(len(scaled))
    if options.top_k is not None and options.top_k < len(scaled):
        ids = np.flatnonzero(scaled >= np.partition(scaled, -options.top_k)[-options.top_k])
        scaled = scaled[ids]
    weights = np.exp(scaled - scaled.max())
    if options.top_p is not None and options.top_p < 1:
        kept = _most_probable(weights, options.top_p)
        ids, weights = ids[kept], weights[kept]
    if options.min_p is not None:
        kept = np.flatnonzero(weights >= options.min_p * weights.max())
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _most_probable(weights: F64, share: float) -> Ids:
    """Where the fewest tokens stand that have at least `share` of all weight, heaviest first; the heaviest weighs 1."""
    wanted = share * weights.sum()
    for least in _LEAST_SORTED:
        order = np.flatnonzero(weights >= least)
        heavy = weights[order]
        if heavy.sum() >= wanted:
            break
    ranks = np.argsort(-heavy, kind="stable")
    ranked = heavy[ranks]
    return np.sort(order[ranks[np.cumsum(ranked) - ranked < wanted]])
