"""`wave_attention_kernel`: attention by instructions for whole matrices, softmax online.

Here are the machines of which it is known which thread has what (MFMA, WMMA, of f16 or bf16); `attention_fragments` is
for others.

A block of four waves has 64 rows of queries that share their keys, 16 to a wave. Step by step the block puts some keys
and values into shared memory; a wave multiplies keys by its queries, so that a thread has scores of one query, and adds
values times powers of scores to sums that never leave its registers. Scores come out as the second product takes them:
the thread that has the score of a key is the one that brings it, but for RDNA 3, whose halves exchange theirs.

    scores[key, query] = K[key, d] @ Q[d, query]         sums[d, query] += V[d, key] @ P[key, query]

Rows and keys that do not exist are read as others or as 0; what lies behind the length of a cache is never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, KeyRange, value_width
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine, MatrixUnit
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionBase

# Waves of a block, and keys of a step, if a thread has registers for what it holds of them.
WAVES, KEYS = 4, (64, 32)
MOST_REGISTERS = 176
# Elements of a vector of 16 bytes, of which one lies behind each line of shared memory: lines begin in other banks.
VECTOR = 8
# Heads whose sums and queries registers hold.
WIDEST = 128


def is_wave_attention(machine: Machine, site: OpSite) -> bool:
    """Whether the machine computes an attention by instructions for matrices. Few rows are bound by memory, and have
    kernels that share the keys of one among many threads."""
    op = site.op
    if machine.matrix is None or not isinstance(op, Attention):
        return False
    q, k, v = (x.shape for x in site.inputs[:3])
    named = op.extras(site.inputs[3:])
    rows = site.inputs[0].shape.dims[-2 if op.layout.value != "bshd" else 1]
    is_few = isinstance(rows, int) and rows * (op.num_heads // op.kv_heads) <= machine.few_rows
    return (
        not is_few
        and q.dtype in machine.matrix.factors
        and q.dtype is k.dtype is v.dtype
        and named.k_scale is None
        and named.v_scale is None
        and all(w % machine.matrix.side == 0 and 0 < w <= WIDEST for w in (op.head_dim, value_width(op, v)))
    )


def wave_attention_kernel(machine: Machine, site: OpSite, waves: int = 0, keys: int = 0) -> Kernel:
    """The kernel; `waves` of a block and `keys` of a step, as many as registers or memory allow if they are 0."""
    op, unit = site.op, machine.matrix
    assert unit is not None and isinstance(op, AttentionBase) and isinstance(site.k, GroupBuilder)
    width = value_width(op, site.inputs[2].shape)
    if unit.is_by_memory:
        from rlx.kernels.gpu.attention_fragments import FragmentAttention, block_shape

        shape = block_shape(machine, site.inputs[0].shape.dtype, op.head_dim, width)
        return FragmentAttention(site, site.k, unit, waves or shape.waves, keys or shape.keys).build()
    chosen = keys or next((n for n in KEYS if _registers(unit, op.head_dim, width, n) <= MOST_REGISTERS), KEYS[-1])
    return WaveAttention(site, site.k, unit, waves or WAVES, chosen).build()


def _registers(unit: MatrixUnit, depth: int, width: int, keys: int) -> int:
    """Registers of a thread for its queries, its sums, and the scores of a step, also as factors."""
    factor = unit.factor_lanes // 2
    return (depth * factor + width * unit.sum_lanes + keys * (unit.sum_lanes + factor)) // unit.side


# Batch, head, and query or first key.
Place = tuple[Value, Value, Value]


class Fetched(NamedTuple):
    """A vector of keys or values on its way to shared memory: of a key, from element `d` on. Some threads may have
    none, where `exists` is false."""

    key: Value
    d: Value
    value: Value
    exists: Value | None


class WaveAttention:
    """Sums in the registers of waves, which thread has what being known."""

    def __init__(self, site: OpSite, k: GroupBuilder, unit: MatrixUnit, waves: int, keys: int) -> None:
        self.k, self.unit, self.waves, self.keys, self.side = k, unit, waves, keys, unit.side
        self.case = AttentionCase(site, site.inputs[3:])
        self.out = self.case.heads(site.outputs[0], self.case.width)
        self.dtype = self.case.q.buffer.dtype
        self.threads = waves * unit.threads
        # From the key of one score that a thread has to that of the next.
        self.apart = unit.threads // self.side if unit.interleaves_rows else 1
        self.make_tiles()

    def make_tiles(self) -> None:
        """The memory that threads share."""
        k, case = self.k, self.case
        self.key_pitch, self.value_pitch = case.depth + VECTOR, self.keys + VECTOR
        self.key_tile = k.shared("keys", self.dtype, self.keys * self.key_pitch)
        self.value_tile = k.shared("values", self.dtype, case.width * self.value_pitch)
        self.align = min(2 * self.unit.factor_lanes, 2 * VECTOR)  # bytes of what a thread reads of a line

    def build(self) -> Kernel:
        k, case = self.k, self.case
        rows = self.waves * self.side
        blocks, heads = k.ceildiv(case.rows, rows), case.op.kv_heads
        with k.parallel("block", case.batch * heads * blocks) as number, k.threads("thread", self.threads) as thread:
            rest = number // blocks
            self.block(rest // heads, rest % heads, number % blocks * rows, thread)
        return k.build()

    def block(self, batch: Value, head: Value, first: Value, thread: Value) -> None:
        """Rows from `first` on: the queries of one head of keys, and of each query the heads that share it."""
        k, case, unit = self.k, self.case, self.unit
        self.thread, self.wave = thread, thread // unit.threads
        self.place(thread % unit.threads)
        row = first + self.wave * self.side + self.line
        query, query_head = self.query_of(head, row)
        queries = self.queries((batch, head, first), (batch, query_head, query))
        seen, own = self.block_keys(batch, first), self.case.keys_of(batch, query)
        start = [k.const(-math.inf, case.acc), k.const(0.0, case.acc), *self.empty()]
        with k.fold("key", seen.first, seen.end, self.keys, init=start) as fold:
            peak, total, *sums = fold.values
            self.put((batch, head, fold.index))
            scores = self.scores(queries, (batch, query_head, query), fold.index, own)
            higher = self.highest(scores, peak)
            base = case.base(higher)
            shrunk = case.power(peak - base)
            powers = [case.power(score - base) for score in scores]
            # Each thread adds up the keys that it has; threads of a query come together at the end.
            for power in powers:
                total_here = k.reduce("add", power)
                total = total * shrunk + total_here if power is powers[0] else total + total_here
            fold.next(higher, total, *self.weighted((batch, head, fold.index), powers, shrunk, sums))
        _, total, *sums = fold.results
        sums = self.settled(sums)
        for other in self.others():
            total = total + k.exchange("xor", total, other, width=unit.threads)
        share = 1.0 / k.select(k.eq(total, 0.0), 1.0, total)
        with k.when(row < case.rows):
            self.store(self.out.row(batch, query_head, query), sums, share)

    def place(self, lane: Value) -> None:
        """What a thread of a wave has: `line` is its query among those of the wave."""
        unit = self.unit
        self.line, group = lane % self.side, lane // self.side
        # Where along a side of 16 the elements of a thread begin: those of factors, and the rows of sums.
        self.along = group * unit.factor_lanes % self.side
        self.first_row = group if unit.interleaves_rows else group * unit.sum_lanes
        self.is_first_half = self.k.eq(group, 0)

    def query_of(self, head: Value, row: Value) -> tuple[Value, Value]:
        """The query of a row, or of the last one, and its head."""
        existing = self.k.min(row, self.case.rows - 1)
        return existing // self.case.group, head * self.case.group + existing % self.case.group

    def store(self, place: Value, sums: Sequence[Value], share: Value) -> None:
        """What a thread has of the result of a query, which begins at a place."""
        k = self.k
        for j, value in enumerate(sums):
            at = place + (self.first_row + j * self.side) * self.out.step
            stored = k.cast(value * share, self.out.buffer.dtype)
            k.store(self.out.buffer, at, stored, stride=self.out.step * self.apart)

    def others(self) -> Sequence[int]:
        """How the numbers of threads differ that have the same query; halves of them at a time."""
        return range(self.unit.threads // 2, self.side - 1, -self.side)

    def empty(self) -> list[Value]:
        """The sums of a query before the first key."""
        return [self.no_sums()] * (self.case.width // self.side)

    def no_sums(self) -> Value:
        """Sums of nothing, by an instruction: LLVM takes vectors of a loop apart that begin as a constant."""
        factor = self.k.const(0, ValueType(self.dtype, self.unit.factor_lanes))
        zero = self.k.const(0, ValueType(DType.F32, self.unit.sum_lanes))
        return self.k.wave_mma(self.unit, factor, factor, zero)

    def settled(self, sums: list[Value]) -> list[Value]:
        """The sums after the last step, which all threads may read."""
        return sums

    # Which keys are read, and by whom.

    def block_keys(self, batch: Value, first: Value) -> KeyRange:
        """The keys that some row of a block sees, and that exist."""
        k, case = self.k, self.case
        count = case.key_count(batch)
        if not case.is_positional or case.positions is not None:
            return KeyRange(k.as_index(0), count)
        last = k.min(first + (self.waves * self.side - 1), case.rows - 1)
        lowest = case.seen(case.position(batch, first // case.group)).first
        highest = case.seen(case.position(batch, last // case.group)).end
        return KeyRange(k.max(lowest, 0), k.min(highest, count))

    # Memory.

    def queries(self, block: Place, own: Place) -> Sequence[Value]:
        """The elements of a thread's query, as the products with keys take them."""
        q = self.case.q
        place = q.row(*own) + self.along * q.step
        steps = range(0, self.case.depth, self.side)
        return [self.k.load(q.buffer, place + q.step * d, lanes=self.unit.factor_lanes, stride=q.step) for d in steps]

    def put(self, where: Place) -> None:
        """Keys and values of a step in shared memory, values turned, 0 where there are none."""
        k, case = self.k, self.case
        # Both are on their way to registers before everybody has read those of the step before.
        keys = self.fetched(case.keys, case.depth, where)
        values = self.fetched(case.values, case.width, where)
        k.barrier()
        for vector in keys:
            with self.only_if(vector.exists):
                k.store(self.key_tile, vector.key * self.key_pitch + vector.d, vector.value, align=16)
        for vector in values:
            with self.only_if(vector.exists):
                for lane in range(VECTOR):
                    place = (vector.d + lane) * self.value_pitch + vector.key
                    k.store(self.value_tile, place, k.extract(vector.value, lane))
        k.barrier()

    def only_if(self, condition: Value | None) -> AbstractContextManager[None]:
        return nullcontext() if condition is None else self.k.when(condition)

    def shared_out(self, lines: int, width: int) -> Iterator[tuple[Value, Value, Value | None]]:
        """The vectors of a thread, if those of so many lines are dealt out: line and first element, and whether there
        is one. Neighbours read what lies side by side."""
        across = width // VECTOR
        vectors = lines * across
        for start in range(0, vectors, self.threads):
            number = self.thread + start
            exists = number < vectors if start + self.threads > vectors else None
            if exists is not None:
                number = self.k.min(number, vectors - 1)
            yield number // across, number % across * VECTOR, exists

    def fetched(self, heads: Heads, width: int, where: Place) -> list[Fetched]:
        """The vectors of a thread of keys or values."""
        k, (batch, head, first) = self.k, where
        count, found = self.case.key_count(batch), []
        for key, d, exists in self.shared_out(self.keys, width):
            place = heads.row(batch, head, k.min(first + key, count - 1)) + d * heads.step
            mask = k.splat(first + key < count, VECTOR)
            value = k.load(heads.buffer, place, lanes=VECTOR, stride=heads.step, mask=mask)
            found.append(Fetched(key, d, value, exists))
        return found

    # Arithmetic.

    def scores(self, queries: Sequence[Value], where: Place, first: Value, own: KeyRange) -> list[Value]:
        """Of every 16 keys of a step those scores that a thread has; -inf for keys that its query does not see."""
        k, unit = self.k, self.unit
        found = []
        for start in range(0, self.keys, self.side):
            total = self.no_sums()
            for step, query in enumerate(queries):
                place = (self.line + start) * self.key_pitch + (self.along + step * self.side)
                keys = k.load(self.key_tile, place, lanes=unit.factor_lanes, align=self.align)
                total = k.wave_mma(unit, keys, query, total)
            found.append(self.score(total, where, first + (self.first_row + start), own))
        return found

    def score(self, total: Value, where: Place, key: Value, own: KeyRange) -> Value:
        """Products of a query with keys, the first one and those behind it, as scores."""
        k, case, lanes = self.k, self.case, total.lanes
        numbers = k.iota(DType.I32, lanes) * self.apart
        is_seen = numbers < self.nearby(own.end - key, lanes)
        if case.has_window:
            is_seen = k.op("and", is_seen, numbers >= self.nearby(own.first - key, lanes))
        score = total * case.query_factor
        if case.mask is None:
            score = case.finished(score)
        else:
            at = case.mask.row(*where) + key * case.mask.step
            steps = case.mask.step * self.apart
            loaded = k.load(case.mask.buffer, at, lanes=lanes, stride=steps, mask=is_seen)
            score = case.masked(score, loaded)
        return k.select(is_seen, score, -math.inf)

    def nearby(self, distance: Value, lanes: int) -> Value:
        """A distance to a key in 32 bits, for all lanes: beyond a step it does not matter how far it is."""
        k = self.k
        near = k.cast(k.max(k.min(distance, self.keys), -self.keys), DType.I32)
        return k.splat(near, lanes)

    def highest(self, scores: Sequence[Value], peak: Value) -> Value:
        """The highest score of a query up to now, the same for all threads that have it."""
        k = self.k
        for score in scores:
            for lane in range(score.lanes):
                peak = larger(k, k.extract(score, lane), peak)
        for other in self.others():
            peak = larger(k, k.exchange("xor", peak, other, width=self.unit.threads), peak)
        return peak

    def factor(self, powers: Value) -> Value:
        """Powers of 16 keys, which a thread has as sums, as the elements that a factor takes of it."""
        k, unit = self.k, self.unit
        own = k.cast(powers, self.dtype)
        if unit.factor_lanes == unit.sum_lanes:
            return own
        # Halves of a wave have every other key each, and a factor all of them: in words, two elements to one.
        words = k.bitcast(own, ValueType(DType.I32, unit.sum_lanes // 2))
        given: Value = k.const(0, words.type)
        lanes = k.iota(DType.I32, words.lanes)
        for lane in range(words.lanes):
            got = k.exchange("xor", k.extract(words, lane), self.side, width=unit.threads)
            given = k.select(k.eq(lanes, lane), k.splat(got, words.lanes), given)
        other = k.bitcast(given, own.type)
        is_first = k.splat(self.is_first_half, unit.sum_lanes)
        even, odd = k.select(is_first, own, other), k.select(is_first, other, own)
        in_turn = [lane // 2 + lane % 2 * unit.sum_lanes for lane in range(unit.factor_lanes)]
        return k.shuffle(even, in_turn, odd)

    def weighted(self, where: Place, powers: Sequence[Value], shrunk: Value, sums: Sequence[Value]) -> list[Value]:
        """The sums of a query after a step."""
        shares = [self.factor(power) for power in powers]
        return [self.mixed(j, shares, old * shrunk) for j, old in enumerate(sums)]

    def mixed(self, part: int, shares: Sequence[Value], sums: Value) -> Value:
        """The sums of 16 elements of the values after a step."""
        k, lanes = self.k, self.unit.factor_lanes
        for step, share in enumerate(shares):
            place = (self.line + part * self.side) * self.value_pitch + (self.along + step * self.side)
            values = k.load(self.value_tile, place, lanes=lanes, align=self.align)
            sums = k.wave_mma(self.unit, values, share, sums)
        return sums
