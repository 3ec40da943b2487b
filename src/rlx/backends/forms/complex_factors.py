"""Factorisations of complex matrices: those of real ones, with what stands on the other side conjugated.

Real matrices have the forms of `rlx.compile.lower.factorizations`, which our own kernels share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlx.backends.forms.factor_steps import orthogonal_rows, reflected_basis, reflectors
from rlx.compile.lower.factorizations import FACTOR_FORMS
from rlx.ir.dims import dim_min
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.linalg.contraction import adjoint, conjugated, matmul
from rlx.ops.linalg.factorizations import Eigh, Qr, Svd, row_gather
from rlx.ops.lowered.factor_steps import OrthogonalRows, ReflectedBasis, Reflectors, RequireFactors
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.pointwise.arithmetic import and_, eq, maximum, where
from rlx.ops.pointwise.bits import isfinite
from rlx.ops.pointwise.complex_numbers import real
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_
from rlx.ops.reduction.reductions import reduce_all, reduce_max, reduce_sum
from rlx.ops.shape.creation import eye, tril, triu
from rlx.ops.shape.movement import concat, exceeds, expand_dims, narrow

Form = Callable[..., Any]


def _for_complex(kind: type[Op], build: Callable[[Any, Any], Any]) -> Callable[..., Form | None]:
    """The form of an op: `build` of the op and a complex matrix, that of others for a real one."""

    def form(op: Op, a: Any) -> Form | None:
        return (lambda a: build(op, a)) if a.dtype.is_complex else FACTOR_FORMS[kind](op, a)

    return form


def _basis(rows: Any, columns: Any) -> tuple[Any, Any]:
    """Q with so many columns, and R below which reflections are packed."""
    packed, scales = reflectors(Reflectors())(rows)
    return reflected_basis(ReflectedBasis(columns))(packed, scales), packed


def _in_order(rows: Any, order: Any) -> Any:
    return row_gather(order)(rows, expand_dims(order, -1))


def _qr(op: Any, a: Any) -> Any:
    rows, columns = a.shape[-2:]
    inner = rows if op.full_matrices else dim_min(rows, columns)
    q, packed = _basis(cast(a, DType.C128), inner)
    return cast(q, a.dtype), cast(triu(narrow(packed, -2, 0, inner)), a.dtype)


def _svd(op: Any, a: Any) -> Any:
    wide = cast(a, DType.C128)
    is_flat = exceeds(a.shape[-1], a.shape[-2])
    found = orthogonal_rows(OrthogonalRows())(wide if is_flat else adjoint(wide))
    rotated, rotation, lengths, is_found = found
    count = dim_min(*a.shape[-2:])
    order, _ = SortOrder(descending=True)(lengths)
    values = cast(narrow(_in_order(lengths, order), -1, 0, count), a.dtype.real)
    RequireFactors("svd")(is_found)
    if not op.compute_uv:
        return values
    kept = narrow(order, -1, 0, count)
    rotation = _in_order(rotation, order if op.full_matrices else kept)
    across = _directions(_in_order(rotated, kept), op.full_matrices)
    left, right = (rotation, across) if is_flat else (across, rotation)
    return cast(adjoint(left), a.dtype), values, cast(right, a.dtype)


def _directions(rows: Any, is_full: bool) -> Any:
    """Orthonormal rows along orthogonal ones, which may be 0; with `is_full`, and others to fill up the space."""
    count, size = rows.shape[-2:]
    basis, _ = _basis(adjoint(rows), size if is_full else count)
    every = adjoint(basis)
    along = narrow(every, -2, 0, count)
    share = reduce_sum(conjugated(along) * rows, -1, keepdims=True)
    length = abs_(share)
    phase = where(eq(length, 0.0), 1.0, share / where(eq(length, 0.0), 1.0, length))
    turned = along * phase
    return concat([turned, narrow(every, -2, count, size - count)], -2) if is_full else turned


def _eigh(op: Any, a: Any) -> Any:
    """A + c has the eigenvectors of A, and c is so large that none of its eigenvalues is negative."""
    wide = cast(a, DType.C128)
    below = tril(wide, -1) if op.lower else adjoint(triu(wide, 1))
    with same_graph(a):
        on_diagonal = eye(a.shape[-1], dtype=DType.BOOL)
    diagonal = where(on_diagonal, cast(real(wide), DType.C128), 0.0)
    whole = below + adjoint(below) + diagonal
    sizes = where(on_diagonal, -real(whole), abs_(whole))
    lowest = maximum(reduce_max(reduce_sum(sizes, -1, keepdims=True), -2, keepdims=True), 0.0)
    shifted = whole + where(on_diagonal, cast(lowest, DType.C128), 0.0)
    _, rotation, _, is_found = orthogonal_rows(OrthogonalRows())(shifted)
    # The imaginary parts of the diagonal are 0 for the result, but NaN there is NaN all the same.
    is_finite = reduce_all(isfinite(tril(wide) if op.lower else triu(wide)), (-2, -1))
    rotation = where(expand_dims(and_(is_found, is_finite), (-2, -1)), rotation, math.nan)
    values = reduce_sum(real(matmul(rotation, whole) * conjugated(rotation)), -1)
    order, _ = SortOrder()(values)
    vectors = adjoint(_in_order(rotation, order))
    return cast(_in_order(values, order), a.dtype.real), cast(vectors, a.dtype)


COMPLEX_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    Qr: _for_complex(Qr, _qr),
    Svd: _for_complex(Svd, _svd),
    Eigh: _for_complex(Eigh, _eigh),
}
