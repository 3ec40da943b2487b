"""Random numbers: bits against the Philox stream, distributions against scipy.stats, keys against their contract.

Every test has a fixed key, so none of them is a matter of luck.
"""

import numpy as np
import pytest
from scipy import stats

from rlx import ops, random
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rng import Philox4x32

KEY = random.key(2024)


def p_value(values, distribution):
    return stats.kstest(np.asarray(values, np.float64).ravel(), distribution.cdf).pvalue


def test_bits_are_the_published_stream():
    words = np.asarray(ops.random_bits(random.key(0), (4,)))
    assert [f"{w:08x}" for w in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    for seed in (42, 2**40 + 5):
        expected = Philox4x32(seed).next_words(30)
        np.testing.assert_array_equal(ops.random_bits(random.key(seed), (5, 6)), expected.reshape(5, 6))
        np.testing.assert_array_equal(ops.random_bits(random.key(seed), (7,)), expected[:7])


def test_bits_go_on_beyond_32_bit_block_numbers():
    start = np.uint64(2**32 - 1)
    stream = Philox4x32(9)
    stream.position = 4 * int(start)
    np.testing.assert_array_equal(ops.RandomBits((8,))(random.key(9), start), stream.next_words(8))


def test_keys_with_leading_axes_are_independent_draws(both):
    keys = np.asarray(random.split(KEY, 3))
    draws = np.asarray(both(lambda k: random.normal(k, (4,)), keys))
    for key, draw in zip(keys, draws):
        np.testing.assert_array_equal(random.normal(key, (4,)), draw)


def test_key_of_a_seed(both):
    assert random.PRNGKey is random.key
    np.testing.assert_array_equal(random.key(2**32 * 7 + 3), np.array([3, 7], np.uint32))
    np.testing.assert_array_equal(random.key(-1), np.array([2**32 - 1] * 2, np.uint32))
    seeds = np.array([0, 5, 2**40, -1])
    expected = [random.key(int(s)) for s in seeds]
    np.testing.assert_array_equal(both(random.key, seeds), expected)


def test_new_keys_differ_from_each_other_and_from_draws(both):
    made = [
        *np.asarray(random.split(KEY, 50)),
        *np.asarray(random.split(random.key(2025), (5, 4))).reshape(20, 2),
        *(np.asarray(random.fold_in(KEY, i)) for i in range(50)),
        *np.asarray(ops.random_bits(KEY, (50, 2))),
    ]
    assert len({tuple(k) for k in made}) == len(made)
    steps = np.arange(5)
    folded = both(lambda k, s: random.fold_in(k, s), KEY, steps)
    np.testing.assert_array_equal(folded, [random.fold_in(KEY, int(s)) for s in steps])
    assert np.asarray(random.fold_in(KEY, -1)).shape == (2,)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_uniform(dtype):
    x = np.asarray(random.uniform(KEY, (4000,), dtype))
    assert x.dtype == ops.cast(np.zeros(1), dtype).dtype
    values = x.astype(np.float64)
    assert values.min() >= 0
    assert values.max() < 1
    if dtype in ("f32", "f64"):
        assert p_value(values, stats.uniform) > 0.01
    assert values.mean() == pytest.approx(0.5, abs=0.02)


def test_uniform_never_reaches_the_upper_end():
    top = np.nextafter(np.float32(1), np.float32(2))
    x = np.asarray(random.uniform(KEY, (1000,), minval=1.0, maxval=float(top)))
    assert set(x.tolist()) == {1.0}
    wide = np.asarray(random.uniform(KEY, (4000,), "f64", -3.0, 5.0))
    assert p_value(wide, stats.uniform(-3, 8)) > 0.01


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (random.normal, stats.norm),
        (random.gumbel, stats.gumbel_r),
        (random.exponential, stats.expon),
        (lambda k, s, d: random.truncated_normal(k, -0.5, 2.0, s, d), stats.truncnorm(-0.5, 2.0)),
    ],
)
def test_distributions(draw, distribution, dtype):
    x = np.asarray(draw(KEY, (3000,), dtype))
    assert x.dtype == np.dtype({"f32": np.float32, "f64": np.float64}[dtype])
    assert p_value(x, distribution) > 0.01


def test_normal_in_low_precision():
    x = np.asarray(random.normal(KEY, (2000,), "bf16")).astype(np.float64)
    assert x.std() == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(
        np.asarray(random.normal(KEY, (9,), "f16")), np.asarray(random.normal(KEY, (9,))).astype(np.float16)
    )


def test_normals_are_uncorrelated_between_neighbours_and_keys():
    a, b = (np.asarray(random.normal(k, (4000,))) for k in np.asarray(random.split(KEY)))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.05


def test_bits_of_other_widths():
    words = np.asarray(ops.random_bits(KEY, (2,)))
    assert int(random.bits(KEY, (), "u64")) == int(words[1]) << 32 | int(words[0])
    np.testing.assert_array_equal(random.bits(KEY, (2,), "u8"), (words >> 24).astype(np.uint8))


def chi_square(ids, probabilities):
    counts = np.bincount(np.asarray(ids).ravel(), minlength=len(probabilities))
    return stats.chisquare(counts, np.asarray(probabilities) * counts.sum()).pvalue


def test_randint():
    x = np.asarray(random.randint(KEY, (3000,), -3, 7))
    assert x.dtype == np.int32
    assert chi_square(x + 3, np.full(10, 0.1)) > 0.01
    big = np.asarray(random.randint(KEY, (1000,), -(2**62), 2**62, "i64"))
    assert p_value(big / 2.0**62, stats.uniform(-1, 2)) > 0.01
    np.testing.assert_array_equal(random.randint(KEY, (3,), 5, 5), [5, 5, 5])
    bounds = np.array([1, 10, 100])
    assert (np.asarray(random.randint(KEY, (50, 3), 0, bounds)) < bounds).all()


