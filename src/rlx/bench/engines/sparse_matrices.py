"""Products with sparse matrices and a solve by conjugate gradients in double precision: rlx, and SciPy.

A solve counts from the entries of the matrix on: its incomplete factor is part of it. Engines are then compared by
whether they reach the residual.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes
from rlx.bench.sparse_programs import COLUMNS, TOLERANCE, Csr, pattern, right_side

_KINDS = {"spmv": 1, "spmm": COLUMNS, "cg": 1, "cg gradient": 1}


def _is_solved(matrix: Csr, b: Array, x: Array) -> Array:
    """1 where the residual is what was asked for."""
    product = np.add.reduceat(matrix.values * x[matrix.indices], matrix.indptr[:-1])
    return np.array([float(np.linalg.norm(b - product) <= 1.01 * TOLERANCE * np.linalg.norm(b))])


class RlxSparse:
    _check: Callable[[Any], Array]

    def __init__(self, threads: int) -> None:
        import rlx
        from rlx.knobs import knobs

        knobs.set(threads=threads)
        self.version = rlx.__version__

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        import rlx
        import rlx.numpy as rnp

        what, kind = program.split(": ")
        matrix = pattern(kind, sizes["size"])
        a = rlx.sparse.csr(tuple(matrix), shape=(matrix.rows,) * 2)
        b = right_side(matrix, _KINDS[what])
        self._check = lambda result: np.asarray(result)
        if what in ("spmv", "spmm"):
            product = rlx.jit(lambda v, x: a.with_values(v) @ x)
            return lambda: product(a.values, b)

        def solution(v: Any, b: Any) -> Any:
            return rlx.sparse.cg(a.with_values(v), b, tol=TOLERANCE, maxiter=5000, preconditioner="ic0")[0]

        if what == "cg":
            solve = rlx.jit(solution)
            self._check = lambda x: _is_solved(matrix, b, np.asarray(x))
            return lambda: solve(a.values, b)
        both = rlx.jit(rlx.value_and_grad(lambda v: rnp.sum(solution(v, b) ** 2)))
        self._check = lambda result: np.array([float(np.isfinite(np.asarray(result[1])).all())])
        return lambda: both(a.values)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(self._check(result))


class SciPySparse:
    _check: Callable[[Any], Array]

    def __init__(self, threads: int) -> None:
        self._sparse: Any = importlib.import_module("scipy.sparse")
        self._solvers: Any = importlib.import_module("scipy.sparse.linalg")
        self.version = str(importlib.import_module("scipy").__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        what, kind = program.split(": ")
        if what == "cg gradient":
            raise NotImplementedError("there are no gradients")
        matrix = pattern(kind, sizes["size"])
        a = self._sparse.csr_array(tuple(matrix), shape=(matrix.rows,) * 2)
        b = right_side(matrix, _KINDS[what])
        self._check = lambda result: np.asarray(result)
        if what in ("spmv", "spmm"):
            return lambda: a @ b
        self._check = lambda x: _is_solved(matrix, b, x)
        columns = self._sparse.csc_array(a)

        def solve() -> Array:
            factor = self._solvers.spilu(columns, drop_tol=0, fill_factor=1)
            precondition = self._solvers.LinearOperator(a.shape, factor.solve)
            x, _ = self._solvers.cg(a, b, rtol=TOLERANCE, maxiter=5000, M=precondition)
            return np.asarray(x)

        return solve

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(self._check(result))
