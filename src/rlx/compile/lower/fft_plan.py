"""Fourier transforms planned for kernels: `Fft` as one or two `FftLines`, with all factors as constants.

    plan_transform(op, x, scratch)      # None where the length is not known, or too long: by products then

`scratch` is how many bytes a kernel may keep on its stack, or where it is `shared` the threads of a block of a GPU
together: two places of complex numbers. Lengths with a large prime factor become a convolution, done
by two transforms of a length that has none (Bluestein): the first one is followed and the second one surrounded by
factors, so that nothing else passes over the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.fft import roots_of_unity
from rlx.ir.graph import Graph
from rlx.ir.rewrite.rules import Match, RuleSet, apply_rules, rewrites
from rlx.ir.tensor import Tensor, lift
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.lowered.fourier_lines import (
    FftHalves,
    FftLines,
    FftRealLines,
    FftStep,
    block_points,
    factors_of,
    half_factors,
    passes,
    radices,
)
from rlx.ops.shape.movement import Transpose
from rlx.ops.signal.fourier import Fft
from rlx.ops.signal.real_fourier import Irfft, Rfft

Array = np.ndarray[Any, np.dtype[Any]]

# From this length on the columns of one line fill vectors by themselves.
SHORTEST_IN_TWO_STEPS = 256
# What kernels are planned for: vectors of 64 bytes are the widest, and narrower ones need less scratch.
VECTOR_BYTES = 64
# Lines that need more scratch than this are worth a second thread, or would leave the second-level cache.
MOST_WHOLE = 256 << 10


NEAREST_CACHE = 32 << 10


def plan_transform(op: Fft, x: Any, scratch: int, shared: bool = False) -> Callable[[Any], Any] | None:
    """How kernels transform the last axis of x; None if they do not."""
    dtype, points = x.dtype, x.shape[-1]
    if not isinstance(points, int) or 0 in x.shape:
        return None
    points = points if dtype.is_complex else points // 2
    scale = op.norm.output_scale(points, op.inverse)
    planned = _plan(points, dtype.real.accumulator, scratch, shared, op.inverse, scale)
    if planned is None:
        return None

    def build(x: Any) -> Any:
        if x.dtype.is_complex:
            return _run(planned, x)
        (wide,) = accumulators(x)
        return rounded_tensor(_run(planned, wide), x.dtype)

    return build


def plan_real_transform(op: Rfft | Irfft, x: Any, scratch: int, shared: bool = False) -> Callable[[Any], Any] | None:
    """A transform of real numbers as one of half as many complex ones; None where it is taken apart instead. Blocks do
    all of it at once, of lines that they hold."""
    inverse = isinstance(op, Irfft)
    points = op.points if isinstance(op, Irfft) else x.shape[-1]
    if not isinstance(points, int) or points % 2 or 0 in x.shape or radices(points // 2) is None:
        return None
    scale = op.norm.output_scale(points, inverse)
    if shared:
        if points // 2 > block_points(scratch, x.dtype.real):
            return None
        whole = FftRealLines(points, inverse, scale if inverse else 0.5 * scale)
        return lambda x: whole(x, lift(whole.all_factors.astype(x.dtype.real.numpy), x.graph))
    steps = _steps(points // 2, x.dtype.real, scratch, False, inverse, 1.0)
    if steps is None:
        return None
    halves = FftHalves(points, inverse, scale if inverse else 0.5 * scale)
    lines = _with_factors([_changed(step, real=True) for step in steps])
    assert lines is not None
    joined = ((halves, half_factors(halves)),)
    return lambda x: _run((*joined, *lines) if inverse else (*lines, *joined), x)


Planned = tuple[tuple[FftLines | FftHalves, Array], ...]


def _run(planned: Planned, x: Any) -> Any:
    for step, factors in planned:
        x = step(x, lift(factors.astype(x.dtype.real.numpy), x.graph))
    return x


@cache
def _plan(points: int, dtype: DType, scratch: int, shared: bool, inverse: bool, scale: float) -> Planned | None:
    if radices(points) is not None:
        return _with_factors(_steps(points, dtype, scratch, shared, inverse, scale))
    return _by_convolution(points, dtype, scratch, shared, inverse, scale)


def _block_steps(points: int, dtype: DType, scratch: int, inverse: bool, scale: float) -> list[FftLines] | None:
    """A transform by blocks: as one op, or as two of about the same length, each of which must fit."""
    most = block_points(scratch, dtype)
    if points <= most:
        return [FftLines(points, inverse=inverse, scale=scale)]
    fitting = [f for f in range(2, most + 1) if points % f == 0 and points // f <= most]
    if not fitting:
        return None
    whole = FftLines(points, min(fitting, key=lambda f: max(f, points // f)), inverse=inverse, scale=scale)
    return [_changed(whole, step=FftStep.Columns, scale=1.0), _changed(whole, step=FftStep.Rows)]


def _steps(points: int, dtype: DType, scratch: int, shared: bool, inverse: bool, scale: float) -> list[FftLines] | None:
    """A transform of a length with small factors as one op, or as two where it would not fit into the scratch."""
    if shared:
        return _block_steps(points, dtype, scratch, inverse, scale)
    if points < SHORTEST_IN_TWO_STEPS:
        return [FftLines(points, inverse=inverse, scale=scale)]
    first = _first_factor(points, dtype, scratch)
    if first is None:
        return [FftLines(points, inverse=inverse, scale=scale)] if _line_bytes(points) <= scratch else None
    whole = FftLines(points, first, inverse=inverse, scale=scale)
    if _whole_bytes(whole, dtype) <= min(scratch, MOST_WHOLE):
        return [whole]
    return [_changed(whole, step=FftStep.Columns, scale=1.0), _changed(whole, step=FftStep.Rows)]


def _changed(made: FftLines, **attributes: Any) -> FftLines:
    changed = made.replace(**attributes)
    assert isinstance(changed, FftLines)
    return changed


def _line_bytes(points: int) -> int:
    """Scratch of lanes full of lines."""
    return 4 * VECTOR_BYTES * points


def _whole_bytes(whole: FftLines, dtype: DType) -> int:
    lanes = VECTOR_BYTES // dtype.size_bytes
    height, width = (-(-n // lanes) * lanes for n in (whole.first, whole.second))
    return (
        2 * dtype.size_bytes * height * width + _line_bytes(max(whole.first, whole.second)) + 2 * VECTOR_BYTES * height
    )


def _first_factor(points: int, dtype: DType, scratch: int) -> int | None:
    """n1 of the cheapest n1·n2; None where one of them would leave most lanes empty, or not fit into the scratch."""
    lanes = VECTOR_BYTES // dtype.size_bytes

    def cost(first: int) -> int:
        second = points // first
        return -(-second // lanes) * _work(first) + -(-first // lanes) * _work(second)

    least = max(lanes // 2, -(-points * 4 * VECTOR_BYTES // scratch))
    fitting = [f for f in range(least, points // least + 1) if points % f == 0]
    return min(fitting, key=cost) if fitting else None


@cache
def _work(points: int) -> int:
    """What the passes of a line cost, in vectors that are loaded, stored or multiplied; twice as much where they do not
    stay in the nearest cache."""
    each = 1 if _line_bytes(points) <= NEAREST_CACHE else 2
    return sum(each * points * (4 + (radix if radix % 2 else 4)) for radix, _, _ in passes(points))


def _with_factors(steps: list[FftLines] | None) -> Planned | None:
    return None if steps is None else tuple((step, factors_of(step)) for step in steps)


def _by_convolution(
    points: int, dtype: DType, scratch: int, shared: bool, inverse: bool, scale: float
) -> Planned | None:
    """W^(mk) = c[m]·c[k]·c̄[k - m] with c[m] = W^(m²/2), so the sum over m is a convolution with c̄."""
    size = _smooth_size(2 * points - 1)
    forward, back = (_steps(size, dtype, scratch, shared, back, 1.0) for back in (False, True))
    if forward is None or back is None or (forward[0].first == 1 and not shared):
        return None
    index = np.arange(points, dtype=np.int64)
    chirp = roots_of_unity(index * index, 2 * points, inverse)
    kernel = np.zeros(size, np.complex128)
    kernel[:points] = chirp.conj()
    kernel[size - points + 1 :] = chirp[:0:-1].conj()
    forward[0] = _changed(forward[0], before=points)
    forward[-1] = _changed(forward[-1], behind=True)
    back[-1] = _changed(back[-1], kept=points, behind=True)
    found = [(step, factors_of(step, chirp if step.before else (), ())) for step in forward[:-1]]
    found.append((forward[-1], factors_of(forward[-1], chirp if forward[-1].before else (), np.fft.fft(kernel))))
    found += [(step, factors_of(step)) for step in back[:-1]]
    return (*found, (back[-1], factors_of(back[-1], (), chirp * (scale / size))))


def _smooth_size(least: int) -> int:
    """The smallest 256·2^a·3^b·5^c that is as large."""
    powers = range(least.bit_length())
    sizes = [256 * 3**b * 5**c << a for a in powers for b in range(3) for c in range(3)]
    return min(n for n in sizes if n >= least)


def transforms_along_axes(graph: Graph, scratch: int, shared: bool = False) -> Graph:
    """The graph with transforms of other axes than the last one in one op, instead of between two transpositions."""

    @rewrites(Transpose, exact=False)
    def transform_in_place(m: Match) -> Tensor | None:
        """transpose(fft(transpose(x))) -> fft_lines(x) along another axis"""
        transform = m.producer(0)
        if not isinstance(transform.op, Fft) or not m.is_only_use(transform):
            return None
        turned = m.input_of(transform, 0)
        axis = _exchanged_with_last(m.op)
        if not isinstance(turned.op, Transpose) or turned.op.perm != m.op.perm or axis is None:
            return None
        x = m.value(turned.inputs[0])
        points = x.shape[axis]
        if not x.dtype.is_complex or not isinstance(points, int) or 0 in x.shape or radices(points) is None:
            return None
        if points > block_points(scratch, x.dtype.real) if shared else _line_bytes(points) > scratch:
            return None
        op = transform.op
        made = FftLines(points, axis=axis, inverse=op.inverse, scale=op.norm.output_scale(points, op.inverse))
        result: Tensor = _run(((made, factors_of(made)),), x)
        return result

    return apply_rules(graph, RuleSet("transforms_along_axes", [transform_in_place]), "transforms_along_axes").graph


def _exchanged_with_last(op: Transpose) -> int | None:
    """The axis, from the end, that changes places with the last one while all others stay; None for other orders."""
    perm, rank = op.perm, len(op.perm)
    moved = [axis for axis, source in enumerate(perm) if axis != source]
    return moved[0] - rank if len(moved) == 2 and moved[1] == rank - 1 else None
