"""Operands of products on tensor cores that are not stored as bf16 or f16: GGUF weights in panels (`rlx.quant.panels`)
are dequantised, and rows of f32 split into bf16, once for a product of many rows.

A number of f32 becomes two of bf16, what it is rounded to and what that leaves, which together have 16 bits of it. The
product of two such numbers is the sum of three products of bf16 (`parts` of the weight: 2), or of two where the weight
has no more bits than bf16 (1). Rows are written as [rests | rounded], weights as [rounded | rests], each part `pitch`
elements long, so that a product walks along K through the small parts first (`GroupTiles.parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.quant_codes import CHUNK, Codes
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Value
from rlx.kernels.machines import Machine
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat

THREADS = 256
# Elements that a part of a line is filled up to, with zeros.
PITCH = 64
_CHUNKS = RECORD // CHUNK
_BYTES = 16
_LARGEST_BF16 = float.fromhex("0x1.fep127")


def pitch_of(k: int) -> int:
    """Elements of a part of a line.

    >>> pitch_of(96)
    128
    """
    return -(-k // PITCH) * PITCH


class ExpandShape(NamedTuple):
    """A block of threads has so many chunks of each row of a panel side by side, and some times the next ones."""

    across: int
    turns: int


# Elements along K that a block writes of each row in a turn.
TURN = THREADS // PANEL_ROWS * CHUNK
# Whole lines of the cache, and enough loads under way.
USUAL_SHAPE = ExpandShape(8, 2)


def expand_kernel(
    name: str,
    machine: Machine,
    layout: PanelFormat,
    k: int,
    n: int,
    dtype: DType,
    parts: int,
    shape: ExpandShape = USUAL_SHAPE,
) -> Kernel:
    """`lines`[n, parts * pitch] of a weight [k, n] in `panels`; a block has one panel and some elements along K."""
    b = KernelBuilder(name)
    panels = b.pointer("panels", DType.U8, align=_BYTES)
    lines = b.pointer("lines", dtype, write=True, align=_BYTES)
    pitch, records, across = pitch_of(k), k // RECORD, shape.across
    turns = min(shape.turns, -(-pitch // TURN))
    blocks = -(-pitch // (TURN * turns))
    with b.parallel("block", -(-n // PANEL_ROWS) * blocks) as block, b.threads("thread", THREADS) as thread:
        codes = Codes(b, machine, layout, panels, lanes=1, is_aligned=True)
        lane = thread // across % PANEL_ROWS
        chunk = thread % across + thread // (across * PANEL_ROWS) * across
        panel = block // blocks
        base, row = panel * layout.panel_bytes(k), panel * PANEL_ROWS + lane
        places = [block % blocks * (TURN * turns) + (chunk * CHUNK + turn * TURN) for turn in range(turns)]

        def weights(place: Value) -> list[Value]:
            record = place // RECORD
            if pitch == k:
                return decoded_chunk(codes, base, lane, record, chunk % _CHUNKS)
            # Behind the last record are zeros.
            found = decoded_chunk(codes, base, lane, b.min(record, records - 1), chunk % _CHUNKS)
            return [b.select(record < records, w, 0.0) for w in found]

        def store(place: Value, values: list[Value]) -> None:
            for number, part in enumerate(_split(b, _joined(b, values), dtype, parts)):
                b.store(lines, row * (parts * pitch) + place + number * pitch, part, align=_BYTES)

        with b.when(row < n):
            if pitch % (TURN * turns) == 0:
                # All that is read is on its way before the first is written.
                for place, values in [(place, weights(place)) for place in places]:
                    store(place, values)
            else:
                for place in places:
                    with b.when(place < pitch):
                        store(place, weights(place))
    return b.build()


def split_kernel(name: str, k: int) -> Kernel:
    """`lines`[m, 2 * pitch] of f32 `rows`[m, k] that lie `row_stride` elements apart: rests, then what they are rests
    of."""
    b = KernelBuilder(name)
    rows = b.pointer("rows", DType.F32, align=_BYTES)
    lines = b.pointer("lines", DType.BF16, write=True, align=_BYTES)
    m, stride = b.index("m"), b.index("row_stride")
    pitch = pitch_of(k)
    chunks = pitch // CHUNK
    with b.parallel("block", b.ceildiv(m * chunks, THREADS)) as block, b.threads("thread", THREADS) as thread:
        number = block * THREADS + thread
        row, first = number // chunks, number % chunks * CHUNK
        with b.when(row < m):
            at = row * stride + b.min(first, k - CHUNK)
            halves = [b.load(rows, at + i, lanes=4, align=_BYTES) for i in (0, 4)]
            x = b.shuffle(halves[0], range(CHUNK), halves[1])
            if pitch > k:
                x = b.select(b.splat(first < k, CHUNK), x, 0.0)
            rounded, rest = _split(b, x, DType.BF16, 2)
            b.store(lines, row * (2 * pitch) + first, rest, align=_BYTES)
            b.store(lines, row * (2 * pitch) + (first + pitch), rounded, align=_BYTES)
    return b.build()


def decoded_chunk(codes: Codes, base: Value, lane: Value, record: Value, chunk: Value) -> list[Value]:
    """Neighbours along K, as f32: step·(code - bias) + minimum, as `unpack_rows` says it."""
    layout = codes.layout
    place, heads = codes.place(base, record), codes.heads(base, lane, record)
    step, minimum = codes.scales(place, lane, chunk // (layout.group // CHUNK), heads)
    found = []
    for shift, code in zip(codes.shifts, codes.values(place, lane, chunk)):
        value = code * 2.0**-shift if shift else code
        value = (value - float(layout.bias) if layout.bias else value) * step
        found.append(value if minimum is None else value + minimum)
    return found


def _joined(b: KernelBuilder, values: Sequence[Value]) -> Value:
    """Numbers as a vector."""
    parts = [b.shuffle(b.splat(x, 2), (0, 2), b.splat(y, 2)) for x, y in zip(values[::2], values[1::2])]
    while len(parts) > 1:
        parts = [b.shuffle(x, range(2 * x.lanes), y) for x, y in zip(parts[::2], parts[1::2])]
    return parts[0]


def _split(b: KernelBuilder, x: Value, dtype: DType, parts: int) -> list[Value]:
    """What a number is rounded to and, for two parts, what that leaves. The first is finite wherever it is a number, so
    that one that is infinite, or almost, has its size in the rest."""
    if parts == 1:
        return [b.cast(x, dtype)]
    most = b.const(_LARGEST_BF16, x.type)
    rounded = b.cast(b.max(b.min(x, most), -most), dtype)
    return [rounded, b.cast(x - b.cast(rounded, DType.F32), dtype)]
