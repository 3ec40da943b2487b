"""Packing buffers with life times into one arena.

Fixed sizes are packed by offset: largest first, each in the smallest gap between what is alive at the same time.
Symbolic sizes that are multiples of the same product of symbols (`B*S` in most transformers) are packed the same way in
units of that product. Sizes of any other form share whole slots, a slot being as large as its largest tenant.

Each such class has a region of its own. It starts above those buffers of the regions before it that are alive together
with one of its own. Those beside what grows faster are packed first, so that little lies below attention scores of
`B*S*S` bytes, which come and go. A new binding costs a few sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import LARGEST_SIZE, Dim, ceildiv, dim_max, dims_equal
from rlx.ir.shape import Size

ALIGNMENT = 64

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


def pack(tenants: Sequence[Tenant], alignment: int = ALIGNMENT) -> Packed:
    """Offsets such that no two tenants that are alive at the same time overlap."""
    by_class: dict[Size | None, list[int]] = {}
    for i, tenant in enumerate(tenants):
        by_class.setdefault(_class_of(tenant.size, alignment), []).append(i)
    alive = {scale: _Steps([tenants[i] for i in numbers]) for scale, numbers in by_class.items()}
    degrees = {scale: max(_degree(tenants[i].size) for i in numbers) for scale, numbers in by_class.items()}
    weights = {scale: sum(_units(tenants[i].size) for i in numbers) for scale, numbers in by_class.items()}
    # Small ones first: what a region lies on is lost for it while something of that is alive.
    order = sorted(by_class, key=lambda scale: (degrees[scale], weights[scale], str(scale)))
    offsets: list[Size] = [0] * len(tenants)
    regions: list[_Region] = []
    total: Size = 0
    for scale in order:
        members = [tenants[i] for i in by_class[scale]]
        region = _region(members, scale, alignment, [alive[c] for c in order if degrees[c] > degrees[scale]])
        for below in regions:
            region = region._replace(base=dim_max(region.base, below.top_beside(alive[scale])))
        for i, offset in zip(by_class[scale], region.offsets):
            offsets[i] = region.base + offset * region.scale
        regions.append(region)
        total = dim_max(total, region.base + region.total * region.scale)
    return Packed(offsets, total)


def _degree(size: Size) -> int:
    """How fast a size grows: the most symbols that are multiplied in it."""
    return 0 if isinstance(size, int) else max(len(factors) for factors, _ in size.terms)


class _Steps:
    """The steps at which one of some tenants is alive."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        last = max(t.death for t in tenants)
        births, deaths = (
            np.bincount(steps, minlength=last + 2) for steps in zip(*((t.birth, t.death + 1) for t in tenants))
        )
        # How many of the steps before each step they are.
        self.before = np.concatenate(([0], np.cumsum(np.cumsum(births - deaths)[: last + 1] > 0)))

    def meets(self, tenant: Tenant) -> bool:
        end = len(self.before) - 1
        return bool(self.before[min(tenant.death + 1, end)] > self.before[min(tenant.birth, end)])


class _Region(NamedTuple):
    """The buffers of one class. Offsets, sizes and the total are in units of `scale`, counted from `base`."""

    tenants: Sequence[Tenant]
    scale: Size
    offsets: Sequence[Size]
    sizes: Sequence[Size]
    total: Size
    base: Size = 0

    def top_beside(self, others: _Steps) -> Size:
        """Where the highest buffer ends that is alive together with one of `others`."""
        top: Size = 0
        for tenant, offset, size in zip(self.tenants, self.offsets, self.sizes):
            if others.meets(tenant):
                top = dim_max(top, offset + size)
        # With nothing beside it, a region starts at the bottom of the arena.
        return 0 if isinstance(top, int) and top == 0 else self.base + top * self.scale


def _region(tenants: Sequence[Tenant], scale: Size | None, alignment: int, above: Sequence[_Steps]) -> _Region:
    """The region of a class, at the bottom; buffers that are alive together with those `above` are packed first."""
    if scale is None:
        packed = _pack_slots(tenants, alignment)
        return _Region(tenants, 1, packed.offsets, [aligned(t.size, alignment) for t in tenants], packed.total)
    sizes = [aligned_int(_units(_rounded(t.size, alignment)), alignment) for t in tenants]
    is_low = [any(steps.meets(t) for steps in above) for t in tenants]
    offsets, total = _pack_offsets(sizes, tenants, is_low)
    return _Region(tenants, scale, offsets, sizes, total)


def _class_of(size: Size, alignment: int) -> Size | None:
    """The unit of which a size is packed as a multiple; None for the slots.

    An offset in units is aligned for every binding when its factor is. A size of a few bytes per unit, one number for
    each row say, would be many times as large after rounding that factor: its unit is the rounded size itself.
    """
    if isinstance(size, int) or scale_of(size) is None:
        return scale_of(size)
    return scale_of(_rounded(size, alignment))


def _rounded(size: Size, alignment: int) -> Size:
    """The size, or the size rounded up where rounding its factor would make it more than half as large again."""
    factor = _units(size)
    return size if 2 * aligned_int(factor, alignment) <= 3 * factor else aligned(size, alignment)


def _units(size: Size) -> int:
    return size if isinstance(size, int) else size.terms[0][1]


def scale_of(size: Size) -> Size | None:
    """The product of symbols of which a size is an integer multiple: 1 for a number, None for a sum."""
    if isinstance(size, int):
        return 1
    return Dim(((size.terms[0][0], 1),)) if len(size.terms) == 1 else None


def aligned_int(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _pack_offsets(sizes: Sequence[int], tenants: Sequence[Tenant], is_low: Sequence[bool]) -> tuple[list[int], int]:
    """Best fit by decreasing size, low ones first; ties by birth, so that the result depends on the program only. Where
    that leaves gaps, what is alive when most is comes first, if that needs less.

    The question "which placed tenants are alive at the same time" is asked once per tenant, so it is one vector
    comparison: plans of ten thousands of values take seconds, not minutes.
    """
    count = len(tenants)
    if sum(sizes) > LARGEST_SIZE:
        raise ShapeError(
            f"the program needs {sum(sizes)} bytes for {count} values, {max(sizes)} of them for one; no memory has "
            "2**63 bytes"
        )
    crowd = _crowds(sizes, tenants)
    by_size = sorted(range(count), key=lambda n: (not is_low[n], -sizes[n], tenants[n].birth, n))
    offsets, total = _placed(sizes, tenants, by_size)
    if total > max(crowd, default=0):
        by_crowd = sorted(by_size, key=lambda n: (not is_low[n], -crowd[n]))
        offsets, total = min((offsets, total), _placed(sizes, tenants, by_crowd), key=lambda found: found[1])
    return offsets, total


def _crowds(sizes: Sequence[int], tenants: Sequence[Tenant]) -> list[int]:
    """For each tenant the most bytes that are alive at one of its steps, itself among them."""
    change = np.zeros(max((t.death for t in tenants), default=0) + 2, np.int64)
    np.add.at(change, [t.birth for t in tenants], sizes)
    np.subtract.at(change, [t.death + 1 for t in tenants], sizes)
    alive = np.cumsum(change)
    return [int(alive[t.birth : t.death + 1].max()) for t in tenants]


def _placed(sizes: Sequence[int], tenants: Sequence[Tenant], order: Sequence[int]) -> tuple[list[int], int]:
    """Best fit in an order."""
    count = len(order)
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
