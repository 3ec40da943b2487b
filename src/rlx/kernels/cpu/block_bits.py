"""Where the bits of a block's fields come from, found by asking the function that takes blocks apart.

`PanelFormat.split` says in NumPy what the fields of a type are. Kernels that take blocks apart need the same as shifts
and masks, and a second description of every type would be a second chance to be wrong. Most fields only move bits: a
block with one bit set then shows where that bit goes, and all such blocks show everything. Other fields are a function
of one byte each, of which there are 256. What is found is tried on random blocks. Elements of codebooks are neither,
but the numbers of their entries are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import InternalError
from rlx.quant.block_fields import U8
from rlx.quant.codebooks import CodebookType
from rlx.quant.panels import PanelFormat

NOWHERE = -1
_BYTE = 8
_TRIES = 512


class Term(NamedTuple):
    """For each byte of a field a byte of the block, NOWHERE for none: shifted (right if positive) and masked, or looked
    up in a table of 256. A byte of 0 contributes 0."""

    sources: tuple[int, ...]
    shift: int = 0
    mask: int = 0xFF
    table: tuple[int, ...] = ()


class Field(NamedTuple):
    """Bytes: `start` xor all terms."""

    start: tuple[int, ...]
    terms: tuple[Term, ...]


class BlockBits(NamedTuple):
    """`rlx.quant.panels.Fields`, each as the bytes of one block in their order."""

    codes: Field
    steps: Field
    minimums: Field | None
    headers: Field | None


class BookBits(NamedTuple):
    """`rlx.quant.codebooks.Indices`, each as the bytes of one block in their order."""

    d: Field
    scales: Field
    low: Field
    high: Field
    signs: Field


@cache
def block_bits(layout: PanelFormat, size: int) -> BlockBits:
    """How blocks of `size` bytes are taken apart, of a type without a codebook."""
    codes, steps, minimums, headers = _fields(layout.split, size)
    assert codes is not None and steps is not None
    return BlockBits(codes, steps, minimums, headers)


@cache
def book_bits(book: CodebookType, size: int) -> BookBits:
    """How blocks of `size` bytes, of a type with a codebook, are taken apart."""
    return BookBits(*(f for f in _fields(book.indices, size) if f is not None))


def _fields(split: Callable[[U8], Iterable[U8 | None]], size: int) -> list[Field | None]:
    """The fields into which blocks are split; None for those that there are not."""

    def ask(blocks: U8) -> list[U8 | None]:
        with np.errstate(all="ignore"):
            return [None if f is None else f.reshape(len(blocks), -1) for f in split(blocks)]

    def ask_one(number: int) -> Callable[[U8], U8 | None]:
        return lambda blocks: ask(blocks)[number]

    bits = np.arange(size * _BYTE)
    single = np.zeros((len(bits), size), np.uint8)
    single[bits, bits // _BYTE] = 1 << bits % _BYTE
    random = np.random.default_rng(size).integers(0, 256, (_TRIES, size)).astype(np.uint8)
    fields: list[Field | None] = []
    for number, (start, changed, wanted) in enumerate(zip(ask(0 * single[:1]), ask(single), ask(random))):
        if start is None or changed is None or wanted is None:
            fields.append(None)
            continue
        field: Field | None = _moved_bits(start[0], changed ^ start)
        if not _gives(field, random, wanted):
            field = _single_bytes(start[0], changed ^ start, ask_one(number))
        if not _gives(field, random, wanted):
            raise InternalError(f"field {number} of blocks of {size} bytes neither moves bits nor looks up bytes")
        fields.append(field)
    return fields


def _moved_bits(start: U8, changed: U8) -> Field:
    """The field whose bits are those of the block, or their inverse; `changed` is what each bit turns over."""
    turned, byte_of = np.nonzero(changed)
    # For each byte of the field: what moves there from a byte of the block, by how far, and which bits these are.
    moved: list[dict[tuple[int, int], int]] = [{} for _ in start]
    for source, byte in zip(turned.tolist(), byte_of.tolist()):
        place, from_bit = divmod(source, _BYTE)
        for bit in (b for b in range(_BYTE) if changed[source, byte] >> b & 1):
            masks = moved[byte]
            masks[place, from_bit - bit] = masks.get((place, from_bit - bit), 0) | 1 << bit
    # By how far bits move, which these are, and how many terms of the same byte do so before.
    terms: dict[tuple[int, int, int], list[int]] = {}
    for byte, masks in enumerate(moved):
        before = Counter[tuple[int, int]]()
        for (place, shift), mask in masks.items():
            key = (shift, mask, before[shift, mask])
            before[shift, mask] += 1
            terms.setdefault(key, [NOWHERE] * len(start))[byte] = place
    return Field(tuple(map(int, start)), tuple(Term(tuple(s), shift, mask) for (shift, mask, _), s in terms.items()))


def _single_bytes(start: U8, changed: U8, ask: Callable[[U8], U8 | None]) -> Field | None:
    """A field in which every byte is a function of one byte of the block."""
    size = len(changed) // _BYTE
    if _depends(changed.reshape(size, _BYTE, -1)) is None:
        return None
    places, numbers = np.divmod(np.arange(size * 256), 256)
    every = np.zeros((size * 256, size), np.uint8)
    every[np.arange(size * 256), places] = numbers
    found = ask(every)
    assert found is not None
    values = (found ^ start).reshape(size, 256, -1)
    sources = _depends(values)
    if sources is None:
        return None
    terms: dict[bytes, list[int]] = {}
    for byte, place in enumerate(sources):
        if place != NOWHERE:
            terms.setdefault(values[place, :, byte].tobytes(), [NOWHERE] * len(start))[byte] = place
    return Field(tuple(map(int, start)), tuple(Term(tuple(s), table=tuple(table)) for table, s in terms.items()))


def _depends(values: U8) -> list[int] | None:
    """The byte of the block with which each byte of a field changes; None if there are several."""
    changes: npt.NDArray[np.bool_] = np.asarray(values.any(axis=1))
    if changes.sum(axis=0).max(initial=0) > 1:
        return None
    return np.where(changes.any(axis=0), changes.argmax(axis=0), NOWHERE).tolist()


def _gives(field: Field | None, blocks: U8, wanted: U8) -> bool:
    """Whether the field of some blocks is what it should be."""
    if field is None:
        return False
    found: U8 = np.tile(np.array(field.start, np.uint8), (len(blocks), 1))
    for term in field.terms:
        sources = np.array(term.sources)
        picked = np.where(sources == NOWHERE, np.uint8(0), blocks[:, sources])
        if term.table:
            found ^= np.array(term.table, np.uint8)[picked]
        else:
            found ^= (picked >> term.shift if term.shift > 0 else picked << -term.shift) & np.uint8(term.mask)
    return np.array_equal(found, wanted)
