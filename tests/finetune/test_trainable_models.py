"""Models as functions: encoders too, dropped inputs, and frozen arrays that nobody changes."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from small_decoders import ONE_LAYER, ONE_LAYER_BERT, bert_arrays, decoder_files

import rlx
import rlx.numpy as rnp
from models.tiny_models import byte_tokenizer, gguf_file, language_model, llama_arrays
from rlx import optim, train
from rlx.errors import OpError
from rlx.finetune import AdapterConfig, causal_loss, trainable_decoder, trainable_encoder
from rlx.models.adapter_files import read_adapter, write_peft
from rlx.models.encoder_names import HF_ENCODERS
from rlx.models.model_files import DecoderFiles
from rlx.models.text_encoder import TextEncoder
from rlx.models.weights import WeightFile, plain_weight

TOKENS = np.random.default_rng(0).integers(1, 250, (2, 9)).astype(np.int32)


def on_reference(function):
    return rlx.jit(function, device="reference")


def test_new_adapters_change_nothing():
    files = decoder_files("q8_0")
    wanted = language_model(files.config, weights=decoder_files("q8_0").weights, device="reference").logits(TOKENS[0])
    for is_dora in (False, True):
        model = trainable_decoder(files, AdapterConfig(rank=2, is_dora=is_dora))
        found = on_reference(model.logits)(model.params, model.frozen, TOKENS[:1])
        np.testing.assert_allclose(np.asarray(found)[0], wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("quantized", [None, "q4_0"])
def test_steps_train_the_adapter_alone(quantized):
    files = decoder_files(quantized)
    model = trainable_decoder(files, AdapterConfig(rank=2, targets=("v_proj", "up_proj")))
    before = {name: array.tobytes() for name, array in model.frozen.items()}
    packed = {name for name, w in files.weights.items() if w.scheme is not None}
    assert {name for name, a in model.frozen.items() if a.dtype == np.uint8} == packed
    assert all(model.frozen[name].nbytes == files.weights._weights[name].read().nbytes for name in packed)
    gradient = on_reference(rlx.value_and_grad(causal_loss(model)))
    batch = {"tokens": TOKENS[:, :-1], "labels": TOKENS[:, 1:], "frozen": model.frozen}
    params, losses = {name: np.array(a) for name, a in model.params.items()}, []
    for _ in range(12):
        loss, grads = gradient(params, batch, rlx.random.key(0))
        losses.append(float(loss))
        params = {name: p - 0.5 * np.asarray(grads[name]) for name, p in params.items()}
    assert losses[-1] < 0.9 * losses[0]
    assert {name: array.tobytes() for name, array in model.frozen.items()} == before


@pytest.mark.parametrize("is_dora", [False, True])
def test_weights_laid_out_once_give_the_same_losses_and_gradients(is_dora, monkeypatch):
    # Products of the backward pass decode weights in several pieces, the last of them shorter.
    monkeypatch.setattr("rlx.ops.lowered.quantized_panels._DECODED_ELEMENTS", 48 * 64)
    model = trainable_decoder(decoder_files("q4_0"), AdapterConfig(rank=2, is_dora=is_dora))
    laid_out = model.in_panels()
    assert set(laid_out.frozen) != set(model.frozen) and laid_out.params is model.params
    assert laid_out.in_panels() is laid_out
    params = {name: a + 0.01 for name, a in model.params.items()}
    results = []
    for one, device in ((model, "reference"), (laid_out, "reference"), (laid_out, "cpu")):
        batch = {"tokens": TOKENS[:, :-1], "labels": TOKENS[:, 1:], "frozen": one.frozen}
        gradient = rlx.jit(rlx.value_and_grad(causal_loss(one)), device=device)
        results.append(rlx.tree.leaves(gradient(params, batch, rlx.random.key(0))))
    for found in results[1:]:
        for a, b in zip(results[0], found, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-6)


def test_weights_laid_out_once_are_not_laid_out_in_steps():
    """And the file's own bytes are no argument any more."""
    model = trainable_decoder(decoder_files("q8_0"), AdapterConfig(rank=2, targets=("q_proj",))).in_panels()
    optimizer = optim.adamw(1e-3)
    batch = {"tokens": TOKENS[:, :-1], "labels": TOKENS[:, 1:], "frozen": model.frozen}
    graph = train.make_step(causal_loss(model), optimizer).lower(train.init_state(model.params, optimizer), batch).graph
    kinds = [n.op.mnemonic for n in graph.nodes]
    assert "panel_matmul" in kinds and "quant_panels" not in kinds and "dequant_matmul" not in kinds
    assert not any("attn_q" in str(n.name) for n in graph.inputs if n.shape.dtype is rlx.DType.U8)


