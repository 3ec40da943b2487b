"""rlx.numpy inside programs: bounded sizes, symbolic sizes, constants, graph handles, jit; and what it refuses."""

import re

import numpy as np
import pytest
from oracle_cases import traced

import rlx
import rlx.numpy as rnp
from rlx.errors import BackendError, DTypeError, OpError, RlxError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import Tensor, building

X = np.array([[3.0, 0.0, 1.0], [0.0, 1.0, 3.0]])
NUMBERS = np.array([5, 1, 1, 7, 5, 5], np.int32)


def run(function, *args):
    results = traced(function, args, {})
    return [r.tolist() for r in results]


def test_bounded_nonzero():
    assert run(lambda x: rnp.nonzero(x, size=6, fill_value=-1), X) == [[0, 0, 1, 1, -1, -1], [0, 2, 1, 2, -1, -1]]
    assert run(lambda x: rnp.flatnonzero(x, size=2), X) == [[0, 2]]
    assert run(lambda x: rnp.argwhere(x, size=5, fill_value=9), X) == [[[0, 0], [0, 2], [1, 1], [1, 2], [9, 9]]]
    assert run(lambda x: rnp.where(x > 1, size=3), X) == [[0, 1, 0], [0, 2, 0]]


def test_bounded_unique():
    values, index, inverse, counts = run(lambda x: rnp.unique_all(x, size=5, fill_value=-3), NUMBERS)
    assert (values, index, inverse, counts) == (
        [1, 5, 7, -3, -3],
        [1, 0, 3, 1, 1],
        [1, 0, 0, 2, 1, 1],
        [2, 3, 1, 0, 0],
    )
    # Filled with the smallest value unless told otherwise; more values than `size` are cut off.
    assert run(lambda x: rnp.unique_values(x, size=4), NUMBERS) == [[1, 5, 7, 1]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("union1d", [1, 2, 5, 7, 1, 1]),
        ("intersect1d", [5, 0, 0, 0, 0, 0]),
        ("setdiff1d", [1, 7, 0, 0, 0, 0]),
        ("setxor1d", [1, 2, 7, 0, 0, 0]),
    ],
)
def test_bounded_sets(name, wanted):
    other = np.array([5, 2, 5], np.int32)
    function = getattr(rnp, name)
    assert run(lambda a, b: function(a, b, size=6), NUMBERS, other) == [wanted]
    # Known values need no bound, and then agree with NumPy.
    np.testing.assert_array_equal(function(NUMBERS, other), getattr(np, name)(NUMBERS, other))


def test_bounded_selection():
    condition = X[0] > 0.5
    assert run(lambda c, x: rnp.compress(c, x, axis=1, size=3, fill_value=8), condition, X) == [
        [[3.0, 1.0, 8.0], [0.0, 3.0, 8.0]]
    ]
    assert run(lambda x: rnp.extract(x > 0, x, size=5, fill_value=-1), X) == [[3.0, 1.0, 1.0, 3.0, -1.0]]
    assert run(lambda x: rnp.bincount(x, length=3), np.array([0, 5, 2, -1, 2], np.int32)) == [[1, 0, 2]]


def test_symbolic_sizes():
    def function(x):
        weights = rnp.arange(x.shape[1]) + 1
        centred = x - rnp.mean(x, axis=0, keepdims=True)
        lower = rnp.tril(rnp.ones((x.shape[0], x.shape[0])))
        return [
            rnp.concatenate([centred, rnp.zeros_like(x)], axis=1),
            lower @ (x * weights),
            rnp.std(x, axis=0, ddof=1),
            rnp.median(x, axis=0),
            rnp.cumsum(x, axis=0),
            rnp.flip(rnp.sort(x, axis=0)),
            rnp.linspace(0, 1, x.shape[0]),
            rnp.cov(x, rowvar=False),
            rnp.diff(x, axis=0),
            rnp.gradient(x, axis=0),
            rnp.diag(rnp.reshape(x, -1)),
            rnp.dim_value(x.shape[0]) / 2,
        ]

    graph = Graph("symbolic")
    with building(graph):
        graph.set_outputs(function(graph.input("x", ("B", 3), "f64")))
    for rows in (2, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 3))
        results = interpret(graph, [x])
        wanted = [
            np.concatenate([x - x.mean(0), 0 * x], 1),
            np.tril(np.ones((rows, rows))) @ (x * [1, 2, 3]),
            x.std(0, ddof=1),
            np.median(x, 0),
            x.cumsum(0),
            np.flip(np.sort(x, 0)),
            np.linspace(0, 1, rows),
            np.cov(x, rowvar=False),
            np.diff(x, axis=0),
            np.gradient(x, axis=0),
            np.diag(x.reshape(-1)),
            rows / 2,
        ]
        for found, value in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-7)


def test_an_array_used_twice_is_one_constant():
    weight = np.ones((3, 2), np.float32)
    graph = Graph("closure")
    with building(graph):
        x = graph.input("x", (4, 3), "f32")
        graph.set_outputs([rnp.add(rnp.matmul(x, weight), rnp.sum(weight))])
    assert sum(node.op.mnemonic == "constant" for node in graph.nodes) == 1


