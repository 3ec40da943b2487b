"""Real models, as `rlx pull` gets them: SmolLM2 and MiniLM against plain f64 forwards of the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from models.exact_gguf import gguf_logits
from models.numpy_forward import bert_hidden
from rlx.bench.agreement import compare_logits
from rlx.errors import RlxError
from rlx.formats.safetensors import open_safetensors
from rlx.models.pull import pull

pytestmark = pytest.mark.real

SENTENCES = [
    "A cat sits on the mat.",
    "The stock market fell sharply after the announcement, and analysts expect it to stay low for months.",
    "¿Dónde está la biblioteca?",
    "x",
    "Compilers turn programs into other programs. " * 30,
]


def pulled(name):
    try:
        return pull(name)
    except (RlxError, OSError) as error:
        pytest.skip(f"{name} cannot be pulled here: {error}")


@pytest.fixture(scope="module")
def smollm2():
    path = pulled("smollm2")
    return rlx.load(path), path


@pytest.fixture(scope="module")
def minilm():
    path = pulled("minilm")
    return rlx.load_encoder(path), path


def test_greedy_text_is_that_of_f64(smollm2):
    lm, path = smollm2
    prompt = lm.chat_ids("What is the capital of France, and what is it known for?")
    (answer,) = lm.complete([prompt], max_tokens=64)
    expected = gguf_logits(path, [*prompt, *answer.token_ids])
    # Greedy text is equal if each token is the largest logit after those before it.
    wanted = expected[len(prompt) - 1 :].argmax(-1)
    assert answer.token_ids == wanted[: len(answer.token_ids)].tolist()
    assert len(answer.token_ids) == 64 or wanted[len(answer.token_ids)] in lm.tokenizer.eos_ids
    assert "Paris" in answer.text


@pytest.mark.parametrize(("activations", "bar"), [("auto", 1e-6), ("f32", 1e-9)])
def test_512_positions_agree_with_f64(smollm2, activations, bar):
    _, path = smollm2
    lm = rlx.load(path, activations=activations)
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    tokens = lm.tokenizer.encode(text)[:512]
    found = compare_logits(gguf_logits(path, tokens), lm.logits(tokens))
    assert found.positions == 512 and found.top1 == 1.0 and found.mean_kl < bar


def test_vectors_of_minilm_are_those_of_f64(minilm):
    encoder, path = minilm
    weights = {name: tensor.array() for name, tensor in open_safetensors(path).tensors.items()}
    got = encoder.embed(SENTENCES)
    for vector, ids in zip(got, encoder.token_ids(SENTENCES)):
        hidden = bert_hidden(weights, ids, layers=6, heads=12, eps=1e-12, prefix="")
        expected = hidden.mean(0) / np.linalg.norm(hidden.mean(0))
        assert vector @ expected >= 0.9999999
        np.testing.assert_allclose(vector, expected, atol=1e-6)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_vectors_of_minilm_are_those_of_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    encoder, path = minilm
    expected = library.SentenceTransformer(str(path), device="cpu").encode(SENTENCES)
    assert ((encoder.embed(SENTENCES) * expected).sum(-1) >= 0.99999).all()


def test_the_report_of_thirty_layers_is_small(smollm2):
    lm, _ = smollm2
    page = lm.report.html(profile=lm.profile(runs=1))
    assert len(page.encode()) <= 1 << 20
    assert "layer 0 to layer 29: 30 times the same 9 kernels" in page
    for title in ("rms_norm", "rope + cache write", "linear + swiglu"):
        assert f"<summary>{title}</summary>" in page
