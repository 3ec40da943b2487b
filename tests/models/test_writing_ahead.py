"""Tokens that are chosen where logits are, several steps at a time: the same answers as with the host between steps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from models.tiny_models import language_model
from rlx.backends.api import Executable
from rlx.models.choosing import Choice
from rlx.models.generation import AHEAD, ContextLimitWarning
from rlx.models.kv_cache import SequenceBatch
from rlx.models.sampling import Sampler, SamplingOptions

PROMPTS = ["Hello", "a much longer prompt than the others", "?"]
OPTIONS = {
    "greedy": {},
    "temperature": {"temperature": 1.3, "seed": 4},
    "top_k": {"temperature": 2.0, "top_k": 5, "seed": 1},
    "top_p": {"temperature": 3.0, "top_p": 0.7, "seed": 2},
    "min_p": {"temperature": 3.0, "min_p": 0.4, "seed": 3},
    "all": {"temperature": 4.0, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 5},
    "stop": {"temperature": 2.0, "seed": 6, "stop": ["a", "7"]},
}


@pytest.fixture(scope="module")
def lm():
    return language_model()


@pytest.fixture
def ahead(monkeypatch):
    """Steps of the CPU as those of a device; how many there were each time."""
    steps, write_ahead = [], SequenceBatch.write_ahead

    def noted(self, first, options, uniforms):
        steps.append(len(uniforms))
        return write_ahead(self, first, options, uniforms)

    monkeypatch.setattr(Executable, "chooses_tokens", True)
    monkeypatch.setattr(SequenceBatch, "write_ahead", noted)
    return steps


def answers(lm, max_tokens, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextLimitWarning)
        return lm.complete(PROMPTS, max_tokens, **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_answers_are_those_of_the_host(lm, request, name):
    wanted = answers(lm, 21, **OPTIONS[name])
    steps = request.getfixturevalue("ahead")
    assert answers(lm, 21, **OPTIONS[name]) == wanted
    assert steps[0] == AHEAD and max(steps) == AHEAD


def test_answers_end_with_the_context(lm, request):
    wanted = answers(lm, 200)
    assert "context" in {a.finish_reason for a in wanted}
    assert request.getfixturevalue("ahead") == [] and answers(lm, 200) == wanted


def test_tokens_behind_the_end_are_forgotten(lm, ahead):
    """The next conversation finds the sequence as it was shown."""
    first = lm.complete(["Hello"], 11)[0]
    (batch,) = lm.kept._idle[-1:]
    assert batch.tokens[0] == [*lm.tokenizer.encode("Hello"), *first.token_ids[:-1]]
    longer = lm.complete(["Hello"], 19)[0]
    assert longer.token_ids[:11] == first.token_ids
    pieces = list(lm.stream("Hello", 19))
    assert "".join(pieces) == longer.text and len(pieces) > 3


def test_where_the_host_is_as_fast_it_goes_on(lm, monkeypatch):
    wanted = answers(lm, 9)
    monkeypatch.setattr(Executable, "runs_ahead", True)
    assert answers(lm, 9) == wanted


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}, {"logprobs": 2}])
def test_what_needs_the_host_goes_there(lm, ahead, options):
    assert len(lm.complete(["Hello"], 9, **options)[0].token_ids) == 9
    assert not ahead


def test_choices_are_those_of_a_sampler():
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((40, 1, 500)).astype("f4") * 3
    logits[:20] = np.round(logits[:20])  # many equal ones
    options = SamplingOptions(temperature=1.7, top_k=90, top_p=0.8, min_p=0.01, seed=3)
    samplers = [Sampler(options, row) for row in range(40)]
    uniforms = np.array([Sampler(options, row).draws(1)[0] for row in range(40)])
    zeros = np.zeros(40, np.int32)
    tokens, positions, lengths = Choice(options, 500, "cpu")(logits, uniforms, zeros[:, None] + 3, zeros + 4, zeros + 1)
    assert np.asarray(tokens)[:, 0].tolist() == [s.choose(row[0]) for s, row in zip(samplers, logits)]
    assert set(np.asarray(positions).ravel()) == {4} and set(np.asarray(lengths).tolist()) == {5}
