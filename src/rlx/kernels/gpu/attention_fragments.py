"""`FragmentAttention`: attention by instructions for whole matrices where nobody knows which thread has what (Apple's
GPUs), softmax online.

As in `attention_waves` a block has the rows of some waves and walks along keys, but what products leave passes through
shared memory, since no thread could say which query an element of a matrix belongs to: a wave stores its scores there,
four threads have a row of them, and put back its powers; sums lie there between two steps, and are scaled there. Keys
and values of a step lie in one tile, one after the other. f16 is multiplied as it is, bf16 and f32 as f32.

    scores[query, key] = Q[query, d] @ K[key, d] turned        sums[query, d] += P[query, key] @ V[key, d]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops.attention_case import KeyRange
from rlx.kernels.gpu.attention_waves import VECTOR, Fetched, Place, WaveAttention
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.kernels.ir.regions import Region
from rlx.kernels.machines import Machine

# Elements behind each line of shared memory, so that lines begin in other banks.
SPARE = 4
# Threads that have a row.
SHARERS = 4


class BlockShape(NamedTuple):
    """Waves of a block, and keys of a step."""

    waves: int
    keys: int


# The first one whose memory there is.
SHAPES = tuple(BlockShape(*shape) for shape in ((4, 64), (4, 32), (4, 16), (2, 32), (2, 16), (1, 16)))


def factor_type(dtype: DType) -> DType:
    """What operands of a type are multiplied as."""
    return dtype if dtype is DType.F16 else DType.F32


def block_shape(machine: Machine, dtype: DType, depth: int, width: int) -> BlockShape:
    """The largest shape of a block whose tiles fit into the memory that threads share."""
    assert machine.matrix is not None
    for shape in SHAPES:
        if _bytes(shape, machine.matrix.side, dtype, depth, width) <= machine.shared_bytes:
            return shape
    return SHAPES[-1]


def _bytes(shape: BlockShape, side: int, dtype: DType, depth: int, width: int) -> int:
    rows, factor = shape.waves * side, factor_type(dtype)
    tile = max(shape.keys, rows) * (max(depth, width) + VECTOR) * factor.size_bytes
    powers = 0 if factor is DType.F32 else rows * (shape.keys + VECTOR) * factor.size_bytes
    return tile + powers + rows * (shape.keys + SPARE + width + SPARE) * DType.F32.size_bytes


class FragmentAttention(WaveAttention):
    """Sums lie in shared memory: lists of them are empty."""

    def make_tiles(self) -> None:
        k, case = self.k, self.case
        factor, rows = factor_type(self.dtype), self.waves * self.side
        # Lines are keys, then values; at first they are queries.
        self.pitch = max(case.depth, case.width) + VECTOR
        self.tile = k.shared("tile", factor, max(self.keys, rows) * self.pitch)
        self.score_pitch, self.sum_pitch = self.keys + SPARE, case.width + SPARE
        self.score_tile = k.shared("scores", DType.F32, rows * self.score_pitch)
        self.sum_tile = k.shared("sums", DType.F32, rows * self.sum_pitch)
        is_wide = factor is DType.F32
        self.power_pitch = self.score_pitch if is_wide else self.keys + VECTOR
        self.power_tile = self.score_tile if is_wide else k.shared("powers", factor, rows * self.power_pitch)
        self.query_parts = self.fragments("query", factor, case.depth // self.side)
        self.power_parts = self.fragments("power", factor, self.keys // self.side)
        (self.other,) = self.fragments("other", factor, 1)
        (self.total,) = self.fragments("total", DType.F32, 1)
        self.lanes = self.keys // SHARERS

    def fragments(self, name: str, dtype: DType, count: int) -> list[Buffer]:
        return [self.k.fragment(f"{name}{n}", dtype, self.side, self.side) for n in range(count)]

    def place(self, lane: Value) -> None:
        """Four threads have a query: of its scores the quarter from `first_key` on, of its sums every fourth vector."""
        self.line, self.part = lane // SHARERS, lane % SHARERS
        self.first_key = self.part * self.lanes
        self.first_line = self.wave * self.side  # of the lines that belong to the wave
        self.own_line = self.first_line + self.line

    def others(self) -> Sequence[int]:
        return (2, 1)

    def own_sums(self) -> Iterator[tuple[Value, Value, int]]:
        """The sums that a thread scales and stores: the first element of a vector, its place, and how many it has."""
        lanes = 4 if self.case.width % (4 * SHARERS) == 0 else 2
        for start in range(0, self.case.width, lanes * SHARERS):
            d = self.part * lanes + start
            yield d, self.own_line * self.sum_pitch + d, lanes

    def empty(self) -> list[Value]:
        for _, place, lanes in self.own_sums():
            self.k.store(self.sum_tile, place, self.k.splat(self.k.const(0.0, DType.F32), lanes))
        return []

    def settled(self, sums: list[Value]) -> list[Value]:
        """Waves have stored them."""
        self.k.barrier()
        return sums

    # Memory.

    def queries(self, block: Place, own: Place) -> Sequence[Value]:
        """Those of a wave as fragments, which stay."""
        k, q, (batch, head, first) = self.k, self.case.q, block
        for row, d, exists in self.shared_out(self.waves * self.side, self.case.depth):
            query, query_head = self.query_of(head, first + row)
            loaded = k.load(q.buffer, q.row(batch, query_head, query) + d * q.step, lanes=VECTOR, stride=q.step)
            with self.only_if(exists):
                k.store(self.tile, row * self.pitch + d, k.cast(loaded, self.tile.dtype), align=16)
        k.barrier()
        for number, part in enumerate(self.query_parts):
            k.wave_load(self.unit, part, self.matrix(self.tile, self.first_line, number, self.pitch))
        return []

    def matrix(self, buffer: Buffer, line: Value, number: int, pitch: int) -> Region:
        """A matrix in shared memory: lines from one on, and which of those that lie side by side."""
        return self.k.region(buffer, line * pitch + number * self.side, self.side, self.side, pitch)

    def put(self, where: Place) -> None:
        self.put_lines(self.fetched(self.case.keys, self.case.depth, where))

    def put_lines(self, vectors: Sequence[Fetched]) -> None:
        """Keys or values of a step in the tile, 0 where there are none, once everybody has read what was there."""
        k = self.k
        k.barrier()
        for vector in vectors:
            with self.only_if(vector.exists):
                place = vector.key * self.pitch + vector.d
                k.store(self.tile, place, k.cast(vector.value, self.tile.dtype), align=16)
        k.barrier()

    def store(self, place: Value, sums: Sequence[Value], share: Value) -> None:
        k, out = self.k, self.out
        for d, at, lanes in self.own_sums():
            value = k.load(self.sum_tile, at, lanes=lanes) * share
            k.store(out.buffer, place + d * out.step, k.cast(value, out.buffer.dtype), stride=out.step)

    # Arithmetic.

    def scores(self, queries: Sequence[Value], where: Place, first: Value, own: KeyRange) -> list[Value]:
        """Those of a quarter of the keys of a step."""
        k, unit = self.k, self.unit
        for start in range(0, self.keys, self.side):
            k.wave_fill(unit, self.total, 0.0)
            for number, query in enumerate(self.query_parts):
                source = self.matrix(self.tile, k.as_index(start), number, self.pitch)
                k.wave_load(unit, self.other, source, transposed=True)
                k.wave_product(unit, self.total, query, self.other)
            target = self.matrix(self.score_tile, self.first_line, start // self.side, self.score_pitch)
            k.wave_store(unit, target, self.total)
        k.barrier()
        place = self.own_line * self.score_pitch + self.first_key
        total = k.load(self.score_tile, place, lanes=self.lanes)
        return [self.score(total, where, first + self.first_key, own)]

    def weighted(self, where: Place, powers: Sequence[Value], shrunk: Value, sums: Sequence[Value]) -> list[Value]:
        k, unit = self.k, self.unit
        (power,) = powers
        place = self.own_line * self.power_pitch + self.first_key
        k.store(self.power_tile, place, k.cast(power, self.power_tile.dtype))

        for _, at, lanes in self.own_sums():
            k.store(self.sum_tile, at, k.load(self.sum_tile, at, lanes=lanes) * shrunk)
        self.put_lines(self.fetched(self.case.values, self.case.width, where))
        for number, part in enumerate(self.power_parts):
            k.wave_load(unit, part, self.matrix(self.power_tile, self.first_line, number, self.power_pitch))
        for column in range(self.case.width // self.side):
            target = self.matrix(self.sum_tile, self.first_line, column, self.sum_pitch)
            k.wave_load(unit, self.total, target)
            for number, part in enumerate(self.power_parts):
                source = self.matrix(self.tile, k.as_index(number * self.side), column, self.pitch)
                k.wave_load(unit, self.other, source)
                k.wave_product(unit, self.total, part, self.other)
            k.wave_store(unit, target, self.total)
        return []
