"""Images of another size, with the names and conventions of `jax.image`: `resize` and `scale_and_translate`.

Pixel i covers the coordinates from i to i + 1, so its centre is at i + ½. Every axis is resampled by itself: the pixels
of the result are weighted means of those of the image, with weights that a kernel gives to their distances.

>>> import numpy as np
>>> resize(np.float32([0.0, 2.0]), (4,), "linear").tolist()
[0.0, 0.5, 1.5, 2.0]
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.shape import normalize_axis
from rlx.numpy.arguments import array_function, dims_from, inexact, static_size, value
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(enum.Enum):
    """How pixels between pixels are found; functions take the names as text, too."""

    NEAREST = "nearest"
    LINEAR = "linear"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    CUBIC = "cubic"
    # Torch's cubic without antialiasing: another slope, and edges that are repeated.
    CUBIC_PYTORCH = "cubic-pytorch"
    AREA = "area"

    @staticmethod
    def from_string(name: str) -> ResizeMethod:
        for method, names in _NAMES.items():
            if name in names:
                return method
        known = ", ".join(sorted(n for names in _NAMES.values() for n in names))
        raise OpError(f"resize: there is no method {name!r}; there are {known}")


_NAMES = {
    ResizeMethod.NEAREST: ("nearest",),
    ResizeMethod.LINEAR: ("linear", "bilinear", "trilinear", "triangle"),
    ResizeMethod.LANCZOS3: ("lanczos3",),
    ResizeMethod.LANCZOS5: ("lanczos5",),
    ResizeMethod.CUBIC: ("cubic", "bicubic", "tricubic"),
    ResizeMethod.CUBIC_PYTORCH: ("cubic-pytorch", "bicubic-pytorch"),
    ResizeMethod.AREA: ("area",),
}


class _Kernel(NamedTuple):
    """The weight at a distance of at most `radius` pixels; `xp` is numpy, or rlx.numpy for computed distances."""

    radius: int
    weight: Callable[[Any, Any], Any]


def _triangle(xp: Any, x: Any) -> Any:
    return xp.maximum(1.0 - x, 0.0)


def _cubic(a: float) -> Callable[[Any, Any], Any]:
    """Keys' piecewise cubic with the slope `a` at distance 1."""

    def weight(xp: Any, x: Any) -> Any:
        near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        far = a * (((x - 5.0) * x + 8.0) * x - 4.0)
        return xp.where(x < 1.0, near, xp.where(x < 2.0, far, 0.0))

    return weight


def _lanczos(radius: int) -> Callable[[Any, Any], Any]:
    return lambda xp, x: xp.where(x < radius, xp.sinc(x) * xp.sinc(x / radius), 0.0)


_KERNELS = {
    ResizeMethod.LINEAR: _Kernel(1, _triangle),
    ResizeMethod.LANCZOS3: _Kernel(3, _lanczos(3)),
    ResizeMethod.LANCZOS5: _Kernel(5, _lanczos(5)),
    ResizeMethod.CUBIC: _Kernel(2, _cubic(-0.5)),
    ResizeMethod.CUBIC_PYTORCH: _Kernel(2, _cubic(-0.75)),
}

# Weights whose sum is smaller are noise; there is nothing to be seen at such a place.
_LEAST_SUM = 1000.0 * float(np.finfo(np.float32).eps)


def _weights(
    xp: Any, size: int, count: int, scale: Any, translation: Any, method: ResizeMethod, antialias: bool
) -> Any:
    """How much of each of `size` pixels goes into each of `count` new ones: [count, size]."""
    places = np.arange(count)[:, None]
    if method is ResizeMethod.AREA:
        first = (places - translation) / scale
        last = first + 1.0 / scale
        edges = np.arange(size)[None, :] + 0.0
        weights = xp.maximum(xp.minimum(last, edges + 1.0) - xp.maximum(first, edges), 0.0)
        centres = (places + 0.5 - translation) / scale
    else:
        centres = (places + 0.5 - translation) / scale
        kernel = _KERNELS[method]
        repeats_edges = method is ResizeMethod.CUBIC_PYTORCH and not antialias
        beyond = kernel.radius if repeats_edges else 0
        pixels = np.arange(-beyond, size + beyond)[None, :] + 0.5
        # A smaller picture is made of means over wider places, else what lies between its pixels would be lost.
        stretch = xp.maximum(1.0 / scale, 1.0) if antialias else 1.0
        weights = kernel.weight(xp, xp.abs(centres - pixels) / stretch)
        if repeats_edges:
            inside = weights[:, beyond : beyond + size]
            left = weights[:, :beyond].sum(1, keepdims=True) * (np.arange(size) == 0)
            right = weights[:, beyond + size :].sum(1, keepdims=True) * (np.arange(size) == size - 1)
            weights = inside + left + right
    total = weights.sum(1, keepdims=True)
    seen = xp.abs(total) > _LEAST_SUM
    weights = xp.where(seen, weights / xp.where(seen, total, 1.0), 0.0)
    return xp.where((centres >= 0.0) & (centres <= size), weights, 0.0)


