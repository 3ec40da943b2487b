"""Fourier transforms as products with small matrices.

A transform of n = n1·n2 points is n2 transforms of n1 points, a factor for each value, and n1 transforms of n2 points,
with the axes exchanged in between. A short transform is a product with its matrix, which is what processors do best:
[re | im] times [[cos, -sin], [sin, cos]]. Lengths with a large prime factor become a convolution, and that is done by
transforms of a power of two (Bluestein). All factors are computed in f64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir.dims import Dim, dim_max
from rlx.ir.dtype import DType
from rlx.ir.fft import FftNorm, roots_of_unity
from rlx.ir.op import Op
from rlx.ir.shape import Size
from rlx.ops.define.operands import same_graph
from rlx.ops.define.widening import accumulators, rounded_tensor
from rlx.ops.linalg.contraction import matmul
from rlx.ops.pointwise.arithmetic import rem
from rlx.ops.pointwise.complex_numbers import Imag, MakeComplex, Real
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import cos, sin
from rlx.ops.shape.creation import dim_value, iota
from rlx.ops.shape.movement import concat, expand_dims, narrow, pad_zeros, reshape, transpose
from rlx.ops.signal.fourier import Fft

Array = np.ndarray[Any, np.dtype[Any]]

# Transforms up to this length are one product; longer primes up to the second are, too.
SHORT, LONGEST = 64, 256


def fft_form(op: Op, *operands: Any) -> Callable[[Any], Any]:
    """`Fft` by products, for targets without kernels for it; a transform of nothing is nothing."""
    assert isinstance(op, Fft)
    if 0 in operands[0].shape:
        return lambda x: x

    def build(x: Any) -> Any:
        if x.dtype.is_complex:
            return _join(_scaled(op, concat([Real()(x), Imag()(x)], -1)))
        (wide,) = accumulators(x)
        return rounded_tensor(_scaled(op, wide), x.dtype)

    return build


def _join(blocks: Any) -> Any:
    points = blocks.shape[-1] // 2
    return MakeComplex()(narrow(blocks, -1, 0, points), narrow(blocks, -1, points, points))


def _scaled(op: Fft, x: Any) -> Any:
    """The transform of x [.., 2n], real parts first."""
    points: Size = x.shape[-1] // 2
    if isinstance(points, Dim):
        return _by_computed_matrix(op, x, points)
    scale = op.norm.output_scale(points, op.inverse)
    rows = reshape(x, (-1, 2 * points)) if all(isinstance(d, int) for d in x.shape) else x
    if rows.ndim == 1:
        rows = expand_dims(rows, 0)
    done = _transform(rows, points, op.inverse, scale)
    return reshape(done, x.shape)


def _transform(x: Any, points: int, inverse: bool, scale: float) -> Any:
    """The last axis of x [.., 2·points] transformed and multiplied by `scale`."""
    left = _left_factor(points)
    if left == points:
        if points > LONGEST:
            return _by_convolution(x, points, inverse, scale)
        return matmul(x, _constant(x, _matrix(points, inverse, scale)))
    return _in_two_steps(x, left, points // left, inverse, scale)


def _left_factor(points: int) -> int:
    """The factor to split off: the largest up to `SHORT`, near the root for small ones; `points` if there is none."""
    if points <= SHORT:
        return points
    factors = [f for f in range(2, SHORT + 1) if points % f == 0]
    if not factors:
        # Composite numbers without a small factor are split at their smallest one.
        return next((f for f in range(SHORT, math.isqrt(points) + 1) if points % f == 0), points)
    root = math.isqrt(points)
    return min(factors, key=lambda f: abs(f - root)) if points <= SHORT**2 else factors[-1]


def _in_two_steps(x: Any, first: int, second: int, inverse: bool, scale: float) -> Any:
    """X[k1 + n1·k2] = Σ over m2 of W_n2^(m2·k2) · (W_n^(m2·k1) · Σ over m1 of W_n1^(m1·k1) · x[m1·n2 + m2])."""
    lead = x.shape[:-1]
    axes = tuple(range(len(lead)))
    at = len(lead)
    # [.., part, m1, m2] to [.., m2, (part, m1)], part being real or imaginary.
    apart = reshape(x, (*lead, 2, first, second))
    columns = reshape(transpose(apart, (*axes, at + 2, at, at + 1)), (*lead, second, 2 * first))
    inner = reshape(_transform(columns, first, inverse, 1.0), (*lead, second, 2, first))
    turned = _turned(inner, _twiddles(second, first, inverse))
    # [.., m2, part, k1] to [.., k1, (part, m2)].
    rows = reshape(transpose(turned, (*axes, at + 2, at + 1, at)), (*lead, first, 2 * second))
    outer = reshape(_transform(rows, second, inverse, scale), (*lead, first, 2, second))
    return reshape(transpose(outer, (*axes, at + 1, at + 2, at)), x.shape)


def _turned(x: Any, factors: Array) -> Any:
    """x [.., m, 2, k] times complex factors [m, k]."""
    re, im = narrow(x, -2, 0, 1), narrow(x, -2, 1, 1)
    c, s = (_constant(x, part[:, None, :]) for part in (factors.real, factors.imag))
    return concat([re * c - im * s, re * s + im * c], -2)


def _by_convolution(x: Any, points: int, inverse: bool, scale: float) -> Any:
    """Bluestein: W^(mk) = c[m]·c[k]·c̄[k - m] with c[m] = W^(m²/2), so the sum over m is a convolution with c̄."""
    size = 1 << (2 * points - 1).bit_length()
    index = np.arange(points, dtype=np.int64)
    chirp = roots_of_unity(index * index, 2 * points, inverse)
    kernel = np.zeros(size, np.complex128)
    kernel[:points] = chirp.conj()
    kernel[size - points + 1 :] = chirp[:0:-1].conj()
    lead = x.shape[:-1]
    z = _turned(reshape(x, (*lead, 1, 2, points)), chirp[None])
    filled = pad_zeros(z, (0,) * z.ndim, (*(0,) * (z.ndim - 1), size - points))
    spectrum = _transform(reshape(filled, (*lead, 2 * size)), size, False, 1.0)
    product = _turned(reshape(spectrum, (*lead, 1, 2, size)), np.fft.fft(kernel)[None])
    back = _transform(reshape(product, (*lead, 2 * size)), size, True, 1.0 / size)
    kept = narrow(reshape(back, (*lead, 1, 2, size)), -1, 0, points)
    return reshape(_turned(kept, scale * chirp[None]), x.shape)


def _matrix(points: int, inverse: bool, scale: float) -> Array:
    index = np.arange(points, dtype=np.int64)
    roots = scale * roots_of_unity(index[:, None] * index, points, inverse)
    return np.block([[roots.real, roots.imag], [-roots.imag, roots.real]])


def _twiddles(rows: int, columns: int, inverse: bool) -> Array:
    return roots_of_unity(np.arange(rows)[:, None] * np.arange(columns), rows * columns, inverse)


def _constant(near: Any, values: Array) -> Any:
    from rlx.ir.tensor import lift

    return lift(values.astype(near.dtype.numpy), near.graph)


def _by_computed_matrix(op: Fft, x: Any, points: Dim) -> Any:
    """For a length that only a run knows: the matrix is computed from positions, in f64, and then multiplied."""
    with same_graph(x):
        row, column = (iota((points, points), DType.I64, axis) for axis in (0, 1))
        count = dim_value(dim_max(points, 1), DType.I64)
        angle = cast(rem(row * column, count), DType.F64) * (2 * math.pi / cast(count, DType.F64))
        scale = 1.0 / cast(count, DType.F64)
        if op.norm is FftNorm.Ortho:
            scale = scale**0.5
        elif op.norm is FftNorm.Backward or not op.inverse:
            scale = scale * 0.0 + 1.0
        c, s = cos(angle) * scale, sin(angle) * (scale * (-1.0 if op.inverse else 1.0))
        matrix = cast(concat([concat([c, -s], 1), concat([s, c], 1)], 0), x.dtype)
    rows = expand_dims(x, 0) if x.ndim == 1 else x
    return reshape(matmul(rows, matrix), x.shape)
