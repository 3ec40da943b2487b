"""Models with activations of 8 and 16 bits: small ones made here, and the bars that the real ones must meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from models.tiny_models import (
    BERT,
    LLAMA,
    bert_arrays,
    byte_tokenizer,
    encoder_weights,
    gguf_file,
    language_model,
    llama_arrays,
)
from rlx.bench.agreement import model_agreement
from rlx.errors import OpError, RlxError
from rlx.models.pull import pull
from rlx.models.text_encoder import TextEncoder

WIDE = replace(LLAMA, hidden=64, head_dim=16, ffn=96, rope=replace(LLAMA.rope, dims=16))
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 256, 64)]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("type", [None, "q8_0", "q4_1"])
def test_a_decoder_stays_close_to_the_exact_one(type):
    def model(activations):
        file = gguf_file(llama_arrays(WIDE))
        if type is not None:
            file.quantize(type, WIDE.layers)
        return language_model(WIDE, weights=file, activations=activations)

    fast = model("int8")
    found = model_agreement(model("f32"), fast, TOKENS)
    assert 0 < found.mean_kl < 2e-3 and found.top1 > 0.85
    assert "activations as int8 in 9 of 9 products with stored weights" in fast.report
    # One token at a time gives what all together do: rows are rounded each by itself.
    session = fast.session()
    steps = np.stack([session.step(t) for t in TOKENS[:9]])
    np.testing.assert_allclose(steps, fast.logits(TOKENS[:9]), atol=1e-3 * np.abs(steps).max())


def test_16_bits_are_hardly_to_be_told_from_floats():
    def model(activations):
        file = gguf_file(llama_arrays(WIDE))
        file.quantize("q4_1", WIDE.layers)
        return language_model(WIDE, weights=file, activations=activations)

    near = model("int16")
    found = model_agreement(model("f32"), near, TOKENS)
    assert 0 < found.mean_kl < 1e-8 and found.top1 == 1.0
    assert "activations as int16 in 8 of 9 products with stored weights" in near.report, "not the head"


def test_an_encoder_stays_close_to_the_exact_one():
    texts = ["one text", "another, longer text", "x"]
    exact, fast = (
        TextEncoder(BERT, encoder_weights(bert_arrays(BERT)), byte_tokenizer, Path("tiny"), activations=kind).embed(
            texts
        )
        for kind in ("f32", "int8")
    )
    assert (cosines(exact, fast) > 0.995).all() and not np.array_equal(exact, fast)


def test_other_kinds_are_refused(tmp_path):
    for load in (rlx.load, rlx.load_encoder):
        with pytest.raises(OpError, match=r"activations must be one of f32, int8, int16, auto(, bf16, f16)?, got 'i4'"):
            load(tmp_path, activations="i4")


# The real ones.

TEXTS = [
    "A cat sits on the mat.",
    "The stock market fell sharply after the announcement, and analysts expect it to stay low for months.",
    "Compilers turn programs into other programs.",
    "She walked along the river until the lights of the town were behind her.",
    "How do I reset the password of my account?",
    "Water boils at a lower temperature on a mountain, because there is less air above it.",
    "The committee will meet again on Thursday to vote on the budget for the coming year.",
    "Neural networks are functions with many parameters, found by following gradients.",
]


def pulled(name):
    try:
        return pull(name)
    except (RlxError, OSError) as error:
        pytest.skip(f"{name} cannot be pulled here: {error}")


@pytest.mark.real
def test_minilm_in_8_bits():
    path = pulled("minilm")
    exact = rlx.load_encoder(path).embed(TEXTS)
    assert cosines(exact, rlx.load_encoder(path, activations="int8").embed(TEXTS)).mean() >= 0.996
    assert cosines(exact, rlx.load_encoder(path, weights="int8").embed(TEXTS)).mean() >= 0.999


@pytest.mark.real
def test_smollm2_in_8_bits():
    path = pulled("smollm2")
    exact, fast = rlx.load(path, activations="f32"), rlx.load(path, activations="int8")
    found = model_agreement(exact, fast, exact.tokenizer.encode(" ".join(TEXTS * 4))[:512])
    assert found.mean_kl < 0.01 and found.top1 > 0.9
    nearly = model_agreement(
        exact, rlx.load(path, activations="int16"), exact.tokenizer.encode(" ".join(TEXTS * 4))[:512]
    )
    assert nearly.mean_kl < 1e-6 and nearly.top1 > 0.999
