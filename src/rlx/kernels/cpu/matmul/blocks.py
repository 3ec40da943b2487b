"""How a product is cut: blocks of the result, panels of B, steps of the depth K, and the scratch that they need.

One parallel iteration computes a block of C. Step by step along K it adds register tiles of `tile_rows` by `vectors` to
a block of sums. Rows of A are read where they are if their elements lie side by side and need no conversion; others are
copied to scratch, where they lie a whole number of cache lines plus one apart (rows whose distance is a multiple of
4 KiB would meet in one set of the first-level cache). B is read as panels, `width` columns side by side: packed once
for weights, copied to scratch for anything else.

Measured on Zen 4 (AVX-512, one FMA a cycle), M = 1024, one thread, in percent of the FMA peak: the tile of 6x4 vectors
alone reaches 98-99, with rows of A where they are and packed panels 96-97, with copied rows of A 82-88. Larger blocks
of packed products, or an epilogue for each tile in place of each block, change less than one. A copied panel of B is
worth 192 rows (89-94, with 96 rows 82-89), and rows of A that are copied too 192 columns of as many rows (85-92, with
128 columns of 96 rows 78-85); more of either changes less than measurements do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dtype import DType
from rlx.kernels.ir.extents import Extent
from rlx.kernels.machines import Machine

# Keeps rows of scratch out of each other's cache sets.
PAD_BYTES = 64


class BlockSizes(NamedTuple):
    """What may be chosen of a block without any sum being computed in another order; `rlx tune` measures it."""

    # Rows of a register tile, where there are registers enough.
    tile_rows: int = 6
    # Tiles below each other in a block.
    tiles: int = 8
    # About this many columns share one copy of A.
    columns: int = 64
    # Bytes of a row of A, or of a column of B, in one step along K.
    step_bytes: int = 1536


# What is worth measuring, the choice of everybody first.
BLOCK_SIZES = (
    BlockSizes(),
    BlockSizes(tiles=4),
    BlockSizes(tiles=16),
    BlockSizes(columns=128),
    BlockSizes(columns=256),
    BlockSizes(tiles=4, columns=128),
    BlockSizes(tiles=16, columns=128),
    BlockSizes(step_bytes=1024),
    BlockSizes(step_bytes=3072),
    BlockSizes(tile_rows=4, tiles=12),
)


class BlockShape(NamedTuple):
    """Sizes of one parallel iteration, in elements; `depth` is the step along K."""

    lanes: int
    vectors: int
    tile_rows: int
    rows: int
    panels: int
    depth: int
    pad: int

    @property
    def width(self) -> int:
        """Columns of one panel."""
        return self.lanes * self.vectors

    @property
    def columns(self) -> int:
        return self.width * self.panels

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The tiles that there is code for: 1 row, or an even number; what is over is computed and not used."""
        return (1, *range(2, self.tile_rows + 1, 2))


def block_shape(
    machine: Machine,
    accumulator: DType,
    n: Extent,
    products: int = 1,
    copies_b: bool = False,
    copies_a: bool = True,
    reuse: int = 1,
    sizes: BlockSizes = BLOCK_SIZES[0],
    scratch_bytes: int = 0,
) -> BlockShape:
    """The block for a machine: what fits into its registers and scratch, which is `scratch_bytes` if given.

    A copy serves up to `reuse` times as much work as it would by itself: a panel of B more rows, rows of A more
    columns, as long as sums take no more than half of the scratch.
    """
    lanes, size = machine.lanes(accumulator), accumulator.size_bytes
    vectors = panel_vectors(machine, accumulator, n)
    tile_rows = min(sizes.tile_rows, max(2, (machine.vector_registers - vectors - 1) // vectors // 2 * 2))
    rows = sizes.tiles * tile_rows
    width = lanes * vectors
    panels = max(1, sizes.columns // width)
    scratch = (scratch_bytes or machine.scratch_bytes) // size
    most = scratch // 2 // (products * width)
    if copies_b:
        rows *= max(1, min(reuse, most // (rows * panels)))
    if copies_a:
        panels *= max(1, min(reuse, most // (rows * panels)))
    pad = max(1, PAD_BYTES // size)
    room = scratch - products * rows * panels * width - (rows * pad if copies_a else 0)
    lines = (rows if copies_a else 0) + (width if copies_b else 0)
    depth = min(sizes.step_bytes // size, room // max(1, lines))
    return BlockShape(lanes, vectors, tile_rows, rows, panels, max(lanes, depth // lanes * lanes), pad)


def distinct_sizes(scratch_bytes: int, shape_of: Callable[[BlockSizes], BlockShape], sums: int) -> list[BlockSizes]:
    """The sizes that give blocks of their own, of which `sums` products fit into half of the scratch."""
    found: dict[BlockShape, BlockSizes] = {}
    for sizes in BLOCK_SIZES:
        shape = shape_of(sizes)
        fits = 2 * sums * shape.rows * shape.columns <= scratch_bytes
        if sizes == BLOCK_SIZES[0] or fits:
            found.setdefault(shape, sizes)
    return list(found.values())


def panel_vectors(machine: Machine, accumulator: DType, n: Extent) -> int:
    """Vectors side by side in a register tile. Panels of known columns are of equal width: six vectors are two tiles of
    three, where one of four and one of two would be computed as two of four."""
    most = 4 if machine.vector_registers >= 32 else 2
    if not isinstance(n, int):
        return most
    vectors = max(1, -(-n // machine.lanes(accumulator)))
    return -(-vectors // -(-vectors // most))


def panel_width(machine: Machine, accumulator: DType, n: Extent = "n") -> int:
    """Columns of one packed panel of B[k, n]."""
    return panel_vectors(machine, accumulator, n) * machine.lanes(accumulator)


def pack_panels(b: np.ndarray[Any, np.dtype[Any]], width: int) -> np.ndarray[Any, np.dtype[Any]]:
    """B[K, N] as panels [ceil(N / width), K, width], the last one filled up with zeros: the layout of a packed B."""
    if b.ndim != 2:
        raise ShapeError(f"pack_panels: a matrix is wanted, got shape {b.shape}")
    k, n = b.shape
    panels = -(-n // width)
    packed = np.zeros((panels, k, width), b.dtype)
    for panel in range(panels):
        part = b[:, panel * width : (panel + 1) * width]
        packed[panel, :, : part.shape[1]] = part
    return packed
