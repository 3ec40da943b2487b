"""Every engine of the benchmark computes what every program says: a time is worth nothing otherwise."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from bench.encoder_directory import BERT, write_encoder
from models.numpy_forward import bert_hidden
from models.tiny_models import bert_arrays
from rlx.bench.engines import ENCODERS, ENGINES, MODEL_VARIABLE, create_engine, is_ours
from rlx.bench.programs import exact
from rlx.bench.sentences import sentences

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]

PRODUCT = {"m": 5, "n": 7, "k": 11}
ROWS = {"rows": 3, "width": 17}
HEADS = {"batch": 2, "heads": 4, "seq": 5, "depth": 8}
CASES = {
    "matmul": PRODUCT,
    "matmul+bias+gelu": PRODUCT,
    "swiglu": PRODUCT,
    "softmax": ROWS,
    "layer_norm": ROWS,
    "rms_norm": ROWS,
    "residual+norm": ROWS,
    "cross_entropy": ROWS,
    "attention": HEADS | {"kv_heads": 2, "keys": 9},
    "causal attention": HEADS,
    "encoder": {"batch": 1, "seq": 4},
}


@pytest.fixture(scope="module", params=[n for n in ENGINES if n != "rlx"])
def engine(request):
    needs = ENGINES[request.param].needs
    for package in needs:
        pytest.importorskip(package)
    if request.param == "tinygrad" and shutil.which("clang") is None:
        pytest.skip("tinygrad needs clang")
    return create_engine("programs", request.param, 1)


@pytest.mark.parametrize("program", CASES)
def test_engine(engine, program):
    found = engine.as_numpy(engine.prepare(program, CASES[program])())
    wanted = exact(program, CASES[program]).values
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", [n for n in ENCODERS if not is_ours(n)])
def test_sentence_encoder(name, tmp_path, monkeypatch):
    for package in ENCODERS[name].needs:
        pytest.importorskip(package)
    monkeypatch.setenv(MODEL_VARIABLE, str(write_encoder(tmp_path / "bert")))
    engine = create_engine("encoders", name, 1)
    # More than one batch, of texts that differ in length and are cut.
    found = engine.as_numpy(engine.prepare("embed", {"texts": 40})())
    for vector, text in zip(found, sentences(40), strict=True):
        ids = list(text.encode()[: BERT.context])
        hidden = bert_hidden(bert_arrays(BERT), ids, layers=BERT.layers, heads=BERT.heads, eps=BERT.norm_eps)
        wanted = hidden.mean(0) / np.linalg.norm(hidden.mean(0))
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
