"""Attention in two steps, as compilers write it where few heads read many keys: parts of the keys, and their sum.

The first op goes through `parts` parts of the keys, each of which a thread can take; the second one joins what they
found. How many parts there are follows from shapes, so results do not depend on the number of threads; where the parts
end follows from how many keys there are, so parts beyond them cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType, promote
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.attn.attention import Attention, attention_scores, operand_arrays
from rlx.ops.attn.operands import TO_BHSD, AttentionForward, AttentionLayout, heads_back, heads_first
from rlx.ops.define.operands import require_dtype, require_float
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import as_f64, rounded

__all__ = ["AttentionJoin", "AttentionParts"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use attention")
# Parts are whole steps of keys, and at least two of them.
KEY_STEP = 64


def part_length(keys: int, parts: int) -> int:
    """How many keys each part has, the last ones fewer or none.

    >>> part_length(1500, 4), part_length(1500, 8), part_length(100, 8)
    (384, 192, 128)
    """
    steps = -(-keys // (parts * KEY_STEP))
    return max(2, steps) * KEY_STEP


def _require_parts(op: Op, parts: Size) -> None:
    if isinstance(parts, int) and parts < 0:
        raise op.fail(f"the number of parts cannot be negative, got {parts}")


def score_unit(dtype: DType) -> float:
    """What scores are multiplied by where sums have this type: softmax is then a power of 2, or of e for f64."""
    return math.log2(math.e) if dtype is DType.F32 else 1.0


@op("attention_parts")
class AttentionParts(AttentionForward):
    """out, sums and statistics of attention whose keys are cut into `parts`; operands as those of `Attention`.

    Without parts, out is the attention and there are no sums. With parts, out is 0 and row i of item (b·Hkv + h)·parts
    + p, for query i // (H/Hkv) and head h·(H/Hkv) + i % (H/Hkv), has over the keys of part p alone: in `sums`
    [items, rows, width] Σ exp(S - peak)·v, in `statistics` [items, rows, 2] the peak, max(S) in units of `score_unit`,
    and Σ exp(S - peak). A kernel that cannot do so may leave all parts without keys, and give the attention in out.
    """

    primitive = True
    lowered = True
    parts: Size

    def check(self) -> None:
        super().check()
        _require_parts(self, self.parts)

    def infer(self, q: Shape, k: Shape, v: Shape, *extras: Shape) -> tuple[Shape, Shape, Shape]:
        named = self.extras(extras)
        self.check_operands(q, k, v, named)
        stored = k if named.k_scale is None else named.k_scale
        dtype = promote(q.dtype.accumulator, stored.dtype.accumulator)
        batch, seq = self._batch_and_length("q", q, self.num_heads, self.head_dim)
        out = q.with_dims(self.result_dims(q.dims, v.dims))
        items = batch * self.kv_heads * self.parts
        rows = seq * (self.num_heads // self.kv_heads)
        width = out.dims[-1] // self.num_heads if self.layout is AttentionLayout.Bsm else out.dims[-1]
        return out, Shape((items, rows, width), dtype), Shape((items, rows, 2), dtype)

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, *extras: Array) -> tuple[Array, ...]:
        types = [Shape(x.shape, DType.of(x.dtype)) for x in (q, k, v, *extras)]
        out, sums, statistics = (np.zeros(t.static_dims, t.dtype.numpy) for t in self.infer(*types))
        if self.parts == 0:
            whole = Attention(**self.shared_attributes, has_scales=self.has_scales)
            return whole.eval(q, k, v, *extras), sums, statistics
        named, group, parts = self.extras(extras), self.num_heads // self.kv_heads, int(self.parts)
        qh, kh, vh = operand_arrays(self, q, k, v, named)
        scores, _ = attention_scores(self, qh, kh, named)
        unit = score_unit(DType.of(sums.dtype))
        for b, h, i, p in np.ndindex(*qh.shape[:3], parts):
            count = kh.shape[2] if named.kv_len is None else int(np.clip(named.kv_len[b], 0, kh.shape[2]))
            length = part_length(count, parts)
            own = scores[b, h, i, p * length : (p + 1) * length]
            peak = own.max(initial=-np.inf)
            powers = np.exp(own - (0.0 if peak == -np.inf else peak))
            place = (b * self.kv_heads + h // group) * parts + p, i * group + h % group
            sums[place] = powers @ vh[b, h // group, p * length : (p + 1) * length]
            statistics[place] = peak * unit, powers.sum()
        return out, sums, statistics

    jvp = vjp = _INTERNAL

    def refusal(self, rule: str) -> NoRule:
        return _INTERNAL

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        q, k = spec(2, 4, 2, 16), spec(2, 2, 9, 16)
        lengths = spec(2, dtype="i32", values=[9, 4])
        base = {"num_heads": 4, "head_dim": 16, "num_kv_heads": 2, "mask_kind": "causal", "has_kv_len": True}
        for parts in (0, 2):
            yield sample(cls(**base, parts=parts), q, k, k, lengths)


@op("attention_join")
class AttentionJoin(Op):
    """The sum of what `attention_parts` found: with weights w = 2^peak (e^peak for f64), Σ w·sums / Σ w·totals.

    Rows that no part saw a key of stay what they are in out.
    """

    primitive = True
    lowered = True
    num_heads: int
    num_kv_heads: int
    layout: AttentionLayout
    parts: Size

    def check(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads < 1 or self.num_heads % self.num_kv_heads:
            raise self.fail(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads} >= 1")
        _require_parts(self, self.parts)

    def infer(self, out: Shape, sums: Shape, statistics: Shape) -> Shape:
        require_float(self, out, sums, statistics)
        items, rows, width = self._layout_sizes(out)
        wanted = (items, rows, width, items, rows, 2)
        found = (*sums.dims, *statistics.dims)
        is_same = sums.rank == 3 == statistics.rank and isinstance(sums.dims[2], int)
        if not is_same or not all(require_equal(a, b, self.mnemonic) for a, b in zip(found, wanted, strict=True)):
            raise self.fail(
                f"{self.parts} parts of {out} have sums [{items},{rows},{width}] of a fixed width and statistics "
                f"[{items},{rows},2], got {sums}, {statistics}"
            )
        require_dtype(
            self, sums.dtype is statistics.dtype and sums.dtype in (DType.F32, DType.F64), "one of f32, f64", sums
        )
        return out

    def _layout_sizes(self, out: Shape) -> tuple[Size, Size, Size]:
        """Items, rows of each and their width, as `AttentionParts` has them for such a result."""
        if self.layout is AttentionLayout.Bsm:
            if out.rank not in (2, 3):
                raise self.fail(f"layout {self.layout} has rank 3, got {out}")
            batch, seq, joined = (1, *out.dims) if out.rank == 2 else out.dims
            width = joined // self.num_heads
            heads: Size = self.num_heads if require_equal(joined, width * self.num_heads, self.mnemonic) else 0
        else:
            if out.rank != 4:
                raise self.fail(f"layout {self.layout} has rank 4, got {out}")
            batch, heads, seq, width = (out.dims[i] for i in TO_BHSD[self.layout])
        if not require_equal(heads, self.num_heads, self.mnemonic):
            raise self.fail(f"out must hold {self.num_heads} heads in layout {self.layout}, got {out}")
        return batch * self.num_kv_heads * self.parts, seq * (self.num_heads // self.num_kv_heads), width

    @np.errstate(all="ignore")
    def eval(self, out: Array, sums: Array, statistics: Array) -> Array:
        if not len(sums):
            return out
        heads = heads_first(np, out, self.layout, self.num_heads)
        batch, _, seq, width = heads.shape
        group, unit = self.num_heads // self.num_kv_heads, score_unit(DType.of(sums.dtype))
        by_row = (batch, self.num_kv_heads, int(self.parts), seq, group)
        sums, statistics = as_f64(sums, statistics)
        peaks, totals = (statistics[..., i].reshape(*by_row, 1) for i in (0, 1))
        highest = peaks.max(2, keepdims=True)
        weights = np.exp((peaks - np.where(highest == -np.inf, 0.0, highest)) / unit)
        total = (weights * totals).sum(2)
        joined = (weights * sums.reshape(*by_row, width)).sum(2) / np.where(total == 0.0, 1.0, total)
        # [B, Hkv, S, group, width] to heads.
        joined, total = (x.transpose(0, 1, 3, 2, 4).reshape(batch, -1, seq, x.shape[-1]) for x in (joined, total))
        found = np.where(total == 0.0, heads.astype(np.float64), joined)
        return rounded(heads_back(np, found, self.layout, out.shape), out.dtype)

    jvp = vjp = batch = _INTERNAL

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        statistics = spec(6, 4, 2, low=0.5)
        yield sample(cls(4, 2, "bhsd", 3), spec(1, 4, 2, 5), spec(6, 4, 5), statistics, dtypes=("f32", "f64"))
        yield sample(cls(4, 2, "bsm", 3), spec(1, 2, 20), spec(6, 4, 5), statistics, dtypes=("f32", "f64"))
        yield sample(cls(4, 2, "bshd", 0), spec(1, 2, 4, 5), spec(0, 4, 5), spec(0, 4, 2), dtypes=("f32", "f64"))
