"""Initialisers: functions of (key, shape, dtype) that make weights. Those with settings are made by functions.

    weight = rlx.nn.initializers.he_normal()(key, (784, 128))

The number of inputs of a weight is the size of `in_axis` times the sizes of all axes that are neither `in_axis` nor
`out_axis`: [in, out] for linear layers; for convolutions, [C_out, C_in, kernel..], give in_axis=1, out_axis=0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DTypeLike
from rlx.ir.shape import normalize_axis
from rlx.ops.random import randomness

__all__ = [
    "constant",
    "delta_orthogonal",
    "eye",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

Initializer = Callable[..., Any]


def zeros(key: Any, shape: Sequence[int], dtype: DTypeLike = float) -> Any:
    """0 everywhere; the key is not used."""
    return ops.zeros(shape, dtype)


def ones(key: Any, shape: Sequence[int], dtype: DTypeLike = float) -> Any:
    """1 everywhere; the key is not used."""
    return ops.ones(shape, dtype)


def constant(value: Any, dtype: DTypeLike = float) -> Initializer:
    """`value` everywhere; it may be an array that broadcasts to the shape. `dtype` is that of weights made without."""
    return lambda key, shape, dtype=dtype: ops.full(shape, value, dtype)


def eye(gain: float = 1.0) -> Initializer:
    """`gain` on the diagonal of a matrix, 0 elsewhere."""
    return lambda key, shape, dtype=float: ops.mul(ops.eye(shape[0], shape[1], 0, dtype), gain)


def normal(stddev: float = 0.01, dtype: DTypeLike = float, *, mean: float = 0.0) -> Initializer:
    """Normally distributed values."""
    return lambda key, shape, dtype=dtype: randomness.normal(key, shape, dtype) * stddev + mean


def uniform(scale: float = 0.01, dtype: DTypeLike = float, *, low: float = 0.0) -> Initializer:
    """Uniform values from `low` up to low + scale."""
    return lambda key, shape, dtype=dtype: randomness.uniform(key, shape, dtype, low, low + scale)


def truncated_normal(
    stddev: float = 0.01, dtype: DTypeLike = float, lower: float = -2.0, upper: float = 2.0, *, mean: float = 0.0
) -> Initializer:
    """Normal values within `lower` and `upper` standard deviations."""

    def make(key: Any, shape: Sequence[int], dtype: DTypeLike = dtype) -> Any:
        draw = _compiled_truncated() if math.prod(shape) >= _LARGE else _truncated
        return draw(key, stddev, mean, lower, upper, tuple(shape), dtype)

    return make


# Weights of so many values are drawn by a compiled program: outside of one, NumPy calls Python's erf for each value.
_LARGE = 1 << 17


def _truncated(key: Any, stddev: Any, mean: Any, lower: float, upper: float, shape: Any, dtype: DTypeLike) -> Any:
    return randomness.truncated_normal(key, lower, upper, shape, dtype) * stddev + mean


@cache
def _compiled_truncated() -> Callable[..., Any]:
    from rlx.trace.jit import jit

    return jit(_truncated, static_argnums=(3, 4, 5, 6))


# The standard deviation of a standard normal variable between -2 and 2.
_TRUNCATED_STDDEV = 0.87962566103423978


def variance_scaling(
    scale: float, mode: str, distribution: str, in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float
) -> Initializer:
    """Values with variance scale/n, where n is the number of inputs, outputs, or their mean.

    `mode` is fan_in, fan_out or fan_avg; `distribution` is truncated_normal, normal or uniform.
    """
    if mode not in ("fan_in", "fan_out", "fan_avg") or distribution not in ("truncated_normal", "normal", "uniform"):
        raise OpError(
            "variance_scaling: mode must be fan_in, fan_out or fan_avg and distribution truncated_normal, normal or "
            f"uniform; got {mode!r} and {distribution!r}"
        )

    def make(key: Any, shape: Sequence[int], dtype: DTypeLike = dtype) -> Any:
        inputs, outputs = _fans(shape, in_axis, out_axis)
        count = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        deviation = math.sqrt(scale / max(count, 1))
        if distribution == "normal":
            return normal(deviation)(key, shape, dtype)
        if distribution == "truncated_normal":
            return truncated_normal(deviation / _TRUNCATED_STDDEV)(key, shape, dtype)
        limit = math.sqrt(3) * deviation
        return uniform(2 * limit, low=-limit)(key, shape, dtype)

    return make


def _fans(shape: Sequence[int], in_axis: int, out_axis: int) -> tuple[int, int]:
    if len(shape) < 2:
        raise ShapeError(f"variance_scaling: needs a weight with two axes or more, got shape {tuple(shape)}")
    rank = len(shape)
    ends = (normalize_axis(in_axis, rank, "variance_scaling"), normalize_axis(out_axis, rank, "variance_scaling"))
    field = math.prod(size for i, size in enumerate(shape) if i not in ends)
    return shape[ends[0]] * field, shape[ends[1]] * field


def glorot_uniform(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Uniform with variance 2/(inputs + outputs) (Glorot and Bengio 2010)."""
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, dtype=dtype)


