"""Classifiers on language models: scores of the last token, and of all, of what the model itself makes of a text."""

import json

import numpy as np
import pytest

import rlx
from models.random_directories import COMMON, random_directory
from rlx.errors import FormatError
from rlx.formats.safetensors import open_safetensors, write_safetensors

rng = np.random.default_rng(4)
SCORE = rng.normal(size=(3, 32)).astype(np.float32)
LABELS = {"0": "O", "1": "B-name", "2": "I-name"}
TEXTS = ["a", "some longer text", "middle"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("base"), COMMON | {"model_type": "qwen3", "pad_token_id": 0})


def classifier(base, folder, kind, **arrays):
    """The model of `base` with a head in the place of words, and without what files of heads leave out."""
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    found = {name: t.array() for name, t in open_safetensors(base).tensors.items() if name != "lm_head.weight"}
    write_safetensors(folder / "model.safetensors", {name: np.array(a) for name, a in found.items()} | arrays)
    fields = json.loads((base / "config.json").read_text())
    fields |= {"architectures": [f"Qwen3For{kind}Classification"], "id2label": LABELS}
    (folder / "config.json").write_text(json.dumps(fields))
    return rlx.load_classifier(folder, device="reference")


def test_texts_are_judged_by_their_last_token(base, tmp_path):
    found = classifier(base, tmp_path / "texts", "Sequence", **{"score.weight": SCORE})
    lm = rlx.load(base, device="reference")
    for text, scores in zip(TEXTS, found.logits(TEXTS)):
        states = lm._states(lm.tokenizer.encode(text))
        np.testing.assert_allclose(scores, SCORE @ states[-1], rtol=0, atol=1e-4)
    [best, *_] = found.classify(TEXTS[1])
    assert best.label == LABELS[str(int(found.logits(TEXTS[1]).argmax()))]
    with pytest.raises(FormatError, match=r"a classifier has the tensor 'score\.weight', and there is none"):
        classifier(base, tmp_path / "none", "Sequence")


def test_tokens_have_scores_of_their_own(base, tmp_path):
    bias = np.array([0.5, -1.0, 2.0], np.float32)
    found = classifier(base, tmp_path / "tokens", "Token", **{"score.weight": SCORE, "score.bias": bias})
    lm = rlx.load(base, device="reference")
    states = lm._states(lm.tokenizer.encode(TEXTS[1]))
    np.testing.assert_allclose(found.token_logits(TEXTS[1]), states @ SCORE.T + bias, rtol=0, atol=1e-4)
    assert {part.label for part in found.tag(TEXTS[1])} <= {"name"}
