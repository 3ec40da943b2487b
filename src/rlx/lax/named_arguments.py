"""Functions that programs written for JAX call with names of arguments, under the names that JAX has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.autodiff import vmap
from rlx.errors import OpError
from rlx.ir.dtype import DTypeLike
from rlx.ir.shape import Size
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.trace import control
from rlx.trace.pytree import tree_leaves, tree_map


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[Size]) -> Any:
    """The part of the given sizes from computed positions on, which are clipped so that it fits."""
    return ops.dynamic_slice(operand, start_indices, slice_sizes)


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: Size, axis: int = 0) -> Any:
    """A part of one axis from a computed position on."""
    return ops.dynamic_slice_in_dim(operand, start_index, slice_size, axis)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """One entry of an axis, at a computed position."""
    return ops.dynamic_index_in_dim(operand, index, axis, keepdims)


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """operand with `update` written at computed positions."""
    return ops.dynamic_update_slice(operand, update, start_indices)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """operand with `update` written at a computed position of one axis."""
    return ops.dynamic_update_slice_in_dim(operand, update, start_index, axis)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """operand with one entry of an axis replaced."""
    return ops.dynamic_update_index_in_dim(operand, update, index, axis)


def broadcast_in_dim(operand: Any, shape: Sequence[Size], broadcast_dimensions: Sequence[int]) -> Any:
    """operand in a larger shape; its axis i becomes axis broadcast_dimensions[i]."""
    return ops.broadcast_in_dim(operand, shape, broadcast_dimensions)


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """array with new axes of size 1 at these places."""
    return ops.expand_dims(array, dimensions)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """array without these axes of size 1."""
    return ops.squeeze(array, dimensions)


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """The axes in another order."""
    return ops.transpose(operand, permutation)


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The k largest along an axis, in descending order, and their positions."""
    return ops.top_k(operand, k, axis)


def full_like(x: Any, fill_value: Any, dtype: DTypeLike | None = None, shape: Sequence[Size] | None = None) -> Any:
    """fill_value in the shape and dtype of x, unless others are given."""
    if shape is None:
        return ops.full_like(x, fill_value, dtype)
    return ops.full(shape, fill_value, dtype_of(x) if dtype is None else dtype)


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of every row of the leading axis of the tree xs; `batch_size` rows at once, by `vmap`, where given."""
    if batch_size is None:
        return control.map(f, xs)
    count = dims_of(tree_leaves(xs)[0])[0]
    if not isinstance(count, int) or batch_size < 1:
        raise OpError(
            f"map: batch_size needs a known number of rows and must be 1 or more, got {batch_size} of {count}"
        )
    whole = count - count % batch_size
    rows = vmap(f)
    parts = []
    if whole:
        batches = tree_map(lambda x: ops.reshape(x[:whole], (-1, batch_size, *dims_of(x)[1:])), xs)
        parts.append(tree_map(lambda y: ops.reshape(y, (whole, *dims_of(y)[2:])), control.map(rows, batches)))
    if whole < count:
        parts.append(rows(tree_map(lambda x: x[whole:], xs)))
    return parts[0] if len(parts) == 1 else tree_map(lambda *ys: ops.concat(ys, 0), *parts)
