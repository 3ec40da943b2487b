"""Attention with online softmax, and its gradients, by tiles in shared memory, exact in the type of the sums: for what
tensor cores do not take, f32 and f64 before all, on any GPU whose threads exchange values. f16 and bf16 become f32 as
they are read, and only results are rounded.

A block keeps a tile of its own rows and goes through those of the other side, some at a time. Three kernels, two of
them in `attention_gradient_tiles`, are made of the same two products: scores of the own side with the other one, and
sums of the other side weighted by them.

| | own | other | sums |
| --- | --- | --- | --- |
| attention | queries | keys | P V |
| dq | queries | keys | dS K |
| dk, dv | keys | queries | dSᵀ Q, Pᵀ dY |

Threads stand in rows of `ACROSS`. One has some rows of its own side, every n-th, and every `ACROSS`-th of the other,
so that neighbours read different banks; of the sums it has every `ACROSS`-th vector of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.attention_case import FAR, AttentionCase, Heads, KeyRange, value_width
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, Buffer, Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionBase, MaskKind
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs

# What queries, keys and values may be.
TYPES = FLOATS | HALVES
# Threads that share a row of scores, and elements that are read together.
ACROSS, VECTOR = 8, 4
# Heads whose sums a thread has registers for; of those that are wider than others, tiles have few rows.
WIDEST, WIDE = 512, 256
# Elements that a thread may have on their way to shared memory while it waits for the others.
EARLY = 32


class TileShape(NamedTuple):
    """Rows of the own side and of the other side in a tile, and how many of each a thread has."""

    own: int
    other: int
    own_each: int
    other_each: int

    @property
    def threads(self) -> int:
        return self.own // self.own_each * ACROSS


# What is tried, the quickest first: as much as fits into shared memory. The last one is for heads of which nothing else
# fits, as those of image decoders; gradients of those are products.
SHAPES = (
    TileShape(64, 32, 8, 4),
    TileShape(32, 32, 4, 4),
    TileShape(32, 16, 4, 2),
    TileShape(16, 16, 2, 2),
    TileShape(8, 8, 1, 1),
)


def has_tiles(machine: Machine, op: AttentionBase, operands: Sequence[Shape]) -> bool:
    """Whether an attention, or the gradients of one, go through tiles; `operands` are the shapes of q, k, v and others.
    Few rows have kernels that share the keys of one among many threads."""
    if machine.gpu not in ("nvptx", "amdgcn") or not isinstance(operands[2].dims[-1], int):
        return False
    q, k, v = operands[:3]
    has_scales = isinstance(op, Attention) and op.has_scales
    if q.dtype not in TYPES or k.dtype is not v.dtype or (k.dtype not in TYPES and not has_scales):
        return False
    if not HALVES.isdisjoint((q.dtype, k.dtype)) and not _widens_halves(machine, operands):
        return False
    width = value_width(op, v)
    is_gradient = not isinstance(op, Attention | AttentionWithLogs)
    if is_gradient and (op.mask_kind is MaskKind.Bias or q.dtype is not k.dtype):
        return False
    rows = q.dims[1 if op.layout.value == "bshd" else -2]
    is_few = isinstance(rows, int) and rows * (op.num_heads // op.kv_heads) <= machine.few_rows
    size = max(compute_dtype(x.dtype).size_bytes for x in (q, k) if x.dtype in TYPES)
    widest, shape = max(op.head_dim, width), fitting_shape(machine, op.head_dim, width, size, is_gradient)
    if shape is None or widest > WIDEST:
        return False
    # Blocks of few rows share no keys among each other: there must be many of them.
    needs_many = widest > WIDE or shape == SHAPES[-1]
    return is_gradient or not (is_few or (needs_many and not isinstance(rows, int)))


def _widens_halves(machine: Machine, operands: Sequence[Shape]) -> bool:
    """Whether tiles are the way of f16 and bf16: they become f32, and no more, where waves do not multiply them by
    instructions for matrices."""
    unit = machine.matrix
    return (unit is None or HALVES.isdisjoint(unit.factors)) and all(x.dtype is not DType.F64 for x in operands)


def padded(width: int) -> int:
    """Columns of a tile: whole vectors for every thread of a row."""
    return -(-width // (ACROSS * VECTOR)) * ACROSS * VECTOR


def fitting_shape(machine: Machine, depth: int, width: int, size: int, is_gradient: bool) -> TileShape | None:
    columns = padded(depth) + VECTOR, padded(width) + VECTOR
    for shape in SHAPES[:-1] if is_gradient else SHAPES:
        weights = shape.own * (shape.other + VECTOR)
        if is_gradient:
            elements = (shape.own + shape.other) * sum(columns) + 2 * weights + shape.own
        else:
            elements = shape.own * columns[0] + shape.other * max(columns) + weights
        if elements * size <= machine.shared_bytes:
            return shape
    return None


def tile_attention_kernel(site: OpSite, shape: TileShape | None = None) -> Kernel:
    """The kernel of `Attention` or `AttentionWithLogs`, by the first shape that fits if none is given."""
    return _Forward(site, AttentionCase(site, site.inputs[3:]), shape).build()


class Tile(NamedTuple):
    """Rows of one operand in shared memory."""

    buffer: Buffer
    width: int

    @property
    def pitch(self) -> int:
        return padded(self.width) + VECTOR


class Places(NamedTuple):
    """Where rows of an operand begin, by their number, and how many there are; the last one serves for those behind."""

    row: Callable[[Value], Value]
    limit: Value


class Rows(NamedTuple):
    """Queries of one batch and head of keys: their heads and numbers, and the keys that they see. The last one stands
    in for rows that do not exist, and sees nothing there."""

    heads: list[Value]
    queries: list[Value]
    seen: list[KeyRange]


class AttentionTiles:
    """What all kernels share: places of threads, tiles, and both products."""

    def __init__(self, site: OpSite, case: AttentionCase, shape: TileShape | None) -> None:
        assert isinstance(site.k, GroupBuilder)
        self.k, self.case, self.op, self.acc = site.k, case, case.op, case.acc
        is_gradient = isinstance(site.op, AttentionGradients)
        shape = shape or fitting_shape(site.machine, case.depth, case.width, self.acc.size_bytes, is_gradient)
        assert shape is not None
        self.shape, self.wave, self.has_exp2 = shape, site.machine.wave, site.machine.has_exp2
        self.weights = self.k.shared("weights", self.acc, shape.own * (shape.other + VECTOR))

    def tile(self, name: str, rows: int, width: int) -> Tile:
        return Tile(self.k.shared(name, self.acc, rows * (padded(width) + VECTOR)), width)

    def place_threads(self, thread: Value) -> None:
        self.thread, self.line, self.column = thread, thread // ACROSS, thread % ACROSS

    @property
    def lines(self) -> int:
        return self.shape.own // self.shape.own_each

    @property
    def own_places(self) -> list[Value]:
        """Which rows of the own side a thread has."""
        return [self.line + self.lines * i for i in range(self.shape.own_each)]

    @property
    def other_places(self) -> list[Value]:
        return [self.column + ACROSS * j for j in range(self.shape.other_each)]

    # Rows of queries and what they see.

    def rows_at(self, batch: Value, kv_head: Value, numbers: Sequence[Value]) -> Rows:
        """Rows by their number: the heads of one query that share keys follow each other."""
        k, case = self.k, self.case
        heads, queries, seen = [], [], []
        for number in numbers:
            row = k.min(number, case.rows - 1)
            heads.append(kv_head * case.group + row % case.group)
            queries.append(row // case.group)
            own = case.keys_of(batch, queries[-1])
            # In 32 bits: numbers of keys are compared for every score.
            first, end = (k.cast(k.min(x, FAR), DType.I32) for x in own)
            seen.append(KeyRange(first, k.select(number < case.rows, end, first)))
        return Rows(heads, queries, seen)

    def row_places(self, batch: Value, kv_head: Value, heads: Heads) -> Places:
        k, case = self.k, self.case

        def place(number: Value) -> Value:
            row = k.min(number, case.rows - 1)
            return heads.row(batch, kv_head * case.group + row % case.group, row // case.group)

        return Places(place, case.rows)

    def key_places(self, batch: Value, kv_head: Value, heads: Heads) -> Places:
        """What lies behind the last key is never read."""
        k, count = self.k, self.case.key_count(batch)
        last = k.max(count - 1, 0)
        return Places(lambda number: heads.row(batch, kv_head, k.min(number, last)), count)

    def keys_of_rows(self, batch: Value, first: Value) -> KeyRange:
        """The keys that some row of a tile sees, and that exist."""
        k, case = self.k, self.case
        count = case.key_count(batch)
        if not case.is_positional or case.positions is not None:
            return KeyRange(k.as_index(0), count)
        last = k.min(first + (self.shape.own - 1), case.rows - 1)
        lowest = case.seen(case.position(batch, first // case.group)).first
        highest = case.seen(case.position(batch, last // case.group)).end
        return KeyRange(k.max(lowest, 0), k.min(highest, count))

    # Memory.

    def fetched(self, heads: Heads, width: int, place: Places, first: Value, rows: int) -> list[Value]:
        """The elements that a thread brings of some rows; neighbours read what lies side by side. Beyond the width and
        the last row they are 0: what has no weight must be a number."""
        k, found = self.k, []
        for row, d in self.brought(width, rows):
            number = first + row
            value = k.cast(k.load(heads.buffer, place.row(number) + k.min(d, width - 1) * heads.step), self.acc)
            exists = number < place.limit
            found.append(k.select(exists if width == padded(width) else exists & (d < width), value, 0.0))
        return found

    def brought(self, width: int, rows: int) -> list[tuple[Value, Value]]:
        """Row and column of the elements of a tile that a thread brings."""
        k, threads, across = self.k, self.shape.threads, padded(width)
        starts = range(0, rows * across, threads)
        if threads % across == 0:
            return [(self.thread // across + start // across, self.thread % across) for start in starts]
        if across % threads == 0:
            return [(k.as_index(start // across), self.thread + start % across) for start in starts]
        # Pieces of rows, so that all places of a thread are one with something known added: places that are computed
        # one by one stay in registers over all steps, beside the sums.
        piece = ACROSS * VECTOR
        row, d, step = self.thread // piece, self.thread % piece, threads // piece
        return [(row + i, d + j) for i in range(0, rows, step) for j in range(0, across, piece)]

    def put(self, tile: Tile, values: Sequence[Value], rows: int) -> None:
        for (row, d), value in zip(self.brought(tile.width, rows), values):
            self.k.store(tile.buffer, row * tile.pitch + d, value)

    def bring(self, tile: Tile, heads: Heads, place: Places, first: Value, rows: int) -> None:
        self.put(tile, self.fetched(heads, tile.width, place, first, rows), rows)

    def started(self, tile: Tile, heads: Heads, place: Places, first: Value) -> Callable[[], None]:
        """Rows of the other side on their way to registers, if a thread has room for them; what is called at last puts
        them into the tile."""
        rows = self.shape.other
        if rows * padded(tile.width) > EARLY * self.shape.threads:
            return lambda: self.bring(tile, heads, place, first, rows)
        values = self.fetched(heads, tile.width, place, first, rows)
        return lambda: self.put(tile, values, rows)

    def read(self, buffer: Buffer, place: Value) -> Value:
        return self.k.load(buffer, place, lanes=VECTOR, align=16)

    # Products.

    def scores(self, own: Tile, other: Tile) -> list[list[Value]]:
        """Products of rows of both sides, [own][other]."""
        k, each = self.k, self.shape.other_each
        zero = k.const(0.0, self.acc)
        with k.fold("d", 0, padded(own.width), VECTOR, [zero] * (self.shape.own_each * each)) as fold:
            left = [self.read(own.buffer, place * own.pitch + fold.index) for place in self.own_places]
            right = [self.read(other.buffer, place * other.pitch + fold.index) for place in self.other_places]
            sums = list(fold.values)
            for lane in range(VECTOR):
                b = [k.extract(vector, lane) for vector in right]
                for i, vector in enumerate(left):
                    a = k.extract(vector, lane)
                    for j in range(each):
                        sums[i * each + j] = k.fma(a, b[j], sums[i * each + j])
            fold.next(*sums)
        return [list(fold.results[i * each : (i + 1) * each]) for i in range(self.shape.own_each)]

    def keep(self, weights: Buffer, values: Sequence[Sequence[Value]]) -> None:
        pitch = self.shape.other + VECTOR
        for place, row in zip(self.own_places, values):
            for other, value in zip(self.other_places, row):
                self.k.store(weights, place * pitch + other, value)

    def no_sums(self, width: int) -> list[Value]:
        zero = self.k.const(0, ValueType(self.acc, VECTOR))
        return [zero] * (self.shape.own_each * (padded(width) // (ACROSS * VECTOR)))

    def weighted(self, sums: Sequence[Value], weights: Buffer, other: Tile) -> list[Value]:
        """Sums with the rows of the other side by their weights added, [own][vector of columns]."""
        k, shape = self.k, self.shape
        pitch, vectors = shape.other + VECTOR, padded(other.width) // (ACROSS * VECTOR)
        with k.fold("other", 0, shape.other, VECTOR, sums) as fold:
            factors = [self.read(weights, place * pitch + fold.index) for place in self.own_places]
            found = list(fold.values)
            for lane in range(VECTOR):
                line = (fold.index + lane) * other.pitch + self.column * VECTOR
                rows = [self.read(other.buffer, line + ACROSS * VECTOR * v) for v in range(vectors)]
                for i, factor in enumerate(factors):
                    weight = k.splat(k.extract(factor, lane), VECTOR)
                    for v, row in enumerate(rows):
                        found[i * vectors + v] = k.fma(weight, row, found[i * vectors + v])
            fold.next(*found)
        return list(fold.results)

    def store_row(self, heads: Heads, place: Value, width: int, sums: Sequence[Value], factor: Value | float) -> None:
        """The columns of a thread of one row."""
        k = self.k
        for v, vector in enumerate(sums):
            scaled = k.cast(vector * factor, heads.buffer.dtype)
            for lane in range(VECTOR):
                d = self.column * VECTOR + (v * ACROSS * VECTOR + lane)
                at = place + d * heads.step
                if (v + 1) * ACROSS * VECTOR <= width:
                    k.store(heads.buffer, at, k.extract(scaled, lane))
                else:
                    with k.when(d < width):
                        k.store(heads.buffer, at, k.extract(scaled, lane))

    # Scores.

    def seen_score(self, score: Value, rows: Rows, i: int, batch: Value, kv_head: Value, key: Value) -> Value:
        """A product of query and key as a score in `unit`; -inf where the row does not look at the key."""
        k, case = self.k, self.case
        seen = rows.seen[i]
        short = k.cast(key, DType.I32)
        is_seen = (short < seen.end) & (short >= seen.first)
        score = case.times_scales(score, case.key_scales, (batch, kv_head, self.existing(batch, key)), is_seen)
        score = score * case.query_factor
        if case.mask is None:
            return k.select(is_seen, case.finished(score), -math.inf)
        at = case.mask.row(batch, rows.heads[i], rows.queries[i]) + self.existing(batch, key) * case.mask.step
        return k.select(is_seen, case.masked(score, k.load(case.mask.buffer, at)), -math.inf)

    def power(self, x: Value) -> Value:
        """As that of the case; by an instruction where there is one."""
        return self.k.op("exp2", x) if self.has_exp2 and x.dtype is DType.F32 else self.case.power(x)

    def existing(self, batch: Value, key: Value) -> Value:
        return self.k.max(self.k.min(key, self.case.key_count(batch) - 1), 0)

    def over_row(self, join: Callable[[Value, Value], Value], value: Value) -> Value:
        """A value of all threads that share a row."""
        distance = 1
        while distance < ACROSS:
            value = join(value, self.k.exchange("xor", value, distance, width=self.wave))
            distance *= 2
        return value


class _Forward(AttentionTiles):
    def __init__(self, site: OpSite, case: AttentionCase, shape: TileShape | None) -> None:
        super().__init__(site, case, shape)
        self.out = case.heads(site.outputs[0], case.width)
        self.logs = site.outputs[1] if isinstance(site.op, AttentionWithLogs) else None
        self.queries = self.tile("queries", self.shape.own, case.depth)
        # Keys and values take turns.
        both = self.k.shared("keys", self.acc, self.shape.other * (padded(max(case.depth, case.width)) + VECTOR))
        self.keys, self.values = Tile(both, case.depth), Tile(both, case.width)

    def build(self) -> Kernel:
        k, case = self.k, self.case
        blocks, heads = k.ceildiv(case.rows, self.shape.own), case.op.kv_heads
        with k.parallel("block", case.batch * heads * blocks) as number, k.threads("thread", self.shape.threads) as t:
            self.place_threads(t)
            rest = number // blocks
            # The last rows of causal attention see the most keys: they begin first.
            self.block(rest // heads, rest % heads, (blocks - 1 - number % blocks) * self.shape.own)
        return k.build()

    def block(self, batch: Value, kv_head: Value, first: Value) -> None:
        k, case, shape = self.k, self.case, self.shape
        self.bring(self.queries, case.q, self.row_places(batch, kv_head, case.q), first, shape.own)
        rows = self.rows_at(batch, kv_head, [first + place for place in self.own_places])
        span = self.keys_of_rows(batch, first)
        key_place, value_place = (self.key_places(batch, kv_head, heads) for heads in (case.keys, case.values))
        count = shape.own_each
        vectors = len(self.no_sums(case.width)) // count
        start = [k.const(-math.inf, self.acc)] * count + [k.const(0.0, self.acc)] * count + self.no_sums(case.width)
        with k.fold("key", span.first, span.end, shape.other, start) as fold:
            peaks, totals, sums = _split(fold.values, count)
            put_keys = self.started(self.keys, case.keys, key_place, fold.index)
            # Everybody has multiplied the values of the step before.
            k.barrier()
            put_keys()
            k.barrier()
            put_values = self.started(self.values, case.values, value_place, fold.index)
            numbers = [fold.index + place for place in self.other_places]
            new_peaks, new_totals, shrunk, weights = [], [], [], []
            for i, line in enumerate(self.scores(self.queries, self.keys)):
                scores = [self.seen_score(s, rows, i, batch, kv_head, key) for s, key in zip(line, numbers)]
                highest = peaks[i]
                for score in scores:
                    highest = larger(k, score, highest)
                highest = self.over_row(lambda a, b: larger(k, a, b), highest)
                base = case.base(highest)
                shrunk.append(self.power(peaks[i] - base))
                powers = [self.power(score - base) for score in scores]
                total = totals[i] * shrunk[i]
                for power in powers:
                    total = total + power
                weights.append([self.of_value(p, batch, kv_head, key) for p, key in zip(powers, numbers)])
                new_peaks.append(highest)
                new_totals.append(total)
            self.keep(self.weights, weights)
            # Everybody has read the keys.
            k.barrier()
            put_values()
            k.barrier()
            smaller = [s * k.splat(shrunk[n // vectors], VECTOR) for n, s in enumerate(sums)]
            fold.next(*new_peaks, *new_totals, *self.weighted(smaller, self.weights, self.values))
        peaks, totals, sums = _split(fold.results, count)
        for i, place in enumerate(self.own_places):
            total = self.over_row(lambda a, b: a + b, totals[i])
            is_empty = k.eq(total, 0.0)
            total = k.select(is_empty, 1.0, total)
            with k.when(first + place < case.rows):
                at = self.out.row(batch, rows.heads[i], rows.queries[i])
                self.store_row(self.out, at, case.width, sums[i * vectors : (i + 1) * vectors], 1.0 / total)
                if self.logs is not None:
                    with k.when(k.eq(self.column, 0)):
                        log = k.op("log", total) * case.unit + case.base(peaks[i])
                        log = k.select(is_empty, math.inf, log)
                        k.store(self.logs.buffer, self.logs.at(batch, rows.heads[i], rows.queries[i]), log)

    def of_value(self, power: Value, batch: Value, kv_head: Value, key: Value) -> Value:
        """The weight of a value as it is stored."""
        where = (batch, kv_head, self.existing(batch, key))
        return self.case.times_scales(power, self.case.value_scales, where, self.k.const(1, DType.BOOL))


def _split(values: Sequence[Value], count: int) -> tuple[list[Value], list[Value], list[Value]]:
    """Highest scores, totals, and sums."""
    return list(values[:count]), list(values[count : 2 * count]), list(values[2 * count :])
