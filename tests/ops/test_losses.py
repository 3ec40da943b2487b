"""Cross-entropy against SciPy's log_softmax."""

import numpy as np
import pytest
from directional import assert_gradients
from scipy.special import log_softmax

from rlx import ops
from rlx.errors import OpError
from rlx.ir.shape import Shape

rng = np.random.default_rng(12)


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
def test_loss_is_minus_the_log_probability_of_the_label(both, lead, dtype):
    logits = rng.uniform(-30, 30, (*lead, 7))
    labels = np.asarray(rng.integers(0, 7, lead)).astype(dtype)
    got = both(ops.softmax_cross_entropy_with_logits, logits, labels)
    chosen = np.take_along_axis(log_softmax(logits, axis=-1), labels.astype(int)[..., None], axis=-1)[..., 0]
    # A difference of numbers up to 30 is exact to some ulp of 30, also where it is nearly 0.
    np.testing.assert_allclose(got, -chosen, rtol=1e-12, atol=30 * 2.0**-52)


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4, 0.0], [-1e4, -1e4]], np.float32)
    got = ops.softmax_cross_entropy_with_logits(logits, np.array([1, 0]))
    np.testing.assert_allclose(got, [1e4, np.log(2)], rtol=1e-6)


def test_impossible_classes_do_not_disturb_the_others(both):
    logits = np.array([[0.0, -np.inf, 0.0]])
    np.testing.assert_allclose(both(ops.softmax_cross_entropy_with_logits, logits, np.array([0])), [np.log(2)])


def test_gradient(both):
    logits, labels, dloss = rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3)), rng.standard_normal((2, 3))
    gradient = both(ops.softmax_cross_entropy_backward, logits, labels, dloss)
    assert_gradients(lambda x: ops.softmax_cross_entropy_with_logits(x, labels), [logits], [gradient], dloss)
    np.testing.assert_allclose(gradient.sum(axis=-1), 0.0, atol=1e-15)


def test_labels_are_declared_as_ids():
    op = ops.SoftmaxCrossEntropyWithLogits()
    assert op.index_operands(Shape((3, 5), "f32"), Shape((3,), "i32")) == {1: (5,)}


def test_errors_teach():
    logits = np.ones((3, 5), np.float32)
    with pytest.raises(OpError, match=r"one label for each row, got f32\[3,5\] and i32\[4\]"):
        ops.softmax_cross_entropy_with_logits(logits, np.zeros(4, np.int32))
    with pytest.raises(OpError, match="integer"):
        ops.softmax_cross_entropy_with_logits(logits, np.zeros(3, bool))
    with pytest.raises(OpError, match=r"dloss must have the dims of the labels, i32\[3\], got f32\[1\]"):
        ops.softmax_cross_entropy_backward(logits, np.zeros(3, np.int32), np.ones(1, np.float32))
