"""Operators and methods of tensors: the same expression on a NumPy array and on a traced tensor."""

import operator

import numpy as np
import pytest

from rlx.errors import OpError, RlxError, ShapeError, TraceError
from rlx.ir.graph import Graph

rng = np.random.default_rng(13)
X = rng.standard_normal((3, 4)) * 3
Y = rng.uniform(0.5, 2.0, (3, 4))
I = rng.integers(-9, 9, (3, 4)).astype(np.int32)
J = np.where(np.eye(3, 4) == 1, -3, 4).astype(np.int32)
BITS = rng.integers(0, 7, (3, 4)).astype(np.int32)


def same(traced, expression, *arrays, exact=False):
    expected, got = expression(*arrays), traced(expression, *arrays)
    assert np.asarray(expected).shape == got.shape
    (np.testing.assert_array_equal if exact else np.testing.assert_allclose)(got, expected)


ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
def test_operators_on_floats_and_ints(traced, name):
    f = getattr(operator, name)
    same(traced, f, X, Y)
    same(traced, f, I, J)
    same(traced, lambda x: f(x, 2), I)
    same(traced, lambda x: f(7, x), J)
    same(traced, lambda x: f(np.arange(4.0) + 1, x), Y)


def test_changing_a_part_in_place_names_the_way(traced):
    def change(x):
        x[0] = 1.0
        return x

    with pytest.raises(RlxError, match=r"x\.at\[i\]\.set"):
        traced(change, X)


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_rounding_to_places(traced, decimals):
    same(traced, lambda x: x.round(decimals), X * 10)
    np.testing.assert_allclose(traced(lambda x: round(x, decimals), X * 10), np.round(X * 10, decimals))


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bit_operators(traced, name):
    f = getattr(operator, name)
    same(traced, f, I, BITS, exact=True)
    same(traced, lambda x: f(x, 3), I, exact=True)
    same(traced, lambda x: f(5, x), BITS, exact=True)


def test_bool_operators(traced):
    same(traced, lambda a, b: (a & ~b) | (a ^ b), X > 0, Y > 1, exact=True)


def test_unary_operators(traced):
    same(traced, lambda x: +abs(-x), X)
    same(traced, lambda x: ~x, I)
    same(traced, lambda x: x**2 + 2.0**x, Y)
    same(traced, lambda x, y: divmod(x, y)[0] * 100 + divmod(x, y)[1], I, J)


def test_matmul_operator(traced):
    same(traced, lambda x, y: x @ y.T, X, Y)
    same(traced, lambda x: np.ones((2, 3)) @ x, X)


def test_integers_divide_to_floats(traced):
    assert traced(lambda x, y: x / y, I, J).dtype == np.float32


METHODS = {
    "sum": lambda x: x.sum(0),
    "sum_all": lambda x: x.sum(),
    "mean": lambda x: x.mean(axis=1, keepdims=True),
    "prod": lambda x: x.prod(axis=-1),
    "max": lambda x: x.max(axis=(0, 1)),
    "min": lambda x: x.min(axis=0),
    "var": lambda x: x.var(axis=0, ddof=1),
    "std": lambda x: x.std(),
    "any": lambda x: (x > 2).any(axis=1),
    "all": lambda x: (x > -2).all(),
    "argmax": lambda x: x.argmax(axis=1),
    "argmin": lambda x: x.argmin(),
    "cumsum": lambda x: x.cumsum(axis=1),
    "cumsum_flat": lambda x: x.cumsum(),
    "cumprod": lambda x: x.cumprod(0),
    "reshape": lambda x: x.reshape(2, -1),
    "reshape_tuple": lambda x: x.reshape((4, 3)),
    "transpose": lambda x: x.transpose(1, 0),
    "transpose_tuple": lambda x: x.transpose((1, 0)),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze_axis": lambda x: x[:, :1].squeeze(axis=1),
    "repeat": lambda x: x.repeat(2, axis=0),
    "diagonal": lambda x: x.diagonal(1),
    "take": lambda x: x.take([2, 0], axis=0),
    "astype": lambda x: x.astype(np.int32),
    "real": lambda x: (x + 1j * x).real,
    "imag": lambda x: (x + 1j * x).imag,
    "conj": lambda x: (x + 1j * x).conj(),
    "clip": lambda x: x.clip(-1, 1),
    "clip_above": lambda x: x.clip(max=0.5),
    "round": lambda x: x.round(),
    "dot": lambda x: x.dot(x[0]),
    "argsort": lambda x: x.argsort(axis=0),
    "getitem": lambda x: x[1:, ::-1],
    "iterate": lambda x: sum(row * i for i, row in enumerate(x)),
    "unpack": lambda x: (lambda a, b, c: a - b + c)(*x),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(traced, name):
    same(traced, METHODS[name], X)


def test_sort_returns_a_sorted_tensor(traced):
    np.testing.assert_array_equal(traced(lambda x: x.sort(axis=0), X), np.sort(X, axis=0))


def test_at_updates(traced):
    expected = X.copy()
    expected[1:, [0, 2]] += 5.0
    np.testing.assert_allclose(traced(lambda x: x.at[1:, [0, 2]].add(5.0), X), expected)


def test_length():
    graph = Graph()
    assert len(graph.input("x", (3, 4), "f32")) == 3
    with pytest.raises(TraceError, match="rank 0"):
        len(graph.input("y", (), "f32"))
    with pytest.raises(TraceError, match="not known while the program is built"):
        len(graph.input("z", ("B",), "f32"))


COMPLEX = X + 1j * Y


def test_conjugate_and_trace(traced):
    same(traced, lambda z: z.conjugate() * 2, COMPLEX)
    for arguments in ((), (1,), (-1, 1, 0)):
        same(traced, lambda x, a=arguments: x.trace(*a), X)


@pytest.mark.parametrize("source", ["float32", "float64", "int16", "uint8"])
@pytest.mark.parametrize("to", ["float32", "uint32", "int64", "float16", "int8"])
def test_view(traced, source, to):
    x = BITS.astype(source)
    same(traced, lambda x: x.view(to).view("uint8"), np.concatenate([x, x], axis=1), exact=True)


def test_views_that_do_not_fit_are_refused():
    g = Graph("views")
    with pytest.raises(ShapeError, match="view: 2 elements make one f32, which does not divide the last axis"):
        g.input("x", (2, 3), "f16").view("f32")
    with pytest.raises(OpError, match="a scalar has no last axis"):
        g.input("y", (), "f64").view("f32")


def test_nonzero_needs_a_size(traced):
    x = np.array([[0, 3, 0], [5, 0, 6]])
    rows, columns = (traced(lambda x, i=i: x.nonzero(size=4, fill_value=9)[i], x) for i in range(2))
    np.testing.assert_array_equal(rows, [0, 1, 1, 9])
    np.testing.assert_array_equal(columns, [1, 0, 2, 9])
    with pytest.raises(OpError, match="give `size`"):
        Graph("traced").input("x", (3,)).nonzero()


def test_values_are_not_there_while_a_program_is_built():
    x = Graph("traced").input("x", (1,))
    for wanted in (x.item, x.tolist):
        with pytest.raises(TraceError, match="has no value while the program is being built"):
            wanted()
