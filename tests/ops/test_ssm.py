"""Recurrences against linear filters, memory laws and their own pieces."""

import numpy as np
import pytest
from scipy import signal

from rlx import ops
from rlx.errors import OpError

rng = np.random.default_rng(16)


def test_constant_steps_make_a_linear_filter(both):
    """With one Δ for all times, every state is the filter H_t = e^{ΔA}·H_{t-1} + Δ·x_t·B, which SciPy has."""
    batch, seq, channels, n = 2, 9, 3, 4
    x = rng.standard_normal((batch, seq, channels))
    a = -rng.uniform(0.1, 2, (channels, n))
    enter, leave, step = rng.standard_normal(n), rng.standard_normal(n), rng.uniform(0.1, 1, channels)
    expected = np.zeros(x.shape)
    for c, s in np.ndindex(channels, n):
        decay = np.exp(step[c] * a[c, s])
        driven = step[c] * x[:, :, c] * enter[s]
        expected[:, :, c] += leave[s] * signal.lfilter([1.0], [1.0, -decay], driven, axis=1)
    operands = (
        x,
        np.broadcast_to(step, x.shape).copy(),
        a,
        np.broadcast_to(enter, (batch, seq, n)).copy(),
        np.broadcast_to(leave, (batch, seq, n)).copy(),
    )
    symbolic = [("B", "S", 3), ("B", "S", 3), None, ("B", "S", 4), ("B", "S", 4)]
    got = both(lambda *xs: ops.selective_scan(*xs, n), *operands, dims=symbolic)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


