"""Tensor maps: how the copy engine sees a tensor in memory, 128 bytes that the driver encodes."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from typing import NamedTuple

from rlx.backends.cuda.device import Gpu

BYTES = 128
# What the driver calls them, and their bytes.
_TYPES = {"f16": (6, 2), "f32": (7, 4), "bf16": (9, 2), "e4m3": (0, 1), "e5m2": (0, 1)}
_SWIZZLE_128 = 3
_PROMOTE_128 = 2


class MapSpec(NamedTuple):
    """A tensor at an address: sizes from the innermost axis on, strides in elements of all axes
    but that one, whose elements lie side by side, and the box in which it is read. What is outside of it reads as
    zeros and is not written."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element: str

    @staticmethod
    def matrix(address: int, rows: int, columns: int, pitch: int, box_rows: int, element: str) -> MapSpec:
        """A row-major matrix, `pitch` elements from row to row, read in boxes of `box_rows` by 128 bytes."""
        return MapSpec(address, (columns, rows), (pitch,), (128 // _TYPES[element][1], box_rows), element)

    @property
    def is_possible(self) -> bool:
        """What the copy engine asks for: addresses and rows at multiples of 16 bytes."""
        steps = [s * _TYPES[self.element][1] for s in self.strides]
        has_places = self.address % 16 == 0 and all(0 < s < 2**37 and s % 16 == 0 for s in steps)
        return has_places and all(0 < size < 2**31 for size in self.sizes)


def encode(gpu: Gpu, spec: MapSpec, to: int) -> None:
    """Write the map to an address of the host, a multiple of 64."""
    rank, (kind, size) = len(spec.sizes), _TYPES[spec.element]
    gpu.driver.cuTensorMapEncodeTiled(
        to,
        kind,
        rank,
        spec.address,
        (c_uint64 * rank)(*spec.sizes),
        (c_uint64 * (rank - 1))(*(size * s for s in spec.strides)),
        (c_uint32 * rank)(*spec.box),
        (c_uint32 * rank)(*[1] * rank),
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
