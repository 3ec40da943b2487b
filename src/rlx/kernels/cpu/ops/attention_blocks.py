"""Attention of many rows: per block of rows an online softmax over blocks of keys."""

from __future__ import annotations

import math

from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, KeyRange
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.cpu.ops.attention_rows import QueryLanes
from rlx.kernels.ir.loop_ir import Value

# Queries and results of one block: with scores beside them they stay in the second-level cache.
BLOCK_BYTES = 64 * 1024


class ForwardBlocks(QueryLanes):
    """The form for many rows: blocks of `block_rows`, the last ones by single vectors of queries."""

    def __init__(self, case: AttentionCase, out: Heads) -> None:
        super().__init__(case, BLOCK_BYTES, case.depth + case.width)
        self.out = out
        self.sums = self.k.local("sums", self.acc, self.padded(case.width) * self.block_rows)
        self.shares = self.k.local("shares", self.acc, self.block_rows)
        has_sinks = case.sinks is not None
        self.sinks = self.k.local("sinks", self.acc, self.padded(1) * self.block_rows) if has_sinks else None

    def block(self, batch: Value, head: Value, first: Value) -> None:
        """Rows first .. first+block_rows-1 of one head of k and v, as far as there are so many."""
        k = self.k
        if self.vectors == 1:
            self.rows(batch, head, first, 1)
            return
        end = k.min(first + self.block_rows, self.case.rows)
        with k.when(end - first > self.block_rows // 2):
            self.rows(batch, head, first, self.vectors)
        with k.otherwise(), k.loop("part", first, end, self.lanes) as part:
            self.rows(batch, head, part, 1)

    def rows(self, batch: Value, head: Value, first: Value, vectors: int) -> None:
        k, case = self.k, self.case
        where = (batch, head, first)
        self.stage(case.q, case.depth, where, vectors, self.queries, case.query_factor)
        seen = self.seen_keys(batch, head, first, vectors)
        self.filled(self.sums, self.padded(case.width) * vectors)
        init = self.begin(where, vectors)
        with k.fold("block_start", seen.first, seen.end, self.key_block, init) as fold:
            peaks, totals = fold.values[:vectors], fold.values[vectors:]
            count = k.min(seen.end - fold.index, self.key_block)
            keys = KeyRange(fold.index, fold.index + count)
            higher = self.score_keys(batch, head, keys, count, peaks)
            bases = [case.base(peak) for peak in higher]
            factors = [case.power(old - base) for old, base in zip(peaks, bases)]
            totals = self.raise_powers(count, bases, [t * f for t, f in zip(totals, factors)])
            values = self.as_numbers(case.values, case.width, case.value_scales, (batch, head), keys)
            place = values.row(batch, head, keys.first)
            self.add_products(self.sums, self.scores, values, case.width, place, count, factors)
            fold.next(*higher, *totals)
        for v, total in enumerate(fold.results[vectors:]):
            k.store(self.shares, v * self.lanes, 1.0 / k.select(k.eq(total, 0.0), 1.0, total))
        self.store_rows(self.sums, self.out, case.width, where, vectors, self.shares)

    def begin(self, where: tuple[Value, Value, Value], vectors: int) -> list[Value]:
        """The highest score of each row and the sum of its powers, before the first key: those of its sink, if any."""
        if self.sinks is None or self.case.sinks is None:
            return [self.vector(-math.inf)] * vectors + [self.vector(0.0)] * vectors
        self.stage(self.case.sinks, 1, where, vectors, self.sinks, self.case.unit)
        peaks = [self.k.load(self.sinks, v * self.lanes, lanes=self.lanes) for v in range(vectors)]
        return peaks + [self.vector(1.0)] * vectors

    def score_keys(
        self, batch: Value, head: Value, keys: KeyRange, count: Value, peaks: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """The scores of a block of keys, stored as [key, row]; the highest so far of each row.

        A tile that passes the last key computes that one again: it changes no maximum, and nobody reads it.
        """
        k, case, lanes = self.k, self.case, self.lanes
        vectors = len(peaks)
        tile = self.tile(vectors)
        self.stage_mask(keys, count, vectors)
        heads = self.as_numbers(case.keys, case.depth, case.key_scales, (batch, head), keys)
        with k.fold("tile", 0, count, tile, peaks) as fold:
            numbers = [k.min(keys.first + fold.index + j, keys.end - 1) for j in range(tile)]
            places = [heads.row(batch, head, number) for number in numbers]
            products = self.products(heads, places, self.queries, case.depth, vectors)
            higher = list(fold.values)
            for j, number in enumerate(numbers):
                for v in range(vectors):
                    score = self.visible(batch, products[j * vectors + v], keys, number, v, vectors)
                    k.store(self.scores, (fold.index + j) * (vectors * lanes) + v * lanes, score)
                    higher[v] = larger(k, score, higher[v])
            fold.next(*higher)
        return fold.results

    def raise_powers(self, count: Value, bases: list[Value], totals: list[Value]) -> tuple[Value, ...]:
        """Scores to powers in place, and their sums."""
        k, lanes = self.k, self.lanes
        with k.fold("key", 0, count, init=totals) as fold:
            sums = []
            for v, base in enumerate(bases):
                place = fold.index * (len(bases) * lanes) + v * lanes
                power = self.case.power(k.load(self.scores, place, lanes=lanes) - base)
                k.store(self.scores, place, power)
                sums.append(fold.values[v] + power)
            fold.next(*sums)
        return fold.results
