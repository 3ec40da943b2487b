"""Activations as codes of 8 or 16 bits with a scale for every block of 32 (`rlx.ops.lowered.int8_products`)."""

from __future__ import annotations

import functools
import operator

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.int8_products import BLOCK, Int8Blocks, block_bytes, highest_code
from rlx.quant.panels import word_order

# Elements that one parallel iteration turns into codes, about.
CHUNK_ELEMENTS = 1 << 14


@op_kernel(Int8Blocks, kind="quantize", supports=lambda op, operands: operands[0].dtype is DType.F32)
def int8_blocks(site: OpSite) -> None:
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    assert isinstance(site.op, Int8Blocks)
    digits = site.op.digits
    depth = int(x.shape.dims[-1])
    rows = site.size(product(x.shape.dims[:-1]))
    chunk = max(1, CHUNK_ELEMENTS // max(1, depth))
    lanes = min(BLOCK, site.machine.lanes(DType.F32))
    row_bytes, record_bytes = int(y.shape.dims[-1]), block_bytes(BLOCK, digits)
    order = word_order(site.op.per_byte)
    with k.parallel("chunk", k.ceildiv(rows, chunk)) as number:
        first = number * chunk
        with k.loop("row", first, k.min(first + chunk, rows)) as row, k.loop("block", 0, depth // BLOCK) as block:
            source, to = x.offset + row * depth + block * BLOCK, y.offset + row * row_bytes + block * record_bytes
            values = [k.load(x.buffer, source + j, lanes=lanes) for j in range(0, BLOCK, lanes)]
            largest = k.abs(values[0])
            for value in values[1:]:
                largest = k.max(largest, k.abs(value))
            scale = k.reduce("max", largest) * (1 / highest_code(digits))
            inverse = k.splat(k.select(scale > 0.0, k.const(1.0, DType.F32) / scale, 0.0), lanes)
            rest = [k.cast(k.op("round", value * inverse), DType.I32) for value in values]
            numbers = [scale, *(k.cast(total, DType.F32) * scale for total in _sums(k, rest))]
            for digit in range(digits):
                # What is cut off is what the next digit has 256 of: rounded, so that digits have either sign.
                _store_in_order(k, y.buffer, to + digit * BLOCK, [k.cast(r, DType.U8) for r in rest], order)
                rest = [(r + 128) >> 8 for r in rest]
            for j, value in enumerate(numbers):
                k.store(y.buffer, to + (digits * BLOCK + 4 * j), k.bitcast(value, ValueType(DType.U8, 4)))


def _sums(k: KernelBuilder, codes: list[Value]) -> list[Value]:
    """Of the first half, the second and all of them."""
    parts = [k.reduce("add", part) if part.lanes > 1 else part for part in codes]
    if len(parts) == 1:
        parts = [k.reduce("add", k.shuffle(codes[0], range(half, half + BLOCK // 2))) for half in (0, BLOCK // 2)]
    middle = len(parts) // 2
    first, second = (functools.reduce(operator.add, half) for half in (parts[:middle], parts[middle:]))
    return [first, second, first + second]


def _store_in_order(k: KernelBuilder, to: Buffer, place: Value, parts: list[Value], order: list[int]) -> None:
    if parts[0].lanes == 1:
        for position, element in enumerate(order):
            k.store(to, place + position, parts[element])
        return
    while len(parts) > 1:
        parts = [k.shuffle(x, range(2 * x.lanes), y) for x, y in zip(parts[::2], parts[1::2])]
    k.store(to, place, k.shuffle(parts[0], order))
