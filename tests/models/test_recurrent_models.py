"""Models whose layers keep states: sequences of different lengths, going back, copies, and answers."""

import numpy as np
import pytest

import rlx
from models.decoder_fields import FAMILIES
from models.random_directories import random_directory
from rlx.errors import RlxError
from rlx.models.exporting import model_program
from rlx.models.joined_sequences import JoinedSequences
from rlx.models.kv_cache import SequenceBatch

KINDS = ("mamba", "mamba2", "granitemoehybrid_states", "lfm2")
TOKENS = np.random.default_rng(3).integers(0, 256, 24).tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: rlx.load(random_directory(folder / kind, FAMILIES[kind]), device="reference") for kind in KINDS}


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_different_lengths_do_not_touch_each_other(kind, models):
    lm, texts = models[kind], [[], [], []]
    batch = SequenceBatch(lm._runner, 3)
    for more in ([TOKENS[:7], TOKENS[3:5], []], [[1], [], TOKENS[:4]], [[2], [3], [4]], [[], TOKENS[:3], [5]]):
        for text, new, logits in zip(texts, more, batch.extend(more)):
            text += new
            if new:
                close(logits, lm.logits(text)[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_was_shortened_goes_on_as_one_that_never_was_longer(kind, models):
    lm = models[kind]
    session = lm.session()
    session.prefill(TOKENS[:6])
    for token in TOKENS[6:9]:
        session.step(token)
    # To the last prompt, behind it, before it, to the beginning.
    for length in (6, 8, 3, 0):
        if len(session.tokens) < 9:
            session.prefill(TOKENS[len(session.tokens) : 9])
        session.truncate(length)
        close(session.step(TOKENS[20]), lm.logits([*TOKENS[:length], TOKENS[20]])[-1])
        session.truncate(length)
        close(session.prefill(TOKENS[length : length + 2]), lm.logits(TOKENS[: length + 2])[-1])


def test_the_states_behind_a_prompt_are_kept(models):
    """Going back there computes nothing again."""
    batch = SequenceBatch(models["mamba2"]._runner)
    batch.extend([TOKENS[:9]])
    seen = []
    batch._runner.run = lambda tokens, *rest: (
        seen.append(tokens.shape) or type(batch._runner).run(batch._runner, tokens, *rest)
    )
    try:
        for token in TOKENS[9:12]:
            batch.extend([[token]])
            batch.truncate(0, 9)
    finally:
        del batch._runner.run
    assert seen == [(1, 1)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_order_of_sequences(kind, models):
    lm = models[kind]
    batch = SequenceBatch(lm._runner, 2)
    batch.extend([TOKENS[:5], TOKENS[5:8]])
    twice = batch.repeated(2)
    for row, logits in enumerate(twice.extend([[i] for i in range(4)])):
        close(logits, lm.logits([*(TOKENS[:5], TOKENS[5:8])[row // 2], row])[-1])
    batch.reorder([1, 0, 1])
    for text, logits in zip((TOKENS[5:8], TOKENS[:5], TOKENS[5:8]), batch.extend([[9]] * 3)):
        close(logits, lm.logits([*text, 9])[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_join_a_batch_and_leave_it(kind, models):
    lm, texts = models[kind], [TOKENS[:5], TOKENS[5:8], TOKENS[8:15]]
    batch = JoinedSequences(lm._runner)
    for text in texts:
        alone = SequenceBatch(lm._runner)
        alone.extend([text])
        batch.join(alone)
    batch.leave(0)
    rows = [[*texts[2], 1], [*texts[1], 2]]
    for row, logits in zip(rows, batch.extend([[1], [2]])):
        close(logits, lm.logits(row)[-1])
    # Of the beginning of a row there are no states.
    copy = SequenceBatch(lm._runner)
    copy.take_over(batch, 0, 4)
    assert copy.tokens == [[]]
    copy.take_over(batch, 0, len(rows[0]))
    close(copy.extend([[3]])[0], lm.logits([*rows[0], 3])[-1])
    batch.join(copy)
    rows = [[*rows[0], 4], [*rows[1], 5], [*rows[0], 3, 6]]
    for row, logits in zip(rows, batch.extend([[4], [5], [6]])):
        close(logits, lm.logits(row)[-1])


@pytest.mark.parametrize("kind", ["mamba", "granitemoehybrid_states"])
def test_answers_and_what_texts_cost(kind, models):
    lm = models[kind]
    session = lm.session()
    logits, expected = session.prefill(TOKENS), []
    for _ in range(6):
        expected.append(int(logits.argmax()))
        logits = session.step(expected[-1])
    for _ in range(2):  # the second time from what is kept
        assert lm.complete([TOKENS], max_tokens=6)[0].token_ids == expected
    both = lm.complete([TOKENS[:4], TOKENS], max_tokens=6)
    assert both[1].token_ids == expected
    assert both[0].token_ids == lm.complete([TOKENS[:4]], max_tokens=6)[0].token_ids
    scores = lm.logits(TOKENS).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    loss = -np.mean([logs[i, token] for i, token in enumerate(TOKENS[1:])])
    assert lm.perplexity(TOKENS) == pytest.approx(np.exp(loss), rel=1e-4)
    assert lm.embed([TOKENS]).shape == (1, 16)


def test_states_stay_floats_beside_packed_keys(tmp_path):
    folder = random_directory(tmp_path, FAMILIES["lfm2"])
    exact, packed = (rlx.load(folder, device="reference", kv_dtype=kind) for kind in ("f32", "q8"))
    types = {name: str(shape.dtype) for name, shape in packed._compiled.input_types.items()}
    assert (types["conv.0"], types["k.1"]) == ("f32", "i8")
    wanted = exact.logits(TOKENS)
    np.testing.assert_allclose(packed.logits(TOKENS), wanted, rtol=0, atol=0.02 * np.abs(wanted).max())


def test_caches_grow_beside_states(tmp_path):
    folder = random_directory(tmp_path, FAMILIES["lfm2"] | {"max_position_embeddings": 600})
    lm = rlx.load(folder, device="reference")
    long = np.random.default_rng(4).integers(0, 256, 270).tolist()
    session = lm.session()
    session.prefill(long[:250])
    for token in long[250:260]:
        logits = session.step(token)
    close(logits, lm.logits(long[:260])[-1])


def test_pages_do_not_run_them(tmp_path):
    folder = random_directory(tmp_path, FAMILIES["mamba"])
    with pytest.raises(RlxError, match="keeps states, which a page does not; export its graph"):
        model_program(str(folder)).notes()


def test_guesses_are_refused(models):
    with pytest.raises(RlxError, match="keeps states, which do not go back behind wrong guesses"):
        models["mamba"].generate([1, 2], max_tokens=2, draft="prompt")
