"""The kernel of sums of dy*y over the elements of heads, which gradients of attention begin with: as fast as memory is
read. A row is read by a power of two of neighbouring lanes, 16 bytes each."""

from __future__ import annotations

from rlx.backends.cuda.hopper.gradient_shape import GradientShape
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.writer import Val, Writer

THREADS = 256


def _lanes_of_row(shape: GradientShape) -> int:
    lanes = 1
    while 8 * lanes < shape.depth:
        lanes *= 2
    return lanes


def rows_per_block(shape: GradientShape) -> int:
    return THREADS // _lanes_of_row(shape)


def row_products_text(name: str, shape: GradientShape, triple: str) -> str:
    """The LLVM module. Parameters (i64): the addresses of dy, y and the sums, strides (batch, head, query) of dy and of
    y in elements; i32: queries and rows, which is all queries of all heads. Sums lie side by side."""
    return _RowProducts(name, shape).text(triple)


class _RowProducts(Lanes):
    def __init__(self, name: str, shape: GradientShape) -> None:
        super().__init__(Writer(name, THREADS), shape.attention)
        self.shape = shape

    def text(self, triple: str) -> str:
        w, lanes = self.w, _lanes_of_row(self.shape)
        dy, y, sums = (w.param(n, "i64") for n in ("dy", "y", "sums"))
        steps = [[w.param(f"{n}_{axis}", "i64") for axis in ("batch", "head", "query")] for n in ("dy", "y")]
        queries, rows = (w.param(n, "i32") for n in ("queries", "rows"))
        thread = w.register("tid.x")
        lane = thread % lanes
        number = w.register("ctaid.x") * rows_per_block(self.shape) + thread // lanes
        # Lanes of a warp exchange what they have, so all of them go on; the last row stands for what is behind it.
        row = w.least(number, rows - 1)
        head, query = row // queries, row % queries
        heads = self.attention.heads
        place = [w.wide(x) for x in (head // heads, head % heads, query)]
        # Lanes behind the last element read the first ones, and count for nothing.
        is_inside = lane < self.shape.depth // 8
        element = w.select(is_inside, lane, 0) * 8
        total: Val = w.value(0.0, "float")
        words: list[list[Val]] = []
        for start, (by_batch, by_head, by_query) in zip((dy, y), steps):
            offset = place[0] * by_batch + place[1] * by_head + place[2] * by_query + w.wide(element)
            words.append(
                w.asm("ld.global.nc.v4.b32 {$0, $1, $2, $3}, [<a>];", results=["i32"] * 4, a=start + offset * 2)
            )
        for a, b in zip(*words):
            for which in range(2):
                total = self.unpacked(a, which) * self.unpacked(b, which) + total
        total = w.select(is_inside, total, 0.0, "float")
        distance = lanes // 2
        while distance:
            total = total + self.from_lane(total, distance)
            distance //= 2
        with w.when(lane.equals(0) & (number < rows)):
            w.asm("st.global.f32 [<a>], <x>;", a=sums + w.wide(number) * 4, x=total)
        return w.module(triple)
