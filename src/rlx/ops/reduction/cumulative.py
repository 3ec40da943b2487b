"""Running reductions along an axis: `Cumulative(kind)`, `Cumsum` and its gradient, and associative_scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.ir.op import Op, attribute_type, op, op_family
from rlx.ir.shape import Shape, normalize_axis
from rlx.ir.words import Words
from rlx.ops.control.bodies import build_body
from rlx.ops.control.scans import Scan
from rlx.ops.define.operands import dims_of, dtype_of, promote_inexact, require_dtype, require_numeric, same_graph
from rlx.ops.define.rules import batch_along_axis, zeros_like, zeros_of
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.define.widening import accumulators, rounded, rounded_tensor
from rlx.ops.pointwise.arithmetic import eq, where
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import exp
from rlx.ops.reduction.reductions import ReduceOp, identity_of, widened
from rlx.ops.shape.creation import iota
from rlx.ops.shape.indexing import ScatterKind
from rlx.ops.shape.movement import moveaxis, pad

__all__ = [
    "Cumsum",
    "CumsumBackward",
    "Cumulative",
    "CumulativeOp",
    "associative_scan",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumsum_backward",
    "logcumsumexp",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class CumulativeOp(Words):
    """How the elements up to each position are joined."""

    Sum = "sum"
    Prod = "prod"
    Max = "max"
    Min = "min"
    LogSumExp = "logsumexp"


_JOIN: dict[CumulativeOp, np.ufunc] = {
    CumulativeOp.Sum: np.add,
    CumulativeOp.Prod: np.multiply,
    CumulativeOp.Max: np.maximum,
    CumulativeOp.Min: np.minimum,
    CumulativeOp.LogSumExp: np.logaddexp,
}


def join_of(kind: CumulativeOp) -> np.ufunc:
    return _JOIN[kind]


def _identity(kind: CumulativeOp, dtype: DType) -> Any:
    return -math.inf if kind is CumulativeOp.LogSumExp else identity_of(ReduceOp(kind.value), dtype)


@op_family(CumulativeOp, prefix="cumulative_")
class Cumulative(Op):
    """y[i] = the join of x[0] .. x[i] along `axis`: sum, product, max, min, or log Σ e^x.

    `exclusive` leaves x[i] itself out, so that y[0] is the identity of the join (0, 1, -inf, +inf, -inf; the extremes
    of integer types). `reverse` runs from the end: y[i] joins x[i] .. x[n-1]. Integers wrap around.
    """

    primitive = True
    precision_class = "reduction"

    kind: CumulativeOp
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, x: Shape) -> Shape:
        if self.kind in (CumulativeOp.Sum, CumulativeOp.Prod):
            require_numeric(self, x)
        else:
            ints = self.kind is not CumulativeOp.LogSumExp
            ok = (x.dtype.is_float or (ints and x.dtype.is_int)) and not x.dtype.is_storage
            require_dtype(self, ok, "integer or float" if ints else "float", x)
        normalize_axis(self.axis, x.rank, self.mnemonic)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        rows = np.moveaxis(widened(x), self.axis, 0)
        if self.reverse:
            rows = rows[::-1]
        if self.exclusive:
            first = np.full((1, *rows.shape[1:]), _identity(self.kind, DType.of(x.dtype)), rows.dtype)
            rows = np.concatenate([first, rows])[: len(rows)]
        result = _JOIN[self.kind].accumulate(rows, axis=0, dtype=rows.dtype)
        return rounded(np.moveaxis(result[::-1] if self.reverse else result, 0, self.axis), x.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        from rlx.ops.shape.selection import take_along_axis

        (x,), (t,) = primals, tangents
        if self.kind is CumulativeOp.Sum:
            return self(t)
        if self.kind in (CumulativeOp.Max, CumulativeOp.Min):
            pushed = take_along_axis(t, self._sources(x), self.axis)
        else:
            decay, entry = self._recurrence(x)
            (wide,) = accumulators(t)
            pushed = rounded_tensor(_linear_recurrence(decay, entry * wide, self.axis, self.reverse), x.dtype)
        return self._shifted(pushed, 1) if self.exclusive else pushed

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        from rlx.ops.shape.selection import put_along_axis

        if self.kind is CumulativeOp.Sum:
            return (self.replace(reverse=not self.reverse)(ct),)
        if self.exclusive:
            ct = self._shifted(ct, -1)
        if self.kind in (CumulativeOp.Max, CumulativeOp.Min):
            return (put_along_axis(zeros_like(x), self._sources(x), ct, self.axis, ScatterKind.Add),)
        decay, entry = (conjugate(c) for c in self._recurrence(x))
        (wide,) = accumulators(ct)
        pulled = _linear_recurrence(self._shifted(decay, -1), wide, self.axis, not self.reverse)
        return (rounded_tensor(entry * pulled, x.dtype),)

    def _recurrence(self, x: Any) -> tuple[Any, Any]:
        """decay and entry of the tangent of the inclusive form, dy[i] = decay[i]·dy[i-1] + entry[i]·dx[i].

        There are no divisions, so that products with zeros and sums of vanishing terms are safe.
        """
        (wide,) = accumulators(x)
        before = self.replace(exclusive=True)(wide)
        if self.kind is CumulativeOp.Prod:
            return wide, before
        total = self.replace(exclusive=False)(wide)
        total = where(eq(total, -math.inf), 0.0, total)
        return exp(before - total), exp(wide - total)

    def _sources(self, x: Any) -> Any:
        """Which element is the extreme so far, in the inclusive form; of equals the latest."""
        reached = eq(x, self.replace(exclusive=False)(x))
        with same_graph(x):
            positions = iota(x.shape, DType.I32, self.axis)
        if not self.reverse:
            return Cumulative(CumulativeOp.Max, self.axis)(where(reached, positions, 0))
        last = np.int32(np.iinfo(np.int32).max)
        return Cumulative(CumulativeOp.Min, self.axis, reverse=True)(where(reached, positions, last))

    def _shifted(self, x: Any, steps: int) -> Any:
        """x moved by one step along the direction of the scan (or against it), with 0 moved in."""
        steps = -steps if self.reverse else steps
        axis = normalize_axis(self.axis, x.ndim, self.mnemonic)
        low = [steps if i == axis else 0 for i in range(x.ndim)]
        return pad(x, 0, low, [-s for s in low])

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in CumulativeOp:
            for exclusive in (False, True):
                for reverse in (False, True):
                    yield sample(cls(kind, 1, exclusive, reverse), spec(2, 3, 2))
            yield sample(cls(kind, 0, True), spec(0, 3))
            yield sample(cls(kind, -1), spec("B", "S"), B=2, S=3)
            if kind is not CumulativeOp.LogSumExp:
                yield sample(cls(kind, 0), spec(3, 4), dtypes=INTS)
                yield sample(cls(kind, 0, True, True), spec(4), dtypes=INTS)
        for kind in (CumulativeOp.Sum, CumulativeOp.Prod):
            yield sample(cls(kind, 0), spec(4, 2), dtypes=COMPLEX)
        yield sample(cls("max", 0), spec(4, values=[1.0, np.nan, 3.0, 2.0]))


@op("cumsum")
class Cumsum(Op):
    """y[i] = x[0] + .. + x[i] along `axis`; `exclusive` leaves x[i] out, so that y[0] = 0."""

    precision_class = "reduction"

    linear_in = (0,)

    axis: int
    exclusive: bool = False

    def infer(self, x: Shape) -> Shape:
        require_numeric(self, x)
        normalize_axis(self.axis, x.rank, self.mnemonic)
        return x

    def eval(self, x: Array) -> Array:
        return Cumulative(CumulativeOp.Sum, self.axis, self.exclusive).eval(x)

    def decompose(self, x: Any) -> Any:
        return Cumulative(CumulativeOp.Sum, self.axis, self.exclusive)(x)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return (CumsumBackward(self.axis, self.exclusive)(ct),)

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _cumsum_samples(cls)


@op("cumsum_backward")
class CumsumBackward(Op):
    """dx[i] = dy[i] + .. + dy[n-1] along `axis`, the transpose of `Cumsum`; `exclusive` leaves dy[i] out."""

    precision_class = "reduction"

    linear_in = (0,)

    axis: int
    exclusive: bool = False

    def infer(self, dy: Shape) -> Shape:
        require_numeric(self, dy)
        normalize_axis(self.axis, dy.rank, self.mnemonic)
        return dy

    def eval(self, dy: Array) -> Array:
        return Cumulative(CumulativeOp.Sum, self.axis, self.exclusive, reverse=True).eval(dy)

    def decompose(self, dy: Any) -> Any:
        return Cumulative(CumulativeOp.Sum, self.axis, self.exclusive, reverse=True)(dy)

    def vjp(self, ct: Any, y: Any, dy: Any) -> Any:
        return (Cumsum(self.axis, self.exclusive)(ct),)

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _cumsum_samples(cls)


def _cumsum_samples(make: Callable[[int, bool], Op]) -> Iterator[Sample]:
    for exclusive in (False, True):
        yield sample(make(-1, exclusive), spec(3, 4), dtypes=(*FLOATS, "i32"))
        yield sample(make(0, exclusive), spec(3, 4))
        yield sample(make(1, exclusive), spec(2, 0, 3))
        yield sample(make(1, exclusive), spec("B", "S"), B=2, S=3)


def _linear_recurrence(decay: Any, entry: Any, axis: int, reverse: bool) -> Any:
    """h[i] = decay[i]·h[i-1] + entry[i] along `axis` from h = 0, or from the end with `reverse`."""
    decays, entries = moveaxis(decay, axis, 0), moveaxis(entry, axis, 0)
    row = entries.type.with_dims(entries.shape[1:])
    body = build_body("recurrence", lambda h, a, b: a * h + b, h=row, decay=row, entry=row)
    steps = Scan(body, entries.shape[0], num_xs=2, reverse=reverse, save_trajectory=True)
    return moveaxis(steps(zeros_of(row, entry), decays, entries), 0, axis)


def _cumulative(kind: CumulativeOp, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    if dtype_of(x) is DType.BOOL:
        x = cast(x, DType.I32)
    return Cumulative(kind, axis, exclusive, reverse)(x)


def cumsum(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running sums along `axis`; bools count in i32.

    >>> print(cumsum(np.array([1, 2, 3]), exclusive=True))
    [0 1 3]
    """
    if reverse:
        return _cumulative(CumulativeOp.Sum, x, axis, exclusive, reverse)
    return Cumsum(axis, exclusive)(cast(x, DType.I32) if dtype_of(x) is DType.BOOL else x)


