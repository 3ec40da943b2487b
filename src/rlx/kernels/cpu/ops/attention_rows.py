"""Blocks of query rows with one row in each lane: what attention and its gradients are computed from.

Everything about a block lies in memory of the thread as [depth or key, row], so that products, softmax and sums need no
step across lanes; only rows that come in and results that go out are transposed. Elements of k and v are loaded one by
one, each for all lanes, in register tiles of a few of them x vectors of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import Slab
from rlx.kernels.cpu.ops.attention_case import FAR, AttentionCase, Heads, KeyRange
from rlx.kernels.cpu.ops.attention_lanes import transposed
from rlx.kernels.ir.loop_ir import INDEX, Buffer, Value, ValueType
from rlx.ops.attn.operands import MaskKind

# Keys whose scores are kept at a time.
KEY_BLOCK = 48
# Room for a block of k or v that is stored in another type than sums are held in.
WIDENED_BYTES = 24 * 1024
# Elements of k or v beside the vectors of rows in a register tile.
MOST_TILE = 8


class QueryLanes:
    """Blocks of at most `block_rows` rows of one head of k and v. Heads of q that share it are neighbouring rows."""

    def __init__(self, case: AttentionCase, block_bytes: int, elements_per_row: int, kept_bytes: int = 0) -> None:
        """As many rows as `block_bytes` have room for at `elements_per_row`, and registers for their vectors; scores of
        a block of keys, or of as many as `kept_bytes` have room for."""
        self.case, self.k = case, case.k
        self.lanes, self.acc = case.lanes, case.acc
        most = 4 if case.machine.vector_registers >= 32 else 2
        while most > 1 and most * self.lanes * elements_per_row * self.acc.size_bytes > block_bytes:
            most //= 2
        self.vectors = most
        self.block_rows = most * self.lanes
        k, rows = self.k, self.block_rows
        self.queries = k.local("queries", self.acc, self.padded(case.depth) * rows)
        self.kept_keys = max(KEY_BLOCK, kept_bytes // (rows * self.acc.size_bytes))
        self.scores = k.local("scores", self.acc, (self.kept_keys + MOST_TILE) * rows)
        self.key_block, self.widened = KEY_BLOCK, None
        if case.keys.buffer.dtype is not self.acc:
            widest = self.padded(max(case.depth, case.width))
            self.key_block = max(4, min(KEY_BLOCK, WIDENED_BYTES // (widest * self.acc.size_bytes)))
            self.widened = k.local("widened", self.acc, self.key_block * widest)
        self.staged = k.local("staged", self.acc, self.padded(max(case.depth, case.width)) * self.lanes)
        self.last_seen = k.local("last_seen", DType.I32, rows) if case.is_positional else None
        self.first_seen = k.local("first_seen", DType.I32, rows) if case.has_window else None
        # A mask that differs between rows: where each row begins, and a block of it as [key, row].
        has_rows = case.mask is not None and not case.mask.serves_all_rows
        self.mask_rows = k.local("mask_rows", DType.I64, rows) if has_rows else None
        self.mask_block = k.local("mask_block", self.acc, (KEY_BLOCK + self.lanes) * rows) if has_rows else None

    def padded(self, width: int) -> int:
        """Room for rows of this width in whole vectors."""
        return -(-width // self.lanes) * self.lanes

    def tile(self, vectors: int) -> int:
        """Keys or depths in a register tile, beside one row of operands and one element."""
        return min(MOST_TILE, max(1, (self.case.machine.vector_registers - vectors - 2) // vectors))

    def vector(self, value: float) -> Value:
        return self.k.const(value, ValueType(self.acc, self.lanes))

    def filled(self, buffer: Buffer, count: int, value: float = 0.0) -> None:
        """The first `count` vectors of a buffer, set to a number."""
        with self.k.loop("i", 0, count) as i:
            self.k.store(buffer, i * self.lanes, self.vector(value))

    # Rows in and out.

    def place_of(self, head: Value, row: Value) -> tuple[Value, Value]:
        """The head of q and the query of a row."""
        group = self.case.group
        return head * group + row % group, row // group

    def seen_keys(self, batch: Value, head: Value, first: Value, vectors: int) -> KeyRange:
        """Keep what masking needs of each row; which keys any of them sees."""
        k, case = self.k, self.case
        count = case.key_count(batch)
        zero = k.const(0, count.type)
        if self.mask_rows is None and self.last_seen is None:
            return KeyRange(zero, count)
        with k.fold("row", 0, vectors * self.lanes, init=(count, zero)) as fold:
            # Rows behind the last one repeat it, here and wherever rows are staged.
            q_head, query = self.place_of(head, k.min(first + fold.index, case.rows - 1))
            fold.next(*self.note_row(batch, q_head, query, fold.index, fold.values))
        if not case.is_positional:
            return KeyRange(zero, count)
        lowest, end = fold.results
        return KeyRange(k.max(lowest, 0), k.min(end, count))

    def note_row(
        self, batch: Value, q_head: Value, query: Value, slot: Value, seen: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        k, case = self.k, self.case
        if self.mask_rows is not None:
            assert case.mask is not None
            k.store(self.mask_rows, slot, case.mask.row(batch, q_head, query))
        if self.last_seen is None:
            return seen
        own = case.seen(case.position(batch, query))
        k.store(self.last_seen, slot, k.cast(k.max(k.min(own.end - 1, FAR), -1), DType.I32))
        if self.first_seen is not None:
            k.store(self.first_seen, slot, k.cast(k.max(k.min(own.first, FAR), -1), DType.I32))
        return k.min(seen[0], own.first), k.max(seen[1], own.end)

    def stage(
        self, heads: Heads, width: int, where: tuple[Value, Value, Value], vectors: int, into: Buffer, factor: float
    ) -> None:
        """Rows of `heads` as [depth, row], times a factor; `where` is batch, head of k and v, first row."""
        k, lanes, padded = self.k, self.lanes, self.padded(width)
        batch, head, first = where
        with k.loop("v", 0, vectors) as v:
            with k.loop("j", 0, lanes) as j:
                q_head, query = self.place_of(head, k.min(first + v * lanes + j, self.case.rows - 1))
                self.copy_row(heads, width, heads.row(batch, q_head, query), self.staged, j * padded)
            with k.loop("d", 0, padded, lanes) as d:
                loaded = [k.load(self.staged, d + j * padded, lanes=lanes) for j in range(lanes)]
                for i, column in enumerate(transposed(k, loaded)):
                    k.store(into, (d + i) * (vectors * lanes) + v * lanes, column * factor)

    def copy_row(
        self, heads: Heads, width: int, place: Value, into: Buffer, to: Value, factor: Value | None = None
    ) -> None:
        """One row, times a factor, filled up with zeros."""
        k, lanes = self.k, self.lanes
        step = heads.step
        with k.loop("d", 0, self.padded(width), lanes) as d:
            loaded = k.load(heads.buffer, place + d * step, lanes=lanes, stride=step, mask=self.inside(width, d))
            row = k.cast(loaded, self.acc)
            k.store(into, to + d, row if factor is None else row * k.splat(factor, lanes))

    def as_numbers(
        self, heads: Heads, width: int, scales: Slab | None, where: tuple[Value, Value], keys: KeyRange
    ) -> Heads:
        """A block of keys or values in the type of sums: where they lie, or a copy; `where` is batch and head.

        Elements are loaded once for every few rows: a copy converts each of them once.
        """
        if self.widened is None:
            return heads
        k, padded = self.k, self.padded(width)
        with k.loop("key", 0, keys.end - keys.first) as key:
            number = keys.first + key
            factor = None
            if scales is not None:
                factor = k.cast(k.load(scales.buffer, scales.at(*where, number)), self.acc)
            self.copy_row(heads, width, heads.row(*where, number), self.widened, key * padded, factor)
        zero = k.const(0, INDEX)
        return Heads(self.widened, keys.first * -padded, (zero, zero, k.const(padded, INDEX), k.const(1, INDEX)))

    def inside(self, width: int, d: Value) -> Value | None:
        """The lanes from d on that a row of this width has; None for all of them."""
        return None if width % self.lanes == 0 else self.k.lane_mask(width - d, self.lanes)

    def store_rows(
        self, sums: Buffer, heads: Heads, width: int, where: tuple[Value, Value, Value], vectors: int, factors: Buffer
    ) -> None:
        """Sums as [depth, row], each row times its factor, to the rows of `heads` that exist."""
        k, lanes, padded = self.k, self.lanes, self.padded(width)
        batch, head, first = where
        with k.loop("v", 0, vectors) as v:
            shares = k.load(factors, v * lanes, lanes=lanes)
            with k.loop("d", 0, padded, lanes) as d:
                slots = [(d + i) * (vectors * lanes) + v * lanes for i in range(lanes)]
                columns = [k.load(sums, slot, lanes=lanes) * shares for slot in slots]
                for i, row in enumerate(transposed(k, columns)):
                    k.store(self.staged, d + i * padded, row)
            start = first + v * lanes
            with k.loop("j", 0, k.min(self.case.rows - start, lanes)) as j:
                q_head, query = self.place_of(head, start + j)
                place = heads.row(batch, q_head, query)
                with k.loop("d", 0, padded, lanes) as d:
                    row = k.cast(k.load(self.staged, j * padded + d, lanes=lanes), heads.buffer.dtype)
                    k.store(heads.buffer, place + d, row, mask=self.inside(width, d))

    # Products with keys and values.

    def products(
        self, heads: Heads, places: Sequence[Value], staged: Buffer, depth: int, vectors: int
    ) -> tuple[Value, ...]:
        """Rows of k or v at these places times the staged rows of a block: for each place, a sum for each vector."""
        k, lanes = self.k, self.lanes
        with k.fold("d", 0, depth, init=[self.vector(0.0)] * (len(places) * vectors)) as fold:
            d = fold.index
            rows = [k.load(staged, d * (vectors * lanes) + v * lanes, lanes=lanes) for v in range(vectors)]
            sums: list[Value] = []
            for place in places:
                element = self.element(heads.buffer, place + d * heads.step)
                sums += [k.fma(element, row, fold.values[len(sums) + v]) for v, row in enumerate(rows)]
            fold.next(*sums)
        return fold.results

    def element(self, buffer: Buffer, place: Value) -> Value:
        k = self.k
        return k.splat(k.cast(k.load(buffer, place), self.acc), self.lanes)

    def stage_mask(self, keys: KeyRange, count: Value, vectors: int) -> None:
        """The mask of a block of keys, if rows have their own: the bias, or -1 where it hides a key and 0 elsewhere."""
        k, mask, lanes = self.k, self.case.mask, self.lanes
        if mask is None or self.mask_rows is None or self.mask_block is None:
            return
        step = mask.step
        with k.loop("v", 0, vectors) as v, k.loop("key", 0, count, lanes) as key:
            exist = k.lane_mask(count - key, lanes)
            rows = []
            for j in range(lanes):
                place = k.load(self.mask_rows, v * lanes + j) + (keys.first + key) * step
                loaded = k.load(mask.buffer, place, lanes=lanes, stride=step, mask=exist)
                if self.case.op.mask_kind is MaskKind.Bias:
                    rows.append(k.cast(loaded, self.acc))
                else:
                    rows.append(k.select(self.case.shows(loaded), self.vector(0.0), self.vector(-1.0)))
            for i, column in enumerate(transposed(k, rows)):
                k.store(self.mask_block, (key + i) * (vectors * lanes) + v * lanes, column)

    def visible(self, batch: Value, score: Value, keys: KeyRange, key: Value, v: int, vectors: int) -> Value:
        """A product as a score, -inf in lanes whose row does not see the key; `keys` are those of `stage_mask`."""
        k, case, lanes = self.k, self.case, self.lanes
        if case.mask is not None and self.mask_block is not None:
            place = (key - keys.first) * (vectors * lanes) + v * lanes
            staged = k.load(self.mask_block, place, lanes=lanes)
            if case.op.mask_kind is MaskKind.Bias:
                return case.finished(score, staged)
            return k.select(staged < 0.0, -math.inf, case.finished(score))
        if case.mask is not None:
            zero = k.const(0, key.type)
            place = case.mask.row(batch, zero, zero) + key * case.mask.step
            return case.masked(score, k.load(case.mask.buffer, place))
        score = case.finished(score)
        if self.last_seen is None:
            return score
        number = k.cast(key, DType.I32)
        seen = number <= k.load(self.last_seen, v * lanes, lanes=lanes)
        if self.first_seen is not None:
            seen = seen & (number >= k.load(self.first_seen, v * lanes, lanes=lanes))
        return k.select(seen, score, -math.inf)

    def add_products(
        self,
        sums: Buffer,
        weights: Buffer,
        heads: Heads,
        width: int,
        place: Value,
        count: Value,
        factors: list[Value],
        slot: Value | int = 0,
    ) -> None:
        """sums[d, row] = sums * factors + sum of weights[slot + key, row] * heads[place + key, d], in tiles of depths.
        `slot` is 0 where the weights are those of one block."""
        k = self.k
        # At least one, of no depths, when values have no elements.
        tiles = max(-(-width // self.tile(len(factors))), 1)
        small, extra = divmod(width, tiles)
        split = extra * (small + 1)
        for start, end, tile in ((0, split, small + 1), (split, width, small)):
            if start < end:
                with k.loop("d", start, end, tile) as d:
                    self._add_tile(sums, weights, heads, place, count, factors, [d + i for i in range(tile)], slot)

    def _add_tile(
        self,
        sums: Buffer,
        weights: Buffer,
        heads: Heads,
        place: Value,
        count: Value,
        factors: list[Value],
        depths: list[Value],
        slot: Value | int,
    ) -> None:
        k, lanes, vectors = self.k, self.lanes, len(factors)
        slots = [d * (vectors * lanes) + v * lanes for d in depths for v in range(vectors)]
        kept = [k.load(sums, slot, lanes=lanes) * factors[n % vectors] for n, slot in enumerate(slots)]
        with k.fold("key", 0, count, init=kept) as fold:
            row = place + fold.index * heads.strides[2]
            at = (fold.index + slot) * (vectors * lanes)
            loaded = [k.load(weights, at + v * lanes, lanes=lanes) for v in range(vectors)]
            added: list[Value] = []
            for d in depths:
                element = self.element(heads.buffer, row + d * heads.step)
                added += [k.fma(element, weight, fold.values[len(added) + v]) for v, weight in enumerate(loaded)]
            fold.next(*added)
        for slot, total in zip(slots, fold.results):
            k.store(sums, slot, total)
