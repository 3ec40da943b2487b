"""`Route`: which rows belong to which expert, as kernels read it from the lists of `rlx.ops.lowered.expert_products`.

A block has rows of one expert. How many blocks an expert has depends on the ids, the number of parallel iterations must
not: there are as many as there could be, and each finds its expert here; those that find none do nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value


class RoutedRows(NamedTuple):
    """The rows of a block: their expert, where they begin in the route, and how many they are (0: none)."""

    expert: Value
    first: Value
    height: Value


class Route(NamedTuple):
    """The route of `rows` rows to `experts` experts. What a false one names is clipped."""

    k: KernelBuilder
    lists: Buffer
    experts: int
    rows: Value

    def _listed(self, place: Value) -> Value:
        return self.k.cast(self.k.load(self.lists, place), DType.I64)

    def row(self, position: Value) -> Value:
        """The row at a position of the route."""
        return self.k.max(self.k.min(self._listed(position + 2 * self.experts), self.rows - 1), 0)

    def most_blocks(self, most: int) -> Value:
        """As many blocks of at most so many rows as there could be: a chosen expert begins one, and every full block of
        rows one more at most."""
        return self.k.min(self.rows, self.experts) + self.rows // most

    def block(self, number: Value, most: int, tile_rows: int = 1) -> RoutedRows:
        """One of the blocks of at most `most` rows: of equal height, as far as whole tiles allow."""
        k = self.k
        zero = k.as_index(0)
        with k.fold("chosen", 0, k.min(self.rows, self.experts), init=[number, zero, zero, zero, zero, zero]) as fold:
            left, begin, *found = fold.values
            end = k.max(k.min(self._listed(fold.index + self.experts), self.rows), begin)
            count = end - begin
            blocks = k.ceildiv(count, most)
            is_here = (left >= 0) & (left < blocks)
            here = [k.select(is_here, new, old) for new, old in zip((fold.index, begin, count, left), found)]
            fold.next(left - blocks, end, *here)
        _, _, place, begin, count, inside = fold.results
        tiles, blocks = k.ceildiv(count, tile_rows), k.max(k.ceildiv(count, most), 1)
        height = (tiles + blocks - 1) // blocks * tile_rows
        expert = k.max(k.min(self._listed(place), self.experts - 1), 0)
        row = inside * height
        return RoutedRows(expert, begin + row, k.min(count - row, height))
