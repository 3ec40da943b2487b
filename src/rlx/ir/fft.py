"""FFT metadata: scaling conventions, geometry of a transform, launch plan of a device FFT, frequencies.

Real dtypes carry complex data in block layout: the last axis holds all real parts, then all imaginary parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, OpError, ShapeError
from rlx.ir.dims import Dim, product
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import attribute_type
from rlx.ir.shape import Shape, normalize_axis
from rlx.ir.words import Words

# A workgroup of 256 threads transforms a tile of 2^10 points in shared memory.
FFT_INNER_TILE_LOG2 = 10
FFT_INNER_TILE = 1 << FFT_INNER_TILE_LOG2
FFT_WORKGROUP_SIZE = 256


@attribute_type
class FftNorm(Words):
    """Where the 1/n goes. `Backward` leaves both directions unscaled, as cuFFT does: ifft(fft(x)) = n·x."""

    Backward = "backward"
    Forward = "forward"
    Ortho = "ortho"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"none": "backward"}

    def output_scale(self, n: int, inverse: bool) -> float:
        """The factor on the output of a transform of n points.

        >>> FftNorm.Forward.output_scale(8, inverse=True), FftNorm.Forward.output_scale(8, inverse=False)
        (0.125, 1.0)
        """
        if self is FftNorm.Ortho:
            return float(n**-0.5)
        return 1.0 / n if self is FftNorm.Forward and inverse else 1.0

    def tag(self) -> int:
        """The number that stands for this convention in device metadata."""
        return _NORMS.index(self)

    @staticmethod
    def from_tag(tag: int) -> FftNorm:
        if not 0 <= tag < len(_NORMS):
            raise OpError(f"fft: the norm tag must be 0, 1 or 2, got {tag}")
        return _NORMS[tag]


_NORMS = tuple(FftNorm)


class FftMeta(NamedTuple):
    """`outer` transforms of `n_complex` points; `axis_extent` elements of the dtype per transform."""

    outer: int | Dim
    n_complex: int
    axis_extent: int


def fft_meta(shape: Shape) -> FftMeta:
    """Geometry of a transform along the last axis.

    >>> fft_meta(Shape((4, 16), "f32"))
    FftMeta(outer=4, n_complex=8, axis_extent=16)
    """
    if shape.rank == 0:
        raise ShapeError(f"fft: needs at least one axis, got {shape}")
    extent = shape.dims[-1]
    if isinstance(extent, Dim):
        raise ShapeError(f"fft: the transformed axis needs a fixed size, got {shape}; bind {extent} first")
    outer = product(shape.dims[:-1])
    if shape.dtype.is_complex:
        return FftMeta(outer, extent, extent)
    if not shape.dtype.is_float or shape.dtype.is_storage:
        raise DTypeError(f"fft: wanted a float type (real parts, then imaginary parts) or a complex one, got {shape}")
    if extent % 2:
        raise ShapeError(f"fft: the last axis holds real and imaginary parts, so its size must be even, got {shape}")
    return FftMeta(outer, extent // 2, extent)


def next_pow2(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> [next_pow2(n) for n in (0, 1, 2, 3, 17)]
    [1, 1, 2, 4, 32]
    """
    return 1 << max(n - 1, 0).bit_length()


def is_pow2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def bit_reverse(value: int, bits: int) -> int:
    """The low `bits` bits of `value` in opposite order.

    >>> bit_reverse(0b0011, 4) == 0b1100
    True
    """
    reversed_value = 0
    for _ in range(bits):
        reversed_value = reversed_value << 1 | value & 1
        value >>= 1
    return reversed_value


