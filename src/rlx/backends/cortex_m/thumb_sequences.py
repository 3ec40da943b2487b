"""The steps of sequences in the small language of the Thumb form: layer norm, attention, GRU, LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlx.backends.cortex_m.thumb_ir import Loops, Number, Pointer
from rlx.quantized import Attention, Gru, LayerNorm, Lstm
from rlx.quantized.values import Array, Multipliers, Value, Weights

_LOW, _HIGH = -(2**15), 2**15 - 1


class Tables(Protocol):
    """What the writer of a program gives to these steps: constants, and what is done with them."""

    def table(self, b: Loops, values: Array) -> Pointer: ...
    def scaled(self, b: Loops, tables: Multipliers, channel: Number | int, acc: Number) -> Number: ...
    def code(self, b: Loops, step: object, tables: Multipliers, channel: Number | int, acc: Number) -> Number: ...
    def weight(self, b: Loops, weights: Weights, index: Number) -> Number: ...
    def interpolated(self, b: Loops, table: Array, code: Number) -> Number: ...


def layer_norm(t: Tables, b: Loops, step: LayerNorm, x: Value, source: Pointer, y: Pointer) -> None:
    n = x.dims[-1]
    with b.loop(x.size // n) as r:
        total, squares, k = b.variable(0), b.wide_variable(step.epsilon), b.wide_variable(0)
        with b.loop(n) as i:
            b.set(total, b.get(total) + b.load(source, r * n + i))
        with b.loop(n) as i:
            centred = (b.load(source, r * n + i) * n - b.get(total)).widened()
            b.set(squares, b.get(squares) + centred * centred)
        b.set(squares, (b.get(squares) // n).most(1))
        with b.loop(30) as _, b.when(b.get(squares).compare("<", 2**60)):
            b.set(squares, b.get(squares) << 2)
            b.set(k, b.get(k) + 1)
        reciprocal = (b.wide(2**61) // _whole_root(b, b.get(squares))).least(2**31 - 1)
        shift = 61 - step.places(n) - b.get(k)
        half = b.wide(1) << (shift - 1)
        with b.loop(n) as i:
            centred = (b.load(source, r * n + i) * n - b.get(total)).widened()
            number = ((centred * reciprocal + half) >> shift).narrowed()
            acc = number * b.load(t.table(b, step.gamma), i) + b.load(t.table(b, step.beta), i)
            b.store(y, r * n + i, t.code(b, step, step.multipliers, 0, acc))


def _whole_root(b: Loops, x: Number) -> Number:
    """The root of a number below 2^62, rounded down, one bit after the other."""
    rest, root, bit = b.wide_variable(x), b.wide_variable(0), b.wide_variable(2**60)
    with b.loop(31):
        tried = b.get(root) + b.get(bit)
        half = b.get(root) >> 1
        fits = b.get(rest).compare(">=", tried)
        b.set(root, fits.pick(half + b.get(bit), half))
        b.set(rest, fits.pick(b.get(rest) - tried, b.get(rest)))
        b.set(bit, b.get(bit) >> 2)
    return b.get(root)


def attention(
    t: Tables,
    b: Loops,
    step: Attention,
    operands: Sequence[Value],
    xs: Sequence[Pointer],
    y: Pointer,
    scores: Pointer,
) -> None:
    length, head, (q, k, v) = step.out.dims[0], step.head, operands
    wide, group = step.kv_heads * head, step.heads // step.kv_heads
    with b.loop(length) as i, b.loop(step.heads) as h:
        seen = i + 1 if step.causal else b.number(length)
        first, shared = (i * step.heads + h) * head, h // group * head
        largest, total = b.variable(-(2**31)), b.variable(0)
        with b.loop(seen) as j:
            score = b.variable(0)
            with b.loop(head) as c:
                one = b.load(xs[0], first + c) - q.zero_point
                b.set(score, b.get(score) + one * (b.load(xs[1], j * wide + shared + c) - k.zero_point))
            b.set(largest, b.get(largest).most(b.get(score)))
            b.store(scores, j, b.get(score))
        with b.loop(seen) as j:
            away = t.scaled(b, step.multipliers.take(0), 0, b.get(largest) - b.load(scores, j)).least(4095)
            table = t.table(b, step.table)
            power = (b.load(table, away & 255) * b.load(table, (away >> 8) + 256) + 2**14) >> 15
            b.set(total, b.get(total) + power)
            b.store(scores, j, power)
        with b.loop(seen) as j:
            b.store(scores, j, ((b.load(scores, j) << 14) + b.get(total) // 2) // b.get(total))
        with b.loop(head) as c:
            acc = b.variable(0)
            with b.loop(seen) as j:
                one = b.load(xs[2], j * wide + shared + c) - v.zero_point
                b.set(acc, b.get(acc) + b.load(scores, j) * one)
            b.store(y, first + c, t.code(b, step, step.multipliers.take(1), 0, b.get(acc)))


def recurrent(t: Tables, b: Loops, step: Gru | Lstm, source: Pointer, y: Pointer, states: Pointer) -> None:
    """States, then the next ones, then the cells of an LSTM."""
    n, gates, length = step.size, step.gates, step.length
    is_last_only = len(step.out.dims) == 1
    with b.loop((1 + step.carries) * n) as u:
        b.store(states, u, b.number(0))

    def seen(gate: int, u: Number) -> Number:
        row = u + gate * n
        acc = b.variable(b.load(t.table(b, step.bias), row))
        with b.loop(n) as i:
            b.set(acc, b.get(acc) + b.load(states, i) * t.weight(b, step.weights, row * n + i))
        return t.scaled(b, step.multipliers, row, b.get(acc)).limited(_LOW, _HIGH)

    with b.loop(length) as time:
        place = length - 1 - time if step.reverse else time

        def given(gate: int, u: Number, place: Number = place) -> Number:
            return b.load(source, place * (gates * n) + u + gate * n)

        def function(which: int, x: Number) -> Number:
            return t.interpolated(b, step.tables[which], x.limited(_LOW, _HIGH))

        with b.loop(n) as u:
            if isinstance(step, Gru):
                r, z = (function(0, given(g, u) + seen(g, u)) for g in (0, 1))
                part = (r * seen(2, u) + 2**14) >> 15
                new = function(1, given(2, u) + part)
                state = ((2**15 - z) * new + z * b.load(states, u) + 2**14) >> 15
                state = state.limited(_LOW, _HIGH)
            else:
                take, keep, new, out = (
                    function(which, given(g, u) + seen(g, u)) for g, which in enumerate((0, 0, 1, 0))
                )
                cell = (keep * b.load(states, u + 2 * n) + (take * new >> 4) + 2**14) >> 15
                cell = cell.limited(_LOW, _HIGH)
                b.store(states, u + 2 * n, cell)
                state = (out * function(1, cell * 2) + 2**14) >> 15
            b.store(states, u + n, state)
        with b.loop(n) as u:
            state = b.load(states, u + n)
            b.store(states, u, state)
            place_of = u if is_last_only else place * n + u
            b.store(y, place_of, t.code(b, step, step.out_multiplier, 0, state))
