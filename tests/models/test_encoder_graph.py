"""The encoder program against a plain NumPy forward, and batches against single texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.numpy_forward import bert_hidden
from models.tiny_models import BERT, bert_arrays, byte_tokenizer, encoder, encoder_weights
from rlx.errors import BindingError, FormatError, OpError
from rlx.models.encoder import build_encoder
from rlx.models.relative_positions import relative_buckets
from rlx.models.text_encoder import TextEncoder, batches

TEXTS = ["Hello", "a much longer text than all of the others", "?", "four words stand here"]


@pytest.fixture(scope="module")
def enc():
    return encoder()


def hidden_of(text):
    ids = list(text.encode())[: BERT.context]
    return bert_hidden(bert_arrays(BERT), ids, layers=BERT.layers, heads=BERT.heads, eps=BERT.norm_eps)


def test_hidden_states_equal_a_plain_forward(enc):
    ids = np.frombuffer(TEXTS[1].encode(), np.uint8).astype(np.int32)[None]
    np.testing.assert_allclose(enc.forward(ids)[0], hidden_of(TEXTS[1]), atol=2e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_vectors_are_means_whatever_the_batch(enc, batch_size):
    expected = [hidden_of(text).mean(0) for text in TEXTS]
    np.testing.assert_allclose(enc.embed(TEXTS, batch_size=batch_size), expected, atol=2e-5)


POOLED = {
    "cls": lambda h: h[0],
    "max": lambda h: h.max(0),
    "lasttoken": lambda h: h[-1],
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / np.sqrt(len(h)),
    "weightedmean": lambda h: np.average(h, 0, weights=np.arange(1, len(h) + 1)),
}


@pytest.mark.parametrize("mode", POOLED)
def test_other_ways_of_pooling(mode):
    got = encoder(replace(BERT, pooling=(mode,))).embed(TEXTS)
    np.testing.assert_allclose(got, [POOLED[mode](hidden_of(t)) for t in TEXTS], atol=2e-5)


def test_vectors_of_several_modes_are_joined_and_made_unit_length():
    got = encoder(replace(BERT, pooling=("cls", "mean"), normalize=True)).embed(TEXTS)
    joined = np.array([np.concatenate([hidden_of(t)[0], hidden_of(t).mean(0)]) for t in TEXTS])
    np.testing.assert_allclose(got, joined / np.linalg.norm(joined, axis=1, keepdims=True), atol=2e-5)


def test_one_text_gives_one_vector_and_none_gives_none(enc):
    np.testing.assert_array_equal(enc.embed(TEXTS[0]), enc.embed(TEXTS[:1])[0])
    assert enc.embed([]).shape == (0, 24)


def test_long_texts_are_cut(enc):
    text = "0123456789" * 20
    np.testing.assert_allclose(enc.embed(text), hidden_of(text).mean(0), atol=2e-5)


def test_prompts_are_put_before_texts(tmp_path):
    settings = '{"prompts": {"query": "ask: "}, "default_prompt_name": null}'
    (tmp_path / "config_sentence_transformers.json").write_text(settings)
    enc = encoder(folder=tmp_path)
    expected = enc.embed("ask: Hello")
    np.testing.assert_array_equal(enc.embed("Hello", prompt_name="query"), expected)
    np.testing.assert_array_equal(enc.embed("Hello", prompt="ask: "), expected)
    with pytest.raises(OpError, match="no prompt 'passage'; it has: 'query'"):
        enc.embed("Hello", prompt_name="passage")


def test_progress_counts_texts(enc):
    seen = []
    enc.embed(TEXTS, batch_size=3, progress=lambda done, all: seen.append((done, all)))
    counts = [done for done, _ in seen]
    assert counts == sorted(set(counts)) and counts[-1] == 4 and {all for _, all in seen} == {4}


def test_batches_are_of_similar_lengths_and_hold_every_text_once():
    lengths = [int(n) for n in np.random.default_rng(3).lognormal(3, 1, 300)]
    for most in (1, 7, 32):
        found = batches(lengths, most)
        assert sorted(i for batch in found for i in batch) == list(range(300))
        assert all(len(batch) <= most for batch in found)
        assert all(2 * min(lengths[i] for i in batch) >= max(lengths[i] for i in batch) for batch in found)


def test_padding_belongs_on_the_right(enc):
    ids = np.ones((2, 3), np.int32)
    with pytest.raises(BindingError, match="padding must stand on the right"):
        enc.forward(ids, [[0, 1, 1], [1, 1, 1]])
    with pytest.raises(BindingError, match="65 tokens are more than the 64"):
        enc.forward(np.ones((1, 65), np.int32))
    with pytest.raises(BindingError, match="ids must be whole numbers"):
        enc.forward(np.ones((1, 2), np.float32))


def test_heads_and_poolers_of_a_file_are_left_alone_but_not_unknown_layers():
    arrays = bert_arrays(BERT) | {"bert.pooler.dense.weight": np.ones((24, 24), np.float32)}
    build_encoder(BERT, encoder_weights(arrays | {"cls.predictions.bias": np.ones(4, np.float32)}))
    with pytest.raises(FormatError, match=r"no use for the tensor 'bert\.encoder\.layer\.0\.adapter\.weight'"):
        build_encoder(BERT, encoder_weights(arrays | {"bert.encoder.layer.0.adapter.weight": np.ones(4, np.float32)}))


def test_matrices_may_be_quantised_while_loading():
    config = replace(BERT, hidden=32, heads=4, ffn=64)
    exact, file = encoder_weights(bert_arrays(config)), encoder_weights(bert_arrays(config))
    file.quantize("q8_0", config.layers)
    enc = TextEncoder(config, file, byte_tokenizer, Path("tiny"))
    assert str(enc.graph).count("dequant_matmul") == 6 * config.layers
    got = enc.embed(TEXTS)
    expected = TextEncoder(config, exact, byte_tokenizer, Path("tiny")).embed(TEXTS)
    cosines = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
    assert (cosines > 0.999).all() and np.abs(got - expected).max() > 1e-5


def test_buckets_of_distances():
    buckets = relative_buckets(200, 32, 128)
    assert buckets[50, 50] == 0 and buckets[50, 47] == 3 and buckets[50, 53] == 19
    assert buckets[150, 0] == 15 and buckets[0, 199] == 31
    assert (np.diff(buckets[0, 1:]) >= 0).all()
