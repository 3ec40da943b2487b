"""Guesses at what a text goes on with: they change no answer, and save steps where they are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from models.tiny_models import LLAMA, byte_tokenizer, gguf_file, language_model, llama_arrays
from rlx.errors import OpError
from rlx.models.drafts import MOST, Drafter, DraftModel, PromptLookup
from rlx.models.kv_cache import SequenceBatch
from rlx.models.model_files import DecoderFiles
from rlx.models.sampling import Sampler, SamplingOptions, probabilities
from rlx.models.scheduler import Scheduler
from rlx.models.writing_options import read_options

CONFIG = replace(LLAMA, context=600)


@pytest.fixture(scope="module")
def lm():
    return language_model(CONFIG)


@pytest.fixture(scope="module")
def nearly():
    """A model that mostly agrees with the other one."""
    arrays = llama_arrays(CONFIG)
    rng = np.random.default_rng(5)
    arrays["output_norm.weight"] = arrays["output_norm.weight"] * rng.normal(1, 0.05, CONFIG.hidden).astype(np.float32)
    return language_model(CONFIG, weights=gguf_file(arrays))


@pytest.fixture
def steps(monkeypatch):
    """The tokens of each step."""
    found, advance = [], SequenceBatch._advance

    def noted(self, pieces, rows):
        found.append(len(pieces[0]))
        return advance(self, pieces, rows)

    monkeypatch.setattr(SequenceBatch, "_advance", noted)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 1.2, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 1},
        {"frequency_penalty": 0.5, "logprobs": 2},
        {"schema": {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 9, "maxItems": 9}},
    ],
)
@pytest.mark.parametrize("draft", ["prompt", "model"])
def test_answers_stay_as_they_are(lm, nearly, draft, options):
    options = {"logit_bias": {257: -100.0}, **options}
    prompt = "one, two, three, one, two, three, one, two, "
    expected = lm.complete([prompt], 120, **options)
    found = lm.complete([prompt], 120, draft="prompt" if draft == "prompt" else nearly, **options)
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]
    assert [a.text for a in found] == [a.text for a in expected]
    read = read_options("test", {**options, "draft": draft if draft == "prompt" else nearly})
    pieces = Scheduler(lm).steps([lm.tokenizer.encode(prompt)], 120, read)
    assert "".join(texts[0] for texts in pieces) == expected[0].text


def test_right_guesses_save_steps_and_wrong_ones_are_given_up(lm, nearly, steps):
    options = {"logit_bias": {257: -100.0}}
    lm.generate("x", 100, **options)
    assert len(steps) == 100
    # A copy of the model is always right.
    same = language_model(CONFIG)
    del steps[:]
    lm.generate("xx", 100, draft=same, **options)
    mine = [new for new in steps if new > 2]
    assert sum(mine) >= 90 and max(mine) == MOST + 1

    class Wrong:
        asked = 0

        def __call__(self, tokens, count):
            self.asked += 1
            return [1] * count

    batch, wrong = SequenceBatch(lm._runner), Wrong()
    drafter = Drafter(wrong)
    batch.extend([[65]])
    for _ in range(100):
        assert drafter.step(batch, 66, lambda logits, seen: 7, 10) == 1
    assert batch.tokens[0] == [65] + 100 * [66] and wrong.asked < 12


def test_what_stood_there_before_is_guessed():
    lookup = PromptLookup()
    assert lookup([1, 2, 3], 3) == []
    assert lookup([1, 2, 3, 4, 5, 1, 2], 3) == [3, 4, 5]
    assert lookup([1, 2, 3, 4, 5, 1, 2, 9, 9, 1, 2], 2) == [9, 9]  # the last place
    assert lookup([1, 2, 3, 4, 5, 1, 2, 9, 9, 1, 2, 3], 8) == [4, 5, 1, 2, 9, 9, 1, 2]  # the longest context


def test_the_distribution_is_that_of_the_model():
    """The first tokens that are drawn, where one of them was guessed."""
    logits = np.array([[0.0, 1.0, 0.5, -1.0]], np.float32)

    class Fixed:
        """Stands for a sequence."""

        def __init__(self):
            self.tokens = [[0]]

        def all_logits(self, new):
            self.tokens[0] += new
            return np.repeat(logits, len(new), axis=0)

        def truncate(self, row, length):
            del self.tokens[row][length:]

    options, drawn = SamplingOptions(1.0, seed=1), []
    sampler = Sampler(options)
    drafter = Drafter(lambda tokens, count: [1, 2][:count])

    def take(logits, seen):
        drawn.append(sampler.choose(logits))
        return drawn[-1]

    while len(drawn) < 4000:
        drafter.step(Fixed(), 0, take, 2)
    counts = np.bincount(drawn, minlength=4)
    assert chisquare(counts, probabilities(logits[0].astype(np.float64), options) * len(drawn)).pvalue > 1e-3


def test_what_cannot_guess(lm):
    with pytest.raises(OpError, match="generate: draft must be 'prompt' or a language model, got 7"):
        lm.generate("x", 1, draft=7)
    with pytest.raises(OpError, match="must be another model"):
        lm.generate("x", 1, draft=lm)
    with pytest.raises(OpError, match="has other tokens than"):
        lm.generate("x", 1, draft=language_model(replace(CONFIG, vocab=270)))
    tokenizer = byte_tokenizer()
    tokenizer._backend.add_tokens(["more"])
    other = type(lm)(DecoderFiles(lm.path, CONFIG, gguf_file(llama_arrays(CONFIG)), lambda: tokenizer))
    with pytest.raises(OpError, match="has other tokens than"):
        lm.generate("x", 1, draft=other)


def test_a_smaller_model_guesses_nothing_behind_a_picture_that_it_does_not_see(lm):
    """Rows of pictures are tokens beyond the vocabulary."""
    draft = DraftModel(lm)
    assert len(draft([1, 2, 3], 2)) == 2
    assert draft([1, 2, CONFIG.vocab + 5, 3], 2) == []
    assert len(draft([1, 2, 3, 4], 2)) == 2