def test_no_packed_weight_becomes_an_argument_or_a_result_as_floats():
    """The step has packed bytes as inputs, no params that could be prepared, and no constants of their size."""
    files = decoder_files("q8_0")
    model = trainable_decoder(files, AdapterConfig(rank=2, targets=("q_proj",)))
    optimizer = optim.adamw(1e-3)
    step = train.make_step(causal_loss(model), optimizer)
    batch = {"tokens": TOKENS[:, :-1], "labels": TOKENS[:, 1:], "frozen": model.frozen}
    graph = step.lower(train.init_state(model.params, optimizer), batch).graph
    assert not graph.params
    bytes_of = {str(n.name): n.shape for n in graph.inputs if n.shape.dtype is rlx.DType.U8}
    assert len(bytes_of) == 7 and "attn_q" in "".join(bytes_of)
    smallest = min(s.byte_size for s in bytes_of.values())
    constants = [n.op.value.array for n in graph.nodes if n.op.mnemonic == "constant"]
    assert all(c.nbytes < smallest for c in constants)


def test_decoded_weights_are_not_kept():
    """A step over packed weights needs less than half of what they would take as floats, all it computes included."""
    config = dataclasses.replace(ONE_LAYER, layers=3, hidden=64, ffn=256, head_dim=16, vocab=64)
    file = gguf_file(llama_arrays(config))
    file.quantize("q4_0", config.layers)
    model = trainable_decoder(DecoderFiles(Path("tiny"), config, file, lambda: None), AdapterConfig(rank=1))
    decoded = sum(4 * int(np.prod(w.dims)) for _, w in file.items() if w.scheme is not None)
    optimizer = optim.sgd(1e-3)
    batch = {"tokens": TOKENS[:1, :2] % 64, "labels": TOKENS[:1, 1:3] % 64, "frozen": model.frozen}
    step = train.make_step(causal_loss(model), optimizer)
    plan = step.plan(train.init_state(model.params, optimizer), batch)
    assert plan.arena_bytes < decoded / 2, (plan, decoded)


def test_rows_are_those_of_all_logits():
    model = trainable_decoder(decoder_files(), AdapterConfig(rank=2, targets=("q_proj",)))
    rows = np.array([[3, 0], [7, 7]], np.int32)
    run = on_reference(model.logits)
    whole, some = run(model.params, model.frozen, TOKENS), run(model.params, model.frozen, TOKENS, None, rows)
    np.testing.assert_allclose(np.asarray(some), np.take_along_axis(np.asarray(whole), rows[..., None], 1), rtol=1e-6)


def test_dropped_inputs_follow_the_key():
    model = trainable_decoder(decoder_files(), AdapterConfig(rank=2, dropout=0.5, targets=("q_proj",)))
    params = {name: a + np.float32(0.3) for name, a in model.params.items()}
    run = on_reference(model.logits)
    first, again, other = (np.asarray(run(params, model.frozen, TOKENS, rlx.random.key(k))) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    with pytest.raises(OpError, match="a random key is needed"):
        run(params, model.frozen, TOKENS)


def test_encoders_are_tuned_saved_and_loaded(tmp_path):
    def weights():
        arrays = {name: plain_weight(a) for name, a in bert_arrays(ONE_LAYER_BERT).items()}
        return WeightFile("a test", HF_ENCODERS["bert"], arrays)

    model = trainable_encoder(ONE_LAYER_BERT, weights(), AdapterConfig(rank=2, targets=("query", "value")))
    lengths = np.array([9, 5], np.int32)

    def distance(params, frozen):
        a = model.vectors(params, frozen, TOKENS, lengths)
        return rnp.sum((a[0] - a[1]) ** 2)

    gradient = on_reference(rlx.value_and_grad(distance))
    params, losses = {name: np.array(a) for name, a in model.params.items()}, []
    for _ in range(5):
        loss, grads = gradient(params, model.frozen)
        losses.append(float(loss))
        params = {name: p - 0.3 * np.asarray(grads[name]) for name, p in params.items()}
    assert losses[-1] < losses[0]
    write_peft(tmp_path, model.trained(params), ONE_LAYER_BERT, model.weights)
    adapters = [read_adapter(tmp_path, ONE_LAYER_BERT, weights())]
    encoder = TextEncoder(ONE_LAYER_BERT, weights(), byte_tokenizer, tmp_path, device="reference", adapters=adapters)
    texts = [bytes(TOKENS[0].astype(np.uint8)).decode("latin-1"), "abc"]
    ids = encoder.tokenizer.encode_batch(texts, add_special=False)
    padded = np.array([row + [0] * (max(map(len, ids)) - len(row)) for row in ids], np.int32)
    wanted = on_reference(model.vectors)(params, model.frozen, padded, np.array([len(row) for row in ids], np.int32))
    assert encoder.embed(texts).shape == (2, ONE_LAYER_BERT.hidden)
    np.testing.assert_allclose(encoder.embed(texts), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_full_training_needs_floats():
    with pytest.raises(OpError, match="is quantised, and cannot be trained; train an adapter, or a float model"):
        trainable_decoder(decoder_files("q8_0"), None)
    model = trainable_decoder(decoder_files(), None)
    assert not model.frozen and set(model.params) == {name for name, _ in decoder_files().weights.items()}