def glorot_normal(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Truncated normal with variance 2/(inputs + outputs)."""
    return variance_scaling(1.0, "fan_avg", "truncated_normal", in_axis, out_axis, dtype=dtype)


def he_uniform(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Uniform with variance 2/inputs, for relu (He et al. 2015)."""
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, dtype=dtype)


def he_normal(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Truncated normal with variance 2/inputs, for relu."""
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, dtype=dtype)


def lecun_uniform(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Uniform with variance 1/inputs (LeCun et al. 1998)."""
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, dtype=dtype)


def lecun_normal(in_axis: int = -2, out_axis: int = -1, *, dtype: DTypeLike = float) -> Initializer:
    """Truncated normal with variance 1/inputs."""
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, dtype=dtype)


xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = float) -> Initializer:
    """`scale` times a random matrix with orthonormal rows or columns, whichever are fewer.

    Axes other than `column_axis` are taken together as rows.
    """

    def make(key: Any, shape: Sequence[int], dtype: DTypeLike = dtype) -> Any:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal: needs a weight with two axes or more, got shape {tuple(shape)}")
        axis = normalize_axis(column_axis, len(shape), "orthogonal")
        columns = shape[axis]
        rows = math.prod(shape) // columns
        tall = (max(rows, columns), min(rows, columns))
        q, r = ops.qr(randomness.normal(key, tall, dtype))
        # The signs of R make Q uniform among all such matrices.
        q = ops.mul(q, ops.where(ops.lt(ops.diagonal(r), 0), -1.0, 1.0))
        q = ops.swapaxes(q, 0, 1) if rows < columns else q
        rest = [size for i, size in enumerate(shape) if i != axis]
        return ops.mul(ops.moveaxis(ops.reshape(q, (*rest, columns)), -1, axis), scale)

    return make


def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: DTypeLike = float) -> Initializer:
    """An orthogonal matrix in the middle of a kernel of 1 to 3 space axes [.., in, out], and 0 elsewhere."""

    def make(key: Any, shape: Sequence[int], dtype: DTypeLike = dtype) -> Any:
        if not 3 <= len(shape) <= 5 or shape[-2] > shape[-1]:
            raise ShapeError(
                "delta_orthogonal: needs a kernel [.., in, out] of 3 to 5 axes with no more in than out, "
                f"got shape {tuple(shape)}"
            )
        matrix = orthogonal(scale, column_axis=column_axis)(key, shape[-2:], dtype)
        space = shape[:-2]
        low = [(n - 1) // 2 for n in space]
        high = [n - 1 - front for n, front in zip(space, low)]
        return ops.pad(ops.reshape(matrix, (*[1] * len(space), *shape[-2:])), 0, [*low, 0, 0], [*high, 0, 0])

    return make
