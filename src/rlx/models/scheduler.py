"""`Scheduler`: answers to requests that come at any time, written together.

    scheduler = Scheduler(lm, parallel=8)
    for texts in scheduler.steps([ids], max_tokens=64, read=options):      # in any thread; as `LanguageModel.steps`
        ...

One thread makes the steps, as long as there is something to write. A step gives every sequence that is being written
one token: the weights are read once for all. Between steps prompts are read, in pieces, so that nobody waits for a long
one; what a prompt shares with a sequence that is there, or that was kept, is copied. Answers are those of
`LanguageModel`.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.models.drafts import Drafter, drafter_of
from rlx.models.generation import Completion, Steps, Writer
from rlx.models.joined_sequences import JoinedSequences
from rlx.models.kept_sequences import shared_length
from rlx.models.kv_cache import F32, FIRST_CAPACITY, PREFILL_CHUNK, DecoderRunner, SequenceBatch
from rlx.runtime.compiled_graph import CompiledGraph

if TYPE_CHECKING:
    from rlx.models.language_model import LanguageModel
    from rlx.models.writing_options import ReadOptions

# Tokens of a prompt that are read between two steps of others.
PIECE = 64
# Copying less than this from another sequence is not worth while.
_LEAST_SHARED = 16
# How often somebody who waits is asked whether the answer is still wanted.
_SECONDS = 0.5

News = queue.SimpleQueue[tuple[int, str, Completion | BaseException | None]]


class _Job:
    """One answer: its prompt, its writer, and who waits for it."""

    def __init__(
        self, ids: list[int], writer: Writer, max_tokens: int, row: int, news: News, draft: Drafter | None = None
    ) -> None:
        self.ids, self.writer, self.max_tokens, self.draft = ids, writer, max_tokens, draft
        self._row, self._news = row, news
        self.is_wanted = True
        # Until it is written together with others.
        self.sequence: SequenceBatch | None = None
        # Other answers to the same prompt.
        self.copies: list[_Job] = []

    def take(self, logits: F32, seen: list[int], context: int) -> None:
        """Choose the next token, and tell what may be shown."""
        try:
            shown = self.writer.take(logits, seen, self.max_tokens)
            if not self.writer.is_done and len(seen) >= context:
                shown += self.writer.finish("context")
        except Exception as error:
            self.fail(error)
            return
        if shown or self.writer.is_done:
            self._news.put((self._row, shown, self.writer.answer if self.writer.is_done else None))

    def fail(self, error: BaseException) -> None:
        self.is_wanted = False
        self._news.put((self._row, "", error))

    @property
    def is_over(self) -> bool:
        return self.writer.is_done or not self.is_wanted


class _Group:
    """Answers of about one length, written in one batch: its caches have the same room for all rows."""

    def __init__(self, runner: DecoderRunner) -> None:
        self._runner, self.jobs = runner, list[_Job]()
        self.batch = SequenceBatch(runner)

    def join(self, job: _Job, sequence: SequenceBatch) -> None:
        if not self.jobs:
            # Alone it stays where it is.
            self.batch = sequence
        else:
            if not isinstance(self.batch, JoinedSequences):
                alone, self.batch = self.batch, JoinedSequences(self._runner)
                self.batch.join(alone)
            self.batch.join(sequence)
        self.jobs.append(job)

    def leave(self, row: int) -> SequenceBatch:
        """The sequence of a row, which goes; the last one takes its place."""
        sequence = self.batch
        if isinstance(self.batch, JoinedSequences):
            sequence = SequenceBatch(self._runner)
            sequence.take_over(self.batch, row, len(self.batch.tokens[row]))
            self.batch.leave(row)
        self.jobs[row] = self.jobs[-1]
        self.jobs.pop()
        return sequence


def _room(length: int) -> int:
    """How many places the caches of a sequence have that gets one more token."""
    return max(FIRST_CAPACITY, 1 << (length + 1).bit_length())


@dataclass
class Counts:
    """What a scheduler has done so far."""

    requests: int = 0
    prompt_tokens: int = 0
    # Of these, those that were copied from other sequences.
    reused_tokens: int = 0
    written_tokens: int = 0
    steps: int = 0


class Scheduler:
    """Writes the answers of one model. Threads share it."""

    def __init__(self, lm: LanguageModel, parallel: int = 8) -> None:
        """At most `parallel` prompts are worked on at once; others wait."""
        self._lm, self.parallel, self.counts = lm, parallel, Counts()
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._is_on = False
        # Only the thread that works looks at these.
        self._reading: deque[_Job] = deque()
        # By the room of their caches.
        self._groups: dict[int, _Group] = {}
        self._running = 0

    @staticmethod
    def serves(lm: LanguageModel) -> bool:
        """Whether the model runs where sequences can be joined: on the host, with positions that turn the same however
        long the others are."""
        program = lm._runner.program
        is_here = isinstance(program, CompiledGraph) and program.device == "cpu"
        return is_here and lm._runner.changes_at is None

    @property
    def load(self) -> tuple[int, int]:
        """How many answers are worked on, and how many wait."""
        return len(self._reading) + self._running, len(self._waiting)

    def steps(self, prompts: list[list[int]], max_tokens: int, read: ReadOptions, n: int = 1) -> Steps:
        """The texts that follow prompts, `n` of each, as they come."""
        news: News = queue.SimpleQueue()
        jobs = []
        for row in range(len(prompts) * n):
            ids = prompts[row // n]
            writer = Writer(self._lm.tokenizer, read.sampling, read.stop, row, len(ids), read.logprobs, read.form)
            jobs.append(_Job(ids, writer, max_tokens, row, news, drafter_of(read.draft)))
        firsts = jobs[::n]
        for number, first in enumerate(firsts):
            first.copies = jobs[number * n + 1 : (number + 1) * n]
        answers: list[Completion | None] = [None] * len(jobs)
        try:
            self._add(firsts)
            while None in answers:
                shown = [""] * len(jobs)
                try:
                    row, shown[row], answer = news.get(timeout=_SECONDS)
                except queue.Empty:
                    answer = None
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    answers[row] = answer
                yield shown
            return [answer for answer in answers if answer is not None]
        finally:
            for job in jobs:
                job.is_wanted = False

    def _add(self, jobs: list[_Job]) -> None:
        with self._lock:
            self._waiting.extend(jobs)
            if not self._is_on:
                self._is_on = True
                threading.Thread(target=self._work, name="rlx-scheduler", daemon=True).start()

    def _work(self) -> None:
        while self._has_work():
            try:
                self._drop_unwanted()
                for group in [*self._groups.values()]:
                    self._step(group)
                if self._reading:
                    self._read_on()
            except BaseException as error:
                # What the caches hold now nobody knows.
                jobs = [job for group in self._groups.values() for job in group.jobs]
                for job in (*jobs, *self._reading):
                    for one in (job, *job.copies):
                        one.fail(error)
                self._groups, self._running = {}, 0
                self._reading.clear()

    def _has_work(self) -> bool:
        with self._lock:
            while self._waiting and len(self._reading) + self._running < self.parallel:
                self._reading.append(self._waiting.popleft())
                self.counts.requests += 1
            self._is_on = bool(self._reading or self._running)
            return self._is_on

    def _drop_unwanted(self) -> None:
        for room, group in [*self._groups.items()]:
            for row in reversed(range(len(group.jobs))):
                if not group.jobs[row].is_wanted:
                    self._lm.kept.keep(self._leave(room, group, row))
        for job in [job for job in self._reading if not any(one.is_wanted for one in (job, *job.copies))]:
            self._reading.remove(job)
            if job.sequence is not None:
                self._lm.kept.keep(job.sequence)

    def _step(self, group: _Group) -> None:
        """One token for every sequence of a group; for the only one there is those, too, that were guessed."""
        jobs, batch, context = group.jobs, group.batch, self._lm.config.context
        if self._running == 1 and jobs[0].draft is not None:
            self.counts.written_tokens += self._step_with_guesses(batch, jobs[0], jobs[0].draft, context)
        else:
            logits = batch.extend([job.writer.answer.token_ids[-1:] for job in jobs])
            self.counts.written_tokens += len(jobs)
            for row, job in enumerate(jobs):
                job.take(logits[row], batch.tokens[row], context)
        self.counts.steps += 1
        [room] = [room for room, one in self._groups.items() if one is group]
        for row in reversed(range(len(jobs))):
            job = jobs[row]
            if job.is_over:
                self._lm.kept.keep(self._leave(room, group, row))
            elif _room(len(batch.tokens[row])) > room:
                self._join(job, self._leave(room, group, row))

    @staticmethod
    def _step_with_guesses(batch: SequenceBatch, job: _Job, draft: Drafter, context: int) -> int:
        def take(logits: F32, seen: list[int]) -> int | None:
            job.take(logits, seen, context)
            return None if job.is_over else job.writer.answer.token_ids[-1]

        written = job.writer.answer.token_ids
        most = min(job.max_tokens - len(written), context - len(batch.tokens[0])) - 1
        return draft.step(batch, written[-1], take, most)

    def _read_on(self) -> None:
        """Read a piece of the prompt whose turn it is."""
        job = self._reading.popleft()
        if job.sequence is None:
            job.sequence = self._lm.kept.take(job.ids)
            self.counts.prompt_tokens += len(job.ids)
            self.counts.reused_tokens += len(job.sequence.tokens[0])
            # At once, and not piece by piece.
            job.sequence.reserve(len(job.ids) + 1)
        self._share(job, job.sequence)
        known = len(job.sequence.tokens[0])
        size = PIECE if self._groups or self._reading else PREFILL_CHUNK
        self._reading.append(job)
        logits = job.sequence.extend([job.ids[known : known + size]])
        if known + size >= len(job.ids):
            self._begin(job, job.sequence, logits[0])
            self._reading.pop()

    def _share(self, job: _Job, sequence: SequenceBatch) -> None:
        """Copy what another sequence has already of what this prompt goes on with."""
        there = [(group.batch, row) for group in self._groups.values() for row in range(len(group.jobs))]
        there += [(other.sequence, 0) for other in self._reading if other.sequence is not None]
        known = len(sequence.tokens[0])
        for other, row in there:
            length = min(shared_length(other.tokens[row], job.ids), len(job.ids) - 1)
            if length >= known + _LEAST_SHARED:
                sequence.take_over(other, row, length)
                self.counts.reused_tokens += len(sequence.tokens[0]) - known
                known = len(sequence.tokens[0])

    def _begin(self, job: _Job, sequence: SequenceBatch, logits: F32) -> None:
        """A prompt is read: its answers are written from here on."""
        for copy in job.copies:
            copy.sequence = SequenceBatch(self._lm._runner)
            copy.sequence.take_over(sequence, 0, len(job.ids))
        for one in (job, *job.copies):
            assert one.sequence is not None
            self.counts.written_tokens += 1
            one.take(logits, one.sequence.tokens[0], self._lm.config.context)
            if one.is_over:
                self._lm.kept.keep(one.sequence)
            else:
                self._join(one, one.sequence)
        job.copies = []

    def _join(self, job: _Job, sequence: SequenceBatch) -> None:
        room = _room(len(sequence.tokens[0]))
        self._groups.setdefault(room, _Group(self._lm._runner)).join(job, sequence)
        job.sequence = None
        self._running += 1

    def _leave(self, room: int, group: _Group, row: int) -> SequenceBatch:
        sequence = group.leave(row)
        self._running -= 1
        if not group.jobs:
            del self._groups[room]
        return sequence
