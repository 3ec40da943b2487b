"""Requests that are written together: the same answers as alone, whenever they come and go."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from models.tiny_models import LLAMA, language_model
from rlx.ir.dtype import DType
from rlx.models.joined_sequences import JoinedSequences
from rlx.models.kept_sequences import KeptSequences
from rlx.models.kv_cache import DecoderRunner, SequenceBatch
from rlx.models.scheduler import PIECE, Scheduler
from rlx.models.writing_options import read_options


@pytest.fixture(scope="module")
def lm():
    return language_model(replace(LLAMA, context=2000))


@pytest.fixture
def fed(monkeypatch):
    """How many tokens of how many sequences each run of the program was given."""
    found, run = [], DecoderRunner.run

    def noted(self, tokens, *others):
        found.append(tokens.shape)
        return run(self, tokens, *others)

    monkeypatch.setattr(DecoderRunner, "run", noted)
    return found


def write(scheduler, lm, prompt, count, n=1, seconds=0.0, **options):
    time.sleep(seconds)
    steps = scheduler.steps([lm.tokenizer.encode(prompt)], count, read_options("test", options), n)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def all_at_once(calls):
    found = [None] * len(calls)

    def one(number):
        found[number] = calls[number]()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("kv_dtype", [DType.F32, DType.I8], ids=["f32", "q8"])
def test_answers_are_those_that_prompts_have_alone(kv_dtype):
    """Requests of different options and lengths, which come and go at different times."""
    lm = language_model(replace(LLAMA, context=2000), kv_dtype=kv_dtype)
    scheduler = Scheduler(lm, parallel=5)
    cases = [
        (f"{'prompt ' * (7 * i % 5)}number {i}", 5 + 13 * (i % 4), {"temperature": 0.8 * (i % 2), "seed": i})
        for i in range(12)
    ]
    cases.append(("x" * 300, 9, {"schema": {"enum": ["one", "two"]}}))
    calls = [
        lambda p=p, c=c, o=o, i=i: write(scheduler, lm, p, c, seconds=0.003 * i, **o)
        for i, (p, c, o) in enumerate(cases)
    ]
    found = all_at_once(calls)
    for (prompt, count, options), answers in zip(cases, found):
        assert answers == lm.complete([prompt], count, **options)
    assert scheduler.counts.requests == 13 and scheduler.load == (0, 0)
    # Several tokens were written in one step.
    assert scheduler.counts.steps < scheduler.counts.written_tokens - 13


def test_several_answers_to_one_prompt(lm, fed):
    lm.kept = KeptSequences(lm._runner)
    scheduler = Scheduler(lm)
    answers = write(scheduler, lm, "a prompt that is read once", 6, n=3, temperature=1.0, seed=2)
    assert sum(rows * new for rows, new in fed) <= 26 + 3 * 6
    assert answers == lm.complete(["a prompt that is read once"], 6, n=3, temperature=1.0, seed=2)


def test_a_shared_beginning_is_read_once(lm, fed):
    lm.kept = KeptSequences(lm._runner)
    scheduler, system = Scheduler(lm), "You are a helpful assistant. " * 12
    first = write(scheduler, lm, system + "One", 3)
    read = sum(rows * new for rows, new in fed)
    found = all_at_once([lambda i=i: write(scheduler, lm, f"{system}{i} and more", 3) for i in range(4)])
    assert sum(rows * new for rows, new in fed) - read < 150 < read
    assert scheduler.counts.reused_tokens >= 4 * len(system)
    lm.kept = KeptSequences(lm._runner)
    assert first == lm.complete([system + "One"], 3)
    for i, answers in enumerate(found):
        assert answers == lm.complete([f"{system}{i} and more"], 3)


def test_the_next_turn_reads_what_is_new(lm, fed):
    lm.kept = KeptSequences(lm._runner)
    scheduler, prompt = Scheduler(lm), "A conversation. " * 20
    [answer] = write(scheduler, lm, prompt, 8)
    ids = [*lm.tokenizer.encode(prompt), *answer.token_ids]
    del fed[:]
    steps = scheduler.steps([[*ids, 65, 66]], 2, read_options("test", {}))
    assert len(list(steps)) >= 2 and fed[0] == (1, 3)


def test_long_prompts_are_read_in_pieces_between_steps(lm, fed):
    scheduler = Scheduler(lm)
    short = threading.Thread(target=write, args=(scheduler, lm, "short", 400))
    short.start()
    while len(fed) < 5:
        time.sleep(0.001)
    write(scheduler, lm, "long " * 300, 2)
    short.join()
    pieces = [place for place, (rows, new) in enumerate(fed) if rows == 1 and new > 1]
    assert max(new for _, new in fed) == PIECE and len(pieces) > 1500 // PIECE
    assert all(b > a + 1 for a, b in itertools.pairwise(pieces))


def test_short_answers_do_not_get_the_room_of_long_ones(lm, monkeypatch):
    made, new_caches = [], DecoderRunner.new_caches

    def noted(self, batch, capacity):
        made.append((batch, capacity))
        return new_caches(self, batch, capacity)

    monkeypatch.setattr(DecoderRunner, "new_caches", noted)
    prompts = ["very " * 220, "a", "b", "c" * 240]
    scheduler = Scheduler(lm)
    found = all_at_once([lambda p=p: write(scheduler, lm, p, 60) for p in prompts])
    assert [a for answers in found for a in answers] == [lm.complete([p], 60)[0] for p in prompts]
    assert max(rows for rows, _ in made) > 1 == max(rows for rows, capacity in made if capacity > 1024)


def test_whoever_leaves_makes_room(lm):
    scheduler = Scheduler(lm, parallel=1)
    steps = scheduler.steps([lm.tokenizer.encode("x")], 1900, read_options("test", {"logit_bias": {257: -100}}))
    next(steps)
    steps.close()
    assert len(write(scheduler, lm, "y", 3)[0].token_ids) <= 3
    assert scheduler.load == (0, 0) and scheduler.counts.written_tokens < 1000


def test_an_error_reaches_all_and_ends_nothing(lm, monkeypatch):
    scheduler, advance = Scheduler(lm), SequenceBatch._advance

    def broken(self, pieces, rows):
        if len(pieces) == 2:
            raise MemoryError("none left")
        return advance(self, pieces, rows)

    def caught(*args):
        try:
            return write(scheduler, lm, *args)
        except MemoryError as error:
            return str(error)

    monkeypatch.setattr(SequenceBatch, "_advance", broken)
    assert all_at_once([lambda: caught("a", 900), lambda: caught("b", 900)]) == ["none left"] * 2
    monkeypatch.undo()
    assert write(scheduler, lm, "c", 3) == lm.complete(["c"], 3)


def test_rows_join_and_leave(lm):
    """Logits are those of each sequence alone, whatever rows moved."""
    rng, joined, alone = np.random.default_rng(0), JoinedSequences(lm._runner), []
    for turn in range(30):
        if alone and rng.random() < 0.3:
            row = int(rng.integers(len(alone)))
            joined.leave(row)
            alone[row] = alone[-1]
            alone.pop()
        else:
            for batch in (SequenceBatch(lm._runner), SequenceBatch(lm._runner)):
                batch.extend([[int(t) for t in np.random.default_rng(turn).integers(0, 250, 1 + 40 * turn % 90)]])
            joined.join(batch)
            alone.append(batch)
        if alone:
            token = [int(t) for t in rng.integers(0, 250, len(alone))]
            found = joined.extend([[t] for t in token])
            for row, (batch, one) in enumerate(zip(alone, token)):
                np.testing.assert_allclose(found[row], batch.extend([[one]])[0], rtol=1e-4, atol=1e-5)
            assert list(joined.tokens) == [batch.tokens[0] for batch in alone]
            assert np.shares_memory(joined._caches[0], joined._own[0])


def test_kept_sequences_are_bounded(lm):
    kept = KeptSequences(lm._runner, most_sequences=3, most_bytes=10**9)

    def sequence(*ids):
        batch = SequenceBatch(lm._runner)
        batch.extend([list(ids)])
        return batch

    for first in range(5):
        kept.keep(sequence(first, 1, 2, 3, 4, 5))
    assert len(kept) == 3 and kept.take([0, 1, 2]).tokens == [[]]
    # Of one that is much longer the beginning is copied, and it stays.
    assert kept.take([4, 1, 9]).tokens == [[4, 1]] and len(kept) == 3
    assert kept.take([4, 1, 2, 3, 9]).tokens == [[4, 1, 2, 3]] and len(kept) == 2
    kept.keep(sequence(3, 1, 2, 3, 4, 5, 6))
    assert len(kept) == 2  # what begins another one is not kept beside it
    small = KeptSequences(lm._runner, most_bytes=kept.size // 2)
    for first in range(3):
        small.keep(sequence(first, *range(10)))
    assert len(small) == 1 and small.take([2, 0, 1]).tokens == [[2, 0]]
