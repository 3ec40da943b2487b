"""What an attention kernel is made for: sizes, operands by head, which keys a row sees, what becomes of a score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType, promote
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab
from rlx.kernels.cpu.ops.attention_lanes import base, power
from rlx.kernels.ir.loop_ir import HALVES, INDEX, Buffer, Const, Value
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.attn.operands import AttentionBase, AttentionLayout, MaskKind
from rlx.ops.lowered.attention_parts import score_unit

# Positions beyond the largest i32 see every key there can be.
FAR = 2**31 - 1


class Heads(NamedTuple):
    """An operand or the result as [batch, head, query or key, element], in any layout; a mask's elements are keys.

    A stride is 0 where one value serves all.
    """

    buffer: Buffer
    offset: Value
    strides: tuple[Value, ...]

    def row(self, batch: Value, head: Value, position: Value) -> Value:
        """Where the elements of a row begin."""
        sb, sh, ss, _ = self.strides
        return self.offset + batch * sb + head * sh + position * ss

    @property
    def step(self) -> Value:
        """From one element to the next."""
        return self.strides[3]

    @property
    def is_dense(self) -> bool:
        """Whether the elements of a row are known to lie side by side."""
        return isinstance(self.step, Const) and self.step.literal == 1

    @property
    def serves_all_rows(self) -> bool:
        """Whether all heads and positions of a batch are known to have the same elements."""
        return all(isinstance(s, Const) and s.literal == 0 for s in self.strides[1:3])


def by_heads(slab: Slab, layout: AttentionLayout, width: int) -> Heads:
    """A slab in a layout, by heads of this width."""
    if layout is not AttentionLayout.Bsm:
        b, x, y, d = slab.strides
        return Heads(slab.buffer, slab.offset, (b, *((x, y) if layout is AttentionLayout.Bhsd else (y, x)), d))
    zero = slab.offset.builder.const(0, INDEX)
    b, s, d = slab.strides if len(slab.strides) == 3 else (zero, *slab.strides)
    return Heads(slab.buffer, slab.offset, (b, d * width, s, d))


class KeyRange(NamedTuple):
    """Keys first..end-1."""

    first: Value
    end: Value


class AttentionCase:
    """One attention to compute: sizes, operands by head, which keys a row sees, and what becomes of a score.

    Softmax is a power of 2 (f32) or of e (f64) of scores that have been multiplied by `unit`.
    """

    def __init__(self, site: OpSite, extras: Sequence[Slab]) -> None:
        """`extras` are the operands beside q, k, v and a gradient: mask, kv_len, positions."""
        op = site.op
        assert isinstance(op, AttentionBase)
        self.k, self.op, self.machine = site.k, op, site.machine
        q, k, v = site.inputs[:3]
        named = op.extras(tuple(extras))
        stored = k if named.k_scale is None else named.k_scale
        self.acc = promote(compute_dtype(q.shape.dtype), compute_dtype(stored.shape.dtype))
        self.lanes = site.machine.lanes(self.acc)
        self.unit = score_unit(self.acc)
        self.depth = op.head_dim
        self.width = value_width(op, v.shape)
        self.group = op.num_heads // op.kv_heads
        self.q = self.heads(q, self.depth)
        self.keys = self.heads(k, self.depth)
        self.values = self.heads(v, self.width)
        self.batch, self.seq_q = self._sizes(q)
        self.seq_k = self._sizes(k)[1]
        self.rows = self.seq_q * self.group
        self.mask = None if named.mask is None else self._mask(named.mask)
        self.kv_len: Slab | None = named.kv_len
        self.positions: Slab | None = named.positions
        # What rows of k and v are multiplied by, [batch, head, key], if they are codes.
        self.key_scales: Slab | None = named.k_scale
        self.value_scales: Slab | None = named.v_scale
        self.sinks = None if named.sinks is None else self._sinks(named.sinks)

    def heads(self, slab: Slab, width: int) -> Heads:
        """An operand or result in the layout of the op, by heads of this width."""
        return by_heads(slab, self.op.layout, width)

    def _sizes(self, slab: Slab) -> tuple[Value, Value]:
        """Batch and sequence length."""
        if self.op.layout is AttentionLayout.Bsm:
            return (self.k.const(1, INDEX), slab.dims[0]) if len(slab.dims) == 2 else (slab.dims[0], slab.dims[1])
        return slab.dims[0], slab.dims[2 if self.op.layout is AttentionLayout.Bhsd else 1]

    def _mask(self, slab: Slab) -> Heads:
        zero = self.k.const(0, INDEX)
        steps = [zero if size == 1 else step for size, step in zip(slab.shape.dims, slab.strides)]
        full = {2: (0, 3), 3: (0, 2, 3), 4: (0, 1, 2, 3)}[len(steps)]
        strides = dict(zip(full, steps))
        return Heads(slab.buffer, slab.offset, tuple(strides.get(axis, zero) for axis in range(4)))

    def _sinks(self, slab: Slab) -> Heads:
        """The sinks as rows of one element, the same for all of a head."""
        zero = self.k.const(0, INDEX)
        return Heads(slab.buffer, slab.offset, (zero, slab.strides[0], zero, zero))

    # Which keys a row sees.

    def given_length(self, batch: Value) -> Value:
        """How many keys there are, as the operand says."""
        if self.kv_len is None:
            return self.seq_k
        return self._integer(self.kv_len, self.kv_len.at(batch))

    def key_count(self, batch: Value) -> Value:
        """How many keys there are in memory; what lies behind them is never read."""
        length = self.given_length(batch)
        return length if self.kv_len is None else self.k.max(self.k.min(length, self.seq_k), 0)

    def position(self, batch: Value, query: Value) -> Value:
        """Where a query stands among the keys."""
        if self.positions is None:
            return self.k.max(self.given_length(batch) - self.seq_q, 0) + query
        index = (query,) if len(self.positions.dims) == 1 else (batch, query)
        return self._integer(self.positions, self.positions.at(*index))

    def _integer(self, slab: Slab, place: Value) -> Value:
        return self.k.cast(self.k.load(slab.buffer, place), DType.I64)

    @property
    def is_positional(self) -> bool:
        return self.op.mask_kind.is_positional

    @property
    def has_window(self) -> bool:
        return self.op.mask_kind is MaskKind.SlidingWindow

    def seen(self, position: Value) -> KeyRange:
        """The keys that a query at this position sees, those that exist or not."""
        first = position - self.op.window if self.has_window else self.k.const(0, INDEX)
        return KeyRange(first, position + 1)

    def keys_of(self, batch: Value, query: Value) -> KeyRange:
        """The keys that a query sees and that exist."""
        k, count = self.k, self.key_count(batch)
        if not self.is_positional:
            return KeyRange(k.const(0, count.type), count)
        seen = self.seen(self.position(batch, query))
        return KeyRange(k.max(seen.first, 0), k.min(seen.end, count))

    # Scores.

    def times_scales(self, x: Value, scales: Slab | None, where: tuple[Value, Value, Value], exists: Value) -> Value:
        """Lanes of x, one for each key from `where` (batch, head, key) on, times the scales of those that exist."""
        if scales is None:
            return x
        loaded = self.k.load(scales.buffer, scales.at(*where), lanes=x.lanes, stride=scales.strides[2], mask=exists)
        return x * self.k.cast(loaded, self.acc)

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by before the products."""
        if self.op.softcap is not None:
            return self.op.scale / self.op.softcap_in(self.acc)
        return self.op.scale * self.unit

    def finished(self, score: Value, bias: Value | None = None) -> Value:
        """A product of query and key as a score, in `unit`."""
        if self.op.softcap is not None:
            score = self.k.op("tanh", score) * (self.op.softcap_in(self.acc) * self.unit)
        return score if bias is None else self.k.fma(bias, self.unit, score)

    def power(self, x: Value) -> Value:
        """The power of a score below or at the highest one."""
        return power(self.k, x)

    def masked(self, score: Value, loaded: Value) -> Value:
        """A score with what was loaded from the mask or bias: added, or -inf where it hides the key."""
        k = self.k
        if self.op.mask_kind is MaskKind.Bias:
            return self.finished(score, k.splat(k.cast(loaded, self.acc), score.lanes))
        return k.select(k.splat(self.shows(loaded), score.lanes), self.finished(score), -math.inf)

    def shows(self, loaded: Value) -> Value:
        """Whether an element of the mask lets a key be seen."""
        if loaded.dtype is DType.BOOL:
            return loaded
        if loaded.dtype.is_int:
            return loaded > 0
        return (self.k.cast(loaded, DType.F32) if loaded.dtype in HALVES else loaded) >= 0.5

    def base(self, peak: Value) -> Value:
        return base(self.k, peak)


def value_width(op: AttentionBase, v: Shape) -> int:
    """The width of the heads of v."""
    width = v.dims[-1]
    assert isinstance(width, int)
    return width // op.kv_heads if op.layout is AttentionLayout.Bsm else width
