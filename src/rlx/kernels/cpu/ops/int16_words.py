"""Floats to codes of 16 bits with a scale for every block: `ops.lowered.int16_products`."""

from __future__ import annotations

import functools
import operator

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value, ValueType
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
            scale = _scale(k, parts, ROW_LENGTH)
            to = y.offset + row * (depth // BLOCK * ROW_BLOCK) + block * ROW_BLOCK
            for j, part in enumerate(_codes(k, parts, scale)):
                k.store(y.buffer, to + j * lanes, part)
            k.store(y.buffer, to + BLOCK, k.bitcast(scale, ValueType(I16, PAIR)))


@op_kernel(
    Int16Panels, kind="layout", supports=lambda op, operands: operands[0].dtype in (BF16, F16, F32), strided=(0,)
)
def int16_panels(site: OpSite) -> None:
    """One panel in each parallel iteration: block by block as many columns as a vector has lanes, which are turned."""
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
            words: list[list[Value]] = []
            for c in range(lanes):
                column = k.min(panel * op.width + v + c, columns - 1)
                places = [w.at(block * BLOCK + j, column) for j in range(0, BLOCK, lanes)]
                parts = [k.cast(k.load(w.buffer, at, lanes=lanes, stride=w.strides[0]), F32) for at in places]
                scale = _scale(k, parts, COLUMN_LENGTH)
                # The next power of two.
                bits = (k.bitcast(scale, U32) + BELOW_EXPONENT) & EXPONENT
                bits = k.select(k.eq(scale, scale), bits, NO_NUMBER)
                codes = _codes(k, parts, k.bitcast(bits, F32))
                k.store(y.buffer, to + v + c, k.cast(k.bitcast(bits >> 16, I32), I16))
                words.append(_words(k, codes))
            for first in range(0, BLOCK // PAIR, lanes):
                turned = transposed(k, [column[first // lanes] for column in words]) if lanes > 1 else []
                for i, word in enumerate(turned):
                    place = to + op.width + (first + i) * (op.width * PAIR) + v * PAIR
                    k.store(y.buffer, place, k.bitcast(word, ValueType(I16, lanes * PAIR)))
                for i in range(PAIR if lanes == 1 else 0):
                    place = to + op.width + first * (op.width * PAIR) + v * PAIR + i
                    k.store(y.buffer, place, words[0][first * PAIR + i])


def _scale(k: KernelBuilder, parts: list[Value], longest: float) -> Value:
    """That of a block, whose elements are vectors or single numbers."""
    largest = k.max(_reduced(k, "max", [k.abs(x) for x in parts]), LEAST)
    inverse = k.splat(k.const(COARSE, F32) / largest, parts[0].lanes)
    coarse = [k.cast(k.op("round", x * inverse), I32) for x in parts]
    square = _reduced(k, "add", [x * x for x in coarse])
    length = k.sqrt(k.cast(square, F32)) + COARSE_ERROR
    found = largest * (1 / COARSE) * k.max(length * (1 / longest), COARSE / LARGEST)
    return k.select(k.eq(found, found), found, float("nan"))


def _reduced(k: KernelBuilder, op: str, parts: list[Value]) -> Value:
    combine = k.max if op == "max" else operator.add
    whole = functools.reduce(combine, parts)
    return k.reduce(op, whole)


def _codes(k: KernelBuilder, parts: list[Value], scale: Value) -> list[Value]:
    inverse = k.splat(k.const(1.0, F32) / scale, parts[0].lanes)
    return [k.cast(k.cast(k.op("round", x * inverse), I32), I16) for x in parts]


def _words(k: KernelBuilder, codes: list[Value]) -> list[Value]:
    """Two neighbours as one word, as many words in a vector as there were codes; single codes as they are."""
    lanes = codes[0].lanes
    if lanes == 1:
        return codes
    joined = [k.shuffle(x, range(2 * lanes), y) for x, y in zip(codes[::2], codes[1::2])]
    return [k.bitcast(x, ValueType(I32, lanes)) for x in joined]
