"""The kernels of sparse ops: native on every sample, equal to the definition, the same for any number of threads, and
safe whatever the indices are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import rlx.sparse  # noqa: F401  (registers ops and kernels)
from backends.op_kernel_checks import Program
from rlx.ir.op import OP_CLASSES

# Ops that run on the host, by their definition.
HOST = {"CsrDirectSolve": "LU needs pivots: SuperLU, or our own elimination, in NumPy"}
OPS = [n for n, c in OP_CLASSES.items() if c.__module__.startswith("rlx.sparse") and n not in HOST]
SAMPLES = [
    pytest.param(sample, dtype, id=f"{name}-{index}-{dtype}")
    for name in OPS
    if OP_CLASSES[name].primitive or name == "BsrMatMul"
    for index, sample in enumerate(OP_CLASSES[name].samples())
    for dtype in sample.dtypes
]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def assert_near(got, wanted):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if wanted.dtype.kind in "fc":
        tolerance = 256 * np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("sample, dtype", SAMPLES)
def test_kernels_compute_the_definition(sample, dtype):
    program = Program(lambda *xs: sample.op(*xs), *((s.dims, str(s.dtype)) for s in sample.shapes(dtype)))
    arrays = sample.arrays(dtype)
    bound = sample.op.bind(sample.binding)
    wanted = as_tuple(bound.eval(*arrays))
    # The interpreter sees complex buffers as their parts, which the helper does not take apart.
    interpreted = [program.interpreted(*arrays)] if dtype in ("f32", "f64") else []
    for got in (program(*arrays), *interpreted):
        for a, b in zip(got, wanted, strict=True):
            assert_near(np.asarray(a), b)


def matmul_program(dims, dtype="f64", index="i32"):
    from rlx.sparse.ops_products import CsrMatMul

    types = (("Z",), dtype), (("Z",), index), (("M",), index), (dims, dtype)
    return Program(lambda *xs: CsrMatMul()(*xs), *types, kinds=["sparse"])


@pytest.mark.parametrize("dims", [("N",), ("N", "K")])
def test_rows_of_very_different_lengths(dims):
    rng = np.random.default_rng(0)
    lengths = np.minimum((rng.pareto(0.6, 700) * 3).astype(int), 900)
    lengths[:50] = 0
    rows = np.repeat(np.arange(700), lengths)
    a = sp.csr_matrix((rng.normal(size=len(rows)), (rows, rng.integers(0, 1000, len(rows)))), (700, 1000))
    a.sum_duplicates()
    x = rng.normal(size=(1000, 21)[: len(dims)])
    [y] = matmul_program(dims)(a.data, a.indices, a.indptr, x)
    np.testing.assert_allclose(y, a @ x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dims", [("N",), ("N", "K")])
def test_a_column_out_of_range_is_the_last(bad, dims):
    values, indices = np.array([1.0, 2.0, 3.0]), np.array([0, bad, 3], np.int32)
    indptr = np.array([0, 2, 3], np.int32)
    x = np.arange(1.0, 5.0) if len(dims) == 1 else np.arange(1.0, 5.0)[:, None] * np.ones(3)
    program = matmul_program(dims)
    for got in (program(values, indices, indptr, x), program.interpreted(values, indices, indptr, x)):
        np.testing.assert_array_equal(got[0], [9.0, 12.0] if len(dims) == 1 else [[9.0] * 3, [12.0] * 3])


BAD_PATTERNS = [
    ([0, 1, 3], [0, 100, 3]),
    ([0, 1, 3], [-7, 2, 3]),
    ([0, 1, 3], [3, 0, 3]),
    ([0, 1, 3], [2**31 - 1] * 3),
    ([7, -1, 2**31 - 1], [0, 2, 3]),
    ([1, 1, 0], [0, 3, 3]),
]


@pytest.mark.parametrize("indices, indptr", BAD_PATTERNS, ids=str)
@pytest.mark.parametrize(
    "name", [n for n in OPS if OP_CLASSES[n].primitive and n not in ("CsrRowIds", "PanelCholesky")]
)
def test_wrong_patterns_read_and_write_nothing_that_is_not_there(name, indices, indptr):
    """The interpreter checks every access; all patterns of the op are wrong at once."""
    sample = next(iter(OP_CLASSES[name].samples()))
    roles = [i for i, s in enumerate(sample.operands) if s.dtype == "i32"]
    rows = len(indptr) - 1
    dims = [(len(s.values),) if s.values is not None else s.dims for s in sample.operands]
    arrays = []
    for i in range(len(sample.operands)):
        if i in roles:
            arrays.append(np.array(indices if (roles.index(i) % 2 == 0) else indptr, np.int32))
        elif i + 1 in roles and roles.index(i + 1) % 2 == 0:
            arrays.append(np.ones(len(indices)))
        else:
            arrays.append(np.ones((rows, *dims[i][1:])))
    op = sample.op.replace(columns=rows) if "columns" in sample.op.attributes else sample.op
    program = Program(lambda *xs: op(*xs), *((a.shape, "i32" if a.dtype == np.int32 else "f64") for a in arrays))
    program.interpreted(*arrays)


def test_nan_and_inf_stay_in_their_rows():
    a = sp.csr_matrix(np.array([[1.0, np.nan, 0], [0, 0, np.inf], [0, 0, 0], [2.0, 0, 3.0]]))
    x = np.array([1.0, 2.0, 0.0])
    [y] = matmul_program(("N",))(a.data, a.indices, a.indptr, x)
    np.testing.assert_array_equal(y, [np.nan, np.nan, 0.0, 2.0])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_pivots_are_sums(lower, transpose):
    """Of entries that stand on the diagonal twice, and of zeros: a sum begins at 0, which has no sign to keep."""
    from rlx.sparse.ops_triangular import CsrTriangularSolve

    op = CsrTriangularSolve(lower=lower, transpose=transpose, unit_diagonal=False)
    program = Program(lambda *xs: op(*xs), ((5,), "f64"), ((5,), "i32"), ((3,), "i32"), ((2,), "f64"), kinds=["sparse"])
    indices, indptr = ([0, 0, 0, 1, 1], [0, 2, 5]) if lower else ([0, 0, 1, 1, 1], [0, 3, 5])
    pattern, b = (np.array(indices, "i4"), np.array(indptr, "i4")), np.array([6.0, 12.0])
    values = np.array([1.0, 2.0, 4.0, 1.0, 3.0])
    dense = sp.csr_matrix((values, *pattern), (2, 2)).toarray()
    assert_near(program(values, *pattern, b)[0], np.linalg.solve(dense.T if transpose else dense, b))
    [got] = program(np.array([-0.0, -0.0, 0.0, -0.0, -0.0]), *pattern, b)
    assert np.isposinf(got[0 if lower != transpose else 1])


def test_infinite_complex_pivots():
    """A finite number by an infinite one is 0, as NumPy has it, and not NaN."""
    from rlx.sparse.ops_triangular import CsrTriangularSolve

    types = ((3,), "c128"), ((3,), "i32"), ((4,), "i32"), ((3,), "c128")
    program = Program(lambda *xs: CsrTriangularSolve(True, False, False)(*xs), *types, kinds=["sparse"])
    pivots = np.array([complex(np.inf, 2.0), complex(1.0, -np.inf), complex(2.0, 2.0)])
    [got] = program(pivots, np.arange(3, dtype="i4"), np.arange(4, dtype="i4"), np.full(3, 4.0 + 4.0j))
    np.testing.assert_allclose(got, [0.0, 0.0, 2.0])
