"""Builder methods for Fourier transforms, complex values and audio.

Real tensors hold a spectrum as [re_0 .. re_n-1, im_0 .. im_n-1] along the last axis; complex tensors hold it as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ir.fft import FftNorm
from rlx.ops.builders.base import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor


class FourierBuilders(Builder):
    """Transforms along the last axis unless an axis is given."""

    __slots__ = ()

    def fft(self, x: TensorLike, inverse: bool = False) -> Tensor:
        """Neither direction is scaled."""
        return self._build(ops.fft, x, inverse)

    def fft_norm(self, x: TensorLike, inverse: bool = False, norm: FftNorm | str = FftNorm.Backward) -> Tensor:
        return self._build(ops.fft_norm, x, inverse, norm)

    def fft_axis(self, x: TensorLike, axis: int, inverse: bool = False) -> Tensor:
        return self._build(ops.fft_axis, x, axis, inverse)

    def fftn(self, x: TensorLike, axes: Sequence[int] | None = None, inverse: bool = False) -> Tensor:
        """Several axes, one after the other."""
        return self._build(ops.fftn, x, axes, inverse)

    def ifftn(self, x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
        return self._build(ops.ifftn, x, axes)

    def pad_last_axis_to_pow2(self, x: TensorLike) -> Tensor:
        return self._build(ops.pad_last_axis_to_pow2, x)

    def split_spectrum(self, spectrum: TensorLike) -> tuple[Tensor, Tensor]:
        """Real and imaginary halves."""
        return self._build(ops.split_spectrum, spectrum)

    def fft_real(self, x: TensorLike, norm: FftNorm | str = FftNorm.Backward) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of the transform of a real signal, padded to a power of two."""
        return self._build(ops.fft_real, x, norm)

    def fft_batch_real(self, x: TensorLike, norm: FftNorm | str = FftNorm.Backward) -> tuple[Tensor, Tensor]:
        return self._build(ops.fft_batch_real, x, norm)

    def rfft(self, x: TensorLike, norm: FftNorm | str = FftNorm.Backward) -> tuple[Tensor, Tensor]:
        """`fft_real` without the bins that mirror others."""
        return self._build(ops.rfft, x, norm)

    def irfft(self, re: TensorLike, im: TensorLike, n: int, norm: FftNorm | str = FftNorm.Backward) -> Tensor:
        return self._build(ops.irfft, re, im, n, norm)

    def ifft_spectrum(self, re: TensorLike, im: TensorLike, norm: FftNorm | str = FftNorm.Backward) -> Tensor:
        """The real part of the inverse transform."""
        return self._build(ops.ifft_spectrum, re, im, norm)

    def stft(self, x: TensorLike, frame_len: int, hop: int, norm: FftNorm | str = FftNorm.Backward) -> Tensor:
        """The half spectra of overlapping frames."""
        return self._build(ops.stft, x, frame_len, hop, norm)

    def fft_conv1d(self, a: TensorLike, b: TensorLike, n_fft: int = 0, norm: FftNorm | str = FftNorm.Forward) -> Tensor:
        """The full convolution of two signals."""
        return self._build(ops.fft_conv1d, a, b, n_fft, norm)

    def fftfreq_tensor(self, n: int) -> Tensor:
        """The frequencies of the bins as a constant."""
        return self._build(ops.fftfreq_tensor, n)

    def rfftfreq_tensor(self, n: int) -> Tensor:
        return self._build(ops.rfftfreq_tensor, n)

    def psd_real(self, x: TensorLike, norm: FftNorm | str = FftNorm.Backward) -> Tensor:
        """The power spectrum of a real signal."""
        return self._build(ops.psd_real, x, norm)

    def psd(self, re: TensorLike, im: TensorLike) -> Tensor:
        """(re² + im²)/n."""
        return self._build(ops.psd, re, im)

    def fft_butterfly_stage(
        self,
        state: TensorLike,
        gate: TensorLike,
        rev: TensorLike,
        tw_re: TensorLike,
        tw_im: TensorLike,
        stage: int,
        n_fft: int,
    ) -> Tensor:
        """One stage of a transform with learnt gates and twiddle factors."""
        return self._build(ops.fft_butterfly_stage, state, gate, rev, tw_re, tw_im, stage, n_fft)

    def complex_norm_sq(self, z: TensorLike) -> Tensor:
        """|z|², real."""
        return self._build(ops.complex_norm_sq, z)

    def conjugate(self, z: TensorLike) -> Tensor:
        return self._build(ops.conjugate, z)

    def log_mel(self, spec: TensorLike, filters: TensorLike) -> Tensor:
        """Log energies of mel bands, as speech models expect them."""
        return self._build(ops.log_mel, spec, filters)

    def welch_peaks(self, spec: TensorLike, k: int, n_segments: int) -> Tensor:
        """The k strongest bins of the averaged power spectrum, as (bin, power) pairs."""
        return self._build(ops.welch_peaks, spec, k, n_segments)
