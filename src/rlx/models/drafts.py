"""Writing several tokens in one step: a guess at what a text goes on with is read together with its last token.

Every token is chosen from the logits of the model, by the same numbers of chance, as if there were no guess. Steps of
several tokens may add up in another order than steps of one, so that logits differ in their last digits, as they do in
a batch; but for ties of that size answers are the same. Where the choice is the token that was guessed, the logits
after it are there already. Since a step of a few tokens takes hardly longer than one of a single token, right guesses
are tokens for nothing.

    drafter = drafter_of("prompt")              # what followed the last tokens where they stood before
    drafter = drafter_of(small_model)           # what a smaller model with the same vocabulary would write
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from rlx.errors import OpError
from rlx.models.kept_sequences import shared_length
from rlx.models.kv_cache import F32, SequenceBatch

if TYPE_CHECKING:
    from rlx.models.language_model import LanguageModel

# Tokens that are guessed at first and at most, and how many tokens are written without a guess after wrong ones.
_FIRST, MOST, _REST = 3, 8, 16
# So many tokens must have stood somewhere before, the longest first.
_CONTEXTS = (4, 3, 2)


class Guess(Protocol):
    """What may follow some tokens."""

    def __call__(self, tokens: Sequence[int], count: int) -> list[int]: ...


class Drafter:
    """Guesses for one text: more of them while they are right, none for a while when they are wrong."""

    def __init__(self, guess: Guess) -> None:
        self._guess, self._count, self._rest = guess, _FIRST, 0

    def step(self, batch: SequenceBatch, last: int, take: Callable[[F32, list[int]], int | None], most: int) -> int:
        """Append the last token to the only sequence of `batch`, and with it what is guessed, `most` tokens at most.
        `take` chooses a token by the logits after others, None at the end: how many it has chosen."""
        known = len(batch.tokens[0])
        guessed = self._guessed([*batch.tokens[0], last], most)
        logits = batch.all_logits([last, *guessed])
        tokens, right = batch.tokens[0], 0
        while True:
            chosen = take(logits[right], tokens[: known + 1 + right])
            if right == len(guessed) or chosen != guessed[right]:
                break
            right += 1
        batch.truncate(0, known + 1 + right)
        if guessed:
            self._learn(len(guessed), right)
        return right + 1

    def _guessed(self, tokens: list[int], most: int) -> list[int]:
        if self._rest:
            self._rest -= 1
            return []
        count = min(self._count, most)
        return self._guess(tokens, count) if count > 0 else []

    def _learn(self, guessed: int, right: int) -> None:
        if right == guessed:
            self._count = min(2 * self._count, MOST)
        elif not right:
            self._count //= 2
            if not self._count:
                self._count, self._rest = 1, _REST


class PromptLookup:
    """What followed the last tokens where they stood before."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._read = 0

    def __call__(self, tokens: Sequence[int], count: int) -> list[int]:
        # Places of what stands before the last token: that of the last ones is where they stood before.
        for end in range(self._read, len(tokens)):
            for length in _CONTEXTS:
                if end >= length:
                    self._places[tuple(tokens[end - length : end])] = end
        self._read = len(tokens)
        for length in _CONTEXTS:
            place = self._places.get(tuple(tokens[-length:])) if len(tokens) > length else None
            if place is not None:
                return list(tokens[place : place + count])
        return []


class DraftModel:
    """The most probable tokens of a smaller model."""

    def __init__(self, lm: LanguageModel) -> None:
        self._batch = SequenceBatch(lm._runner)
        self._context, self._words = lm.config.context, lm.config.vocab

    def __call__(self, tokens: Sequence[int], count: int) -> list[int]:
        count = min(count, self._context - len(tokens))
        if count < 1:
            return []
        known = shared_length(self._batch.tokens[0], tokens)
        self._batch.truncate(0, min(known, len(tokens) - 1))
        new, found = list(tokens[len(self._batch.tokens[0]) :]), list[int]()
        if any(token >= self._words for token in new):
            # Pictures, which it does not see.
            return []
        while True:
            found.append(int(self._batch.extend([new])[0].argmax()))
            if len(found) == count:
                return found
            new = found[-1:]


def require_draft(caller: str, draft: object, lm: LanguageModel) -> None:
    """Refuse what cannot guess the tokens of a model."""
    from rlx.models.language_model import LanguageModel

    if draft is None:
        return
    for one in (lm, draft):
        if isinstance(one, LanguageModel) and one._runner.has_states:
            raise OpError(
                f"{caller}: {one.path.name} keeps states, which do not go back behind wrong guesses; leave draft out"
            )
    if draft == "prompt":
        return
    if not isinstance(draft, LanguageModel):
        raise OpError(f"{caller}: draft must be 'prompt' or a language model, got {draft!r:.80}")
    if draft is lm:
        raise OpError(f"{caller}: draft must be another model, smaller than this one")
    if draft.config.vocab > lm.config.vocab or not draft.tokenizer.has_tokens_of(lm.tokenizer):
        raise OpError(
            f"{caller}: the draft {draft.path.name} has other tokens than {lm.path.name}; take one of its family"
        )


def drafter_of(draft: object) -> Drafter | None:
    """What guesses for one text, where that is wanted."""
    if draft is None:
        return None
    return Drafter(PromptLookup() if draft == "prompt" else DraftModel(draft))  # type: ignore[arg-type]
