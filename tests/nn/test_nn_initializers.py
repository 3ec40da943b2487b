"""Initialisers: shapes, dtypes, moments, bounds, orthogonality."""

import math

import numpy as np
import pytest

from rlx import random
from rlx.errors import OpError, ShapeError
from rlx.nn import initializers

KEY = random.key(11)
SHAPE = (120, 80)
COUNT = math.prod(SHAPE)


@pytest.mark.parametrize(
    ("name", "variance", "limit"),
    [
        ("glorot_uniform", 2 / 200, math.sqrt(6 / 200)),
        ("xavier_normal", 2 / 200, None),
        ("he_uniform", 2 / 120, math.sqrt(6 / 120)),
        ("kaiming_normal", 2 / 120, None),
        ("lecun_uniform", 1 / 120, math.sqrt(3 / 120)),
        ("lecun_normal", 1 / 120, 2 * math.sqrt(1 / 120) / 0.8796),
    ],
)
def test_variances(name, variance, limit):
    weight = np.asarray(getattr(initializers, name)()(KEY, SHAPE))
    assert weight.shape == SHAPE and weight.dtype == np.float32
    # Five standard errors of the mean and of the variance of that many independent values.
    assert abs(weight.mean()) < 5 * math.sqrt(variance / COUNT)
    assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / COUNT)
    if limit is not None:
        assert np.abs(weight).max() <= limit * 1.0001


def test_fans_of_convolutions():
    shape = (16, 8, 3, 3)
    weight = np.asarray(initializers.he_uniform(in_axis=1, out_axis=0)(KEY, shape))
    assert np.abs(weight).max() <= math.sqrt(6 / (8 * 9))
    assert np.abs(weight).max() > 0.9 * math.sqrt(6 / (8 * 9))


def test_simple_ones():
    assert initializers.zeros(KEY, (2, 2)).tolist() == [[0, 0], [0, 0]]
    assert initializers.ones(KEY, (2,), "bf16").dtype.name == "bfloat16"
    assert initializers.constant(3.5)(KEY, (2,)).tolist() == [3.5, 3.5]
    assert initializers.eye(2.0)(KEY, (2, 3)).tolist() == [[2, 0, 0], [0, 2, 0]]
    values = np.asarray(initializers.normal(0.5, mean=3.0)(KEY, SHAPE))
    assert abs(values.mean() - 3) < 0.03 and abs(values.std() - 0.5) < 0.02
    values = np.asarray(initializers.uniform(2.0, low=-1.0)(KEY, SHAPE))
    assert -1 <= values.min() < -0.99 and 0.99 < values.max() < 1
    values = np.asarray(initializers.truncated_normal(1.0)(KEY, SHAPE, "f64"))
    assert values.dtype == np.float64 and np.abs(values).max() <= 2


@pytest.mark.parametrize(("shape", "axis"), [((6, 4), -1), ((4, 6), -1), ((3, 5, 2), 0)])
def test_orthogonal(shape, axis):
    weight = np.asarray(initializers.orthogonal(2.0, column_axis=axis)(KEY, shape, "f64"))
    assert weight.shape == shape
    matrix = np.moveaxis(weight, axis, -1).reshape(-1, shape[axis])
    gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-10)


def test_refusals():
    with pytest.raises(ShapeError, match="two axes or more"):
        initializers.he_normal()(KEY, (3,))
    with pytest.raises(OpError, match="mode must be fan_in"):
        initializers.variance_scaling(1.0, "fan", "normal")


def test_large_weights_are_drawn_by_a_compiled_program():
    shape = (512, 300)
    assert math.prod(shape) >= initializers._LARGE
    compiled = initializers._compiled_truncated()
    before = compiled.cache_info().misses
    drawn = initializers.truncated_normal(0.5, mean=1.0)(KEY, shape)
    wanted = np.asarray(random.truncated_normal(KEY, -2.0, 2.0, shape)) * np.float32(0.5) + 1
    np.testing.assert_allclose(drawn, wanted, atol=1e-6)
    # Another deviation is another argument, not another program.
    initializers.truncated_normal(0.25, mean=1.0)(KEY, shape)
    assert compiled.cache_info().misses == before + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda d: initializers.normal(0.02, d),
        lambda d: initializers.uniform(0.02, d),
        lambda d: initializers.truncated_normal(0.02, d, -1.0, 1.0),
        lambda d: initializers.constant(0.5, d),
        lambda d: initializers.orthogonal(1.0, -1, d),
        lambda d: initializers.glorot_normal(-2, -1, dtype=d),
        lambda d: initializers.variance_scaling(1.0, "fan_in", "normal", -2, -1, dtype=d),
    ],
)
def test_the_dtype_of_weights_made_without(make):
    """Settings stand where JAX has them; a dtype that is given with the shape wins."""
    assert make("float64")(KEY, SHAPE).dtype == np.float64
    assert make("float64")(KEY, SHAPE, "float32").dtype == np.float32
