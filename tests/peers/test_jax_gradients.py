"""Derivatives where there is none, beside JAX: the cases of tests/autodiff/test_jax_conventions.py and more points."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

pytestmark = pytest.mark.peers

POINTS = np.float32([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.0, 6.0, -3.0, np.inf])
ELEMENTWISE = [
    *("sqrt", "cbrt", "abs", "fabs", "sign", "exp", "log", "log1p", "log2", "log10", "expm1", "sin", "tan", "arcsin"),
    *("arccos", "arctan", "arcsinh", "arctanh", "tanh", "floor", "ceil", "trunc", "square", "reciprocal", "sinc"),
]
NETWORK = ["relu", "relu6", "sigmoid", "softplus", "silu", "elu", "selu", "leaky_relu", "hard_tanh", "hard_sigmoid"]
PROGRAMS = {
    "rsqrt": (jax.lax.rsqrt, rlx.rsqrt),
    "half power": (lambda x: x**0.5, lambda x: x**0.5),
    "clip": (lambda x: jnp.clip(x, -1.0, 1.0), lambda x: rnp.clip(x, -1.0, 1.0)),
    "maximum": (lambda x: jnp.maximum(x, 0.5), lambda x: rnp.maximum(x, 0.5)),
    "minimum": (lambda x: jnp.minimum(2.5, x), lambda x: rnp.minimum(2.5, x)),
    "hypot": (lambda x: jnp.hypot(x, 0.0), lambda x: rnp.hypot(x, 0.0)),
    "atan2": (lambda x: jnp.arctan2(x, 0.0), lambda x: rnp.arctan2(x, 0.0)),
    "logaddexp": (lambda x: jnp.logaddexp(x, 0.5), lambda x: rnp.logaddexp(x, 0.5)),
    "exponent": (lambda x: jnp.power(0.0, x), lambda x: rnp.power(np.float32(0.0), x)),
    "root": (lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), lambda x: rnp.where(x > 0, rnp.sqrt(x), 0.0)),
    **{n: (getattr(jnp, n), getattr(rnp, n)) for n in ELEMENTWISE},
    **{f"nn.{n}": (getattr(jax.nn, n), getattr(rlx.nn, n)) for n in NETWORK},
}
REDUCTIONS = ("max", "min", "prod", "std", "var", "sum", "median")
VECTORS = {
    "norm": (jnp.linalg.norm, rnp.linalg.norm),
    "1-norm": (lambda x: jnp.linalg.norm(x, 1), lambda x: rnp.linalg.norm(x, 1)),
    "3-norm": (lambda x: jnp.linalg.norm(x, 3), lambda x: rnp.linalg.norm(x, 3)),
    "maximum": (lambda x: jnp.maximum(x[0], x[1]), lambda x: rnp.maximum(x[0], x[1])),
    "hypot": (lambda x: jnp.hypot(x[0], x[1]), lambda x: rnp.hypot(x[0], x[1])),
    "clip": (lambda x: jnp.clip(*x), lambda x: rnp.clip(*x)),
    **{n: (getattr(jnp, n), getattr(rnp, n)) for n in REDUCTIONS},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_one_number(name):
    theirs, ours = PROGRAMS[name]
    wanted = jax.vmap(jax.grad(theirs))(POINTS)
    found = rlx.grad(lambda x: rnp.sum(ours(x)))(POINTS)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("point", [(0, 0, 0), (1, 1, 1), (2, 2, 1), (0, 1, 2), (1, 0, 0)])
@pytest.mark.parametrize("name", VECTORS)
def test_of_several_numbers(name, point):
    theirs, ours = VECTORS[name]
    x = np.float32(point)
    np.testing.assert_allclose(rlx.grad(ours)(x), jax.grad(theirs)(x), rtol=2e-5, atol=1e-6)
