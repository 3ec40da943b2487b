"""Tensor maps: how the copy engine sees a matrix in memory, 128 bytes that the driver encodes."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from typing import NamedTuple

from rlx.backends.cuda.device import Gpu

BYTES = 128
_TYPES = {"f16": 6, "bf16": 9}
_SWIZZLE_128 = 3
_PROMOTE_128 = 2


class MapSpec(NamedTuple):
    """A row-major matrix of two-byte elements at an address, `pitch` elements from row to row, read in boxes of
    `box_rows` by 64. What is outside of it reads as zeros."""

    address: int
    rows: int
    columns: int
    pitch: int
    box_rows: int
    element: str

    @property
    def is_possible(self) -> bool:
        """What the copy engine asks for: addresses and rows at multiples of 16 bytes."""
        return self.address % 16 == 0 and self.pitch % 8 == 0 and 0 < self.rows < 2**31 and 0 < self.columns < 2**31


def encode(gpu: Gpu, spec: MapSpec, to: int) -> None:
    """Write the map to an address of the host, a multiple of 64."""
    gpu.driver.cuTensorMapEncodeTiled(
        to,
        _TYPES[spec.element],
        2,
        spec.address,
        (c_uint64 * 2)(spec.columns, spec.rows),
        (c_uint64 * 1)(spec.pitch * 2),
        (c_uint32 * 2)(64, spec.box_rows),
        (c_uint32 * 2)(1, 1),
        0,
        _SWIZZLE_128,
        _PROMOTE_128,
        0,
    )


class ArgumentBlock:
    """The arguments of a launch: tensor maps first, then words; and the pointers to all of them."""

    def __init__(self, maps: int, words: int) -> None:
        self._memory = ctypes.create_string_buffer(maps * BYTES + words * 8 + 128)
        self.start = (ctypes.addressof(self._memory) + 127) & -128
        places = [self.start + i * BYTES for i in range(maps)]
        self._words_at = self.start + maps * BYTES
        places += [self._words_at + 8 * i for i in range(words)]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self.address = ctypes.addressof(self._pointers)
        self._words = (ctypes.c_int64 * max(1, words)).from_address(self._words_at)

    def map_at(self, number: int) -> int:
        return self.start + number * BYTES

    def set_words(self, values: list[int]) -> None:
        for number, value in enumerate(values):
            self._words[number] = value
