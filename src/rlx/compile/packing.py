"""Packing buffers with life times into one arena.

Fixed sizes are packed by offset: largest first, each in the smallest gap between what is alive at the same time.
Symbolic sizes that are multiples of the same product of symbols (`B*S` in most transformers) are packed the same way in
units of that product. Each such class has its own region; sizes of any other form share whole slots, a slot being as
large as its largest tenant. Regions and slots follow each other, so that offsets for a binding are prefix sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import Dim, ceildiv, dim_max, dims_equal
from rlx.ir.shape import Size

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Tenant(NamedTuple):
    """A buffer: `size` bytes, alive from step `birth` to step `death`, both included."""

    size: Size
    birth: int
    death: int

    def meets(self, other: Tenant) -> bool:
        """Whether both are alive at some step."""
        return self.birth <= other.death and other.birth <= self.death


class Packed(NamedTuple):
    """The offset of every tenant, and the size of the arena."""

    offsets: list[Size]
    total: Size


def aligned(size: Size, alignment: int) -> Size:
    return ceildiv(size, alignment) * alignment


def pack(tenants: Sequence[Tenant], alignment: int = 64) -> Packed:
    """Offsets such that no two tenants that are alive at the same time overlap."""
    classes: dict[Size | None, list[int]] = {}
    for i, tenant in enumerate(tenants):
        classes.setdefault(scale_of(tenant.size), []).append(i)
    offsets: list[Size] = [0] * len(tenants)
    end: Size = 0
    # Fixed sizes first, so that their offsets stay plain numbers.
    for scale in sorted(classes, key=lambda c: (c != 1, str(c))):
        members = [tenants[i] for i in classes[scale]]
        region = _pack_slots(members, alignment) if scale is None else _pack_multiples(members, scale, alignment)
        for i, offset in zip(classes[scale], region.offsets):
            offsets[i] = end + offset
        end = end + region.total
    return Packed(offsets, end)


def _pack_multiples(tenants: Sequence[Tenant], scale: Size, alignment: int) -> Packed:
    units = [t.size if isinstance(t.size, int) else t.size.terms[0][1] for t in tenants]
    offsets, total = _pack_offsets([aligned_int(u, alignment) for u in units], tenants)
    return Packed([o * scale for o in offsets], total * scale)


def scale_of(size: Size) -> Size | None:
    """The product of symbols of which a size is an integer multiple: 1 for a number, None for a sum."""
    if isinstance(size, int):
        return 1
    return Dim(((size.terms[0][0], 1),)) if len(size.terms) == 1 else None


def aligned_int(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _pack_offsets(sizes: Sequence[int], tenants: Sequence[Tenant]) -> tuple[list[int], int]:
    """Best fit by decreasing size; ties by birth, so that the result depends on the program only.

    The question "which placed tenants are alive at the same time" is asked once per tenant, so it is one vector
    comparison: plans of ten thousands of values take seconds, not minutes.
    """
    count = len(tenants)
    order = sorted(range(count), key=lambda n: (-sizes[n], tenants[n].birth, n))
    births, deaths, starts, stops = (np.zeros(count, np.int64) for _ in range(4))
    offsets = [0] * count
    for placed, i in enumerate(order):
        birth, death, size = tenants[i].birth, tenants[i].death, sizes[i]
        meets = (births[:placed] <= death) & (deaths[:placed] >= birth)
        offsets[i] = _smallest_gap(starts[:placed][meets], stops[:placed][meets], size)
        births[placed], deaths[placed], starts[placed], stops[placed] = birth, death, offsets[i], offsets[i] + size
    return offsets, int(stops.max(initial=0))


def _smallest_gap(starts: Ints, stops: Ints, size: int) -> int:
    """The start of the smallest gap between the ranges that holds `size`, else the end of the last range."""
    if not len(starts):
        return 0
    by_start = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate(stops[by_start])
    gap_starts = np.concatenate(([0], ends[:-1]))
    gaps = starts[by_start] - gap_starts
    fitting = np.flatnonzero(gaps >= size)
    return int(gap_starts[fitting[np.argmin(gaps[fitting])]]) if len(fitting) else int(ends[-1])


def _pack_slots(tenants: Sequence[Tenant], alignment: int) -> Packed:
    """Whole slots, handed on when their tenant has died; a slot of exactly the same size is preferred."""
    slots: list[tuple[Size, list[int]]] = []
    home: list[int] = [0] * len(tenants)
    for i in sorted(range(len(tenants)), key=lambda n: (tenants[n].birth, n)):
        free = [n for n, (_, held) in enumerate(slots) if not any(tenants[i].meets(tenants[j]) for j in held)]
        same = [n for n in free if dims_equal(slots[n][0], tenants[i].size)]
        chosen = same[0] if same else free[0] if free else len(slots)
        if chosen == len(slots):
            slots.append((tenants[i].size, []))
        slots[chosen][1].append(i)
        slots[chosen] = (dim_max(slots[chosen][0], tenants[i].size), slots[chosen][1])
        home[i] = chosen
    starts: list[Size] = []
    end: Size = 0
    for size, _ in slots:
        starts.append(end)
        end = end + aligned(size, alignment)
    return Packed([starts[home[i]] for i in range(len(tenants))], end)


def peak(tenants: Sequence[Tenant], binding: dict[str, int] | None = None) -> int:
    """The liveness lower bound: the most bytes that are alive at one step. Symbolic sizes need a binding."""
    change: dict[int, int] = {}
    for t in tenants:
        size = t.size if isinstance(t.size, int) else t.size.bind(binding or {})
        assert isinstance(size, int), "a symbolic size needs a binding"
        change[t.birth] = change.get(t.birth, 0) + size
        change[t.death + 1] = change.get(t.death + 1, 0) - size
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def overlaps(tenants: Sequence[Tenant], packed: Packed, binding: dict[str, int] | None = None) -> list[tuple[int, int]]:
    """Pairs of tenants that are alive at the same time and share a byte: empty for a sound plan."""

    def number(size: Size) -> int:
        value = size if isinstance(size, int) else size.bind(binding or {})
        assert isinstance(value, int), "a symbolic size needs a binding"
        return value

    ranges = [(number(o), number(o) + number(t.size)) for o, t in zip(packed.offsets, tenants, strict=True)]
    return [
        (i, j)
        for i in range(len(tenants))
        for j in range(i + 1, len(tenants))
        if tenants[i].meets(tenants[j]) and ranges[i][0] < ranges[j][1] and ranges[j][0] < ranges[i][1]
    ]
