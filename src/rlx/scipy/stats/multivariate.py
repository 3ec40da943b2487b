"""Distributions over vectors, by the names of `scipy.stats`."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.shape import broadcast_dims
from rlx.numpy.arguments import array_function, inexact
from rlx.ops.define.operands import dims_of
from rlx.scipy import special

__all__ = ["dirichlet", "multivariate_normal"]


class multivariate_normal:
    """Normal vectors, along the last axis of x and of the mean, with the covariance of the last two axes of `cov`.

    Leading axes of all three are batches. A mean that is one number is that of all coordinates; a covariance that is
    one number is the variance of independent ones.
    """

    @staticmethod
    @array_function
    def logpdf(x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Any:
        """The logarithm of the density at x."""
        if allow_singular:
            raise ShapeError(
                "multivariate_normal: allow_singular=True is not here; add a small multiple of the identity"
            )
        x, mean, cov = inexact(x, mean, cov)
        if not dims_of(mean):
            found = dims_of(x)[-1:] or (1,)
            mean = ops.broadcast_to(mean, found)
        size = dims_of(mean)[-1]
        if not dims_of(cov):
            cov = ops.eye(size, dtype=cov.dtype) * cov
        if not dims_of(x):
            x = ops.expand_dims(x, 0)
        if len(dims_of(cov)) < 2 or dims_of(cov)[-1] != size or dims_of(cov)[-2] != size:
            raise ShapeError(f"multivariate_normal: cov is [..., {size}, {size}] or one number, got {dims_of(cov)}")
        factor, centred = ops.cholesky(cov), x - mean
        lead = broadcast_dims(dims_of(centred)[:-1], dims_of(factor)[:-2], "multivariate_normal")
        columns = ops.expand_dims(ops.broadcast_to(centred, (*lead, size)), -1)
        solved = ops.triangular_solve(ops.broadcast_to(factor, (*lead, size, size)), columns, lower=True)
        squares = ops.reduce_sum(ops.square(ops.squeeze(solved, -1)), -1)
        half_log_det = ops.reduce_sum(ops.log(ops.diagonal(factor, 0, -2, -1)), -1)
        return -0.5 * squares - half_log_det - 0.5 * math.log(2 * math.pi) * size

    @staticmethod
    @array_function
    def pdf(x: Any, mean: Any, cov: Any) -> Any:
        """The density at x."""
        return ops.exp(multivariate_normal.logpdf(x, mean, cov))


class dirichlet:
    """Vectors that sum to 1. As in SciPy, the first axis of x holds the coordinates, the others are batches."""

    @staticmethod
    @array_function
    def logpdf(x: Any, alpha: Any) -> Any:
        """The logarithm of the density at x; x may leave out its last coordinate."""
        x, alpha = inexact(x, alpha)
        if len(dims_of(alpha)) != 1:
            raise ShapeError(f"dirichlet: alpha is one vector, got shape {dims_of(alpha)}")
        count = dims_of(alpha)[0]
        if dims_of(x)[:1] == (count - 1,):
            x = ops.concat([x, 1.0 - ops.expand_dims(ops.reduce_sum(x, (0,)), 0)], 0)
        if dims_of(x)[:1] != (count,):
            raise ShapeError(
                f"dirichlet: x needs {count} or {count - 1} coordinates on its first axis, got {dims_of(x)}"
            )
        possible = ops.and_(ops.reduce_all(ops.ge(x, 0.0), (0,)), ops.lt(ops.abs_(ops.reduce_sum(x, (0,)) - 1.0), 1e-4))
        weights = ops.reshape(alpha, (count, *(1,) * (len(dims_of(x)) - 1)))
        normalizer = ops.reduce_sum(special.gammaln(alpha)) - special.gammaln(ops.reduce_sum(alpha))
        found = ops.reduce_sum(special.xlogy(weights - 1.0, ops.where(ops.ge(x, 0.0), x, 1.0)), (0,)) - normalizer
        return ops.where(possible, found, -math.inf)

    @staticmethod
    @array_function
    def pdf(x: Any, alpha: Any) -> Any:
        """The density at x."""
        return ops.exp(dirichlet.logpdf(x, alpha))
