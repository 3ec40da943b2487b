"""Regions: the rectangles of memory that groups copy and multiply.

`Region` is rows that are a stride apart. `Box` is a rectangle of a matrix that may reach beyond it: what lies outside
reads as 0, as Hopper's copy engine does it. `Slabs` is columns in pieces of one width, each with all its rows side by
side, as tensor cores read operands of which rows are wider than they can take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.kernels.ir.loop_ir import Buffer, Space, Value

Use = Callable[[Value], str]
Renew = Callable[[Value], Value]
Places = np.ndarray[Any, np.dtype[np.int64]]
# The place of an element that is not there.
OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class Region:
    """`rows` rows of `cols` elements, `stride` elements apart; a fragment is always a region as a whole."""

    buffer: Buffer
    offset: Value
    rows: int
    cols: int
    stride: Value

    @property
    def is_fragment(self) -> bool:
        return self.buffer.space is Space.FRAGMENT

    def operands(self) -> tuple[Value, ...]:
        return (self.offset, self.stride)

    def text(self, use: Use) -> str:
        size = f"{self.rows}x{self.cols}"
        if self.is_fragment:
            return f"{self.buffer.name} {size}"
        return f"{self.buffer.name}[{use(self.offset)}] {size} stride {use(self.stride)}"

    def renewed(self, new: Renew) -> Region:
        return replace(self, offset=new(self.offset), stride=new(self.stride))

    def places(self, number: Callable[[Value], int]) -> Places:
        """The elements in the buffer, row by row."""
        rows = np.arange(self.rows)[:, None] * number(self.stride)
        return np.asarray(number(self.offset) + rows + np.arange(self.cols))


@dataclass(frozen=True, eq=False)
class Box(Region):
    """From (`row`, `col`) of a matrix of `height` rows and `width` columns on, which begins at `offset`."""

    row: Value
    col: Value
    height: Value
    width: Value

    def operands(self) -> tuple[Value, ...]:
        return (self.offset, self.stride, self.row, self.col, self.height, self.width)

    def text(self, use: Use) -> str:
        start = f"{self.buffer.name}[{use(self.offset)}] {self.rows}x{self.cols} stride {use(self.stride)}"
        return f"{start} at {use(self.row)}, {use(self.col)} of {use(self.height)}x{use(self.width)}"

    def renewed(self, new: Renew) -> Box:
        offset, stride, row, col, height, width = map(new, self.operands())
        return Box(self.buffer, offset, self.rows, self.cols, stride, row, col, height, width)

    def places(self, number: Callable[[Value], int]) -> Places:
        rows = number(self.row) + np.arange(self.rows)[:, None]
        cols = number(self.col) + np.arange(self.cols)
        is_there = (rows >= 0) & (rows < number(self.height)) & (cols >= 0) & (cols < number(self.width))
        return np.where(is_there, number(self.offset) + rows * number(self.stride) + cols, OUTSIDE)


@dataclass(frozen=True, eq=False)
class Slabs(Region):
    """Column c of row r lies at `offset + c // width * rows * width + r * width + c % width`, where the stride is
    `width`."""

    def text(self, use: Use) -> str:
        return f"{self.buffer.name}[{use(self.offset)}] {self.rows}x{self.cols} slabs {use(self.stride)}"

    def places(self, number: Callable[[Value], int]) -> Places:
        width = number(self.stride)
        rows, cols = np.arange(self.rows)[:, None], np.arange(self.cols)
        return np.asarray(number(self.offset) + cols // width * self.rows * width + rows * width + cols % width)
