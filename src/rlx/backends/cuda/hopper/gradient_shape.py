"""`GradientShape`: what a kernel of the gradients of attention is made for, and what it takes of a multiprocessor."""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import AttentionShape

# Keys of a block, 64 for each group of warps.
KEYS = 128
# Tiles of queries, of dy and of dS that there is room for.
STAGES = 2


class GradientShape(NamedTuple):
    """The attention whose gradients are wanted; its heads of q, k and v are equally wide, 64 or 128."""

    attention: AttentionShape

    @property
    def depth(self) -> int:
        return self.attention.depth

    @property
    def rows(self) -> int:
        """Queries of a tile: as many as registers hold scores for beside the sums of dk and dv."""
        return 128 if self.depth == 64 else 64

    @property
    def key_bytes(self) -> int:
        """Of a block of keys, or of values."""
        return KEYS * self.depth * 2

    @property
    def row_bytes(self) -> int:
        """Of a tile of queries, or of dy."""
        return self.rows * self.depth * 2

    @property
    def change_bytes(self) -> int:
        """Of a tile of dS."""
        return KEYS * self.rows * 2

    @property
    def query_gradient_bytes(self) -> int:
        return self.rows * self.depth * 4

    @property
    def tiles_bytes(self) -> int:
        of_stages = STAGES * (2 * self.row_bytes + self.change_bytes)
        return 2 * self.key_bytes + of_stages + self.query_gradient_bytes

    @property
    def statistics_bytes(self) -> int:
        """Logarithms and means of the queries of all stages."""
        return STAGES * 2 * self.rows * 4

    @property
    def shared_bytes(self) -> int:
        # Tiles begin at multiples of 1 KiB; barriers lie behind all else.
        return 1024 + self.tiles_bytes + self.statistics_bytes + 8 * (3 + 4 * STAGES)
