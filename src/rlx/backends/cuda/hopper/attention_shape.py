"""`AttentionShape`: what a kernel of attention is made for, and what it takes of a multiprocessor."""

from __future__ import annotations

from typing import NamedTuple

# Queries of a tile, 64 for each group of warps.
ROWS = 128
STAGES = 2
# What a block can have of shared memory.
MOST_SHARED = 227 << 10


class Integers(NamedTuple):
    """An operand of integers that the kernel reads: i32 or i64."""

    type: str


class AttentionShape(NamedTuple):
    """What a kernel is made for. Heads of q and k are `depth` wide, those of v `width`, multiples of 64; `group` heads
    of q share one of k. `window` is how many keys before its own a query sees; None: all of them. With `has_logs` the
    logarithms (of base 2) of the sums of powers are a result, too, [batch, head, query]. With `is_split` queries and
    the result are f32, beside keys and values of bf16: queries are multiplied as the sum of some numbers of bf16 each,
    and so are the weights of values. Of every eight powers of a tile that all rows see, `polynomials` are computed on
    the units that multiply and add."""

    depth: int
    width: int
    element: str  # "bf16" or "f16"
    heads: int
    group: int
    is_causal: bool
    window: int | None
    scale: float
    softcap: float | None
    lengths: Integers | None
    positions: Integers | None
    has_logs: bool = False
    is_split: bool = False
    polynomials: int = 0

    @property
    def keys(self) -> int:
        """Of a tile: as many as registers hold scores for beside the sums, and memory beside the parts of queries."""
        keys = 128 if self.depth + self.width <= 256 else 64
        return keys // 2 if self.is_split else keys

    @property
    def query_parts(self) -> int:
        """Three have all bits of f32, two have 16; wide heads leave no memory for more."""
        if not self.is_split:
            return 1
        return 3 if self.depth <= 128 else 2

    @property
    def weight_parts(self) -> int:
        """Weights are at most 1, and what two parts of them lack is 2^-18 of one value."""
        return 2 if self.is_split else 1

    @property
    def part_bytes(self) -> int:
        """Of one part of the queries of a tile."""
        return ROWS * self.depth * 2

    @property
    def q_bytes(self) -> int:
        return self.part_bytes * self.query_parts

    @property
    def k_bytes(self) -> int:
        return self.keys * self.depth * 2

    @property
    def v_bytes(self) -> int:
        return self.keys * self.width * 2

    @property
    def o_bytes(self) -> int:
        """f32 goes from registers to where it belongs."""
        return 0 if self.is_split else ROWS * self.width * 2

    @property
    def _tiles_bytes(self) -> int:
        return self.q_bytes + STAGES * (self.k_bytes + self.v_bytes)

    @property
    def shares_memory(self) -> bool:
        """Whether results go where the queries were: there is no room for both."""
        return self._overhead + self._tiles_bytes + self.o_bytes > MOST_SHARED

    @property
    def _overhead(self) -> int:
        """Tiles begin at multiples of 1 KiB; barriers and notes lie behind them."""
        return 1024 + 8 * (2 + 4 * STAGES) + 64

    @property
    def shared_bytes(self) -> int:
        return self._overhead + self._tiles_bytes + (0 if self.shares_memory else self.o_bytes)

    @property
    def is_paired(self) -> bool:
        """Whether a block takes a short and a long tile of queries together, so that all have as much to do."""
        return self.is_causal and self.window is None
