"""Recurrences over a sequence: the state never leaves the thread that computes it.

The lanes of a vector are neighbouring channels, whose states do not depend on each other; a thread takes a few of them
through the whole sequence. States are kept in f32 for half floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import are_native
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.nn.linear_attention import LinearAttention
from rlx.ops.nn.ssm import GatedDeltaNet, SelectiveScan

# States of one channel that are kept on the stack; larger ones go through memory, as a scan.
MAX_STATES = 512


def _fits(op: Op, operands: Sequence[Shape]) -> bool:
    assert isinstance(op, SelectiveScan | GatedDeltaNet)
    return are_native(*operands) and op.state_size <= MAX_STATES


def _fits_keys(op: Op, operands: Sequence[Shape]) -> bool:
    width = operands[0].dims[3]
    return are_native(*operands) and isinstance(width, int) and width <= MAX_STATES


@op_kernel(SelectiveScan, kind="recurrence", supports=_fits)
def selective_scan(site: OpSite) -> None:
    """H = exp(Δ·A)⊙H + Δ·x·B and y = Σ C·H over the states, step by step."""
    op = site.op
    assert isinstance(op, SelectiveScan)
    lanes = _Lanes(site)
    k = site.k
    x, delta, decay, enter, leave = site.inputs[:5]
    y = site.outputs[0]
    states, width = op.state_size, lanes.count
    state, factor = (k.local(name, lanes.wide, max(1, states * width)) for name in ("state", "factor"))
    batch, steps, channels = x.dims
    blocks = k.ceildiv(channels, width)
    with k.parallel("block", batch * blocks) as block:
        image, first = block // blocks, block % blocks * width
        mask = k.lane_mask(channels - first, width) if width > 1 else None
        with k.loop("n", 0, states) as n:
            start = lanes.zero()
            if op.carry_state:
                start = lanes.load(site.inputs[5], site.inputs[5].at(image, n, first), mask)
            k.store(state, n * width, start)
            k.store(factor, n * width, lanes.load(decay, decay.at(first, n), mask, decay.strides[0]))
        with k.loop("t", 0, steps) as t:
            step = lanes.load(delta, delta.at(image, t, first), mask)
            moved = step * lanes.load(x, x.at(image, t, first), mask)
            with k.fold("n", 0, states, init=[lanes.zero()]) as fold:
                n = fold.index
                shrunk = k.op("exp", step * k.load(factor, n * width, lanes=width))
                kept = shrunk * k.load(state, n * width, lanes=width)
                after = kept + moved * lanes.same(enter, enter.at(image, t, n))
                k.store(state, n * width, after)
                fold.next(fold.values[0] + after * lanes.same(leave, leave.at(image, t, n)))
            lanes.store(y, y.at(image, t, first), fold.results[0], mask)
        if op.return_state:
            final = site.outputs[1]
            with k.loop("n", 0, states) as n:
                lanes.store(final, final.at(image, n, first), k.load(state, n * width, lanes=width), mask)


@op_kernel(LinearAttention, kind="recurrence", supports=_fits_keys)
def linear_attention(site: OpSite) -> None:
    """S = e^g·S + k·vᵀ and o = Sᵀ·q. The columns of S are the lanes; sums over its rows have several addends in turn,
    for one would wait for itself."""
    op = site.op
    assert isinstance(op, LinearAttention)
    lanes = _Lanes(site)
    k, width = lanes.k, lanes.count
    query, key, value, gate = site.inputs[:4]
    out = site.outputs[0]
    n = site.inputs[0].shape.dims[3]
    assert isinstance(n, int)
    turns = next(c for c in (4, 2, 1) if n % c == 0)
    memory = k.local("memory", lanes.wide, max(1, n * width))
    batch, steps, heads, columns = value.dims
    share = heads // query.dims[2]
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", batch * heads * blocks) as block:
        image, head, first = block // blocks // heads, block // blocks % heads, block % blocks * width
        group = head // share
        mask = k.lane_mask(columns - first, width) if width > 1 else None
        with k.loop("i", 0, n) as i:
            start = lanes.zero()
            if op.carry_state:
                start = lanes.load(site.inputs[4], site.inputs[4].at(image, head, i, first), mask)
            k.store(memory, i * width, start)
        with k.loop("t", 0, steps) as t:
            forget = k.op("exp", lanes.same(gate, gate.at(image, t, head)))
            added = lanes.load(value, value.at(image, t, head, first), mask)
            with k.fold("i", 0, n, turns, init=[lanes.zero()] * turns) as seen:
                sums = []
                for turn in range(turns):
                    i = seen.index + turn
                    kept = forget * k.load(memory, i * width, lanes=width)
                    after = kept + added * lanes.same(key, key.at(image, t, group, i))
                    k.store(memory, i * width, after)
                    sums.append(seen.values[turn] + after * lanes.same(query, query.at(image, t, group, i)))
                seen.next(*sums)
            total = seen.results[0]
            for more in seen.results[1:]:
                total = total + more
            lanes.store(out, out.at(image, t, head, first), total, mask)
        if op.return_state:
            final = site.outputs[1]
            with k.loop("i", 0, n) as i:
                lanes.store(final, final.at(image, head, i, first), k.load(memory, i * width, lanes=width), mask)


@op_kernel(GatedDeltaNet, kind="recurrence", supports=_fits)
def gated_delta_net(site: OpSite) -> None:
    """S = e^g·S; S += k·(β·(v - Sᵀ·k))ᵀ; o = Sᵀ·q/√n. The columns of S go their own ways: they are the lanes."""
    op = site.op
    assert isinstance(op, GatedDeltaNet)
    lanes = _Lanes(site)
    k, width, n = lanes.k, lanes.count, op.state_size
    query, key, value, gate, rate = site.inputs[:5]
    out = site.outputs[0]
    memory = k.local("memory", lanes.wide, max(1, n * width))
    batch, steps, heads, columns = query.dims
    blocks = k.ceildiv(columns, width)
    with k.parallel("block", batch * heads * blocks) as block:
        image, head, first = block // blocks // heads, block // blocks % heads, block % blocks * width
        mask = k.lane_mask(columns - first, width) if width > 1 else None
        with k.loop("i", 0, n) as i:
            start = lanes.zero()
            if op.carry_state:
                start = lanes.load(site.inputs[5], site.inputs[5].at(image, head, i, first), mask)
            k.store(memory, i * width, start)
        with k.loop("t", 0, steps) as t:
            forget = k.op("exp", lanes.same(gate, gate.at(image, t, head)))
            with k.fold("i", 0, n, init=[lanes.zero()]) as recalled:
                kept = forget * k.load(memory, recalled.index * width, lanes=width)
                k.store(memory, recalled.index * width, kept)
                recalled.next(recalled.values[0] + kept * lanes.same(key, key.at(image, t, head, recalled.index)))
            wanted = lanes.load(value, value.at(image, t, head, first), mask)
            correction = lanes.same(rate, rate.at(image, t, head)) * (wanted - recalled.results[0])
            with k.fold("i", 0, n, init=[lanes.zero()]) as seen:
                i = seen.index
                learned = lanes.same(key, key.at(image, t, head, i)) * correction
                after = k.load(memory, i * width, lanes=width) + learned
                k.store(memory, i * width, after)
                seen.next(seen.values[0] + after * lanes.same(query, query.at(image, t, head, i)))
            lanes.store(out, out.at(image, t, head, first), seen.results[0] * (1.0 / math.sqrt(n)), mask)
        if op.return_state:
            final = site.outputs[1]
            with k.loop("i", 0, n) as i:
                lanes.store(final, final.at(image, head, i, first), k.load(memory, i * width, lanes=width), mask)


class _Lanes:
    """Vectors of channels in the type that states are kept in."""

    def __init__(self, site: OpSite) -> None:
        self.k = site.k
        self.wide = compute_dtype(site.outputs[0].shape.dtype)
        self.count = site.machine.lanes(self.wide)

    def zero(self) -> Value:
        return self.k.const(0.0, ValueType(self.wide, self.count))

    def load(self, x: Slab, offset: Value, mask: Value | None, stride: Value | int = 1) -> Value:
        return self.k.cast(self.k.load(x.buffer, offset, lanes=self.count, stride=stride, mask=mask), self.wide)

    def same(self, x: Slab, offset: Value) -> Value:
        """One element, for all channels."""
        return self.k.splat(self.k.cast(self.k.load(x.buffer, offset), self.wide), self.count)

    def store(self, y: Slab, offset: Value, value: Value, mask: Value | None) -> None:
        self.k.store(y.buffer, offset, self.k.cast(value, y.shape.dtype), mask=mask)
