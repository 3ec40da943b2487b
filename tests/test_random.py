"""The public face of `rlx.random`: its names, their argument order, and that it is usable as JAX users expect."""

import inspect

import numpy as np
import pytest

import rlx

ORDER = {
    "split": ["key", "num"],
    "fold_in": ["key", "data"],
    "uniform": ["key", "shape", "dtype", "minval", "maxval"],
    "normal": ["key", "shape", "dtype"],
    "truncated_normal": ["key", "lower", "upper", "shape", "dtype"],
    "bernoulli": ["key", "p", "shape"],
    "categorical": ["key", "logits", "axis", "shape"],
    "gumbel": ["key", "shape", "dtype"],
    "exponential": ["key", "shape", "dtype"],
    "randint": ["key", "shape", "minval", "maxval", "dtype"],
    "permutation": ["key", "x", "axis", "independent"],
    "choice": ["key", "a", "shape", "replace", "p", "axis"],
    "bits": ["key", "shape", "dtype"],
}


@pytest.mark.parametrize("name", ORDER)
def test_arguments_are_in_the_order_of_jax(name):
    assert list(inspect.signature(getattr(rlx.random, name)).parameters) == ORDER[name]


def test_everything_listed_exists_and_is_documented():
    for name in rlx.random.__all__:
        assert getattr(rlx.random, name).__doc__


def test_the_first_lines_of_a_program():
    key = rlx.random.PRNGKey(0)
    key, sub = rlx.random.split(key)
    x, again = rlx.random.normal(sub, (2, 3)), rlx.random.normal(sub, (2, 3))
    np.testing.assert_array_equal(x, again)
    assert not np.array_equal(x, rlx.random.normal(key, (2, 3)))
