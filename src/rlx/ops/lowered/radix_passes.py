"""`RadixCounts` and `RadixPlaces`: the passes of a sort of long rows, eight bits of the keys in each.

    counts = RadixCounts(0)(x)                    # how often each digit occurs in each tile of a row
    keys, order = RadixPlaces(0)(x, counts)       # ordered by the lowest eight bits, equals as they were
    counts = RadixCounts(8, raw=False)(keys)
    keys, order = RadixPlaces(8, raw=False)(keys, counts, order)

After the last pass `order` is that of `SortOrder`. Keys are integers in the order of the numbers (`sort_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec

__all__ = ["RadixCounts", "RadixPlaces"]

Array = np.ndarray[Any, np.dtype[Any]]

DIGITS = 256
# Elements of a tile, of keys with up to four bytes and with more.
TILE, WIDE_TILE = 4096, 2048

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use sort")


def key_dtype(dtype: DType) -> DType:
    """The type of the keys of `dtype`."""
    if dtype is DType.BOOL:
        return DType.U8
    if dtype in (DType.F16, DType.BF16, DType.F32):
        return DType.I32
    return DType.I64 if dtype is DType.F64 else dtype


def sort_keys(x: Array, descending: bool) -> Array:
    """Integers of which the smallest comes first: NaN is last either way, 0.0 and -0.0 are equal.

    >>> sort_keys(np.array([1.0, -0.0, 0.0, np.nan], np.float32), False).tolist()
    [1065353216, 0, 0, 2147483647]
    """
    dtype = key_dtype(DType.of(x.dtype))
    if not DType.of(x.dtype).is_float:
        keys = x.astype(dtype.numpy)
        return ~keys if descending else keys
    wide = np.add(x.astype(np.float32 if dtype is DType.I32 else np.float64), 0)
    bits = wide.view(dtype.numpy)
    most = np.iinfo(bits.dtype).max
    keys = bits ^ ((bits >> (8 * dtype.size_bytes - 1)) & most)
    return np.where(np.isnan(wide), most, ~keys if descending else keys)


def digit_shifts(dtype: DType) -> range:
    """Where the digits of keys begin. Those of short floats are keys of f32, whose last bits are all the same."""
    first = {DType.BF16: 16, DType.F16: 8}.get(dtype, 0)
    return range(first, 8 * key_dtype(dtype).size_bytes, 8)


def tile_of(dtype: DType) -> int:
    """How many elements a block takes at once."""
    return TILE if key_dtype(dtype).size_bytes <= 4 else WIDE_TILE


def tile_count(length: Size, dtype: DType) -> Size:
    tile = tile_of(dtype)
    return (length + (tile - 1)) // tile


def _digits(keys: Array, shift: int) -> Array:
    """Eight bits of the keys, taken as numbers without sign."""
    dtype = keys.dtype
    unsigned = keys.view(f"u{dtype.itemsize}")
    if dtype.kind == "i":
        unsigned = unsigned ^ unsigned.dtype.type(1 << (8 * dtype.itemsize - 1))
    return ((unsigned.astype(np.uint64) >> np.uint64(shift)) & np.uint64(DIGITS - 1)).astype(np.int64)


class RadixPass(Op):
    """What passes have in common: which bits, and whether x are numbers or already their keys."""

    lowered = True
    primitive = True
    jvp = vjp = batch = _INTERNAL

    shift: int = 0
    descending: bool = False
    raw: bool = True
    # Whether counts are summed up: [.., digit, tile] instead of [.., tile, digit].
    summed: bool = False

    def check(self) -> None:
        if self.shift < 0 or self.shift % 8:
            raise self.fail(f"shift is a multiple of 8, got {self.shift}")

    def require_keys(self, x: Shape) -> None:
        ok = not x.dtype.is_complex and not x.dtype.is_storage and (self.raw or not x.dtype.is_float)
        require_dtype(self, ok, "ordered", x)
        if not x.dims:
            raise self.fail(f"needs an operand of rank 1 or more, got {x}")
        if self.shift >= 8 * key_dtype(x.dtype).size_bytes:
            raise self.fail(f"keys of {x.dtype} have no bits from {self.shift} on")

    def counts_type(self, x: Shape) -> Shape:
        tiles = tile_count(x.dims[-1], x.dtype)
        last = (DIGITS, tiles) if self.summed else (tiles, DIGITS)
        return x.with_dims((*x.dims[:-1], *last)).with_dtype(DType.I32)

    def digits(self, x: Array) -> Array:
        return _digits(sort_keys(x, self.descending) if self.raw else x, self.shift)


@op("radix_counts")
class RadixCounts(RadixPass):
    """How often each of 256 digits occurs in each tile of the rows of x: i32[.., tiles, 256], or with `summed`
    [.., 256, tiles]."""

    def infer(self, x: Shape) -> Shape:
        self.require_keys(x)
        return self.counts_type(x)

    def eval(self, x: Array) -> Array:
        shape = self.counts_type(Shape(x.shape, DType.of(x.dtype)))
        counts = np.zeros(shape.static_dims, np.int32)
        digits, tile = self.digits(x), tile_of(DType.of(x.dtype))
        for row in np.ndindex(x.shape[:-1]):
            for number, start in enumerate(range(0, x.shape[-1], tile)):
                found = np.bincount(digits[row][start : start + tile], minlength=DIGITS)
                counts[(*row, slice(None), number) if self.summed else (*row, number)] = found
        return counts

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls)


@op("radix_places")
class RadixPlaces(RadixPass):
    """The keys of x and their places, i32, ordered by one digit; equals keep their order.

    The operands are x, what `RadixCounts` gives (`summed`: the exclusive sum of that over digits and tiles), and where
    elements of x come from, if passes went before.
    """

    def infer(self, x: Shape, counts: Shape, *order: Shape) -> tuple[Shape, Shape]:
        self.require_keys(x)
        wanted, places = self.counts_type(x), x.with_dtype(DType.I32)
        if counts != wanted or order not in ((), (places,)):
            raise self.fail(f"needs x, {wanted} and perhaps {places}; got {x}, {counts} and {order}")
        return x.with_dtype(key_dtype(x.dtype)), places

    def eval(self, x: Array, counts: Array, *order: Array) -> tuple[Array, Array]:
        keys = sort_keys(x, self.descending) if self.raw else x
        by_digit = np.argsort(_digits(keys, self.shift), axis=-1, kind="stable")
        places = order[0] if order else np.broadcast_to(np.arange(x.shape[-1], dtype=np.int32), x.shape)
        return np.take_along_axis(keys, by_digit, -1), np.take_along_axis(places, by_digit, -1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls)


def _samples(make: type[RadixCounts] | type[RadixPlaces]) -> Iterator[Sample]:
    def counts(values: Any, made: RadixPass, dtype: str) -> list[Any]:
        if make is RadixCounts:
            return []
        x = np.asarray(values).astype(DType.of(dtype).numpy)
        found = RadixCounts(made.shift, made.descending).eval(x)
        return [spec(*found.shape, dtype="i32", values=found)]

    numbers = np.array([[3, 1, 2, 3, 1, 0, 2], [7, 6, 5, 4, 3, 2, 1]])
    for dtype in (*FLOATS, *INTS):
        for descending in (False, True):
            made = make(8 if DType.of(dtype).size_bytes > 1 else 0, descending)
            yield sample(made, spec(2, 7, dtype=dtype, values=numbers), *counts(numbers, made, dtype), dtypes=(dtype,))
    special = [1.0, np.nan, -np.inf, 0.0, -0.0, np.inf]
    made = make(24)
    yield sample(made, spec(6, values=special, dtype="f32"), *counts(special, made, "f32"), dtypes=("f32",))
