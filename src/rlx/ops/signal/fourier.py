"""Fourier transforms: the ops `Fft` and `FftButterflyStage`, and the functions that are built from them.

Complex dtypes are transformed as they are. Real dtypes carry complex data in block layout: the transformed axis holds
all real parts, then all imaginary parts, so that it is twice as long as the transform.

Functions of real signals (`fft_real`, `rfft`, `irfft`, `stft`, `psd_real`) pad to the next power of two by default,
as the seed documents define them; `pad=False` transforms exactly the given length, as NumPy does. All of them take
leading axes. `norm` is "backward" (no factor in either direction), "forward" (1/n on the inverse) or "ortho" (1/√n on
both).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, dim_max, require_equal
from rlx.ir.dtype import DType
from rlx.ir.fft import FftNorm, fftfreq, fftn_axes_all, is_pow2, next_pow2, normalize_fftn_axes, rfftfreq
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor, target_graph
from rlx.ops.define.operands import (
    convert,
    dims_of,
    dtype_of,
    promote_inexact,
    require_float,
    require_inexact,
    require_same_dtype,
    same_graph,
)
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import add, div, ge, mul, ne, sub, where
from rlx.ops.pointwise.complex_numbers import Imag, MakeComplex, Real
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import dim_value
from rlx.ops.shape.movement import concat, moveaxis, narrow, reshape, split, swapaxes
from rlx.ops.shape.movement import pad as pad_around

__all__ = [
    "Fft",
    "FftButterflyStage",
    "fft",
    "fft_axis",
    "fft_batch_real",
    "fft_butterfly_stage",
    "fft_conv1d",
    "fft_norm",
    "fft_real",
    "fftfreq_tensor",
    "fftn",
    "ifft_spectrum",
    "ifftn",
    "irfft",
    "pad_last_axis_to_pow2",
    "psd",
    "psd_real",
    "rfft",
    "rfftfreq_tensor",
    "split_spectrum",
    "stft",
]

Array = np.ndarray[Any, np.dtype[Any]]


@op("fft")
class Fft(Op):
    """X[k] = scale · Σ_n x[n] · exp(∓2πi·n·k / N) along the last axis, - forward and + inverse, for any N.

    `norm` gives the scale, see `FftNorm`: with Backward a transform and its inverse multiply by N. Real dtypes are
    read and written in block layout, N being half the size of the axis. The adjoint is the transform in the opposite
    direction with the same scale.
    """

    primitive = True
    linear_in = (0,)

    inverse: bool = False
    norm: FftNorm = FftNorm.Backward

    def infer(self, x: Shape) -> Shape:
        require_inexact(self, x)
        if x.rank == 0:
            raise self.fail(f"needs an axis to transform, got {x}")
        if not x.dtype.is_complex and not require_equal(x.dims[-1] % 2, 0, self.mnemonic):
            raise self.fail(f"the last axis holds real parts and then imaginary parts, so its size is even; got {x}")
        return x

    def eval(self, x: Array) -> Array:
        if x.size == 0:
            return x.copy()
        z = x.astype(np.complex128) if x.dtype.kind == "c" else _from_blocks(x.astype(np.float64))
        n = z.shape[-1]
        spectrum = np.fft.ifft(z) * n if self.inverse else np.fft.fft(z)
        spectrum = spectrum * self.norm.output_scale(n, self.inverse)
        with np.errstate(over="ignore"):
            return (spectrum if x.dtype.kind == "c" else _to_blocks(spectrum)).astype(x.dtype)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        if self.norm is FftNorm.Ortho:
            return Fft(not self.inverse, self.norm)(ct)
        turned = Fft(not self.inverse)(ct)
        if self.norm is FftNorm.Backward or not self.inverse:
            return turned
        points = ct.shape[-1] if ct.dtype.is_complex else ct.shape[-1] // 2
        with same_graph(ct):
            return turned * convert(1.0 / dim_value(dim_max(points, 1), DType.F64), ct.dtype)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        return self(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for norm in FftNorm:
            for inverse in (False, True):
                yield sample(cls(inverse, norm), spec(2, 8), dtypes=("f16", "bf16", "f32", "f64"))
                yield sample(cls(inverse, norm), spec(2, 4), dtypes=COMPLEX)
        for n in (1, 3, 5, 7):
            yield sample(cls(), spec(2 * n))
            yield sample(cls(True), spec(n), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 3, 6))
        yield sample(cls(), spec(0, 6))
        yield sample(cls(), spec(3, 0))
        yield sample(cls(), spec("B", "2*N"), B=2, N=3)


def _from_blocks(x: Array) -> Array:
    n = x.shape[-1] // 2
    return _of_parts(x[..., :n], x[..., n:])


def _to_blocks(z: Array) -> Array:
    return np.concatenate([z.real, z.imag], axis=-1)


@op("fft_butterfly_stage")
class FftButterflyStage(Op):
    """One radix-2 stage with gated, reversible butterflies: state[.., n_fft, 2] (re, im), four operands of n_fft/2.

    Butterfly b joins i0 = (b // σ)·2σ + b % σ and i1 = i0 + σ, σ = 2^stage: with t = x[i1]·(tw_re + i·tw_im) it writes
    x[i0] + t to i0 and x[i0] - t to i1, exchanged where rev[b] ≥ 0.5. Where gate[b] is 0 both are copied. gate and
    rev are switches: they have no derivative.
    """

    derivative_is_defined = True

    stage: int
    n_fft: int

    def check(self) -> None:
        if not is_pow2(self.n_fft) or self.n_fft < 2:
            raise self.fail(f"n_fft must be a power of two of at least 2, got {self.n_fft}")
        if not 0 <= self.stage < self.n_fft.bit_length() - 1:
            raise self.fail(f"a transform of {self.n_fft} points has no stage {self.stage}")

    def infer(self, state: Shape, gate: Shape, rev: Shape, tw_re: Shape, tw_im: Shape) -> Shape:
        require_float(self, state, gate, rev, tw_re, tw_im)
        require_same_dtype(self, state, gate, rev, tw_re, tw_im)
        if state.rank < 2 or state.dims[-2:] != (self.n_fft, 2):
            raise self.fail(f"needs a state [.., {self.n_fft}, 2], got {state}")
        for operand in (gate, rev, tw_re, tw_im):
            if operand.dims != (self.n_fft // 2,):
                raise self.fail(f"needs one value per butterfly, [{self.n_fft // 2}], got {operand}")
        return state

    def eval(self, state: Array, gate: Array, rev: Array, tw_re: Array, tw_im: Array) -> Array:
        wide = state.astype(np.float64)
        x = _of_parts(wide[..., 0], wide[..., 1])
        b, sigma = np.arange(self.n_fft // 2), 2**self.stage
        i0 = b // sigma * 2 * sigma + b % sigma
        i1 = i0 + sigma
        turned = x[..., i1] * _of_parts(tw_re.astype(np.float64), tw_im.astype(np.float64))
        top, bottom = x[..., i0] + turned, x[..., i0] - turned
        swapped = rev.astype(np.float64) >= 0.5
        y = x.copy()
        y[..., i0] = np.where(gate != 0, np.where(swapped, bottom, top), x[..., i0])
        y[..., i1] = np.where(gate != 0, np.where(swapped, top, bottom), x[..., i1])
        return np.stack([y.real, y.imag], axis=-1).astype(state.dtype)

    def decompose(self, state: Any, gate: Any, rev: Any, tw_re: Any, tw_im: Any) -> Any:
        sigma, wide = 2**self.stage, state.dtype.accumulator
        leading = state.shape[:-2]
        # Butterfly b is row b // σ, column b % σ; its two points are the middle axis.
        halves = reshape(convert(state, wide), (*leading, self.n_fft // (2 * sigma), 2, sigma, 2))
        per_butterfly = [reshape(convert(v, wide), (-1, 1, sigma, 1)) for v in (gate, rev, tw_re, tw_im)]
        gate, rev, tw_re, tw_im = per_butterfly
        x0, x1 = split(halves, 2, axis=-3)
        re, im = split(x1, 2, axis=-1)
        turned = concat([re * tw_re - im * tw_im, re * tw_im + im * tw_re], axis=-1)
        top, bottom, swapped, active = x0 + turned, x0 - turned, ge(rev, 0.5), ne(gate, 0.0)
        first = where(active, where(swapped, bottom, top), x0)
        second = where(active, where(swapped, top, bottom), x1)
        return convert(reshape(concat([first, second], axis=-3), state.shape), state.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        h = 4
        gate = spec(h, values=[1, 0, 1, 1])
        rev = spec(h, values=[0, 0, 1, 0.5])
        for stage in range(3):
            yield sample(cls(stage, 8), spec(2, 8, 2), gate, rev, spec(h), spec(h))
        yield sample(cls(0, 2), spec(1, 2, 2), spec(1, values=1), spec(1, values=0), spec(1), spec(1))
        yield sample(cls(1, 8), spec("B", 8, 2), gate, rev, spec(h), spec(h), B=3)


def _of_parts(re: Array, im: Array) -> Array:
    """Complex numbers; re + 1j * im would turn an infinite part into NaN."""
    z = np.empty(re.shape, np.complex128)
    z.real, z.imag = re, im
    return z


def _last_size(x: Any, function: str) -> int:
    dims = dims_of(x)
    if not dims:
        raise ShapeError(f"{function}: needs an axis to transform, got a scalar")
    if isinstance(dims[-1], Dim):
        raise ShapeError(f"{function}: the transformed axis needs a fixed size, got {dims[-1]}; bind it first")
    return dims[-1]


def _narrow_last(x: Any, start: Size, length: Size) -> Any:
    return narrow(x, -1, start, length)


def _pad_last(x: Any, size: int) -> Any:
    """`x` with zeros after the last axis up to `size`."""
    missing = size - _last_size(x, "pad")
    rank = len(dims_of(x))
    return x if missing == 0 else pad_around(x, 0, high=(*(0,) * (rank - 1), missing))


def _real_operands(function: str, *xs: Any) -> tuple[Any, ...]:
    xs = promote_inexact(*xs)
    if dtype_of(xs[0]).is_complex:
        raise OpError(f"{function}: needs real operands, got {dtype_of(xs[0])}; use fft for complex ones")
    return xs


def fft(x: Any, inverse: bool = False) -> Any:
    """The transform along the last axis without scaling; see `Fft`."""
    return fft_norm(x, inverse, FftNorm.Backward)


def fft_norm(x: Any, inverse: bool = False, norm: FftNorm | str = FftNorm.Backward) -> Any:
    """The transform along the last axis; see `Fft`.

    >>> np.abs(fft_norm(np.array([1, 1j, -1, -1j]), norm="ortho")).tolist()
    [0.0, 2.0, 0.0, 0.0]
    """
    (x,) = promote_inexact(x)
    return Fft(inverse, FftNorm(norm))(x)


def fft_axis(x: Any, axis: int, inverse: bool = False, norm: FftNorm | str = FftNorm.Backward) -> Any:
    """The transform along any axis."""
    rank = len(dims_of(x))
    axis = normalize_axis(axis, rank, "fft_axis")
    if axis == rank - 1:
        return fft_norm(x, inverse, norm)
    return swapaxes(fft_norm(swapaxes(x, axis, -1), inverse, norm), axis, -1)


def fftn(
    x: Any, axes: Sequence[int] | None = None, inverse: bool = False, norm: FftNorm | str = FftNorm.Backward
) -> Any:
    """The transform along several axes (all of them by default), one after the other."""
    rank = len(dims_of(x))
    chosen = fftn_axes_all(rank) if axes is None else normalize_fftn_axes(axes, rank)
    if len(chosen) > 1 and not dtype_of(x).is_complex:
        raise OpError(
            f"fftn: block layout has one complex axis, so {len(chosen)} axes need a complex operand; "
            f"got {dtype_of(x)}, cast it to c64 first"
        )
    for axis in chosen:
        x = fft_axis(x, axis, inverse, norm)
    return x


def ifftn(x: Any, axes: Sequence[int] | None = None, norm: FftNorm | str = FftNorm.Backward) -> Any:
    """The inverse of `fftn`, up to the scaling that `norm` says."""
    return fftn(x, axes, True, norm)


def pad_last_axis_to_pow2(x: Any) -> Any:
    """`x` with zeros appended until the size of its last axis is a power of two."""
    return _pad_last(x, next_pow2(_last_size(x, "pad_last_axis_to_pow2")))


def split_spectrum(spectrum: Any) -> tuple[Any, Any]:
    """Real and imaginary parts of a spectrum in block layout."""
    extent = _last_size(spectrum, "split_spectrum")
    if extent % 2:
        raise ShapeError(f"split_spectrum: block layout has an even last axis, got {extent}")
    return _narrow_last(spectrum, 0, extent // 2), _narrow_last(spectrum, extent // 2, extent // 2)


def fft_real(x: Any, norm: FftNorm | str = FftNorm.Backward, pad: bool = True) -> tuple[Any, Any]:
    """Real and imaginary parts of the whole spectrum of a real signal."""
    (x,) = _real_operands("fft_real", x)
    padded = pad_last_axis_to_pow2(x) if pad else x
    return split_spectrum(fft_norm(_pad_last(padded, 2 * _last_size(padded, "fft_real")), False, norm))


def fft_batch_real(x: Any, norm: FftNorm | str = FftNorm.Backward, pad: bool = True) -> tuple[Any, Any]:
    """`fft_real`, which takes leading axes anyway; kept as a name of the seed documents."""
    return fft_real(x, norm, pad)


def rfft(x: Any, norm: FftNorm | str = FftNorm.Backward, pad: bool = True) -> tuple[Any, Any]:
    """The first n/2 + 1 bins of `fft_real`; the others are their mirror image."""
    from rlx.ops.signal.real_fourier import Rfft

    (x,) = _real_operands("rfft", x)
    if _last_size(x, "rfft") == 0 and not pad:
        raise ShapeError("rfft: needs at least one sample, got an axis of size 0")
    signal = convert(pad_last_axis_to_pow2(x) if pad else x, dtype_of(x).accumulator)
    spectrum = Rfft(FftNorm(norm))(signal)
    return convert(Real()(spectrum), dtype_of(x)), convert(Imag()(spectrum), dtype_of(x))


def ifft_spectrum(re: Any, im: Any, norm: FftNorm | str = FftNorm.Backward) -> Any:
    """The real part of the inverse transform of a whole spectrum."""
    re, im = _real_operands("ifft_spectrum", re, im)
    return split_spectrum(fft_norm(concat([re, im], axis=-1), True, norm))[0]


def irfft(re: Any, im: Any, n: int, norm: FftNorm | str = FftNorm.Backward, pad: bool = True) -> Any:
    """The n real samples whose `rfft` is (re, im); the imaginary part of bin 0 and of the middle bin is ignored."""
    from rlx.ops.signal.real_fourier import Irfft

    re, im = _real_operands("irfft", re, im)
    points = next_pow2(n) if pad else n
    half = points // 2 + 1
    if n < 1 or _last_size(re, "irfft") != half or _last_size(im, "irfft") != half:
        raise ShapeError(
            f"irfft: {n} samples {'(padded to ' + str(points) + ') ' if pad else ''}need {half} bins, "
            f"got {_last_size(re, 'irfft')} and {_last_size(im, 'irfft')}; pad must be as in rfft"
        )
    spectrum = MakeComplex()(*(convert(part, dtype_of(re).accumulator) for part in (re, im)))
    return convert(_narrow_last(Irfft(points, FftNorm(norm))(spectrum), 0, n), dtype_of(re))


def stft(
    x: Any,
    frame_len: int,
    hop: int,
    norm: FftNorm | str = FftNorm.Backward,
    pad: bool = True,
    window: Any = None,
) -> Any:
    """Spectra of overlapping frames: x[.., T] -> [frames, .., 2·half], the real bins followed by the imaginary ones.

    frames = 1 + (T - frame_len) // hop and half = n/2 + 1. Frames are multiplied by `window[frame_len]` when one is
    given.
    """
    (x,) = _real_operands("stft", x)
    samples = _last_size(x, "stft")
    if frame_len < 1 or hop < 1 or samples < frame_len:
        raise ShapeError(
            f"stft: needs frame_len and hop of at least 1 and at least one frame of samples, "
            f"got frame_len={frame_len}, hop={hop} and {samples} samples"
        )
    starts = np.arange(1 + (samples - frame_len) // hop) * hop
    positions = (starts[:, None] + np.arange(frame_len)).astype(np.int32)
    frames = moveaxis(gather(x, positions, axis=-1), -2, 0)
    if window is not None:
        frames = mul(frames, convert(window, dtype_of(x)))
    return concat(rfft(frames, norm, pad), axis=-1)


def fft_conv1d(a: Any, b: Any, n_fft: int = 0, norm: FftNorm | str = FftNorm.Forward) -> Any:
    """The full convolution along the last axis, la + lb - 1 samples, by transforms of at least `n_fft` points.

    "forward" (the default) gives the true convolution; the other norms multiply it by a factor, n or 1/√n.
    """
    a, b = _real_operands("fft_conv1d", a, b)
    length = _last_size(a, "fft_conv1d") + _last_size(b, "fft_conv1d") - 1
    if length < 1:
        raise ShapeError(f"fft_conv1d: needs operands with at least one sample each, got {a.shape} and {b.shape}")
    points = max(n_fft, next_pow2(length))
    (a_re, a_im), (b_re, b_im) = (rfft(_pad_last(v, points), norm, pad=False) for v in (a, b))
    re = sub(mul(a_re, b_re), mul(a_im, b_im))
    im = add(mul(a_re, b_im), mul(a_im, b_re))
    return _narrow_last(irfft(re, im, points, norm, pad=False), 0, length)


def psd(re: Any, im: Any, n: int | None = None) -> Any:
    """Power per bin, (re² + im²) / n; n is the number of bins unless it is given."""
    re, im = _real_operands("psd", re, im)
    return div(add(mul(re, re), mul(im, im)), float(n or max(_last_size(re, "psd"), 1)))


def psd_real(x: Any, norm: FftNorm | str = FftNorm.Backward, pad: bool = True, n: int | None = None) -> Any:
    """`psd` of `rfft`. With n = the number of samples it is the (two-sided) periodogram."""
    return psd(*rfft(x, norm, pad), n)


def _constant(values: Array) -> Any:
    graph = target_graph(())
    return values if graph is None else graph.constant(values, DType.F64)


def fftfreq_tensor(n: int) -> Any:
    """f64[n]: the frequency of each bin in cycles per sample, as `numpy.fft.fftfreq`."""
    return _constant(fftfreq(n))


def rfftfreq_tensor(n: int) -> Any:
    """f64[n/2 + 1]: the frequency of each bin of `rfft` in cycles per sample."""
    return _constant(rfftfreq(n))


def fft_butterfly_stage(state: Any, gate: Any, rev: Any, tw_re: Any, tw_im: Any, stage: int, n_fft: int) -> Any:
    """One gated radix-2 stage; see `FftButterflyStage`."""
    return FftButterflyStage(stage, n_fft)(state, gate, rev, tw_re, tw_im)
