"""The gradients of attention as one kernel: scores and weights are computed again, block by block, and never stored.

With P = softmax(S) and dP = dy·vᵀ, per head: dv = Pᵀ·dy; dS = P⊙(dP - sum of P⊙dP over the row); dq = s·dS·k;
dk = s·dSᵀ·q. A parallel iteration is one head of k and v with all rows that read it, so that its dk and dv are sums
that nobody else adds to. Each block of rows goes through the keys twice: for the highest score, the sum of powers and
the sum of P⊙dP of each row, then for the gradients. Scores and dP of keys that are few enough are kept from the first
time; others are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, KeyRange, value_width
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.cpu.ops.attention_rows import KEY_BLOCK, QueryLanes
from rlx.kernels.ir.loop_ir import FLOATS, Buffer, Value
from rlx.kernels.machines import Machine
from rlx.ops.attn.gradients import AttentionBackward, AttentionBwdWrt
from rlx.ops.attn.operands import MaskKind

# Rows of q and dy, both ways round, dq, and blocks of scores, changes and the mask beside them.
BLOCK_BYTES = 112 * 1024
# Scores that are kept, beside that, and as much of dP.
KEPT_BYTES = 64 * 1024
WIDEST_HEADS = 512


def supports(op: AttentionBackward, operands: Sequence[Shape]) -> bool:
    """All three gradients in the type in which they are summed up; what else there is decomposes."""
    if op.wrt is not AttentionBwdWrt.All or op.mask_kind is MaskKind.Bias or operands[0].dtype not in FLOATS:
        return False
    if operands[1].dtype is not operands[0].dtype:
        return False
    if any(t.dtype.is_storage or t.dtype.is_complex for t in operands) or not isinstance(operands[2].dims[-1], int):
        return False
    return op.head_dim + value_width(op, operands[2]) <= WIDEST_HEADS


def runs_on(machine: Machine) -> bool:
    """On a GPU a head would be one thread with all this scratch: gradients there go through tiles, from the logarithms
    of the forward pass, or are products of all heads."""
    return not machine.is_gpu


@op_kernel(AttentionBackward, kind="attention_backward", supports=supports, strided=range(7), runs_on=runs_on)
def attention_backward(site: OpSite) -> None:
    case = AttentionCase(site, site.inputs[4:])
    k, heads = case.k, case.op.kv_heads
    blocks = GradientBlocks(case, site)
    with k.parallel("head", case.batch * heads) as number:
        batch, head = number // heads, number % heads
        blocks.clear(batch, head)
        with k.loop("block", 0, case.rows, blocks.block_rows) as first:
            blocks.rows(batch, head, first)


class KeyGradient(NamedTuple):
    """The gradient of k or v: heads[key, d] = factor * sum over rows of weights[key, row] * rows[row, d]."""

    heads: Heads
    width: int
    weights: Buffer
    rows: Buffer
    factor: float


class KeyBlock(NamedTuple):
    """Keys of a block, how many they are, and where scores and dP of the first of them are kept."""

    keys: KeyRange
    length: Value
    slot: Value


class GradientBlocks(QueryLanes):
    """Gradients of one block of rows; those of keys and values are added to what other blocks gave them."""

    def __init__(self, case: AttentionCase, site: OpSite) -> None:
        blocks = 2 if case.mask is None else 3
        super().__init__(case, BLOCK_BYTES, 3 * case.depth + 2 * case.width + blocks * KEY_BLOCK, KEPT_BYTES)
        k, rows = self.k, self.block_rows
        depth, width = self.padded(case.depth), self.padded(case.width)
        self.dy = case.heads(site.inputs[3], case.width)
        self.dq = case.heads(site.outputs[0], case.depth)
        self.upstream = k.local("upstream", self.acc, width * rows)
        self.changes = k.local("changes", self.acc, (self.kept_keys + self.tile(self.vectors)) * rows)
        self.sums = k.local("sums", self.acc, depth * rows)
        self.factors = k.local("factors", self.acc, rows)
        q_rows, dy_rows = k.local("query_rows", self.acc, depth * rows), k.local("dy_rows", self.acc, width * rows)
        self.key_gradients = (
            KeyGradient(case.heads(site.outputs[1], case.depth), case.depth, self.changes, q_rows, case.op.scale),
            KeyGradient(case.heads(site.outputs[2], case.width), case.width, self.scores, dy_rows, 1.0),
        )

    def clear(self, batch: Value, head: Value) -> None:
        """dk and dv of one head to 0: keys that nobody sees keep it."""
        k = self.k
        with k.loop("key", 0, self.case.seq_k) as key:
            for heads, width, *_ in self.key_gradients:
                place = heads.row(batch, head, key)
                with k.loop("d", 0, self.padded(width), self.lanes) as d:
                    k.store(heads.buffer, place + d, self.vector(0.0), mask=self.inside(width, d))

    def rows(self, batch: Value, head: Value, first: Value) -> None:
        k, case, vectors = self.k, self.case, self.vectors
        where = (batch, head, first)
        self.stage(case.q, case.depth, where, vectors, self.queries, case.query_factor)
        self.stage(self.dy, case.width, where, vectors, self.upstream, 1.0)
        existing = k.min(case.rows - first, self.block_rows)
        with k.loop("row", 0, existing) as row:
            q_head, query = self.place_of(head, first + row)
            for source, into in ((case.q, self.key_gradients[0]), (self.dy, self.key_gradients[1])):
                place = source.row(batch, q_head, query)
                self.copy_row(source, into.width, place, into.rows, row * self.padded(into.width))
        seen = self.seen_keys(batch, head, first, vectors)
        bases, shares, means = self.statistics(batch, head, seen)
        self.filled(self.sums, self.padded(case.depth) * vectors)
        ones = [self.vector(1.0)] * vectors
        with k.loop("block_start", seen.first, seen.end, KEY_BLOCK) as start:
            block = self.block_of(seen, start)
            with k.when(self.is_too_long(seen)):
                self.score_keys(batch, head, block)
            self.weigh(block, bases, shares, means)
            place = case.keys.row(batch, head, start)
            self.add_products(self.sums, self.changes, case.keys, case.depth, place, block.length, ones, block.slot)
            for gradient in self.key_gradients:
                self.add_rows(gradient, gradient.heads.row(batch, head, start), block, existing)
        for v in range(vectors):
            k.store(self.factors, v * self.lanes, self.vector(case.op.scale))
        self.store_rows(self.sums, self.dq, case.depth, where, vectors, self.factors)

    def is_too_long(self, seen: KeyRange) -> Value:
        """Whether scores of these keys are more than are kept."""
        return seen.end - seen.first > self.kept_keys

    def block_of(self, seen: KeyRange, start: Value) -> KeyBlock:
        k = self.k
        slot = k.select(self.is_too_long(seen), k.as_index(0), start - seen.first)
        return KeyBlock(KeyRange(start, seen.end), k.min(seen.end - start, KEY_BLOCK), slot)

    def statistics(self, batch: Value, head: Value, seen: KeyRange) -> tuple[list[Value], list[Value], list[Value]]:
        """Per row: what to subtract from scores, one over the sum of powers, and the sum of P⊙dP."""
        k, case, vectors = self.k, self.case, self.vectors
        init = [self.vector(-math.inf)] * vectors + [self.vector(0.0)] * (2 * vectors)
        with k.fold("block_start", seen.first, seen.end, KEY_BLOCK, init) as fold:
            peaks = fold.values[:vectors]
            block = self.block_of(seen, fold.index)
            self.score_keys(batch, head, block)
            higher = self.highest(block, peaks)
            bases = [case.base(peak) for peak in higher]
            factors = [case.power(old - base) for old, base in zip(peaks, bases)] * 2
            with k.fold(
                "key",
                block.slot,
                block.slot + block.length,
                init=[s * f for s, f in zip(fold.values[vectors:], factors)],
            ) as sums:
                powers, weighted = [], []
                for v, base in enumerate(bases):
                    score, change = self.stored(sums.index, v)
                    powers.append(case.power(score - base))
                    weighted.append(powers[v] * change)
                added = [*powers, *weighted]
                sums.next(*(total + x for total, x in zip(sums.values, added)))
            fold.next(*higher, *sums.results)
        peaks, totals, weighted_sums = (fold.results[i * vectors : (i + 1) * vectors] for i in range(3))
        shares = [1.0 / k.select(k.eq(total, 0.0), 1.0, total) for total in totals]
        return [case.base(p) for p in peaks], shares, [w * s for w, s in zip(weighted_sums, shares)]

    def stored(self, slot: Value, v: int) -> tuple[Value, Value]:
        """The score and dP of a key, for one vector of rows."""
        place = slot * self.block_rows + v * self.lanes
        score, change = (self.k.load(buffer, place, lanes=self.lanes) for buffer in (self.scores, self.changes))
        return score, change

    def score_keys(self, batch: Value, head: Value, block: KeyBlock) -> None:
        """Scores and dP of a block of keys as [slot, row]; what passes the last key is that one again."""
        k, case, vectors = self.k, self.case, self.vectors
        tile, (keys, count, slot) = self.tile(vectors), block
        self.stage_mask(keys, count, vectors)
        with k.loop("tile", 0, count, tile) as start:
            numbers = [k.min(keys.first + start + j, keys.end - 1) for j in range(tile)]
            sides = ((case.keys, self.queries, case.depth), (case.values, self.upstream, case.width))
            for (heads, staged, depth), into in zip(sides, (self.scores, self.changes)):
                places = [heads.row(batch, head, number) for number in numbers]
                products = self.products(heads, places, staged, depth, vectors)
                for n, product in enumerate(products):
                    j, v = divmod(n, vectors)
                    value = (
                        self.visible(batch, product, keys, numbers[j], v, vectors) if into is self.scores else product
                    )
                    k.store(into, (slot + start + j) * self.block_rows + v * self.lanes, value)

    def highest(self, block: KeyBlock, peaks: tuple[Value, ...]) -> tuple[Value, ...]:
        k = self.k
        with k.fold("key", block.slot, block.slot + block.length, init=peaks) as fold:
            fold.next(*(larger(k, self.stored(fold.index, v)[0], peak) for v, peak in enumerate(fold.values)))
        return fold.results

    def weigh(self, block: KeyBlock, bases: list[Value], shares: list[Value], means: list[Value]) -> None:
        """Scores to P and dP to dS, in place."""
        k, case = self.k, self.case
        with k.loop("key", block.slot, block.slot + block.length) as key:
            for v, (base, share, mean) in enumerate(zip(bases, shares, means)):
                score, change = self.stored(key, v)
                weight = case.power(score - base) * share
                change = weight * (change - mean)
                if case.op.softcap is not None:
                    capped = score * (1.0 / (case.op.softcap_in(case.acc) * case.unit))
                    slope = k.fma(-capped, capped, k.const(1.0, capped.type))
                    change = k.select(k.eq(score, -math.inf), 0.0, change * slope)
                place = key * self.block_rows + v * self.lanes
                k.store(self.scores, place, weight)
                k.store(self.changes, place, change)

    def add_rows(self, gradient: KeyGradient, place: Value, block: KeyBlock, existing: Value) -> None:
        """Add what the existing rows give to the gradient of a block of keys, from `place` on; lanes along d."""
        k, lanes, count = self.k, self.lanes, block.length
        heads, width, weights, rows, factor = gradient
        padded = self.padded(width)
        vectors = math.gcd(padded // lanes, 4 if self.case.machine.vector_registers >= 32 else 2)
        tile = self.tile(vectors)
        with k.loop("tile", 0, count, tile) as start, k.loop("d", 0, padded, vectors * lanes) as d:
            slots = [block.slot + k.min(start + j, count - 1) for j in range(tile)]
            with k.fold("row", 0, existing, init=[self.vector(0.0)] * (tile * vectors)) as fold:
                line = fold.index * padded + d
                loaded = [k.load(rows, line + v * lanes, lanes=lanes) for v in range(vectors)]
                sums: list[Value] = []
                for slot in slots:
                    weight = k.splat(k.load(weights, slot * self.block_rows + fold.index), lanes)
                    sums += [k.fma(weight, x, fold.values[len(sums) + v]) for v, x in enumerate(loaded)]
                fold.next(*sums)
            for j in range(tile):
                with k.when(start + j < count):
                    for v in range(vectors):
                        at, mask = (
                            place + (start + j) * heads.strides[2] + d + v * lanes,
                            self.inside(width, d + v * lanes),
                        )
                        old = k.load(heads.buffer, at, lanes=lanes, mask=mask)
                        k.store(heads.buffer, at, k.fma(fold.results[j * vectors + v], factor, old), mask=mask)