def roots_of_unity(numbers: npt.ArrayLike, points: int, inverse: bool = False) -> npt.NDArray[np.complex128]:
    """e^(∓2πi·k/n) for whole k, - forward and + inverse.

    They are computed in the first eighth of a turn and mirrored: quarters of a turn are exact, and what cancels between
    two roots cancels to 0, however large the numbers that they multiply.

    >>> roots_of_unity([0, 1, 2, 3], 4).tolist() == [1, -1j, -1, 1j]
    True
    """
    eighth, rest = np.divmod(8 * np.mod(np.asarray(numbers, np.int64), points), points)
    # Every other eighth is walked backwards.
    angle = np.where(eighth % 2, points - rest, rest) / points * (np.pi / 4)
    is_between = (eighth % 2 == 1) & (rest == 0)
    longer, shorter = (np.where(is_between, np.sqrt(0.5), f(angle)) for f in (np.cos, np.sin))
    is_steep = np.isin(eighth, (1, 2, 5, 6))
    found = np.empty(eighth.shape, np.complex128)
    found.real = np.where(is_steep, shorter, longer) * np.where(np.isin(eighth, (2, 3, 4, 5)), -1, 1)
    found.imag = np.where(is_steep, longer, shorter) * np.where((eighth < 4) == inverse, 1, -1)
    return found


class FftGpuPlan(NamedTuple):
    """Stages of a power-of-two FFT on a device: a shared-memory tile, then passes over global memory.

    The tile runs the first `inner_stages` radix-2 stages. What is left is done two stages at a time by radix-4 passes
    (a quarter stride each), and a single last stage by a radix-2 pass (`radix2_half_stride`, None when none is left).
    """

    n: int
    log2n: int
    inner_stages: int
    radix4_quarter_strides: tuple[int, ...]
    radix2_half_stride: int | None

    @staticmethod
    def new(n: int) -> FftGpuPlan:
        """
        >>> FftGpuPlan.new(8192)
        FftGpuPlan(n=8192, log2n=13, inner_stages=10, radix4_quarter_strides=(1024,), radix2_half_stride=4096)
        """
        if n < 2 or not is_pow2(n):
            raise OpError(f"fft: a device plan needs a power of two of at least 2, got {n}")
        log2n = n.bit_length() - 1
        inner = min(log2n, FFT_INNER_TILE_LOG2)
        outer = log2n - inner
        quarters = tuple(1 << stage for stage in range(inner, log2n - 1, 2))
        return FftGpuPlan(n, log2n, inner, quarters, n // 2 if outer % 2 else None)

    @property
    def single_inner_only(self) -> bool:
        """True when one tile does the whole transform."""
        return self.log2n == self.inner_stages


def gpu_fft_native_eligible(dtype: DTypeLike, n: int) -> bool:
    """Whether the device kernels take a transform of n points: f32 and a power of two."""
    return DType.of(dtype) is DType.F32 and n >= 2 and is_pow2(n)


def prime_factors(n: int) -> list[int]:
    """Prime factors in ascending order, repeated as often as they divide.

    >>> prime_factors(360), prime_factors(1)
    ([2, 2, 2, 3, 3, 5], [])
    """
    if n < 1:
        raise OpError(f"prime_factors: needs a positive number, got {n}")
    factors = []
    candidate = 2
    while candidate * candidate <= n:
        while n % candidate == 0:
            factors.append(candidate)
            n //= candidate
        candidate += 1
    return [*factors, n] if n > 1 else factors


def fftn_axes_all(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def normalize_fftn_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted, each once.

    >>> normalize_fftn_axes((-1, 0, 2), 3)
    (0, 2)
    """
    return tuple(sorted({normalize_axis(axis, rank, "fftn") for axis in axes}))


def fftfreq(n: int, positive_nyquist: bool = False) -> npt.NDArray[np.float64]:
    """Cycles per sample of each bin of an n-point transform, as `numpy.fft.fftfreq`.

    For even n the middle bin stands for both +1/2 and -1/2. NumPy writes -1/2; `positive_nyquist` writes +1/2.

    >>> fftfreq(4).tolist(), fftfreq(4, positive_nyquist=True).tolist()
    ([0.0, 0.25, -0.5, -0.25], [0.0, 0.25, 0.5, -0.25])
    """
    if n < 1:
        raise OpError(f"fftfreq: needs at least one point, got {n}")
    bins = np.arange(n)
    last_positive = n // 2 if positive_nyquist else (n - 1) // 2
    return np.where(bins <= last_positive, bins, bins - n) / n


def rfftfreq(n: int) -> npt.NDArray[np.float64]:
    """Cycles per sample of the bins of a transform of n real points, as `numpy.fft.rfftfreq`."""
    if n < 1:
        raise OpError(f"rfftfreq: needs at least one point, got {n}")
    return np.arange(n // 2 + 1) / n
