"""Attention with the logarithms of its sums, and its gradients from them: an iteration for each query and each key.

With the logarithms every weight can be computed by itself, so nobody adds to what another one adds to: a query goes
through the keys that it sees for dq, and a key through the queries that see it for dk and dv. This is what the kernels
of tensor cores mean, and what runs where they cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.attention_case import AttentionCase, Heads, value_width
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.ops.attn.operands import AttentionBase, MaskKind
from rlx.ops.lowered.attention_gradients import AttentionGradients, AttentionWithLogs

WIDEST_HEADS = 512


def supports(op: AttentionBase, operands: Sequence[Shape]) -> bool:
    """Heads of fixed width. A bias has a gradient of its own, which these do not give."""
    if op.mask_kind is MaskKind.Bias or not isinstance(operands[2].dims[-1], int):
        return False
    if any(t.dtype.is_storage or t.dtype.is_complex for t in operands) or operands[1].dtype is not operands[0].dtype:
        return False
    return op.head_dim + value_width(op, operands[2]) <= WIDEST_HEADS


class Pair(NamedTuple):
    """A query of a head of q, and a key of the head of k that it reads."""

    batch: Value
    head: Value
    kv_head: Value
    query: Value
    key: Value


class OneByOne(AttentionCase):
    """Weights of single queries and keys."""

    def dot(self, x: Heads, x_row: Value, y: Heads, y_row: Value, width: int) -> Value:
        k = self.k
        with k.fold("d", 0, width, init=[k.const(0.0, self.acc)]) as fold:
            a, b = self.element(x, x_row, fold.index), self.element(y, y_row, fold.index)
            fold.next(k.fma(a, b, fold.values[0]))
        return fold.results[0]

    def element(self, x: Heads, row: Value, d: Value) -> Value:
        return self.k.cast(self.k.load(x.buffer, row + d * x.step), self.acc)

    def score(self, p: Pair) -> Value:
        """In `unit`; -inf where the query does not look at the key. There is the key."""
        places = self.q.row(p.batch, p.head, p.query), self.keys.row(p.batch, p.kv_head, p.key)
        score = self.dot(self.q, places[0], self.keys, places[1], self.depth) * self.query_factor
        if self.mask is not None:
            at = self.mask.row(p.batch, p.head, p.query) + p.key * self.mask.step
            return self.masked(score, self.k.load(self.mask.buffer, at))
        score = self.finished(score)
        if not self.is_positional:
            return score
        own = self.seen(self.position(p.batch, p.query))
        return self.k.select((p.key < own.end) & (p.key >= own.first), score, -math.inf)

    def cleared(self, name: str, width: int) -> Buffer:
        k = self.k
        buffer = k.local(name, self.acc, width)
        with k.loop("d", 0, width) as d:
            k.store(buffer, d, k.const(0.0, self.acc))
        return buffer

    def add(self, sums: Buffer, factor: Value, x: Heads, row: Value, width: int) -> None:
        """A row of x times a factor, added; what has no weight may be no number."""
        k = self.k
        with k.when(k.ne(factor, 0.0)), k.loop("d", 0, width) as d:
            k.store(sums, d, k.fma(factor, self.element(x, row, d), k.load(sums, d)))

    def store_row(self, sums: Buffer, factor: Value | float, x: Heads, row: Value, width: int) -> None:
        k = self.k
        with k.loop("d", 0, width) as d:
            k.store(x.buffer, row + d * x.step, k.cast(k.load(sums, d) * factor, x.buffer.dtype))


@op_kernel(AttentionWithLogs, kind="attention", supports=supports, strided=range(5))
def attention_with_logs(site: OpSite) -> None:
    case = OneByOne(site, site.inputs[3:])
    k, heads = case.k, case.op.num_heads
    out, logs = case.heads(site.outputs[0], case.width), site.outputs[1]
    with k.parallel("row", case.batch * heads * case.seq_q) as row:
        query, rest = row % case.seq_q, row // case.seq_q
        head, batch = rest % heads, rest // heads
        kv_head, count = head // case.group, case.key_count(batch)
        init = [k.const(-math.inf, case.acc), k.const(0.0, case.acc)]
        with k.fold("key", 0, count, init=init) as fold:
            score = case.score(Pair(batch, head, kv_head, query, fold.index))
            highest = larger(k, score, fold.values[0])
            base = case.base(highest)
            fold.next(highest, fold.values[1] * case.power(fold.values[0] - base) + case.power(score - base))
        base, total = case.base(fold.results[0]), fold.results[1]
        is_empty = k.eq(total, 0.0)
        sums = case.cleared("sums", case.width)
        with k.loop("key", 0, count) as key:
            weight = case.power(case.score(Pair(batch, head, kv_head, query, key)) - base)
            case.add(sums, weight, case.values, case.values.row(batch, kv_head, key), case.width)
        total = k.select(is_empty, 1.0, total)
        case.store_row(sums, 1.0 / total, out, out.row(batch, head, query), case.width)
        log = k.op("log", total) * case.unit + base
        k.store(logs.buffer, logs.at(batch, head, query), k.select(is_empty, math.inf, log))


@op_kernel(AttentionGradients, kind="attention_gradients", supports=supports, strided=range(8))
def attention_gradients(site: OpSite) -> None:
    gradients = Gradients(site)
    k, op = gradients.k, gradients.op
    rows = gradients.batch * op.num_heads * gradients.seq_q
    with k.parallel("i", rows + gradients.batch * op.kv_heads * gradients.seq_k) as i:
        with k.when(i < rows):
            query, rest = i % gradients.seq_q, i // gradients.seq_q
            gradients.of_query(rest // op.num_heads, rest % op.num_heads, query)
        with k.otherwise():
            key, rest = (i - rows) % gradients.seq_k, (i - rows) // gradients.seq_k
            gradients.of_key(rest // op.kv_heads, rest % op.kv_heads, key)


class Gradients(OneByOne):
    def __init__(self, site: OpSite) -> None:
        super().__init__(site, site.inputs[6:])
        self.dy = self.heads(site.inputs[3], self.width)
        self.y, self.logs = self.heads(site.inputs[4], self.width), site.inputs[5]
        widths = (self.depth, self.depth, self.width)
        self.dq, self.dk, self.dv = (self.heads(x, width) for x, width in zip(site.outputs, widths))

    def weigh(self, p: Pair) -> tuple[Value, Value]:
        """P and dS of a query and a key."""
        k = self.k
        score = self.score(p)
        weight = self.power(score - k.load(self.logs.buffer, self.logs.at(p.batch, p.head, p.query)))
        rows = self.dy.row(p.batch, p.head, p.query), self.values.row(p.batch, p.kv_head, p.key)
        change = self.dot(self.dy, rows[0], self.values, rows[1], self.width)
        change = weight * (
            change - self.dot(self.dy, rows[0], self.y, self.y.row(p.batch, p.head, p.query), self.width)
        )
        if self.op.softcap is not None:
            capped = score * (1.0 / (self.op.softcap_in(self.acc) * self.unit))
            change = change * k.fma(-capped, capped, k.const(1.0, capped.type))
        # Scores that are not seen are -inf, and have no slope.
        return weight, k.select(k.eq(weight, 0.0), 0.0, change)

    def of_query(self, batch: Value, head: Value, query: Value) -> None:
        k, sums, kv_head = self.k, self.cleared("dq", self.depth), head // self.group
        with k.loop("key", 0, self.key_count(batch)) as key:
            _, change = self.weigh(Pair(batch, head, kv_head, query, key))
            self.add(sums, change, self.keys, self.keys.row(batch, kv_head, key), self.depth)
        self.store_row(sums, self.op.scale, self.dq, self.dq.row(batch, head, query), self.depth)

    def of_key(self, batch: Value, kv_head: Value, key: Value) -> None:
        k = self.k
        of_keys, of_values = self.cleared("dk", self.depth), self.cleared("dv", self.width)
        # Behind the last key there is nothing to read.
        stop = k.select(key < self.key_count(batch), self.rows, 0)
        with k.loop("row", 0, stop) as row:
            head, query = kv_head * self.group + row // self.seq_q, row % self.seq_q
            weight, change = self.weigh(Pair(batch, head, kv_head, query, key))
            self.add(of_values, weight, self.dy, self.dy.row(batch, head, query), self.width)
            self.add(of_keys, change, self.q, self.q.row(batch, head, query), self.depth)
        self.store_row(of_keys, self.op.scale, self.dk, self.dk.row(batch, kv_head, key), self.depth)
        self.store_row(of_values, 1.0, self.dv, self.dv.row(batch, kv_head, key), self.width)