def test_graph_handles_need_no_trace():
    graph = Graph("handles")
    x = graph.input("x", ("B", 3), "f32")
    y = rnp.where(rnp.tril(rnp.ones_like(x)) > 0, x, rnp.asarray([1.0, 2.0, 3.0]))
    assert isinstance(y, Tensor)
    graph.set_outputs([y])
    (result,) = interpret(graph, [np.zeros((2, 3), np.float32)])
    assert result.tolist() == [[0, 2, 3], [0, 0, 3]]


def test_lists_and_nested_tensors():
    assert rnp.sum([[1, 2], [3, 4]]).tolist() == 10
    assert rnp.maximum([1, 5], [3, 2]).tolist() == [3, 5]
    graph = Graph("nested")
    a = graph.input("a", (), "f32")
    stacked = rnp.asarray([[a, 1.0], [2, a]])
    graph.set_outputs([stacked])
    assert interpret(graph, [np.float32(7)])[0].tolist() == [[7, 1], [2, 7]]


def test_shapes_and_sizes():
    x = np.zeros((2, 3, 4))
    assert (rnp.shape(x), rnp.ndim(x), rnp.size(x), rnp.size(x, -1)) == ((2, 3, 4), 3, 24, 4)
    assert (rnp.shape(3.0), rnp.ndim([[1]])) == ((), 2)
    assert rnp.broadcast_shapes((2, 1), 3, (1, 1, 1)) == np.broadcast_shapes((2, 1), 3, (1, 1, 1))
    with pytest.raises(ShapeError, match="do not broadcast"):
        rnp.broadcast_shapes((2,), (3,))
    tensor = Graph("sizes").input("x", ("B", 4), "f32")
    assert str(rnp.size(tensor)) == "4*B"


@pytest.mark.parametrize(
    "call", [lambda x: x.reshape(3, 2, order="F"), lambda x: x.ravel("F"), lambda x: x.flatten("F")]
)
def test_methods_take_the_order_of_elements(call):
    x = np.arange(6.0).reshape(2, 3)
    for found in (call(rnp.asarray(x)), rlx.jit(call)(x)):
        np.testing.assert_array_equal(found, call(x))


def test_parts_are_distinct_within_a_bound():
    rows = np.array([[1, 2], [0, 1], [1, 2], [0, 0]])
    bounded = rlx.jit(lambda x: rnp.unique(x, axis=0, return_counts=True, size=4, fill_value=7))
    values, counts = bounded(rows)
    assert values.tolist() == [[0, 0], [0, 1], [1, 2], [7, 7]]
    assert counts.tolist() == [1, 1, 2, 0]


def test_common_values_say_where_they_stand():
    first, second = np.array([3, 1, 1, 7, 3]), np.array([7, 9, 3])
    for found, wanted in zip(
        rnp.intersect1d(first, second, return_indices=True), np.intersect1d(first, second, False, True)
    ):
        np.testing.assert_array_equal(found, wanted)
    bounded = rlx.jit(lambda a, b: rnp.intersect1d(a, b, return_indices=True, size=3, fill_value=-1))
    assert [x.tolist() for x in bounded(first, second)] == [[3, 7, -1], [0, 3, 5], [2, 0, 3]]


def test_jit_and_eager_agree():
    def normalise(x):
        return (x - rnp.mean(x, axis=-1, keepdims=True)) / rnp.std(x, axis=-1, keepdims=True)

    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    np.testing.assert_allclose(rlx.jit(normalise)(x), normalise(x), rtol=1e-6, atol=1e-6)


def test_results_are_rlx_arrays_that_cannot_be_changed():
    result = rnp.add(np.ones(2), 1)
    assert isinstance(result, rlx.Array)
    copy = rnp.array(np.zeros(2))
    with pytest.raises(RlxError, match="cannot be changed"):
        copy[0] = 1.0
    source = np.zeros(2)
    made = rnp.array(source)
    source[0] = 5.0
    assert made.tolist() == [0, 0]


