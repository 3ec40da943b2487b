"""Discrete Fourier transforms: `rlx.numpy.fft`, as numpy.fft and the array API extension.

float16, bfloat16 and float32 are transformed in complex64, float64 in complex128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.errors import DTypeError, OpError, ShapeError
from rlx.ir.dtype import DTypeLike
from rlx.ir.fft import FftNorm
from rlx.numpy.arguments import Axis, array_function, axes_of, axis_of, convert, inexact, rank_of, static_size, value
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]


def _transform(x: Any, n: int | None, axis: int, norm: str | None, inverse: bool, function: str) -> Any:
    """The complex transform of a complex array along one axis, cut or filled with zeros to n points."""
    axis = axis_of(axis, x, function)
    x = _resized(x, n, axis, function)
    points = static_size(dims_of(x)[axis], function)
    where, scale = _scaling(points, norm, inverse, function)
    result = ops.fft_axis(x, axis, inverse, where)
    return result if scale == 1 else result * scale


def _scaling(points: int, norm: str | None, inverse: bool, function: str) -> tuple[FftNorm, float]:
    """The scaling that the transform has itself, and what is left to multiply by."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise OpError(f"{function}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if norm == "ortho":
        return FftNorm.Ortho, 1
    if inverse:
        return FftNorm.Backward if norm == "forward" else FftNorm.Forward, 1
    return FftNorm.Backward, 1 / points if norm == "forward" else 1


def _along(x: Any, axis: int, transform: Callable[[Any], Any]) -> Any:
    """A transform of the last axis, applied along any."""
    return transform(x) if axis == rank_of(x) - 1 else ops.swapaxes(transform(ops.swapaxes(x, axis, -1)), axis, -1)


def _resized(x: Any, n: int | None, axis: int, function: str) -> Any:
    if n is None:
        n = static_size(dims_of(x)[axis], function)
    if n < 1:
        raise ShapeError(f"{function}: needs at least one point, got {n}")
    have = dims_of(x)[axis]
    if have == n:
        return x
    return ops.pad(x, 0, high=[n - have if i == axis else 0 for i in range(rank_of(x))])


def _complex(x: Any) -> Any:
    (x,) = inexact(x)
    return convert(x, dtype_of(x).complex)


def _real(x: Any, function: str) -> Any:
    (x,) = inexact(x)
    if dtype_of(x).is_complex:
        raise DTypeError(f"{function}: needs real numbers, got {dtype_of(x)}; use the function without r")
    return convert(x, dtype_of(x).accumulator)


@array_function
def fft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """X[k] = Σ x[j]·exp(-2πi·jk/n) along `axis`, with x cut or filled with zeros to n points."""
    return _transform(_complex(x), n, axis, norm, False, "fft")


