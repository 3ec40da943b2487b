"""Factorisations and triangular solves in blocks: most of their work is in products, which have the fastest kernels.

Sizes are fixed, and operands in double precision. What is left for the kernels of whole factorisations are blocks of a
size that the nearest caches hold.
"""

from __future__ import annotations

from typing import Any

from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import matmul
from rlx.ops.linalg.factorizations import Lu, row_gather
from rlx.ops.linalg.solve import TriangularSolve
from rlx.ops.lowered.factor_steps import CholeskyFactor, Reflectors
from rlx.ops.pointwise.arithmetic import ne, where
from rlx.ops.shape.creation import eye, tril, triu
from rlx.ops.shape.movement import broadcast_to, concat, expand_dims, narrow, pad_zeros, swapaxes

# Sizes of blocks that are not cut any more, and multiples of which are cut off.
CHOLESKY, LU, SOLVE, PANEL, STEP = 160, 160, 96, 96, 32


def _first_part(size: int) -> int:
    """Where to cut: near the middle, and so that products have whole vectors."""
    return -(-size // 2) // STEP * STEP


def _blocks(a: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """The four blocks of a square matrix of which the first is k wide."""
    size = a.shape[-1]
    upper, lower = narrow(a, -2, 0, k), narrow(a, -2, k, size - k)
    halves = (narrow(x, -1, at, count) for x in (upper, lower) for at, count in ((0, k), (k, size - k)))
    a11, a12, a21, a22 = halves
    return a11, a12, a21, a22


def _turned(a: Any) -> Any:
    return swapaxes(a, -1, -2)


def cholesky_factor(a: Any) -> Any:
    """L of [[A11, .], [A21, A22]]: L11, L21 = A21 L11⁻ᵀ, and L22 from A22 - L21 L21ᵀ."""
    size = a.shape[-1]
    if size <= CHOLESKY:
        return CholeskyFactor()(a)
    k = _first_part(size)
    a11, a12, a21, a22 = _blocks(a, k)
    l11 = cholesky_factor(a11)
    l21 = _turned(triangular_solve(TriangularSolve(), l11, _turned(a21)))
    l22 = cholesky_factor(a22 - matmul(l21, _turned(l21)))
    with same_graph(a):
        none = 0.0 * a12
    return concat([concat([l11, where(ne(none, none), 0.0, 0.0 * none)], -1), concat([l21, l22], -1)], -2)
