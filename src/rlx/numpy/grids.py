"""Coordinate grids, diagonals, triangles and windows."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.shape import Size
from rlx.numpy.arguments import array_function, convert, dims_from, inexact, promoted, rank_of, value
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.ops.pointwise.special_functions import horner

__all__ = [
    "bartlett",
    "blackman",
    "diag",
    "diagflat",
    "hamming",
    "hanning",
    "i0",
    "indices",
    "kaiser",
    "meshgrid",
    "mgrid",
    "ogrid",
    "tri",
    "tril",
    "triu",
    "vander",
]


@array_function
def tri(N: Size, M: Size | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Any:
    """1 on and below diagonal k, 0 above."""
    return ops.tri(N, M, k, float if dtype is None else dtype)


@array_function
def tril(x: Any, /, k: int = 0) -> Any:
    """x with zeros above diagonal k of its last two axes."""
    return ops.tril(_matrix(x), k)


@array_function
def triu(x: Any, /, k: int = 0) -> Any:
    """x with zeros below diagonal k of its last two axes."""
    return ops.triu(_matrix(x), k)


def _matrix(x: Any) -> Any:
    """A vector stands for as many equal rows, as in NumPy."""
    x = value(x)
    return ops.broadcast_to(x, (*dims_of(x), *dims_of(x))) if rank_of(x) == 1 else x


@array_function
def diag(v: Any, k: int = 0) -> Any:
    """A matrix with the vector v on diagonal k, or diagonal k of a matrix."""
    v = value(v)
    if rank_of(v) == 2:
        return ops.diagonal(v, k)
    if rank_of(v) != 1:
        raise ShapeError(f"diag: needs a vector or a matrix, got shape {dims_of(v)}; use diagonal")
    size = dims_of(v)[0] + math.floor(math.fabs(k))
    # Row i of the result has element i of the vector (moved down for k < 0) where the column is i + k.
    column = ops.expand_dims(ops.pad(v, 0, low=[max(-k, 0)], high=[max(k, 0)]), -1)
    on_diagonal = ops.eye(size, size, k, DType.BOOL)
    return ops.where(on_diagonal, column, ops.zeros((), dtype_of(v)))


@array_function
def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with the flattened v on diagonal k."""
    return diag(ops.flatten(value(v)), k)


