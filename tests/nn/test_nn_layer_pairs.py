"""Layers as pairs of functions: shapes, weights, formulas in NumPy, randomness only with a key, and gradients.

Recurrent layers, attention blocks and CTC are held to torch in the peers group; see tests/peers/test_torch_layers.py.
"""

import itertools

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import nn
from rlx.errors import OpError, ShapeError

KEY = rlx.random.key(0)
_rng = np.random.default_rng(0)


def normal(*dims):
    return _rng.standard_normal(dims).astype("f4")


LAYERS = {
    "dense": (nn.dense(5), (3, 4)),
    "dense of no batch": (nn.dense(5, use_bias=False), (4,)),
    "conv": (nn.conv_layer(6, 3, stride=2, padding=1), (2, 4, 9, 8)),
    "conv of one axis": (nn.conv_layer(4, 5, groups=2), (2, 2, 11)),
    "layer norm": (nn.norm_layer(), (2, 3, 8)),
    "rms norm": (nn.norm_layer("rms"), (2, 8)),
    "group norm": (nn.norm_layer("group", groups=2), (2, 4, 3, 3)),
    "dropout": (nn.dropout_layer(0.5), (4, 6)),
    "flatten": (nn.flatten(), (2, 3, 4)),
    "mlp": (nn.mlp([16, 8, 3]), (5, 4)),
    "attention": (nn.self_attention(4, kv_heads=2, is_causal=True, use_rope=True), (2, 7, 16)),
    "feed forward": (nn.feed_forward(32, gated=True), (2, 3, 8)),
    "block": (nn.transformer_block(2, 32, norm="rms", gated=True, dropout=0.1), (2, 5, 8)),
    "experts": (nn.moe(4, 16), (2, 5, 8)),
    "experts with room": (nn.moe(4, 16, top_k=1, capacity_factor=1.0), (2, 6, 8)),
    "lstm": (nn.lstm(6), (2, 5, 4)),
    "gru": (nn.gru(6, reverse=True), (2, 5, 4)),
    "chain": (
        nn.chain(nn.conv_layer(3, 3), nn.relu, lambda x: nn.max_pool(x, 2), nn.flatten(), nn.dense(7)),
        (2, 1, 6, 6),
    ),
}
each = pytest.mark.parametrize("name", LAYERS)


@each
def test_shapes_weights_and_gradients(name):
    """The shape that is told is the shape that comes; every weight has a finite gradient; f32 stays f32."""
    layer, shape = LAYERS[name]
    params = layer.init(KEY, shape)
    x = normal(*shape)
    y = rlx.jit(layer.apply)(params, x, KEY)
    assert tuple(y.shape) == layer.out_shape(shape) and y.dtype == np.float32
    gradients = rlx.grad(lambda p, x: rnp.sum(layer.apply(p, x, KEY) ** 2), argnums=(0, 1))(params, x)
    assert rlx.tree.structure(gradients[0]) == rlx.tree.structure(params)
    assert all(np.isfinite(np.asarray(g)).all() for g in rlx.tree.leaves(gradients))
    assert not rlx.tree.leaves(params) or any(np.asarray(g).any() for g in rlx.tree.leaves(gradients[0]))


@pytest.mark.parametrize("name", [n for n in LAYERS if n != "experts with room"])
def test_one_program_serves_every_batch(name):
    layer, shape = LAYERS[name]
    params = layer.init(KEY, shape)
    program = rlx.jit(lambda p, x: layer.apply(p, x)).lower(params, rlx.Spec(("B", *shape[1:]))).compile()
    for batch in (shape[0], 2 * shape[0] + 1) if len(shape) > 1 else (shape[0],):
        x = normal(batch, *shape[1:])
        np.testing.assert_allclose(
            np.asarray(program(params, x)), np.asarray(layer.apply(params, x)), rtol=2e-4, atol=1e-5
        )


@each
def test_without_a_key_nothing_is_random(name):
    layer, shape = LAYERS[name]
    params = layer.init(KEY, shape)
    x = normal(*shape)
    np.testing.assert_array_equal(np.asarray(layer.apply(params, x)), np.asarray(layer.apply(params, x)))


