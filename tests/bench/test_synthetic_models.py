"""Models with random weights: the same in every run, loadable, and right in the mode that is chosen for them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import rlx
from models.exact_gguf import gguf_logits
from rlx.bench.agreement import compare_logits
from rlx.bench.synthetic_models import MODEL_TYPES, SHAPES, ModelShape, block_pool, synthetic_model, write_model
from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf
from rlx.formats.gguf.tensor_types import TYPES, decode
from rlx.kernels.machines import host
from rlx.models.tokenizer import Tokenizer

LLAMA = ModelShape("small", "llama", 1, 1, 256, 512, 4, 2, 64, 1e4, False)
QWEN = ModelShape("small", "qwen3", 1, 1, 256, 512, 4, 2, 128, 1e6, True)
VOCABULARY = 640
TOKENS = [(37 * i + 11) % VOCABULARY for i in range(24)]


@pytest.mark.parametrize("name", [t for t in MODEL_TYPES if t in TYPES])
def test_pools_have_the_deviation_that_was_asked_for(name):
    numbers = decode(TYPES[name], block_pool(TYPES[name], 0.125).reshape(-1)).astype(np.float64)
    assert abs(numbers.std() - 0.125) < 0.004 and abs(numbers.mean()) < 0.002


@pytest.mark.parametrize(("shape", "type"), [(LLAMA, "Q8_0"), (LLAMA, "Q5_K"), (QWEN, "Q4_K_M")])
def test_the_chosen_mode_says_what_f64_says(shape, type, tmp_path):
    """The bars of the default: KL to f64 of at most 1e-6, and every likeliest token."""
    path = tmp_path / "model.gguf"
    write_model(path, shape, type, VOCABULARY)
    model = rlx.load(path, threads=1)
    found = compare_logits(gguf_logits(path, TOKENS), model.logits(TOKENS))
    assert found.max_kl < 1e-6 and found.top1 == 1.0
    if host().dot4_lanes:
        assert re.search(r"activations as int16 in (\d) of \1 products with stored weights", model.report)
    # Rows are rounded each by itself: one token after the other gives what all together do.
    session = model.session()
    steps = np.stack([session.step(t) for t in TOKENS[:3]])
    np.testing.assert_allclose(steps, model.logits(TOKENS[:3]), atol=2e-5 * np.abs(steps).max())


def test_files_are_made_once_and_alike(monkeypatch, tmp_path):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(SHAPES, "1b", QWEN)
    said = []
    path = synthetic_model("1b", "q4_0", said.append)
    first = path.read_bytes()
    assert synthetic_model("1b", "Q4_0", said.append) == path and len(said) == 1
    path.unlink()
    assert synthetic_model("1b", "Q4_0").read_bytes() == first
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    text = "Once upon a time, 3 cats."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_cannot_be_made():
    with pytest.raises(RlxError, match="no shape is called '2b'; there are: 1b, 4b, 8b"):
        synthetic_model("2b", "Q4_K")
    with pytest.raises(RlxError, match=r"models are made in the types Q4_K, .* got 'IQ1_S'"):
        synthetic_model("1b", "IQ1_S")
