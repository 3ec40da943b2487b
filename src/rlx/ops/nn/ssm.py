"""Recurrences over a sequence: the state-space scan of Mamba, and linear attention by the gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import promote_inexact, require_float, require_same_dtype
from rlx.ops.define.rules import SharedInBatch, batch_by_folding
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor

__all__ = ["GatedDeltaNet", "SelectiveScan", "gated_delta_net", "gated_delta_net_carry", "selective_scan"]

Array = np.ndarray[Any, np.dtype[Any]]


def _check_dims(op: Op, operands: dict[str, tuple[Shape, Dims]]) -> None:
    """All operands are floats of one dtype and have the dims that go with the first one."""
    shapes = [shape for shape, _ in operands.values()]
    require_float(op, *shapes)
    require_same_dtype(op, *shapes)
    for name, (shape, wanted) in operands.items():
        if shape.rank != len(wanted) or not all(require_equal(a, b, op.name) for a, b in zip(shape.dims, wanted)):
            raise op.fail(f"{name} must be {list(wanted)}, got {shape}")


def _time_first(x: Any) -> Any:
    from rlx.ops.shape.movement import moveaxis

    return moveaxis(x, 1, 0)


@op("selective_scan")
class SelectiveScan(SharedInBatch, Op):
    """y of the state-space scan, with n = `state_size` states per channel:

        H_t = exp(Δ_t·A)⊙H_{t-1} + Δ_t·x_t·B_t,   y_t[c] = Σ_n C_t[n]·H_t[n, c]

    x and Δ [b, s, h], A [h, n], B and C [b, s, n]; the result is [b, s, h]. H begins at 0, or at the operand state
    [b, n, h] with `carry_state`; with `return_state` the final H is a second result.
    """

    opens_for_autodiff = True

    precision_class = "reduction"

    shared = (2,)

    state_size: int
    carry_state: bool = False
    return_state: bool = False

    def infer(
        self, x: Shape, delta: Shape, a: Shape, b: Shape, c: Shape, state: Shape | None = None
    ) -> Shape | tuple[Shape, ...]:
        if x.rank != 3:
            raise self.fail(f"x must be [batch, seq, channels], got {x}")
        if self.carry_state != (state is not None):
            raise self.fail(f"carry_state={self.carry_state} does not fit an operand state of {state}")
        batch, seq, channels = x.dims
        states: Dims = (batch, seq, self.state_size)
        final = x.with_dims((batch, self.state_size, channels))
        wanted = {"delta": (delta, x.dims), "a": (a, (channels, self.state_size)), "b": (b, states), "c": (c, states)}
        if state is not None:
            wanted["state"] = (state, final.dims)
        _check_dims(self, {"x": (x, x.dims)} | wanted)
        return (x, final) if self.return_state else x

    @np.errstate(all="ignore")
    def eval(self, x: Array, delta: Array, a: Array, b: Array, c: Array, state: Array | None = None) -> Any:
        wide, step, decay, enter, leave = as_f64(x, delta, a, b, c)
        held = np.zeros((x.shape[0], self.state_size, x.shape[2])) if state is None else as_f64(state)[0]
        y = np.zeros(x.shape)
        for t in range(x.shape[1]):
            held = np.exp(step[:, t, None, :] * decay.T) * held
            held = held + (step[:, t] * wide[:, t])[:, None, :] * enter[:, t, :, None]
            y[:, t] = (held * leave[:, t, :, None]).sum(axis=1)
        scanned = rounded(y, x.dtype)
        return (scanned, rounded(held, x.dtype)) if self.return_state else scanned

    def decompose(self, x: Any, delta: Any, a: Any, b: Any, c: Any, state: Any = None) -> Any:
        from rlx.ops.control.bodies import build_body
        from rlx.ops.control.scans import Scan
        from rlx.ops.pointwise.unary import exp
        from rlx.ops.reduction.reductions import reduce_sum
        from rlx.ops.shape.creation import zeros
        from rlx.ops.shape.movement import expand_dims, moveaxis, transpose

        wide, step, decay, enter, leave = accumulators(x, delta, a, b, c)
        batch, seq, channels = x.shape
        decay = transpose(decay, (1, 0))
        initial = zeros((batch, self.state_size, channels), wide.dtype) if state is None else accumulators(state)[0]

        def advance(state: Any, decay: Any, x: Any, step: Any, enter: Any, leave: Any) -> tuple[Any, Any]:
            kept = exp(expand_dims(step, 1) * decay) * state
            state = kept + expand_dims(step * x, 1) * expand_dims(enter, -1)
            return state, reduce_sum(state * expand_dims(leave, -1), (1,))

        rows = [_time_first(v) for v in (wide, step, enter, leave)]
        types = [initial.type, decay.type, *(r.type.with_dims(r.shape[1:]) for r in rows)]
        body = build_body("selective_scan_step", advance, **dict(zip(("state", "a", "x", "delta", "b", "c"), types)))
        final, y = Scan(body, seq, num_bcast=1, num_xs=4)(initial, decay, *rows)
        scanned = rounded_tensor(moveaxis(y, 0, 1), x.dtype)
        return (scanned, rounded_tensor(final, x.dtype)) if self.return_state else scanned

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for b, s, h, n in ((2, 3, 4, 2), (1, 1, 1, 1), (1, 0, 2, 2)):
            operands = (spec(b, s, h), spec(b, s, h, low=0, high=1), spec(h, n), spec(b, s, n), spec(b, s, n))
            yield sample(cls(n), *operands)
            yield sample(cls(n, True, True), *operands, spec(b, n, h))
        x = spec("B", "S", 3)
        yield sample(cls(2), x, x, spec(3, 2, low=-1, high=0), spec("B", "S", 2), spec("B", "S", 2), B=2, S=3)


@op("gated_delta_net")
class GatedDeltaNet(Op):
    """o of the gated delta rule, per head with a state S [n, n]:

        S = e^{g_t}·S;   S += k_t·(β_t·(v_t - Sᵀ·k_t))ᵀ;   o_t = Sᵀ·q_t/√n

    q, k, v [b, s, h, n], g and β [b, s, h]; the result is [b, s, h, n]. S begins at 0, or at the operand state
    [b, h, n, n] with `carry_state`; with `return_state` the final S is a second result.
    """

    is_heavy = True
    opens_for_autodiff = True

    precision_class = "reduction"

    state_size: int
    carry_state: bool = False
    return_state: bool = False

    def infer(
        self, q: Shape, k: Shape, v: Shape, g: Shape, beta: Shape, state: Shape | None = None
    ) -> Shape | tuple[Shape, ...]:
        if q.rank != 4:
            raise self.fail(f"q must be [batch, seq, heads, state_size], got {q}")
        if self.carry_state != (state is not None):
            raise self.fail(f"carry_state={self.carry_state} does not fit an operand state of {state}")
        batch, seq, heads, _ = q.dims
        n = self.state_size
        gates: Dims = (batch, seq, heads)
        final = q.with_dims((batch, heads, n, n))
        operands = {name: (shape, (*gates, n)) for name, shape in (("q", q), ("k", k), ("v", v))}
        operands |= {"g": (g, gates), "beta": (beta, gates)}
        if state is not None:
            operands["state"] = (state, final.dims)
        _check_dims(self, operands)
        return (q, final) if self.return_state else q

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array | None = None) -> Any:
        query, key, value, gate, rate = as_f64(q, k, v, g, beta)
        batch, seq, heads, n = q.shape
        memory = np.zeros((batch, heads, n, n)) if state is None else as_f64(state)[0]
        out = np.zeros(q.shape)
        for t in range(seq):
            memory = np.exp(gate[:, t, :, None, None]) * memory
            recalled = np.einsum("bhij,bhi->bhj", memory, key[:, t])
            correction = rate[:, t, :, None] * (value[:, t] - recalled)
            memory = memory + key[:, t, :, :, None] * correction[:, :, None, :]
            out[:, t] = np.einsum("bhij,bhi->bhj", memory, query[:, t]) / np.sqrt(n)
        o = rounded(out, q.dtype)
        return (o, rounded(memory, q.dtype)) if self.return_state else o

    def decompose(self, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None) -> Any:
        from rlx.ops.control.bodies import build_body
        from rlx.ops.control.scans import Scan
        from rlx.ops.pointwise.unary import exp
        from rlx.ops.reduction.reductions import reduce_sum
        from rlx.ops.shape.creation import zeros
        from rlx.ops.shape.movement import expand_dims, moveaxis

        operands = accumulators(q, k, v, g, beta)
        batch, seq, heads, n = q.shape
        initial = zeros((batch, heads, n, n), operands[0].dtype) if state is None else accumulators(state)[0]

        def recall(memory: Any, x: Any) -> Any:
            """Sᵀ·x, a sum over the rows of S."""
            return reduce_sum(memory * expand_dims(x, -1), (-2,))

        def advance(memory: Any, query: Any, key: Any, value: Any, gate: Any, rate: Any) -> tuple[Any, Any]:
            memory = exp(expand_dims(gate, (-2, -1))) * memory
            correction = expand_dims(rate, -1) * (value - recall(memory, key))
            memory = memory + expand_dims(key, -1) * expand_dims(correction, -2)
            return memory, recall(memory, query) * (1.0 / self.state_size**0.5)

        rows = [_time_first(x) for x in operands]
        types = [initial.type, *(r.type.with_dims(r.shape[1:]) for r in rows)]
        body = build_body("gated_delta_step", advance, **dict(zip(("state", "q", "k", "v", "g", "beta"), types)))
        final, out = Scan(body, seq, num_xs=5)(initial, *rows)
        o = rounded_tensor(moveaxis(out, 0, 1), q.dtype)
        return (o, rounded_tensor(final, q.dtype)) if self.return_state else o

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def operands(b: int | str, s: int | str, h: int, n: int) -> tuple[Any, ...]:
            x = spec(b, s, h, n, low=-1, high=1)
            return x, x, x, spec(b, s, h, low=-1, high=0), spec(b, s, h, low=0, high=1)

        for returned in (False, True):
            yield sample(cls(3, return_state=returned), *operands(2, 3, 2, 3))
            yield sample(cls(3, True, returned), *operands(2, 3, 2, 3), spec(2, 2, 3, 3))
        yield sample(cls(2, True, True), *operands(1, 0, 1, 2), spec(1, 1, 2, 2))
        yield sample(cls(2, True, True), *operands("B", "S", 2, 2), spec("B", 2, 2, 2), B=2, S=3)


def selective_scan(
    x: Any, delta: Any, a: Any, b: Any, c: Any, state_size: int, *, state: Any = None, return_state: bool = False
) -> Any:
    """The state-space scan of Mamba; see `SelectiveScan`. (y, final state) with `return_state`."""
    operands = (x, delta, a, b, c) if state is None else (x, delta, a, b, c, state)
    return SelectiveScan(state_size, state is not None, return_state)(*promote_inexact(*operands))


def gated_delta_net(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state_size: int, *, state: Any = None, return_state: bool = False
) -> Any:
    """Linear attention by the gated delta rule; see `GatedDeltaNet`. (o, final state) with `return_state`."""
    operands = (q, k, v, g, beta) if state is None else (q, k, v, g, beta, state)
    return GatedDeltaNet(state_size, state is not None, return_state)(*promote_inexact(*operands))


def gated_delta_net_carry(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, state_size: int) -> Any:
    """`gated_delta_net` from a given state."""
    return gated_delta_net(q, k, v, g, beta, state_size, state=state)
