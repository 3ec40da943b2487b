"""`tile_gradients_kernel`: the gradients of attention from the logarithms of its sums, by tiles in shared memory.

Some blocks have queries, for dq, and the others keys, for dk and dv: nobody adds to what another one adds to, so runs
are equal bit for bit. Scores are computed twice for that. See `attention_tiles` for what tiles are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, KeyRange
from rlx.kernels.gpu.attention_tiles import ACROSS, VECTOR, AttentionTiles, Places, Rows, TileShape
from rlx.kernels.ir.loop_ir import Kernel, Value


def tile_gradients_kernel(site: OpSite, shape: TileShape | None = None) -> Kernel:
    """The kernel of `AttentionGradients`, by the first shape that fits if none is given."""
    return _Gradients(site, AttentionCase(site, site.inputs[6:]), shape).build()


class _Gradients(AttentionTiles):
    def __init__(self, site: OpSite, case: AttentionCase, shape: TileShape | None) -> None:
        super().__init__(site, case, shape)
        widths = (case.depth, case.depth, case.width)
        self.dy, self.y = (case.heads(x, case.width) for x in site.inputs[3:5])
        self.logs = site.inputs[5]
        self.dq, self.dk, self.dv = (case.heads(x, width) for x, width in zip(site.outputs, widths))
        own, other = self.shape.own, self.shape.other
        # A tile of queries and dY, and one of keys and values, or the other way round.
        self.own = self.tile("own", own, case.depth), self.tile("own_values", own, case.width)
        self.other = self.tile("other", other, case.depth), self.tile("other_values", other, case.width)
        self.changes = self.k.shared("changes", self.acc, own * (other + VECTOR))
        self.means = self.k.shared("means", self.acc, max(own, other))

    def build(self) -> Kernel:
        k, case = self.k, self.case
        row_blocks, key_blocks = (k.ceildiv(n, self.shape.own) for n in (case.rows, case.seq_k))
        heads = case.op.kv_heads
        of_rows = case.batch * heads * row_blocks
        count = of_rows + case.batch * heads * key_blocks
        with k.parallel("block", count) as number, k.threads("thread", self.shape.threads) as thread:
            self.place_threads(thread)
            with k.when(number < of_rows):
                rest = number // row_blocks
                self.of_queries(rest // heads, rest % heads, number % row_blocks * self.shape.own)
            with k.otherwise():
                mine = number - of_rows
                rest = mine // key_blocks
                self.of_keys(rest // heads, rest % heads, mine % key_blocks * self.shape.own)
        return k.build()

    def sides(self, batch: Value, kv_head: Value) -> tuple[list[tuple[Heads, Places]], ...]:
        """Queries and dY, keys and values, and where their rows are."""
        case = self.case
        queries = [(x, self.row_places(batch, kv_head, x)) for x in (case.q, self.dy)]
        return queries, [(x, self.key_places(batch, kv_head, x)) for x in (case.keys, case.values)]

    def of_queries(self, batch: Value, kv_head: Value, first: Value) -> None:
        k, case, shape = self.k, self.case, self.shape
        queries, keys = self.sides(batch, kv_head)
        for tile, (heads, place) in zip(self.own, queries):
            self.bring(tile, heads, place, first, shape.own)
        rows = self.rows_at(batch, kv_head, [first + place for place in self.own_places])
        self.put_means(self.row_means(batch, kv_head, first, shape.own))
        k.barrier()
        logs, means = self.facts(batch, rows, self.own_places)
        span = self.keys_of_rows(batch, first)
        with k.fold("key", span.first, span.end, shape.other, self.no_sums(case.depth)) as fold:
            self.exchange_tiles(keys, fold.index)
            numbers = [fold.index + place for place in self.other_places]
            changes = []
            products = zip(self.scores(self.own[0], self.other[0]), self.scores(self.own[1], self.other[1]))
            for i, (scores, d_powers) in enumerate(products):
                line = []
                for key, score, d_power in zip(numbers, scores, d_powers):
                    seen = self.seen_score(score, rows, i, batch, kv_head, key)
                    line.append(self.change(seen, d_power, logs[i], means[i])[1])
                changes.append(line)
            self.keep(self.changes, changes)
            k.barrier()
            fold.next(*self.weighted(fold.values, self.changes, self.other[0]))
        vectors = len(fold.results) // shape.own_each
        for i, number in enumerate(self.own_places):
            with k.when(first + number < case.rows):
                at = self.dq.row(batch, rows.heads[i], rows.queries[i])
                sums = fold.results[i * vectors : (i + 1) * vectors]
                self.store_row(self.dq, at, case.depth, sums, case.op.scale)

    def of_keys(self, batch: Value, kv_head: Value, first: Value) -> None:
        k, case, shape = self.k, self.case, self.shape
        queries, keys = self.sides(batch, kv_head)
        for tile, (heads, place) in zip(self.own, keys):
            self.bring(tile, heads, place, first, shape.own)
        numbers = [first + place for place in self.own_places]
        span = self.rows_of_keys(batch, first)
        start = self.no_sums(case.depth) + self.no_sums(case.width)
        split = len(self.no_sums(case.depth))
        with k.fold("row", span.first, span.end, shape.other, start) as fold:
            self.exchange_tiles(queries, fold.index, self.row_means(batch, kv_head, fold.index, shape.other))
            rows = self.rows_at(batch, kv_head, [fold.index + place for place in self.other_places])
            logs, means = self.facts(batch, rows, self.other_places)
            powers, changes = [], []
            products = zip(self.scores(self.own[0], self.other[0]), self.scores(self.own[1], self.other[1]))
            for key, (scores, d_powers) in zip(numbers, products):
                both = []
                for j, (score, d_power) in enumerate(zip(scores, d_powers)):
                    seen = self.seen_score(score, rows, j, batch, kv_head, key)
                    both.append(self.change(seen, d_power, logs[j], means[j]))
                powers.append([power for power, _ in both])
                changes.append([change for _, change in both])
            self.keep(self.weights, powers)
            self.keep(self.changes, changes)
            k.barrier()
            of_keys = self.weighted(fold.values[:split], self.changes, self.other[0])
            of_values = self.weighted(fold.values[split:], self.weights, self.other[1])
            fold.next(*of_keys, *of_values)
        results = (
            (self.dk, case.depth, fold.results[:split], case.op.scale),
            (self.dv, case.width, fold.results[split:], 1.0),
        )
        for heads, width, sums, factor in results:
            vectors = len(sums) // shape.own_each
            for i, number in enumerate(numbers):
                with k.when(number < case.seq_k):
                    at = heads.row(batch, kv_head, number)
                    self.store_row(heads, at, width, sums[i * vectors : (i + 1) * vectors], factor)

    def exchange_tiles(self, side: Sequence[tuple[Heads, Places]], first: Value, means: Sequence[Value] = ()) -> None:
        """The next rows of the other side, once everybody is done with those before, and their means if there are."""
        puts = [self.started(tile, heads, place, first) for tile, (heads, place) in zip(self.other, side)]
        self.k.barrier()
        for put in puts:
            put()
        self.put_means(means)
        self.k.barrier()

    def rows_of_keys(self, batch: Value, first: Value) -> KeyRange:
        """The rows that may see some key of a tile, in numbers of rows; none where no key of it exists."""
        k, case = self.k, self.case
        begin, end = k.as_index(0), case.rows
        if case.is_positional and case.positions is None:
            offset = case.position(batch, k.as_index(0))
            begin = k.min(k.max(first - offset, 0) * case.group, case.rows)
            if case.has_window:
                last = first + (self.shape.own - 1) + case.op.window
                end = k.min(k.max(last - offset + 1, 0) * case.group, case.rows)
        return KeyRange(begin, k.select(first < case.key_count(batch), end, begin))

    def row_means(self, batch: Value, kv_head: Value, first: Value, rows: int) -> list[Value]:
        """The sums of dY times Y of the rows that a line of threads has, one behind the other."""
        k, case = self.k, self.case
        dy, y = (self.row_places(batch, kv_head, x) for x in (self.dy, self.y))
        found = []
        for start in range(0, rows, self.lines):
            number = first + self.line + start
            places = dy.row(number), y.row(number)
            with k.fold("d", self.column, case.width, ACROSS, [k.const(0.0, self.acc)]) as fold:
                a, b = (
                    k.cast(k.load(x.buffer, start_of_row + fold.index * x.step), self.acc)
                    for x, start_of_row in zip((self.dy, self.y), places)
                )
                fold.next(k.fma(a, b, fold.values[0]))
            found.append(self.over_row(lambda a, b: a + b, fold.results[0]))
        return found

    def put_means(self, means: Sequence[Value]) -> None:
        for i, mean in enumerate(means):
            with self.k.when(self.k.eq(self.column, 0)):
                self.k.store(self.means, self.line + i * self.lines, mean)

    def facts(self, batch: Value, rows: Rows, places: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Of each row the logarithm of its sum, and the mean of its changes, which lie at `places`."""
        k, logs = self.k, self.logs
        found = [k.load(logs.buffer, logs.at(batch, *row)) for row in zip(rows.heads, rows.queries)]
        return found, [k.load(self.means, place) for place in places]

    def change(self, score: Value, d_power: Value, log: Value, mean: Value) -> tuple[Value, Value]:
        """P and dS of a query and a key."""
        k, case = self.k, self.case
        is_seen = k.ne(score, -math.inf)
        power = k.select(is_seen, self.power(score - log), 0.0)
        change = power * (d_power - mean)
        if case.op.softcap is not None:
            capped = score * (1.0 / (case.op.softcap_in(self.acc) * case.unit))
            change = change * k.fma(-capped, capped, k.const(1.0, capped.type))
        return power, k.select(k.eq(power, 0.0), 0.0, change)
