"""`SeenKeys`: how many keys there are and where queries stand among them, read from operands of an attention kernel."""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.attention_shape import AttentionShape, Integers
from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.kernels.gpu.attention import FAR


class KeyTiles(NamedTuple):
    """Of the keys that some query of a tile sees the last tile, and how many tiles; of those that all see in full the
    first and the end; and how many keys there are."""

    last: Val
    tiles: Val
    clean_first: Val
    clean_end: Val
    keys: Val


class SeenKeys:
    """Declares the next parameters of a kernel: if there are lengths, their address and stride, and if there are
    positions, their address, the stride of a batch and that of a query (i64)."""

    def __init__(self, w: Writer, shape: AttentionShape, queries: Val, key_limit: Val) -> None:
        self.w, self.shape, self.queries, self.key_limit = w, shape, queries, key_limit
        if shape.lengths is not None:
            self.lengths, self.length_step = (w.param(n, "i64") for n in ("lengths", "length_step"))
        if shape.positions is not None:
            self.positions, self.batch_step, self.query_step = (
                w.param(n, "i64") for n in ("positions", "batch_step", "query_step")
            )

    def integer(self, kind: Integers, address: Val) -> Val:
        """An integer from memory, cut to what 32 bits hold with room for sums."""
        w = self.w
        pointer = w.emit(f"inttoptr i64 {address.name} to ptr addrspace(1)", "ptr addrspace(1)")
        size = 8 if kind.type == "i64" else 4
        value = w.emit(f"load {kind.type}, ptr addrspace(1) {pointer.name}, align {size}", kind.type)
        limits = [w.value(x, kind.type) for x in (-FAR, FAR)]
        value = w.call(f"llvm.smax.{kind.type}", kind.type, value, limits[0])
        value = w.call(f"llvm.smin.{kind.type}", kind.type, value, limits[1])
        return w.emit(f"trunc i64 {value.name} to i32", "i32") if kind.type == "i64" else value

    def given_length(self, batch: Val) -> Val:
        """How many keys there are, as the operand says."""
        kind = self.shape.lengths
        if kind is None:
            return self.key_limit
        size = 8 if kind.type == "i64" else 4
        return self.integer(kind, self.lengths + self.w.wide(batch) * self.length_step * size)

    def key_count(self, length: Val) -> Val:
        """How many keys there are in memory."""
        w = self.w
        return length if self.shape.lengths is None else w.most(w.least(length, self.key_limit), 0)

    def position(self, batch: Val, query: Val, length: Val) -> Val:
        """Where a query stands among the keys; behind the last one is as the last one."""
        w, kind = self.w, self.shape.positions
        query = w.least(query, self.queries - 1)
        if kind is None:
            return w.most(length - self.queries, 0) + query
        place = w.wide(batch) * self.batch_step + w.wide(query) * self.query_step
        return self.integer(kind, self.positions + place * (8 if kind.type == "i64" else 4))

    def extremes(self, batch: Val, first: Val, rows: int, lane: Val, length: Val) -> tuple[Val, Val]:
        """The lowest and the highest position of a tile. With positions, all threads of a warp must come here."""
        w = self.w
        if self.shape.positions is None:
            return self.position(batch, first, length), self.position(batch, first + (rows - 1), length)
        found = [self.position(batch, first + lane + i * 32, length) for i in range(-(-rows // 32))]
        lowest, highest = found[0], found[0]
        for other in found[1:]:
            lowest, highest = w.least(lowest, other), w.most(highest, other)
        text = "redux.sync.{}.s32 $0, <x>, 0xffffffff;"
        (lowest,) = w.asm(text.format("min"), results=["i32"], x=lowest)
        (highest,) = w.asm(text.format("max"), results=["i32"], x=highest)
        return lowest, highest

    def tiles(self, batch: Val, first_row: Val, rows: int, keys: int, lane: Val) -> KeyTiles:
        """Those of so many keys, for a tile of so many queries."""
        w, shape = self.w, self.shape
        length = self.given_length(batch)
        count = self.key_count(length)
        end, seen_by_all, first, first_of_all = count, count, w.value(0), w.value(0)
        if shape.is_causal:
            lowest, highest = self.extremes(batch, first_row, rows, lane, length)
            end = w.most(w.least(count, highest + 1), 0)
            seen_by_all = w.most(w.least(count, lowest + 1), 0)
            if shape.window is not None:
                first = w.most(lowest - shape.window, 0) // keys
                first_of_all = (w.most(highest - shape.window, 0) + (keys - 1)) // keys
        last = w.most((end + (keys - 1)) // keys, 1) - 1
        tiles = w.most(last + 1 - first, 1)
        return KeyTiles(last, tiles, first_of_all, seen_by_all // keys, count)

    def limits(self, batch: Val, first_row: Val) -> list[tuple[Val | None, Val | None]]:
        """For a query and the one eight behind it the end of the keys that it sees, None: all, and the first one."""
        shape = self.shape
        if not shape.is_causal:
            return [(None, None)] * 2
        length = self.given_length(batch)
        found: list[tuple[Val | None, Val | None]] = []
        for r in range(2):
            position = self.position(batch, first_row + 8 * r, length)
            found.append((position + 1, None if shape.window is None else position - shape.window))
        return found

    def existing(self, limits: list[tuple[Val | None, Val | None]], count: Val) -> list[tuple[Val, Val | None]]:
        """The same among the keys that there are."""
        return [(count if end is None else self.w.least(end, count), first) for end, first in limits]
