"""Cosine transforms under the names of `scipy.fft`; `rlx.numpy.fft` has those of Fourier.

>>> [round(float(x), 3) for x in dct([1.0, 2.0, 4.0], norm="ortho")]
[4.041, -2.121, 0.408]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, axis_of, inexact, static_size
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["dct", "dctn", "idct", "idctn"]

_INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}


@array_function
def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The discrete cosine transform of type 1, 2, 3 or 4 along `axis`, of x cut or filled with zeros to n elements.

    `norm` is "backward" (no factor here), "forward" (all of it) or "ortho", which makes types 2, 3 and 4 orthogonal.
    """
    return _along(x, type, n, axis, norm, is_inverse=False)


@array_function
def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `dct` with the same arguments."""
    return _along(x, type, n, axis, norm, is_inverse=True)


@array_function
def dctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """`dct` along several axes, by default all, or the last ones that `s` gives sizes for."""
    return _over(x, type, s, axes, norm, is_inverse=False)


@array_function
def idctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """The inverse of `dctn` with the same arguments."""
    return _over(x, type, s, axes, norm, is_inverse=True)


def _over(
    x: Any, kind: int, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str | None, is_inverse: bool
) -> Any:
    rank = len(dims_of(x))
    chosen = [*range(rank)] if axes is None and s is None else axes
    chosen = [*range(rank - len(s or ()), rank)] if chosen is None else [*chosen]
    if s is not None and len(s) != len(chosen):
        raise ShapeError(f"dctn: s gives {len(s)} sizes for {len(chosen)} axes")
    sizes: Sequence[int | None] = s or [None] * len(chosen)
    for axis, size in zip(chosen, sizes):
        x = _along(x, kind, size, axis, norm, is_inverse)
    return x


def _along(x: Any, kind: int, n: int | None, axis: int, norm: str | None, is_inverse: bool) -> Any:
    if kind not in _INVERSE:
        raise OpError(f"dct: type must be 1, 2, 3 or 4, got {kind!r}")
    if norm not in (None, "backward", "ortho", "forward"):
        raise OpError(f"dct: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    (x,) = inexact(x)
    if dtype_of(x).is_complex:
        parts = (_along(part, kind, n, axis, norm, is_inverse) for part in (ops.real(x), ops.imag(x)))
        return ops.complex_(*parts)
    axis = axis_of(axis, x, "dct")
    x = _sized(ops.moveaxis(x, axis, -1), n)
    kind = _INVERSE[kind] if is_inverse else kind
    size = static_size(dims_of(x)[-1], "dct")
    if size < (2 if kind == 1 else 1):
        raise ShapeError(f"dct: type {kind} needs at least {2 if kind == 1 else 1} elements, got {size}")
    period = 2 * (size - 1 if kind == 1 else size)
    ends = np.ones(size)
    if norm == "ortho" and kind != 4:
        # The first coefficient, of type 1 also the last one, has another length than the rest.
        ends[[0, -1] if kind == 1 else [0]] = math.sqrt(2)
    ends = ends.astype(dtype_of(x).numpy)
    found = _transformed(x * ends if kind in (1, 3) else x, kind)
    found = found / ends if kind in (1, 2) else found
    whole = norm == "forward" if not is_inverse else norm in (None, "backward")
    factor = 1 / math.sqrt(period) if norm == "ortho" else 1 / period if whole else 1.0
    return ops.moveaxis(found * factor, -1, axis)


def _sized(x: Any, n: int | None) -> Any:
    size = static_size(dims_of(x)[-1], "dct")
    if n is None or n == size:
        return x
    if n < size:
        return x[..., :n]
    return rnp.pad(x, [*[(0, 0)] * (len(dims_of(x)) - 1), (0, n - size)])


def _transformed(x: Any, kind: int) -> Any:
    """The transform without any factor, by a Fourier transform of twice the size."""
    size = static_size(dims_of(x)[-1], "dct")
    if kind == 1:
        around = rnp.concatenate([x, rnp.flip(x[..., 1:-1], -1)], -1)
        return ops.real(rnp.fft.rfft(around))
    place = np.arange(size)
    wide = np.complex128 if dtype_of(x).numpy == np.float64 else np.complex64
    turn = np.exp(-0.5j * np.pi * place / size).astype(wide)
    if kind == 2:
        return ops.real(rnp.fft.rfft(rnp.concatenate([x, rnp.flip(x, -1)], -1))[..., :size] * turn)
    if kind == 3:
        weights = np.where(place == 0, 1.0, 2.0).astype(dtype_of(x).numpy)
        return ops.real(rnp.fft.fft(x * weights * turn, 2 * size)[..., :size])
    last = (2 * np.exp(-0.5j * np.pi * (place + 0.5) / size)).astype(wide)
    return ops.real(rnp.fft.fft(x * turn, 2 * size)[..., :size] * last)
