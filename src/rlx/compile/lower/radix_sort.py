"""Orders of rows that no block of a GPU holds, by radix sort: pass by pass, eight bits of the keys in each, the lowest
first.

    sort_order(x[.., n])    ->    radix_counts, radix_places, once for each byte of the keys

Sizes may be symbolic: one form serves every length. Of several keys the last one is first, and those before it are
looked up in the order so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.ir.shape import Size
from rlx.ops.lowered.radix_passes import DIGITS, RadixCounts, RadixPlaces, digit_shifts, tile_count, tile_of
from rlx.ops.lowered.sort_order import InverseOrder, SortOrder
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.shape.movement import reshape
from rlx.ops.shape.selection import take_along_axis

# Counts of so many tiles are summed up by every block; those of more beforehand.
FEW_TILES = 64


def radix_form(op: SortOrder, *operands: Any) -> Callable[..., Any] | None:
    """Passes for a sort order; None where a block has the whole row."""
    length = operands[0].shape[-1]
    if length in (0, 1) or any(x.dtype.is_storage or x.dtype.is_complex for x in operands):
        return None
    if len(operands) == 1 and isinstance(length, int) and length <= tile_of(operands[0].dtype):
        return None

    def build(*operands: Any) -> Any:
        order: list[Any] = []
        for x in reversed(operands):
            keys = take_along_axis(x, order[0], -1) if order else x
            for number, shift in enumerate(digit_shifts(x.dtype)):
                keys, found = _pass(keys, order, shift, op.descending, raw=number == 0)
                order = [found]
        (found,) = order
        return found, InverseOrder()(found)

    return build


def _pass(x: Any, order: list[Any], shift: int, descending: bool, raw: bool) -> tuple[Any, Any]:
    tiles: Size = tile_count(x.shape[-1], x.dtype)
    summed = isinstance(tiles, int) and tiles > FEW_TILES
    settings = (shift, descending, raw, summed)
    counts = RadixCounts(*settings)(x)
    if summed:
        flat = reshape(counts, (*x.shape[:-1], DIGITS * tiles))
        counts = reshape(Cumulative("sum", axis=-1, exclusive=True)(flat), counts.shape)
    keys, found = RadixPlaces(*settings)(x, counts, *order)
    return keys, found
