"""`attention_rows_kernel`: attention with an online softmax, a query of a head per thread.

The plain form, right for every layout, mask and type, and short: compilers that take seconds for the CPU's blocks have
it at once. Keys that nobody sees are not read.
"""

from __future__ import annotations

import math

from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.ops.attention_case import AttentionCase
from rlx.kernels.cpu.ops.attention_lanes import larger
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.ir.loop_ir import Kernel, Value


def attention_rows_kernel(site: OpSite) -> Kernel:
    case = AttentionCase(site, site.inputs[3:])
    k, heads = case.k, case.op.num_heads
    rows = _Rows(site, case)
    with k.parallel("row", case.batch * heads * case.seq_q) as number:
        query, rest = number % case.seq_q, number // case.seq_q
        rows.row(rest // heads, rest % heads, query)
    return iterations_as_threads(k.build())


class _Rows:
    def __init__(self, site: OpSite, case: AttentionCase) -> None:
        self.case, self.k = case, case.k
        self.out = case.heads(site.outputs[0], case.width)
        self.query = case.k.local("query", case.acc, case.depth)
        self.sums = case.k.local("sums", case.acc, case.width)

    def row(self, batch: Value, head: Value, query: Value) -> None:
        k, case = self.k, self.case
        place = case.q.row(batch, head, query)
        with k.loop("d", 0, case.depth) as d:
            element = k.cast(k.load(case.q.buffer, place + d * case.q.step), case.acc)
            k.store(self.query, d, element * case.query_factor)
        with k.loop("d", 0, case.width) as d:
            k.store(self.sums, d, 0.0)
        start = [k.const(-math.inf, case.acc), k.const(0.0, case.acc)]
        shared = head // case.group
        keys = case.keys_of(batch, query)
        with k.fold("key", keys.first, keys.end, init=start) as fold:
            peak, total = fold.values
            score = self.score(batch, head, shared, query, fold.index)
            higher = larger(k, score, peak)
            base = case.base(higher)
            shrunk, power = case.power(peak - base), case.power(score - base)
            weight = case.times_scales(power, case.value_scales, (batch, shared, fold.index), k.const(1, DType.BOOL))
            values = case.values.row(batch, shared, fold.index)
            with k.loop("d", 0, case.width) as d:
                element = k.cast(k.load(case.values.buffer, values + d * case.values.step), case.acc)
                k.store(self.sums, d, k.fma(element, weight, k.load(self.sums, d) * shrunk))
            fold.next(higher, total * shrunk + power)
        total = fold.results[1]
        share = 1.0 / k.select(k.eq(total, 0.0), 1.0, total)
        result = self.out.row(batch, head, query)
        with k.loop("d", 0, case.width) as d:
            element = k.cast(k.load(self.sums, d) * share, self.out.buffer.dtype)
            k.store(self.out.buffer, result + d * self.out.step, element)

    def score(self, batch: Value, head: Value, shared: Value, query: Value, key: Value) -> Value:
        k, case = self.k, self.case
        place = case.keys.row(batch, shared, key)
        with k.fold("d", 0, case.depth, init=[k.const(0.0, case.acc)]) as fold:
            element = k.cast(k.load(case.keys.buffer, place + fold.index * case.keys.step), case.acc)
            fold.next(k.fma(k.load(self.query, fold.index), element, fold.values[0]))
        score = case.times_scales(fold.results[0], case.key_scales, (batch, shared, key), k.const(1, DType.BOOL))
        if case.mask is None:
            return case.finished(score)
        loaded = k.load(case.mask.buffer, case.mask.row(batch, head, query) + key * case.mask.step)
        return case.masked(score, loaded)