def _resampled(x: Any, axis: int, weights: Any) -> Any:
    """The pixels along one axis replaced by their weighted means."""
    moved = ops.moveaxis(x, axis, -1)
    return ops.moveaxis(ops.matmul(moved, ops.transpose(ops.cast(value(weights), dtype_of(x)), (1, 0))), -1, axis)


def _nearest(x: Any, axis: int, count: int) -> Any:
    size = static_size(dims_of(x)[axis], "resize")
    # The pixel in which the centre (i + ½)·size / count lies, in whole numbers.
    ids = (2 * np.arange(count, dtype=np.int64) + 1) * size // (2 * max(count, 1))
    return ops.take(x, ids.astype(np.int32), axis)


def _method(method: ResizeMethod | str, antialias: bool) -> ResizeMethod:
    chosen = ResizeMethod.from_string(method) if isinstance(method, str) else ResizeMethod(method)
    return ResizeMethod.CUBIC if chosen is ResizeMethod.CUBIC_PYTORCH and antialias else chosen


@array_function
def resize(
    image: Any, shape: Sequence[Any], method: ResizeMethod | str, antialias: bool = True, precision: Any = None
) -> Any:
    """The image with the sizes `shape`, one for every axis; axes that keep their size are left as they are.

    Where axes shrink, `antialias` takes means over as many pixels as become one. `precision` is accepted for JAX.
    """
    image, dims = value(image), dims_from(shape)
    if len(dims) != len(dims_of(image)):
        raise ShapeError(f"resize: shape {dims} has {len(dims)} sizes for an image of {len(dims_of(image))} axes")
    chosen = _method(method, antialias)
    if chosen is not ResizeMethod.NEAREST:
        (image,) = inexact(image)
    for axis, count in enumerate(dims):
        if count == dims_of(image)[axis]:
            continue
        size, count = static_size(dims_of(image)[axis], "resize"), static_size(count, "resize")
        if chosen is ResizeMethod.NEAREST:
            image = _nearest(image, axis, count)
        else:
            scale = count / size if count and size else 1.0
            weights = _weights(np, size, count, scale, 0.0, chosen, antialias)
            image = _resampled(image, axis, weights.astype(dtype_of(image).real.numpy))
    return image


@array_function
def scale_and_translate(
    image: Any,
    shape: Sequence[Any],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: ResizeMethod | str,
    antialias: bool = True,
    precision: Any = None,
) -> Any:
    """A picture of the sizes `shape` in which what is at x in the image is at x · scale + translation.

    `scale` and `translation` have one number for each of the axes `spatial_dims`; they may be computed, and have
    derivatives. What lies outside of the image is 0.
    """
    (image,) = inexact(image)
    rank, dims, chosen = len(dims_of(image)), dims_from(shape), _method(method, antialias)
    if len(dims) != rank:
        raise ShapeError(f"scale_and_translate: shape {dims} has {len(dims)} sizes for an image of {rank} axes")
    if chosen is ResizeMethod.NEAREST:
        raise OpError("scale_and_translate: nearest pixels have no weights; use linear, cubic, lanczos3 or lanczos5")
    (scale, translation) = inexact(scale, translation)
    axes = [normalize_axis(a, rank, "scale_and_translate") for a in spatial_dims]
    for name, numbers in (("scale", scale), ("translation", translation)):
        if tuple(dims_of(numbers)) != (len(axes),):
            raise ShapeError(f"scale_and_translate: {name} needs one number for each of the {len(axes)} spatial_dims")
    kept = [i for i in range(rank) if i not in axes and dims[i] != dims_of(image)[i]]
    if kept:
        raise ShapeError(f"scale_and_translate: axis {kept[0]} changes its size and is none of spatial_dims={axes}")
    for i, axis in enumerate(axes):
        size, count = static_size(dims_of(image)[axis], "scale_and_translate"), static_size(dims[axis], "resize")
        weights = _weights(rnp, size, count, scale[i], translation[i], chosen, antialias)
        image = _resampled(image, axis, weights)
    return image
