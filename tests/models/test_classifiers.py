"""Classifiers: labels of texts, of pairs and of tokens, against a plain forward pass; directories made on the spot."""

import json
from dataclasses import replace

import numpy as np
import pytest

import rlx
from models.numpy_forward import bert_hidden, softmax
from models.tiny_models import BERT, bert_arrays, byte_tokenizer
from rlx.errors import FormatError, OpError
from rlx.formats.safetensors import write_safetensors
from rlx.models.config_hf_heads import classifier_config_from_hf
from rlx.models.relative_positions import backward_buckets, place_rows

LABELS = ("O", "B-place", "I-place")


def written(folder, kind="Sequence", labels=LABELS, **more):
    """A directory of a small classifier, and its weights by name."""
    config = replace(BERT, token_types=2)
    arrays, rng = bert_arrays(config), np.random.default_rng(4)
    for name, rows in (("bert.pooler.dense", config.hidden), ("classifier", len(labels))):
        arrays[f"{name}.weight"] = (rng.normal(size=(rows, config.hidden)) * config.hidden**-0.5).astype("f4")
        arrays[f"{name}.bias"] = rng.normal(size=rows).astype("f4")
    write_safetensors(folder / "model.safetensors", arrays)
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    fields = {
        "model_type": "bert",
        "architectures": [f"BertFor{kind}Classification"],
        "id2label": dict(enumerate(labels)),
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.table_rows,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": "gelu",
        "type_vocab_size": 2,
    }
    (folder / "config.json").write_text(json.dumps(fields | more))
    return arrays


def hidden_of(arrays, text):
    """f64[S, D]; the tokenizer puts nothing around texts."""
    kept = {name: value for name, value in arrays.items() if "pooler" not in name and "classifier" not in name}
    return bert_hidden(kept, list(text.encode()), layers=BERT.layers, heads=BERT.heads, eps=BERT.norm_eps)


def scores_of(arrays, hidden):
    return hidden @ arrays["classifier.weight"].T + arrays["classifier.bias"]


def pooled(arrays, text):
    first = hidden_of(arrays, text)[0]
    return np.tanh(first @ arrays["bert.pooler.dense.weight"].T + arrays["bert.pooler.dense.bias"])


def test_labels_of_texts(tmp_path):
    arrays, classifier = written(tmp_path), rlx.load_classifier(tmp_path)
    texts = ["Rain", "a somewhat longer text", "x"]
    expected = np.array([scores_of(arrays, pooled(arrays, text)) for text in texts])
    np.testing.assert_allclose(classifier.logits(texts, batch_size=2), expected, rtol=0, atol=1e-4)
    for text, row in zip(texts, expected):
        found = classifier.classify(text)
        assert [f.label for f in found] == [LABELS[i] for i in np.argsort(-row)]
        np.testing.assert_allclose([f.score for f in found], np.sort(softmax(row))[::-1], rtol=0, atol=1e-5)
    assert [row[0] for row in classifier.classify(texts)] == [classifier.classify(text)[0] for text in texts]


def test_several_labels_may_hold_at_once(tmp_path):
    written(tmp_path, problem_type="multi_label_classification")
    classifier = rlx.load_classifier(tmp_path)
    scores = {found.label: found.score for found in classifier.classify("Rain")}
    expected = 1 / (1 + np.exp(-classifier.logits("Rain").astype("f8")))
    np.testing.assert_allclose([scores[name] for name in LABELS], expected, rtol=1e-6)


def test_texts_are_ranked(tmp_path):
    written(tmp_path, labels=("LABEL_0",))
    classifier = rlx.load_classifier(tmp_path)
    texts = ["one", "another one", "a third"]
    scores = classifier.logits([("what", text) for text in texts])[:, 0]
    ranked = classifier.rank("what", texts)
    assert [r.place for r in ranked] == list(np.argsort(-scores))
    np.testing.assert_array_equal([r.score for r in ranked], np.sort(scores)[::-1])
    assert classifier.rank("what", texts, top=1) == ranked[:1] and classifier.rank("what", []) == []
    with pytest.raises(OpError, match="list of texts"):
        classifier.rank("what", "one")


def test_parts_of_a_text_are_tagged(tmp_path):
    arrays, text = written(tmp_path, kind="Token"), "somewhere in the middle of nowhere"
    tagger = rlx.load_classifier(tmp_path)
    scores = scores_of(arrays, hidden_of(arrays, text))
    np.testing.assert_allclose(tagger.token_logits(text), scores, rtol=0, atol=1e-4)
    best = scores.argmax(-1)
    # Every byte is a token here; a part ends where the label does, or where the next one begins.
    begins = [i for i in range(len(text)) if best[i] and (not i or best[i] == 1 or not best[i - 1])]
    tags = tagger.tag(text)
    assert len(tags) == len(begins) > 2 and {tag.label for tag in tags} == {"place"}
    assert all(text[tag.start : tag.end] == tag.text for tag in tags)
    with pytest.raises(OpError, match="use tag"):
        tagger.classify(text)


def test_what_cannot_be_read_is_refused(tmp_path):
    written(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(FormatError, match="load_encoder"):
        classifier_config_from_hf(fields | {"architectures": ["BertModel"]})
    with pytest.raises(FormatError, match="from 0 on"):
        classifier_config_from_hf(fields | {"id2label": {"1": "a", "2": "b"}})
    with pytest.raises(FormatError, match="nomic_bert models are not supported"):
        classifier_config_from_hf(fields | {"model_type": "nomic_bert", "hidden_act": "silu"})
    classifier = rlx.load_classifier(tmp_path)
    with pytest.raises(OpError, match="one label"):
        classifier.rank("a", ["b"])
    with pytest.raises(OpError, match="a pair"):
        classifier.logits([("a", "b", "c")])
    with pytest.raises(OpError, match="batch_size"):
        classifier.logits(["a"], batch_size=0)


def test_files_that_leave_labels_out_have_two(tmp_path):
    written(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["id2label"]
    head = classifier_config_from_hf(fields).head
    assert head is not None and head.labels == ("LABEL_0", "LABEL_1")


def test_places_share_rows_far_away():
    rows = place_rows(200, 8, 8, 256)
    assert rows.min() == 1 and rows.max() == 15
    # The nearest ones have their own, and what is as far on the other side is mirrored.
    assert list(rows[0, :4]) == [8, 7, 6, 5] and list(rows[:4, 0]) == [8, 9, 10, 11]
    np.testing.assert_array_equal(rows + rows.T, 16)


def test_buckets_backwards_are_those_of_a_half():
    found = backward_buckets(200, 32, 128)
    assert list(found[:16]) == list(range(16)) and found[-1] == 31 and (np.diff(found) >= 0).all()
