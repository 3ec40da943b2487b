"""Writing text: greedy, sampled, in batches, streamed, stopped, and at the end of the context."""

from __future__ import annotations

import pydoc
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

import rlx
from models.tiny_models import LLAMA, byte_tokenizer, language_model
from rlx.errors import OpError, RlxError
from rlx.models.generation import ContextLimitWarning, write
from rlx.models.kv_cache import ContextOverflow, DecoderRunner, SequenceBatch
from rlx.models.language_model import LanguageModel
from rlx.models.sampling import SamplingOptions
from rlx.models.token_losses import token_losses
from rlx.models.writing_options import OPTIONS

PROMPTS = ["Hello", "a much longer prompt than the others", "?"]


@pytest.fixture(scope="module")
def lm():
    return language_model()


class ScriptedBatch:
    """Stands for a model that writes given bytes."""

    def __init__(self, *scripts: bytes) -> None:
        self._scripts = [[*script, 257] for script in scripts]
        self.tokens = [[65] for _ in scripts]

    def can_write_ahead(self, options):
        return False

    def words(self, row):
        return self.tokens[row]

    def extend(self, new):
        for old, more in zip(self.tokens, new):
            old.extend(more)
        return self.logits()

    def logits(self):
        rows = np.zeros((len(self._scripts), 260), np.float32)
        for row, (script, tokens) in enumerate(zip(self._scripts, self.tokens)):
            rows[row, script[min(len(tokens) - 1, len(script) - 1)]] = 1
        return rows


def run_script(*scripts: bytes, max_tokens=100, stop=(), context=1000):
    batch = ScriptedBatch(*scripts)
    steps = write(
        batch,
        byte_tokenizer(),
        batch.logits(),
        options=SamplingOptions(),
        max_tokens=max_tokens,
        stop=stop,
        context=context,
    )
    shown = []
    while True:
        try:
            shown.append(next(steps))
        except StopIteration as end:
            return shown, end.value


def greedy(lm, prompt, count):
    session, ids = lm.session(), []
    logits = session.prefill(lm.tokenizer.encode(prompt))
    while len(ids) < count and int(logits.argmax()) != 257:
        ids.append(int(logits.argmax()))
        logits = session.step(ids[-1])
    return ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_takes_the_largest_logit(lm, prompt):
    expected = greedy(lm, prompt, 12)
    assert lm.generate(prompt, max_tokens=12) == lm.tokenizer.decode(expected)


def test_prompts_of_different_lengths_continue_as_they_do_alone(lm):
    together = lm.complete(PROMPTS, max_tokens=10)
    for prompt, answer in zip(PROMPTS, together):
        (alone,) = lm.complete([prompt], max_tokens=10)
        assert answer == alone
        assert answer.prompt_tokens == len(prompt)
    assert lm.generate(PROMPTS, max_tokens=10) == [a.text for a in together]


def test_ids_that_the_tokenizer_has_no_token_for_are_no_text():
    """Vocabularies of models are often padded to a round number."""
    lm = language_model(replace(LLAMA, vocab=700))
    (answer,) = lm.complete(["Hi"], max_tokens=20)
    written = [i for i in answer.token_ids if i < 260]
    assert 0 < len(written) < 20 == len(answer.token_ids)
    assert answer.text == lm.tokenizer.decode(written) == lm.tokenizer.decode(answer.token_ids)
    with pytest.raises(RlxError, match="token ids of this model are 0 to 699, got 700"):
        lm.tokenizer.decode([700])


def test_a_seed_repeats_itself(lm):
    options = {"temperature": 1.5, "max_tokens": 16}
    first = lm.complete(["Hi"], seed=1, **options)
    assert first == lm.complete(["Hi"], seed=1, **options)
    others = [lm.complete(["Hi"], seed=seed, **options) for seed in range(2, 6)]
    assert any(first[0].token_ids != o[0].token_ids for o in others)
    assert lm.complete(["Hi", "Hi"], seed=1, **options)[0] == first[0]


