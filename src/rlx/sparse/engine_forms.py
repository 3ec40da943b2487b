"""Products with sparse matrices as gathers and sums by row, for engines: targets that have no kernels of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.backends.engine import OP_FORMS
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.define.rules import zeros_of
from rlx.ops.pointwise.arithmetic import ge, lt, maximum, minimum, or_, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.reduction.sort import Sort, searchsorted
from rlx.ops.shape.axis_indexing import ScatterAdd, gather
from rlx.ops.shape.creation import iota
from rlx.ops.shape.movement import reshaped
from rlx.sparse.ops_masked import CsrTranspose
from rlx.sparse.ops_products import CsrMatMul, CsrRowIds, CsrSampledProduct, CsrTransposedMatMul

Form = Callable[..., Any]


def _rows(indptr: Any, count: int) -> Any:
    """The row of each entry: how many rows have begun, without the one that it is in."""
    with same_graph(indptr):
        bounds = maximum(minimum(indptr, count), 0)
        begun = searchsorted(bounds, iota((count,), indptr.dtype), right=True)
    return cast(begun, indptr.dtype) - 1


def _in_range(indices: Any, size: int) -> Any:
    return where(or_(lt(indices, 0), ge(indices, size)), size - 1, indices)


def _doubled(x: Any) -> Any:
    return cast(x, DType.C128 if x.dtype.is_complex else DType.F64)


def _terms(values: Any, places: Any, x: Any) -> Any:
    """values[k]·x[places[k]], rounded as the operands are, in double precision for the sum."""
    column = reshaped(values, (*values.shape, *(1,) * (x.ndim - 1)))
    return _doubled(column * gather(x, places, 0, "clip"))


def _matmul(op: Op, *operands: Any) -> Form:
    def build(values: Any, indices: Any, indptr: Any, x: Any) -> Any:
        rows, columns, count = int(indptr.shape[0]) - 1, int(x.shape[0]), int(values.shape[0])
        if not columns or not count:
            return zeros_of(x.type.with_dims((rows, *x.shape[1:])), x)
        terms = _terms(values, _in_range(indices, columns), x)
        return cast(ScatterAdd(rows, "drop")(terms, _rows(indptr, count)), x.dtype)

    return build


def _transposed_matmul(op: Op, *operands: Any) -> Form:
    assert isinstance(op, CsrTransposedMatMul)

    def build(values: Any, indices: Any, indptr: Any, x: Any) -> Any:
        columns, count = int(op.columns), int(values.shape[0])
        if not columns or not count or not int(x.shape[0]):
            return zeros_of(x.type.with_dims((columns, *x.shape[1:])), x)
        terms = _terms(values, _rows(indptr, count), x)
        return cast(ScatterAdd(columns, "drop")(terms, _in_range(indices, columns)), x.dtype)

    return build


def _sampled_product(op: Op, *operands: Any) -> Form:
    def build(indices: Any, indptr: Any, u: Any, v: Any) -> Any:
        count = int(indices.shape[0])
        if not count or not int(u.shape[0]) or not int(v.shape[0]):
            return zeros_of(u.type.with_dims((count,)), u)
        left = gather(_doubled(u), _rows(indptr, count), 0, "clip")
        terms = left * gather(_doubled(v), _in_range(indices, int(v.shape[0])), 0, "clip")
        return cast(reduce_sum(terms, tuple(range(1, terms.ndim))), u.dtype)

    return build


def _transpose(op: Op, *operands: Any) -> Form:
    """Entries in the order of their columns; those of one column stay in the order of their rows."""
    assert isinstance(op, CsrTranspose)

    def build(values: Any, indices: Any, indptr: Any) -> Any:
        columns, count = int(op.columns), int(values.shape[0])
        with same_graph(values):
            ends = iota((columns + 1,), indices.dtype)
            if not count:
                return values, indices, zeros_of(indptr.type.with_dims((columns + 1,)), indptr)
            places = _in_range(indices, columns)
            sorted_places, order = Sort(0)(places, iota((count,), DType.I32))
            bounds = cast(searchsorted(sorted_places, ends), indptr.dtype)
        rows = gather(cast(_rows(indptr, count), indices.dtype), order, 0, "clip")
        return gather(values, order, 0, "clip"), rows, bounds

    return build


def _row_ids(op: Op, *operands: Any) -> Form:
    assert isinstance(op, CsrRowIds)
    return lambda indptr: _rows(indptr, int(op.count))


OP_FORMS.update(
    {
        CsrMatMul: _matmul,
        CsrTransposedMatMul: _transposed_matmul,
        CsrSampledProduct: _sampled_product,
        CsrRowIds: _row_ids,
        CsrTranspose: _transpose,
    }
)