def test_grids_are_indexed_with_slices():
    np.testing.assert_array_equal(rnp.mgrid[0:2, 1:4], np.mgrid[0:2, 1:4])
    np.testing.assert_allclose(rnp.mgrid[0:1:5j], np.mgrid[0:1:5j])
    for found, wanted in zip(rnp.ogrid[0:2, 0:6:2], np.ogrid[0:2, 0:6:2], strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(OpError, match="indexed with slices"):
        rnp.mgrid[3]


def test_factorisations_rebuild_their_matrix():
    a = np.random.default_rng(5).normal(size=(4, 3)) + 1j * np.random.default_rng(6).normal(size=(4, 3))
    u, s, vh = rnp.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(u * s @ vh, a, atol=1e-12)
    q, r = rnp.linalg.qr(a)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    assert rnp.linalg.qr(a, mode="complete").Q.shape == (4, 4)
    np.testing.assert_allclose(np.abs(rnp.linalg.qr(a, mode="r")), np.abs(r), atol=1e-12)
    hermitian = a.conj().T @ a
    found = rnp.linalg.eigh(hermitian)
    np.testing.assert_allclose(hermitian @ found.eigenvectors, found.eigenvectors * found.eigenvalues, atol=1e-10)


def test_from_dlpack_and_buffers():
    assert rnp.from_dlpack(np.arange(3.0)).tolist() == [0, 1, 2]
    assert rnp.frombuffer(np.arange(3, dtype=np.int16).tobytes(), "int16", offset=2).tolist() == [1, 2]
    assert rnp.fromiter((i * i for i in range(3)), "float32").tolist() == [0, 1, 4]


def _refused(call):
    graph = Graph("refused")
    with building(graph):
        return call(graph.input("x", (3,), "f32"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: rnp.add(x, 1, out=np.zeros(3)), OpError, "add: out= is not supported"),
        (lambda x: rnp.sum(x, out=np.zeros(())), OpError, "write x = sum(...)"),
        (lambda x: rnp.nonzero(x), OpError, "depends on values; give `size`"),
        (lambda x: rnp.unique(x), OpError, "unique: the number of results depends on values; give size="),
        (lambda x: rnp.intersect1d(x, x), OpError, "intersect1d: the number of results depends on values"),
        (lambda x: rnp.bincount(rnp.astype(x, "int32")), OpError, "without length=, x decides the shape"),
        (lambda x: rnp.repeat(x, rnp.astype(x, "int32")), OpError, "repeat: repeats decides the shape"),
        (lambda x: rnp.arange(x), OpError, "arange: the stop decides the size"),
        (lambda x: rnp.sum(x, axis=2), ShapeError, "sum: axis 2 is out of range for rank 1"),
        (lambda x: rnp.sum(x, axis=(0, 0)), ShapeError, "name one axis twice"),
        (lambda x: rnp.max(rnp.zeros((0, 2)), axis=0), ShapeError, "max: nothing to choose from along axis 0"),
        (lambda x: rnp.max(x, where=x > 0), ShapeError, "initial= is needed"),
        (lambda x: rnp.reshape(x, (2, -1)), ShapeError, "does not divide"),
        (lambda x: rnp.where(x > 0, x), OpError, "give both x and y"),
        (lambda x: rnp.take(x, 0, mode="nearest"), OpError, "mode must be 'raise', 'clip', 'wrap'"),
        (lambda x: rnp.gcd(x, 2), DTypeError, "gcd: needs integers"),
        (lambda x: rnp.matrix_transpose(x), ShapeError, "two axes or more"),
        (lambda x: rnp.cross(rnp.ones(4), rnp.ones(4)), ShapeError, "2 or 3 components"),
        (lambda x: rnp.convolve(rnp.ones((2, 2)), x), ShapeError, "needs vectors"),
        (lambda x: rnp.convolve(x, x, "half"), OpError, "mode must be 'full', 'same' or 'valid'"),
        (lambda x: rnp.quantile(x, 0.5, method="best"), OpError, "method must be one of linear"),
        (lambda x: rnp.histogram(x, "auto"), OpError, "give a number"),
        (lambda x: rnp.meshgrid(x, x, indexing="yx"), OpError, "'xy' or 'ij'"),
        (lambda x: rnp.fft.rfft(x * 1j), DTypeError, "rfft: needs real numbers"),
        (lambda x: rnp.fft.fft(x, norm="unit"), OpError, "norm must be 'backward'"),
        (lambda x: rnp.concat([rnp.asarray(1.0), x]), ShapeError, "scalars have no axis"),
        (lambda x: rnp.concat([]), ShapeError, "at least one array"),
        (lambda x: rnp.zeros(3, device="cuda"), BackendError, "arrays are made on 'cpu'"),
        (lambda x: rnp.asarray([[1, 2], [3]]), OpError, "asarray"),
        (lambda x: rnp.asarray(["a"]), DTypeError, "not text"),
        (lambda x: rnp.put(x, 0, 1.0, inplace=True), OpError, "values are immutable"),
        (lambda x: rnp.split(x, 2), ShapeError, "does not divide into 2"),
        (lambda x: rnp.vsplit(x, 1), ShapeError, "two axes or more"),
        (lambda x: rnp.searchsorted(x, x, side="middle"), OpError, "'left' or 'right'"),
        (lambda x: rnp.linalg.eigh(rnp.eye(2), UPLO="X"), OpError, "UPLO must be 'L' or 'U'"),
        (lambda x: rnp.cumulative_sum(rnp.ones((2, 2))), ShapeError, "needs axis= for an array with 2 axes"),
        (lambda x: rnp.expand_dims(x, 5), ShapeError, "axis 5 is out of range"),
        (lambda x: rnp.unstack(rnp.ones(("S", 2))), ShapeError, "needs a fixed size, got the symbolic size S"),
    ],
)
def test_refusals_say_what_to_do(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _refused(call)
