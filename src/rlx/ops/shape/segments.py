"""Rows taken together by the number of their segment: `segment_sum`, `segment_prod`, `segment_max`, `segment_min`.

    segment_sum(messages, receivers, num_segments=8)

They are the functions of `jax.ops`: rows whose number is negative or too large do not count, and a segment without rows
holds 0, 1, or the lowest or highest number of its dtype. The ids need no order, whatever `indices_are_sorted` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, dtype_of, same_graph
from rlx.ops.pointwise.arithmetic import lt, where
from rlx.ops.reduction.reductions import ReduceOp, identity_of
from rlx.ops.shape.creation import full
from rlx.ops.shape.indexing import ScatterKind, scatter_nd
from rlx.ops.shape.movement import expand_dims

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: Size | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | None = None,
) -> Any:
    """The sums of the rows of each segment.

    >>> print(segment_sum(np.array([1, 2, 3, 4]), np.array([0, 2, 0, 1]), 4))
    [4 4 2 0]
    """
    return _segments(ReduceOp.Sum, ScatterKind.Add, data, segment_ids, num_segments, mode)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: Size | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | None = None,
) -> Any:
    """The products of the rows of each segment."""
    return _segments(ReduceOp.Prod, ScatterKind.Mul, data, segment_ids, num_segments, mode)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: Size | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | None = None,
) -> Any:
    """The largest elements of the rows of each segment."""
    return _segments(ReduceOp.Max, ScatterKind.Max, data, segment_ids, num_segments, mode)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: Size | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | None = None,
) -> Any:
    """The smallest elements of the rows of each segment."""
    return _segments(ReduceOp.Min, ScatterKind.Min, data, segment_ids, num_segments, mode)


def _segments(reduction: ReduceOp, kind: ScatterKind, data: Any, ids: Any, count: Size | None, mode: str | None) -> Any:
    name, rows = f"segment_{reduction.value}", dims_of(data)
    if len(dims_of(ids)) != 1 or not rows or not dtype_of(ids).is_int:
        raise ShapeError(
            f"{name}: needs one integer for each row of data, got ids of {dtype_of(ids)}{list(dims_of(ids))} "
            f"for data of shape {list(rows)}"
        )
    if count is None:
        if isinstance(ids, Tensor):
            raise OpError(f"{name}: inside a program the size of the result must be known; give num_segments=")
        count = int(np.max(np.asarray(ids).astype(np.int64), initial=-1)) + 1
    with same_graph(data, ids):
        empty = full((count, *rows[1:]), identity_of(reduction, dtype_of(data)), dtype_of(data))
        # Negative ids count from the end elsewhere; here they are out of range like those that are too large.
        wide = convert(ids, DType.I64 if dtype_of(ids).size_bytes > 4 or dtype_of(ids) is DType.U32 else DType.I32)
        places = expand_dims(where(lt(wide, 0), count, wide), -1)
        return scatter_nd(empty, places, data, kind, mode="clip" if mode == "clip" else "drop")
