"""Triangular systems as native kernels, against SciPy."""

import numpy as np
import pytest
from scipy.linalg import solve_triangular

import rlx
from rlx.ir.graph import Graph
from rlx.ops.linalg.solve import TriangularSolve


def solved(op, a, b, dtype):
    graph = Graph("triangular")
    graph.set_outputs([op(graph.input("a", a.shape, dtype), graph.input("b", b.shape, dtype))])
    program = rlx.Session("cpu").compile(graph)
    assert [k.kind for k in program._executable.lir.kernels] == ["solve"]
    return np.asarray(program.run(a=a, b=b)[0])


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("n, columns", [(1, 1), (5, 1), (13, 7), (40, 33), (3, 0)])
def test_triangular_systems(lower, transpose, unit, n, columns):
    rng = np.random.default_rng(n)
    # The other triangle is there, and must not be read.
    a = rng.normal(size=(2, n, n)) / n + 3 * np.eye(n)
    b = rng.normal(size=(2, n, columns))
    op = TriangularSolve(lower, transpose, unit)
    for dtype, numpy, rtol in (("f64", "f8", 1e-12), ("f32", "f4", 1e-5)):
        got = solved(op, a.astype(numpy), b.astype(numpy), dtype)
        for i in range(2 if columns else 0):
            wanted = solve_triangular(a[i], b[i], trans=int(transpose), lower=lower, unit_diagonal=unit)
            np.testing.assert_allclose(got[i], wanted, rtol=rtol, atol=rtol * np.abs(wanted).max())
