"""Tensors made from nothing, against NumPy; with fixed and with symbolic sizes."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building

B, S = Dim.symbol("B"), Dim.symbol("S")


def with_sizes(build, b, s):
    """The value of `build()` in a program whose symbols B and S have these sizes."""
    graph = Graph("sized")
    graph.input("x", ("B", "S"), "f32")
    with building(graph):
        result = build()
    graph.set_outputs([result])
    return interpret(graph, [np.zeros((b, s), np.float32)])[0]


def test_iota():
    np.testing.assert_array_equal(ops.iota((2, 3), "f32", axis=1), np.indices((2, 3))[1])
    np.testing.assert_array_equal(ops.iota(4, axis=-1), np.arange(4))
    assert ops.iota(3).dtype == np.int32
    assert np.asarray(ops.iota(300, "u8"))[-1] == 299 % 256
    np.testing.assert_array_equal(with_sizes(lambda: ops.iota((B, S), axis=1), 2, 3), np.indices((2, 3))[1])


@pytest.mark.parametrize(
    "arguments", [(5,), (0,), (-3,), (2, 9), (9, 2), (9, 2, -3), (0.0, 1.0, 0.1), (1, 0, -0.25), (2, 11, 3)]
)
def test_arange(arguments):
    result, expected = np.asarray(ops.arange(*arguments)), np.arange(*arguments)
    assert result.dtype == (np.float32 if expected.dtype == np.float64 else np.int32)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)


def test_arange_in_other_dtypes():
    np.testing.assert_array_equal(ops.arange(0, 5000, 2, dtype="f16"), np.arange(0, 5000, 2).astype(np.float16))
    assert np.asarray(ops.arange(2**40, 2**40 + 3, dtype="i64")).tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    np.testing.assert_allclose(ops.arange(0, 1, 0.1, dtype="f64"), np.arange(0, 1, 0.1), rtol=1e-15)


def test_arange_of_symbolic_bounds():
    assert with_sizes(lambda: ops.arange(S), 2, 5).tolist() == [0, 1, 2, 3, 4]
    assert with_sizes(lambda: ops.arange(B, B + S, 2), 3, 6).tolist() == [3, 5, 7]
    assert with_sizes(lambda: ops.arange(S, 0, -2), 3, 6).tolist() == [6, 4, 2]


@pytest.mark.parametrize(("start", "stop", "num"), [(0, 1, 5), (2.5, -3.5, 7), (1, 4, 1), (1, 4, 0), (3, 3, 3)])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(start, stop, num, endpoint):
    result = ops.linspace(start, stop, num, endpoint, dtype="f64")
    np.testing.assert_allclose(result, np.linspace(start, stop, num, endpoint), rtol=1e-15, atol=1e-15)


def test_linspace_of_arrays_and_symbolic_counts(both):
    start, stop = np.array([[0.0, 1.0]]), np.array([[2.0], [5.0]])
    np.testing.assert_allclose(both(lambda a, b: ops.linspace(a, b, 4), start, stop), np.linspace(start, stop, 4))
    expected = np.linspace(0, 1, 6, dtype=np.float32)
    np.testing.assert_allclose(with_sizes(lambda: ops.linspace(0, 1, S), 2, 6), expected, rtol=1e-6)
    assert with_sizes(lambda: ops.linspace(0, 1, S), 2, 6)[-1] == 1.0
    assert with_sizes(lambda: ops.linspace(7, 9, S), 2, 1).tolist() == [7.0]


@pytest.mark.parametrize(
    ("rows", "columns", "k"), [(3, None, 0), (3, 4, 1), (4, 3, -1), (2, 5, 9), (0, 3, 0), (3, 3, -7)]
)
def test_eye_and_tri(rows, columns, k):
    np.testing.assert_array_equal(ops.eye(rows, columns, k), np.eye(rows, columns, k))
    np.testing.assert_array_equal(ops.tri(rows, columns, k, "i32"), np.tri(rows, columns, k))


@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64])
def test_triangles(both, k, dtype):
    x = np.arange(1, 25).reshape(2, 3, 4).astype(dtype)
    for function, oracle in ((ops.tril, np.tril), (ops.triu, np.triu)):
        result = both(lambda v, f=function: f(v, k), x)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, oracle(x, k))


def test_triangles_with_symbolic_sizes(both):
    x = np.arange(1.0, 13.0).reshape(3, 4)
    np.testing.assert_array_equal(both(ops.tril, x, dims=[("B", "S")]), np.tril(x))


def test_filled(both):
    np.testing.assert_array_equal(ops.full((2, 3), 7), np.full((2, 3), 7))
    assert ops.full(2, 7).dtype == np.int32
    assert ops.full(2, 0.5).dtype == np.float32
    assert ops.full((), True).dtype == bool
    assert ops.zeros((2, 0)).shape == (2, 0)
    np.testing.assert_array_equal(ops.ones((2,), "i8"), np.ones(2, np.int8))
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    for function, value in ((ops.zeros_like, 0), (ops.ones_like, 1)):
        result = both(function, x, dims=[("B", "S")])
        assert result.dtype == np.int16
        np.testing.assert_array_equal(result, np.full_like(x, value))
    np.testing.assert_array_equal(both(lambda v: ops.full_like(v, 2.5, "f32"), x), np.full((2, 3), 2.5))
    row = np.arange(3.0)
    np.testing.assert_array_equal(both(lambda v: ops.full((2, 3), v), row), np.broadcast_to(row, (2, 3)))


def test_dim_value():
    assert with_sizes(lambda: ops.dim_value(B * S + 1), 2, 3) == 7
    assert with_sizes(lambda: ops.dim_value(S, "f32"), 2, 3).dtype == np.float32
    assert with_sizes(lambda: ops.dim_value("B"), 2, 3).dtype == np.int32
    assert int(ops.dim_value(5, "i64")) == 5
    with pytest.raises(OpError, match=r"dim_value: 300 does not fit into i8"):
        with_sizes(lambda: ops.dim_value(B * S, "i8"), 30, 10)


@pytest.mark.parametrize(
    ("error", "build", "wanted"),
    [
        (OpError, lambda: ops.iota(3, "bool"), "iota: needs numeric operands, got bool[3]"),
        (ShapeError, lambda: ops.iota((2, 3), axis=2), "iota: axis 2 is out of range for rank 2"),
        (OpError, lambda: ops.arange(1, 2, 0), "arange: the step cannot be 0"),
        (OpError, lambda: ops.arange(0, S, 0.5), "arange: a symbolic bound needs integers beside it"),
        (OpError, lambda: ops.arange(0, 2, 0.5, dtype="i32"), "arange: i32 needs integer bounds and step"),
        (OpError, lambda: ops.tril(np.ones(3)), "tril: needs an operand of rank 2 or more"),
        (OpError, lambda: ops.dim_value("B", "c64"), "dim_value: needs integer or float operands, got c64[]"),
        (ShapeError, lambda: ops.iota(("B", 2)), "i32[B,2] has the symbolic dimension B"),
    ],
)
def test_errors(error, build, wanted):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(wanted)


def test_a_symbolic_size_outside_a_program_is_refused():
    with pytest.raises(TraceError, match="B"):
        ops.dim_value("B")
