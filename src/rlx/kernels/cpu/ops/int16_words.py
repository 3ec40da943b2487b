"""Floats to codes of 16 bits with a scale for every block: `ops.lowered.int16_products`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Const, Value, ValueType
from rlx.ops.lowered.int8_products import BLOCK
from rlx.ops.lowered.int16_products import (
    BELOW_EXPONENT,
    COARSE,
    COARSE_ERROR,
    COLUMN_BLOCK,
    COLUMN_LENGTH,
    EXPONENT,
    LARGEST,
    LEAST,
    NO_NUMBER,
    PAIR,
    ROW_BLOCK,
    ROW_LENGTH,
    Int16Panels,
    Int16Rows,
)

BF16, F16, F32, I16, I32, U32 = DType.BF16, DType.F16, DType.F32, DType.I16, DType.I32, DType.U32
# Elements that one parallel iteration turns into codes, about.
CHUNK_ELEMENTS = 1 << 14


@op_kernel(Int16Rows, kind="quantize", supports=lambda op, operands: operands[0].dtype is F32)
def int16_rows(site: OpSite) -> None:
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    depth = int(x.shape.dims[-1])
    rows = site.size(product(x.shape.dims[:-1]))
    chunk = max(1, CHUNK_ELEMENTS // max(1, depth))
    lanes = min(BLOCK, site.machine.lanes(F32))
    with k.parallel("chunk", k.ceildiv(rows, chunk)) as number:
        first = number * chunk
        with k.loop("row", first, k.min(first + chunk, rows)) as row, k.loop("block", 0, depth // BLOCK) as block:
            place = x.offset + row * depth + block * BLOCK
            parts = [k.load(x.buffer, place + j, lanes=lanes) for j in range(0, BLOCK, lanes)]
            scale = _row_scale(k, parts)
            to = y.offset + row * (depth // BLOCK * ROW_BLOCK) + block * ROW_BLOCK
            inverse = k.splat(k.const(1.0, F32) / scale, lanes)
            for j, part in enumerate(_whole(k, parts, inverse)):
                k.store(y.buffer, to + j * lanes, k.cast(part, I16))
            # The bits of what is no number are not the same everywhere.
            bits = k.select(k.eq(scale, scale), k.bitcast(scale, U32), NO_NUMBER)
            k.store(y.buffer, to + BLOCK, k.bitcast(bits, ValueType(I16, PAIR)))


@op_kernel(
    Int16Panels, kind="layout", supports=lambda op, operands: operands[0].dtype in (BF16, F16, F32), strided=(0,)
)
def int16_panels(site: OpSite) -> None:
    """One panel in each parallel iteration: block by block as many columns as a vector has lanes."""
    k, op, (w,), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, Int16Panels)
    rows, columns = w.dims
    lanes = min(BLOCK // PAIR, site.machine.lanes(F32))
    lanes = lanes if op.width % lanes == 0 else 1
    blocks, line = rows // BLOCK, op.width * COLUMN_BLOCK
    count = (columns + (op.width - 1)) // op.width
    with k.parallel("panel", count) as panel, k.loop("block", 0, blocks) as block:
        to = (panel * blocks + block) * line
        with k.loop("v", 0, op.width, lanes) as v:
            values = _columns(k, w, block * BLOCK, panel * op.width + v, lanes)
            scale = _scale(k, values, COLUMN_LENGTH)
            # The next power of two.
            bits = (k.bitcast(scale, ValueType(U32, lanes)) + BELOW_EXPONENT) & EXPONENT
            bits = k.select(k.eq(scale, scale), bits, NO_NUMBER)
            codes = _whole(k, values, k.const(1.0, ValueType(F32, lanes)) / k.bitcast(bits, ValueType(F32, lanes)))
            k.store(y.buffer, to + v, k.cast(k.bitcast(bits >> 16, ValueType(I32, lanes)), I16))
            for i, (low, high) in enumerate(zip(codes[::PAIR], codes[1::PAIR])):
                word = (low & 0xFFFF) | (high << 16)
                place = to + op.width + i * (op.width * PAIR) + v * PAIR
                k.store(y.buffer, place, k.bitcast(word, ValueType(I16, lanes * PAIR)))


def _columns(k: KernelBuilder, w: Slab, row: Value, column: Value, lanes: int) -> list[Value]:
    """The elements of a block of rows, each as a vector over columns; those after the last one are copies of it."""
    last = w.dims[1] - 1
    along = w.strides[0]
    if lanes > 1 and not (isinstance(along, Const) and along.literal == 1):
        numbers = k.min(k.iota(DType.I64, lanes) + column, k.splat(last, lanes))
        starts = numbers * w.strides[1] + w.at(row)
        return [k.cast(k.load(w.buffer, starts + along * j, lanes=lanes), F32) for j in range(BLOCK)]
    starts_of = [w.at(row, k.min(column + c, last)) for c in range(lanes)]
    found: list[Value] = []
    for first in range(0, BLOCK, lanes):
        places = [start + along * first for start in starts_of]
        lines = [k.cast(k.load(w.buffer, place, lanes=lanes), F32) for place in places]
        found += transposed(k, lines)
    return found


def _scale(k: KernelBuilder, parts: list[Value], longest: float) -> Value:
    """That of a block, in each lane: `parts` are the elements of a block of every lane."""
    return _scale_of(k, functools.reduce(k.max, map(k.abs, parts)), lambda inverse: _whole(k, parts, inverse), longest)


def _row_scale(k: KernelBuilder, parts: list[Value]) -> Value:
    """The scale of a block whose elements are the lanes of some vectors."""
    lanes = parts[0].lanes

    def coarse(inverse: Value) -> list[Value]:
        return _whole(k, parts, k.splat(inverse, lanes))

    largest = k.reduce("max", functools.reduce(k.max, map(k.abs, parts)))
    return _scale_of(k, largest, coarse, ROW_LENGTH)


def _scale_of(k: KernelBuilder, largest: Value, coarse_by: Callable[[Value], list[Value]], longest: float) -> Value:
    largest = k.max(largest, LEAST)
    coarse = coarse_by(k.const(COARSE, largest.type) / largest)
    square = functools.reduce(operator.add, [x * x for x in coarse])
    if largest.lanes == 1:
        square = k.reduce("add", square)
    length = k.sqrt(k.cast(square, F32)) + COARSE_ERROR
    return largest * (1 / COARSE) * k.max(length * (1 / longest), COARSE / LARGEST)


def _whole(k: KernelBuilder, parts: list[Value], factor: Value) -> list[Value]:
    """Each part times a factor, as the nearest whole numbers."""
    return [k.cast(k.op("round", x * factor), I32) for x in parts]
