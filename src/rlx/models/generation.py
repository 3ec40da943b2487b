"""Writing text token by token: sequences that advance together, each with its own sampler, decoder and stop strings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.models.choosing import Choice
from rlx.models.grammar import Grammar, Guide
from rlx.models.sampling import Sampler, SamplingOptions, log_probabilities
from rlx.models.stop_strings import StopScanner

if TYPE_CHECKING:
    from rlx.models.drafts import Drafter
    from rlx.models.kv_cache import SequenceBatch
    from rlx.models.tokenizer import Tokenizer

# Steps that follow each other without the host, at most: behind the end of an answer they are for nothing.
AHEAD = 8

FinishReason = Literal["stop", "length", "context"]


class ContextLimitWarning(UserWarning):
    """An answer ended because the context of the model was full."""


class TokenLogprob(NamedTuple):
    """A token that was chosen, the log probability that the model gave it, and the most probable tokens at its place,
    most probable first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Completion:
    """What a model wrote. `finish_reason`: an end token or stop string, `max_tokens`, or a full context.

    `logprobs`, where asked for, has an entry for each of `token_ids`."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None


# Text as it is written, of all sequences or of one; the values are the completions.
Steps = Generator[list[str], None, list[Completion]]
Pieces = Generator[str, None, Completion]


class Writer:
    """One answer while it is written."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: SamplingOptions,
        stop: Sequence[str],
        row: int,
        prompt: int,
        logprobs: int | None = None,
        form: Grammar | None = None,
    ) -> None:
        self.answer = Completion(prompt_tokens=prompt, logprobs=None if logprobs is None else [])
        self._alternatives = logprobs or 0
        self._sampler = Sampler(options, row)
        # Only tokens that a form has as text are allowed by it.
        self._decoder = tokenizer.stream_decoder(skip_special=form is None or not form.marks)
        self._scanner = StopScanner(stop)
        self._ends = frozenset(tokenizer.eos_ids)
        self._guide = None if form is None else Guide(form, tokenizer.bytes_with(form.marks), tokenizer.eos_ids)

    @property
    def is_done(self) -> bool:
        return self.answer.finish_reason is not None

    def take(self, logits: npt.NDArray[np.float32], seen: Sequence[int], max_tokens: int) -> str:
        """Choose a token; the text that may be shown now."""
        token = self._sampler.choose(logits, seen, self.answer.token_ids, self._guide)
        if self.answer.logprobs is not None and token not in self._ends:
            self.answer.logprobs.append(token_logprob(logits, token, self._alternatives))
        return self.accept(token, max_tokens)

    def draws(self, count: int) -> npt.NDArray[np.float64]:
        """The numbers by which the next tokens are chosen."""
        return self._sampler.draws(count)

    def accept(self, token: int, max_tokens: int) -> str:
        """Go on with a token that was chosen; the text that may be shown now."""
        if token in self._ends:
            return self.finish("stop")
        self.answer.token_ids.append(token)
        shown = self._scanner.push(self._decoder.push(token))
        self.answer.text += shown
        if self._guide is not None:
            self._guide.advance(token)
        if self._scanner.stopped:
            self.answer.finish_reason = "stop"
        elif self._guide is not None and self._guide.is_over:
            shown += self.finish("stop")
        elif len(self.answer.token_ids) >= max_tokens:
            shown += self.finish("length")
        return shown

    def finish(self, reason: FinishReason) -> str:
        """End the answer; the text that was held back."""
        shown = self._scanner.push(self._decoder.flush()) + self._scanner.flush()
        self.answer.text += shown
        self.answer.finish_reason = reason
        return shown


