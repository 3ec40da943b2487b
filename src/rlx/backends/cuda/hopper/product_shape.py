"""`ProductShape`: what decides the code of a product on Hopper's tensor cores besides its epilogue."""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.launching import BYTE_ELEMENTS
from rlx.errors import InternalError

# A tile of C, and the bytes of a stage along K: the widest swizzled row.
ROWS = 128
FEW_ROWS = 64
DEPTH_BYTES = 128
# That many elements of two bytes.
DEPTH = DEPTH_BYTES // 2
SLAB_BYTES = 64 * DEPTH_BYTES
# What one instruction multiplies along K.
STEP_BYTES = 32
# Two groups of four warps that multiply, and those that bring what they need.
CONSUMERS = 256
THREADS = 128 + CONSUMERS
# Rows of tiles that are walked before the next column of them, so that the L2 cache keeps both operands.
BAND = 8


class ProductShape(NamedTuple):
    """`columns` of C in a tile, for each of `parts` products of the same A; whether B lies side by side along K, and
    whether A does not, but along its rows; `sharing` blocks have one tile together. In a tile of fewer `rows` both
    groups of warps have all of them, and half of the columns each; where the code is printed from loop IR, there is one
    such group then. With `split` the operands are sums, A of two and B
    of so many numbers (`rlx.kernels.gpu.matmul_groups.SplitSteps`)."""

    columns: int
    parts: int
    along_k: bool
    element: str  # of A: "bf16", "f16", "e4m3" or "e5m2"
    is_turned: bool = False
    sharing: int = 1
    b_element: str = ""  # where it is another one
    band: int = BAND
    rows: int = ROWS
    split: int = 0

    @property
    def group_columns(self) -> int:
        """Columns that a group of warps has."""
        return self.columns if self.rows == ROWS else self.columns // 2

    @property
    def is_bytes(self) -> bool:
        return self.element in BYTE_ELEMENTS

    @property
    def depth(self) -> int:
        """Elements of a stage along K."""
        return DEPTH_BYTES // (1 if self.is_bytes else 2)

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.columns * self.parts) * DEPTH_BYTES

    @property
    def stages(self) -> int:
        return min(6, (220 << 10) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """Stages begin at multiples of 1 KiB; two barriers for each."""
        return 1024 + self.stages * (self.stage_bytes + 16)

    @property
    def part_bytes(self) -> int:
        return self.columns * DEPTH_BYTES


def check_shape(shape: ProductShape) -> None:
    """Complain about tiles that the instructions do not have."""
    if shape.columns % 64 or shape.columns * shape.parts > 256:
        raise InternalError(f"a tile of {shape.parts} x {shape.columns} columns: only multiples of 64 up to 256 exist")
    if shape.is_bytes and (shape.is_turned or not shape.along_k):
        raise InternalError("a product of f8: both operands must lie side by side along K")
    if shape.rows != ROWS and (shape.rows != FEW_ROWS or shape.columns % 128 or shape.parts * shape.sharing > 1):
        raise InternalError(f"a tile of {shape.rows} x {shape.columns}: {ROWS} rows, or {FEW_ROWS} of one product")
    if shape.parts > 1 and shape.sharing > 1:
        raise InternalError("blocks that share a tile have one product")
