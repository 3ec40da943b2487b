"""Ops whose results have as many entries as the values say. They run in NumPy, between programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.onnx.values import Array, Call, Grown, host_rule


@host_rule("NonZero")
def _non_zero(call: Call) -> Sequence[Grown]:
    return [Grown(np.array(np.nonzero(call[0]), np.int64).reshape(call[0].ndim, -1), 1)]


@host_rule("Compress")
def _compress(call: Call) -> Sequence[Grown]:
    x, keep, axis = call[0], call[1].reshape(-1).astype(bool), call.attribute("axis")
    if axis is None:
        return [Grown(x.reshape(-1)[: keep.size][keep[: x.size]], 0)]
    axis = call.in_rank(int(axis), x.ndim)
    return [Grown(np.compress(keep, x, axis=axis), axis)]


@host_rule("Unique")
def _unique(call: Call) -> Sequence[Grown]:
    x, axis = call[0], call.attribute("axis")
    axis = None if axis is None else call.in_rank(int(axis), x.ndim)
    values, first, back, counts = np.unique(x, True, True, True, axis=axis)
    back = back.reshape(-1)
    if not call.attribute("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        values, first, back, counts = np.take(values, order, axis or 0), first[order], place[back], counts[order]
    grown = Grown(np.ascontiguousarray(values), axis or 0)
    return [grown, *(Grown(part.astype(np.int64), 0) for part in (first, back, counts))]


@host_rule("NonMaxSuppression")
def _suppress(call: Call) -> Sequence[Grown]:
    boxes, scores = call[0].astype(np.float32), call[1].astype(np.float32)
    most = 0 if not call.has(2) else int(call.number(2))
    overlap = np.float32(call.number(3, 0.0))
    least = call.number(4)
    corners = _corners(boxes, bool(call.attribute("center_point_box", 0)))
    found: list[tuple[int, int, int]] = []
    for image in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            chosen = _best(corners[image], scores[image, kind], most, overlap, least)
            found += [(image, kind, int(box)) for box in chosen]
    return [Grown(np.array(found, np.int64).reshape(-1, 3), 0)]


def _corners(boxes: Array, by_centre: bool) -> Array:
    """low y, low x, high y, high x."""
    if by_centre:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _best(boxes: Array, scores: Array, most: int, overlap: Any, least: float | None) -> list[int]:
    """The boxes with the highest scores of which no two overlap by more than `overlap`."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > np.float32(least)]
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    chosen: list[int] = []
    while order.size and len(chosen) < most:
        box, rest = int(order[0]), order[1:]
        chosen.append(box)
        low, high = np.maximum(boxes[box, :2], boxes[rest, :2]), np.minimum(boxes[box, 2:], boxes[rest, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=-1)
        union = areas[box] + areas[rest] - shared
        order = rest[~(shared > overlap * union)]
    return chosen
