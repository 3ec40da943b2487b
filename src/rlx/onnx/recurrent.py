"""Rules of LSTM, GRU and RNN: a scan over time for each direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, ops
from rlx.ir.dtype import DType
from rlx.onnx.values import Call, dtype_of, rule

Cell = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": nn.sigmoid,
    "tanh": rnp.tanh,
    "relu": nn.relu,
    "softsign": nn.soft_sign,
    "softplus": nn.softplus,
    "hardsigmoid": lambda x: rnp.clip(0.2 * x + 0.5, 0.0, 1.0),
}


def _activations(call: Call, directions: int, usual: list[str]) -> list[list[Callable[[Any], Any]]]:
    names = [n.lower() for n in call.attribute("activations") or usual * directions]
    if call.attribute("activation_alpha") or call.attribute("activation_beta"):
        call.unsupported("an activation with its own constants")
    if unknown := [n for n in names if n not in _ACTIVATIONS]:
        call.unsupported(f"the activation {unknown[0]!r}")
    found = [_ACTIVATIONS[n] for n in names]
    return [found[i * len(usual) : (i + 1) * len(usual)] for i in range(directions)]


def _recurrent(call: Call, gates: int, usual: list[str], make_cell: Callable[..., Cell], carries: int) -> Any:
    """Y and the last values of what is carried."""
    x, weights, again = call[0], call[1], call[2]
    if call.attribute("layout", 0):
        x = rnp.swapaxes(x, 0, 1)
    directions, size, kind = weights.shape[0], again.shape[-1], dtype_of(x)
    batch = x.shape[1]
    direction = call.attribute("direction", "forward")
    if call.attribute("clip"):
        call.unsupported("clip")
    activations = _activations(call, directions, usual)
    lengths = None if not call.has(4) else rnp.astype(call[4], DType.I32)
    outputs, lasts = [], []
    for d in range(directions):
        bias = call[3][d] if call.has(3) else np.zeros(2 * gates * size, kind.numpy)
        starts = []
        for carry in range(carries):
            given = call.optional(5 + carry)
            if given is not None and call.attribute("layout", 0):
                given = rnp.swapaxes(given, 0, 1)
            starts.append(rnp.zeros((batch, size), kind) if given is None else given[d])
        cell = make_cell(call, d, size, activations[d], rnp.transpose(again[d]), bias)
        # The part that does not depend on what is carried, for all times at once.
        rows = rnp.matmul(x, rnp.transpose(weights[d])) + bias[: gates * size]
        is_reverse = direction == "reverse" or d == 1
        last, ys = _over_time(cell, rows, tuple(starts), is_reverse, lengths)
        outputs.append(ys)
        lasts.append(last)
    y = rnp.stack(outputs, axis=1)
    ends = [rnp.stack([last[c] for last in lasts], axis=0) for c in range(carries)]
    if call.attribute("layout", 0):
        return rnp.transpose(y, (2, 0, 1, 3)), *(rnp.swapaxes(end, 0, 1) for end in ends)
    return y, *ends


def _over_time(cell: Cell, rows: Any, starts: tuple[Any, ...], reverse: bool, lengths: Any) -> tuple[Any, Any]:
    if lengths is None:

        def step(carry: Any, row: Any) -> Any:
            after = cell(row, carry)
            return after, after[0]

        return rlx.scan(step, starts, rows, reverse=reverse)
    times = ops.iota((rows.shape[0],), DType.I32)

    def limited_step(carry: Any, at: Any) -> Any:
        row, time = at
        is_inside = rnp.expand_dims(rnp.less(time, lengths), 1)
        after = tuple(rnp.where(is_inside, new, old) for new, old in zip(cell(row, carry), carry))
        return after, rnp.where(is_inside, after[0], rnp.zeros_like(after[0]))

    return rlx.scan(limited_step, starts, (rows, times), reverse=reverse)


@rule("LSTM")
def _lstm(call: Call) -> Any:
    if call.attribute("input_forget", 0):
        call.unsupported("input_forget")
    return _recurrent(call, 4, ["Sigmoid", "Tanh", "Tanh"], _lstm_cell, 2)


def _lstm_cell(call: Call, d: int, size: int, act: Any, again: Any, bias: Any) -> Cell:
    gate, inner, outer = act
    late = bias[4 * size :]
    peeps = rnp.split(call[7][d], 3) if call.has(7) else None

    def cell(row: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = carry
        i, o, f, g = rnp.split(row + rnp.matmul(h, again) + late, 4, axis=-1)
        if peeps is not None:
            i, f = i + peeps[0] * c, f + peeps[2] * c
        c = gate(f) * c + gate(i) * inner(g)
        o = gate(o if peeps is None else o + peeps[1] * c)
        return o * outer(c), c

    return cell


@rule("GRU")
def _gru(call: Call) -> Any:
    return _recurrent(call, 3, ["Sigmoid", "Tanh"], _gru_cell, 1)


def _gru_cell(call: Call, d: int, size: int, act: Any, again: Any, bias: Any) -> Cell:
    gate, inner = act
    late = bias[3 * size :]
    resets_last = call.attribute("linear_before_reset", 0)

    def cell(row: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = carry
        z, r, n = rnp.split(row, 3, axis=-1)
        hz, hr = rnp.split(rnp.matmul(h, again[:, : 2 * size]) + late[: 2 * size], 2, axis=-1)
        z, r = gate(z + hz), gate(r + hr)
        if resets_last:
            hn = r * (rnp.matmul(h, again[:, 2 * size :]) + late[2 * size :])
        else:
            hn = rnp.matmul(r * h, again[:, 2 * size :]) + late[2 * size :]
        return ((1 - z) * inner(n + hn) + z * h,)

    return cell


@rule("RNN")
def _rnn(call: Call) -> Any:
    return _recurrent(call, 1, ["Tanh"], _rnn_cell, 1)


def _rnn_cell(call: Call, d: int, size: int, act: Any, again: Any, bias: Any) -> Cell:
    late = bias[size:]
    return lambda row, carry: (act[0](row + rnp.matmul(carry[0], again) + late),)
