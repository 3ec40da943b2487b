"""Sampling: each step against its definition, and draws against probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import chisquare

from rlx.errors import OpError
from rlx.models.sampling import Sampler, SamplingOptions, penalized, probabilities
from rlx.models.stop_strings import StopScanner

scores = st.lists(st.floats(-20, 20), min_size=2, max_size=12).map(lambda v: np.array(v, np.float64))


def test_temperature_zero_takes_the_first_largest():
    assert Sampler(SamplingOptions()).choose(np.array([1.0, 3.0, 3.0, 2.0], np.float32)) == 1


def test_options_together_are_the_formula_in_f64():
    """Bias, penalties, temperature, top-k, top-p and min-p, one after the other, as llama.cpp and vLLM have them."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        logits, seen = rng.normal(0, 3, 50).astype(np.float32), rng.integers(0, 50, 30)
        written = seen[10:]
        bias = {int(t): float(v) for t, v in zip(rng.integers(0, 50, 5), rng.normal(0, 4, 5))}
        options = SamplingOptions.of(
            "test",
            {
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.9,
                "min_p": 0.02,
                "repetition_penalty": 1.3,
                "presence_penalty": 0.4,
                "frequency_penalty": 0.2,
                "logit_bias": bias,
            },
        )
        x = logits.astype(np.float64)
        for token, value in bias.items():
            x[token] += value
        for token in set(seen.tolist()):
            x[token] = x[token] / 1.3 if x[token] > 0 else x[token] * 1.3
        for token in set(written.tolist()):
            x[token] -= 0.4 + 0.2 * (written == token).sum()
        x /= 0.7
        order = np.argsort(-x, kind="stable")[:20]
        p = softmax(x[order])
        order = order[: np.searchsorted(np.cumsum(p), 0.9) + 1]
        order = order[x[order] >= x[order[0]] + np.log(0.02)]
        expected = np.zeros(50)
        expected[order] = softmax(x[order])
        drawn = np.zeros(50)
        sampler = Sampler(options)
        sampler._drawn = lambda scores, found=drawn, options=options: found.__iadd__(probabilities(scores, options))
        sampler.choose(logits, seen.tolist(), written.tolist())
        np.testing.assert_allclose(drawn, expected, atol=1e-9)


@pytest.mark.parametrize("bias", [{"a": 1}, {1: "x"}, {1: float("nan")}, {1: float("inf")}, {-1: 1.0}, 7, {1: True}])
def test_biases_that_are_none(bias):
    with pytest.raises(OpError, match="test: logit_bias must be numbers by token id"):
        SamplingOptions.of("test", {"logit_bias": bias})


@given(scores, st.floats(0.1, 3))
def test_temperature_scales_logits(x, t):
    np.testing.assert_allclose(probabilities(x, SamplingOptions(t)), softmax(x / t), atol=1e-12)


@given(scores, st.integers(1, 12))
def test_top_k_keeps_the_k_largest(x, k):
    p = probabilities(x, SamplingOptions(1.0, top_k=k))
    kept = np.flatnonzero(x >= np.sort(x)[::-1][min(k, len(x)) - 1])
    np.testing.assert_allclose(p[kept], softmax(x[kept]), atol=1e-12)
    assert p.sum() == pytest.approx(1)


@given(scores, st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_reach_p(x, share):
    p = probabilities(x, SamplingOptions(1.0, top_p=share))
    kept, whole = p > 0, softmax(x)
    assert whole[kept].sum() >= share - 1e-9
    least = whole[kept].min()
    assert whole[kept].sum() - least < share + 1e-9
    assert (whole[~kept] <= least + 1e-12).all()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999999])
def test_top_p_of_many_tokens_is_that_of_sorting_all(share):
    x = np.random.default_rng(0).integers(-40, 40, 20_000) / 8.0  # many ties, of which the first tokens are taken
    whole = softmax(x)
    order = np.argsort(-whole, kind="stable")
    count = np.searchsorted(np.cumsum(whole[order]), share) + 1
    kept = np.flatnonzero(probabilities(x, SamplingOptions(1.0, top_p=share)))
    assert len(kept) == pytest.approx(count, abs=1)
    np.testing.assert_array_equal(kept, np.sort(order[: len(kept)]))


@given(scores, st.floats(0, 1))
def test_min_p_is_relative_to_the_most_probable(x, least):
    p = probabilities(x, SamplingOptions(1.0, min_p=least))
    whole = softmax(x)
    clear = np.abs(whole - least * whole.max()) > 1e-12
    np.testing.assert_array_equal((p > 0)[clear], (whole >= least * whole.max())[clear])


@given(scores, st.floats(0.5, 2))
def test_the_penalty_makes_seen_tokens_less_likely(x, r):
    got = penalized(x, [0, 0, 1], r)
    expected = [v / r if v > 0 else v * r for v in x[:2]]
    np.testing.assert_allclose(got, [*expected, *x[2:]])


def test_draws_follow_the_probabilities():
    x, options = np.array([0.0, 1.0, 2.0, -1.0]), SamplingOptions(0.8, top_k=3, seed=4)
    sampler = Sampler(options)
    counts = np.bincount([sampler.choose(x) for _ in range(4000)], minlength=4)
    p = probabilities(x, options)
    assert counts[p == 0].sum() == 0
    assert chisquare(counts[p > 0], 4000 * p[p > 0]).pvalue > 1e-3


def test_rows_of_a_batch_draw_differently():
    x, options = np.zeros(50), SamplingOptions(1.0, seed=0)
    draws = [[s.choose(x) for _ in range(8)] for s in (Sampler(options, 0), Sampler(options, 1), Sampler(options, 0))]
    assert draws[0] == draws[2] != draws[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(temperature):
    for x in ([0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]):
        with pytest.raises(OpError, match=r"largest logit is (nan|inf|-inf)"):
            Sampler(SamplingOptions(temperature)).choose(np.array(x))


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"min_p": 2.0}, {"repetition_penalty": 0.0}, {"seed": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(OpError, match=next(iter(wrong))):
        SamplingOptions(**wrong)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_pieces_do_not_change_where_text_stops(text, stops, data):
    scanner, shown, at = StopScanner(stops), "", 0
    while at < len(text):
        size = data.draw(st.integers(1, 4))
        shown += scanner.push(text[at : at + size])
        at += size
        if scanner.stopped:
            break
    shown += scanner.flush()
    assert not any(stop in shown for stop in stops) or not stops
    assert text.startswith(shown)
    if not scanner.stopped:
        assert shown == text
    else:
        assert any(text.startswith(stop, len(shown)) for stop in stops)
