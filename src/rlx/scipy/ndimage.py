"""Images at places between their pixels, under the name of `scipy.ndimage`.

>>> map_coordinates([[0.0, 1.0], [2.0, 3.0]], [[0.5], [0.5]], order=1).tolist()
[1.5]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, inexact, static_size, value
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["map_coordinates"]


def _mirrored(i: Any, n: int) -> Any:
    """The pixel that stands at i when an axis goes on as its mirror image, without its last pixel again."""
    if n == 1:
        return i * 0
    i = rnp.remainder(i, 2 * (n - 1))
    return rnp.minimum(i, 2 * (n - 1) - i)


def _reflected(i: Any, n: int) -> Any:
    """The same, where the last pixel stands twice."""
    i = rnp.remainder(i, 2 * n)
    return rnp.minimum(i, 2 * n - 1 - i)


_PLACES: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda i, n: rnp.clip(i, 0, n - 1),
    "nearest": lambda i, n: rnp.clip(i, 0, n - 1),
    "wrap": lambda i, n: rnp.remainder(i, n),
    "mirror": _mirrored,
    "reflect": _reflected,
}


@array_function
def map_coordinates(
    input: Any,
    coordinates: Sequence[Any] | Any,
    order: int = 1,
    mode: str = "constant",
    cval: Any = 0.0,
    prefilter: bool = True,
) -> Any:
    """The values of `input` at `coordinates`, an array for each axis: of the nearest pixel (order 0), or linear between
    neighbours (order 1).

    Pixels outside are `cval` ("constant"), the last ones ("nearest"), those of the other end ("wrap"), or of the mirror
    image without ("mirror") or with ("reflect") the last pixel again. `prefilter` belongs to higher orders.
    """
    image = value(input)
    dims = [static_size(n, "map_coordinates") for n in dims_of(image)]
    places = inexact(*(coordinates[i] for i in range(len(coordinates))))
    if len(places) != len(dims):
        raise ShapeError(f"map_coordinates: an image {dims} needs {len(dims)} coordinates, got {len(places)}")
    if mode not in _PLACES:
        raise OpError(f"map_coordinates: mode must be one of {', '.join(_PLACES)}, got {mode!r}")
    if order not in (0, 1):
        raise OpError(f"map_coordinates: order must be 0 (nearest) or 1 (linear), got {order!r}")
    neighbours = [_neighbours(x, n, order, mode) for x, n in zip(rnp.broadcast_arrays(*places), dims)]
    outside = rnp.asarray(cval, dtype_of(image))
    total: Any = 0
    for corner in itertools.product(*neighbours):
        found = image[tuple(pixel for pixel, _, _ in corner)]
        for _, inside, _ in corner:
            found = found if inside is None else rnp.where(inside, found, outside)
        for _, _, weight in corner:
            found = found if weight is None else found * weight
        total = found + total
    if dtype_of(image).is_inexact:
        return total.astype(dtype_of(image))
    return (rnp.round(total) if order else total).astype(dtype_of(image))


def _neighbours(x: Any, size: int, order: int, mode: str) -> list[tuple[Any, Any, Any]]:
    """The pixels around a coordinate: which, whether they are inside (None: always), and their weights (None: 1)."""

    def pixel(i: Any, weight: Any) -> tuple[Any, Any, Any]:
        number = i.astype("i32")
        inside = (number >= 0) & (number < size) if mode == "constant" else None
        return _PLACES[mode](number, size), inside, weight

    if order == 0:
        return [pixel(rnp.floor(x + 0.5), None)]
    low = rnp.floor(x)
    share = x - low
    return [pixel(low, 1 - share), pixel(low + 1, share)]
