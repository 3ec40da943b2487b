"""Sampling of token ids against a token-by-token procedure and against the probabilities it promises."""

import numpy as np
import pytest
from scipy import special, stats

from rlx import ops, random
from rlx.errors import OpError
from rlx.ir.rng import Philox4x32

rng = np.random.default_rng(31)


def drawn_one_by_one(logits, seed, top_k=0, top_p=1.0, temperature=1.0):
    """One row after the other, with the words of one stream."""
    stream = Philox4x32(seed)
    ids = []
    for row in logits:
        scores = [float(v) / max(temperature, 1e-6) for v in row]
        allowed = set(range(len(row)))
        if 0 < top_k < len(row):
            bound = sorted(row, reverse=True)[top_k - 1]
            allowed = {i for i in allowed if row[i] >= bound}
        probability = dict(zip(sorted(allowed), special.softmax([scores[i] for i in sorted(allowed)])))
        if top_p < 1.0:
            kept, mass = [], 0.0
            for i in sorted(allowed, key=lambda i: (-row[i], i)):
                if kept and mass >= top_p:
                    break
                kept.append(i)
                mass += probability[i]
            probability = {i: probability[i] / mass for i in sorted(kept)}
        r, running = stream.next_f32(), 0.0
        for i, p in probability.items():
            running += p
            if r < running:
                ids.append(i)
                break
    return ids


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_k": 5, "top_p": 0.8, "temperature": 0.7},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_p": 0.0},
        {"top_k": 100},
    ],
)
def test_each_row_takes_the_next_word_of_the_stream(both, options):
    logits = rng.standard_normal((40, 12)) * 2
    ids = both(lambda l, k: ops.sample(l, k, **options), logits, random.key(77))
    np.testing.assert_array_equal(ids, drawn_one_by_one(logits, 77, **options))


def test_ties_at_the_top_k_cut_are_kept():
    logits = np.tile([1.0, 2.0, 2.0, 2.0, 0.0], (300, 1))
    ids = np.asarray(ops.sample(logits, random.key(5), top_k=2))
    assert set(ids.tolist()) == {1, 2, 3}
    assert ids.dtype == np.int32


def test_ties_at_the_top_p_cut_go_to_lower_ids():
    logits = np.tile(np.zeros(4), (300, 1))
    assert set(np.asarray(ops.sample(logits, random.key(5), top_p=0.5)).tolist()) == {0, 1}


def test_frequencies_follow_the_softmax():
    row = np.array([0.0, 1.0, -1.0, 2.0])
    ids = np.asarray(ops.sample(np.tile(row, (4000, 1)), random.key(8), temperature=1.5))
    counts = np.bincount(ids, minlength=4)
    assert stats.chisquare(counts, special.softmax(row / 1.5) * 4000).pvalue > 0.01


def test_zero_temperature_is_greedy_and_forbidden_tokens_are_never_drawn():
    logits = rng.standard_normal((50, 9))
    np.testing.assert_array_equal(ops.sample(logits, random.key(1), temperature=0.0), logits.argmax(axis=1))
    logits[:, ::2] = -np.inf
    assert (np.asarray(ops.sample(logits, random.key(1))) % 2 == 1).all()


def test_shapes():
    key = random.key(1)
    assert np.asarray(ops.sample(np.zeros(5), key)).shape == ()
    assert np.asarray(ops.sample(np.zeros((2, 3, 5)), key)).shape == (2, 3)


def test_seed_zero_gives_a_new_key_each_time():
    first, second = ops.sampling_key(0), ops.sampling_key(0)
    assert first.tolist() != second.tolist()
    assert ops.sampling_key(9).tolist() == random.key(9).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.Sample(-1), "top_k must be"),
        (lambda: ops.Sample(0, 1.5), r"top_p must be in \[0, 1\]"),
        (lambda: ops.Sample(temperature=-1.0), "temperature must not be negative"),
        (lambda: ops.Sample(temperature=float("nan")), "temperature must not be negative"),
        (lambda: ops.sample(np.zeros((2, 0)), random.key(1)), "at least one entry"),
        (lambda: ops.sample(np.zeros(4), np.zeros(2)), r"needs one key u32\[2\]"),
        (lambda: ops.sample(np.zeros(4), np.zeros((3, 2), np.uint32)), r"needs one key u32\[2\]"),
    ],
)
def test_errors(call, message):
    with pytest.raises(OpError, match=message):
        call()
