"""Products of vectors and matrices. Factorisations and solvers are in `rlx.numpy.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DTypeLike
from rlx.numpy.arguments import array_function, operand, promoted, rank_of, static_size, value
from rlx.numpy.reductions import sum
from rlx.ops.define.operands import dims_of

__all__ = [
    "convolve",
    "correlate",
    "cross",
    "diagonal",
    "dot",
    "einsum",
    "einsum_path",
    "inner",
    "kron",
    "matmul",
    "matrix_transpose",
    "matvec",
    "outer",
    "tensordot",
    "trace",
    "vdot",
    "vecdot",
    "vecmat",
]


def _options(precision: str | None, wanted: DTypeLike | None) -> dict[str, Any]:
    """Those of the ops, by the names that JAX has for them."""
    return {"precision": precision or "default", "out_dtype": wanted}


@array_function
def matmul(
    x1: Any,
    x2: Any,
    /,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> Any:
    """The matrix product of the last two axes; leading axes broadcast, vectors are a row on the left, a column on
    the right. `precision` is that of the `matmul` op. `preferred_element_type`, or `out_dtype`, is the type of the
    result, which sums are rounded to once."""
    return ops.matmul(*promoted(x1, x2), **_options(precision, preferred_element_type or out_dtype))


@array_function
def dot(a: Any, b: Any, *, precision: str | None = None, preferred_element_type: DTypeLike | None = None) -> Any:
    """The inner product of vectors, the matrix product of matrices, else the last axis of a with the last but one of
    b; scalars multiply. Options are those of `matmul`."""
    a, b = promoted(a, b)
    if not rank_of(a) or not rank_of(b):
        wanted = preferred_element_type
        return ops.mul(a, b) if wanted is None else ops.mul(ops.cast(a, wanted), ops.cast(b, wanted))
    return ops.dot(a, b, **_options(precision, preferred_element_type))


@array_function
def vdot(a: Any, b: Any, /, *, precision: str | None = None, preferred_element_type: DTypeLike | None = None) -> Any:
    """Σ conj(a)·b over the flattened operands. Options are those of `matmul`."""
    a, b = promoted(a, b)
    options = _options(precision, preferred_element_type)
    return ops.dot(ops.conjugate(ops.flatten(a)), ops.flatten(b), **options)


@array_function
def inner(a: Any, b: Any, /, *, precision: str | None = None, preferred_element_type: DTypeLike | None = None) -> Any:
    """The sum of products over the last axis of each; scalars multiply. Options are those of `matmul`."""
    if not rank_of(a) or not rank_of(b):
        return dot(a, b, precision=precision, preferred_element_type=preferred_element_type)
    return ops.inner(*promoted(a, b), **_options(precision, preferred_element_type))


@array_function
def outer(a: Any, b: Any) -> Any:
    """All products a[i]*b[j] of the flattened operands."""
    return ops.outer(*promoted(a, b))


@array_function
def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    precision: str | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """Σ conj(x1)·x2 along `axis`; the other axes broadcast. Options are those of `matmul`."""
    x1, x2 = promoted(x1, x2)
    return ops.vecdot(x1, x2, axis, **_options(precision, preferred_element_type))


@array_function
def matvec(x1: Any, x2: Any, /) -> Any:
    """Matrices [.., m, n] times vectors [.., n]; leading axes broadcast."""
    x1, x2 = promoted(x1, x2)
    return ops.squeeze(ops.matmul(x1, ops.expand_dims(x2, -1)), -1)


@array_function
def vecmat(x1: Any, x2: Any, /) -> Any:
    """Conjugated vectors [.., n] times matrices [.., n, m]; leading axes broadcast."""
    x1, x2 = promoted(x1, x2)
    return ops.squeeze(ops.matmul(ops.expand_dims(ops.conjugate(x1), -2), x2), -2)


@array_function
def tensordot(
    x1: Any,
    x2: Any,
    /,
    axes: Any = 2,
    *,
    precision: str | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """The sum of products over the last `axes` axes of x1 and the first of x2, or over a pair of axis lists. Options
    are those of `matmul`."""
    x1, x2 = promoted(x1, x2)
    return ops.tensordot(x1, x2, axes, **_options(precision, preferred_element_type))


def einsum_path(subscripts: Any, /, *arrays: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """NumPy's order of products for `einsum`, and its text; only sizes are looked at, so that programs may ask too."""
    stand_ins: list[Any] = [
        x if isinstance(x, str | list | tuple) else np.broadcast_to(0.0, _known_sizes(x)) for x in arrays
    ]
    if not isinstance(subscripts, str):
        subscripts = np.broadcast_to(0.0, _known_sizes(subscripts))
    path, text = np.einsum_path(subscripts, *stand_ins, optimize=optimize)
    return path, text


def _known_sizes(x: Any) -> tuple[int, ...]:
    return tuple(static_size(n, "einsum_path") for n in dims_of(operand(x)))


