"""Reading and writing along one axis: whole rows by their ids, as lookups of embeddings and their gradients do.

The general forms, for points with several coordinates, and what ids mean are in `indexing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, Size, gather_shape, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import same_graph
from rlx.ops.define.samples import FLOATS, Sample, sample, spec
from rlx.ops.shape.creation import zeros
from rlx.ops.shape.indexing import (
    READ_MODES,
    READ_WHERE_WRITTEN,
    WRITE_MODES,
    WRITE_WHERE_READ,
    GatherNd,
    IndexMode,
    ScatterKind,
    ScatterNd,
    require_ids,
    require_mode,
    require_sums,
    resolve_ids,
    scattered,
)
from rlx.ops.shape.movement import expand_dims, moveaxis, reshaped

__all__ = ["Gather", "GatherBackward", "ScatterAdd", "gather", "gather_backward", "scatter_add"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("gather")
class Gather(Op):
    """NumPy's take: y[a.., i.., b..] = table[a.., idx[i..], b..], the ids in place of `axis`."""

    precision_class = "data_movement"

    linear_in = (0,)

    axis: int
    mode: IndexMode = IndexMode.Checked

    def check(self) -> None:
        require_mode(self, self.mode, READ_MODES)

    def infer(self, table: Shape, idx: Shape) -> Shape:
        require_ids(self, idx)
        return gather_shape(table, idx, self.axis)

    def index_operands(self, table: Shape, idx: Shape) -> dict[int, Dims]:
        return {1: (table.dims[self.axis],)} if self.mode is IndexMode.Checked else {}

    def eval(self, table: Array, idx: Array) -> Array:
        axis = normalize_axis(self.axis, table.ndim, "gather")
        positions, valid = resolve_ids(idx, table.shape[axis])
        dims = (*table.shape[:axis], *idx.shape, *table.shape[axis + 1 :])
        if table.shape[axis] == 0:
            return np.zeros(dims, table.dtype)
        result = np.take(table, positions, axis).reshape(dims)
        if self.mode is not IndexMode.Fill:
            return result
        kept = valid.reshape((*idx.shape, *(1,) * (table.ndim - axis - 1)))
        return np.where(kept, result, np.zeros((), table.dtype))

    def decompose(self, table: Tensor, idx: Tensor) -> Any:
        axis = normalize_axis(self.axis, table.ndim, "gather")
        rows = GatherNd((axis,), mode=self.mode)(table, expand_dims(idx, -1))
        return moveaxis(rows, range(idx.ndim), range(axis, axis + idx.ndim))

    def vjp(self, ct: Tensor, y: Tensor | None, table: Tensor, idx: Tensor) -> Any:
        axis = normalize_axis(self.axis, table.ndim, "gather")
        if axis == 0:
            return ScatterAdd(table.shape[0], WRITE_WHERE_READ[self.mode])(ct, idx), None
        return GatherBackward(axis, table.shape, self.mode)(ct, idx), None

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        table, idx = operands
        axis = normalize_axis(self.axis, table.ndim - batched[0], "gather")
        if not batched[1]:
            return Gather(axis + 1, self.mode)(table, idx)
        if not batched[0]:
            return moveaxis(Gather(axis, self.mode)(table, idx), axis, 0)
        ids = idx.ndim - 1
        rows = GatherNd((axis + 1,), 1, self.mode)(table, expand_dims(idx, -1))
        return moveaxis(rows, range(1, ids + 1), range(axis + 1, axis + 1 + ids))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = spec(2, 3, dtype="i32", low=0, high=4)
        yield sample(cls(0), spec(5, 4), ids, dtypes=(*FLOATS, "i32", "bool", "c64"))
        yield sample(cls(1), spec(2, 5, 3), ids)
        yield sample(cls(-1), spec(3, 5), spec(4, dtype="i64", values=[0, -1, 4, -5]))
        yield sample(cls(0), spec(5), spec(dtype="i32", values=3))
        yield sample(cls(0, "clip"), spec(5, 2), spec(4, dtype="i8", values=[0, 9, -9, 4]))
        yield sample(cls(1, "fill"), spec(2, 5, 3), spec(2, 2, dtype="i32", values=[[0, 9], [-6, 4]]))
        yield sample(cls(0), spec(5, 2), spec(3, dtype="f32", values=[0.0, 3.9, -1.5]))
        yield sample(cls(0), spec(3, 2), spec(0, dtype="i32"))
        yield sample(cls(0, "fill"), spec(0, 2), spec(3, dtype="i32", low=0, high=3))
        yield sample(cls(0), spec("V", 4), spec("B", "S", dtype="i32", low=0, high=3), V=4, B=2, S=3)


