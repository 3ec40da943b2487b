"""What samples say: ranks, the most frequent value, the error of the mean, and an estimate of the density."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import rlx.numpy as rnp
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, inexact, static_size, value
from rlx.ops.define.operands import dims_of

__all__ = ["ModeResult", "gaussian_kde", "mode", "rankdata", "sem"]


class ModeResult(NamedTuple):
    """The most frequent value, the smallest of several, and how often it is there."""

    mode: Any
    count: Any


def _lined_up(a: Any, axis: int | None) -> tuple[Any, int]:
    a = value(a)
    return (ops.reshape(a, (-1,)), 0) if axis is None else (a, axis)


@array_function
def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """The most frequent value along an axis, and its count."""
    if nan_policy != "propagate":
        raise OpError(f"mode: nan_policy is 'propagate', got {nan_policy!r}; take NaN out before")
    rank = len(dims_of(value(a)))
    a, position = _lined_up(a, axis)
    ordered = rnp.moveaxis(rnp.sort(a, axis=position), position, -1)
    starts = rnp.concatenate(
        [ops.ones((*dims_of(ordered)[:-1], 1), "bool"), ops.ne(ordered[..., 1:], ordered[..., :-1])], -1
    )
    places = ops.iota((dims_of(ordered)[-1],), "i32")
    # The place in the run of equals: how far behind the last start.
    run = places - rnp.asarray(ops.cummax(ops.where(starts, places, 0), -1))
    last = ops.expand_dims(ops.argmax(run, -1), -1)
    found = [rnp.take_along_axis(ordered, last, -1), rnp.take_along_axis(run, last, -1) + 1]
    if keepdims:
        found = [ops.reshape(f, (1,) * rank) if axis is None else rnp.moveaxis(f, -1, position) for f in found]
    else:
        found = [ops.squeeze(f, -1) for f in found]
    return ModeResult(*found)


@array_function
def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Any:
    """Ranks from 1 on, as floats; equals have the mean ("average"), the "min" or "max" of their ranks, one and the same
    without gaps ("dense"), or those of their order ("ordinal")."""
    if method not in ("average", "min", "max", "dense", "ordinal") or nan_policy != "propagate":
        wanted = "method is average, min, max, dense or ordinal, nan_policy is propagate"
        raise OpError(f"rankdata: {wanted}; got {method!r}, {nan_policy!r}")
    a, position = _lined_up(a, axis)
    rows = rnp.moveaxis(a, position, -1)
    order = rnp.argsort(rows, axis=-1)
    place = rnp.argsort(order, axis=-1)
    if method == "ordinal":
        return rnp.moveaxis(ops.cast(place + 1, float), -1, position)
    ordered = rnp.take_along_axis(rows, order, -1)
    starts = rnp.concatenate(
        [ops.ones((*dims_of(rows)[:-1], 1), "bool"), ops.ne(ordered[..., 1:], ordered[..., :-1])], -1
    )
    size = dims_of(rows)[-1]
    here = ops.iota((size,), "i32")
    first = ops.cummax(ops.where(starts, here, 0), -1)
    ends = rnp.concatenate([starts[..., 1:], ops.ones((*dims_of(rows)[:-1], 1), "bool")], -1)
    last = rnp.flip(ops.cummin(rnp.flip(ops.where(ends, here, size - 1), -1), -1), -1)
    ranks = {
        "min": lambda: first + 1,
        "max": lambda: last + 1,
        "dense": lambda: ops.cumsum(ops.cast(starts, "i32"), -1),
        "average": lambda: ops.cast(first + last + 2, float) * 0.5,
    }[method]()
    return rnp.moveaxis(rnp.take_along_axis(ops.cast(ranks, float), place, -1), -1, position)


@array_function
def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Any:
    """The standard error of the mean."""
    a, position = _lined_up(a, axis)
    (a,) = inexact(a)
    if nan_policy == "omit":
        count = rnp.sum(ops.not_(ops.isnan(a)), axis=position, keepdims=keepdims)
        return rnp.nanstd(a, axis=position, ddof=ddof, keepdims=keepdims) / ops.sqrt(ops.cast(count, a.dtype))
    if nan_policy != "propagate":
        raise OpError(f"sem: nan_policy is 'propagate' or 'omit', got {nan_policy!r}")
    size = static_size(dims_of(a)[position], "sem")
    return rnp.std(a, axis=position, ddof=ddof, keepdims=keepdims) / math.sqrt(size)


class gaussian_kde:
    """An estimate of the density from samples [n] or [d, n]: the mean of normal densities around them.

    `bw_method` is "scott", "silverman", a number, or a function of the estimate; `weights` tell what samples count.
    """

    def __init__(self, dataset: Any, bw_method: Any = None, weights: Any = None) -> None:
        (data,) = inexact(dataset)
        self.dataset = rnp.atleast_2d(data)
        self.d, self.n = (static_size(size, "gaussian_kde") for size in dims_of(self.dataset))
        if weights is None:
            self.weights = rnp.full((self.n,), 1.0 / self.n, dtype=self.dataset.dtype)
        else:
            (weights,) = inexact(weights)
            self.weights = rnp.asarray(weights) / rnp.sum(weights)
        if dims_of(self.weights) != (self.n,):
            raise ShapeError(f"gaussian_kde: {self.n} samples need {self.n} weights, got {dims_of(self.weights)}")
        self.neff = 1.0 / rnp.sum(self.weights**2)
        self.factor = self._factor(bw_method)
        self.covariance = rnp.atleast_2d(rnp.cov(self.dataset, bias=False, aweights=self.weights)) * self.factor**2

    def _factor(self, method: Any) -> Any:
        if method is None or method == "scott":
            return rnp.power(self.neff, -1.0 / (self.d + 4))
        if method == "silverman":
            return rnp.power(self.neff * (self.d + 2) / 4.0, -1.0 / (self.d + 4))
        if callable(method):
            return method(self)
        if isinstance(method, str):
            raise OpError(f"gaussian_kde: bw_method is scott, silverman, a number or a function, got {method!r}")
        return method

    def logpdf(self, points: Any) -> Any:
        """The logarithm of the estimated density at points [m] or [d, m]."""
        (points,) = inexact(points)
        points = rnp.atleast_2d(points)
        if dims_of(points)[0] != self.d:
            points = rnp.reshape(points, (self.d, -1))
        factor = rnp.linalg.cholesky(self.covariance)
        far = rnp.expand_dims(points, -1) - rnp.expand_dims(self.dataset, 1)
        flat = ops.triangular_solve(factor, rnp.reshape(far, (self.d, -1)), lower=True)
        squares = rnp.reshape(rnp.sum(flat**2, axis=0), far.shape[1:])
        log_scale = rnp.sum(rnp.log(rnp.diagonal(factor))) + 0.5 * self.d * math.log(2 * math.pi)
        return rnp.asarray(ops.logsumexp(-0.5 * squares + rnp.log(self.weights), -1)) - log_scale

    def evaluate(self, points: Any) -> Any:
        """The estimated density at points [m] or [d, m]."""
        return rnp.exp(self.logpdf(points))

    pdf = __call__ = evaluate
