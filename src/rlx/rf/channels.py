"""Polyphase filter banks: many channels of one band at the cost of one filter and one Fourier transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.numpy as rnp
from rlx import ops
from rlx.audio.filter_design import firwin
from rlx.audio.windows import checked_sizes, real_dtype, samples_of
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import array_function, concrete, rank_of
from rlx.ops.define.operands import dims_of
from rlx.rf.demodulation import complex_samples

__all__ = ["channel_filter", "channelize"]


def channel_filter(channels: int, taps_per_channel: int = 12) -> npt.NDArray[np.float64]:
    """A low-pass for `channelize`: half the power is left where channels meet."""
    checked_sizes("channel_filter", channels=channels, taps_per_channel=taps_per_channel)
    if channels == 1:
        return np.ones(1)
    return firwin(channels * taps_per_channel, 1.0 / channels, window_kind=("kaiser", 8.0))


@array_function
def channelize(x: Any, channels: int, taps: npt.ArrayLike | None = None) -> Any:
    """A band split into `channels` equal ones: x[.., T] -> [.., channels, T // channels] at 1/channels of the rate.

    Channel c is centred at c·rate/channels, the upper half of them being negative frequencies as in `fft`. It is what
    mixing down, filtering with `taps` (`channel_filter` by default) and keeping every `channels`-th sample would give,
    all channels at once: the taps are split into phases, and a Fourier transform over the phases tells them apart.
    """
    checked_sizes("channelize", channels=channels)
    x = complex_samples(x)
    samples = samples_of(x, "channelize")
    h = np.asarray(channel_filter(channels) if taps is None else concrete(taps, "channelize", "taps"), np.float64)
    if h.ndim != 1 or len(h) == 0:
        raise ShapeError(f"channelize: needs taps [n], got {list(h.shape)}")
    count = samples // channels
    if count == 0:
        raise OpError(f"channelize: {channels} channels need at least {channels} samples, got {samples}")
    # y[c, m] = Σ_n h[n]·x[mM - n]·exp(-2πi·c·(mM - n)/M), and the exponential is exp(2πi·c·n/M): with n = iM + p it
    # depends on p only.
    per_phase = -(-len(h) // channels)
    phases = np.pad(h, (0, per_phase * channels - len(h))).reshape(per_phase, channels).astype(real_dtype(x))
    before = per_phase * channels - 1
    end = (count - 1) * channels + 1
    padded = rnp.pad(x[..., :end], [(0, 0)] * (rank_of(x) - 1) + [(before, 0)])
    # Row r, reversed, holds x[rM - p] for the phases p; the row i blocks earlier meets the taps iM + p.
    rows = rnp.flip(padded.reshape(*dims_of(x)[:-1], count + per_phase - 1, channels), -1)
    first = per_phase - 1
    summed = sum(rows[..., first - i : first - i + count, :] * phases[i] for i in range(per_phase))
    # Σ_p s[p]·exp(2πi·c·p/M) is the inverse transform without its factor.
    return rnp.swapaxes(ops.fft(summed, inverse=True), -1, -2)
