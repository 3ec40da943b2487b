"""Forms of factorisations for matrices that are large and of a size that is known: the work is in products, or in loops
that all threads share. Part of the table of `kernel_forms`; small ones have the forms of `factorizations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.compile.lower.factorizations import FACTOR_FORMS, in_order, symmetric
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.linalg.factorizations import Eigh
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.lowered.tridiagonal_steps import RotatedRows, TridiagonalBasis, TridiagonalRotations, Tridiagonalized
from rlx.ops.pointwise.arithmetic import where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.shape.movement import expand_dims, swapaxes

Form = Callable[..., Any]

# From this size on it is faster to make a symmetric matrix tridiagonal first than to rotate all pairs of rows.
TRIDIAGONAL = 16


def _eigh(op: Op, a: Any) -> Form | None:
    """A = Q T Qᵀ; rotations make T diagonal, and Qᵀ the transposed eigenvectors. What could not be found is NaN."""
    assert isinstance(op, Eigh)
    size = a.shape[-1]
    if a.dtype.is_complex or not isinstance(size, int) or size < TRIDIAGONAL:
        return FACTOR_FORMS[Eigh](op, a)

    def build(a: Any) -> Any:
        packed, scales, diagonal, beside, unit, _ = Tridiagonalized()(symmetric(cast(a, DType.F64), op.lower))
        scaled, rotations, sweeps, count, is_found, _ = TridiagonalRotations()(diagonal, beside)
        rows = RotatedRows()(TridiagonalBasis()(packed, scales), rotations, sweeps, count)
        found = expand_dims(is_found, -1)
        values = where(found, scaled * expand_dims(unit, -1), math.nan)
        order, _ = SortOrder()(values)
        vectors = swapaxes(in_order(where(expand_dims(found, -1), rows, math.nan), order), -1, -2)
        return cast(in_order(values, order), a.dtype), cast(vectors, a.dtype)

    return build


LARGE_FORMS: dict[type[Op], Callable[..., Form | None]] = {Eigh: _eigh}
