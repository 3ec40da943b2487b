"""Gradients of factorisations of symmetric matrices have JAX's form, element by element."""

import numpy as np
import pytest
from libraries import jax, jnp

import rlx
import rlx.linalg as linalg
import rlx.numpy as rnp

pytestmark = pytest.mark.peers

WEIGHTS = np.random.default_rng(1).normal(size=(4, 4))


def weighed(y):
    return y * (WEIGHTS if y.ndim == 2 else WEIGHTS[0])


def positive():
    a = np.random.default_rng(0).normal(size=(4, 4))
    return a @ a.T + np.eye(4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda a: linalg.cholesky(a), lambda a: jnp.linalg.cholesky(a)),
        (lambda a: linalg.cholesky(a, upper=True), lambda a: jnp.linalg.cholesky(a, upper=True)),
        (lambda a: linalg.eigh(a).eigenvalues, lambda a: jnp.linalg.eigh(a)[0]),
        (lambda a: linalg.eigh(a).eigenvectors ** 2, lambda a: jnp.linalg.eigh(a)[1] ** 2),
        (lambda a: linalg.expm(a), lambda a: jax.scipy.linalg.expm(a)),
        (lambda a: linalg.solve(a, WEIGHTS), lambda a: jnp.linalg.solve(a, WEIGHTS)),
    ],
    ids=["cholesky", "upper cholesky", "eigenvalues", "eigenvectors", "expm", "solve"],
)
def test_gradients_are_those_of_jax(ours, theirs):
    wanted = jax.grad(lambda a: jnp.sum(weighed(theirs(a))))(positive())
    got = rlx.grad(lambda a: rnp.sum(weighed(ours(a))))(positive())
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-9, atol=1e-9)