def test_options_may_be_numbers_of_numpy(lm):
    plain = lm.complete(["Hi"], 5, temperature=0.5, top_k=9, seed=3)
    assert lm.complete(["Hi"], np.int64(5), temperature=np.float64(0.5), top_k=np.int32(9), seed=np.uint8(3)) == plain
    with pytest.raises(OpError, match=r"top_k must be a whole number from 1 on, got 2\.0"):
        lm.complete(["Hi"], 5, top_k=np.float32(2))


def test_pieces_join_to_the_text(lm):
    pieces = list(lm.stream("Hello", max_tokens=20))
    assert "".join(pieces) == lm.generate("Hello", max_tokens=20)


def test_a_prompt_that_begins_like_the_last_one_is_not_read_again(monkeypatch):
    lm, read = language_model(), []
    original = SequenceBatch._advance

    def counting(self, pieces, rows):
        read.append(sum(map(len, pieces)))
        return original(self, pieces, rows)

    monkeypatch.setattr(SequenceBatch, "_advance", counting)
    first = lm.generate("a shared beginning", max_tokens=2)
    read.clear()
    assert lm.generate("a shared beginning", max_tokens=2) == first
    assert read[0] == 1
    read.clear()
    extended = lm.generate("a shared beginning and more", max_tokens=2)
    assert read[0] == len(" and more")
    assert language_model().generate("a shared beginning and more", max_tokens=2) == extended


def test_characters_of_several_bytes_come_whole():
    text = "h\u00e9llo \u4e16\u754c \U0001f389!"
    shown, (answer,) = run_script(text.encode())
    assert [s[0] for s in shown if s[0]] == list(text)
    assert answer.text == text and answer.finish_reason == "stop"
    assert answer.token_ids == list(text.encode())


def test_a_character_that_never_ends_becomes_a_replacement():
    _, (answer,) = run_script(b"ok\xf0\x9f", max_tokens=4)
    assert answer.text.startswith("ok") and set(answer.text[2:]) == {"\ufffd"}


@pytest.mark.parametrize(
    ("stop", "text"), [("STOP", "one "), (["xx", "two"], "one STOP "), ("missing", "one STOP two"), (["", "e"], "on")]
)
def test_stop_strings_end_the_text_and_are_never_shown(stop, text):
    shown, (answer,) = run_script(b"one STOP two", stop=[stop] if isinstance(stop, str) else stop)
    assert answer.text == text == "".join(s[0] for s in shown)
    assert answer.finish_reason == "stop"


def test_rows_end_on_their_own():
    shown, answers = run_script(b"a", b"abcdef", b"", max_tokens=4)
    assert [a.text for a in answers] == ["a", "abcd", ""]
    assert [a.finish_reason for a in answers] == ["stop", "length", "stop"]
    assert ["".join(row) for row in zip(*shown)] == ["a", "abcd", ""]


def test_a_full_context_ends_the_answer_and_says_so():
    lm = language_model(eos=1000)
    with pytest.warns(ContextLimitWarning, match="the context of 96 tokens is full: the answer ends after 5 tokens"):
        (answer,) = lm.complete(["x" * (LLAMA.context - 4)], max_tokens=50)
    assert answer.finish_reason == "context" and len(answer.token_ids) == 5
    with pytest.warns(ContextLimitWarning, match="the answer ends after 4 tokens"):
        _, (answer,) = run_script(b"abcdef", context=4)
    assert answer.text == "abcd" and answer.finish_reason == "context"


def test_a_prompt_that_is_too_long_is_refused(lm):
    with pytest.raises(ContextOverflow, match="prompt of 96 tokens leaves no room in the context of 96"):
        lm.generate("x" * LLAMA.context)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 on, got 0"),
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"top_p": 0.0}, "top_p must be above 0"),
    ],
)
def test_impossible_options_are_refused(lm, arguments, message):
    with pytest.raises(OpError, match=message):
        lm.generate("Hi", **arguments)


def test_no_prompts_have_no_answers(lm):
    assert lm.complete([]) == [] and lm.generate([]) == []
    with pytest.raises(OpError, match="prompts must be a list"):
        lm.complete("Hello")
    with pytest.raises(OpError, match="logits: the prompt has no tokens"):
        lm.logits([])


