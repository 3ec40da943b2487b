"""Attention of f32 rows to keys and values of bf16 on Hopper's tensor cores: what differs from `attention`.

A query is the sum of three numbers of bf16 (two where heads are wide), which lie in shared memory as three tiles of
queries would, and scores are the sum of their products with the same keys. Powers are the sum of two numbers of bf16,
registers one behind the other, that multiply the same values. Keys and values are what they are, and sums are f32, so
what comes out is as near as a kernel that multiplies in f32.

Queries come as f32, which nobody but threads can take apart: the groups that multiply them bring them, too. Results go
from registers to where they belong.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rlx.backends.cuda.hopper.attention import GroupAttention, QueryTile
from rlx.backends.cuda.hopper.attention_shape import ROWS, AttentionShape
from rlx.backends.cuda.hopper.instructions import barrier_arrive, show_stores
from rlx.backends.cuda.hopper.writer import Val

# Vectors of eight elements that a thread has on their way.
EARLY = 4


def split_attention_text(name: str, shape: AttentionShape, triple: str) -> str:
    """The LLVM module. Parameters: tensor maps of k and v; the addresses of q and of the result, each with bytes from
    batch to batch, head to head, and position to position (i64); then those of `attention_text` behind the maps."""
    return SplitAttention(name, shape).text(triple)


class SplitAttention(GroupAttention):
    def declare_operands(self) -> None:
        w = self.w
        self.map_k, self.map_v = (w.tensor_map(f"map_{x}") for x in "kv")
        names = ("at", "batch", "head", "step")
        self.operands = {x: [w.param(f"{x}_{n}", "i64") for n in names] for x in "qo"}

    def row(self, operand: str, tile: QueryTile, query: Val) -> Val:
        """The address of a row."""
        w = self.w
        at, batch, head, step = self.operands[operand]
        return at + w.wide(tile.batch) * batch + w.wide(tile.head) * head + w.wide(query) * step

    def bring_queries(self, tile: QueryTile) -> None:
        # What is noted is there.
        barrier_arrive(self.w, self.q_full)

    def take_queries(self, tile: QueryTile) -> None:
        """A group reads its 64 queries and stores their parts, swizzled as the tensor cores read them."""
        w, shape = self.w, self.shape
        vectors = shape.depth // 8
        # All warps have multiplied the queries before, and read what is noted.
        w.asm("bar.sync <i>, 128;", i=self.group + 1)
        for first in range(0, 64 * vectors // 128, EARLY):
            loaded = []
            for number in range(first, first + EARLY):
                place = self.inside + number * 128
                row, vector = place // vectors, place % vectors
                # Behind the last one is the last one; nobody stores what comes of it.
                query = w.least(tile.number * ROWS + self.group * 64 + row, self.queries - 1)
                line = self.row("q", tile, query) + w.wide(vector) * 32
                text = "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [<a>];"
                elements = [x for half in (0, 16) for x in w.asm(text, results=["float"] * 4, a=line + half)]
                inside = (self.group * 64 + row) * 128 + (((vector & 7) ^ (row & 7)) << 4)
                loaded.append((self.q_at + (vector >> 3) * (ROWS * 128) + inside, elements))
            for at, elements in loaded:
                for part, words in enumerate(self.parts(elements, shape.query_parts)):
                    named = {f"x{i}": word for i, word in enumerate(words)}
                    w.asm(
                        "st.shared.v4.b32 [<a>], {<x0>, <x1>, <x2>, <x3>};",
                        a=at + part * shape.part_bytes,
                        named=named,
                    )
        show_stores(w)
        w.asm("bar.sync <i>, 128;", i=self.group + 1)

    def weigh(self, powers: Sequence[Val]) -> None:
        parts = self.parts(powers, self.shape.weight_parts)
        for variable, word in zip(self.weights, itertools.chain(*parts), strict=True):
            variable.set(word)

    def store(self, sums: Sequence[Val], tile: QueryTile) -> None:
        """Four lanes have 32 bytes of a row side by side."""
        w = self.w
        for r in range(2):
            query = self.first_row(tile) + 8 * r
            with w.when(query < self.queries):
                line = self.row("o", tile, query) + w.wide(self.lane & 3) * 8
                for j in range(self.shape.width // 8):
                    a, b = sums[4 * j + 2 * r : 4 * j + 2 * r + 2]
                    w.asm("st.global.v2.f32 [<a>], {<x>, <y>};", a=line + 32 * j, x=a, y=b)
