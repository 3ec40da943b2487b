"""Maps with transposed operands: their elements lie side by side along another axis than those of the results.

Read along the results, every element of such an operand is in another cache line. Here a tile of it is read as it lies,
transposed in registers and kept in scratch, where the map finds it as if it lay like all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.kernels.specs.expr import topological
from rlx.kernels.specs.map_parts import MapPart
from rlx.kernels.specs.scopes import LoopNest, Scope

# The most lanes of a block that is turned at once, and blocks side by side in scratch.
MOST_LANES, BLOCKS = 16, 4


class TurnedAxis(NamedTuple):
    """The axis along which the operands numbered `inputs` lie side by side."""

    axis: int
    inputs: tuple[int, ...]


def turned_axis(part: MapPart, lanes: int) -> TurnedAxis | None:
    """The axis along which operands are better read, in blocks of so many lanes; None if there is none."""
    inner = len(part.shape) - 1
    if part.move is not None or inner == 0 or lanes == 1 or _is_short(part.shape[inner], lanes):
        return None
    gathered = {int(n.value) for n in topological(part.all_exprs) if n.op == "gather"}
    found: dict[int, list[int]] = {}
    for number, access in enumerate(part.inputs):
        if access.strides[inner] in (0, 1) or access.dtype is DType.BOOL or number in gathered:
            continue
        along = next((a for a in range(inner) if access.strides[a] == 1 and not _is_short(part.shape[a], lanes)), None)
        if along is not None:
            found.setdefault(along, []).append(number)
    if not found:
        return None
    axis = max(found, key=lambda a: len(found[a]))
    return TurnedAxis(axis, tuple(found[axis]))


def _is_short(size: Extent, lanes: int) -> bool:
    """Whether most of a block would be empty."""
    return isinstance(size, int) and 2 * size < lanes


class TurnedBlocks:
    """Scratch for the operands of a map that are turned: `lanes` rows of `width` elements of each.

    Parts of a map run one after the other: they share what is in `shared`, by name, so that many need no more.
    """

    def __init__(
        self,
        k: KernelBuilder,
        nest: LoopNest,
        turned: TurnedAxis,
        inner: int,
        lanes: int,
        width: int,
        shared: dict[str, Buffer],
    ) -> None:
        self.k, self.nest, self.axis, self.inner = k, nest, turned.axis, inner
        self.lanes, self.width = lanes, width
        self.scratch: dict[int, Buffer] = {}
        for place, number in enumerate(turned.inputs):
            dtype = nest.accesses[number].dtype
            name = f"turned{place}_{dtype}_{lanes * width}"
            if name not in shared:
                shared[name] = k.local(name, dtype, lanes * width)
            self.scratch[number] = shared[name]

    def fill(self, starts: Mapping[int, Value], count: Value, rows: Value | None) -> None:
        """Turn the block at some indices: `count` elements of each row, of which there may be fewer than lanes."""
        k = self.k
        mask = None if rows is None else k.lane_mask(rows, self.lanes)
        for number, scratch in self.scratch.items():
            place = Scope(self.nest, starts, touched=[number]).places[number]
            step, buffer = self.nest.strides[number][self.inner], self.nest.buffers[number]
            with k.loop("j", 0, count, self.lanes) as j:
                # Behind the last element that one stands in: what is made of it is not stored.
                places = [place + k.min(j + i, count - 1) * step for i in range(self.lanes)]
                lines = [k.load(buffer, at, lanes=self.lanes, mask=mask) for at in places]
                for u, row in enumerate(transposed(k, lines)):
                    k.store(scratch, j + u * self.width, row)


class TurnedScope(Scope):
    """A place in a map whose turned operands are in scratch, from `place` on."""

    def __init__(
        self,
        nest: LoopNest,
        starts: Mapping[int, Value],
        around: Scope,
        blocks: TurnedBlocks,
        place: Value,
        lanes: int,
        mask: Value | None,
    ) -> None:
        super().__init__(nest, starts, around, blocks.inner, lanes, mask)
        self.blocks, self.place = blocks, place

    def load(self, number: int) -> Value:
        if number not in self.blocks.scratch:
            return super().load(number)
        mask = self.mask if self.lanes > 1 else None
        return self.nest.k.load(self.blocks.scratch[number], self.place, lanes=self.lanes, mask=mask)


def block_lanes(register_lanes: int) -> int:
    return min(MOST_LANES, register_lanes)


def block_width(lanes: int, vector: int) -> int:
    """Elements of a row of a block: some turned blocks, and whole vectors of the map."""
    return max(BLOCKS * lanes, vector)


def tile_sizes(k: KernelBuilder, sizes: Sequence[Value], axes: Sequence[int], axis: int, lanes: int) -> list[Value]:
    """Sizes of axes, with that of one counted in blocks of so many lanes."""
    return [k.ceildiv(sizes[a], lanes) if a == axis else sizes[a] for a in axes]
