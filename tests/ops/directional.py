"""Gradients against central differences along a random direction, in f64."""

import numpy as np


def assert_gradients(function, operands, gradients, dy, step=1e-5, rtol=1e-7):
    """`gradients[i]` is the gradient of sum(dy·function(*operands)) in operand i; None where it is not checked."""
    rng = np.random.default_rng(11)
    for i, gradient in enumerate(gradients):
        if gradient is None:
            continue
        assert gradient.shape == operands[i].shape
        direction = rng.standard_normal(operands[i].shape)
        moved = [[x + sign * step * direction if j == i else x for j, x in enumerate(operands)] for sign in (1, -1)]
        numeric = np.sum(dy * (function(*moved[0]) - function(*moved[1]))) / (2 * step)
        scale = np.abs(gradient * direction).sum()
        np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=rtol, atol=rtol * scale)
