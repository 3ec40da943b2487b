"""Cosines and sines of rotary positions, as `RopeConfig` describes them.

Row p holds cos and sin of p·f_i for the frequencies f_i = base^(-2i/dims), changed by the scaling of the model:

- linear: f / factor.
- llama3: long waves f / factor, short waves f, a linear mix between (by wavelength against the original context).
- yarn: f / factor below one correction dim, f above another, a ramp between; tables grow by an attention factor.
- longrope: f / factors_i, with other factors once the cache exceeds the original context.

Tables are computed in f64 and rounded once.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.models.config import RopeConfig

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def rope_tables(rope: RopeConfig, rows: int) -> tuple[F32, F32]:
    """cos and sin, each f32[rows, dims/2].

    >>> cos, sin = rope_tables(RopeConfig(base=10000.0, dims=4), rows=3)
    >>> cos.shape, float(sin[0, 0]), round(float(sin[1, 1]), 4)
    ((3, 2), 0.0, 0.01)
    """
    angles = np.arange(rows, dtype=np.float64)[:, None] * frequencies(rope, rows)
    gain = attention_gain(rope)
    return (np.cos(angles) * gain).astype(np.float32), (np.sin(angles) * gain).astype(np.float32)


def changes_at(*ropes: RopeConfig | None) -> int | None:
    """The cache size from which on the tables of smaller caches are no longer valid, of the first of several that
    change; None where there is none."""
    limits = [rope.original_context for rope in ropes if rope is not None and rope.long_factors]
    return min(limits, default=None)


def frequencies(rope: RopeConfig, rows: int) -> F64:
    """The angle per position of each pair, f64[dims/2]; `rows` is the length that the cache allows."""
    plain = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "yarn":
        return _yarn(rope, plain)
    if rope.scaling == "llama3" and not rope.factors:
        return _llama3(rope, plain)
    factors = rope.long_factors if rope.long_factors and rows > rope.original_context else rope.factors
    if factors and len(factors) != len(plain):
        raise FormatError(f"rotary positions of {rope.dims} features need {len(plain)} factors, got {len(factors)}")
    return plain / np.array(factors, np.float64) if factors else plain


def attention_gain(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling == "yarn":
        return yarn_gain(rope.factor)
    if rope.scaling == "longrope" and rope.factor > 1:
        return math.sqrt(1.0 + math.log(rope.factor) / math.log(rope.original_context))
    return 1.0


def yarn_gain(factor: float, weight: float = 1.0) -> float:
    """What the tables of positions grow by that are stretched by a factor."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(rope: RopeConfig, plain: F64) -> F64:
    waves = rope.original_context * plain / (2 * math.pi)  # how often each pair turns within the original context
    mix = (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    mix = np.clip(mix, 0.0, 1.0)
    return (1.0 - mix) * plain / rope.factor + mix * plain


def _yarn(rope: RopeConfig, plain: F64) -> F64:
    def pair_that_turns(times: float) -> float:
        """The (fractional) pair that turns this often within the original context."""
        return rope.dims * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    ramp = np.clip((np.arange(rope.dims // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain / rope.factor * ramp + plain * (1.0 - ramp)
