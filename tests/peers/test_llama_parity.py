"""Answers of a real model beside llama.cpp: ours are not further from those of the weights in f64."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.exact_gguf import gguf_logits
from rlx.bench.agreement import compare_logits, engine_logits
from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf
from rlx.models.pull import pull
from rlx.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.peers]


def test_512_positions_are_no_further_from_f64_than_those_of_llama_cpp():
    pytest.importorskip("llama_cpp")
    try:
        path = pull("smollm2")
    except (RlxError, OSError) as error:
        pytest.skip(f"smollm2 cannot be pulled here: {error}")
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    with open_gguf(path) as file:
        tokens = Tokenizer.from_gguf(file).encode(text)[:512]
    exact = gguf_logits(path, tokens)
    ours, rounded, theirs = (
        compare_logits(exact, engine_logits(engine, path, tokens)) for engine in ("rlx", "rlx int8", "llama.cpp")
    )
    assert ours.positions == 512 and ours.top1 == 1.0
    assert ours.mean_kl <= theirs.mean_kl and ours.max_kl <= theirs.max_kl
    # Both round activations to 8 bits: errors of one size, a few per cent apart on one text.
    assert rounded.mean_kl < 1.25 * theirs.mean_kl and rounded.top1 > theirs.top1 - 0.01
