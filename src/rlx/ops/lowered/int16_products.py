"""Products of 16-bit codes: what activations are multiplied with where weights are floats of a file.

    y = Σ over blocks of s·t·Σ a·w

Activations and weights have a scale for every block of 32 along K, and codes of 16 bits; the inner sum is a whole
number of 32 bits, made by instructions that add two products at a time. Were all codes as large as 16 bits allow, it
would need 36 bits. By Cauchy and Schwarz it is at most the length of the one block times that of the other, so scales
are such that no block of weights is longer than 2**15, and none of activations longer than 2**16: elements of equal
size have 12 and 13 bits and a sign, and a single large one has 15.

Scales of weights are powers of two. So codes that have no fewer bits than bf16 or f16 are exact: of 32 random numbers
one of bf16 is rounded, or six of f16.

The length of a block comes from a sum of whole numbers, which has no order, so that all machines find the same codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype, require_float
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.int8_products import BLOCK, _Int8Op

__all__ = ["Int16MatMul", "Int16Panels", "Int16Rows"]

Array = np.ndarray[Any, np.dtype[Any]]

# Neighbours along K that one lane of an instruction multiplies.
PAIR = 2
# Codes of 16 bits that a block of a row is, its scale as f32 among them, and a column of a panel, whose scale is bf16.
ROW_BLOCK, COLUMN_BLOCK = BLOCK + 2, BLOCK + 1
# The length of a block of codes and the largest code, less by what roundings may add.
ROW_LENGTH, COLUMN_LENGTH, LARGEST = 65500.0, 32750.0, 32760.0
# Of f32: the bits below the exponent, the exponent, and a number that is none.
BELOW_EXPONENT, EXPONENT, NO_NUMBER = 0x7FFFFF, 0x7F800000, 0x7FC00000
# Codes by which the length is found, and what their rounding may take off it.
COARSE, COARSE_ERROR = 2047.0, 3.0
# Scales of blocks below this are those of this one: their inverses are finite.
LEAST = 2.0**-100


def block_scales(x: Array, longest: float) -> Array:
    """The scale of each block of f32[.., BLOCK], NaN or infinite where an element is no finite number."""
    one = np.float32
    with np.errstate(all="ignore"):
        largest = np.maximum(np.abs(x).max(-1, initial=0), one(LEAST))
        coarse = np.nan_to_num(np.rint(x * (one(COARSE) / largest)[..., None]), nan=0.0).astype(np.int32)
        length = np.sqrt((coarse * coarse).sum(-1, dtype=np.int32).astype(np.float32)) + one(COARSE_ERROR)
        found = largest * one(1 / COARSE) * np.maximum(length * one(1 / longest), one(COARSE / LARGEST))
    return np.where(np.isnan(found), one(np.nan), found).astype(np.float32)


def block_codes(x: Array, scales: Array) -> Array:
    """x / scale in whole numbers, half to even; what is no number has no code, for its scale is none."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.rint(x * (np.float32(1) / scales)[..., None]), nan=0.0).astype(np.int16)


