"""Classifiers on language models, against transformers: scores of texts of any length, of pairs, and of tokens."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402
from peers.test_models_classifiers import LABELS, save_tokenizer, texts_of  # noqa: E402
from peers.test_models_decoders import FAMILIES, randomize  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

KINDS = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3-longrope-short", "gpt2", "gpt-neox", "opt", "mixtral"]
OF_TOKENS = ["llama", "qwen2", "qwen3", "gemma2", "gpt2", "gpt-neox"]


def saved(name, maker, folder, **more):
    kind, settings = FAMILIES[name]
    config = transformers.AutoConfig.for_model(kind, **settings | {"pad_token_id": 1} | more)
    config._attn_implementation = "eager"
    model = maker.from_config(config).eval()
    randomize(model, len(name))
    model.save_pretrained(folder)
    return model, save_tokenizer(folder)


@pytest.mark.parametrize("name", KINDS)
def test_scores_of_texts(name, tmp_path):
    model, tokenizer = saved(name, transformers.AutoModelForSequenceClassification, tmp_path, num_labels=4)
    texts = [*texts_of(5), "w3 w4 [PAD]"]
    found = rlx.load_classifier(tmp_path).logits(texts)
    for text, scores in zip(texts, found):
        with torch.no_grad():
            ids = torch.tensor([tokenizer(text).input_ids])
            expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)


def test_one_label_ranks_pairs(tmp_path):
    model, tokenizer = saved("qwen3", transformers.AutoModelForSequenceClassification, tmp_path, num_labels=1)
    query, *texts = (" ".join(text.split()[:25]) for text in texts_of(5, 7))
    found = rlx.load_classifier(tmp_path).rank(query, texts)
    scores = []
    for text in texts:
        with torch.no_grad():
            scores.append(float(model(input_ids=torch.tensor([tokenizer(query, text).input_ids])).logits[0, 0]))
    assert [r.place for r in found] == list(np.argsort(scores)[::-1])
    np.testing.assert_allclose([r.score for r in found], sorted(scores, reverse=True), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_scores_of_tokens(name, tmp_path):
    model, tokenizer = saved(name, transformers.AutoModelForTokenClassification, tmp_path, **LABELS)
    classifier = rlx.load_classifier(tmp_path)
    for text in texts_of(3, 4):
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([tokenizer(text).input_ids])).logits[0].numpy()
        np.testing.assert_allclose(classifier.token_logits(text), expected, rtol=0, atol=1e-4)
