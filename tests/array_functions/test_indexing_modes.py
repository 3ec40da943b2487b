"""`x.at[...]` with its modes, and the one rule for indices that are out of range.

The rule: an index that is known before anything runs is an error, read or written, at once or in a program; computed
ones are clipped when reading and dropped when writing; a `mode` says otherwise for both. Values are those of NumPy's
`ufunc.at`, and of JAX's documentation for `mode` and `fill_value`.
"""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError, OutOfRange, RlxError

X = np.float32([10, 20, 30])
IN, OUT = np.int32([0, -1, 1]), np.int32([0, 3, -4, 7])


def at_once(fn, x, i):
    return fn(rnp.asarray(x), i)


def compiled(fn, x, i):
    return rlx.jit(fn)(x, i)


def computed(fn, x, i):
    """The program computes the index, so nobody knows it before."""
    return rlx.jit(lambda x, i: fn(x, i * 1))(x, i)


def batched(fn, x, i):
    return rlx.vmap(lambda x: fn(x, i))(x[None])[0]


WAYS = [at_once, compiled, computed, batched]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["drop", "fill"])
def test_writes_that_are_dropped(way, mode):
    found = way(lambda x, i: x.at[i].set(5.0, mode=mode), X, OUT)
    np.testing.assert_array_equal(found, [5, 20, 30])
    np.testing.assert_array_equal(way(lambda x, i: x.at[i].add(1.0, mode=mode), X, OUT), [11, 20, 30])


@pytest.mark.parametrize("way", WAYS)
def test_writes_that_are_clipped(way):
    found = way(lambda x, i: x.at[i].add(1.0, mode="clip"), X, OUT)
    np.testing.assert_array_equal(found, [12, 20, 32])


@pytest.mark.parametrize("way", WAYS)
def test_reads_with_modes(way):
    np.testing.assert_array_equal(way(lambda x, i: x.at[i].get(mode="clip"), X, OUT), [10, 30, 10, 30])
    np.testing.assert_array_equal(
        way(lambda x, i: x.at[i].get(mode="fill", fill_value=-1), X, OUT), np.float32([10, -1, -1, -1])
    )
    np.testing.assert_array_equal(way(lambda x, i: x.at[i].get(mode="fill"), X, OUT), [10, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("way", [at_once, compiled])
def test_a_fill_value_does_not_overrule_the_mode(way):
    """As in JAX: it is what "fill" reads, and asks for "fill" only where no mode is given."""
    for read in (
        lambda x, i, mode: x.at[i].get(mode=mode, fill_value=-1),
        lambda x, i, mode: rnp.take(x, i, mode=mode, fill_value=-1),
        lambda x, i, mode: rnp.take_along_axis(x, i, 0, mode=mode, fill_value=-1),
    ):
        np.testing.assert_array_equal(way(lambda x, i, read=read: read(x, i, "clip"), X, OUT)[1::2], [30, 30])
        for mode in ("fill", None):
            np.testing.assert_array_equal(
                way(lambda x, i, read=read, mode=mode: read(x, i, mode), X, OUT), np.float32([10, -1, -1, -1])
            )
        with pytest.raises(RlxError, match="'nope'"):
            way(lambda x, i, read=read: read(x, i, "nope"), X, OUT)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("i8", -128), ("i32", -(2**31)), ("u8", 255), ("bool", True), ("f16", np.nan)]
)
def test_what_is_read_where_nothing_is(dtype, fill):
    x = rnp.zeros(3, dtype)
    for found in (x.at[5].get(mode="fill"), rnp.take(x, 5, mode="fill"), rnp.take_along_axis(x, [5], 0, mode="fill")):
        np.testing.assert_array_equal(np.ravel(found), np.asarray([fill]))
        assert found.dtype == x.dtype


@pytest.mark.parametrize("way", [at_once, compiled])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i],
        lambda x, i: x.at[i].get(),
        lambda x, i: x.at[i].set(1.0),
        lambda x, i: x.at[i].add(1.0),
        lambda x, i: rnp.stack([x, x])[0, i],
        lambda x, i: rnp.stack([x, x]).at[i, 0].set(1.0),
    ],
)
@pytest.mark.parametrize("number", [5, -4])
def test_known_ids_out_of_range_are_errors_however_they_are_used(way, fn, number):
    with pytest.raises(OutOfRange, match=str(number)):
        way(fn, X, np.int32(number))
    with pytest.raises(IndexError):
        way(fn, X, np.int32([0, number]))


@pytest.mark.parametrize("number", [5, -4])
def test_numbers_out_of_range(number):
    x = rnp.asarray(X)
    for fn in (lambda x: x[number], lambda x: x.at[number].set(1.0)):
        for run in (fn, rlx.jit(fn)):
            with pytest.raises(OutOfRange, match=f"index {number} is out of range for axis 0 of size 3"):
                run(x)
    for run in (lambda f: f(x), lambda f: rlx.jit(f)(x)):
        np.testing.assert_array_equal(run(lambda x: x.at[number].set(1.0, mode="drop")), X)
        np.testing.assert_array_equal(run(lambda x: x.at[number].get(mode="clip")), X[-1] if number > 0 else X[0])
        assert run(lambda x: x.at[number].get(mode="fill", fill_value=7.0)) == 7.0


def test_computed_ids_are_clipped_and_dropped():
    np.testing.assert_array_equal(computed(lambda x, i: x[i], X, OUT), [10, 30, 10, 30])
    np.testing.assert_array_equal(computed(lambda x, i: x.at[i].set(5.0), X, OUT), [5, 20, 30])