def test_dense_and_mlp_by_their_formula():
    layer = nn.mlp([6, 2], nn.tanh)
    params = layer.init(KEY, (3, 4))
    x = normal(3, 4)
    (first, _, second) = params
    wanted = np.tanh(x @ np.asarray(first["w"]) + np.asarray(first["b"])) @ np.asarray(second["w"]) + np.asarray(
        second["b"]
    )
    np.testing.assert_allclose(np.asarray(layer.apply(params, x)), wanted, rtol=1e-5, atol=1e-6)


def test_parts_of_a_chain_get_keys_of_their_own():
    layer = nn.chain(nn.dense(8), nn.dense(8))
    first, second = layer.init(KEY, (1, 8))
    assert not np.array_equal(np.asarray(first["w"]), np.asarray(second["w"]))
    drops = nn.chain(nn.dropout_layer(0.5), nn.dropout_layer(0.5))
    kept = np.asarray(drops.apply([{}, {}], np.ones(4000, "f4"), KEY))
    assert set(np.unique(kept)) == {0.0, 4.0} and 0.2 < (kept > 0).mean() < 0.3


def test_embedding_is_rows_of_its_table():
    layer = nn.embedding_layer(10, 3)
    params = layer.init(KEY, (2, 4))
    ids = np.array([[1, 2, 3, 4], [9, 0, 1, 1]], np.int32)
    np.testing.assert_array_equal(np.asarray(layer.apply(params, ids)), np.asarray(params["table"])[ids])
    assert layer.out_shape((2, 4)) == (2, 4, 3)


def moe_by_hand(params, x, top_k):
    """Token by token, in f64."""
    router, up, down = (np.asarray(params[n], "f8") for n in ("router", "up", "down"))
    rows = []
    for token in x.reshape(-1, x.shape[-1]).astype("f8"):
        scores = token @ router
        best = np.argsort(-scores)[:top_k]
        share = np.exp(scores[best] - scores[best].max())
        share /= share.sum()
        rows.append(sum(w * (np.maximum(token @ up[e], 0) @ down[e]) for w, e in zip(share, best)))
    return np.stack(rows).reshape(x.shape)


def test_experts_token_by_token():
    layer = nn.moe(5, 12, top_k=2, activation=nn.relu)
    params = layer.init(KEY, (2, 7, 6))
    x = normal(2, 7, 6)
    np.testing.assert_allclose(np.asarray(layer.apply(params, x)), moe_by_hand(params, x, 2), rtol=1e-4, atol=1e-5)


def test_experts_without_room_leave_tokens_out():
    """All tokens choose the same expert, which has room for half of them."""
    layer = nn.moe(2, 4, top_k=1, capacity_factor=1.0)
    params = layer.init(KEY, (8, 3)) | {"router": np.float32([[1, -1]] * 3)}
    y = np.asarray(layer.apply(params, np.ones((8, 3), "f4")))
    assert y[:4].any(axis=1).all() and not y[4:].any()


def test_load_balance_is_1_when_all_get_as_much():
    even = np.float32(np.eye(4)[np.arange(8) % 4] * 3)
    assert float(nn.load_balance_loss(even)) == pytest.approx(1.0, rel=1e-6)
    assert float(nn.load_balance_loss(np.float32([[9, 0, 0, 0]] * 8))) > 3.9