def test_an_empty_prompt_is_refused(lm):
    with pytest.raises(OpError, match="the prompt has no tokens"):
        lm.generate("")


def test_perplexity_is_the_mean_of_log_probabilities(lm, monkeypatch):
    text = "the quick brown fox jumps over the lazy dog"
    ids = lm.tokenizer.encode(text)
    logits = lm.logits(ids).astype(np.float64)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    picked = chances[np.arange(len(ids) - 1), ids[1:]]
    assert lm.perplexity(text) == pytest.approx(np.exp(-np.log(picked).mean()), rel=1e-5)
    monkeypatch.setattr("rlx.models.token_losses._CHUNK", 7)
    assert lm.perplexity(text) == pytest.approx(np.exp(-np.log(picked).mean()), rel=1e-5)
    halves = np.concatenate([token_losses(SequenceBatch(lm._runner), ids[i : i + 20]) for i in range(0, len(ids), 20)])
    assert lm.perplexity(text, context=20) == pytest.approx(np.exp(halves.mean()), rel=1e-6)


def test_threads_share_a_model(lm):
    expected, got = {p: lm.generate(p, max_tokens=6) for p in PROMPTS}, {}

    def work(prompt):
        got[prompt] = [lm.generate(prompt, max_tokens=6) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(p,)) for p in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {p: [expected[p]] * 3 for p in PROMPTS}


def test_generate_streams_when_asked(lm):
    pieces = lm.generate("Hello", max_tokens=8, stream=True)
    assert not isinstance(pieces, str)
    assert "".join(pieces) == lm.generate("Hello", max_tokens=8)
    with pytest.raises(OpError, match="generate: stream=True is for one prompt"):
        lm.generate(["a", "b"], stream=True)
    with pytest.raises(OpError, match="generate: stream=True is for one prompt"):
        lm.generate("a", n=2, stream=True)


def test_n_continuations_are_those_of_n_equal_prompts(lm):
    settings = {"max_tokens": 10, "temperature": 1.5, "seed": 3}
    alone = lm.generate(["Hello", "Hello", "Hello"], **settings)
    assert lm.generate("Hello", n=3, **settings) == alone and len(set(alone)) == 3
    mixed = lm.generate(["Hello", "Other prompt"], n=2, **settings)
    assert [len(row) for row in mixed] == [2, 2]
    answers = lm.complete(["Hello", "Other prompt"], n=2, **settings)
    assert [a.text for a in answers] == [text for row in mixed for text in row]
    assert lm.generate("Hello", n=2, max_tokens=5) == [lm.generate("Hello", max_tokens=5)] * 2


def test_a_prompt_is_read_once_for_n_continuations(lm, monkeypatch):
    widths = []
    run = DecoderRunner.run
    monkeypatch.setattr(
        DecoderRunner, "run", lambda self, tokens, *rest: widths.append(tokens.shape) or run(self, tokens, *rest)
    )
    lm.generate("A prompt that nobody has read before", n=3, max_tokens=2, temperature=1.0, seed=0)
    assert widths[0][0] == 1 and widths[1] == (3, 1)


def test_log_probabilities_are_those_of_the_model(lm):
    (answer,) = lm.complete(["Hello"], max_tokens=6, logprobs=4, temperature=2.0, seed=1, repetition_penalty=1.3)
    ids = lm.tokenizer.encode("Hello")
    logits = lm.logits(ids + answer.token_ids).astype(np.float64)[len(ids) - 1 : -1]
    logs = logits - logsumexp(logits, axis=1, keepdims=True)
    assert len(answer.logprobs) == len(answer.token_ids)
    for row, (token, entry) in enumerate(zip(answer.token_ids, answer.logprobs)):
        assert entry.token_id == token and entry.logprob == pytest.approx(logs[row, token], abs=1e-4)
        assert [i for i, _ in entry.top] == np.argsort(-logs[row])[:4].tolist()
        np.testing.assert_allclose([p for _, p in entry.top], np.sort(logs[row])[::-1][:4], atol=1e-4)
    (plain,) = lm.complete(["Hello"], max_tokens=2, logprobs=0)
    assert [entry.top for entry in plain.logprobs] == [[], []]
    (every,) = lm.complete(["Hello"], max_tokens=1, logprobs=10**6)
    assert len(every.logprobs[0].top) == 260
    assert lm.complete(["Hello"], max_tokens=1)[0].logprobs is None