def test_a_number_beside_slices_and_ids():
    x = rnp.zeros((2, 3))
    np.testing.assert_array_equal(x.at[5, 1:].set(1.0, mode="drop"), np.zeros((2, 3)))
    np.testing.assert_array_equal(x.at[1, [0, 7]].set(1.0, mode="drop"), [[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(x.at[:, 5].set([1.0, 2.0], mode="clip"), [[0, 0, 1], [0, 0, 2]])
    assert x.at[5].get(mode="fill", fill_value=1.0).tolist() == [1.0, 1.0, 1.0]


def test_a_number_of_an_axis_of_any_size():
    clip = rlx.jit(lambda x: x.at[5].set(0.0, mode="clip")).lower(rlx.Spec(("S",))).compile()
    np.testing.assert_array_equal(clip(X), [10, 20, 0])
    np.testing.assert_array_equal(clip(np.ones(7, "f4")), [1, 1, 1, 1, 1, 0, 1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("method", "ufunc"),
    [
        *(("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("mul", np.multiply)),
        *(("divide", np.divide), ("power", np.power), ("min", np.minimum), ("max", np.maximum)),
    ],
)
def test_methods_do_what_ufunc_at_does(way, method, ufunc):
    wanted = X.copy()
    ufunc.at(wanted, [1, 1, 2], np.float32([2, 1.5, 0.5]))
    values = np.float32([2, 1.5, 0.5])
    found = way(lambda x, i: getattr(x.at[i], method)(values), X, np.int32([1, 1, 2]))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_divide_of_integers_gives_floats():
    np.testing.assert_array_equal(rnp.arange(4).at[2:].divide(4), np.float32([0, 1, 0.5, 0.75]))


@pytest.mark.parametrize("way", WAYS)
def test_apply(way):
    wanted = X.copy()
    np.negative.at(wanted, [0, 2])
    np.testing.assert_array_equal(way(lambda x, i: x.at[i].apply(rnp.negative), X, np.int32([0, 2])), wanted)
    np.testing.assert_array_equal(way(lambda x, i: x.at[i].apply(rnp.negative, mode="drop"), X, OUT), [-10, 20, 30])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ids", [[1, 1, 2, 1], [2, -1], [0, 1], [[0, 0], [1, 2]]])
def test_apply_with_repeated_ids_applies_repeatedly(way, ids):
    wanted = X.copy()
    np.square.at(wanted, np.array(ids))
    np.testing.assert_allclose(way(lambda x, i: x.at[i].apply(rnp.square), X, np.int32(ids)), wanted, rtol=1e-6)
    np.testing.assert_allclose(rlx.jit(lambda x: x.at[np.array(ids)].apply(rnp.square))(X), wanted, rtol=1e-6)


def test_apply_at_masks_slices_and_promised_ids():
    wanted = np.where(X > 15, -X, X)
    np.testing.assert_array_equal(rlx.jit(lambda x: x.at[x > 15].apply(rnp.negative))(X), wanted)
    np.testing.assert_array_equal(rnp.asarray(X).at[::2].apply(rnp.negative), X * [-1, 1, -1])
    once = rlx.jit(lambda x, i: x.at[i].apply(rnp.square, unique_indices=True))
    assert "while" not in str(rlx.make_graph(once)(X, np.int32([0, 2])))


def test_gradient_of_a_repeated_application():

    def loss(x, i):
        return rnp.sum(x.at[i].apply(lambda v: v**2))

    x = np.float32([1, 2, 3])
    np.testing.assert_allclose(rlx.grad(loss)(x, np.int32([1, 1, 2])), [1, 4 * 2**3, 2 * 3], rtol=1e-6)


def test_integers_are_changed_by_numbers_with_their_fractions():
    """JAX's rule: 0 + 1.7 + 1.7 = 3.4 becomes 3."""
    x = rnp.arange(3)
    np.testing.assert_array_equal(x.at[np.array([0, 0, 2])].add(1.7), [3, 1, 3])
    np.testing.assert_array_equal(x.at[1:].subtract(0.5), [0, 0, 1])
    np.testing.assert_array_equal(x.at[1:].multiply(1.5), [0, 1, 3])
    assert x.at[0].add(1.5).dtype == np.int32


def test_gradients_follow_the_mode():
    read = rlx.grad(lambda x: rnp.sum(x.at[OUT].get(mode="fill", fill_value=3.0)))(X)
    np.testing.assert_array_equal(read, [1, 0, 0])
    clipped = rlx.grad(lambda x: rnp.sum(x.at[OUT].get(mode="clip")))(X)
    np.testing.assert_array_equal(clipped, [2, 0, 2])
    written = rlx.grad(lambda v: rnp.sum(rnp.asarray(X).at[OUT].set(v, mode="drop")))(np.ones(4, "f4"))
    np.testing.assert_array_equal(written, [1, 0, 0, 0])


def test_words_and_promises():
    x = rnp.asarray(X)
    np.testing.assert_array_equal(x.at[0].set(1.0, indices_are_sorted=True, unique_indices=True), [1, 20, 30])
    assert x.at[0].get(mode="promise_in_bounds") == 10
    with pytest.raises(OpError, match=r"'clop' is no IndexMode .did you mean 'clip'.*checked, clip, fill, drop"):
        x.at[0].set(1.0, mode="clop")
    with pytest.raises(OpError, match="not sorted"):
        x.at[0].set(1.0, sorted=True)


def test_arrays_take_computed_ids():
    table = rnp.asarray(X)
    assert rlx.jit(lambda i: table[i])(np.int32(2)) == 30
    np.testing.assert_array_equal(rlx.jit(lambda i: table[::-1][i + 1])(np.int32([0, 1])), [20, 10])
