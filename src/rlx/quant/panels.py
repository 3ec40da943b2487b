"""GGUF weights in panels: the same codes and scales, laid out once so that products read them in one stream.

A weight of n rows of k elements becomes panels of 16 rows. A panel is a run of records, one for 32 elements of each of
its rows, in the order of k; formats with scales in two levels have a header in front of every 8 records. All is bytes:

    header   16 f16 scales, then 16 f16 scales of the minimums if there are some      (two levels only)
    record   the codes: planes of 8, 4, 2 and 1 bits as words u32[bits, 16]
             then the steps of its groups, then their minimums: f16 or f32[groups, 16], or u8/i8[groups, 16] under
             a header

Dot products take codes out of words four at a time, one of each byte, so the elements of a record come in fours in the
order of `word_order`: those of neighbouring bytes of the first plane, whose fields lie in the order of k. A word of any
plane has the fields of four number f in its bytes, those of four f+1 above them, and so on (`field_place`).

An element is `step·value + minimum` with value = code - bias, or a table's entry; a header multiplies steps and
minimums. Nothing is rounded: fields are the file's own, and where a step is computed (the codebook types, MXFP4) it is
kept as f32. `rlx.quant.fields` has the formats and says how large their panels are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlx.quant.block_fields import F32, U8
from rlx.quant.codebooks import CodebookType

PANEL_ROWS = 16
RECORD = 32
_SUPER = 8
_BYTE, _WORD = 8, 4


class Fields(NamedTuple):
    """Blocks taken apart: codes u8[blocks, elements]; steps, minimums and headers as bytes [blocks, count, size]."""

    codes: U8
    steps: U8
    minimums: U8 | None = None
    headers: U8 | None = None


class PanelFormat(NamedTuple):
    """What a type's panels hold. `planes` are the bits of a code, highest plane first in value order low to high;
    `group` elements share a step; `step_bytes` is 2 for f16, 4 for f32, 1 for a byte under a header (`signed_steps`).
    A table has 16 entries; what it says of `book`, if there is one, is in the order of `possible_values`."""

    planes: tuple[int, ...]
    group: int
    split: Callable[[U8], Fields]
    bias: int = 0
    table: tuple[float, ...] = ()
    has_minimums: bool = False
    step_bytes: int = 2
    signed_steps: bool = False
    book: CodebookType | None = None
    # Whether what is stored has no more than the 8 bits of bf16.
    is_short: bool = False

    @property
    def per_byte(self) -> int:
        """Codes that share a byte of the first plane."""
        return _BYTE // self.planes[0]

    def field_place(self, plane: int, element: int) -> tuple[int, int]:
        """The word of a plane that has the field of an element of a record, and the lowest bit of it."""
        run, inside = divmod(element, _WORD * self.per_byte)
        byte, slot = divmod(inside, self.per_byte)
        width = self.planes[plane]
        word, above = divmod(run * self.per_byte + slot, _BYTE // width)
        return word, byte * _BYTE + above * width

    @property
    def groups(self) -> int:
        """Steps in a record."""
        return RECORD // self.group

    @property
    def has_header(self) -> bool:
        return self.step_bytes == 1

    @property
    def records(self) -> int:
        """Records that follow each other without a header between them."""
        return _SUPER if self.has_header else 1

    @property
    def header_bytes(self) -> int:
        return 2 * PANEL_ROWS * (1 + self.has_minimums) if self.has_header else 0

    @property
    def code_bytes(self) -> int:
        return sum(self.planes) * 4 * PANEL_ROWS

    @property
    def scale_bytes(self) -> int:
        """Bytes of the steps of a record, and of its minimums."""
        return self.groups * self.step_bytes * PANEL_ROWS

    @property
    def record_bytes(self) -> int:
        return self.code_bytes + self.scale_bytes * (1 + self.has_minimums)

    @property
    def run_bytes(self) -> int:
        """A header, if there is one, and its records."""
        return self.header_bytes + self.records * self.record_bytes

    def panel_bytes(self, k: int) -> int:
        return k // (RECORD * self.records) * self.run_bytes


def pack_rows(layout: PanelFormat, blocks: U8, rows: int, k: int) -> U8:
    """Blocks u8[rows · k/elements, bytes] as u8[panels, panel_bytes]; rows that fill up the last panel are 0."""
    panels = -(-rows // PANEL_ROWS)
    fields = layout.split(blocks)
    missing = panels * PANEL_ROWS - rows

    def by_panel(field: U8, per_row: int) -> U8:
        """[blocks, count, ..] -> [panels, 16, per_row, ..]."""
        whole = field.reshape(rows, per_row, *field.shape[2:])
        if missing:
            whole = np.concatenate([whole, np.zeros((missing, *whole.shape[1:]), np.uint8)])
        return whole.reshape(panels, PANEL_ROWS, *whole.shape[1:])

    records = k // RECORD
    codes = by_panel(fields.codes, k).reshape(panels, PANEL_ROWS, records, RECORD)
    parts = [_plane(codes, layout, number) for number in range(len(layout.planes))]
    for scales in (fields.steps, fields.minimums):
        if scales is not None:
            # [panels, 16, records, groups, bytes] with the rows moved next to the bytes.
            moved = by_panel(scales, records * layout.groups).reshape(panels, PANEL_ROWS, records, layout.groups, -1)
            parts.append(moved.transpose(0, 2, 3, 1, 4).reshape(panels, records, -1))
    packed = np.concatenate(parts, axis=2)
    if fields.headers is None:
        return np.ascontiguousarray(packed).reshape(panels, -1)
    runs = records // layout.records
    count = fields.headers.shape[1]
    heads = by_panel(fields.headers, runs * count).reshape(panels, PANEL_ROWS, runs, count, 2)
    heads = heads.transpose(0, 2, 3, 1, 4).reshape(panels, runs, -1)
    return np.concatenate([heads, packed.reshape(panels, runs, -1)], axis=2).reshape(panels, -1)


def word_order(per_byte: int) -> list[int]:
    """The elements of a record in fours, as dot products meet them, where `per_byte` codes share a byte.

    >>> word_order(2)[:12]
    [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14]
    """
    run = _WORD * per_byte
    return [first + j + per_byte * b for first in range(0, RECORD, run) for j in range(per_byte) for b in range(_WORD)]


def _plane(codes: U8, layout: PanelFormat, number: int) -> U8:
    """One plane of codes [panels, 16, records, 32] as bytes [panels, records, bytes]."""
    panels, _, records, _ = codes.shape
    width = layout.planes[number]
    fields = (codes >> np.uint8(sum(layout.planes[:number]))) & np.uint8(2**width - 1)
    # [.., words, fours in a word, bytes]
    grouped = fields[..., word_order(layout.per_byte)].reshape(*codes.shape[:3], width, _BYTE // width, _WORD)
    packed = np.zeros((*codes.shape[:3], width, _WORD), np.uint8)
    for above in range(_BYTE // width):
        packed |= grouped[..., above, :] << np.uint8(width * above)
    return packed.transpose(0, 2, 3, 1, 4).reshape(panels, records, -1)


def unpack_rows(layout: PanelFormat, panels: U8, rows: int, k: int) -> F32:
    """f32[rows, k] from panels: the definition of what they hold."""
    count, records = len(panels), k // RECORD
    runs = records // layout.records
    whole = panels.reshape(count, runs, layout.run_bytes)
    heads, body = whole[..., : layout.header_bytes], whole[..., layout.header_bytes :]
    body = np.ascontiguousarray(body).reshape(count, records, layout.record_bytes)
    values = _values(layout, body[..., : layout.code_bytes])
    parts = []
    for number in range(1 + layout.has_minimums):
        start = layout.code_bytes + number * layout.scale_bytes
        raw = np.ascontiguousarray(body[..., start : start + layout.scale_bytes])
        if not layout.has_header:
            floats = raw.view("<f2" if layout.step_bytes == 2 else "<f4").astype(np.float32)
            parts.append(floats.reshape(count, records, layout.groups, PANEL_ROWS))
            continue
        steps = raw.view(np.int8) if layout.signed_steps and number == 0 else raw
        head = np.ascontiguousarray(heads[..., 32 * number : 32 * (number + 1)]).view("<f2").astype(np.float32)
        scaled = steps.reshape(count, runs, layout.records * layout.groups, PANEL_ROWS) * head[:, :, None, :]
        parts.append(scaled.astype(np.float32).reshape(count, records, layout.groups, PANEL_ROWS))
    # K-quants subtract their minimums.
    sign = np.float32(-1 if layout.has_header else 1)
    grouped = values.reshape(count, records, layout.groups, layout.group, PANEL_ROWS)
    found = parts[0][:, :, :, None, :] * grouped
    if layout.has_minimums:
        found = found + sign * parts[1][:, :, :, None, :]
    return found.reshape(count, k, PANEL_ROWS).swapaxes(1, 2).reshape(-1, k)[:rows]


def _values(layout: PanelFormat, codes: U8) -> F32:
    """[panels, records, bytes] -> f32[panels, records, 32, 16]."""
    panels, records, _ = codes.shape
    total = np.zeros((panels, records, RECORD, PANEL_ROWS), np.uint8)
    start = shift = 0
    for width in layout.planes:
        size = width * 4 * PANEL_ROWS
        words = codes[..., start : start + size].reshape(panels, records, width, PANEL_ROWS, _WORD)
        steps = np.arange(_BYTE // width, dtype=np.uint8) * np.uint8(width)
        fields = (words[..., None] >> steps) & np.uint8(2**width - 1)
        # [.., words, 16, bytes, fours in a word] -> [.., words, fours in a word, bytes, 16]
        ordered = fields.transpose(0, 1, 2, 5, 4, 3).reshape(panels, records, RECORD, PANEL_ROWS)
        total[:, :, word_order(layout.per_byte)] |= ordered << np.uint8(shift)
        start, shift = start + size, shift + width
    if layout.table:
        table: F32 = np.array(layout.table, np.float32)
        return table[total]
    if layout.planes == (8,):
        return total.view(np.int8).astype(np.float32)
    return total.astype(np.float32) - np.float32(layout.bias)
