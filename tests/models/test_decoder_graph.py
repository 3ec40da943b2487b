"""The decoder program against a plain NumPy forward, and its cache against itself."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from models.numpy_forward import llama_logits
from models.tiny_models import LLAMA, gguf_file, language_model, llama_arrays
from rlx.errors import FormatError
from rlx.ir.dtype import DType
from rlx.models.decoder import build_decoder
from rlx.models.kv_cache import ContextOverflow, SequenceBatch
from rlx.models.weights import Weight
from rlx.quant.schemes import QuantScheme, dequantize_blocks, quantize_blocks

TOKENS = np.random.default_rng(3).integers(0, LLAMA.vocab, 23).tolist()


def reference(config, arrays, tokens):
    return llama_logits(
        arrays,
        tokens,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        base=config.rope.base,
        eps=config.norm_eps,
        interleaved=config.rope.style == "gptj",
    )


@pytest.fixture(scope="module")
def lm():
    return language_model()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("style", ["gptj", "neox"])
def test_logits_equal_a_plain_forward(tied, style):
    config = replace(LLAMA, tied=tied, rope=replace(LLAMA.rope, style=style))
    got = language_model(config, seed=1).logits(TOKENS)
    np.testing.assert_allclose(got, reference(config, llama_arrays(config, 1), TOKENS), atol=2e-5)


def test_a_tied_head_may_have_a_bias():
    arrays, bias = llama_arrays(replace(LLAMA, tied=True), 1), np.linspace(-1, 1, LLAMA.vocab, dtype=np.float32)
    without, having = (
        language_model(replace(LLAMA, tied=True), weights=gguf_file(given)).logits(TOKENS)
        for given in (arrays, {**arrays, "output.bias": bias})
    )
    np.testing.assert_allclose(having, without + bias, atol=1e-5)


@pytest.mark.parametrize("splits", [(5, 18), (1,) * 23, (22, 1), (7, 1, 1, 14)])
def test_prefill_and_steps_give_what_one_pass_gives(lm, splits):
    whole, session, at = lm.logits(TOKENS), lm.session(), 0
    for length in splits:
        piece = TOKENS[at : at + length]
        got = session.step(piece[0]) if length == 1 else session.prefill(piece)
        at += length
        np.testing.assert_allclose(got, whole[at - 1], atol=1e-5)
    assert session.tokens == TOKENS


def test_a_session_goes_back(lm):
    session = lm.session()
    session.prefill(TOKENS)
    session.truncate(4)
    np.testing.assert_allclose(session.prefill(TOKENS[4:9]), lm.logits(TOKENS)[8], atol=1e-5)


def test_sequences_of_different_lengths_do_not_see_each_other(lm):
    rows = [TOKENS[:3], TOKENS[5:16], TOKENS[2:3]]
    batch = SequenceBatch(lm._runner, 3)
    got = batch.extend(rows)
    for row, ids in enumerate(rows):
        np.testing.assert_allclose(got[row], lm.logits(ids)[-1], atol=1e-5)
    more = [[9, 8], [], [7]]
    got = batch.extend(more)
    for row in (0, 2):
        np.testing.assert_allclose(got[row], lm.logits(rows[row] + more[row])[-1], atol=1e-5)
    got = batch.extend([[1], [2], [3]])
    for row in range(3):
        np.testing.assert_allclose(got[row], lm.logits(rows[row] + more[row] + [row + 1])[-1], atol=1e-5)


def test_caches_grow_and_prompts_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr("rlx.models.kv_cache.FIRST_CAPACITY", 4)
    monkeypatch.setattr("rlx.models.kv_cache.PREFILL_CHUNK", 5)
    lm = language_model()
    session = lm.session()
    session.prefill(TOKENS[:2])
    session.prefill(TOKENS[2:20])
    got = session.step(TOKENS[20])
    np.testing.assert_allclose(got, reference(LLAMA, llama_arrays(LLAMA), TOKENS[:21])[-1], atol=2e-5)


@pytest.mark.parametrize(("kv", "tolerance"), [(DType.F16, 5e-3), (DType.BF16, 4e-2), (DType.I8, 4e-2)])
def test_narrow_caches_are_close(lm, kv, tolerance):
    narrow = language_model(kv_dtype=kv)
    whole = lm.logits(TOKENS)
    got = narrow.logits(TOKENS)
    assert 0 < np.abs(got - whole).max() < tolerance * np.abs(whole).max()


def test_sliding_windows_forget():
    config = replace(LLAMA, windows=(4, 4))
    lm = language_model(config)
    # Two layers of four keys each: what stands more than six places back cannot matter.
    a, b = lm.logits(TOKENS[:20])[-1], lm.logits([0, 0, 0, *TOKENS[3:20]])[-1]
    np.testing.assert_allclose(a, b, atol=1e-5)
    far = lm.logits([*TOKENS[:14], 0, *TOKENS[15:20]])[-1]
    assert np.abs(a - far).max() > 1e-3


def test_the_context_ends(lm):
    session = lm.session()
    ids = (TOKENS * 5)[: LLAMA.context]
    session.prefill(ids)
    with pytest.raises(ContextOverflow, match="96 tokens and 1 more do not fit into the context of 96"):
        session.step(1)
    np.testing.assert_allclose(lm.logits(ids)[-1], reference(LLAMA, llama_arrays(LLAMA), ids)[-1], atol=3e-5)


def test_quantised_weights_are_used_as_they_are_stored():
    config, arrays, scheme = LLAMA, llama_arrays(LLAMA), QuantScheme.GgufQ8_0
    file, decoded = gguf_file(arrays), dict(arrays)
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            packed = quantize_blocks(scheme, array)
            decoded[name] = dequantize_blocks(scheme, packed).reshape(array.shape)
            rows = packed.reshape(len(array), -1)
            file._weights[name] = Weight(array.shape, DType.U8, scheme, lambda rows=rows: rows)
    lm = language_model(config, weights=file)
    assert "dequant_matmul" in str(lm.graph) and "dequant_gather" in str(lm.graph)
    np.testing.assert_allclose(lm.logits(TOKENS), reference(config, decoded, TOKENS), atol=2e-5)


def test_a_missing_tensor_is_named():
    arrays = llama_arrays(LLAMA)
    del arrays["blk.1.ffn_up.weight"]
    with pytest.raises(FormatError, match=r"the tensor 'blk\.1\.ffn_up\.weight' \[48, 32\] is missing"):
        build_decoder(LLAMA, gguf_file(arrays))


def test_an_unknown_tensor_is_named():
    arrays = llama_arrays(LLAMA) | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(FormatError, match=r"no use for the tensor 'blk\.0\.attn_sinks\.weight'"):
        build_decoder(LLAMA, gguf_file(arrays))


def test_a_tensor_of_another_shape_is_named():
    arrays = llama_arrays(LLAMA) | {"blk.0.attn_k.weight": np.ones((32, 32), np.float32)}
    with pytest.raises(FormatError, match=r"'blk\.0\.attn_k\.weight' must have the shape \[16, 32\], got \[32, 32\]"):
        build_decoder(LLAMA, gguf_file(arrays))


@pytest.mark.parametrize("parallel", [False, True])
def test_only_the_rows_that_are_asked_for_go_through_the_last_feed_forward(parallel):
    config = replace(LLAMA, parallel_residual=parallel)
    graph = build_decoder(config, gguf_file(llama_arrays(config)), cuts_rows=True).graph
    rows = [str(n.shape.dims[1]) for n in graph.nodes if n.shape.rank == 3 and n.shape.dims[-1] == config.ffn]
    half = len(rows) // 2
    assert rows and rows == ["S"] * half + ["R"] * half
    lm = language_model(config)
    whole = lm.logits(TOKENS)
    session = lm.session()
    np.testing.assert_allclose(session.prefill(TOKENS), whole[-1], atol=1e-5)


def test_reports_speak_of_the_model(lm):
    """Kernels are called by what the decoder is written in, and say in which layer they are."""
    told = {(row.scope, row.title) for row in lm.report.kernels if row.kind != "view"}
    for layer in range(LLAMA.layers):
        assert {
            (f"layer {layer} / attention", "rope + cache write"),
            (f"layer {layer} / attention", "attention"),
            (f"layer {layer} / feed forward", "linear + swiglu"),
        } <= told
        assert layer == LLAMA.layers - 1 or (f"layer {layer} / feed forward", "linear + residual") in told
    # Kernels that reach over a border name both sides.
    assert ("embedding, layer 0 / attention", "embedding + rms_norm") in told
    assert ("layer 1 / attention", "rms_norm") in told and ("layer 0", "residual + rms_norm") in told
    # The last feed forward computes the rows that are asked for.
    assert ("layer 1 / feed forward", "gather_nd + rms_norm") in told and ("head", "residual + rms_norm") in told
    counts = json.loads(lm.report.json())["fusion"]
    assert (counts["fused_swiglu"], counts["fused_residual_rms_norm"]) == (LLAMA.layers, LLAMA.layers)