def test_bernoulli():
    p = np.array([0.0, 0.25, 1.0])
    x = np.asarray(random.bernoulli(KEY, p, (2000, 3)))
    assert x.dtype == bool
    np.testing.assert_allclose(x.mean(axis=0), p, atol=0.03)
    assert np.asarray(random.bernoulli(KEY, p)).shape == (3,)


def test_categorical_draws_from_the_softmax(both):
    logits = np.array([[0.0, 1.0, 2.0, -np.inf], [3.0, 0.0, 0.0, 0.0]])
    ids = np.asarray(both(lambda k, l: random.categorical(k, l, shape=(2000, 2)), KEY, logits))
    assert ids.dtype == np.int32
    for row, column in zip(logits, ids.T):
        p = np.exp(row) / np.exp(row).sum()
        # An id that cannot occur would lengthen the counts.
        assert chi_square(column, p[p > 0]) > 0.01
    assert np.asarray(random.categorical(KEY, logits, axis=0)).shape == (4,)


def test_permutations(both):
    x = np.arange(24).reshape(6, 4)
    rows = np.asarray(both(random.permutation, KEY, x))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, x))
    assert not (rows == x).all()
    each = np.asarray(both(lambda k, v: random.permutation(k, v, 1, independent=True), KEY, x))
    np.testing.assert_array_equal(np.sort(each, axis=1), x)
    assert len({tuple(row % 4) for row in each}) > 1
    firsts = [int(np.asarray(random.permutation(k, 5))[0]) for k in np.asarray(random.split(KEY, 500))]
    assert chi_square(firsts, np.full(5, 0.2)) > 0.01


def test_choice():
    p = np.array([0.5, 0.2, 0.2, 0.1])
    assert chi_square(random.choice(KEY, 4, (2000,), p=p), p) > 0.01
    assert chi_square(random.choice(KEY, 4, (2000,)), np.full(4, 0.25)) > 0.01
    for options in ({}, {"p": p}):
        all_of_them = np.asarray(random.choice(KEY, 4, (2, 2), replace=False, **options))
        assert sorted(all_of_them.ravel()) == [0, 1, 2, 3]
    firsts = [int(random.choice(k, 4, (), replace=False, p=p)) for k in np.asarray(random.split(KEY, 500))]
    assert chi_square(firsts, p) > 0.01
    table = np.arange(8.0).reshape(2, 4)
    picked = np.asarray(random.choice(KEY, table, (3,), axis=1))
    assert picked.shape == (2, 3)
    np.testing.assert_array_equal(picked[1] - picked[0], [4, 4, 4])


def test_dropout(both):
    x = np.ones((40, 50), np.float32)
    y = np.asarray(both(lambda x, k: ops.dropout(x, 0.3, k), x, KEY))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / (1 - 0.3))}
    assert (y == 0).mean() == pytest.approx(0.3, abs=0.03)
    np.testing.assert_array_equal(random.dropout(KEY, x, 0.3), y)
    np.testing.assert_array_equal(ops.dropout(x, 0, KEY), x)
    np.testing.assert_array_equal(ops.dropout(x, 1.0, KEY), np.zeros_like(x))


def test_in_a_graph_the_key_is_an_operand_and_shapes_may_be_symbolic():
    graph = Graph()
    key, x = graph.input("key", (2,), "u32"), graph.input("x", ("B", 3), "f32")
    graph.set_outputs([ops.dropout(x, 0.5, key), random.categorical(key, x), random.choice(key, x, (2,))])
    values = np.ones((4, 3), np.float32)
    dropped, ids, chosen = interpret(graph, [KEY, values])
    np.testing.assert_array_equal(dropped, ops.dropout(values, 0.5, KEY))
    np.testing.assert_array_equal(ids, random.categorical(KEY, values))
    assert chosen.shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random.normal(7), r"make one with rlx.random.key\(7\)"),
        (lambda: random.normal(np.zeros(2)), r"needs a key u32\[2\], got f64\[2\]"),
        (lambda: random.normal(np.zeros(3, np.uint32)), r"needs a key u32\[2\]"),
        (lambda: random.key(1.5), "integer seed"),
        (lambda: random.fold_in(KEY, 1.5), "needs an integer"),
        (lambda: random.normal(KEY, (2,), "i32"), "dtype must be f16, bf16, f32 or f64"),
        (lambda: random.bits(KEY, (2,), "i32"), "u8, u16, u32 or u64"),
        (lambda: random.randint(KEY, (2,), 0, 5, "f32"), "integer type"),
        (lambda: random.categorical(KEY, np.zeros((2, 3)), shape=(3,)), "must end with"),
        (lambda: random.choice(KEY, 3, (4,), replace=False), "cannot draw 4 different entries out of 3"),
        (lambda: random.choice(KEY, 0, (1,)), "nothing to draw from"),
        (lambda: random.choice(KEY, 3, (4,), p=np.ones(2)), "one probability per entry"),
        (lambda: random.permutation(KEY, np.zeros(3), axis=1), "axis 1 is out of range"),
        (lambda: ops.dropout(np.ones(3), 1.5, KEY), r"probability in \[0, 1\]"),
        (lambda: ops.RandomBits((2,), -1), "32-bit number"),
        (lambda: ops.RandomBits((2,))(KEY, np.int32(1)), "u64"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()
