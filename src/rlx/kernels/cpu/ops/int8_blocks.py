"""Activations as codes of 8 or 16 bits, each block or span of blocks with a scale (`ops.lowered.int8_products`)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Value, ValueType
from rlx.ops.lowered.int8_products import (
    BLOCK,
    SPANS,
    WORD,
    Int8Blocks,
    PairForm,
    block_bytes,
    byte_bias,
    highest_code,
    pair_form,
)
from rlx.quant.panels import PanelFormat, word_order

# Elements that one parallel iteration turns into codes, about.
CHUNK_ELEMENTS = 1 << 14


@op_kernel(Int8Blocks, kind="quantize", supports=lambda op, operands: operands[0].dtype is DType.F32)
def int8_blocks(site: OpSite) -> None:
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    assert isinstance(site.op, Int8Blocks)
    layout, digits = site.op.scheme.panel_format, site.op.digits
    assert layout is not None
    depth = int(x.shape.dims[-1])
    rows = site.size(product(x.shape.dims[:-1]))
    chunk = max(1, CHUNK_ELEMENTS // max(1, depth))
    lanes = min(BLOCK, site.machine.lanes(DType.F32))
    row_bytes, record_bytes = int(y.shape.dims[-1]), block_bytes(layout, BLOCK, digits)
    order = word_order(layout.per_byte)
    span, count = SPANS[digits], depth // BLOCK
    with k.parallel("chunk", k.ceildiv(rows, chunk)) as number:
        first = number * chunk
        with k.loop("row", first, k.min(first + chunk, rows)) as row, k.loop("span", 0, count, span) as start:
            line, stop = x.offset + row * depth, k.min(start + span, count)

            def loaded(block: Value, line: Value = line) -> list[Value]:
                return [k.load(x.buffer, line + (block * BLOCK + j), lanes=lanes) for j in range(0, BLOCK, lanes)]

            with k.fold("block", start, stop, init=[k.const(0.0, ValueType(DType.F32, lanes))]) as fold:
                fold.next(functools.reduce(k.max, map(k.abs, loaded(fold.index)), fold.values[0]))
            scale = k.reduce("max", fold.results[0]) * (1 / highest_code(layout, digits))
            inverse = k.splat(k.select(scale > 0.0, k.const(1.0, DType.F32) / scale, 0.0), lanes)
            with k.loop("block", start, stop) as block:
                to = y.offset + row * row_bytes + block * record_bytes
                codes = [k.cast(k.op("round", value * inverse), DType.I32) for value in loaded(block)]
                parts = _digits(codes, digits)
                for digit, part in enumerate(parts):
                    _store_in_order(k, y.buffer, to + digit * BLOCK, [k.cast(x, DType.U8) for x in part], order)
                totals = _sums(k, layout, codes)
                bias, pairs = byte_bias(layout), pair_form(layout, digits)
                numbers = [scale, *(total * -bias if bias else k.cast(total, DType.F32) for total in totals)]
                if pairs is not None:
                    numbers.append(totals[0] * -bias + _pair_start(k, pairs, parts, order))
                for j, value in enumerate(numbers):
                    k.store(y.buffer, to + (digits * BLOCK + WORD * j), k.bitcast(value, ValueType(DType.U8, WORD)))


def _digits(codes: list[Value], count: int) -> list[list[Value]]:
    """The digits of some codes, the lowest of all first."""
    found, rest = [], codes
    for _ in range(count - 1):
        # What is cut off is what the next digit has 256 of: rounded, so that digits have either sign.
        high = [(x + 128) >> 8 for x in rest]
        found.append([x - (h << 8) for x, h in zip(rest, high)])
        rest = high
    return [*found, rest]


def _sums(k: KernelBuilder, layout: PanelFormat, codes: list[Value]) -> list[Value]:
    """Of the codes of each group."""
    groups = [range(first, first + layout.group) for first in range(0, BLOCK, layout.group)]
    return [_total(k, _picked(k, codes, group)) for group in groups]


def _pair_start(k: KernelBuilder, pairs: PairForm, digits: list[list[Value]], order: list[int]) -> Value:
    """What products of pairs begin with for the digits of a block, but for the bias of the weight."""
    first, second = ([order[place] for place in places] for places in pairs.places)
    found: Value = k.const(0, DType.I32)
    for digit in reversed(digits):
        terms = [c * -pairs.most for c in _picked(k, digit, second)]
        if digit is digits[-1]:
            highest = zip(_picked(k, digit, first), _picked(k, digit, second))
            terms = [term + (a * pairs.half - a * c) for term, (a, c) in zip(terms, highest)]
        found = (found << 8) + _total(k, terms)
    return found


def _picked(k: KernelBuilder, parts: list[Value], elements: Sequence[int]) -> list[Value]:
    """Some elements of a block: as one vector if there are vectors."""
    if parts[0].lanes == 1:
        return [parts[element] for element in elements]
    return [k.shuffle(_joined(k, parts), elements)]


def _joined(k: KernelBuilder, parts: list[Value]) -> Value:
    while len(parts) > 1:
        parts = [k.shuffle(x, range(2 * x.lanes), y) for x, y in zip(parts[::2], parts[1::2])]
    return parts[0]


def _total(k: KernelBuilder, parts: list[Value]) -> Value:
    return functools.reduce(operator.add, [k.reduce("add", part) if part.lanes > 1 else part for part in parts])


def _store_in_order(k: KernelBuilder, to: Buffer, place: Value, parts: list[Value], order: list[int]) -> None:
    if parts[0].lanes == 1:
        for position, element in enumerate(order):
            k.store(to, place + position, parts[element])
        return
    k.store(to, place, k.shuffle(_joined(k, parts), order))
