"""Suites that run models: which engines, on which files, how much work, and whole runs on small models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx.models
from bench.encoder_directory import BERT, write_encoder
from rlx.bench import driver
from rlx.bench.agreement import compare_logits, engine_logits
from rlx.bench.driver import chosen_engines, largest_difference, mean_turn, run_suite
from rlx.bench.limits import Limits
from rlx.bench.model_variants import converted, main_type
from rlx.bench.model_work import decoder_work, encoder_work
from rlx.bench.programs import Expected
from rlx.bench.report import table
from rlx.bench.sentences import sentences
from rlx.bench.suites import SUITES, Case
from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf

TINY = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
OWN_MODELS = ["rlx", "rlx Q4_0", "rlx Q8_0", "rlx f32", "rlx int8"]


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def quick_limits(monkeypatch):
    monkeypatch.setattr(driver, "measure_limits", lambda threads: Limits(1e11, 1e10))


def test_ours_always_run_and_a_peer_brings_its_other_types():
    assert chosen_engines("language_models", []) == OWN_MODELS
    assert chosen_engines("language_models", ["llama.cpp"])[len(OWN_MODELS) :] == [
        "llama.cpp",
        "llama.cpp Q4_0",
        "llama.cpp Q8_0",
    ]
    assert chosen_engines("language_models", ["llama.cpp Q8_0"])[len(OWN_MODELS) :] == ["llama.cpp Q8_0"]
    assert chosen_engines("encoders", ["openvino"]) == ["rlx", "rlx int8", "rlx int8 weights", "openvino"]
    with pytest.raises(RlxError, match="no engine is called ollama"):
        chosen_engines("language_models", ["ollama"])


def test_a_model_is_converted_once_and_kept(own_cache, tmp_path):
    said = []
    assert converted(TINY, "") == TINY
    file = converted(TINY, "Q4_0", said.append)
    assert main_type(file) == "Q4_0" and own_cache in file.parents and len(said) == 1
    with open_gguf(file) as small, open_gguf(TINY) as large:
        assert list(small.tensors) == list(large.tensors)
    assert converted(TINY, "Q4_0", said.append) == file and len(said) == 1
    # Another source has a file of its own.
    copy = tmp_path / TINY.name
    copy.write_bytes(TINY.read_bytes())
    assert converted(copy, "Q4_0") != file
    with pytest.raises(RlxError, match="has the type Q4_0 already"):
        converted(file, "Q4_0")
    with pytest.raises(RlxError, match="only GGUF files"):
        converted(tmp_path, "Q4_0")


def test_work_of_a_decoder():
    """Against a count by layers; the head is met by one token, and the embeddings of a tied model are the head."""
    with open_gguf(TINY) as file:
        shapes = {n: t.shape for n, t in file.tensors.items()}
        sizes = {n: t.nbytes for n, t in file.tensors.items()}
        heads, layers = file.metadata["llama.attention.head_count"], file.metadata["llama.block_count"]
    hidden = shapes["token_embd.weight"][1]
    inner = sum(2 * s[0] * s[1] for n, s in shapes.items() if n.startswith("blk.") and len(s) == 2)
    head_name = "output.weight" if "output.weight" in shapes else "token_embd.weight"
    head = 2 * shapes[head_name][0] * hidden
    read = sum(n for name, n in sizes.items() if name == head_name or name != "token_embd.weight")
    kv_width = shapes["blk.0.attn_k.weight"][0]
    assert shapes["blk.0.attn_q.weight"][0] == hidden and heads > 0
    scores = sum(4 * layers * hidden * (i + 1) for i in range(7))
    assert decoder_work(TINY, "prefill", 7) == (7 * inner + head + scores, read)
    one = inner + head + 4 * layers * hidden * 8
    assert decoder_work(TINY, "decode", 7) == (one, read + 2 * layers * kv_width * 4 * 8)


def test_a_language_model_runs_through_the_suite(own_cache, quick_limits):
    cases = [
        Case("prefill 9 tokens", "prefill", "prefill", {"tokens": 9}),
        Case("step", "decode", "decode", {"tokens": 5}),
    ]
    options = {"rounds": 1, "round_seconds": 0.001, "threads": 1}
    result = run_suite("llm", cases, family="language_models", peers=[], model=TINY, **options)
    # The shipped model is a Q8_0 file.
    measured = [name for name in OWN_MODELS if name not in result.missing]
    for case in result.cases:
        assert list(case.timings) == measured
        assert all(t.seconds > 0 and t.limit > 0 and not t.problem for t in case.timings.values())
        assert case.timings["rlx"].error == 0 < case.timings["rlx int8"].error
    assert all("has the type" in reason for reason in result.missing.values())
    assert "prefill 9 tokens, rlx int8" in table(result) and "rlx f32 rounds nothing more" in table(result)


def test_several_sequences_run_through_the_suite(own_cache, quick_limits):
    cases = [Case("step", "decode", "decode", {"tokens": 5})]
    cases += [Case("steps", "decode", "decode many", {"tokens": 5, "sequences": 3})]
    options = {"rounds": 1, "round_seconds": 0.001, "threads": 1}
    result = run_suite("llm-shapes", cases, family="language_shapes", peers=[], model=TINY, **options)
    assert list(result.cases[1].timings) == ["rlx", "rlx f32", "rlx int8"]
    assert all(t.seconds > 0 and t.error < 0.1 for t in result.cases[1].timings.values())
    # Weights are read once, caches for each sequence.
    (flops, nbytes), (more, read) = (decoder_work(TINY, "decode", 5), decoder_work(TINY, "decode many", 5, 3))
    assert more == 3 * flops and nbytes < read < nbytes * 1.1


def test_logits_of_an_engine_are_those_of_the_model():
    tokens = list(range(20, 60))
    found = engine_logits("rlx", TINY, tokens, threads=1)
    expected = rlx.load(TINY, threads=1).logits(tokens)
    assert compare_logits(expected, found).mean_kl < 1e-12 and found.shape == expected.shape


@pytest.fixture
def bert(tmp_path):
    return write_encoder(tmp_path / "bert")


def test_sentences_are_embedded_through_the_suite(own_cache, quick_limits, bert):
    case = Case("3 sentences", "embed", "embed", {"texts": 3})
    options = {"rounds": 1, "round_seconds": 0.001, "threads": 1}
    result = run_suite("embed", [case], family="encoders", peers=[], model=bert, **options)
    timings = result.cases[0].timings
    assert list(timings) == ["rlx", "rlx int8", "rlx int8 weights"] and not result.missing
    assert all(t.seconds > 0 and t.limit > 0 for t in timings.values())
    assert timings["rlx"].error < 1e-12 < timings["rlx int8 weights"].error < timings["rlx int8"].error
    assert "mean cosine to rlx in f32: " in table(result)
    # A text of n characters has n tokens here, at most 64.
    lengths = [min(len(text), BERT.context) for text in sentences(3)]
    weights = BERT.layers * BERT.hidden * (4 * BERT.hidden + 2 * BERT.ffn)
    attention = 4 * BERT.layers * BERT.hidden * sum(n * n for n in lengths)
    assert encoder_work(bert, 3) == (2 * weights * sum(lengths) + attention, 4 * weights)


def test_sentences_are_mixed_and_the_same_for_everybody():
    texts = sentences(256)
    counts = sorted(len(text.split()) for text in texts)
    assert texts == sentences(300)[:256] and len(set(texts)) > 250
    assert counts[0] < 6 and 10 < counts[128] < 20 and counts[-1] > 60


def test_errors():
    wanted = Expected(np.arange(2), np.array([[3.0, 4.0], [0.0, 2.0]]))
    assert largest_difference(np.array([[3.0, 4.0], [0.0, 1.0]]), wanted) == 0.25
    assert mean_turn(np.array([[6.0, 8.0], [1.0, 0.0]]), wanted) == pytest.approx(0.5)
    for measure in (largest_difference, mean_turn):
        assert measure(np.zeros((2, 3)), wanted) == np.inf
        assert measure(np.full((2, 2), np.nan), wanted) == np.inf


def test_every_suite_says_what_it_compares():
    without_models = {"programs", "kernels", "matrices", "sparse", "scans", "loops"}
    with_models = {"language_models", "language_shapes", "encoders"}
    assert {suite.family for suite in SUITES.values()} == without_models | with_models
    assert all(suite.notes for suite in SUITES.values() if suite.family in with_models)