@op("int16_rows")
class Int16Rows(_Int8Op):
    """Rows of k floats as codes of 16 bits, i16[.., k/32·34]: for every block of 32 its codes and their scale as f32.
    Its length is such that a block times one of `int16_panels` is a number of 32 bits."""

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        if x.rank == 0 or not isinstance(x.dims[-1], int) or x.dims[-1] % BLOCK:
            raise self.fail(f"the last axis must be fixed and a multiple of {BLOCK}, got {x}")
        return Shape((*x.dims[:-1], x.dims[-1] // BLOCK * ROW_BLOCK), DType.I16)

    def eval(self, x: Array) -> Array:
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK).astype(np.float32)
        scales = block_scales(blocks, ROW_LENGTH)
        behind = np.ascontiguousarray(scales[..., None].astype("<f4")).view("<i2")
        found = np.concatenate([block_codes(blocks, scales), behind.astype(np.int16)], axis=-1)
        return found.reshape(*x.shape[:-1], x.shape[-1] // BLOCK * ROW_BLOCK)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dims in ((3, 64), (1, 32), (5, 160)):
            yield sample(cls(), spec(*dims), dtypes=("f32",))
        yield sample(cls(), spec("B", "S", 96), dtypes=("f32",), B=2, S=3)


@op("int16_panels")
class Int16Panels(_Int8Op):
    """A weight [k, n] as codes of 16 bits in panels of `width` columns, i16[panels, k/32, 33·width]: for every block of
    32 rows a line of the bits of scales in bf16, powers of two, and 16 lines of two neighbours along k of each column.
    Columns after the last one are copies of it."""

    width: int

    def infer(self, w: Shape) -> Shape:
        require_float(self, w)
        if self.width < 1:
            raise self.fail(f"panels have at least one column, got width={self.width}")
        if w.rank != 2 or not w.is_static or w.static_dims[0] % BLOCK or 0 in w.static_dims:
            raise self.fail(f"needs a weight [k, n] of a fixed size with k a multiple of {BLOCK}, got {w}")
        k, n = w.static_dims
        return Shape((-(-n // self.width), k // BLOCK, COLUMN_BLOCK * self.width), DType.I16)

    def eval(self, w: Array) -> Array:
        k, n = w.shape
        count = -(-n // self.width)
        columns = np.pad(w.astype(np.float32), ((0, 0), (0, count * self.width - n)), mode="edge")
        blocks = columns.reshape(k // BLOCK, BLOCK, count, self.width).transpose(2, 0, 3, 1)
        scales = block_scales(blocks, COLUMN_LENGTH)
        bits = (scales.view(np.uint32) + np.uint32(BELOW_EXPONENT)) & np.uint32(EXPONENT)
        bits = np.where(np.isnan(scales), np.uint32(NO_NUMBER), bits)
        codes = block_codes(blocks, bits.view(np.float32))
        lines = codes.reshape(count, k // BLOCK, self.width, BLOCK // PAIR, PAIR).swapaxes(2, 3)
        first = (bits >> np.uint32(16)).astype(np.uint16).view(np.int16)
        return np.concatenate([first, lines.reshape(count, k // BLOCK, BLOCK * self.width)], axis=-1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, n, width in ((32, 5, 4), (64, 33, 16), (96, 16, 16)):
            yield sample(cls(width), spec(k, n), dtypes=("f32",))


@op("int16_matmul")
class Int16MatMul(_Int8Op):
    """y = x · W for rows x as `int16_rows` stores them, and the panels of `int16_panels` of W[k, n]. Dot products of
    blocks are whole numbers, their sum is f32."""

    n: int

    def infer(self, rows: Shape, panels: Shape) -> Shape:
        require_dtype(self, rows.dtype is DType.I16 and rows.rank > 0, "rows of i16 as int16_rows stores them", rows)
        k = self.depth(rows)
        if k < 1 or self.n < 1 or rows.dims[-1] != k // BLOCK * ROW_BLOCK:
            raise self.fail(f"{rows} has no blocks of {ROW_BLOCK} numbers, or n={self.n} is not positive")
        if panels.dtype is not DType.I16 or panels.rank != 3 or not panels.is_static:
            raise self.fail(f"needs panels i16[panels, k/{BLOCK}, {COLUMN_BLOCK}·width], got {panels}")
        count, blocks, line = panels.static_dims
        width = line // COLUMN_BLOCK
        if width < 1 or line % COLUMN_BLOCK or blocks * BLOCK != k or count != -(-self.n // width):
            raise self.fail(f"{rows} by n={self.n} columns do not fit the panels {panels}")
        return Shape((*rows.dims[:-1], self.n), DType.F32)

    def depth(self, rows: Shape) -> int:
        """k, the number of codes in a row."""
        size = rows.dims[-1]
        return size // ROW_BLOCK * BLOCK if isinstance(size, int) else 0

    def eval(self, rows: Array, panels: Array) -> Array:
        count, blocks, line = panels.shape
        width = line // COLUMN_BLOCK
        of_rows = rows.reshape(*rows.shape[:-1], blocks, ROW_BLOCK)
        scales = np.ascontiguousarray(of_rows[..., BLOCK:]).astype("<i2").view("<f4").astype(np.float64)
        x = (of_rows[..., :BLOCK] * scales).reshape(*rows.shape[:-1], blocks * BLOCK)
        bits = np.ascontiguousarray(panels[..., :width]).view(np.uint16).astype(np.uint32) << np.uint32(16)
        codes = panels[..., width:].reshape(count, blocks, BLOCK // PAIR, width, PAIR).swapaxes(3, 4)
        with np.errstate(all="ignore"):
            w = codes.reshape(count, blocks, BLOCK, width) * bits.view(np.float32).astype(np.float64)[:, :, None]
            whole = w.transpose(1, 2, 0, 3).reshape(blocks * BLOCK, count * width)[:, : self.n]
            return np.asarray(x @ whole).astype(np.float32)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(7)
        for k, n, width in ((32, 5, 16), (64, 200, 64), (96, 16, 16)):
            stored = Int16Panels(width).eval(rng.standard_normal((k, n)).astype(np.float32))
            rows = Int16Rows().eval(rng.standard_normal((3, k)).astype(np.float32))
            panels = spec(*stored.shape, dtype="i16", values=stored)
            yield sample(cls(n), spec(*rows.shape, dtype="i16", values=rows), panels, dtypes=("i16",))
        many = spec("B", "S", rows.shape[-1], dtype="i16", values=rows[:1])
        yield sample(cls(n), many, panels, dtypes=("i16",), B=2, S=9)