def test_penalties_count_the_tokens_of_the_answer(lm):
    """A script that wants one token for ever is talked out of it."""
    free = lm.complete(["Hello"], max_tokens=12)[0].token_ids
    for penalty in ({"presence_penalty": 1e6}, {"frequency_penalty": 1e6}):
        assert len(set(lm.complete(["Hello"], max_tokens=12, **penalty)[0].token_ids)) == 12
    assert lm.complete(["Hello"], max_tokens=12, presence_penalty=0.0)[0].token_ids == free


@pytest.mark.parametrize("method", ["generate", "complete", "stream", "chat"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or more, got -1.0"),
        ({"temperature": "hot"}, "temperature must be 0 or more, got 'hot'"),
        ({"temprature": 1.0}, "there is no option 'temprature'; did you mean temperature"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 on, got 0"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number from 1 on, got 2.5"),
        ({"logprobs": -1}, "logprobs must be a whole number from 0 on, got -1"),
        ({"stop": 3}, "stop must be a text or a list of texts, got 3"),
        ({"presence_penalty": float("nan")}, "presence_penalty must be a finite number, got nan"),
        ({"top_k": 2.0}, "top_k must be a whole number from 1 on, got 2.0"),
    ],
)
def test_errors_name_the_method_that_was_called(lm, method, arguments, message, monkeypatch):
    monkeypatch.setattr(lm.tokenizer, "chat_template", "{{ messages[0].content }}")
    prompt = ["Hi"] if method == "complete" else "Hi"
    with pytest.raises(OpError, match=f"^{method}: {re.escape(message)}"):
        getattr(lm, method)(prompt, **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: lm.perplexity(""), "perplexity: the prompt has no tokens"),
        (lambda lm: lm.logits([10**9]), "logits: token 1000000000 is not one of the 260 tokens"),
        (lambda lm: lm.generate(3), "generate: a prompt is a text"),
        (lambda lm: lm.complete([[1.5]]), "complete: a prompt is a text or a list of token ids"),
        (lambda lm: lm.complete("x"), "complete: prompts must be a list"),
        (lambda lm: lm.complete(["x"], n=0), "complete: n must be a whole number from 1 on, got 0"),
        (lambda lm: lm.stream("x" * 99), "stream: a prompt of 99 tokens leaves no room"),
    ],
)
def test_wrong_prompts_are_named(lm, call, message):
    with pytest.raises(RlxError, match=message):
        call(lm)


@pytest.mark.parametrize("method", ["generate", "complete", "stream", "chat"])
def test_options_appear_in_help(method):
    shown = pydoc.render_doc(getattr(LanguageModel, method), renderer=pydoc.plaintext)
    for name, option in OPTIONS.items():
        assert re.search(rf"\b{name}\b.* = ", shown) and f"{name}: {option.doc}" in shown


@pytest.mark.parametrize(
    "theirs, ours",
    [("max_new_tokens", "max_tokens"), ("temp", "temperature"), ("repeat_penalty", "repetition_penalty")],
)
def test_options_of_other_libraries_are_answered_with_ours(theirs, ours):
    with pytest.raises(OpError, match=f"generate: there is no option '{theirs}'; did you mean {ours}\\?"):
        rlx.load("tiny").generate("a", **{theirs: 1})


@pytest.mark.parametrize("messages", [{"role": "user", "content": "hi"}, [("user", "hi")]])
def test_what_is_no_conversation(messages):
    with pytest.raises(OpError, match="chat: a conversation is a text or a list of messages"):
        rlx.load("tiny").chat(messages)
