"""Maps on GPUs with transposed operands: tiles of these go through shared memory, so that all accesses are coalesced.

    y[i, j] = f(x[j, i], ..)

Neighbouring threads read what lies side by side in x, and then write what lies side by side in y. Operands that lie as
y does, or stand still, are read where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.kernels.cpu.maps import declare_buffers, merged_part
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extents, total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.kernels.specs.expr import topological
from rlx.kernels.specs.map_parts import MapPart, MapSpec
from rlx.kernels.specs.scopes import Access, LoopNest, Scope

THREADS = 256
# Elements of a tile along each of its axes, and of all of it.
TILE, ELEMENTS = 64, 4096
# Axes along which there are fewer are not worth a tile, nor are maps of fewer elements.
SHORTEST, FEWEST = 4, 1 << 14
# What all tiles of a block may take of shared memory.
MOST_BYTES = 32 << 10


class _Tiles(NamedTuple):
    """Tiles go along the last axis and along `axis`, on which operands with the numbers `turned` lie side by side.
    `lanes` neighbours are one access; `sizes` are the elements of a tile on `axis` and on the last one."""

    part: MapPart
    axis: int
    turned: tuple[int, ...]
    lanes: int
    sizes: tuple[int, int]


def is_turned_map(spec: MapSpec) -> bool:
    """Whether a map has one part with an operand that lies side by side along another axis than what it stores."""
    return _tiles_of(spec) is not None


def _tiles_of(spec: MapSpec) -> _Tiles | None:
    if len(spec.parts) != 1:
        return None
    part = merged_part(spec.parts[0])
    last = len(part.shape) - 1
    accesses = (*part.inputs, *part.outputs)
    sizes = [s for s in part.shape if isinstance(s, int)]
    steps = [s for a in accesses for s in (*a.strides, a.offset) if isinstance(s, int)]
    if len(sizes) != len(part.shape) or len(steps) != len(accesses) * (len(part.shape) + 1):
        return None
    is_plain = part.move is None and all(n.op not in ("gather", "index") for n in topological(part.all_exprs))
    count = 1
    for size in sizes:
        count *= size
    if not is_plain or last < 1 or count < FEWEST or any(a.strides[last] != 1 for a in part.outputs):
        return None
    axis = _read_axis(part, last)
    if axis is None or min(sizes[axis], sizes[last]) < SHORTEST:
        return None
    turned = tuple(n for n, a in enumerate(part.inputs) if 0 < int(a.strides[axis]) < int(a.strides[last]))
    height, width = min(TILE, sizes[axis]), min(TILE, sizes[last])
    # What is short along one axis is long along the other.
    height, width = (min(size, ELEMENTS // n // 2 * 2) for size, n in ((sizes[axis], width), (sizes[last], height)))
    tile = (height, width) if height * width <= ELEMENTS else (min(TILE, height), min(TILE, width))
    found = _Tiles(part, axis, turned, 1, tile)
    found = found._replace(lanes=2 if _has_pairs(found) else 1)
    return (
        found if sum(_pitch(found) * tile[1] * part.inputs[n].dtype.size_bytes for n in turned) <= MOST_BYTES else None
    )


def _read_axis(part: MapPart, last: int) -> int | None:
    """The axis on which the first operand that is not read along the last one lies closest."""
    for access in part.inputs:
        moving = {s: axis for axis, s in enumerate(access.strides) if isinstance(s, int) and s > 0}
        if moving and moving[min(moving)] != last and access.strides[last] in moving:
            return moving[min(moving)]
    return None


def _has_pairs(tiles: _Tiles) -> bool:
    """Whether two neighbours of everything that a thread touches are one word of memory: elements of two bytes, at
    even places."""
    part, axis, turned = tiles.part, tiles.axis, tiles.turned
    last = len(part.shape) - 1
    if any(int(s) % 2 for s in (part.shape[axis], part.shape[last], *tiles.sizes)):
        return False

    def is_even(access: Access, along: int) -> bool:
        others = [access.offset, *(s for d, s in enumerate(access.strides) if d != along)]
        return access.dtype.size_bytes == 2 and access.strides[along] == 1 and all(int(s) % 2 == 0 for s in others)

    direct = [a for n, a in enumerate(part.inputs) if n not in turned and a.moves_along(last)]
    return all(is_even(part.inputs[n], axis) for n in turned) and all(
        is_even(a, last) for a in (*direct, *part.outputs)
    )


def _pitch(tiles: _Tiles) -> int:
    """Elements from one row of a tile in shared memory to the next: threads that go along the rows meet other banks."""
    return tiles.sizes[0] + (tiles.lanes if tiles.sizes[0] % 2 == 0 else 0)


class _TileScope(Scope):
    """A place in a tile: turned operands are read from it."""

    def __init__(
        self, nest: LoopNest, starts: dict[int, Value], lanes: int, tiles: dict[int, Buffer], at: Sequence[Value]
    ) -> None:
        super().__init__(nest, starts, None, len(nest.shape) - 1 if lanes > 1 else None, lanes)
        self.tiles, self.at = tiles, at

    def load(self, number: int) -> Value:
        if number not in self.tiles:
            return super().load(number)
        k, (first, *others) = self.nest.k, [self.nest.k.load(self.tiles[number], at) for at in self.at]
        return first if not others else k.shuffle(k.splat(first, 2), (0, 2), k.splat(others[0], 2))


def turned_map_kernel(name: str, spec: MapSpec) -> Kernel:
    """The kernel of a spec for which `is_turned_map` holds."""
    tiles = _tiles_of(spec)
    assert tiles is not None
    part, axis, lanes = tiles.part, tiles.axis, tiles.lanes
    last, pitch = len(part.shape) - 1, _pitch(tiles)
    k = KernelBuilder(name)
    align = 2 * lanes if lanes > 1 else 0
    buffers = declare_buffers(k, part.inputs, part.outputs, align=align)
    nest = LoopNest(k, Extents(k), part.shape, buffers, part.inputs, part.outputs, part.all_exprs)
    nest.aligned_lanes = lanes
    kept = {n: k.shared(f"tile{n}", part.inputs[n].dtype, pitch * tiles.sizes[1]) for n in tiles.turned}
    others = [a for a in range(last) if a != axis]
    height, width = tiles.sizes
    counts = [*(nest.sizes[a] for a in others), k.ceildiv(nest.sizes[axis], height), k.ceildiv(nest.sizes[last], width)]
    vectors = height * width // lanes
    with k.parallel("tile", total(k, counts)) as tile, k.threads("thread", THREADS) as thread:
        *outer, row, column = unflatten(tile, counts)
        row, column = row * height, column * width
        starts = dict(zip(others, outer))
        loaded = []
        for number, step in ((n, s) for n in kept for s in range(0, vectors, THREADS)):
            place = k.min(thread + step, vectors - 1)
            i, j = place % (height // lanes) * lanes, place // (height // lanes)
            at = {axis: k.min(row + i, nest.sizes[axis] - lanes), last: k.min(column + j, nest.sizes[last] - 1)}
            scope = Scope(nest, {**starts, **at}, None, axis if lanes > 1 else None, lanes)
            loaded.append((number, j * pitch + i, scope.load(number)))
        for number, place, value in loaded:
            k.store(kept[number], place, value, align=align)
        k.barrier()
        for step in range(0, vectors, THREADS):
            # Once for each element: what is stored may lie over an operand.
            place = thread + step
            j, i = place % (width // lanes) * lanes, place // (width // lanes)
            exists = (row + i < nest.sizes[axis]) & (column + j < nest.sizes[last])
            with k.when(exists if step + THREADS <= vectors else exists & (place < vectors)):
                at = {**starts, axis: row + i, last: column + j}
                inner = _TileScope(nest, at, lanes, kept, [(j + lane) * pitch + i for lane in range(lanes)])
                inner.compute(nest.nodes)
                for output, expr in enumerate(part.exprs):
                    inner.store(len(nest.inputs) + output, inner.value(expr))
    return k.build()
