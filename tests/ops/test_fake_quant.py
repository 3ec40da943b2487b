"""Quantisation-aware training: grids, running scales and straight-through gradients from their definitions."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(11)
X = rng.standard_normal((4, 6))
DY = rng.standard_normal((4, 6))


@pytest.mark.parametrize(("bits", "qmax"), [(8, 127), (4, 7), (2, 1), (3, 3), (5, 15)])
def test_values_lie_on_the_grid(both, bits, qmax):
    y = np.asarray(both(lambda x: ops.fake_quantize(x, bits), X))
    step = np.abs(X).max() / qmax
    codes = y / step
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-9)
    assert np.abs(codes).max() == pytest.approx(qmax)
    np.testing.assert_array_less(np.abs(y - X), step * 0.5 + 1e-12)


def test_ties_go_away_from_zero():
    x = np.array([3.5, 0.5, -0.5, 1.5, -2.5, 7.0])
    np.testing.assert_array_equal(ops.fake_quantize(x, 4), [4, 1, -1, 2, -3, 7])


def test_each_channel_has_its_own_step(both):
    y = np.asarray(both(lambda x: ops.fake_quantize(x, 4, axis=-1), X))
    for c in range(6):
        np.testing.assert_array_equal(y[:, c], ops.fake_quantize(X[:, c], 4))


def test_zeros_and_empty_operands_have_the_smallest_step():
    np.testing.assert_array_equal(ops.fake_quantize(np.zeros(3), 8), np.zeros(3))
    assert np.asarray(ops.fake_quantize(np.zeros((0, 3)), 8)).shape == (0, 3)


def test_running_scale(both):
    state = np.array([0.5, 0.0])
    x = np.array([[7.0, -3.5], [1.4, 0.7]])

    def step(x, state):
        return ops.fake_quantize(x, 4, axis=0, scale_mode="ema", decay=0.9, state=state)

    y, new = both(step, x, state)
    # max|x|/7 is 1 and 0.2; a state of 0 has not started yet.
    np.testing.assert_allclose(new, [0.9 * 0.5 + 0.1 * 1.0, 0.2])
    np.testing.assert_allclose(y[0], [7 * 0.55, -6 * 0.55])
    np.testing.assert_allclose(y[1], [1.4, 0.8])


def test_fixed_scale(both):
    y = both(lambda x, s: ops.fake_quantize(x, 4, scale_mode="fixed", state=s), X, np.array([0.25]))
    np.testing.assert_allclose(y, np.clip(np.rint(X / 0.25), -7, 7) * 0.25)


def gates(x, step, qmax):
    return {
        "identity": np.ones_like(x),
        "clipped_identity": (np.abs(x) <= qmax * step) * 1.0,
        "tanh": 1.0 / np.cosh(x / step) ** 2,
        "hard_tanh": np.clip(1.0 - np.abs(x) / (qmax * step), 0.0, None),
    }


@pytest.mark.parametrize("ste", list(ops.SteKind))
def test_straight_through_gradients(both, ste):
    dx = both(lambda x, dy: ops.fake_quantize_backward(x, dy, 4, ste=ste), X, DY)
    np.testing.assert_allclose(dx, DY * gates(X, np.abs(X).max() / 7, 7)[ste], rtol=1e-9, atol=1e-12)
    state = np.array([0.1])
    options = {"ste": ste, "scale_mode": "fixed"}
    fixed = both(lambda x, dy, s: ops.fake_quantize_backward(x, dy, 4, state=s, **options), X, DY, state)
    np.testing.assert_allclose(fixed, DY * gates(X, 0.1, 7)[ste], rtol=1e-9, atol=1e-12)


def test_gradient_uses_the_step_of_the_forward_op():
    state = np.array([0.05])
    options = {"bits": 4, "scale_mode": "ema", "decay": 0.9, "state": state}
    _, step = ops.fake_quantize(X, **options)
    dx = ops.fake_quantize_backward(X, DY, ste="clipped_identity", **options)
    np.testing.assert_array_equal(dx, np.where(np.abs(X) <= 7 * np.asarray(step), DY, 0.0))


def test_learned_step_and_its_gradients(both):
    scale = np.array([0.3, 0.01, 0.5, 0.2, 1.0, 0.05])
    y = both(lambda x, s: ops.fake_quantize_lsq(x, s, 4, axis=1), X, scale)
    np.testing.assert_allclose(y, np.clip(np.rint(X / scale), -7, 7) * scale)
    z = X / scale
    inside = np.abs(z) <= 7
    dx = both(lambda x, s, dy: ops.fake_quantize_lsq_backward_x(x, s, dy, 4, axis=1), X, scale, DY)
    np.testing.assert_array_equal(dx, np.where(inside, DY, 0.0))
    slope = np.where(inside, np.rint(z) - z, np.sign(z) * 7)
    ds = both(lambda x, s, dy: ops.fake_quantize_lsq_backward_scale(x, s, dy, 4, axis=1), X, scale, DY)
    np.testing.assert_allclose(ds, (slope * DY).sum(axis=0))


def test_gradient_of_a_shared_step_sums_over_everything(both):
    scale = np.array([0.01])
    ds = both(lambda x, s, dy: ops.fake_quantize_lsq_backward_scale(x, s, dy, 2, axis=1), X, scale, DY)
    # Every value saturates, so y = sign(x)·scale and the derivative is exact.
    np.testing.assert_allclose(ds, [(np.sign(X) * DY).sum()])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.FakeQuantize(1), r"bits must be in \[2, 24\]"),
        (lambda: ops.FakeQuantize(8, decay=1.5), r"decay must be in \[0, 1\]"),
        (lambda: ops.fake_quantize(X, 8, axis=2), "axis 2 is out of range"),
        (lambda: ops.fake_quantize(X.astype(np.int32)), "float"),
        (lambda: ops.fake_quantize(X, scale_mode="fixed"), "needs a state operand"),
        (lambda: ops.fake_quantize(X, state=np.ones(1)), "takes no state"),
        (lambda: ops.fake_quantize(X, axis=1, scale_mode="ema", state=np.ones(3)), r"state of shape \[6\]"),
        (lambda: ops.fake_quantize_lsq(X, np.ones(3), axis=1), r"shape \[1\] or \[6\]"),
        (lambda: ops.fake_quantize_backward(X, DY[:2]), "one shape"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()