@op("gather_backward")
class GatherBackward(Op):
    """The gradient of `Gather` for its table: d_table[a.., idx[i..], b..] += dy[a.., i.., b..], from 0.

    Ids that read a clipped place write there too; ids that read a fill value write nothing.
    """

    precision_class = "data_movement"

    linear_in = (0,)

    axis: int
    table_shape: Dims
    mode: IndexMode = IndexMode.Checked

    def check(self) -> None:
        require_mode(self, self.mode, READ_MODES)

    def infer(self, dy: Shape, idx: Shape) -> Shape:
        table = dy.with_dims(self.table_shape)
        wanted = Gather(self.axis, self.mode).infer(table, idx)
        if wanted.rank != dy.rank or not all(require_equal(a, b, self.name) for a, b in zip(wanted.dims, dy.dims)):
            raise self.fail(f"dy must be {wanted} for a table {table} and idx {idx}, got {dy}")
        require_sums(self, dy)
        return table

    def index_operands(self, dy: Shape, idx: Shape) -> dict[int, Dims]:
        return {1: (self.table_shape[self.axis],)} if self.mode is IndexMode.Checked else {}

    def eval(self, dy: Array, idx: Array) -> Array:
        axis = normalize_axis(self.axis, len(self.table_shape), self.name)
        table = np.zeros(Shape(self.table_shape).static_dims, dy.dtype)
        positions, valid = resolve_ids(idx, table.shape[axis])
        rows = np.moveaxis(dy, range(axis, axis + idx.ndim), range(idx.ndim))
        if self.mode is IndexMode.Fill:
            positions, rows = positions[valid], rows[valid]
        if table.size == 0:
            return table
        summed = scattered(ScatterKind.Add, np.moveaxis(table, axis, 0), (positions,), rows)
        return np.moveaxis(summed, 0, axis)

    def decompose(self, dy: Tensor, idx: Tensor) -> Any:
        axis = normalize_axis(self.axis, len(self.table_shape), self.name)
        rows = moveaxis(dy, range(axis, axis + idx.ndim), range(idx.ndim))
        with same_graph(dy):
            table = zeros(self.table_shape, dy.dtype)
        return ScatterNd(ScatterKind.Add, (axis,), mode=WRITE_WHERE_READ[self.mode])(table, expand_dims(idx, -1), rows)

    def vjp(self, ct: Tensor, y: Tensor, dy: Tensor, idx: Tensor) -> Any:
        return reshaped(Gather(self.axis, self.mode)(ct, idx), dy.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = spec(2, 3, dtype="i32", low=0, high=4)
        yield sample(cls(0, (5, 2)), spec(2, 3, 2), ids, dtypes=(*FLOATS, "i32"))
        yield sample(cls(1, (2, 5, 3)), spec(2, 2, 3, 3), ids)
        yield sample(cls(-1, (2, 4), "clip"), spec(2, 3), spec(3, dtype="i32", values=[0, 9, -9]))
        yield sample(cls(0, (4,), "fill"), spec(3), spec(3, dtype="f32", values=[1.5, 9, -9]))
        yield sample(cls(0, (3, 2)), spec(0, 2), spec(0, dtype="i32"))
        yield sample(cls(0, ("V", 4)), spec("B", 4), spec("B", dtype="i32", low=0, high=2), V=3, B=2)


@op("scatter_add")
class ScatterAdd(Op):
    """y[idx[i..]] += updates[i.., t..] in order, from 0; y is [rows, t..] and updates are idx.dims + t.."""

    precision_class = "data_movement"

    linear_in = (0,)

    rows: Size
    mode: IndexMode = IndexMode.Checked

    def check(self) -> None:
        require_mode(self, self.mode, WRITE_MODES)

    def infer(self, updates: Shape, idx: Shape) -> Shape:
        require_ids(self, idx)
        require_sums(self, updates)
        if updates.rank < idx.rank or not all(require_equal(a, b, self.name) for a, b in zip(updates.dims, idx.dims)):
            raise self.fail(f"updates must start with the dims of idx, got {updates} and {idx}")
        return updates.with_dims((self.rows, *updates.dims[idx.rank :]))

    def index_operands(self, updates: Shape, idx: Shape) -> dict[int, Dims]:
        return {1: (self.rows,)} if self.mode is IndexMode.Checked else {}

    def eval(self, updates: Array, idx: Array) -> Array:
        result = np.zeros((*Shape((self.rows,)).static_dims, *updates.shape[idx.ndim :]), updates.dtype)
        positions, valid = resolve_ids(idx, result.shape[0])
        if self.mode is not IndexMode.Clip or result.shape[0] == 0:
            positions, updates = positions[valid], updates[valid]
        return scattered(ScatterKind.Add, result, (positions,), updates)

    def decompose(self, updates: Tensor, idx: Tensor) -> Any:
        with same_graph(updates):
            table = zeros((self.rows, *updates.shape[idx.ndim :]), updates.dtype)
        return ScatterNd(ScatterKind.Add, (0,), mode=self.mode)(table, expand_dims(idx, -1), updates)

    def vjp(self, ct: Tensor, y: Tensor, updates: Tensor, idx: Tensor) -> Any:
        return reshaped(Gather(0, READ_WHERE_WRITTEN[self.mode])(ct, idx), updates.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(4), spec(6, 3), spec(6, dtype="i32", low=0, high=3), dtypes=(*FLOATS, "i32", "c64"))
        yield sample(cls(4), spec(2, 3), spec(2, 3, dtype="f32", low=0, high=3.9))
        yield sample(cls(3, "drop"), spec(4, 2), spec(4, dtype="i32", values=[0, 3, -4, -1]))
        yield sample(cls(3, "clip"), spec(4, 2), spec(4, dtype="i64", values=[0, 3, -4, -1]))
        yield sample(cls(2), spec(0, 2), spec(0, dtype="i32"))
        yield sample(cls("R"), spec("U", 4), spec("U", dtype="i32", low=0, high=2), R=3, U=4)


def gather(table: Any, idx: Any, axis: int = 0, mode: IndexMode | str = IndexMode.Checked) -> Any:
    """Entries of `table` along `axis`, with the axes of `idx` in place of it; see `Gather`.

    >>> print(gather(np.array([10, 20, 30]), np.array([2, 0])))
    [30 10]
    """
    return Gather(axis, IndexMode(mode))(table, idx)


def scatter_add(updates: Any, idx: Any, rows: Size, mode: IndexMode | str = IndexMode.Checked) -> Any:
    """Rows of `updates` summed by id into `rows` rows; see `ScatterAdd`."""
    return ScatterAdd(rows, IndexMode(mode))(updates, idx)


def gather_backward(dy: Any, idx: Any, table_shape: Dims, axis: int, mode: IndexMode | str = IndexMode.Checked) -> Any:
    """The gradient of `gather` for its table; see `GatherBackward`."""
    return GatherBackward(axis, tuple(table_shape), IndexMode(mode))(dy, idx)