def test_varying_steps_weight_every_past_input():
    """Written out: y_t = Σ_j C_t·e^{A·Σ_{i=j+1..t} Δ_i}·Δ_j·x_j·B_j."""
    seq, n = 5, 2
    x, delta = rng.standard_normal((1, seq, 1)), rng.uniform(0, 1, (1, seq, 1))
    a, b, c = -rng.uniform(0, 1, (1, n)), rng.standard_normal((1, seq, n)), rng.standard_normal((1, seq, n))
    total = np.cumsum(delta[0, :, 0])
    driven = delta[0] * x[0] * b[0]
    expected = [
        sum(c[0, t] @ (np.exp(a[0] * (total[t] - total[j])) * driven[j]) for j in range(t + 1)) for t in range(seq)
    ]
    np.testing.assert_allclose(ops.selective_scan(x, delta, a, b, c, n)[0, :, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_the_state_carries_a_scan_over(cut):
    n, x, delta = 2, rng.standard_normal((2, 5, 3)), rng.uniform(0, 1, (2, 5, 3))
    a, b, c = -rng.uniform(0, 1, (3, n)), rng.standard_normal((2, 5, n)), rng.standard_normal((2, 5, n))
    whole, final = ops.selective_scan(x, delta, a, b, c, n, return_state=True)
    state, parts = np.zeros((2, n, 3)), []
    for part in (slice(cut), slice(cut, None)):
        rows = (x[:, part], delta[:, part], a, b[:, part], c[:, part])
        y, state = ops.selective_scan(*rows, n, state=state, return_state=True)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-12)
    np.testing.assert_allclose(state, final, rtol=1e-12)


def test_linear_attention_without_decay_is_a_product_with_what_was_seen():
    """With g = 0, o_t = Σ_{j≤t} (q_t·k_j)·v_j: masked scores without a softmax."""
    q, k, v = rng.standard_normal((3, 1, 6, 2, 4))
    expected = np.einsum("htj,jhp->thp", np.tril(np.einsum("thn,jhn->htj", q[0], k[0])), v[0])
    found = ops.linear_attention(q, k, v, np.zeros((1, 6, 2)))
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    with pytest.raises(OpError, match="2 heads are not a multiple of 3 groups of queries and keys"):
        ops.linear_attention(np.zeros((1, 6, 3, 4)), np.zeros((1, 6, 3, 4)), v, np.zeros((1, 6, 2)))
    with pytest.raises(OpError, match=r"state must be \[1, 2, 4, 4\]"):
        ops.linear_attention(q, k, v, np.zeros((1, 6, 2)), state=np.zeros((1, 2, 4, 3)))


def random_delta_operands(batch=2, seq=6, heads=2, n=3):
    q, k, v = rng.standard_normal((3, batch, seq, heads, n))
    return q, k, v, -rng.uniform(0, 1, (batch, seq, heads)), rng.uniform(0, 1, (batch, seq, heads))


def test_delta_rule_stores_and_overwrites():
    """With full rate and no decay, orthonormal keys hold their last value exactly."""
    n = 4
    keys = np.linalg.qr(rng.standard_normal((n, n)))[0]
    order = [0, 1, 2, 1, 3]
    values = rng.standard_normal((len(order), n))
    k = keys[order][None, :, None, :]
    asked = np.broadcast_to(keys[1], k.shape)
    out = ops.gated_delta_net(asked, k, values[None, :, None, :], np.zeros((1, 5, 1)), np.ones((1, 5, 1)), n)
    expected = np.array([np.zeros(n), values[1], values[1], values[3], values[3]]) / np.sqrt(n)
    np.testing.assert_allclose(out[0, :, 0], expected, atol=1e-12)


def test_gate_decays_the_memory():
    n, gate = 2, -0.5
    k = np.zeros((1, 3, 1, n))
    k[0, 0, 0, 0] = 1.0
    v, q = np.ones((1, 3, 1, n)), np.tile([1.0, 0.0], (1, 3, 1, 1))
    out = ops.gated_delta_net(q, k, v, np.full((1, 3, 1), gate), np.ones((1, 3, 1)), n)
    np.testing.assert_allclose(out[0, :, 0, 0], np.exp(gate * np.arange(3)) / np.sqrt(n), rtol=1e-12)


@pytest.mark.parametrize("cut", [0, 1, 4, 6])
def test_the_state_carries_a_sequence_over(cut):
    operands = random_delta_operands()
    whole, final = ops.gated_delta_net(*operands, 3, return_state=True)
    state = np.zeros((2, 2, 3, 3))
    first, state = ops.gated_delta_net(*(x[:, :cut] for x in operands), 3, state=state, return_state=True)
    second, state = ops.gated_delta_net(*(x[:, cut:] for x in operands), 3, state=state, return_state=True)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, rtol=1e-13)
    np.testing.assert_allclose(state, final, rtol=1e-13)


def test_carry_builder_form_and_graphs(both):
    operands = random_delta_operands()
    state = rng.standard_normal((2, 2, 3, 3))
    got = both(lambda *xs: ops.gated_delta_net_carry(*xs, 3), *operands, state)
    np.testing.assert_array_equal(got, ops.gated_delta_net(*operands, 3, state=state))


def test_errors_teach():
    x = np.ones((1, 2, 3), np.float32)
    with pytest.raises(OpError, match=r"a must be \[3, 4\], got f32\[3,2\]"):
        ops.selective_scan(x, x, np.ones((3, 2), np.float32), x, x, 4)
    with pytest.raises(OpError, match=r"x must be \[batch, seq, channels\]"):
        ops.selective_scan(x[0], x, x, x, x, 4)
    q, gates = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3), np.float32)
    with pytest.raises(OpError, match="q must be"):
        ops.gated_delta_net(gates, q, q, gates, gates, 4)
    with pytest.raises(OpError, match=r"beta must be \[1, 2, 3\], got f32\[1,2,3,4\]"):
        ops.gated_delta_net(q, q, q, gates, q, 4)
    with pytest.raises(OpError, match="carry_state=True does not fit"):
        ops.GatedDeltaNet(4, True)(q, q, q, gates, gates)
    with pytest.raises(OpError, match=r"state must be \[1, 3, 4, 4\]"):
        ops.gated_delta_net_carry(q, q, q, gates, gates, q, 4)
