"""Interpolation on grids, under the name of `scipy.interpolate`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import concrete, inexact, known_values
from rlx.ops.define.operands import dims_of

__all__ = ["RegularGridInterpolator"]


class RegularGridInterpolator:
    """A function of points from its values on a grid, linear in every cell or that of the nearest grid point.

    >>> f = RegularGridInterpolator(([0.0, 1.0, 3.0], [0.0, 1.0]), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> f([[2.0, 0.5], [9.0, 0.0]]).tolist()
    [3.5, nan]

    Outside of the grid it is `fill_value`, or what the last cell gives where that is None. With `bounds_error` a point
    that is known to lie outside is an error.
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: Any = np.nan,
    ) -> None:
        (self.values,) = inexact(values)
        self.grid = tuple(inexact(axis)[0] for axis in points)
        self.method, self.bounds_error, self.fill_value = _known_method(method), bounds_error, fill_value
        sizes, wanted = [dims_of(axis) for axis in self.grid], dims_of(self.values)[: len(self.grid)]
        if len(self.grid) > len(dims_of(self.values)) or sizes != [(n,) for n in wanted]:
            raise ShapeError(
                f"RegularGridInterpolator: values {dims_of(self.values)} need points of as many elements along each "
                f"axis, got {sizes}"
            )
        for axis in self.grid:
            known = known_values(axis)
            if known is not None and not np.all(np.diff(known) > 0):
                raise OpError("RegularGridInterpolator: the points along every axis must increase")

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        """The values at the points xi[.., axes], or at a tuple with the coordinates along each axis."""
        method = self.method if method is None else _known_method(method)
        if isinstance(xi, tuple):
            xi = rnp.stack(rnp.broadcast_arrays(*xi), -1)
        (xi,) = inexact(xi)
        if not dims_of(xi) or dims_of(xi)[-1] != len(self.grid):
            raise ShapeError(
                f"RegularGridInterpolator: points have {len(self.grid)} coordinates, got shape {dims_of(xi)}"
            )
        cells, shares, outside = [], [], rnp.zeros(dims_of(xi)[:-1], bool)
        for number, axis in enumerate(self.grid):
            x = xi[..., number]
            outside = outside | (x < axis[0]) | (x > axis[-1])
            cell = rnp.clip(rnp.searchsorted(axis, x, side="right") - 1, 0, max(dims_of(axis)[0] - 2, 0))
            after = rnp.minimum(cell + 1, dims_of(axis)[0] - 1)
            width = axis[after] - axis[cell]
            cells.append((cell, after))
            shares.append((x - axis[cell]) / rnp.where(width == 0, 1, width))
        if self.bounds_error and np.any(concrete(outside, "RegularGridInterpolator", "xi with bounds_error=True")):
            raise OpError("RegularGridInterpolator: a point lies outside of the grid")
        extra = (1,) * (len(dims_of(self.values)) - len(self.grid))
        found = self._nearest(cells, shares) if method == "nearest" else self._linear(cells, shares, extra)
        if self.fill_value is None:
            return found
        return rnp.where(rnp.reshape(outside, (*dims_of(outside), *extra)), self.fill_value, found)

    def _nearest(self, cells: list[tuple[Any, Any]], shares: list[Any]) -> Any:
        return self.values[tuple(rnp.where(s <= 0.5, low, high) for (low, high), s in zip(cells, shares))]

    def _linear(self, cells: list[tuple[Any, Any]], shares: list[Any], extra: tuple[int, ...]) -> Any:
        total: Any = 0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight: Any = 1
            for side, share in zip(corner, shares):
                weight = weight * (share if side else 1 - share)
            there = self.values[tuple(cell[side] for cell, side in zip(cells, corner))]
            total = total + there * rnp.reshape(weight, (*dims_of(weight), *extra))
        return total


def _known_method(method: str) -> str:
    if method not in ("linear", "nearest"):
        raise OpError(f"RegularGridInterpolator: method must be 'linear' or 'nearest', got {method!r}")
    return method
