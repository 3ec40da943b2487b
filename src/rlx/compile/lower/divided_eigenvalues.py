"""Eigenvalues and vectors of large symmetric tridiagonal matrices by divide and conquer: almost all of the work is in
products of matrices.

The matrix is torn into small ones of equal size, which rotations make diagonal; then neighbours are put together, two
and two, until there is one. `rlx.ops.lowered.tridiagonal_merge` says how.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.lower.factorizations import in_order
from rlx.ir.dtype import DType
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import matmul
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.tridiagonal_merge import MergedPoles, MergeVectors, SecularRoots, SecularWeights
from rlx.ops.lowered.tridiagonal_steps import RotatedRows, TridiagonalRotations
from rlx.ops.pointwise.arithmetic import ge, where
from rlx.ops.pointwise.unary import abs_
from rlx.ops.reduction.reductions import reduce_all
from rlx.ops.shape.creation import eye
from rlx.ops.shape.movement import broadcast_to, concat, narrow, pad, pad_zeros, reshape, swapaxes

# Rows of a matrix that is not torn any more, at most.
LEAF = 32
# A matrix is filled up with eigenvalues that are larger than all of its own, and coupled to nothing.
OUTSIDE = 2.0**100


def divided_eigenvalues(diagonal: Any, beside: Any) -> tuple[Any, Any, Any]:
    """Of T with these elements on its diagonal [.., N] and beside it, whose last one is 0: the eigenvalues in ascending
    order, the vectors as columns, and whether they were found [..]."""
    *lead, size = diagonal.shape
    leaves = 1
    while -(-size // leaves) > LEAF:
        leaves *= 2
    leaf = -(-size // leaves)
    filled = leaves * leaf - size
    none = (0,) * len(lead)
    d = pad(diagonal, OUTSIDE, high=(*none, filled)) if filled else diagonal
    e = pad_zeros(beside, (*none, 0), (*none, filled)) if filled else beside
    values, vectors, is_found = _leaves(reshape(d, (*lead, leaves, leaf)), reshape(e, (*lead, leaves, leaf)))
    width = leaf
    while leaves > 1:
        leaves, width = leaves // 2, 2 * width
        coupling = narrow(reshape(e, (*lead, leaves, width)), -1, width // 2 - 1, 1)
        values, vectors = _merged(reshape(values, (*lead, leaves, width)), vectors, reshape(coupling, (*lead, leaves)))
    values, vectors = (reshape(x, (*lead, *x.shape[len(lead) + 1 :])) for x in (values, vectors))
    vectors = narrow(narrow(vectors, -2, 0, size), -1, 0, size)
    return narrow(values, -1, 0, size), vectors, reduce_all(is_found, -1)


def _leaves(d: Any, e: Any) -> tuple[Any, Any, Any]:
    """The small matrices, each without what couples it to its neighbours, and their eigenvalues and vectors."""
    *lead, leaves, leaf = d.shape
    none = (0,) * len(lead)
    coupling = abs_(narrow(e, -1, leaf - 1, 1))
    before = pad_zeros(narrow(coupling, -2, 0, leaves - 1), (*none, 1, 0), (*none, 0, 0)) if leaves > 1 else coupling
    first, last = narrow(d, -1, 0, 1) - before, narrow(d, -1, leaf - 1, 1) - coupling
    d = concat([first, narrow(d, -1, 1, leaf - 2), last], -1)
    e = pad_zeros(narrow(e, -1, 0, leaf - 1), (*none, 0, 0), (*none, 0, 1))
    scaled, rotations, sweeps, count, is_found, _ = TridiagonalRotations()(d, e)
    with same_graph(d):
        unit = broadcast_to(eye(leaf, dtype=DType.F64), (*lead, leaves, leaf, leaf))
    rows = RotatedRows()(unit, rotations, sweeps, count)
    order, _ = SortOrder()(scaled)
    return in_order(scaled, order), swapaxes(in_order(rows, order), -1, -2), is_found


def _merged(d: Any, vectors: Any, coupling: Any) -> tuple[Any, Any]:
    """From eigenvalues of halves [.., P, M], and vectors [.., 2P, M/2, M/2], to those of the whole."""
    *lead, pairs, width = d.shape
    half = width // 2
    apart = reshape(vectors, (*lead, pairs, 2, half, half))
    last = narrow(narrow(apart, -3, 0, 1), -2, half - 1, 1)
    first = narrow(narrow(apart, -3, 1, 1), -2, 0, 1)
    last, first = (reshape(row, (*lead, pairs, half)) for row in (last, first))
    sign = reshape(where(ge(coupling, 0.0), 1.0, -1.0), (*lead, pairs, 1))
    rho, z = abs_(coupling), concat([last, first * sign], -1)
    poles, weights, places, counts, turns = MergedPoles()(d, z, rho)
    bases, shifts, unsorted = SecularRoots()(poles, weights, rho, counts)
    order, _ = SortOrder()(unsorted)
    exact = SecularWeights()(poles, weights, bases, shifts, counts)
    merge = MergeVectors()(poles, exact, bases, shifts, places, counts, turns, order)
    product = matmul(vectors, reshape(merge, (*lead, 2 * pairs, half, width)))
    return in_order(unsorted, order), reshape(product, (*lead, pairs, width, width))
