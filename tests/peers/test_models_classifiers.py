"""Classifiers of every family against transformers: scores of texts, of pairs of texts, and of tokens."""

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import rlx  # noqa: E402
from peers.test_models_encoders import FAMILIES as ENCODERS  # noqa: E402
from rlx.models.encoder_names import TEXT_HEADS  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

WORDS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *(f"w{i}" for i in range(80))]
KINDS = {name: ENCODERS[name] for name in TEXT_HEADS if name in ENCODERS}
DEBERTA = ENCODERS["bert"] | {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
DEBERTA |= {"share_att_key": True, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm", "position_buckets": 16}
KINDS["deberta-v2"] = DEBERTA | {"pooler_hidden_size": 32}
LABELS = {"id2label": {0: "O", 1: "B-place", 2: "I-place"}, "label2id": {"O": 0, "B-place": 1, "I-place": 2}}


def save_tokenizer(folder):
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=140, **roles)
    tokenizer.save_pretrained(folder)
    return tokenizer


def saved_classifier(kind, maker, folder, **more):
    config = transformers.AutoConfig.for_model(kind, **KINDS[kind] | {"pad_token_id": 1} | more)
    model = maker.from_config(config).eval()
    generator = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return model, save_tokenizer(folder)


def texts_of(count, seed=3):
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in rng.integers(0, 80, n)) for n in rng.integers(1, 60, count)]


def peer_scores(model, tokenizer, *texts):
    given = tokenizer(
        *texts, padding=True, truncation=True, max_length=140, return_tensors="pt", return_token_type_ids=True
    )
    if model.config.model_type in ("distilbert", "mpnet", "modernbert") or not model.config.type_vocab_size > 1:
        given.pop("token_type_ids")
    with torch.no_grad():
        return model(**given).logits.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_texts_and_pairs(kind, tmp_path):
    maker = transformers.AutoModelForSequenceClassification
    model, tokenizer = saved_classifier(kind, maker, tmp_path, num_labels=5)
    classifier = rlx.load_classifier(tmp_path)
    first, second = texts_of(7), texts_of(7, seed=4)
    expected = peer_scores(model, tokenizer, first)
    assert expected.shape == (7, 5) and np.abs(expected).max() > 0.5
    np.testing.assert_allclose(classifier.logits(first, batch_size=3), expected, rtol=0, atol=1e-4)
    expected = peer_scores(model, tokenizer, first, second)
    np.testing.assert_allclose(classifier.logits(list(zip(first, second))), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_tokens(kind, tmp_path):
    model, tokenizer = saved_classifier(kind, transformers.AutoModelForTokenClassification, tmp_path, **LABELS)
    tagger = rlx.load_classifier(tmp_path)
    for text in texts_of(2):
        expected = peer_scores(model, tokenizer, [text])[0]
        np.testing.assert_allclose(tagger.token_logits(text), expected, rtol=0, atol=1e-4)


def test_tags_are_those_of_the_pipeline(tmp_path):
    model, tokenizer = saved_classifier("bert", transformers.AutoModelForTokenClassification, tmp_path, **LABELS)
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple"
    )
    tagger, found = rlx.load_classifier(tmp_path), 0
    for text in texts_of(6):
        expected, got = pipeline(text), tagger.tag(text)
        assert [(t.label, t.start, t.end) for t in got] == [(e["entity_group"], e["start"], e["end"]) for e in expected]
        np.testing.assert_allclose([t.score for t in got], [e["score"] for e in expected], atol=1e-5)
        assert [t.text for t in got] == [text[e["start"] : e["end"]] for e in expected]
        found += len(got)
    assert found > 5


@pytest.mark.parametrize(
    "more", [{"num_labels": 3}, {"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}]
)
def test_likelihoods_are_those_of_the_pipeline(more, tmp_path):
    model, tokenizer = saved_classifier("bert", transformers.AutoModelForSequenceClassification, tmp_path, **more)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    classifier, texts = rlx.load_classifier(tmp_path), texts_of(4)
    for text, expected in zip(texts, pipeline(texts)):
        got = classifier.classify(text)
        assert [g.label for g in got] == [e["label"] for e in expected]
        np.testing.assert_allclose([g.score for g in got], [e["score"] for e in expected], atol=1e-5)


def test_modernbert_may_read_the_mean(tmp_path):
    maker = transformers.AutoModelForSequenceClassification
    more = {"classifier_pooling": "mean", "classifier_activation": "silu", "classifier_bias": True}
    model, tokenizer = saved_classifier("modernbert", maker, tmp_path, **more)
    texts = texts_of(5)
    expected = peer_scores(model, tokenizer, texts)
    np.testing.assert_allclose(rlx.load_classifier(tmp_path).logits(texts), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("strategy", [(9, 200), (200, 9), (100, 101), (200, 200)])
def test_long_pairs_are_cut_alike(strategy, tmp_path):
    tokenizer = save_tokenizer(tmp_path)
    pair = [" ".join(f"w{i % 80}" for i in range(n)) for n in strategy]
    expected = tokenizer(*pair, truncation="longest_first", max_length=60, return_token_type_ids=True)
    got = rlx.models.tokenizer.Tokenizer.from_directory(tmp_path).encode_pair(*pair, max_length=60)
    assert (got.ids, got.types) == (expected["input_ids"], expected["token_type_ids"])


VARIANTS = {
    "shared-off": {"share_att_key": False},
    "one-way": {"pos_att_type": ["c2p"]},
    "other-way": {"pos_att_type": ["p2c"], "share_att_key": False},
    "no-buckets": {"position_buckets": -1, "max_relative_positions": 40},
    "plain": {"relative_attention": False, "position_biased_input": True, "type_vocab_size": 2, "norm_rel_ebd": "none"},
    "narrow": {"embedding_size": 24, "position_biased_input": True, "norm_rel_ebd": "none"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_deberta_in_its_variants(name, tmp_path):
    config = transformers.AutoConfig.for_model("deberta-v2", **KINDS["deberta-v2"] | VARIANTS[name])
    model = transformers.AutoModel.from_config(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5))
    model.save_pretrained(tmp_path)
    lengths = np.array([140, 3, 61, 1])
    mask = (np.arange(140) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask, np.random.default_rng(7).integers(2, 90, mask.shape), 0)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    got, present = rlx.load_encoder(tmp_path).forward(ids, mask), mask.astype(bool)
    np.testing.assert_allclose(got[present], expected[present], rtol=0, atol=1e-4)


def test_what_is_no_classifier_is_refused(tmp_path):
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model("bert", **KINDS["bert"]))
    model.save_pretrained(tmp_path)
    with pytest.raises(rlx.Error, match="load_encoder"):
        rlx.load_classifier(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(rlx.Error, match="is missing"):
        rlx.load_classifier(tmp_path)