def ctc_by_hand(logits, labels, blank=0):
    """The sum over every way to spell the labels in the frames."""
    p = np.exp(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        spelled = [c for c, _ in itertools.groupby(path) if c != blank]
        if spelled == list(labels):
            total += np.prod([p[t, c] for t, c in enumerate(path)])
    return -np.log(total) if total else np.inf


@pytest.mark.parametrize("labels", [[1, 2], [1, 1], [2], [1, 2, 1], [2, 2, 2, 1], []])
def test_ctc_is_the_sum_over_all_paths(labels):
    logits = _rng.standard_normal((1, 5, 3))
    padded = np.array([labels + [0] * (4 - len(labels))], np.int32)
    loss = nn.ctc_loss(logits, padded, None, np.int32([len(labels)]), reduction="none")
    np.testing.assert_allclose(np.asarray(loss)[0], ctc_by_hand(logits[0], labels), rtol=1e-10)


def test_ctc_without_labels_is_all_blanks():
    logits = _rng.standard_normal((2, 4, 3))
    blanks = logits[:, :, 0] - np.logaddexp.reduce(logits, -1)
    for labels, lengths in ((np.zeros((2, 0), "i4"), None), (np.int32([[1], [2]]), np.int32([0, 0]))):
        loss = nn.ctc_loss(logits, labels, None, lengths, reduction="none")
        np.testing.assert_allclose(np.asarray(loss), -blanks.sum(1), rtol=1e-10)


def test_ctc_of_too_many_labels():
    logits, labels = np.zeros((1, 3, 2)), np.int32([[1, 1, 1]])
    assert np.isinf(float(nn.ctc_loss(logits, labels)))
    assert float(nn.ctc_loss(logits, labels, zero_infinity=True)) == 0
    gradient = rlx.grad(lambda x: nn.ctc_loss(x, labels, zero_infinity=True))(logits)
    assert not np.asarray(gradient).any()


def test_contrastive_loss_by_its_formula():
    a, b = _rng.standard_normal((2, 6, 5))
    cos = (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T / 0.1

    def one_way(s):
        return -np.mean(np.diag(s) - np.logaddexp.reduce(s, 1))

    assert float(nn.contrastive_loss(a, b, 0.1, symmetric=False)) == pytest.approx(one_way(cos), rel=1e-9)
    assert float(nn.contrastive_loss(a, b, 0.1)) == pytest.approx((one_way(cos) + one_way(cos.T)) / 2, rel=1e-9)


BAD = {
    "norm kind": (lambda: nn.norm_layer("batch"), OpError, "kind must be 'layer', 'rms' or 'group'"),
    "group norm without groups": (lambda: nn.norm_layer("group"), OpError, "groups="),
    "rate": (lambda: nn.dropout_layer(1.0), OpError, "below 1, got 1.0"),
    "heads": (lambda: nn.self_attention(3).init(KEY, (1, 2, 8)), ShapeError, "8 is not a multiple of 3 heads"),
    "kv heads": (lambda: nn.self_attention(3, kv_heads=2), OpError, "multiple of kv_heads, got 3 and 2"),
    "image": (
        lambda: nn.conv_layer(4, 3).init(KEY, (2, 4)),
        ShapeError,
        r"\[N, C, spatial..\], got the shape \(2, 4\)",
    ),
    "groups": (lambda: nn.conv_layer(4, 3, groups=3).init(KEY, (2, 4, 8)), ShapeError, "3 groups"),
    "sequence": (lambda: nn.lstm(4).init(KEY, (2, 4)), ShapeError, r"lstm: x must be \[B, T, width\]"),
    "experts": (lambda: nn.moe(2, 4, top_k=3), OpError, "between 1 and the 2 experts, got 3"),
    "room of any batch": (
        lambda: rlx.jit(LAYERS["experts with room"][0].apply).lower(
            LAYERS["experts with room"][0].init(KEY, (2, 6, 8)), rlx.Spec(("B", 6, 8))
        ),
        ShapeError,
        "needs a fixed number of tokens",
    ),
    "no sizes": (lambda: nn.mlp([]), OpError, "at least one size"),
    "pairs": (lambda: nn.contrastive_loss(np.ones((2, 3)), np.ones((3, 3))), ShapeError, "contrastive_loss"),
    "frames": (lambda: nn.ctc_loss(np.ones((2, 3)), np.ones((2, 1), "i4")), ShapeError, r"logits \[B, T, classes\]"),
    "reduction": (lambda: nn.ctc_loss(np.ones((1, 2, 3)), np.ones((1, 1), "i4"), reduction="all"), OpError, "'all'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name):
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make()
