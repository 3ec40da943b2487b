"""Attention and rotary embedding of rlx.nn against a direct NumPy formula."""

import numpy as np
import pytest
import scipy.special

import rlx
from rlx import nn
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building

_rng = np.random.default_rng(4)
B, S, T, H, K, D = 2, 3, 5, 4, 2, 6
Q = _rng.normal(size=(B, S, H, D))
KEY, VALUE = _rng.normal(size=(B, T, K, D)), _rng.normal(size=(B, T, K, D))
BIAS = _rng.normal(size=(B, H, S, T))
MASK = _rng.random((B, 1, S, T)) < 0.6
MASK[0, 0, 1] = False
# Query i stands at position i.
CAUSAL = np.tril(np.ones((S, T), bool))


def attend(q, k, v, visible=None, bias=0.0, scale=D**-0.5, softcap=None):
    """Everything as [B, H, S, T], one line per step."""
    k, v = (np.repeat(x, H // K, axis=2) for x in (k, v))
    scores = np.einsum("bshd,bthd->bhst", q, k) * scale
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    scores = scores + bias
    visible = np.ones(scores.shape, bool) if visible is None else np.broadcast_to(visible, scores.shape)
    weights = scipy.special.softmax(np.where(visible, scores, -1e300), -1)
    # A query that sees nothing gives 0.
    weights = np.where(visible.any(-1, keepdims=True), weights * visible, 0)
    return np.einsum("bhst,bthd->bshd", weights, v)


CASES = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "causal": ({"is_causal": True}, {"visible": CAUSAL}),
    "window": ({"window": 1}, {"visible": CAUSAL & ~np.tril(np.ones((S, T), bool), -2)}),
    "mask": ({"mask": MASK}, {"visible": MASK}),
    "mask2d": ({"mask": CAUSAL}, {"visible": CAUSAL}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "bias and mask": ({"bias": BIAS, "mask": MASK}, {"bias": BIAS, "visible": MASK}),
    "bias and causal": ({"bias": BIAS, "is_causal": True}, {"bias": BIAS, "visible": CAUSAL}),
    "mask and causal": ({"mask": MASK, "is_causal": True}, {"visible": MASK & CAUSAL}),
    "positions": (
        {"is_causal": True, "positions": np.array([2, 3, 4], np.int32)},
        {"visible": np.arange(T) <= np.array([2, 3, 4])[:, None]},
    ),
    "positions and mask": (
        {"is_causal": True, "mask": MASK, "positions": np.array([[2, 3, 4], [0, 1, 2]], np.int32)},
        {"visible": MASK & (np.arange(T) <= np.array([[2, 3, 4], [0, 1, 2]])[:, None, :, None])},
    ),
    "cache": (
        {"is_causal": True, "kv_len": np.array([5, 4], np.int32)},
        {"visible": np.arange(T) <= np.array([[2, 3, 4], [1, 2, 3]])[:, None, :, None]},
    ),
    "cache and mask": (
        {"is_causal": True, "mask": MASK, "kv_len": np.array([5, 4], np.int32)},
        {"visible": MASK & (np.arange(T) <= np.array([[2, 3, 4], [1, 2, 3]])[:, None, :, None])},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    options, meaning = CASES[name]
    wanted = attend(Q, KEY, VALUE, **meaning)
    np.testing.assert_allclose(nn.dot_product_attention(Q, KEY, VALUE, **options), wanted, rtol=1e-10, atol=1e-12)
    heads_first = [x.swapaxes(1, 2) for x in (Q, KEY, VALUE)]
    other = nn.dot_product_attention(*heads_first, **options, layout="bhsd")
    np.testing.assert_allclose(np.asarray(other).swapaxes(1, 2), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["causal", "bias and causal", "mask"])
def test_attention_in_a_program_of_any_length(name):
    options, meaning = CASES[name]
    graph = Graph("attention")
    with building(graph):
        q = graph.input("q", ("B", S, H, D), "f64")
        k, v = (graph.input(n, ("B", "T", K, D), "f64") for n in "kv")
        graph.set_outputs([nn.dot_product_attention(q, k, v, **options)])
    (result,) = interpret(graph, [Q, KEY, VALUE])
    np.testing.assert_allclose(result, attend(Q, KEY, VALUE, **meaning), rtol=1e-10, atol=1e-12)


def test_one_sequence_and_the_other_signature():
    one = nn.dot_product_attention(Q[0], KEY[0], VALUE[0], is_causal=True)
    np.testing.assert_allclose(one, attend(Q, KEY, VALUE, visible=CAUSAL)[0], rtol=1e-10)
    heads_first = [x.swapaxes(1, 2) for x in (Q, KEY, VALUE)]
    for attn_mask, meaning in ((MASK, {"visible": MASK}), (BIAS, {"bias": BIAS}), (None, {})):
        found = nn.scaled_dot_product_attention(*heads_first, attn_mask)
        np.testing.assert_allclose(np.asarray(found).swapaxes(1, 2), attend(Q, KEY, VALUE, **meaning), atol=1e-12)


def rotated(x, positions, theta=10000.0, n_rot=None, interleaved=False):
    """Pairs of features as complex numbers, turned by exp(i·position·frequency)."""
    n_rot = n_rot or x.shape[-1]
    angle = positions[..., None] * theta ** (-2.0 * np.arange(n_rot // 2) / n_rot)
    turn = np.exp(1j * angle)[..., None, :]
    head, rest = x[..., :n_rot], x[..., n_rot:]
    first, second = (head[..., ::2], head[..., 1::2]) if interleaved else np.split(head, 2, -1)
    z = (first + 1j * second) * turn
    pairs = np.stack([z.real, z.imag], -1) if interleaved else np.stack([z.real, z.imag], -2)
    return np.concatenate([pairs.reshape(head.shape), rest], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("n_rot", [None, 4])
def test_rope(interleaved, n_rot):
    options = {"interleaved": interleaved, "n_rot": n_rot}
    for positions in (None, np.array([7, 2, 30], np.int32), np.array([[0, 1, 2], [5, 6, 9]], np.int32)):
        places = np.broadcast_to(np.arange(S) if positions is None else positions, (B, S))
        wanted = rotated(Q, places, **options)
        np.testing.assert_allclose(nn.rope(Q, positions, **options), wanted, rtol=1e-10, atol=1e-12)
        other = nn.rope(Q.swapaxes(1, 2), positions, **options, layout="bhsd")
        np.testing.assert_allclose(np.asarray(other).swapaxes(1, 2), wanted, rtol=1e-10, atol=1e-12)


def test_rope_keeps_the_dtype_and_takes_computed_positions():
    assert nn.rope(Q.astype(np.float16)).dtype == np.float16
    graph = Graph("rope")
    with building(graph):
        x = graph.input("x", ("B", "S", H, D), "f64")
        positions = graph.input("positions", ("B", "S"), "i32")
        graph.set_outputs([nn.rope(x, positions, theta=500.0)])
    places = np.array([[3, 4, 5], [0, 1, 2]], np.int32)
    (result,) = interpret(graph, [Q, places])
    np.testing.assert_allclose(result, rotated(Q, places, theta=500.0), rtol=1e-10, atol=1e-12)


def test_rope_tables():
    cos, sin = nn.rope_tables(100, 8, scaling=2.0)
    angle = np.arange(100)[:, None] / 2 * 10000.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(cos, np.cos(angle), atol=4e-6)
    np.testing.assert_allclose(sin, np.sin(angle), atol=4e-6)


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({"local_window_size": 2}, lambda b, i, j: abs(i - j) <= 2),
        ({"local_window_size": (1, 0), "is_causal": True}, lambda b, i, j: i - 1 <= j <= i),
        ({"key_value_seq_lengths": np.array([4, 5])}, lambda b, i, j: j < (4, 5)[b]),
        (
            {"query_seq_lengths": np.array([3, 6]), "key_value_seq_lengths": np.array([4, 6]), "is_causal": True},
            lambda b, i, j: i < (3, 6)[b] and j < (4, 6)[b] and j <= i,
        ),
    ],
)
def test_attention_by_the_arguments_of_jax(options, sees):
    q, k, v = (np.random.default_rng(n).standard_normal((2, 6, 3, 4)) for n in range(3))
    mask = np.array([[[sees(b, i, j) for j in range(6)] for i in range(6)] for b in range(2)])[:, None]
    scores = np.where(mask, np.einsum("bihd,bjhd->bhij", q, k) / 2, -np.inf)
    shares = np.where(mask, np.exp(scores - np.max(scores, -1, keepdims=True, where=mask, initial=-1e9)), 0.0)
    total = shares.sum(-1, keepdims=True)
    wanted = np.einsum("bhij,bjhd->bihd", shares / np.where(total == 0, 1, total), v)
    attend = rlx.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, implementation="xla", **options))
    np.testing.assert_allclose(attend(q, k, v), wanted, rtol=1e-10, atol=1e-12)