@array_function
def einsum(
    subscripts: Any,
    /,
    *arrays: Any,
    precision: str | None = None,
    preferred_element_type: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    optimize: Any = True,
) -> Any:
    """The sum of products that labels describe: "ij,jk->ik", "...ii->...i". The order of products is always chosen.
    Options are those of `matmul`."""
    options = _options(precision, preferred_element_type or out_dtype)
    if isinstance(subscripts, str):
        return ops.einsum(subscripts, *(value(x) for x in arrays), **options)
    # NumPy's other form: operand, labels, operand, labels, ... [result labels]
    given = [subscripts, *arrays]
    parts = [value(x) if i % 2 == 0 and i + 1 < len(given) else x for i, x in enumerate(given)]
    return ops.einsum(*parts, **options)


@array_function
def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    if rank_of(x) < 2:
        raise ShapeError(f"matrix_transpose: needs an array with two axes or more, got shape {dims_of(x)}")
    return ops.swapaxes(value(x), -1, -2)


@array_function
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Elements [.., i, i + offset] of two axes, which become the last axis."""
    return ops.diagonal(value(x), offset, axis1, axis2)


@array_function
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None) -> Any:
    """The sum along a diagonal."""
    return sum(ops.diagonal(value(x), offset, axis1, axis2), -1, dtype)


@array_function
def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: blocks a[i, j]*b."""
    a, b = promoted(a, b)
    rank = rank_of(a) if rank_of(a) > rank_of(b) else rank_of(b)
    a_dims = (*(1,) * (rank - rank_of(a)), *dims_of(a))
    b_dims = (*(1,) * (rank - rank_of(b)), *dims_of(b))
    # Axis pairs (i of a, i of b) side by side, then joined.
    a = ops.reshape(a, [d for n in a_dims for d in (n, 1)])
    b = ops.reshape(b, [d for n in b_dims for d in (1, n)])
    return ops.reshape(ops.mul(a, b), [m * n for m, n in zip(a_dims, b_dims)])


@array_function
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The vector product of vectors with three (or two) components along an axis."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = promoted(a, b)
    a = ops.moveaxis(a, axisa, -1)
    b = ops.moveaxis(b, axisb, -1)
    sizes = (dims_of(a)[-1], dims_of(b)[-1])
    if any(n not in (2, 3) for n in sizes):
        raise ShapeError(f"cross: vectors need 2 or 3 components, got {sizes[0]} and {sizes[1]}")
    a0, a1, a2 = _components(a)
    b0, b1, b2 = _components(b)
    z = ops.sub(ops.mul(a0, b1), ops.mul(a1, b0))
    if sizes == (2, 2):
        return z
    x = ops.sub(ops.mul(a1, b2), ops.mul(a2, b1))
    y = ops.sub(ops.mul(a2, b0), ops.mul(a0, b2))
    return ops.moveaxis(ops.stack([x, y, z], axis=-1), -1, axisc)


def _components(x: Any) -> list[Any]:
    """Three components along the last axis; one that is missing is 0."""
    count = dims_of(x)[-1]
    found = [ops.squeeze(ops.narrow(x, -1, i, 1), -1) for i in range(count)]
    return found if count == 3 else [*found, ops.zeros_like(found[0])]


def _sliding(a: Any, v: Any, mode: str, function: str) -> Any:
    """y[k] = Σ a[k + i - left]·v[i], with as much of the ends as `mode` says."""
    a, v = promoted(a, v)
    if rank_of(a) != 1 or rank_of(v) != 1:
        raise ShapeError(f"{function}: needs vectors, got shapes {dims_of(a)} and {dims_of(v)}")
    taps = static_size(dims_of(v)[0], function)
    if taps == 0 or dims_of(a)[0] == 0:
        raise ShapeError(f"{function}: the vectors cannot be empty, got shapes {dims_of(a)} and {dims_of(v)}")
    margins = {"full": (taps - 1, taps - 1), "valid": (0, 0), "same": (taps // 2, taps - 1 - taps // 2)}
    if mode not in margins:
        raise OpError(f"{function}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    low, high = margins[mode]
    row = ops.conv(ops.reshape(a, (1, 1, -1)), ops.reshape(v, (1, 1, -1)), padding=[(low, high)])
    return ops.reshape(row, (-1,))


@array_function
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Σ a[i]·v[k - i] for vectors; `mode` is "full", "same" (the length of the longer one) or "valid"."""
    if _is_shorter(a, v):
        a, v = v, a
    return _sliding(a, ops.reverse(value(v), 0), mode, "convolve")


@array_function
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Σ a[i + k]·conj(v[i]) for vectors; modes as in `convolve`."""
    if not _is_shorter(a, v):
        return _sliding(a, ops.conjugate(value(v)), mode, "correlate")
    return ops.reverse(_sliding(ops.conjugate(value(v)), a, mode, "correlate"), 0)


def _is_shorter(a: Any, v: Any) -> bool:
    """Whether `a` is known to be shorter than `v`; the shorter vector slides."""
    sizes = (*dims_of(a)[:1], *dims_of(v)[:1])
    return len(sizes) == 2 and all(isinstance(n, int) for n in sizes) and sizes[0] < sizes[1]
