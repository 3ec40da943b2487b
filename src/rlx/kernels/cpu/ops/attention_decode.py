"""Attention of few rows, as when one token is decoded: lanes run along a key's elements, and keys are read once.

The rows of one query, which are the heads that share k and v, go through the keys together: scores by register tiles of
rows x keys, added up across lanes for several at once, then softmax with keys in the lanes, then sums with the elements
of v in the lanes.
"""

from __future__ import annotations

import math

from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads
from rlx.kernels.cpu.ops.attention_lanes import even_part, lane_sums, larger
from rlx.kernels.cpu.ops.attention_parts import PartSums
from rlx.kernels.ir.loop_ir import Value, ValueType

KEY_BLOCK = 64
# Vectors of a key that are multiplied before the next key's.
SPAN = 8
MOST_ROWS = 8


# Batch, head of k and v, key.
Place = tuple[Value, Value, Value]


class DepthLanes:
    """The form for at most `most_rows` rows."""

    most_rows = MOST_ROWS

    def __init__(self, case: AttentionCase, out: Heads, parts: PartSums | None = None) -> None:
        """With `parts`, each of them may be computed alone."""
        self.case, self.out, self.parts, self.k = case, out, parts, case.k
        self.lanes, self.acc = case.lanes, case.acc
        k, rows = self.k, case.group
        # Sums in registers at a time, beside what is added to them; products come out as lanes of one vector.
        self.held_sums = 16 if case.machine.vector_registers >= 32 else 8
        self.sums_in_flight = min(self.lanes, self.held_sums)
        self.query = k.local("query", self.acc, rows * case.depth)
        self.result = k.local("result", self.acc, rows * case.width)
        self.row_size = KEY_BLOCK + self.lanes
        self.scores = k.local("row_scores", self.acc, rows * self.row_size)

    @staticmethod
    def fits(case: AttentionCase) -> bool:
        """Whether rows are few at least when there is one query, and those of k and v are whole vectors in memory."""
        if case.group > MOST_ROWS:
            return False
        is_whole = case.depth % case.lanes == 0 and case.width % case.lanes == 0
        return case.lanes > 1 and is_whole and case.keys.is_dense and case.values.is_dense

    def all_rows(self, batch: Value, head: Value, part: Value) -> None:
        """All queries of one head of k and v, with one part of the keys."""
        k, case = self.k, self.case
        with k.loop("query", 0, case.seq_q) as query:
            self.one_query(batch, head, query, part)

    def one_query(self, batch: Value, head: Value, query: Value, part: Value) -> None:
        k, case = self.k, self.case
        rows, first_head = case.group, head * case.group
        for r in range(rows):
            self.stage(batch, first_head + r, query, r)
        keys = self.case.keys_of(batch, query)
        if self.parts is not None:
            keys = self.parts.own(batch, keys, part)
        begun = self.begin(batch, first_head, query)
        with k.fold("block_start", keys.first, keys.end, KEY_BLOCK, begun) as fold:
            peaks, totals = fold.values[:rows], fold.values[rows:]
            count = k.min(keys.end - fold.index, KEY_BLOCK)
            self.score_keys(case.keys.row(batch, head, fold.index), count, rows)
            states = []
            for r in range(rows):
                mask_row = None if case.mask is None else case.mask.row(batch, first_head + r, query)
                where = (batch, head, fold.index)
                states.append(self.softmax(r, where, count, peaks[r], totals[r], mask_row))
            self.add_values(case.values.row(batch, head, fold.index), count, [s[2] for s in states])
            fold.next(*(s[0] for s in states), *(s[1] for s in states))
        peaks, totals = fold.results[:rows], fold.results[rows:]
        if self.parts is None:
            self.store_rows(batch, first_head, query, totals)
            return
        with k.when(self.parts.is_cut):
            self.store_part(self.parts, (batch, head, query, part), peaks, totals)
        with k.otherwise():
            self.store_rows(batch, first_head, query, totals)

    def begin(self, batch: Value, first_head: Value, query: Value) -> list[Value]:
        """The highest score of each row and the sum of its powers, before the first key: those of its sink, if any."""
        k, sinks, rows = self.k, self.case.sinks, self.case.group
        if sinks is None:
            return [*[k.const(-math.inf, self.acc)] * rows, *[k.const(0.0, self.acc)] * rows]
        loaded = [k.load(sinks.buffer, sinks.row(batch, first_head + r, query)) for r in range(rows)]
        peaks = [k.cast(sink, self.acc) * self.case.unit for sink in loaded]
        return [*peaks, *[k.const(1.0, self.acc)] * rows]

    def stage(self, batch: Value, head: Value, query: Value, r: int) -> None:
        """A row of q, multiplied by its factor, and a result of 0."""
        k, lanes, q = self.k, self.lanes, self.case.q
        place = q.row(batch, head, query)
        with k.loop("d", 0, self.case.depth, lanes) as d:
            loaded = k.load(q.buffer, place + d * q.step, lanes=lanes, stride=q.step)
            k.store(self.query, d + r * self.case.depth, k.cast(loaded, self.acc) * self.case.query_factor)
        with k.loop("d", 0, self.case.width, lanes) as d:
            k.store(self.result, d + r * self.case.width, k.const(0.0, ValueType(self.acc, lanes)))

    def score_keys(self, place: Value, count: Value, rows: int) -> None:
        """Products of rows and the keys from a place on, as [row, key], up to a whole vector of keys: the last one is
        repeated."""
        k, case = self.k, self.case
        tile = 1
        while 2 * tile * rows <= self.sums_in_flight:
            tile *= 2
        held = self.query_vectors(rows)
        with k.loop("tile", 0, k.ceildiv(count, self.lanes) * self.lanes, tile) as start:
            places = [place + k.min(start + j, count - 1) * case.keys.strides[2] for j in range(tile)]
            products = self.products(places, rows, held)
            at_once = max(1, self.lanes // tile)  # rows whose sums are lanes of one vector
            for first in range(0, rows, at_once):
                sums = lane_sums(k, products[first * tile : (first + at_once) * tile])
                for i, r in enumerate(range(first, min(first + at_once, rows))):
                    part = sums if sums.lanes == tile else k.shuffle(sums, range(i * tile, (i + 1) * tile))
                    k.store(self.scores, start + r * self.row_size, part)

    def query_vectors(self, rows: int) -> list[list[Value]]:
        """The vectors of each row, if there are registers for all of them beside the sums; else none."""
        k, depth, lanes = self.k, self.case.depth, self.lanes
        if depth // lanes > SPAN or rows * (depth // lanes) + self.sums_in_flight >= self.case.machine.vector_registers:
            return []
        return [[k.load(self.query, d + r * depth, lanes=lanes) for d in range(0, depth, lanes)] for r in range(rows)]

    def products(self, places: list[Value], rows: int, held: list[list[Value]]) -> tuple[Value, ...]:
        """Lane by lane, for every row and in it for every key.

        Key after key, not depth after depth: memory comes faster in the order in which it lies.
        """
        k, lanes, keys, depth = self.k, self.lanes, self.case.keys, self.case.depth
        zero = k.const(0.0, ValueType(self.acc, lanes))
        span = even_part(depth // lanes, SPAN) * lanes
        with k.fold("d", 0, depth, span, [zero] * (rows * len(places))) as fold:
            sums = list(fold.values)
            for j, place in enumerate(places):
                for n in range(span // lanes):
                    d = fold.index + n * lanes
                    key = k.cast(k.load(keys.buffer, place + d, lanes=lanes), self.acc)
                    for r in range(rows):
                        query = held[r][n] if held else k.load(self.query, d + r * depth, lanes=lanes)
                        sums[r * len(places) + j] = k.fma(query, key, sums[r * len(places) + j])
            fold.next(*sums)
        return fold.results

    def softmax(
        self, r: int, where: Place, count: Value, peak: Value, total: Value, mask_row: Value | None
    ) -> tuple[Value, Value, Value]:
        """Scores of a row to powers in place: the highest so far, the sum so far, the factor of earlier sums.

        Scales of keys belong to their scores, those of values to their powers; the sum is that of the powers alone.
        """
        k, case, lanes = self.k, self.case, self.lanes
        batch, head, start = where
        row = r * self.row_size
        lowest = k.const(-math.inf, ValueType(self.acc, lanes))
        with k.fold("key", 0, count, lanes, [lowest]) as fold:
            exists = k.lane_mask(count - fold.index, lanes)
            score = k.load(self.scores, fold.index + row, lanes=lanes)
            score = case.times_scales(score, case.key_scales, (batch, head, start + fold.index), exists)
            if case.mask is None or mask_row is None:
                score = case.finished(score)
            else:
                step = case.mask.step
                place = mask_row + (start + fold.index) * step
                score = case.masked(score, k.load(case.mask.buffer, place, lanes=lanes, stride=step, mask=exists))
            score = k.select(exists, score, -math.inf)
            k.store(self.scores, fold.index + row, score)
            fold.next(larger(k, score, fold.values[0]))
        highest = larger(k, k.reduce("max", fold.results[0]), peak)
        base = case.base(highest)
        zero = k.const(0.0, lowest.type)
        with k.fold("key", 0, count, lanes, [zero]) as sums:
            power = case.power(k.load(self.scores, sums.index + row, lanes=lanes) - base)
            exists = k.lane_mask(count - sums.index, lanes)
            weight = case.times_scales(power, case.value_scales, (batch, head, start + sums.index), exists)
            k.store(self.scores, sums.index + row, weight)
            sums.next(sums.values[0] + power)
        factor = case.power(peak - base)
        return highest, k.fma(total, factor, k.reduce("add", sums.results[0])), factor

    def add_values(self, place: Value, count: Value, factors: list[Value]) -> None:
        """result = result * factor + powers times values, for as many rows at a time as there are registers for.

        Those read whole rows of v: a second look at a block finds it in the cache, parts of rows come slowly.
        """
        vectors = even_part(self.case.width // self.lanes, self.held_sums // 2)
        most = self.held_sums // vectors
        for first in range(0, len(factors), most):
            rows = range(first, min(first + most, len(factors)))
            with self.k.loop("d", 0, self.case.width, vectors * self.lanes) as d:
                self.add_part(place, count, factors, rows, [d + v * self.lanes for v in range(vectors)])

    def add_part(self, place: Value, count: Value, factors: list[Value], rows: range, depths: list[Value]) -> None:
        k, case, lanes = self.k, self.case, self.lanes
        slots = [(r, d + r * case.width) for r in rows for d in depths]
        kept = [k.load(self.result, slot, lanes=lanes) * factors[r] for r, slot in slots]
        with k.fold("key", 0, count, init=kept) as fold:
            line = place + fold.index * case.values.strides[2]
            values = [k.cast(k.load(case.values.buffer, line + d, lanes=lanes), self.acc) for d in depths]
            sums: list[Value] = []
            for r in rows:
                power = k.splat(k.load(self.scores, fold.index + r * self.row_size), lanes)
                sums += [k.fma(power, value, fold.values[len(sums) + v]) for v, value in enumerate(values)]
            fold.next(*sums)
        for (_, slot), total in zip(slots, fold.results):
            k.store(self.result, slot, total)

    def store_rows(self, batch: Value, first_head: Value, query: Value, totals: tuple[Value, ...]) -> None:
        """What was summed up, over the sums of powers."""
        k = self.k
        for r, total in enumerate(totals):
            share = 1.0 / k.select(k.eq(total, 0.0), 1.0, total)
            self.store(self.out, self.out.row(batch, first_head + r, query), r, share)

    def store_part(
        self, parts: PartSums, where: tuple[Value, ...], peaks: tuple[Value, ...], totals: tuple[Value, ...]
    ) -> None:
        """What was summed up as it is, and what it takes to join it; the result is 0 until then."""
        k, rows = self.k, self.case.group
        batch, head, query, part = where
        item = parts.item(batch, head, part)
        sums = parts.rows(item, head)
        for r in range(rows):
            self.store(sums, sums.row(batch, head * rows + r, query), r, k.const(1.0, self.acc))
            parts.note(item, query * rows + r, peaks[r], totals[r])
        with k.when(k.eq(part, 0)):
            for r in range(rows):
                self.clear(self.out, self.out.row(batch, head * rows + r, query))

    def store(self, heads: Heads, place: Value, r: int, share: Value) -> None:
        k, lanes = self.k, self.lanes
        with k.loop("d", 0, self.case.width, lanes) as d:
            result = k.load(self.result, d + r * self.case.width, lanes=lanes) * k.splat(share, lanes)
            k.store(heads.buffer, place + d, k.cast(result, heads.buffer.dtype))

    def clear(self, heads: Heads, place: Value) -> None:
        k, zero = self.k, self.k.const(0.0, ValueType(self.acc, self.lanes))
        with k.loop("d", 0, self.case.width, self.lanes) as d:
            k.store(heads.buffer, place + d, k.cast(zero, heads.buffer.dtype))
