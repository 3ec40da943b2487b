"""FIR filters: `upfirdn` fills in zeros, filters, and keeps every n-th sample; `fir_filter` is that without the rest.

The filter is applied as a product: a block of neighbouring outputs reads a stretch of inputs, and a matrix with shifted
copies of the taps turns one into the other. Products with zeros are wasted, and still much faster than sums one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.windows import checked_sizes, samples_of
from rlx.errors import ShapeError
from rlx.numpy.arguments import array_function, convert, inexact, known_values, rank_of
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["fir_filter", "upfirdn"]

# Outputs that share a product: enough for wide vectors, few enough that most of the matrix is taps.
_LEAST_BLOCK, _MOST_BLOCK = 32, 256


class _Blocks(NamedTuple):
    """How outputs are grouped. Period q has `outputs` outputs in `blocks` blocks of `width` and begins at input
    q·`inputs`; block b reads `reach` inputs from starts[b] on, and its matrix has taps[indices[b]], 0 for -1."""

    outputs: int
    inputs: int
    width: int
    reach: int
    starts: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]


def _plan(taps: int, up: int, down: int) -> _Blocks:
    per_phase = -(-taps // up)
    wanted = min(max(per_phase, _LEAST_BLOCK), _MOST_BLOCK)
    repeat = max(-(-wanted // up), 1)
    outputs, inputs = up * repeat, down * repeat
    width = min(outputs, wanted)
    blocks = -(-outputs // width)
    place = np.arange(blocks * width).reshape(blocks, width) * down
    last = place // up
    # Positions count from the first input that the first block reads, which lies per_phase - 1 before input 0.
    starts = last[:, 0]
    reach = int((last[:, -1] - starts).max()) + per_phase
    back = last[:, None, :] + per_phase - 1 - (starts[:, None, None] + np.arange(reach)[:, None])
    tap = place[:, None, :] % up + back * up
    indices = np.where((back >= 0) & (tap < taps), tap, -1)
    return _Blocks(outputs, inputs, width, reach, starts.astype(np.int32), indices.astype(np.int32))


@array_function
def upfirdn(h: Any, x: Any, up: int = 1, down: int = 1) -> Any:
    """y[n] = Σ_j h[n·down - j·up] · x[j] along the last axis, as scipy.signal.upfirdn.

    x[.., T] gives ceil(((T - 1)·up + taps) / down) samples.
    """
    checked_sizes("upfirdn", up=up, down=down)
    h, x = inexact(h, x)
    if dtype_of(x).is_complex:
        return _complex_upfirdn(h, x, up, down)
    h, x = (convert(v, dtype_of(v).accumulator) for v in (h, x))
    if rank_of(h) != 1:
        raise ShapeError(f"upfirdn: needs taps [n], got {list(dims_of(h))}")
    taps, samples = samples_of(h, "upfirdn"), samples_of(x, "upfirdn")
    if taps == 0 or samples == 0:
        raise ShapeError(f"upfirdn: needs at least one tap and one sample, got {taps} and {samples}")
    count = -(-((samples - 1) * up + taps) // down)
    plan = _plan(taps, up, down)
    periods = -(-count // plan.outputs)
    before = -(-taps // up) - 1
    needed = (periods - 1) * plan.inputs + int(plan.starts[-1]) + plan.reach
    padded = rnp.pad(x, [(0, 0)] * (rank_of(x) - 1) + [(before, max(needed - before - samples, 0))])
    matrix = rnp.concatenate([h, rnp.zeros_like(h[:1])])[plan.indices]
    rows = ops.iota((periods, 1), "i32", 0) * plan.inputs + ops.iota((1, plan.reach), "i32", 1)
    lead = dims_of(x)[:-1]
    if len(plan.starts) == 1:
        y = ops.gather(padded, rows, axis=-1) @ matrix[0]
    else:
        places = ops.expand_dims(rows, 0) + plan.starts[:, None, None]
        # [.., blocks, periods, reach] times [blocks, reach, width], and periods first again.
        y = rnp.swapaxes(ops.gather(padded, places, axis=-1) @ matrix, -2, -3)
    per_period = y.reshape(*lead, periods, len(plan.starts) * plan.width)[..., : plan.outputs]
    return per_period.reshape(*lead, periods * plan.outputs)[..., :count]


def _complex_upfirdn(h: Any, x: Any, up: int, down: int) -> Any:
    """Real and imaginary parts are filtered beside each other."""
    parts = rnp.stack([rnp.real(x), rnp.imag(x)])
    re, im = (y for y in upfirdn(rnp.real(h), parts, up, down))
    taps = known_values(h)
    if taps is not None and not np.any(np.imag(taps)):
        return ops.complex_(re, im)
    turned_re, turned_im = (y for y in upfirdn(rnp.imag(h), parts, up, down))
    return ops.complex_(re - turned_im, im + turned_re)


@array_function
def fir_filter(h: Any, x: Any) -> Any:
    """y[n] = Σ_i h[i]·x[n - i], as long as x; samples before the first count as 0."""
    return upfirdn(h, x)[..., : samples_of(x, "fir_filter")]
