"""What adapters compute, and their gradients, against the dense model whose weight they stand for, in f64."""

import dataclasses

import numpy as np
import pytest
from small_decoders import ONE_LAYER, decoder_files, widened

import rlx
import rlx.numpy as rnp
from models.random_directories import FAMILIES, random_directory
from rlx.finetune import AdapterConfig, trainable_decoder
from rlx.models.adapters import float_rows, merged, row_squares
from rlx.models.model_files import open_decoder

TOKENS = np.random.default_rng(1).integers(0, 256, (2, 6)).astype(np.int32)
COTANGENT = np.random.default_rng(2).normal(size=(2, 6, ONE_LAYER.vocab))


def dense(weight):
    return np.concatenate([rows for _, rows in float_rows(weight)]).astype(np.float64)


def in_f64(model):
    """A model whose program and floats are f64."""
    wide = {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in model.frozen.items()}
    return dataclasses.replace(model, graph=widened(model.graph), frozen=wide)


def sum_and_gradients(model):
    """(params, frozen) -> (Σ logits·C, logits), gradients, by the reference interpreter."""

    def total(params, frozen):
        tables = {name: rnp.astype(t, "f64") for name, t in model._tables(TOKENS.shape[1]).items()}
        places = rnp.broadcast_to(rnp.arange(6, dtype="i32"), (2, 6))
        inputs = {"tokens": TOKENS, "positions": places, "rows": places, **tables}
        (logits,) = model(params, frozen, inputs)
        return rnp.sum(logits * COTANGENT), logits

    return rlx.jit(rlx.value_and_grad(total, has_aux=True), device="reference")


def value_and_gradients(model, params):
    (_, logits), gradients = sum_and_gradients(model)(params, model.frozen)
    return np.asarray(logits), {name: np.asarray(g) for name, g in gradients.items()}


def random_params(adapter, file, rng):
    return {name: a + 0.2 * rng.normal(size=a.shape) for name, a in adapter.params(file).items()}


@pytest.mark.parametrize("quantized", [None, "q8_0"])
@pytest.mark.parametrize("is_dora", [False, True])
def test_gradients_follow_from_those_of_the_dense_weight(quantized, is_dora):
    files = decoder_files(quantized)
    config = AdapterConfig(rank=3, alpha=6, targets=("q_proj", "down_proj"), is_dora=is_dora)
    model = in_f64(trainable_decoder(files, config))
    params = random_params(model.adapter, files.weights, np.random.default_rng(0))
    logits, found = value_and_gradients(model, params)

    # The dense model: the same file with W_eff in the place of each W; its gradient is dW.
    scale, effective = 2.0, {}
    for site in model.adapter.pairs:
        name = files.weights.name(*site)
        a, b = params[f"{name}.lora_A"], params[f"{name}.lora_B"]
        whole = dense(files.weights.weight(*site)) + scale * b @ a
        factor = params[f"{name}.lora_magnitude_vector"] / np.linalg.norm(whole, axis=1) if is_dora else np.ones(len(b))
        effective[f"{name}.weight"] = (whole, factor)
    plain = {
        name: w._replace(dtype=rlx.DType.F32, scheme=None, read=lambda w=w: dense(w).astype(np.float32))
        for name, w in files.weights.items()
        if w.scheme is not None
    }
    full = in_f64(trainable_decoder(files._replace(weights=files.weights.replaced(plain)), None))
    weights = {name: a.astype(np.float64) for name, a in full.params.items()}
    weights |= {name: factor[:, None] * whole for name, (whole, factor) in effective.items()}
    wanted_logits, wanted = value_and_gradients(full, weights)

    np.testing.assert_allclose(logits, wanted_logits, rtol=1e-6, atol=1e-6)
    for site in model.adapter.pairs:
        name = files.weights.name(*site)
        a, b = params[f"{name}.lora_A"], params[f"{name}.lora_B"]
        whole, factor = effective[f"{name}.weight"]
        dw = wanted[f"{name}.weight"]
        expected = {"lora_A": scale * b.T @ (factor[:, None] * dw), "lora_B": scale * (factor[:, None] * dw) @ a.T}
        if is_dora:
            expected["lora_magnitude_vector"] = (dw * whole).sum(axis=1) / np.linalg.norm(whole, axis=1)
        for part, gradient in expected.items():
            size = np.abs(gradient).max()
            error = np.abs(found[f"{name}.{part}"] - gradient).max() / size
            # f64 throughout, but for the squares of rows, which DoRA keeps as f32.
            assert error < (1e-6 if is_dora else 1e-12), (name, part, error)


@pytest.mark.parametrize(
    ("family", "quantized"), [*((f, None) for f in FAMILIES), ("mixtral", "q8_0"), ("phi3", "q4_0")]
)
def test_gradients_of_all_families_are_slopes(family, quantized, tmp_path):
    """Along a random direction, in f64, through all that models are made of: experts, windows, caps, learned places."""
    counts = {key: 1 for key in ("num_hidden_layers", "n_layer") if key in FAMILIES[family]}
    files = open_decoder(random_directory(tmp_path, FAMILIES[family] | counts))
    if quantized is not None:
        files.weights.quantize(quantized, files.config.layers)
    model = in_f64(trainable_decoder(files, AdapterConfig(rank=2)))
    rng = np.random.default_rng(0)
    params = random_params(model.adapter, files.weights, rng)
    direction = {name: rng.normal(size=p.shape) for name, p in params.items()}
    run = sum_and_gradients(model)
    (_, _), gradients = run(params, model.frozen)
    assert all(np.abs(np.asarray(g)).max() > 0 for g in gradients.values())
    slope = sum(float(np.sum(np.asarray(gradients[name]) * direction[name])) for name in params)
    eps = 1e-5
    ends = [run({n: p + s * eps * direction[n] for n, p in params.items()}, model.frozen)[0][0] for s in (1, -1)]
    assert (float(ends[0]) - float(ends[1])) / (2 * eps) == pytest.approx(slope, rel=1e-5)


def test_merged_is_the_matrix_of_the_formula():
    files = decoder_files("q4_0")
    rng = np.random.default_rng(3)
    model = trainable_decoder(files, AdapterConfig(rank=2, targets=("v_proj",), is_dora=True))
    ((site, pair),) = model.trained(random_params(model.adapter, files.weights, rng)).pairs.items()
    weight = files.weights.weight(*site)
    whole = dense(weight) + pair.scale * pair.b.astype(np.float64) @ pair.a
    wanted = pair.magnitude[:, None] / np.linalg.norm(whole, axis=1, keepdims=True) * whole
    np.testing.assert_allclose(merged(weight, [pair]), wanted, rtol=1e-6, atol=1e-7)
    plain = pair._replace(magnitude=None)
    np.testing.assert_allclose(merged(weight, [plain, plain]), 2 * whole - dense(weight), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(row_squares(weight), np.square(dense(weight)).sum(axis=1), rtol=1e-6)