@array_function
def ifft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`."""
    return _transform(_complex(x), n, axis, norm, True, "ifft")


@array_function
def rfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first n/2 + 1 values of `fft` for real x; the others are their mirror image."""
    x = _real(x, "rfft")
    axis = axis_of(axis, x, "rfft")
    x = _resized(x, n, axis, "rfft")
    where, scale = _scaling(static_size(dims_of(x)[axis], "rfft"), norm, False, "rfft")
    result = _along(x, axis, ops.Rfft(where))
    return result if scale == 1 else result * scale


@array_function
def irfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The n real values (2(m - 1) for m given ones by default) whose `rfft` is x."""
    x = _complex(x)
    axis = axis_of(axis, x, "irfft")
    points = 2 * (static_size(dims_of(x)[axis], "irfft") - 1) if n is None else n
    if points < 1:
        raise ShapeError(f"irfft: needs at least one point, got n={points}")
    where, _ = _scaling(points, norm, True, "irfft")
    return _along(_resized(x, points // 2 + 1, axis, "irfft"), axis, ops.Irfft(points, where))


@array_function
def hfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real spectrum of a signal that is Hermitian in time, given by its first half."""
    swapped = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
    if norm not in swapped:
        raise OpError(f"hfft: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    return irfft(ops.conjugate(_complex(x)), n, axis, swapped[norm])


@array_function
def ihfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `hfft`."""
    swapped = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
    if norm not in swapped:
        raise OpError(f"ihfft: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    return ops.conjugate(rfft(x, n, axis, swapped[norm]))


def _axes_and_sizes(
    x: Any, s: Sequence[int | None] | None, axes: Sequence[int] | None, function: str
) -> list[tuple[int, int | None]]:
    if axes is None:
        axes = range(rank_of(x)) if s is None else range(rank_of(x) - len(s), rank_of(x))
    sizes = [None] * len(axes) if s is None else list(s)
    if len(sizes) != len(axes):
        raise ShapeError(f"{function}: needs one size per axis, got s={s} for axes {tuple(axes)}")
    return [(axis_of(a, x, function), None if n == -1 else n) for a, n in zip(axes, sizes)]


def _several(x: Any, s: Any, axes: Any, norm: str | None, inverse: bool, function: str) -> Any:
    x = _complex(x)
    for axis, n in reversed(_axes_and_sizes(x, s, axes, function)):
        x = _transform(x, n, axis, norm, inverse, function)
    return x


@array_function
def fftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """`fft` along several axes, all of them by default."""
    return _several(x, s, axes, norm, False, "fftn")


@array_function
def ifftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `fftn`."""
    return _several(x, s, axes, norm, True, "ifftn")


@array_function
def fft2(x: Any, /, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`fft` along two axes."""
    return _several(x, s, axes, norm, False, "fft2")


@array_function
def ifft2(x: Any, /, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `fft2`."""
    return _several(x, s, axes, norm, True, "ifft2")


@array_function
def rfftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """`rfft` along the last of several axes, `fft` along the others."""
    x = _real(x, "rfftn")
    *others, (last, n) = _axes_and_sizes(x, s, axes, "rfftn")
    x = rfft(x, n, last, norm)
    for axis, size in reversed(others):
        x = _transform(x, size, axis, norm, False, "rfftn")
    return x


@array_function
def irfftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `rfftn`."""
    x = _complex(x)
    *others, (last, n) = _axes_and_sizes(x, s, axes, "irfftn")
    for axis, size in others:
        x = _transform(x, size, axis, norm, True, "irfftn")
    return irfft(x, n, last, norm)


@array_function
def rfft2(x: Any, /, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`rfftn` along two axes."""
    return rfftn(x, s, axes, norm)


@array_function
def irfft2(x: Any, /, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `rfft2`."""
    return irfftn(x, s, axes, norm)


def fftfreq(n: int, /, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Any = None) -> Any:
    """The frequencies of `fft`, in cycles per unit of the sample distance d: 0, 1, .. , -2, -1 over n·d."""
    steps = [*range((n + 1) // 2), *range(-(n // 2), 0)]
    return _frequencies(steps, n, d, dtype)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Any = None) -> Any:
    """The frequencies of `rfft`: 0, 1, .. , n/2 over n·d."""
    return _frequencies(list(range(n // 2 + 1)), n, d, dtype)


def _frequencies(steps: list[int], n: int, d: float, dtype: DTypeLike | None) -> Any:
    from rlx.numpy.creation import asarray

    return asarray([step / (n * d) for step in steps], float if dtype is None else dtype)


def _shifted(x: Any, axes: Axis, sign: int, function: str) -> Any:
    x = value(x)
    chosen = axes_of(axes, rank_of(x), function)
    shifts = [sign * (dims_of(x)[a] // 2) for a in chosen]
    return ops.roll(x, shifts, chosen) if chosen else x


@array_function
def fftshift(x: Any, /, axes: Axis = None) -> Any:
    """Frequency 0 moved to the middle of each axis."""
    return _shifted(x, axes, 1, "fftshift")


@array_function
def ifftshift(x: Any, /, axes: Axis = None) -> Any:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1, "ifftshift")
