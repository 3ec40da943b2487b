"""`SortOrder`: in which order elements come, without moving them. What compilers make of a sort of several operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import same_graph
from rlx.ops.define.rules import put_batch_first
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.reduction.sort import Sort
from rlx.ops.shape.creation import iota

__all__ = ["SortOrder"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("sort_order")
class SortOrder(Op):
    """Two i32 results: the positions that sort the operands along the last axis, and the rank of every element.

    order[.., i] is where the element that comes i-th stands; rank is the inverse, rank[.., order[.., i]] = i. The order
    is that of `Sort`: later operands decide between equals of the earlier ones, full equals keep their order, and NaN
    comes last either way.
    """

    lowered = True
    descending: bool = False

    def infer(self, first: Shape, *others: Shape) -> tuple[Shape, Shape]:
        Sort(-1, 1 + len(others), self.descending).infer(first, *others)
        positions = first.with_dtype(DType.I32)
        return positions, positions

    def eval(self, *operands: Array) -> tuple[Array, Array]:
        positions = np.broadcast_to(np.arange(operands[0].shape[-1], dtype=np.int32), operands[0].shape)
        results = Sort(-1, len(operands), self.descending).eval(*operands, positions)
        order = results[-1]
        rank = np.empty_like(order)
        np.put_along_axis(rank, order.astype(np.int64), positions, axis=-1)
        return order, rank

    def decompose(self, *operands: Any) -> Any:
        with same_graph(*operands):
            positions = iota(operands[0].shape, DType.I32, -1)
        order = Sort(-1, len(operands), self.descending)(*operands, positions)[-1]
        return order, Sort(-1, 1)(order, positions)[1]

    jvp = vjp = NoRule("its results are positions")

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return self(*(put_batch_first(x, b, size) for x, b in zip(operands, batched)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ties = spec(7, values=[3, 1, 2, 3, 1, 0, 2])
        for descending in (False, True):
            yield sample(cls(descending), spec(2, 3, 4), dtypes=(*FLOATS, *INTS, "bool"))
            yield sample(cls(descending), ties, spec(7, values=[1, 5, 0, 1, 4, 2, 9]), dtypes=(*FLOATS, "i32"))
            yield sample(cls(descending), spec(6, values=[1.0, np.nan, -np.inf, 0.0, -0.0, np.inf]))
        yield sample(cls(), spec(0, 3))
        yield sample(cls(), spec(3, 0))
        yield sample(cls(), spec("B", "S"), spec("B", "S", dtype="i32"), B=2, S=130)
