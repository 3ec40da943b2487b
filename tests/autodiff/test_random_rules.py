"""Random numbers under transformation: keys in batches, and derivatives in the parameters of distributions."""

import numpy as np
import pytest
from derivatives import gradients, mapped

from rlx import ops
from rlx.ops.random import randomness as random

KEY = random.key(7)
KEYS = np.asarray(random.split(KEY, 4))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: random.uniform(key, (3,), "f64"),
        lambda key: random.normal(key, (2, 3)),
        lambda key: random.randint(key, (5,), 0, 100),
        lambda key: random.permutation(key, 6),
        lambda key: random.split(key, 3),
        lambda key: random.fold_in(key, 5),
    ],
)
def test_every_key_of_a_batch_draws_for_itself(draw):
    np.testing.assert_array_equal(mapped(draw, [KEYS]), [np.asarray(draw(k)) for k in KEYS])


def test_one_key_draws_the_same_for_all_examples():
    x = np.zeros((4, 3))
    noisy = mapped(lambda x, key: x + random.uniform(key, (3,), "f64"), [x, KEY], [True, False])
    np.testing.assert_array_equal(noisy, np.broadcast_to(np.asarray(random.uniform(KEY, (3,), "f64")), (4, 3)))


def test_folding_in_numbers_of_a_batch():
    steps = np.arange(4)
    folded = mapped(lambda key, step: random.fold_in(key, step), [KEY, steps], [False, True])
    np.testing.assert_array_equal(folded, [np.asarray(random.fold_in(KEY, int(i))) for i in steps])
    both = mapped(lambda keys, step: random.fold_in(keys, step), [KEYS, steps], [False, True])
    np.testing.assert_array_equal(both, [np.asarray(random.fold_in(KEYS, int(i))) for i in steps])


def test_sampling_in_batches():
    logits = np.random.default_rng(0).standard_normal((4, 5, 9))

    def pick(logits, key):
        return ops.sample(logits, key, top_k=4, top_p=0.9)

    own = mapped(pick, [logits, KEYS])
    np.testing.assert_array_equal(own, [np.asarray(pick(x, k)) for x, k in zip(logits, KEYS)])
    shared = mapped(pick, [logits, KEY], [True, False])
    np.testing.assert_array_equal(shared, [np.asarray(pick(x, KEY)) for x in logits])


def test_uniform_values_move_with_their_bounds():
    low, high, ct = np.float64(-1.0), np.float64(3.0), np.arange(1.0, 6.0)
    unit = np.asarray(random.uniform(KEY, (5,), "f64"))
    dlow, dhigh = gradients(lambda a, b: random.uniform(KEY, (5,), "f64", a, b), [low, high], ct)
    np.testing.assert_allclose([dlow, dhigh], [np.sum(ct * (1 - unit)), np.sum(ct * unit)], rtol=1e-12)


def test_reparameterised_normal_values():
    mean, deviation, ct = np.zeros(3), np.ones(3), np.arange(1.0, 4.0)
    noise = np.asarray(random.normal(KEY, (3,), "f64"))
    dmean, ddeviation = gradients(lambda m, s: m + s * random.normal(KEY, (3,), "f64"), [mean, deviation], ct)
    np.testing.assert_allclose(dmean, ct)
    np.testing.assert_allclose(ddeviation, ct * noise)


def test_dropout_passes_gradients_where_it_keeps_values():
    x, ct = np.ones((4, 5)), np.arange(20.0).reshape(4, 5)
    kept = np.asarray(ops.dropout(x, 0.25, KEY)) != 0
    np.testing.assert_allclose(gradients(lambda x: ops.dropout(x, 0.25, KEY), [x], ct)[0], np.where(kept, ct / 0.75, 0))


def test_truncated_normal_values_move_with_their_bounds():
    bounds = [np.full(4, -0.7), np.full(4, 1.3)]

    def draw(low, high):
        return random.truncated_normal(KEY, low, high, dtype="f64")

    step = 1e-6
    for i, found in enumerate(gradients(draw, bounds, np.ones(4))):
        up, down = ([b + sign * step * (j == i) for j, b in enumerate(bounds)] for sign in (1, -1))
        np.testing.assert_allclose(found, (np.asarray(draw(*up)) - np.asarray(draw(*down))) / (2 * step), atol=1e-7)
