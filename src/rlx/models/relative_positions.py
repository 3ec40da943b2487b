"""Buckets of distances between tokens: each has a number of its own that is added to the scores of attention.

Small distances have a bucket each, larger ones share buckets that grow by a constant factor up to a largest distance,
beyond which all share the last.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]


def relative_buckets(length: int, buckets: int, max_distance: int) -> I32:
    """i32[length, length]: the bucket of the distance from query i to key j. Half of the buckets are for keys behind
    the query."""
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    half = buckets // 2
    return (np.where(distance > 0, half, 0) + _buckets(np.abs(distance), half, max_distance)).astype(np.int32)


def backward_buckets(length: int, buckets: int, max_distance: int) -> I32:
    """i32[length]: the bucket of a key that stands 0, 1, 2, .. places before the query."""
    return _buckets(np.arange(length), buckets, max_distance)


def place_rows(length: int, span: int, buckets: int, max_distance: int) -> I32:
    """i32[length, length]: the row of a table [2·span, ..] for the place of key j relative to query i. With `buckets`,
    distances beyond half of so many share rows, that grow by a constant factor."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    if buckets and max_distance > 0:
        half = buckets // 2
        size = np.where(np.abs(distance) < half, half - 1, np.abs(distance)).astype(np.float32)
        grown = np.log(size / np.float32(half)) / np.log(np.float32((max_distance - 1) / half)) * np.float32(half - 1)
        far = (np.ceil(grown) + half).astype(np.int64) * np.sign(distance)
        distance = np.where(size <= half, distance, far)
    return np.clip(distance + span, 0, 2 * span - 1).astype(np.int32)


def _buckets(distance: npt.NDArray[np.int64], count: int, max_distance: int) -> I32:
    exact = count // 2
    with np.errstate(divide="ignore"):
        grown = np.log(distance.astype(np.float32) / exact) / math.log(max_distance / exact) * (count - exact)
    coarse = exact + np.minimum(np.where(distance >= exact, grown, 0.0), count - exact - 1).astype(np.int32)
    return np.where(distance < exact, distance, coarse).astype(np.int32)
