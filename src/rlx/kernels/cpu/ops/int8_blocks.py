"""Activations as codes of 8 or 16 bits, each block or span of blocks with a scale (`ops.lowered.int8_products`)."""

from __future__ import annotations

import functools
import operator

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.int8_products import BLOCK, SPANS, Int8Blocks, block_bytes, highest_code
from rlx.quant.panels import word_order

# Elements that one parallel iteration turns into codes, about.
CHUNK_ELEMENTS = 1 << 14


@op_kernel(Int8Blocks, kind="quantize", supports=lambda op, operands: operands[0].dtype is DType.F32)
def int8_blocks(site: OpSite) -> None:
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    assert isinstance(site.op, Int8Blocks)
    digits, bias = site.op.digits, site.op.bias
    depth = int(x.shape.dims[-1])
    rows = site.size(product(x.shape.dims[:-1]))
    chunk = max(1, CHUNK_ELEMENTS // max(1, depth))
    lanes = min(BLOCK, site.machine.lanes(DType.F32))
    row_bytes, record_bytes = int(y.shape.dims[-1]), block_bytes(BLOCK, digits)
    order = word_order(site.op.per_byte)
    span, count = SPANS[digits], depth // BLOCK
    with k.parallel("chunk", k.ceildiv(rows, chunk)) as number:
        first = number * chunk
        with k.loop("row", first, k.min(first + chunk, rows)) as row, k.loop("span", 0, count, span) as start:
            line, stop = x.offset + row * depth, k.min(start + span, count)

            def loaded(block: Value, line: Value = line) -> list[Value]:
                return [k.load(x.buffer, line + (block * BLOCK + j), lanes=lanes) for j in range(0, BLOCK, lanes)]

            with k.fold("block", start, stop, init=[k.const(0.0, ValueType(DType.F32, lanes))]) as fold:
                fold.next(functools.reduce(k.max, map(k.abs, loaded(fold.index)), fold.values[0]))
            scale = k.reduce("max", fold.results[0]) * (1 / highest_code(digits))
            inverse = k.splat(k.select(scale > 0.0, k.const(1.0, DType.F32) / scale, 0.0), lanes)
            with k.loop("block", start, stop) as block:
                to = y.offset + row * row_bytes + block * record_bytes
                rest = [k.cast(k.op("round", value * inverse), DType.I32) for value in loaded(block)]
                sums = _sums(k, rest)
                numbers = [scale, *(total * -bias if bias else k.cast(total, DType.F32) for total in sums)]
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