def cumsum_backward(dy: Any, axis: int = -1, exclusive: bool = False) -> Any:
    """The gradient of `cumsum`."""
    return CumsumBackward(axis, exclusive)(dy)


def cumprod(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running products along `axis`."""
    return _cumulative(CumulativeOp.Prod, x, axis, exclusive, reverse)


def cummax(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """The largest element so far along `axis`."""
    return _cumulative(CumulativeOp.Max, x, axis, exclusive, reverse)


def cummin(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """The smallest element so far along `axis`."""
    return _cumulative(CumulativeOp.Min, x, axis, exclusive, reverse)


def logcumsumexp(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running log Σ e^x along `axis`, without overflow."""
    (x,) = promote_inexact(x)
    return _cumulative(CumulativeOp.LogSumExp, x, axis, exclusive, reverse)


def associative_scan(combine: Callable[[Any, Any], Any], elements: Any, reverse: bool = False, axis: int = 0) -> Any:
    """y[i] = combine(... combine(x[0], x[1]) ..., x[i]) along `axis`, in a number of steps that grows with log n.

    `elements` is a tensor, or several that are combined together (a linear recurrence carries two): then `combine`
    takes and returns tuples. It must be associative and work on whole slices at once; with `reverse` it runs from the
    end. The axis needs a fixed size, because the program has a step per doubling.

    >>> print(associative_scan(lambda a, b: a * b, np.array([1, 2, 3, 4])))
    [ 1  2  6 24]
    """
    from rlx.ops.shape.movement import reverse as turn_round

    several = isinstance(elements, tuple | list)
    parts: list[Any] = list(elements) if isinstance(elements, tuple | list) else [elements]
    _check_scan(parts, axis)

    def packed(items: list[Any]) -> Any:
        return tuple(items) if several else items[0]

    def join(a: list[Any], b: list[Any]) -> list[Any]:
        joined: Any = combine(packed(a), packed(b))
        return list(joined) if several else [joined]

    if reverse:
        parts = [turn_round(p, (axis,)) for p in parts]
    axes = [normalize_axis(axis, len(dims_of(p)), "associative_scan") for p in parts]
    scanned = _scan(join, parts, axes)
    if reverse:
        scanned = [turn_round(p, (axis,)) for p in scanned]
    return packed(scanned)


def _check_scan(parts: Sequence[Any], axis: int) -> None:
    sizes = {dims_of(p)[normalize_axis(axis, len(dims_of(p)), "associative_scan")] for p in parts}
    if len(sizes) != 1 or not isinstance(next(iter(sizes)), int):
        shown = ", ".join(str(s) for s in sizes) or "nothing"
        raise OpError(
            f"associative_scan: all elements need one fixed size along axis {axis}, got {shown}; rlx.scan takes any"
        )


def _scan(join: Callable[[list[Any], list[Any]], list[Any]], parts: list[Any], axes: list[int]) -> list[Any]:
    """Neighbours are joined, the pairs scanned (half as many), and the even positions filled in from them."""
    size = int(dims_of(parts[0])[axes[0]])
    if size < 2:
        return parts
    pairs = join(_take(parts, axes, 0, size - 1), _take(parts, axes, 1, size))
    odd = _scan(join, pairs, axes)
    before = _take(odd, axes, 0, (size - 1) // 2, 1)
    even = join(before, _take(parts, axes, 2, size)) if size > 2 else None
    first = _take(parts, axes, 0, 1)
    return [_interleave(f, e, o, a) for f, e, o, a in zip(first, even or [None] * len(parts), odd, axes)]


def _take(parts: list[Any], axes: list[int], start: int, limit: int, stride: int = 2) -> list[Any]:
    """Elements start:limit:stride of each part."""
    from rlx.ops.shape.movement import slice_

    taken = []
    for part, axis in zip(parts, axes):
        dims = dims_of(part)
        starts = [start if i == axis else 0 for i in range(len(dims))]
        limits = [limit if i == axis else d for i, d in enumerate(dims)]
        taken.append(slice_(part, starts, limits, [stride if i == axis else 1 for i in range(len(dims))]))
    return taken


def _interleave(first: Any, even: Any | None, odd: Any, axis: int) -> Any:
    """first, odd[0], even[0], odd[1], even[1], ...; there may be one odd element more than even ones."""
    from rlx.ops.shape.movement import concat, narrow, reshape, stack

    pieces = [first]
    pairs = 0 if even is None else int(dims_of(even)[axis])
    if even is not None:
        mixed = stack([narrow(odd, axis, 0, pairs), even], axis + 1)
        dims = dims_of(even)
        pieces.append(reshape(mixed, (*dims[:axis], 2 * pairs, *dims[axis + 1 :])))
    if int(dims_of(odd)[axis]) > pairs:
        pieces.append(narrow(odd, axis, pairs, 1))
    return concat(pieces, axis)
