"""What a training step moves between devices under a layout, and how long that takes on a chip.

    for exchange in exchanges(shape, layout, work, cost):
        print(exchange.what, exchange.moved_bytes, seconds(exchange, layout, chip))

Counted as XLA's partitioner writes them for the programs of `rlx.finetune` (tests compare): gradients are summed over
data and sequence, FSDP gathers weights before each use, tensor parallelism sums what a pair of divided products gives,
forward and backward. XLA's host build writes a sum and a cut where other builds scatter sums; the cheaper is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rlx.distributed.layouts import Layout
from rlx.models.layouts import divides_attention, divides_ffn
from rlx.planning.chips import Chip
from rlx.planning.local_program import LocalCost, Work
from rlx.planning.shapes import ModelShape

__all__ = ["Exchange", "exchanges", "seconds"]


class Exchange(NamedTuple):
    """All exchanges of one purpose in a step: the kind, the mesh axes that they go along, how many, the bytes of one
    result, and how much of it stays in memory until it is used again."""

    what: str
    kind: str
    axes: tuple[str, ...]
    times: int
    result_bytes: float
    kept_bytes: float = 0.0

    def moved_bytes(self, layout: Layout) -> float:
        """What one device sends, in rings."""
        n = layout.mesh.axis_size(self.axes)
        share = (n - 1) / n
        each = {"all-reduce": 2 * share, "reduce-scatter": share, "all-gather": share}[self.kind]
        return self.times * each * self.result_bytes


def exchanges(shape: ModelShape, layout: Layout, work: Work, cost: LocalCost) -> list[Exchange]:
    """The exchanges of a step; those along axes of one device are left out."""
    found = _all(shape, layout, work, cost)
    return [e for e in found if layout.mesh.axis_size(e.axes) > 1 and e.result_bytes * e.times > 0]


def _all(shape: ModelShape, layout: Layout, work: Work, cost: LocalCost) -> Iterator[Exchange]:
    c, width = shape.config, 4
    texts = work.batch / layout.mesh.axis_size(layout.batch_axes)
    sequence = () if layout.sequence is None else (layout.sequence,)
    tokens = texts * work.length / layout.mesh.axis_size(sequence)
    hidden = tokens * c.hidden * width
    fsdp = 1 if layout.fsdp is None else layout.mesh.shape[layout.fsdp]
    # Gradients of weights that FSDP divides are in parts by then.
    part = cost.trained_bytes if work.lora is not None else cost.trained_bytes / fsdp
    for axis in (layout.data, layout.sequence):
        if axis is not None:
            yield Exchange(f"sum gradients over {axis}", "all-reduce", (axis,), 1, part)
    if layout.fsdp is not None:
        yield Exchange("gather weights", "all-gather", (layout.fsdp,), 2, cost.gathered_bytes)
        kind = "all-reduce" if work.lora is not None else "reduce-scatter"
        yield Exchange("sum gradients into parts", kind, (layout.fsdp,), 1, cost.trained_bytes)
    if layout.tensor is not None:
        yield from _tensor(shape, layout, hidden)
    if layout.sequence is not None:
        parts = layout.mesh.shape[layout.tensor] if layout.tensor and divides_attention(layout, c) else 1
        keys = texts * work.length * c.kv_heads * c.head_dim * width / parts
        yield Exchange("gather keys and values", "all-gather", sequence, 4 * c.layers, keys, 2 * c.layers * keys)
        yield Exchange("sum gradients of keys and values", "all-reduce", sequence, 2 * c.layers, keys)
        rows = texts * work.length * c.hidden * width
        yield Exchange("rows of the last layer", "all-gather", sequence, 1, rows, rows)
        yield Exchange("gradients of rows of the last layer", "all-reduce", sequence, 1, rows)
    if layout.expert is not None and c.moe is not None:
        sparse = sum(map(c.is_sparse, range(c.layers)))
        yield Exchange("sum of experts", "all-reduce", (layout.expert,), 2 * sparse, hidden)


def _tensor(shape: ModelShape, layout: Layout, hidden: float) -> Iterator[Exchange]:
    c, axes = shape.config, (layout.tensor or "",)
    attention, ffn = divides_attention(layout, c), divides_ffn(layout, c)
    forward = c.layers * (attention + ffn)
    # Each operand of a divided pair has a gradient that is summed by itself: q, k, v, and up, gate.
    backward = c.layers * (3 * attention + (2 if c.gated else 1) * ffn)
    words = c.vocab % layout.mesh.shape[axes[0]] == 0
    if forward + words:
        yield Exchange("sum of features", "all-reduce", axes, forward + words, hidden)
    if backward + words:
        yield Exchange("gradients of features", "all-reduce", axes, backward + words, hidden)


def seconds(exchange: Exchange, layout: Layout, chip: Chip) -> float:
    """How long exchanges take one after the other. The last axis of a mesh joins neighbours; a ring that leaves the
    devices which fast links join goes at the speed of the network."""
    names = layout.mesh.axis_names
    first = min(names.index(axis) for axis in exchange.axes)
    span = layout.mesh.axis_size(names[first:])
    is_near = span <= chip.domain
    speed = chip.link_bytes if is_near else chip.network_bytes
    hops = layout.mesh.axis_size(exchange.axes) - 1
    rounds = 2 if exchange.kind == "all-reduce" else 1
    delay = chip.hop_seconds if is_near else chip.network_hop_seconds
    return exchange.moved_bytes(layout) / speed + exchange.times * rounds * hops * delay
