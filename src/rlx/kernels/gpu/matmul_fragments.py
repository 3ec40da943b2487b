"""`FragmentMaker`: products by instructions for whole matrices where nobody knows which thread has what (Apple's GPUs).

The tiles in shared memory are those of `matmul_waves`. A wave loads matrices from there as a whole, those of B turned,
and its sums go back to shared memory the same way. f16 is multiplied as it is, bf16 and f32 as f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.gpu.matmul_waves import DEPTH, PITCH, LineTile, WaveMaker
from rlx.kernels.ir.loop_ir import Buffer, Value


class FragmentMaker(WaveMaker):
    """Sums are fragments, which are no values: lists of them are empty."""

    # Sixteen matrices of sums, and memory for tiles of f32.
    most = 32

    def tile_type(self, dtype: DType) -> DType:
        return dtype if dtype is DType.F16 else DType.F32

    def first_line(self, lane: Value) -> Value:
        """Threads of a wave say the same place."""
        return self.k.as_index(0)

    def no_sums(self, count: int) -> list[Value]:
        side = self.unit.side
        self.totals = [self.k.fragment(f"total{n}", DType.F32, side, side) for n in range(count)]
        for total in self.totals:
            self.k.wave_fill(self.unit, total, 0.0)
        return []

    def multiplied_tiles(
        self, tiles: Sequence[LineTile], places: Sequence[Value], group: Value, sums: list[Value]
    ) -> list[Value]:
        k, unit, side = self.k, self.unit, self.unit.side
        for start in range(0, DEPTH, side):
            factors = []
            for tile, place, fragments in zip(tiles, places, self.factors(tiles)):
                for i, fragment in enumerate(fragments):
                    source = k.region(tile.buffer, (place + i * side) * PITCH + start, side, side, PITCH)
                    k.wave_load(unit, fragment, source, transposed=not tile.is_a)
                factors.append(fragments)
            rows, *columns = factors
            pairs = [(row, column) for b in columns for row in rows for column in b]
            for total, (row, column) in zip(self.totals, pairs):
                k.wave_product(unit, total, row, column)
        return sums

    def factors(self, tiles: Sequence[LineTile]) -> list[list[Buffer]]:
        """The fragments of what a wave reads of each tile, the same in every step."""
        if not hasattr(self, "_factors"):
            side = self.unit.side
            self._factors = [
                [
                    self.k.fragment(f"{tile.buffer.name}_{i}", tile.buffer.dtype, side, side)
                    for i in range((self.wave_rows if tile.is_a else self.wave_columns) // side)
                ]
                for tile in tiles
            ]
        return self._factors

    def stage(self, buffer: Buffer, place: Value, pitch: int, lane: Value, sums: Sequence[Value], number: int) -> None:
        side = self.unit.side
        self.k.wave_store(self.unit, self.k.region(buffer, place, side, side, pitch), self.totals[number])