@array_function
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers of a vector as columns, from N-1 down to 0."""
    x = value(x)
    count = dims_of(x)[0] if N is None else N
    powers = ops.iota((count,), dtype=DType.I32)
    powers = powers if increasing else ops.reverse(powers, 0)
    wide = x if not dtype_of(x).is_int else convert(x, DType.I64 if dtype_of(x) is DType.I64 else DType.I32)
    return ops.pow_(ops.expand_dims(wide, -1), convert(powers, dtype_of(wide)))


@array_function
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Any]:
    """Coordinate arrays from vectors: every combination of their elements, one result per vector.

    With indexing "xy" the first vector runs along axis 1 and the second along axis 0; with "ij" vector i along axis i.
    """
    if indexing not in ("xy", "ij"):
        raise OpError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [ops.flatten(value(x)) for x in arrays]
    rank = len(vectors)
    places = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else list(range(rank))
    open_grid = [
        ops.reshape(v, tuple(dims_of(v)[0] if axis == place else 1 for axis in range(rank)))
        for v, place in zip(vectors, places)
    ]
    if sparse:
        return open_grid
    sizes = {place: dims_of(v)[0] for v, place in zip(vectors, places)}
    return [ops.broadcast_to(v, tuple(sizes[axis] for axis in range(rank))) for v in open_grid]


@array_function
def indices(dimensions: Any, dtype: DTypeLike = DType.I32, sparse: bool = False) -> Any:
    """The coordinates of every element of a shape: one array per axis, stacked unless `sparse`."""
    dims = dims_from(dimensions)
    if not sparse:
        return ops.stack([ops.iota(dims, dtype=dtype, axis=axis) for axis in range(len(dims))])
    return tuple(
        ops.iota(tuple(d if i == axis else 1 for i, d in enumerate(dims)), dtype=dtype, axis=axis)
        for axis in range(len(dims))
    )


class _Grid:
    """`mgrid[0:3, 0:1:5j]`: ranges as slices; a step of nj means n points with the end included."""

    def __init__(self, sparse: bool) -> None:
        self._sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        several = isinstance(key, tuple)
        lines = promoted(*(_range(part) for part in (key if several else (key,))))
        if not several:
            return lines[0]
        grid = meshgrid(*lines, indexing="ij", sparse=self._sparse)
        return tuple(grid) if self._sparse else ops.stack(grid)


def _range(part: slice) -> Any:
    if not isinstance(part, slice):
        raise OpError(f"mgrid and ogrid are indexed with slices, such as mgrid[0:3, 0:1:5j]; got {part!r}")
    from rlx.numpy.creation import arange, linspace

    start = 0 if part.start is None else part.start
    if isinstance(part.step, complex):
        return linspace(start, part.stop, int(abs(part.step)))
    return arange(start, part.stop, 1 if part.step is None else part.step)


mgrid, ogrid = _Grid(sparse=False), _Grid(sparse=True)


def _cosine_window(M: int, *weights: float) -> Any:
    """Σ weights[j]·cos(2πj·n/(M-1)) for n = 0 .. M-1."""
    if M < 1:
        return ops.zeros((0,))
    if M == 1:
        return ops.ones((1,))
    angle = ops.iota((M,), dtype=float) * (2 * math.pi / (M - 1))
    total: Any = 0
    for j, weight in enumerate(weights):
        total = ops.add(total, ops.mul(weight, ops.cos(angle * j)) if j else weight)
    return total


def hanning(M: int) -> Any:
    """The Hann window, 0.5 - 0.5·cos."""
    return _cosine_window(M, 0.5, -0.5)


def hamming(M: int) -> Any:
    """The Hamming window, 0.54 - 0.46·cos."""
    return _cosine_window(M, 0.54, -0.46)


def blackman(M: int) -> Any:
    """The Blackman window, 0.42 - 0.5·cos + 0.08·cos of the double angle."""
    return _cosine_window(M, 0.42, -0.5, 0.08)


def bartlett(M: int) -> Any:
    """The triangular window with zeros at the ends."""
    if M <= 1:
        return ops.ones((max(M, 0),))
    half = (M - 1) / 2
    return 1 - ops.abs_(ops.iota((M,), dtype=float) - half) / half


def kaiser(M: int, beta: float) -> Any:
    """The Kaiser window: I0(β√(1 - (2n/(M-1) - 1)²)) / I0(β)."""
    if M <= 1:
        return ops.ones((max(M, 0),))
    half = (M - 1) / 2
    place = (ops.iota((M,), dtype=float) - half) / half
    return i0(beta * ops.sqrt(ops.maximum(1 - place * place, 0))) / i0(value(float(beta)))


@array_function
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0."""
    (x,) = inexact(x)
    size = ops.abs_(x)
    return ops.exp(size) * scaled_bessel(size, 0)


# Up to here the power series is summed, from here on the asymptotic one, which then is good to 17 digits. Numbers are
# divided by a power of two before the first, which rounds nothing: that series multiplies a rounding by ten.
_BESSEL_LIMIT, _BESSEL_UNIT = 20.0, 16.0


def scaled_bessel(x: Any, order: int) -> Any:
    """e^-x·I(x) of order 0 or 1 for x >= 0, both series as polynomials of as many terms as the type has digits for."""
    least = 2.0**-56 if dtype_of(x) is DType.F64 else 2.0**-28
    near, far = ops.minimum(x, _BESSEL_LIMIT), ops.maximum(x, _BESSEL_LIMIT)
    # Σ (x/2)^(2k) / (k!·(k + order)!), whose terms are all positive, times (x/2)^order.
    powers, falling = [1.0], [1.0]
    for k in range(1, 50):
        powers.append(powers[-1] * (_BESSEL_UNIT / 2) ** 2 / (k * (k + order)))
    largest = [c * (_BESSEL_LIMIT / _BESSEL_UNIT) ** (2 * k) for k, c in enumerate(powers)]
    kept = [c for c, most in zip(powers, largest) if most > least * sum(largest)]
    series = horner(kept[::-1], ops.square(near * (1 / _BESSEL_UNIT)))
    inside = ops.exp(-near) * series * (0.5 * near if order else 1.0)
    # 1/√(2πx)·Σ (-1)^k·(4·order² - 1)(4·order² - 9).. / (k!·(8x)^k)
    for k in range(1, 28):
        falling.append(falling[-1] * ((2 * k - 1) ** 2 - 4.0 * order) / (8 * k * _BESSEL_LIMIT))
    outside = horner([c for c in reversed(falling) if abs(c) > least], _BESSEL_LIMIT / far)
    return ops.where(ops.lt(x, _BESSEL_LIMIT), inside, outside / ops.sqrt(2 * math.pi * far))
