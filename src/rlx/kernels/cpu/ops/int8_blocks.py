"""Activations as codes of 8 or 16 bits with a scale for every block of 32 (`rlx.ops.lowered.int8_products`)."""

from __future__ import annotations

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.loop_ir import ValueType
from rlx.ops.lowered.int8_products import BLOCK, Int8Blocks, highest_code

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
    row_bytes = int(y.shape.dims[-1])
    with k.parallel("chunk", k.ceildiv(rows, chunk)) as number:
        first = number * chunk
        with k.loop("row", first, k.min(first + chunk, rows)) as row, k.loop("block", 0, depth // BLOCK) as block:
            source, to = x.offset + row * depth + block * BLOCK, y.offset + row * row_bytes
            values = [k.load(x.buffer, source + j, lanes=lanes) for j in range(0, BLOCK, lanes)]
            largest = k.abs(values[0])
            for value in values[1:]:
                largest = k.max(largest, k.abs(value))
            scale = k.reduce("max", largest) * (1 / highest_code(digits))
            inverse = k.splat(k.select(scale > 0.0, k.const(1.0, DType.F32) / scale, 0.0), lanes)
            for j, value in enumerate(values):
                rest = k.cast(k.op("round", value * inverse), DType.I32)
                for digit in range(digits):
                    # What is cut off is what the next digit has 256 of: rounded, so that digits have either sign.
                    k.store(y.buffer, to + block * BLOCK + (digit * depth + j * lanes), k.cast(rest, DType.U8))
                    rest = (rest + 128) >> 8
            k.store(y.buffer, to + block * 4 + digits * depth, k.bitcast(scale, ValueType(DType.U8, 4)))
