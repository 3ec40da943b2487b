"""Dense linear algebra in double precision: rlx, LAPACK through SciPy, and NumPy's loop for small matrices.

Factors are unique up to signs, so what engines are compared by are sizes: of diagonals, eigenvalues, singular values.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes

COLUMNS = 8


def operands_of(program: str, sizes: Sizes) -> tuple[Array, Array]:
    """Matrices that suit a program, and right sides."""
    rng = np.random.default_rng(7)
    dims = (*((sizes["count"],) if "count" in sizes else ()), sizes["size"])
    a, b = rng.normal(size=(*dims, sizes["size"])), rng.normal(size=(*dims, COLUMNS if len(dims) == 1 else 1))
    if program in ("cholesky", "eigh"):
        a = a @ np.swapaxes(a, -1, -2) + np.eye(sizes["size"])
    return a, b


def _sizes_of(program: str, result: Any) -> Array:
    """What does not depend on signs: R is the second factor of qr, singular values the second result of svd."""
    which = {"qr": 1, "svd": 1, "eigh": 0}
    values = np.asarray(result[which[program]] if program in which else result)
    return np.abs(np.diagonal(values, axis1=-2, axis2=-1) if program in ("qr", "lu", "cholesky") else values)


class _Matrices(ABC):
    """An engine by what it calls for each program."""

    version: str

    @abstractmethod
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Program -> what the engine has for it."""

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        a, b = operands_of(program, sizes)
        self._program = program
        call = self.functions().get(program)
        if call is None:
            raise NotImplementedError(f"there is no {program}")
        return (lambda: call(a, b)) if program == "solve" else (lambda: call(a))

    def as_numpy(self, result: Any) -> Array:
        return _sizes_of(self._program, result)


class RlxMatrices(_Matrices):
    def __init__(self, threads: int) -> None:
        import rlx
        from rlx.knobs import knobs

        knobs.set(threads=threads)
        self.version = rlx.__version__

    def functions(self) -> dict[str, Callable[..., Any]]:
        import rlx
        from rlx import ops

        return {
            "cholesky": rlx.jit(ops.cholesky),
            "solve": rlx.jit(ops.solve),
            "lu": rlx.jit(lambda a: ops.lu(a)[0]),
            "qr": rlx.jit(lambda a: ops.qr(a)),
            "eigh": rlx.jit(lambda a: ops.eigh(a)),
            "svd": rlx.jit(lambda a: ops.svd(a)),
        }


class SciPyMatrices(_Matrices):
    """LAPACK, one matrix at a time."""

    def __init__(self, threads: int) -> None:
        self._library: Any = importlib.import_module("scipy.linalg")
        self.version = str(importlib.import_module("scipy").__version__)

    def functions(self) -> dict[str, Callable[..., Any]]:
        linalg = self._library
        return {
            "cholesky": lambda a: linalg.cholesky(a, lower=True),
            "solve": linalg.solve,
            "lu": lambda a: linalg.lu_factor(a)[0],
            "qr": lambda a: linalg.qr(a, mode="economic"),
            "eigh": linalg.eigh,
            "svd": lambda a: linalg.svd(a, full_matrices=False),
        }


class NumPyMatrices(_Matrices):
    """numpy.linalg, which goes through a batch in a loop of its own."""

    def __init__(self, threads: int) -> None:
        self.version = np.__version__

    def functions(self) -> dict[str, Callable[..., Any]]:
        linalg = np.linalg
        return {
            "cholesky": linalg.cholesky,
            "solve": linalg.solve,
            "qr": linalg.qr,
            "eigh": linalg.eigh,
            "svd": lambda a: linalg.svd(a, full_matrices=False),
        }
