"""Changes of rate by polyphase filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx.audio.filter_design import firwin
from rlx.audio.fir import upfirdn
from rlx.audio.windows import Window, checked_sizes, real_dtype, samples_of
from rlx.numpy.arguments import array_function, inexact, rank_of

__all__ = ["resample", "resample_poly"]


@array_function
def resample_poly(x: Any, up: int, down: int, window: Window = ("kaiser", 5.0)) -> Any:
    """x[.., T] at up/down times its rate, ceil(T·up/down) samples, as scipy.signal.resample_poly.

    A low-pass filter of 20·max(up, down) + 1 taps keeps what both rates can hold. Its delay is taken out.
    """
    checked_sizes("resample_poly", up=up, down=down)
    (x,) = inexact(x)
    samples = samples_of(x, "resample_poly")
    common = math.gcd(up, down)
    up, down = up // common, down // common
    if up == down == 1:
        return x
    largest = max(up, down)
    half = 10 * largest
    h = firwin(2 * half + 1, 1.0 / largest, window=window) * up
    count = -(-samples * up // down)
    # Zeros before the taps put sample 0 of the result on an output of the filter.
    delay = -half % down
    filtered = upfirdn(np.concatenate([np.zeros(delay), h]).astype(real_dtype(x)), x, up, down)
    first = (half + delay) // down
    missing = max(first + count - samples_of(filtered, "resample_poly"), 0)
    padded = rnp.pad(filtered, [(0, 0)] * (rank_of(x) - 1) + [(0, missing)])
    return padded[..., first : first + count]


@array_function
def resample(x: Any, rate: int, new_rate: int) -> Any:
    """x[.., T] of `rate` samples per second with `new_rate` of them; see `resample_poly`."""
    checked_sizes("resample", rate=rate, new_rate=new_rate)
    return resample_poly(x, int(new_rate), int(rate))
