"""What compilers make of sorts. `SortOrder`: in which order elements come, without moving them; for several operands.
`SortedValues`: the elements in order, where nobody asks where they came from.
"""

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
from rlx.ops.shape.creation import iota, zeros_like

__all__ = ["InverseOrder", "SortOrder", "SortedValues"]

Array = np.ndarray[Any, np.dtype[Any]]

# Types of an even number of digits of eight bits.
VALUE_TYPES = frozenset(map(DType.of, ("i16", "u16", "f16", "bf16", "i32", "u32", "f32", "i64", "u64", "f64")))


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


@op("sorted_values")
class SortedValues(Op):
    """x in order along its last axis as `Sort` has it, NaN last either way, and as many zeros: kernels move elements
    to and fro between the two. Of zeros with and without sign any may come first."""

    lowered = True
    descending: bool = False

    def infer(self, x: Shape) -> tuple[Shape, Shape]:
        if x.dtype not in VALUE_TYPES:
            raise self.fail(f"needs numbers of 16, 32 or 64 bits, got {x}")
        Sort(-1, 1, self.descending).infer(x)
        return x, x

    def eval(self, x: Array) -> tuple[Array, Array]:
        values: Any = Sort(-1, 1, self.descending).eval(x)
        return values, np.zeros_like(x)

    def decompose(self, x: Any) -> Any:
        return Sort(-1, 1, self.descending)(x), zeros_like(x)

    jvp = vjp = NoRule("the compiler makes this op, after derivatives are taken; use sort")

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return self(*(put_batch_first(x, b, size) for x, b in zip(operands, batched)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for descending in (False, True):
            yield sample(cls(descending), spec(2, 3, 4), dtypes=("f32", "f64", "f16", "i32", "i64", "u16"))
            yield sample(cls(descending), spec(6, values=[1.0, np.nan, -np.inf, 0.0, 2.0, np.inf]))
        yield sample(cls(), spec(0, 3))
        yield sample(cls(), spec("B", "S"), B=2, S=130)


@op("inverse_order")
class InverseOrder(Op):
    """The rank of every element from the order of a row, both i32: rank[.., order[.., i]] = i."""

    lowered = True
    primitive = True
    jvp = vjp = batch = NoRule("the compiler makes this op, after derivatives and batches are taken; use argsort")

    def infer(self, order: Shape) -> Shape:
        if order.dtype is not DType.I32 or not order.dims:
            raise self.fail(f"needs positions along an axis, i32, got {order}")
        return order

    def eval(self, order: Array) -> Array:
        rank = np.zeros_like(order)
        positions = np.broadcast_to(np.arange(order.shape[-1], dtype=np.int32), order.shape)
        np.put_along_axis(rank, np.clip(order, 0, max(order.shape[-1] - 1, 0)).astype(np.int64), positions, axis=-1)
        return rank

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 4, values=[[3, 1, 0, 2], [0, 1, 2, 3]], dtype="i32"), dtypes=("i32",))
        yield sample(cls(), spec(0, dtype="i32"), dtypes=("i32",))
        yield sample(cls(), spec("B", "S", values=[2, 0, 1], dtype="i32"), dtypes=("i32",), B=2, S=3)
