"""Reductions over axes: `Reduce(kind)`, `ArgReduce(kind)`, softmax, and what is built from them.

Windows are in `window_reductions`, running reductions (cumsum, ...) in `cumulative`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import product, require_at_most
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, attribute_type, op, op_family
from rlx.ir.shape import Shape, Size, normalize_axes, normalize_axis, reduce_shape
from rlx.ir.words import Words
from rlx.ops.define.operands import dims_of, dtype_of, promote_inexact, require_dtype, require_float, same_graph
from rlx.ops.define.rules import batch_along_axis
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.pointwise.arithmetic import div, eq, maximum, sub, where
from rlx.ops.pointwise.bits import isfinite, truth
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import exp, log, sqrt, square
from rlx.ops.shape.creation import dim_value

__all__ = [
    "ArgReduce",
    "ArgReduceOp",
    "LogSoftmax",
    "Reduce",
    "ReduceOp",
    "Softmax",
    "argmax",
    "argmin",
    "log_softmax",
    "logsumexp",
    "mean",
    "reduce",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "softmax",
    "std",
    "variance",
]

Array = np.ndarray[Any, np.dtype[Any]]
Axes = int | Sequence[int] | None


@attribute_type
class ReduceOp(Words):
    """How values are joined. All but Mean are associative, with an identity element."""

    Sum = "sum"
    Mean = "mean"
    Max = "max"
    Min = "min"
    Prod = "prod"
    Any = "any"
    All = "all"


# What joins two values; the mean is a sum with a division after it.
JOIN: dict[ReduceOp, np.ufunc] = {
    ReduceOp.Sum: np.add,
    ReduceOp.Max: np.maximum,
    ReduceOp.Min: np.minimum,
    ReduceOp.Prod: np.multiply,
    ReduceOp.Any: np.logical_or,
    ReduceOp.All: np.logical_and,
}


def identity_of(kind: ReduceOp, dtype: DType) -> Any:
    """The value that joining leaves alone: what an empty reduction and padding are made of.

    >>> identity_of(ReduceOp.Max, DType.I8), identity_of(ReduceOp.Min, DType.F16)
    (-128, inf)
    """
    if kind in (ReduceOp.Any, ReduceOp.All):
        return kind is ReduceOp.All
    if kind in (ReduceOp.Sum, ReduceOp.Prod):
        return 0 if kind is ReduceOp.Sum else 1
    if dtype.is_float:
        return -math.inf if kind is ReduceOp.Max else math.inf
    info = np.iinfo(dtype.numpy)
    return int(info.min if kind is ReduceOp.Max else info.max)


def widened(x: Array) -> Array:
    """x in the type that results are computed in before they are rounded once: f64 for floats, else its own."""
    return x if x.dtype.kind in "iub" else as_f64(x)[0]


def require_reducible(op: Op, kind: ReduceOp, x: Shape) -> None:
    """Refuse dtypes that the reduction has no meaning for."""
    if kind in (ReduceOp.Any, ReduceOp.All):
        require_dtype(op, x.dtype is DType.BOOL, "bool", x)
    elif kind is ReduceOp.Mean:
        require_dtype(op, x.dtype.is_inexact and not x.dtype.is_storage, "float or complex", x)
    elif kind in (ReduceOp.Max, ReduceOp.Min):
        require_dtype(op, (x.dtype.is_float or x.dtype.is_int) and not x.dtype.is_storage, "integer or float", x)
    else:
        require_dtype(op, x.dtype is not DType.BOOL and not x.dtype.is_storage, "numeric", x)


@op_family(ReduceOp, prefix="reduce_")
class Reduce(Op):
    """y = the elements of x along `axes` joined by `kind`; the axes leave the shape, or stay as 1 with `keep_dim`.

    No axes: y = x. Nothing to join: Sum 0, Prod 1, Max -inf, Min +inf (the extremes of integer types), Mean NaN,
    Any false, All true. NaN propagates through Max and Min; integers wrap around; Any and All take bools.
    """

    is_reduction = True
    precision_class = "reduction"

    kind: ReduceOp
    axes: tuple[int, ...]
    keep_dim: bool = False

    @property
    def is_primitive(self) -> bool:
        return self.kind is not ReduceOp.Mean

    def infer(self, x: Shape) -> Shape:
        require_reducible(self, self.kind, x)
        return reduce_shape(x, self.axes, self.keep_dim, self.mnemonic)

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        axes = normalize_axes(self.axes, x.ndim, self.mnemonic)
        if not axes:
            return x
        kind = ReduceOp.Sum if self.kind is ReduceOp.Mean else self.kind
        wide = widened(x)
        initial = np.asarray(identity_of(kind, DType.of(x.dtype))).astype(wide.dtype)
        result = JOIN[kind].reduce(wide, axes, dtype=wide.dtype, keepdims=self.keep_dim, initial=initial)
        if self.kind is ReduceOp.Mean:
            result = result / np.float64(math.prod(x.shape[a] for a in axes))
        return rounded(result, x.dtype)

    def decompose(self, x: Any) -> Any:
        """The mean from a sum in the accumulator type."""
        axes = normalize_axes(self.axes, x.ndim, self.mnemonic)
        (wide,) = accumulators(x)
        total = Reduce(ReduceOp.Sum, axes, self.keep_dim)(wide)
        return rounded_tensor(div(total, _count(x, axes, total.dtype.real)), x.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        (x,), (t,) = primals, tangents
        if self.kind in (ReduceOp.Sum, ReduceOp.Mean):
            return self(t)
        if self.kind is ReduceOp.Prod:
            (wide,) = accumulators(t)
            total = Reduce(ReduceOp.Sum, self.axes, self.keep_dim)(wide * self._product_of_others(x))
            return rounded_tensor(total, x.dtype)
        chosen, count = self._winners(x, y)
        (wide,) = accumulators(where(chosen, t, 0.0))
        return rounded_tensor(Reduce(ReduceOp.Sum, self.axes, self.keep_dim)(wide) / count, x.dtype)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        if self.kind is ReduceOp.Sum:
            return (self._spread(ct, x),)
        (wide,) = accumulators(ct)
        if self.kind is ReduceOp.Mean:
            axes = normalize_axes(self.axes, x.ndim, self.mnemonic)
            share = div(wide, _count(x, axes, wide.dtype.real))
            return (self._spread(rounded_tensor(share, x.dtype), x),)
        if self.kind is ReduceOp.Prod:
            return (rounded_tensor(self._spread(wide, x) * conjugate(self._product_of_others(x)), x.dtype),)
        chosen, count = self._winners(x, y)
        return (where(chosen, self._spread(rounded_tensor(wide / count, x.dtype), x), 0.0),)

    def _spread(self, y: Any, x: Any) -> Any:
        """A value per result, repeated for the elements of x that the result joins."""
        from rlx.ops.shape.movement import broadcast_to, reshaped

        kept = reduce_shape(x.type, self.axes, True, self.mnemonic)
        return broadcast_to(reshaped(y, kept.dims), x.shape)

    def _winners(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Which elements of x are the extreme y, and how many they are: equals share the derivative."""
        chosen = eq(x, self._spread(y, x))
        count = Reduce(ReduceOp.Sum, self.axes, self.keep_dim)(cast(chosen, x.dtype.accumulator))
        # NaN equals nothing, and nothing is joined along an empty axis.
        return chosen, maximum(count, 1.0)

    def _product_of_others(self, x: Any) -> Any:
        """For every element, the product of those it is joined with: no division, so that zeros do no harm."""
        from rlx.ops.reduction.cumulative import cumprod
        from rlx.ops.shape.movement import reshaped, transposed

        (wide,) = accumulators(x)
        axes = normalize_axes(self.axes, x.ndim, self.mnemonic)
        perm = [*(i for i in range(x.ndim) if i not in axes), *axes]
        moved = transposed(wide, perm)
        rows = reshaped(moved, (*(x.shape[i] for i in perm[: x.ndim - len(axes)]), product(x.shape[a] for a in axes)))
        others = cumprod(rows, exclusive=True) * cumprod(rows, exclusive=True, reverse=True)
        return transposed(reshaped(others, moved.shape), np.argsort(perm).tolist())

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        axes = normalize_axes(self.axes, operands[0].ndim - 1, self.mnemonic)
        return self.replace(axes=[a + 1 for a in axes])(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        arithmetic = (ReduceOp.Sum, ReduceOp.Mean, ReduceOp.Max, ReduceOp.Min, ReduceOp.Prod)
        for kind in ReduceOp:
            dtypes = FLOATS if kind in arithmetic else ("bool",)
            for axes in ((), (0,), (1,), (-1,), (0, 2), (0, 1, 2)):
                yield sample(cls(kind, axes), spec(2, 3, 4, distinct=kind not in arithmetic[:2]), dtypes=dtypes)
            yield sample(cls(kind, (1,), True), spec(3, 4), dtypes=dtypes)
            yield sample(cls(kind, (0,)), spec(0, 3), dtypes=dtypes)
            yield sample(cls(kind, (0,)), spec(3, 0), dtypes=dtypes)
            yield sample(cls(kind, ()), spec(), dtypes=dtypes)
            yield sample(cls(kind, (1,)), spec("B", 4), dtypes=dtypes, B=3)
            yield sample(cls(kind, (0, 1), True), spec("B", "S", 2), dtypes=dtypes, B=2, S=3)
            if kind in arithmetic and kind is not ReduceOp.Mean:
                yield sample(cls(kind, (0,)), spec(3, 4), dtypes=INTS)
                yield sample(cls(kind, (0,)), spec(0, 2), dtypes=INTS)
        for kind in (ReduceOp.Sum, ReduceOp.Prod, ReduceOp.Mean):
            yield sample(cls(kind, (1,)), spec(3, 4), dtypes=COMPLEX)
        yield sample(cls("max", (0,)), spec(3, values=[1.0, np.nan, 2.0]))


def _count(x: Any, axes: Sequence[int], dtype: DType) -> Any:
    """How many elements of x one result joins."""
    count: Size = product(dims_of(x)[a] for a in axes)
    with same_graph(x):
        return dim_value(count, dtype)


@attribute_type
class ArgReduceOp(Words):
    """What is searched for."""

    ArgMax = "argmax"
    ArgMin = "argmin"


@op_family(ArgReduceOp)
class ArgReduce(Op):
    """y = the i32 position of the largest (ArgMax) or smallest (ArgMin) element along `axis`.

    The first of equals wins, and the first NaN before everything else, as in NumPy. The axis must not be empty.
    """

    primitive = True
    precision_class = "reduction"

    kind: ArgReduceOp
    axis: int
    keep_dim: bool = False

    def infer(self, x: Shape) -> Shape:
        require_dtype(self, not x.dtype.is_complex and not x.dtype.is_storage, "ordered", x)
        axis = normalize_axis(self.axis, x.rank, self.mnemonic)
        if not require_at_most(1, x.dims[axis], self.mnemonic):
            raise self.fail(f"axis {axis} of {x} is empty, so there is no element to point at")
        return reduce_shape(x, (axis,), self.keep_dim, self.mnemonic).with_dtype(DType.I32)

    def eval(self, x: Array) -> Array:
        search = np.argmax if self.kind is ArgReduceOp.ArgMax else np.argmin
        return np.asarray(search(widened(x), axis=self.axis, keepdims=self.keep_dim), dtype=np.int32)

    jvp = vjp = NoRule("its results are positions")
    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in ArgReduceOp:
            for axis in (0, 1, -1):
                yield sample(cls(kind, axis), spec(3, 4), dtypes=(*FLOATS, *INTS, "bool"))
            yield sample(cls(kind, 1, True), spec(2, 3, 2))
            yield sample(cls(kind, 0), spec(6, values=[1.0, 3.0, 0.0, 3.0, 0.0, 2.0]))
            yield sample(cls(kind, 0), spec(4, values=[1.0, np.nan, 3.0, np.nan]))
            yield sample(cls(kind, 0), spec(3, 0))
            yield sample(cls(kind, 1), spec("B", "S"), B=2, S=3)


@op("softmax")
class Softmax(Op):
    """y = e^(x - max) / Σ e^(x - max) along `axis`."""

    is_reduction = True
    precision_class = "reduction"

    axis: int = -1

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        normalize_axis(self.axis, x.rank, self.mnemonic)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        powers = np.exp(_below_max(widened(x), self.axis))
        return rounded(powers / powers.sum(axis=self.axis, keepdims=True), x.dtype)

    def decompose(self, x: Any) -> Any:
        (wide,) = accumulators(x)
        powers = exp(wide - reduce_max(wide, self.axis, keepdims=True))
        return rounded_tensor(powers / reduce_sum(powers, self.axis, keepdims=True), x.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return self._pull(tangents[0], y)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return (self._pull(ct, y),)

    def _pull(self, t: Any, y: Any) -> Any:
        """y·(t - Σ y·t); the Jacobian is symmetric."""
        t, wide = accumulators(t, y)
        return rounded_tensor(wide * (t - reduce_sum(wide * t, self.axis, keepdims=True)), y.dtype)

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _softmax_samples(cls)


@op("log_softmax")
class LogSoftmax(Op):
    """y = x - max - log Σ e^(x - max) along `axis`."""

    precision_class = "reduction"

    axis: int = -1

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        normalize_axis(self.axis, x.rank, self.mnemonic)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        below = _below_max(widened(x), self.axis)
        return rounded(below - np.log(np.exp(below).sum(axis=self.axis, keepdims=True)), x.dtype)

    def decompose(self, x: Any) -> Any:
        (wide,) = accumulators(x)
        below = wide - reduce_max(wide, self.axis, keepdims=True)
        return rounded_tensor(below - log(reduce_sum(exp(below), self.axis, keepdims=True)), x.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        t, wide = accumulators(tangents[0], y)
        return rounded_tensor(t - reduce_sum(exp(wide) * t, self.axis, keepdims=True), y.dtype)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        t, wide = accumulators(ct, y)
        return (rounded_tensor(t - exp(wide) * reduce_sum(t, self.axis, keepdims=True), y.dtype),)

    batch = batch_along_axis

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _softmax_samples(cls)


def _below_max(x: Array, axis: int) -> Array:
    return x - x.max(axis=axis, keepdims=True, initial=-np.inf)


def _softmax_samples(make: Callable[[int], Op]) -> Iterator[Sample]:
    for axis in (0, 1, -1):
        yield sample(make(axis), spec(2, 3, 4))
    yield sample(make(-1), spec(3, values=[1000.0, -1000.0, -np.inf]))
    yield sample(make(0), spec(0, 3))
    yield sample(make(-1), spec("B", "S"), B=2, S=3)


def _axes(x: Any, axes: Axes) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(len(dims_of(x))))
    return (axes,) if isinstance(axes, int) else tuple(axes)


def reduce(x: Any, kind: ReduceOp | str, axes: Axes = None, keepdims: bool = False) -> Any:
    """The elements along `axes` (all of them by default) joined by `kind`.

    Sums and products of bools count in i32; means of integers are floats; any and all read non-zero as true.
    """
    chosen = ReduceOp(kind)
    if chosen in (ReduceOp.Any, ReduceOp.All):
        x = truth(x)
    elif chosen is ReduceOp.Mean:
        (x,) = promote_inexact(x)
    elif dtype_of(x) is DType.BOOL:
        if chosen in (ReduceOp.Max, ReduceOp.Min):
            chosen = ReduceOp.Any if chosen is ReduceOp.Max else ReduceOp.All
        else:
            x = cast(x, DType.I32)
    return Reduce(chosen, _axes(x, axes), keepdims)(x)


def reduce_sum(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """Σ x over `axes`; all of them by default."""
    return reduce(x, ReduceOp.Sum, axes, keepdims)


def reduce_mean(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """The mean over `axes`; all of them by default."""
    return reduce(x, ReduceOp.Mean, axes, keepdims)


mean = reduce_mean


def reduce_max(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """The largest element over `axes`; all of them by default."""
    return reduce(x, ReduceOp.Max, axes, keepdims)


def reduce_min(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """The smallest element over `axes`; all of them by default."""
    return reduce(x, ReduceOp.Min, axes, keepdims)


def reduce_prod(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """Π x over `axes`; all of them by default."""
    return reduce(x, ReduceOp.Prod, axes, keepdims)


def reduce_any(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """Whether any element along `axes` is non-zero."""
    return reduce(x, ReduceOp.Any, axes, keepdims)


def reduce_all(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """Whether all elements along `axes` are non-zero."""
    return reduce(x, ReduceOp.All, axes, keepdims)


def _arg_reduce(kind: ArgReduceOp, x: Any, axis: int | None, keepdims: bool) -> Any:
    if axis is not None:
        return ArgReduce(kind, axis, keepdims)(x)
    from rlx.ops.shape.movement import flatten, reshape

    found = ArgReduce(kind, 0)(flatten(x))
    return reshape(found, (1,) * len(dims_of(x))) if keepdims else found


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where the largest element is along `axis`, or in the flattened operand; i32."""
    return _arg_reduce(ArgReduceOp.ArgMax, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where the smallest element is along `axis`, or in the flattened operand; i32."""
    return _arg_reduce(ArgReduceOp.ArgMin, x, axis, keepdims)


def softmax(x: Any, axis: int = -1) -> Any:
    """e^x, scaled so that it sums to 1 along `axis`."""
    (x,) = promote_inexact(x)
    return Softmax(axis)(x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """log(softmax(x)) without the underflow."""
    (x,) = promote_inexact(x)
    return LogSoftmax(axis)(x)


def logsumexp(x: Any, axes: Axes = None, keepdims: bool = False) -> Any:
    """log Σ e^x over `axes`, without overflow; -inf for an empty sum."""
    from rlx.ops.shape.movement import squeeze

    (x,) = promote_inexact(x)
    chosen = normalize_axes(_axes(x, axes), len(dims_of(x)), "logsumexp")
    (wide,) = accumulators(x)
    highest = reduce_max(wide, chosen, keepdims=True)
    # An infinite maximum has no difference to x, and NaN shows up in the sum.
    shift = where(isfinite(highest), highest, 0.0)
    total = rounded_tensor(log(reduce_sum(exp(sub(wide, shift)), chosen, keepdims=True)) + shift, dtype_of(x))
    return total if keepdims else squeeze(total, chosen)


def variance(x: Any, axes: Axes = None, correction: float = 0, keepdims: bool = False) -> Any:
    """Σ|x - mean|² / (n - correction) over `axes`; real for complex x. `correction=1` is the sample variance."""
    from rlx.ops.pointwise.complex_numbers import complex_norm_sq

    (x,) = promote_inexact(x)
    chosen = normalize_axes(_axes(x, axes), len(dims_of(x)), "variance")
    (wide,) = accumulators(x)
    centred = sub(wide, reduce_mean(wide, chosen, keepdims=True))
    squares = complex_norm_sq(centred) if dtype_of(x).is_complex else square(centred)
    freedom = sub(_count(x, chosen, dtype_of(squares)), correction)
    return rounded_tensor(div(reduce_sum(squares, chosen, keepdims), freedom), dtype_of(x).real)


def std(x: Any, axes: Axes = None, correction: float = 0, keepdims: bool = False) -> Any:
    """The square root of `variance`."""
    return sqrt(variance(x, axes, correction, keepdims))
