"""Caches that hold keys and values in fewer bits: read as they are stored, and off by their own rounding alone."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from models.numpy_forward import llama_logits
from models.tiny_models import LLAMA, language_model, llama_arrays
from rlx.ir.dtype import DType
from rlx.ir.leaves import Project
from rlx.ops.attn.attention import Attention
from rlx.ops.lowered.attention_parts import AttentionParts
from rlx.ops.shape.indexing import ScatterNd
from rlx.ops.shape.movement import Reshape, Transpose

TOKENS = np.random.default_rng(3).integers(0, LLAMA.vocab, 60).tolist()
# What one key or value becomes in a cache; q8 rows are codes with the scale max|x|/127.
ROUNDED = {
    DType.F32: lambda rows: rows.astype(np.float32),
    DType.F16: lambda rows: rows.astype(np.float16),
    DType.BF16: lambda rows: rows.astype(np.float32).astype(ml_dtypes.bfloat16),
}
VIEWS = (Project, Reshape, Transpose)


def as_stored(kv, rows):
    if kv is not DType.I8:
        return ROUNDED[kv](rows).astype(np.float64)
    scale = np.abs(rows).max(-1, keepdims=True) / 127
    return np.rint(rows / scale) * scale


def reference(config, stored=lambda rows: rows, tokens=TOKENS, positions=None):
    return llama_logits(
        llama_arrays(config),
        tokens,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        base=config.rope.base,
        eps=config.norm_eps,
        interleaved=config.rope.style == "gptj",
        stored=stored,
        positions=positions,
    )


def generated(lm):
    """Logits after a prompt, then token by token."""
    session = lm.session()
    return np.stack([session.prefill(TOKENS[:20]), *(session.step(t) for t in TOKENS[20:])])


@pytest.mark.parametrize("kv", [DType.F16, DType.BF16, DType.I8], ids=str)
def test_logits_are_off_by_the_rounding_of_the_cache_alone(kv):
    found = generated(language_model(kv_dtype=kv))
    exact = reference(LLAMA)[19:]
    rounded = reference(LLAMA, lambda rows: as_stored(kv, rows))[19:]
    rounding = np.abs(rounded - exact).max()
    assert rounding > 1e-4
    # f32 arithmetic before the cache moves a few values to the other side of a rounding.
    assert np.abs(found - rounded).max() < 0.1 * rounding


@pytest.mark.parametrize("kv", [DType.F32, DType.F16, DType.BF16, DType.I8], ids=str)
def test_no_kernel_goes_over_a_whole_cache(kv):
    """Attention reads the keys that there are and scatter stores the new ones; nothing else has to do with a cache."""
    lir = language_model(kv_dtype=kv)._runner.program._executable.lir
    graph = lir.as_graph()
    caches = {n.id for n in graph.nodes if len(n.shapes) == 1 and _is_cache(n.shape)}
    users = [(k, graph.nodes[i]) for k in lir.kernels for i in k.nodes if caches & {i, *graph.nodes[i].inputs}]
    strange = [(k.kind, n.op) for k, n in users if not isinstance(n.op, Attention | AttentionParts | ScatterNd)]
    # Views are read where they lie: they are kernels without code, or axes that attention reads in another order.
    views = ("view", "attention")
    assert [(kind, op) for kind, op in strange if kind not in views or not isinstance(op, VIEWS)] == []
    stored = {DType.of(kv)} if kv is not DType.I8 else {DType.I8, DType.F32}
    assert {graph.shape(i).dtype for i in caches} == stored


def _is_cache(shape):
    """[B, Hkv, C, D] or scales [B, Hkv, C], in any order."""
    return shape.rank >= 3 and "C" in map(str, shape.dims)


@pytest.mark.parametrize("kv", [DType.F32, DType.F16, DType.I8], ids=str)
def test_long_caches_are_read_in_parts(kv, monkeypatch):
    """A capacity at which keys are cut into parts gives what a short one gives."""
    config = replace(LLAMA, context=4096)
    short = generated(language_model(config, kv_dtype=kv))
    monkeypatch.setattr("rlx.models.kv_cache.FIRST_CAPACITY", 2048)
    long = generated(language_model(config, kv_dtype=kv))
    np.testing.assert_allclose(long, short, rtol=0, atol=2e-5 if kv is DType.F32 else 2e-3 * np.abs(short).max())


@pytest.mark.long
@pytest.mark.parametrize("kv", [DType.F16, DType.I8], ids=str)
def test_32768_tokens_are_what_f64_says(kv):
    """A long prompt, the last tokens one by one: every layer but the last looks at all pairs of positions."""
    count = 32768
    config = replace(LLAMA, context=count, heads=2, kv_heads=1)
    tokens = np.random.default_rng(5).integers(0, config.vocab, count).tolist()
    positions = list(range(count - 4, count))
    session = language_model(config, kv_dtype=kv).session()
    found = np.stack([session.prefill(tokens[:-3]), *(session.step(t) for t in tokens[-3:])])
    exact = reference(config, tokens=tokens, positions=positions)
    rounded = reference(config, lambda rows: as_stored(kv, rows), tokens, positions)
    rounding = np.abs(rounded - exact).max()
    assert rounding > 1e-6
    assert np.abs(found - rounded).max() < 0.2 * rounding + 1e-6 * np.abs(exact).max()
    assert (found.argmax(-1) == exact.argmax(-1)).all()
