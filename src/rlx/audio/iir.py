"""Recursive filters: `lfilter` for a transfer function, `sosfilt` for sections of second order.

The recursion is a scan over blocks of samples. Within a block everything is linear in its samples and in the state at
its beginning, so two products give all outputs at once, and only the states are carried from block to block:

    y = T·x + O·s        s' = R·x + A^L·s

with T, O and R made of powers of the state matrix A of the filter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx.audio.windows import real_dtype, samples_of
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, convert, inexact, known_values, rank_of, static_size
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.trace.control import scan

__all__ = ["lfilter", "sosfilt"]

# Samples of a block, a power of two: 2^_DOUBLINGS.
_DOUBLINGS = 6
_BLOCK = 2**_DOUBLINGS


class _BlockFilter(NamedTuple):
    """What one block does, for rows of samples and rows of states: samples [L, L + order] gives the outputs without a
    state and what the samples add to it, states [order, L + order] the same of a state."""

    samples: Any
    states: Any


class _Normal(NamedTuple):
    """A transfer function with a[0] = 1: b and a [order + 1], and the module that computes with them, numpy where
    they are known and rlx.numpy where they are traced."""

    m: Any
    b: Any
    a: Any
    order: int


def _block_filter(normal: _Normal) -> _BlockFilter:
    """The matrices of a block."""
    m, b, a, order = normal
    # The transposed direct form: z' = A·z + (b[1:] - a[1:]·b0)·x and y = z[0] + b0·x.
    shift = np.eye(order, k=1)
    power = m.concatenate([-a[1:, None], m.zeros_like(shift[:, 1:])], 1) + shift
    from_state = np.eye(1, order) + 0 * b[0]
    into_state = (b[1:] - a[1:] * b[0])[:, None]
    for _ in range(_DOUBLINGS):
        # Rows C·A^t and columns A^t·B for twice as many t.
        from_state = m.concatenate([from_state, from_state @ power], 0)
        into_state = m.concatenate([into_state, power @ into_state], 1)
        power = power @ power
    impulse = m.concatenate([b[:1], into_state[0, :-1], m.zeros_like(b[:1])])
    late = np.arange(_BLOCK) - np.arange(_BLOCK)[:, None]
    outputs = impulse[np.where(late >= 0, late, _BLOCK)]
    samples = m.concatenate([outputs, m.flip(into_state, 1).T], 1)
    return _BlockFilter(samples, m.concatenate([from_state.T, power.T], 1))


@array_function
def lfilter(b: Any, a: Any, x: Any, zi: Any = None) -> Any:
    """a[0]·y[n] = Σ b[i]·x[n - i] - Σ a[i]·y[n - i] (i > 0) along the last axis, as scipy.signal.lfilter.

    With `zi` [.., max(len(a), len(b)) - 1], the state before the first sample, the result is (y, state after the last).
    Filters of high order are better given as sections, see `sosfilt`.
    """
    (x,) = inexact(x)
    x = convert(x, dtype_of(x).accumulator)
    if dtype_of(x).is_complex:
        raise OpError("lfilter: needs real samples; filter real and imaginary parts, stacked on an axis before time")
    coefficients = [inexact(c)[0] for c in (b, a)]
    for name, c in zip("ba", coefficients):
        if rank_of(c) != 1 or dims_of(c)[0] == 0:
            raise ShapeError(f"lfilter: {name} must be a row of at least one coefficient, got {list(dims_of(c))}")
    order = max(max(samples_of(c, "lfilter") for c in coefficients) - 1, 1)
    normal = _normal(coefficients, order)
    lead, samples = dims_of(x)[:-1], samples_of(x, "lfilter")
    if zi is None:
        return _by_blocks(normal, x, rnp.zeros((*lead, order), dtype_of(x)))[0][..., :samples]
    whole = samples // _BLOCK * _BLOCK
    state = _checked_state(zi, x, order)
    parts = []
    if whole:
        y, state = _by_blocks(normal, x[..., :whole], state)
        parts.append(y)
    if whole < samples:
        y, state = _by_samples(normal, x[..., whole:], state)
        parts.append(y)
    return (rnp.concatenate(parts, -1) if parts else x), state


@array_function
def sosfilt(sos: Any, x: Any) -> Any:
    """x through sections [n, 6] of (b0, b1, b2, a0, a1, a2), one after the other; see `butter`."""
    (sos,) = inexact(sos)
    dims = dims_of(sos)
    if len(dims) != 2 or dims[1] != 6:
        raise ShapeError(f"sosfilt: needs sections [n, 6], got {list(dims)}")
    for i in range(static_size(dims[0], "sosfilt")):
        x = lfilter(sos[i, :3], sos[i, 3:], x)
    return x


def _normal(coefficients: list[Any], order: int) -> _Normal:
    """b and a with order + 1 coefficients each, a[0] being 1; in f64 where they are known."""
    known = [k for k in map(known_values, coefficients) if k is not None]
    if len(known) == 2:
        b, a = (np.pad(k.astype(np.float64), (0, order + 1 - len(k))) for k in known)
        if a[0] == 0 or not np.isfinite([*a, *b]).all():
            raise OpError(f"lfilter: a[0] must not be 0 and all coefficients finite, got a={a.tolist()}")
        return _Normal(np, b / a[0], a / a[0], order)
    b, a = (rnp.pad(c, [(0, order + 1 - samples_of(c, "lfilter"))]) for c in coefficients)
    return _Normal(rnp, b / a[0], a / a[0], order)


def _checked_state(zi: Any, x: Any, order: int) -> Any:
    (zi,) = inexact(zi)
    wanted = (*dims_of(x)[:-1], order)
    if tuple(dims_of(zi)) != wanted:
        raise ShapeError(f"lfilter: zi must be {list(wanted)}, one state for each row of x, got {list(dims_of(zi))}")
    return convert(zi, dtype_of(x))


def _by_blocks(normal: _Normal, x: Any, state: Any) -> tuple[Any, Any]:
    """The outputs of whole blocks, the last filled with zeros, and the state after them."""
    lead, samples = dims_of(x)[:-1], samples_of(x, "lfilter")
    with np.errstate(over="ignore", invalid="ignore"):
        block = _BlockFilter(*(rnp.asarray(matrix, real_dtype(x)) for matrix in _block_filter(normal)))
    count = -(-samples // _BLOCK)
    filled = rnp.pad(x, [(0, 0)] * (rank_of(x) - 1) + [(0, count * _BLOCK - samples)])
    alone = filled.reshape(*lead, count, _BLOCK) @ block.samples
    onward = block.states[:, _BLOCK:]
    last, before = scan(lambda s, more: (s @ onward + more, s), state, rnp.moveaxis(alone[..., _BLOCK:], -2, 0))
    y = alone[..., :_BLOCK] + rnp.moveaxis(before, 0, -2) @ block.states[:, :_BLOCK]
    return y.reshape(*lead, count * _BLOCK), last


def _by_samples(normal: _Normal, x: Any, state: Any) -> tuple[Any, Any]:
    """The same, one sample after the other."""
    b, a = (rnp.asarray(c, real_dtype(x)) for c in (normal.b, normal.a))

    def step(z: Any, sample: Any) -> tuple[Any, Any]:
        y = z[..., 0] + b[0] * sample
        shifted = rnp.concatenate([z[..., 1:], rnp.zeros_like(z[..., :1])], -1)
        return shifted + b[1:] * sample[..., None] - a[1:] * y[..., None], y

    last, y = scan(step, state, rnp.moveaxis(x, -1, 0))
    return rnp.moveaxis(y, 0, -1), last
