"""Derivatives at kinks, ends of domains and infinities: the list of docs/semantics.md, line by line.

The numbers are JAX's unless a line says otherwise; tests/peers/test_jax_gradients.py asks JAX itself.
"""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp

inf, nan = np.inf, np.nan

OF_ONE = {
    "sqrt": (rnp.sqrt, [0.0, 4.0, -1.0], [inf, 0.25, nan]),
    "rsqrt": (rlx.rsqrt, [0.0, -0.0, 4.0, -1.0], [-inf, -inf, -0.0625, nan]),
    "half power": (lambda x: x**0.5, [0.0, 4.0], [inf, 0.25]),
    "cbrt": (rnp.cbrt, [0.0, 8.0], [inf, 1 / 12]),
    "log": (rnp.log, [0.0, 2.0], [inf, 0.5]),
    "reciprocal": (rnp.reciprocal, [0.0, 2.0], [-inf, -0.25]),
    "abs": (rnp.abs, [0.0, -0.0, -2.0, 2.0, nan], [1.0, 1.0, -1.0, 1.0, nan]),
    "sign": (rnp.sign, [0.0, 3.0], [0.0, 0.0]),
    "relu": (rlx.nn.relu, [0.0, -1.0, 1.0], [0.0, 0.0, 1.0]),
    "relu6": (rlx.nn.relu6, [0.0, 3.0, 6.0, 7.0, nan], [0.0, 1.0, 0.0, 0.0, 0.0]),
    "hard_sigmoid": (rlx.nn.hard_sigmoid, [-3.0, 0.0, 3.0], [0.0, 1 / 6, 0.0]),
    "hard_tanh": (rlx.nn.hard_tanh, [-2.0, -1.0, 0.0, 1.0, 2.0], [0.0, 1.0, 1.0, 1.0, 0.0]),
    "leaky_relu": (rlx.nn.leaky_relu, [0.0, -1.0], [1.0, 0.01]),
    "elu": (rlx.nn.elu, [0.0], [1.0]),
    "clip": (lambda x: rnp.clip(x, 0.0, 1.0), [-1.0, 0.0, 0.5, 1.0, 2.0], [0.0, 0.5, 1.0, 0.5, 0.0]),
    "maximum with a number": (lambda x: rnp.maximum(x, 0.0), [-1.0, 0.0, 1.0], [0.0, 0.5, 1.0]),
    "minimum with a number": (lambda x: rnp.minimum(0.0, x), [-1.0, 0.0, 1.0], [1.0, 0.5, 0.0]),
    "asin": (rnp.arcsin, [-1.0, 1.0], [inf, inf]),
    "acos": (rnp.arccos, [-1.0, 1.0], [-inf, -inf]),
    "atanh": (rnp.arctanh, [-1.0, 1.0], [inf, inf]),
    "acosh": (rnp.arccosh, [1.0], [inf]),
    "xx": (lambda x: x**x, [-1.0, 1.0], [nan, 1.0]),
    "power of 0": (lambda x: rnp.power(np.float32(0), x), [-1.0, 0.0, 2.0], [nan, 0.0, 0.0]),
    # 1 is 1 everywhere; JAX has NaN at 0 where the exponent is a float.
    "power 0": (lambda x: x**0.0, [0.0, 2.0], [0.0, 0.0]),
    # Straight through, so that quantisation can be trained; JAX has 0.
    "round": (rnp.round, [0.5, 1.2], [1.0, 1.0]),
    "floor": (rnp.floor, [1.0, 1.5], [0.0, 0.0]),
    "logaddexp": (lambda x: rnp.logaddexp(x, 0.0), [0.0, inf, -inf, nan], [0.5, 1.0, 0.0, nan]),
    "softplus": (rlx.nn.softplus, [0.0, nan], [0.5, nan]),
    "copysign": (lambda x: rnp.copysign(x, -1.0), [0.0, -0.0, 2.0, -2.0], [-1.0, -1.0, -1.0, 1.0]),
    "guarded root": (
        lambda x: rnp.where(x > 0, rnp.sqrt(rnp.where(x > 0, x, 1.0)), 0.0),
        [0.0, -1.0, 4.0],
        [0.0, 0.0, 0.25],
    ),
}

OF_MANY = {
    "maximum of equals": (lambda x: rnp.maximum(x[0], x[1]), [2.0, 2.0], [0.5, 0.5]),
    "minimum of equals": (lambda x: rnp.minimum(x[0], x[1]), [2.0, 2.0], [0.5, 0.5]),
    "max of equals": (rnp.max, [3.0, 1.0, 3.0], [0.5, 0.0, 0.5]),
    "min of equals": (rnp.min, [1.0, 1.0, 3.0], [0.5, 0.5, 0.0]),
    "sort of equals": (lambda x: rnp.sort(x)[0], [1.0, 1.0], [1.0, 0.0]),
    "prod with a 0": (rnp.prod, [0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
    "norm at 0": (rnp.linalg.norm, [0.0, 0.0], [nan, nan]),
    "norm": (rnp.linalg.norm, [3.0, 0.0, 4.0], [0.6, 0.0, 0.8]),
    "1-norm at 0": (lambda x: rnp.linalg.norm(x, 1), [0.0, -2.0], [1.0, -1.0]),
    "3-norm at 0": (lambda x: rnp.linalg.norm(x, 3), [0.0, 0.0], [nan, nan]),
    "std of equals": (rnp.std, [1.0, 1.0], [nan, nan]),
    "var of equals": (rnp.var, [1.0, 1.0], [0.0, 0.0]),
    "hypot at 0": (lambda x: rnp.hypot(x[0], x[1]), [0.0, 0.0], [0.5, 0.5]),
    "atan2 at 0": (lambda x: rnp.arctan2(x[0], x[1]), [0.0, 0.0], [nan, nan]),
    "power": (lambda x: x[0] ** x[1], [0.0, 2.0], [0.0, 0.0]),
    # ½ as of other equals; JAX has NaN.
    "logaddexp of -inf": (lambda x: rnp.logaddexp(x[0], x[1]), [-inf, -inf], [0.5, 0.5]),
    # Backward, 0 from the other branch meets the infinite slope; forward, it is not chosen.
    "unguarded root": (lambda x: rnp.sum(rnp.where(x > 0, rnp.sqrt(x), 0.0)), [0.0, 4.0], [nan, 0.25]),
    "l1_loss of what is right": (lambda x: rlx.nn.l1_loss(x, np.float32([1, 2])), [1.0, 4.0], [0.0, 0.5]),
    "normalize of zeros": (lambda x: rnp.sum(rlx.nn.normalize(x, eps=0.5)), [0.0, 0.0], [2.0, 2.0]),
}


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("mode", ["grad", "jvp"])
def test_of_one_number(name, mode):
    fn, points, expected = OF_ONE[name]
    x = np.float32(points)
    with np.errstate(all="ignore"):
        if mode == "grad":
            found = rlx.grad(lambda v: rnp.sum(fn(v)))(x)
        else:
            found = rlx.jvp(fn, (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(found, np.float32(expected), rtol=1e-6)


@pytest.mark.parametrize("name", OF_MANY)
def test_of_several_numbers(name):
    fn, point, expected = OF_MANY[name]
    np.testing.assert_allclose(rlx.grad(fn)(np.float32(point)), np.float32(expected), rtol=1e-6)