def token_logprob(logits: npt.NDArray[np.float32], token: int, alternatives: int) -> TokenLogprob:
    """What the model thinks of a token, and which ones it likes best."""
    logs = log_probabilities(logits)
    count = min(alternatives, len(logs))
    order = np.argpartition(-logs, count - 1)[:count] if count else np.zeros(0, np.int64)
    best = sorted(((int(i), float(logs[i])) for i in order), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(token, float(logs[token]), best)


def write(
    batch: SequenceBatch,
    tokenizer: Tokenizer,
    logits: npt.NDArray[np.float32],
    *,
    options: SamplingOptions,
    max_tokens: int,
    stop: Sequence[str],
    context: int,
    logprobs: int | None = None,
    form: Grammar | None = None,
    draft: Drafter | None = None,
) -> Steps:
    """Continue the sequences of `batch`, whose next tokens have `logits` [B, V]. With a `form` answers are texts of it;
    a `draft` guesses for the only sequence.

    Yields, for each step, the new text of every row; the generator's value is the list of completions.
    """
    prompts = [len(tokens) for tokens in batch.tokens]
    writers = [Writer(tokenizer, options, stop, row, prompt, logprobs, form) for row, prompt in enumerate(prompts)]

    def at_the_end(shown: list[str], lengths: Sequence[int]) -> list[str]:
        """End the answers whose sequences fill the context."""
        for row, writer in enumerate(writers):
            if not writer.is_done and lengths[row] >= context:
                shown[row] += writer.finish("context")
                message = _context_message(context, len(writer.answer.token_ids))
                warnings.warn(message, ContextLimitWarning, stacklevel=4)
        return shown

    is_ahead = (
        logprobs is None
        and form is None
        and draft is None
        and Choice.serves(options)
        and batch.can_write_ahead(options)
    )
    while True:
        shown = ["" if w.is_done else w.take(logits[i], batch.words(i), max_tokens) for i, w in enumerate(writers)]
        yield at_the_end(shown, [len(tokens) for tokens in batch.tokens])
        while is_ahead and not all(w.is_done for w in writers):
            is_ahead = yield from _ahead(batch, writers, options, max_tokens, context, at_the_end)
        if all(w.is_done for w in writers):
            return [w.answer for w in writers]
        while draft is not None and not writers[0].is_done:
            yield at_the_end([_guessed(batch, writers[0], draft, max_tokens, context)], [len(batch.tokens[0])])
        if all(w.is_done for w in writers):
            return [w.answer for w in writers]
        logits = batch.extend([[] if w.is_done else w.answer.token_ids[-1:] for w in writers])


def _guessed(batch: SequenceBatch, writer: Writer, draft: Drafter, max_tokens: int, context: int) -> str:
    """One step in which several tokens may be written: their text."""
    shown: list[str] = []

    def take(logits: npt.NDArray[np.float32], seen: list[int]) -> int | None:
        shown.append(writer.take(logits, seen, max_tokens))
        return None if writer.is_done else writer.answer.token_ids[-1]

    written = writer.answer.token_ids
    most = min(max_tokens - len(written), context - len(batch.tokens[0])) - 1
    draft.step(batch, written[-1], take, most)
    return "".join(shown)


def _ahead(
    batch: SequenceBatch,
    writers: Sequence[Writer],
    options: SamplingOptions,
    max_tokens: int,
    context: int,
    at_the_end: Callable[[list[str], Sequence[int]], list[str]],
) -> Generator[list[str], None, bool]:
    """Some steps without the host between them; False if it must be there. Tokens behind the end of an answer are
    forgotten."""
    active = [w for w in writers if not w.is_done]
    before = [len(tokens) for tokens in batch.tokens]
    longest = max(length for length, w in zip(before, writers) if not w.is_done)
    steps = min(AHEAD, context - longest, max_tokens - min(len(w.answer.token_ids) for w in active))
    steps = batch.steps_ahead(steps, longest)
    uniforms = np.zeros((steps, len(writers)))
    for row, writer in enumerate(writers):
        if not writer.is_done:
            uniforms[:, row] = writer.draws(steps)
    fed = [None if w.is_done else w.answer.token_ids[-1] for w in writers]
    chosen = batch.write_ahead(fed, options, uniforms)
    if chosen is None:
        return False
    for step, tokens in enumerate(chosen.tolist(), 1):
        lengths = [length if w.is_done else length + step for length, w in zip(before, writers)]
        running = [not w.is_done for w in writers]
        shown = [w.accept(t, max_tokens) if is_on else "" for w, t, is_on in zip(writers, tokens, running)]
        shown = at_the_end(shown, lengths)
        for row, writer in enumerate(writers):
            if running[row] and writer.is_done:
                batch.truncate(row, lengths[row])
        yield shown
        if all(w.is_done for w in writers):
            break
    return True


def _context_message(context: int, written: int) -> str:
    return (
        f"the context of {context} tokens is full: the answer ends after {written} tokens; "
        "shorten the prompt or the conversation"
    )


def first_row(steps: Steps) -> Pieces:
    """The text of the only sequence."""
    while True:
        try:
            pieces = next(steps)
        except StopIteration as end:
            completion: Completion = end.value[0]
            return completion
        if pieces[0]:
            yield pieces[0]


def drained(steps: Steps) -> list[Completion]:
    """The completions, where the steps are of no interest."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answers: list[Completion] = end.value
            return answers
