"""Layout vocabulary: tiles, coordinates and strides (in elements), nested shapes, ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from rlx.errors import ShapeError


class Tile2(NamedTuple):
    """A block of a matrix."""

    rows: int
    cols: int

    @property
    def area(self) -> int:
        return self.rows * self.cols


class Tile3(NamedTuple):
    """A block of a batch of matrices."""

    batch: int
    rows: int
    cols: int

    @property
    def area(self) -> int:
        return self.batch * self.rows * self.cols


class Coord2(NamedTuple):
    """A position in a matrix."""

    row: int
    col: int


class Strides2(NamedTuple):
    """Elements from one row, and from one column, to the next."""

    row: int
    col: int

    @staticmethod
    def row_major(cols: int) -> Strides2:
        return Strides2(cols, 1)

    @staticmethod
    def col_major(rows: int) -> Strides2:
        return Strides2(1, rows)

    def offset(self, at: Coord2) -> int:
        return at.row * self.row + at.col * self.col


class Strides3(NamedTuple):
    """Elements from one matrix, row and column to the next."""

    batch: int
    row: int
    col: int

    @staticmethod
    def row_major(rows: int, cols: int) -> Strides3:
        return Strides3(rows * cols, cols, 1)


class ShapeTuple(NamedTuple):
    """A size, or a tuple of ShapeTuples: the shape of a tile of tiles.

    >>> s = ShapeTuple.nested([ShapeTuple.leaf(4), ShapeTuple.flat([2, 8])])
    >>> str(s), s.rank, s.product, s.flatten(), s.get((1, 0)).product
    ('(4, (2, 8))', 2, 64, (4, 2, 8), 2)
    """

    node: int | tuple[ShapeTuple, ...]

    @staticmethod
    def leaf(size: int) -> ShapeTuple:
        return ShapeTuple(size)

    @staticmethod
    def nested(parts: Sequence[ShapeTuple]) -> ShapeTuple:
        return ShapeTuple(tuple(parts))

    @staticmethod
    def flat(dims: Sequence[int]) -> ShapeTuple:
        """One level of leaves."""
        return ShapeTuple(tuple(ShapeTuple(d) for d in dims))

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.node, int)

    @property
    def parts(self) -> tuple[ShapeTuple, ...]:
        """The children; none for a leaf."""
        return () if isinstance(self.node, int) else self.node

    @property
    def rank(self) -> int:
        """Number of top-level parts; 1 for a leaf."""
        return 1 if isinstance(self.node, int) else len(self.node)

    @property
    def product(self) -> int:
        return prod(self.flatten())

    def flatten(self) -> tuple[int, ...]:
        """All leaf sizes, left to right."""
        if isinstance(self.node, int):
            return (self.node,)
        return tuple(size for part in self.node for size in part.flatten())

    def get(self, path: Sequence[int]) -> ShapeTuple:
        """The part reached by taking child `path[0]`, then its child `path[1]`, ..."""
        here = self
        for step in path:
            if not 0 <= step < len(here.parts):
                raise ShapeError(f"ShapeTuple {self}: the path {tuple(path)} leaves the tree at {here}")
            here = here.parts[step]
        return here

    def __str__(self) -> str:
        return str(self.node) if isinstance(self.node, int) else f"({', '.join(map(str, self.node))})"


class Ragged(NamedTuple):
    """Rows of different lengths in one buffer: row i is `data[offsets[i]:offsets[i+1]]`, each item `trailing` wide.

    >>> r = Ragged(rows=3, trailing=8, total=10)
    >>> r.data_elements, r.offsets_elements
    (80, 4)
    """

    rows: int
    trailing: int
    total: int

    @property
    def data_elements(self) -> int:
        return self.total * self.trailing

    @property
    def offsets_elements(self) -> int:
        return self.rows + 1
