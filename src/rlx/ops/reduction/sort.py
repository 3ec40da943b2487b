"""Order along an axis: sort (several operands, stable), argsort, top-k, searchsorted.

One order everywhere: NaN comes last, ascending or descending; 0.0 and -0.0 are equal; equal keys keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import product, require_at_most, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, normalize_axis
from rlx.ops.define.operands import dims_of, promote_operands, require_dtype, require_same_dtype, same_graph
from rlx.ops.define.rules import batch_along_axis, batch_pointwise, put_batch_first, zeros_like
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import and_, lt, or_
from rlx.ops.pointwise.bits import isnan, not_
from rlx.ops.reduction.reductions import reduce_sum, widened
from rlx.ops.shape.creation import iota

__all__ = [
    "SearchSorted",
    "Sort",
    "TopK",
    "TopKWithValues",
    "argsort",
    "searchsorted",
    "sort",
    "top_k",
    "topk",
]

Array = np.ndarray[Any, np.dtype[Any]]


def _require_ordered(op: Op, *shapes: Shape) -> None:
    ok = all(not s.dtype.is_complex and not s.dtype.is_storage for s in shapes)
    require_dtype(op, ok, "ordered", *shapes)


def _ranks(key: Array, descending: bool) -> Array:
    """Integers in the order of `key`: equal keys are equal, NaN is above everything."""
    values = widened(key)
    distinct, ranks = np.unique(values, return_inverse=True)
    ranks = ranks.reshape(values.shape)
    if not descending:
        return ranks
    return np.where(values == values, -ranks, len(distinct))


@op("sort")
class Sort(Op):
    """All operands reordered alike along `axis`, so that the first `num_keys` of them ascend (or descend).

    Later keys decide between equals of the earlier ones; full equals keep their order. NaN comes last either way. One
    result per operand; keys are real numbers or bools, the other operands anything.
    """

    primitive = True
    precision_class = "data_movement"

    axis: int = -1
    num_keys: int = 1
    descending: bool = False

    def infer(self, first: Shape, *others: Shape) -> Shape | tuple[Shape, ...]:
        operands = (first, *others)
        if not 1 <= self.num_keys <= len(operands):
            raise self.fail(f"num_keys must be 1 to {len(operands)}, the number of operands; got {self.num_keys}")
        normalize_axis(self.axis, first.rank, self.mnemonic)
        for other in others:
            same = other.rank == first.rank and all(
                require_equal(a, b, self.mnemonic) for a, b in zip(other.dims, first.dims)
            )
            if not same:
                raise self.fail(f"operands need the same dims, got {first} and {other}")
        _require_ordered(self, *operands[: self.num_keys])
        return operands if others else first

    def eval(self, *operands: Array) -> Array | tuple[Array, ...]:
        keys = [_ranks(k, self.descending) for k in operands[: self.num_keys]]
        # lexsort is stable and takes the deciding key last.
        order = np.lexsort(keys[::-1], axis=self.axis)
        results = tuple(np.take_along_axis(x, order, self.axis) for x in operands)
        return results if len(results) > 1 else results[0]

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        from rlx.ops.shape.selection import take_along_axis

        order = self._order(primals)
        moved = [None if t is None else take_along_axis(t, order, self.axis) for t in tangents]
        return tuple(moved) if len(moved) > 1 else moved[0]

    def vjp(self, ct: Any, y: Any, *operands: Any) -> Any:
        from rlx.ops.shape.selection import put_along_axis

        order = self._order(operands)
        cts = ct if len(operands) > 1 else (ct,)
        return tuple(
            None if c is None else put_along_axis(zeros_like(x), order, c, self.axis) for c, x in zip(cts, operands)
        )

    def _order(self, operands: Sequence[Any]) -> Any:
        """Where each element comes from: positions, sorted along with the keys."""
        with same_graph(*operands):
            positions = iota(operands[0].shape, DType.I32, self.axis)
        return self(*operands[: self.num_keys], positions)[-1]

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ties = spec(7, values=[3, 1, 2, 3, 1, 0, 2])
        position = spec(7, values=range(7), dtype="i32")
        for descending in (False, True):
            for axis in (0, 1, -1):
                yield sample(cls(axis, 1, descending), spec(2, 3, 4, distinct=True), dtypes=(*FLOATS, *INTS, "bool"))
            yield sample(cls(0, 1, descending), ties, position, dtypes=(*FLOATS, *INTS), smooth=False)
            yield sample(cls(0, 2, descending), ties, spec(7, values=[1, 5, 0, 1, 4, 2, 9]), position, smooth=False)
            yield sample(cls(0, 1, descending), spec(5, values=[1.0, np.nan, -np.inf, np.nan, np.inf]), spec(5))
            yield sample(cls(0, 1, descending), spec(3, values=[0.0, -0.0, 0.0]), spec(3), smooth=False)
        yield sample(cls(0), spec(3, dtype="f32"), spec(3, dtype="c64"), spec(3, dtype="bool"), dtypes=("f32",))
        yield sample(cls(), spec(0, 3))
        yield sample(cls(0), spec(0))
        yield sample(cls(1), spec("B", "S"), spec("B", "S", dtype="i32"), B=2, S=3)


@op("top_k")
class TopKWithValues(Op):
    """Values and i32 positions of the `k` largest elements along the last axis, descending; ties by position."""

    precision_class = "data_movement"

    k: int

    def check(self) -> None:
        _check_k(self, self.k)

    def infer(self, x: Shape) -> tuple[Shape, Shape]:
        values = _top_shape(self, x, self.k)
        return values, values.with_dtype(DType.I32)

    def eval(self, x: Array) -> tuple[Array, Array]:
        ids = np.argsort(_ranks(x, descending=True), axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, ids, axis=-1), ids.astype(np.int32)

    def decompose(self, x: Any) -> Any:
        from rlx.ops.shape.movement import narrow

        return tuple(narrow(y, -1, 0, self.k) for y in _sorted_with_ids(x, -1, descending=True))

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        from rlx.ops.shape.selection import take_along_axis

        return take_along_axis(tangents[0], y[1], -1), None

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        from rlx.ops.shape.selection import put_along_axis

        return (None if ct[0] is None else put_along_axis(zeros_like(x), y[1], ct[0], -1),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _top_samples(cls)


@op("topk")
class TopK(Op):
    """The i32 positions of the `k` largest elements along the last axis, descending; ties by position, NaN last."""

    is_reduction = True
    picks = True
    precision_class = "data_movement"

    k: int

    def check(self) -> None:
        _check_k(self, self.k)

    def infer(self, x: Shape) -> Shape:
        return _top_shape(self, x, self.k).with_dtype(DType.I32)

    def eval(self, x: Array) -> Array:
        return TopKWithValues(self.k).eval(x)[1]

    def decompose(self, x: Any) -> Any:
        return TopKWithValues(self.k)(x)[1]

    jvp = vjp = NoRule("its results are positions")
    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _top_samples(cls)


def _check_k(op: Op, k: int) -> None:
    if k < 0:
        raise op.fail(f"k cannot be negative, got {k}")


def _top_shape(op: Op, x: Shape, k: int) -> Shape:
    _require_ordered(op, x)
    if not x.dims:
        raise op.fail(f"needs an operand of rank 1 or more, got {x}")
    size = x.dims[-1]
    if not require_at_most(k, size, op.mnemonic):
        raise op.fail(f"k={k} is more than the {size} elements along the last axis of {x}")
    return x.with_dim(-1, k)


def _top_samples(make: type[TopK] | type[TopKWithValues]) -> Iterator[Sample]:
    yield sample(make(2), spec(3, 5, distinct=True), dtypes=(*FLOATS, *INTS))
    yield sample(make(4), spec(6, values=[1, 3, 3, 0, 3, 2]), dtypes=(*FLOATS, *INTS), smooth=False)
    yield sample(make(3), spec(5, values=[np.nan, 1.0, np.inf, np.nan, -np.inf]))
    yield sample(make(5), spec(5))
    yield sample(make(1), spec(2, 1, 3))
    yield sample(make(0), spec(2, 3))
    yield sample(make(2), spec("B", "S"), B=2, S=3)


@op("searchsorted")
class SearchSorted(Op):
    """y = how many elements of a sorted sequence come before each value, i32: where to insert it.

    Equal elements count only with `right`. A sequence of rank 1 serves values of any shape; sequences `[.., n]` need
    values `[.., m]` with the same leading axes. NaN is the largest value.
    """

    precision_class = "data_movement"

    right: bool = False

    def infer(self, sequence: Shape, values: Shape) -> Shape:
        require_same_dtype(self, sequence, values)
        _require_ordered(self, sequence, values)
        batch = sequence.dims[:-1]
        matched = len(batch) < values.rank and all(
            require_equal(a, b, self.mnemonic) for a, b in zip(batch, values.dims)
        )
        if sequence.rank == 0 or (batch and (not matched or values.rank != sequence.rank)):
            raise self.fail(f"needs a sequence [n], or [.., n] with values [.., m]; got {sequence} and {values}")
        return values.with_dtype(DType.I32)

    def eval(self, sequence: Array, values: Array) -> Array:
        side: Any = "right" if self.right else "left"
        haystack, needles = widened(sequence), widened(values)
        if haystack.ndim == 1:
            return np.asarray(np.searchsorted(haystack, needles, side), dtype=np.int32)
        result = np.empty(values.shape, np.int32)
        for row in np.ndindex(sequence.shape[:-1]):
            result[row] = np.searchsorted(haystack[row], needles[row], side)
        return result

    def decompose(self, sequence: Any, values: Any) -> Any:
        from rlx.ops.shape.movement import expand_dims

        if sequence.ndim > 1:
            sequence = expand_dims(sequence, -2)
        values = expand_dims(values, -1)
        before = not_(_precedes(values, sequence)) if self.right else _precedes(sequence, values)
        return reduce_sum(before, -1)

    jvp = vjp = NoRule("its results are positions")

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        from rlx.ops.shape.movement import reshape

        if not batched[0] and operands[0].ndim == 1:
            return self(*operands)
        sequence, values = (put_batch_first(x, b, size) for x, b in zip(operands, batched))
        if sequence.ndim > 2:
            return self(sequence, values)
        # One sequence per batch entry serves values of any shape; as an op it serves rows of them.
        rows = reshape(values, (size, product(values.shape[1:])))
        return reshape(self(sequence, rows), values.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ladder = spec(6, values=[0, 1, 1, 2, 3, 3])
        for right in (False, True):
            yield sample(cls(right), ladder, spec(2, 4, low=0, high=4), dtypes=(*FLOATS, *INTS))
            yield sample(cls(right), ladder, spec(values=1), dtypes=("f32", "i32"))
            special = [-np.inf, 0.0, 1.0, np.inf, np.nan, np.nan]
            yield sample(cls(right), spec(6, values=special), spec(6, values=special[::-1]))
            yield sample(cls(right), spec(2, 3, values=[[0, 1, 2], [1, 1, 1]]), spec(2, 4, low=0, high=3))
        yield sample(cls(), spec(0), spec(3))
        yield sample(cls(), spec("N", values=[0.0, 1.0, 2.0]), spec("B", 2), N=3, B=2)


def _precedes(a: Any, b: Any) -> Any:
    """a < b in the order of sort: NaN is above every number, and not below itself."""
    if not a.dtype.is_float:
        return lt(a, b)
    return or_(lt(a, b), and_(isnan(b), not_(isnan(a))))


def _sorted_with_ids(x: Any, axis: int, descending: bool) -> Any:
    dims = dims_of(x)
    with same_graph(x):
        return Sort(axis, 1, descending)(x, iota(dims, DType.I32, axis))


def sort(*operands: Any, axis: int = -1, num_keys: int = 1, descending: bool = False) -> Any:
    """x sorted along `axis`; further operands are reordered with it and returned too. See `Sort`.

    >>> print(*sort(np.array([3, 1, 2]), np.array([10, 20, 30])))
    [1 2 3] [20 30 10]
    """
    return Sort(axis, num_keys, descending)(*operands)


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    """The i32 positions that sort x along `axis`; stable, NaN last.

    >>> print(argsort(np.array([3, 1, 2])))
    [1 2 0]
    """
    return _sorted_with_ids(x, axis, descending)[1]


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The `k` largest elements along `axis`, descending, and their i32 positions."""
    from rlx.ops.shape.movement import moveaxis

    axis = normalize_axis(axis, len(dims_of(x)), "top_k")
    if axis == len(dims_of(x)) - 1:
        values, ids = TopKWithValues(k)(x)
        return values, ids
    values, ids = TopKWithValues(k)(moveaxis(x, axis, -1))
    return moveaxis(values, -1, axis), moveaxis(ids, -1, axis)


def topk(x: Any, k: int) -> Any:
    """The i32 positions of the `k` largest elements along the last axis, descending."""
    return TopK(k)(x)


def searchsorted(sequence: Any, values: Any, right: bool = False) -> Any:
    """Where to insert `values` into a sorted sequence, i32: before equal elements, or after them with `right`.

    >>> print(searchsorted(np.array([1, 2, 2, 3]), np.array([2, 5])))
    [1 4]
    """
    sequence, values = promote_operands(sequence, values)
    return SearchSorted(right)(sequence, values)
