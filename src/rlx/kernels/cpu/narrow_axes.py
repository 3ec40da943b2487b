"""Maps whose last axis is shorter than a vector: lanes cover it whole, and some steps of the axis before it.

Points of three coordinates, pixels of four channels, an axis that repeats every element twice: the few elements of the
last axis would fill a part of a vector only. Here a vector has those of several neighbours, as they lie side by side in
the results; an operand that lacks one of the two axes is spread over the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.specs.expr import topological
from rlx.kernels.specs.map_parts import MapPart
from rlx.kernels.specs.scopes import Access, LoopNest, Scope, interleaved

# Sizes of such an axis. Others make vectors of which a large part stays empty.
NARROW = (2, 3, 4, 8)


def narrow_size(part: MapPart, vector_bytes: int) -> int:
    """The size of the last axis, if lanes of such vectors can cover it and the axis before; else 0."""
    size = part.shape[-1]
    if len(part.shape) < 2 or part.move is not None or size not in NARROW or not isinstance(size, int):
        return 0
    if size * max(a.dtype.size_bytes for a in part.outputs) > vector_bytes:
        return 0
    if any(node.op in ("index", "gather") for node in topological(part.all_exprs)):
        return 0
    if part.shape[-2] == 1 or not all(_is_run(a.strides, size) for a in part.outputs):
        return 0
    return size if all(_is_known(access, size) for access in part.inputs) else 0


def _is_run(strides: Sequence[Extent], size: int) -> bool:
    """Whether the elements of both axes lie side by side."""
    return tuple(strides[-2:]) == (size, 1)


def _is_known(access: Access, size: int) -> bool:
    if _is_run(access.strides, size):
        return True
    # Bools are bytes in memory and bits in code, whose lanes are not moved about.
    if access.dtype is DType.BOOL:
        return False
    return tuple(access.strides[-2:]) in ((0, 0), (1, 0), (0, 1)) or _lies_in_planes(access)


def _lies_in_planes(access: Access) -> bool:
    """Whether neighbours along the axis before the last lie side by side, as those of pictures with channels first."""
    return access.strides[-2] == 1 and access.strides[-1] != 0


class NarrowScope(Scope):
    """A place from which `steps` of the axis before the last are covered, each with the whole last axis."""

    def __init__(
        self, nest: LoopNest, starts: Mapping[int, Value], around: Scope, size: int, steps: int, exist: Value | None
    ) -> None:
        """`exist` says how many steps there are, where that may be fewer."""
        k = nest.k
        mask = None if exist is None else k.lane_mask(exist * size, steps * size)
        super().__init__(nest, starts, around, len(nest.shape) - 1, steps * size, mask)
        self.size, self.steps = size, steps
        self.step_mask = None if exist is None else k.lane_mask(exist, steps)

    def has_lanes(self, number: int) -> bool:
        access = self.nest.accesses[number]
        return any(access.moves_along(axis) for axis in (-2, -1))

    def load(self, number: int) -> Value:
        k, buffer, place = self.nest.k, self.nest.buffers[number], self.places[number]
        match tuple(self.nest.accesses[number].strides[-2:]):
            case (0, 0):
                return k.load(buffer, place)
            case (1, 0):
                values = k.load(buffer, place, lanes=self.steps, mask=self.step_mask)
                if self.steps == 1:
                    return values
                return k.shuffle(values, [lane // self.size for lane in range(self.lanes)])
            case (0, 1):
                values = k.load(buffer, place, lanes=self.size)
                return k.shuffle(values, [lane % self.size for lane in range(self.lanes)])
        if _lies_in_planes(self.nest.accesses[number]) and not _is_run(self.nest.accesses[number].strides, self.size):
            return self.from_planes(number)
        return k.load(buffer, place, lanes=self.lanes, mask=self.mask)

    def from_planes(self, number: int) -> Value:
        """A vector of each plane, and of these one lane after the other."""
        k, buffer, place = self.nest.k, self.nest.buffers[number], self.places[number]
        apart = self.nest.strides[number][-1]
        if self.steps == 1:
            return k.load(buffer, place, lanes=self.size, stride=apart, mask=self.mask)
        at = [place + apart * i for i in range(self.size)]
        planes = [k.load(buffer, p, lanes=self.steps, mask=self.step_mask) for p in at]
        return interleaved(k, planes)

    def store(self, number: int, value: Value, by: Value | None = None) -> None:
        k, buffer = self.nest.k, self.nest.buffers[number]
        data = k.splat(k.cast(value, buffer.dtype), self.lanes)
        k.store(buffer, self.places[number], data, mask=self.mask)
