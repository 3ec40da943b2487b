"""Elements of any size in buffers of 32-bit words.

A parameter becomes a buffer of u32 and the place where it begins, in elements: the words that a caller binds begin
earlier. Elements of 1 and 2 bytes share words with their neighbours, which other threads may be writing: a store
clears and sets its own bits atomically, unless it has a word for itself. Memory of a thread or of a block is not
packed: an element takes a word there, or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import HALVES, Atomic, Buffer, Literal, Space, Value

U32, I32, F32 = DType.U32, DType.I32, DType.F32
WORD = 4

# An element as words: one value, or the low and the high one.
Parts = tuple[Value, ...]


def part_type(dtype: DType) -> DType:
    """In which type a word of an element is computed with."""
    if dtype in (DType.BOOL, F32):
        return dtype
    if dtype in HALVES or not dtype.is_signed or dtype.size_bytes == 8:
        return U32
    return I32


class Place(NamedTuple):
    """A buffer of the old kernel in the new one; `start` is its first element, None where that is 0."""

    buffer: Buffer
    start: Value | None


def unpacked(buffer: Buffer) -> Buffer:
    """Memory of a thread, a block, or the kernel itself with words for elements."""
    kind = part_type(buffer.dtype)
    words = buffer.dtype.size_bytes // WORD if buffer.dtype.size_bytes > WORD else 1
    data = tuple(w for x in buffer.data for w in _words(buffer.dtype, x))
    return Buffer(
        buffer.name,
        U32 if kind is DType.BOOL else kind,
        buffer.space,
        buffer.reads,
        buffer.writes,
        buffer.noalias,
        WORD,
        (buffer.size or 0) * words,
        data,
    )


def _words(dtype: DType, literal: Literal) -> tuple[Literal, ...]:
    if dtype.size_bytes == 8:
        return (int(literal) & 0xFFFFFFFF, (int(literal) >> 32) & 0xFFFFFFFF)
    if dtype in HALVES:
        return (int(np.asarray(literal, dtype.numpy).view(np.uint16)),)
    return (literal,)


class Memory:
    """Reads and writes elements of the old kernel's buffers."""

    def __init__(self, k: KernelBuilder, places: dict[Buffer, Place]) -> None:
        self.k, self.places = k, places

    def at(self, buffer: Buffer, offset: Value) -> tuple[Buffer, Value, bool]:
        """The new buffer, the element's number in it, and whether elements are packed."""
        found = self.places[buffer]
        place = offset if found.start is None else found.start + offset
        return found.buffer, place, buffer.space is Space.GLOBAL

    # Loads.

    def load(self, buffer: Buffer, offset: Value, mask: Value | None) -> Parts:
        """One element; zero where the mask is false."""
        k, dtype = self.k, buffer.dtype
        words, place, is_packed = self.at(buffer, offset)
        if dtype.size_bytes == 8:
            return tuple(k.load(words, place * 2 + i, mask=mask) for i in range(2))
        if is_packed and dtype.size_bytes < WORD:
            per_word = WORD // dtype.size_bytes
            word = k.load(words, place >> (per_word.bit_length() - 1), mask=mask)
            shift = k.cast(place & (per_word - 1), U32) * (8 * dtype.size_bytes)
            return (self.element(dtype, word >> shift),)
        word = k.load(words, place, mask=mask)
        if is_packed:
            return (k.bitcast(word, part_type(dtype)),)
        return (k.ne(word, 0),) if dtype is DType.BOOL else (word,)

    def load_whole(self, buffer: Buffer, offset: Value, lanes: int) -> list[Parts]:
        """Neighbours that fill words, from a place where a word begins."""
        k, size = self.k, buffer.dtype.size_bytes
        words, place, _ = self.at(buffer, offset)
        per_word = WORD // size
        first = place >> (per_word.bit_length() - 1)
        found: list[Parts] = []
        for number in range(lanes // per_word):
            word = k.load(words, first + number)
            found += [(self.element(buffer.dtype, word >> (8 * size * i) if i else word),) for i in range(per_word)]
        return found

    def element(self, dtype: DType, word: Value) -> Value:
        """The low bits of a word as an element."""
        k, bits = self.k, 8 * dtype.size_bytes
        if dtype is DType.BOOL:
            return k.ne(word & 0xFF, 0)
        if part_type(dtype) is I32:
            return k.bitcast(word << (32 - bits), I32) >> (32 - bits)
        return word & ((1 << bits) - 1)

    # Stores.

    def store(self, buffer: Buffer, offset: Value, parts: Parts, mask: Value | None) -> None:
        k, dtype = self.k, buffer.dtype
        words, place, is_packed = self.at(buffer, offset)
        if dtype.size_bytes == 8:
            for i, part in enumerate(parts):
                k.store(words, place * 2 + i, part, mask=mask)
        elif is_packed and dtype.size_bytes < WORD:
            if mask is None:
                self.store_bits(words, place, dtype, parts[0])
            else:
                with k.when(mask):
                    self.store_bits(words, place, dtype, parts[0])
        elif is_packed:
            k.store(words, place, k.bitcast(parts[0], U32), mask=mask)
        else:
            k.store(words, place, k.cast(parts[0], words.dtype), mask=mask)

    def store_bits(self, words: Buffer, place: Value, dtype: DType, value: Value) -> None:
        k, bits = self.k, 8 * dtype.size_bytes
        per_word = WORD // dtype.size_bytes
        word = place >> (per_word.bit_length() - 1)
        shift = k.cast(place & (per_word - 1), U32) * bits
        k.append(Atomic("and", words, word, ~(k.const((1 << bits) - 1, U32) << shift)))
        k.append(Atomic("or", words, word, self.bits(dtype, value) << shift))

    def store_whole(self, buffer: Buffer, offset: Value, elements: Sequence[Parts]) -> None:
        """Neighbours that fill words, from a place where a word begins."""
        k, size = self.k, buffer.dtype.size_bytes
        words, place, _ = self.at(buffer, offset)
        per_word = WORD // size
        first = place >> (per_word.bit_length() - 1)
        for number in range(len(elements) // per_word):
            word: Value | None = None
            for i in range(per_word):
                (value,) = elements[number * per_word + i]
                bits = self.bits(buffer.dtype, value) << (8 * size * i) if i else self.bits(buffer.dtype, value)
                word = bits if word is None else word | bits
            assert word is not None
            k.store(words, first + number, word)

    def bits(self, dtype: DType, value: Value) -> Value:
        """An element as the low bits of a word."""
        k = self.k
        if dtype is DType.BOOL:
            return k.cast(value, U32)
        return k.bitcast(value, U32) & ((1 << 8 * dtype.size_bytes) - 1)
