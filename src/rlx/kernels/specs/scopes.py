"""Expressions inside loops: each is computed once, in the outermost loop that knows everything it depends on.

A `LoopNest` is an index space with what is read and written in it. A `Scope` is a place in its loops: some axes have
an index there, and one axis may be covered by the lanes of vectors, from its index on. What does not depend on that
axis stays a scalar.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents
from rlx.kernels.ir.loop_ir import Buffer, Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import Expr, compute_dtype, lower_node, topological


@dataclass(frozen=True)
class Access:
    """How one operand or output is laid out over the index space: `offset + sum(index[d] * strides[d])`, in elements.

    A stride of 0 reads one element for a whole axis.
    """

    name: str
    dtype: DType
    strides: tuple[Extent, ...]
    offset: Extent = 0

    def moves_along(self, axis: int) -> bool:
        return self.strides[axis] != 0


# What one access of a GPU's thread moves at most, and the most lanes that are worth their registers.
VECTOR_BYTES = 16
MOST_LANES = 8


def aligned_lanes(shape: Sequence[Extent], accesses: Sequence[Access], exprs: Sequence[Expr], axis: int) -> int:
    """Elements along an axis that threads can access as one vector of up to `VECTOR_BYTES`, whatever the sizes of other
    axes: each access that moves along the axis moves by single elements, and begins at a whole vector everywhere.
    Operands are the first of the accesses. 1 where that is not so."""
    moving = [a for a in accesses if a.moves_along(axis)]
    size = shape[axis]
    gathered = {accesses[int(n.value)] for n in topological(exprs) if n.op == "gather"}
    if not moving or not isinstance(size, int) or not gathered.isdisjoint(moving):
        return 1

    def begins_whole(access: Access, lanes: int) -> bool:
        others = [access.offset, *(s for d, s in enumerate(access.strides) if d != axis)]
        return access.strides[axis] == 1 and all(isinstance(s, int) and s % lanes == 0 for s in others)

    lanes = min(MOST_LANES, VECTOR_BYTES // min(a.dtype.size_bytes for a in moving))
    while lanes > 1 and not (size % lanes == 0 and all(begins_whole(a, lanes) for a in moving)):
        lanes //= 2
    return lanes


# Registers that a vector of elements which lie a few apart may span.
SPAN = 4


def is_near(machine: Machine, buffer: Buffer, step: int, lanes: int, used: int = 1) -> bool:
    """Whether lanes `step` elements apart are worth being picked from a longer vector, of which so many elements of
    each step are `used`, or from one that is turned round."""
    if step == -1 or lanes == 1:
        return lanes > 1 and buffer.dtype is not DType.BOOL
    fits = step * lanes * buffer.dtype.size_bytes <= SPAN * used * machine.vector_bytes
    return 1 < step <= SPAN and fits and machine.has_masked_access(buffer.dtype) and buffer.dtype is not DType.BOOL


def load_near(k: KernelBuilder, buffer: Buffer, place: Value, step: int, lanes: int) -> Value:
    """Elements `step` apart: one instruction for each of them would take longer than reading those between."""
    if step == -1:
        return k.shuffle(k.load(buffer, place - (lanes - 1), lanes=lanes), range(lanes - 1, -1, -1))
    # Behind the last one nothing need exist.
    mask = k.lane_mask((lanes - 1) * step + 1, lanes * step)
    return k.shuffle(k.load(buffer, place, lanes=lanes * step, mask=mask), range(0, lanes * step, step))


def interleaved(k: KernelBuilder, planes: Sequence[Value]) -> Value:
    """The first lane of each of some vectors, then the second ones, and so on."""
    count, width = len(planes), planes[0].lanes
    order = [i % count * width + i // count for i in range(count * width)]
    # Joined in pairs, the last one with itself where it has no other.
    joined = list(planes)
    while len(joined) > 2:
        pairs = [(joined[i], joined[min(i + 1, len(joined) - 1)]) for i in range(0, len(joined), 2)]
        joined = [k.shuffle(a, range(2 * a.lanes), b) for a, b in pairs]
    return k.shuffle(joined[0], order, joined[-1])


class LoopNest:
    """The index space of one kernel: sizes, operands, outputs, and the expressions of the outputs.

    Buffers are declared first and then every named extent once, in the order of the shape and of each access's strides
    and offset.
    """

    def __init__(
        self,
        k: KernelBuilder,
        extents: Extents,
        shape: Sequence[Extent],
        buffers: Mapping[str, Buffer],
        inputs: Sequence[Access],
        outputs: Sequence[Access],
        exprs: Sequence[Expr],
        joined: Collection[int] = (),
    ) -> None:
        """`joined` are the axes that a `reduce` joins; pointwise expressions have none."""
        self.k, self.extents = k, extents
        # The machine, where lanes that lie a few elements apart are read as parts of longer vectors.
        self.machine: Machine | None = None
        # Lanes of vectors that begin at whole vectors in memory; see `aligned_lanes`.
        self.aligned_lanes = 1
        self.shape, self.joined = tuple(shape), frozenset(joined)
        self.accesses = [*inputs, *outputs]
        self.inputs, self.outputs, self.exprs = tuple(inputs), tuple(outputs), tuple(exprs)
        self.buffers = [buffers[a.name] for a in self.accesses]
        self.sizes = [extents(size) for size in shape]
        self.strides: list[list[Value]] = []
        self.offsets: list[Value] = []
        for access in self.accesses:
            self.strides.append([extents(s) for s in access.strides])
            self.offsets.append(extents(access.offset))
        self.nodes = topological(exprs)
        for node in self.nodes:
            if node.op == "size" and isinstance(node.value, str):
                extents(node.value)
        self._depends: dict[Expr, frozenset[int]] = {}
        for node in self.nodes:
            self._depends[node] = self._axes_of(node)

    def _axes_of(self, node: Expr) -> frozenset[int]:
        axes = frozenset[int]().union(*(self._depends[a] for a in node.args))
        if node.op == "index":
            return frozenset({int(node.value)})
        if node.op in ("operand", "gather"):
            access = self.inputs[int(node.value)]
            return axes.union(d for d in range(len(self.shape)) if access.moves_along(d))
        return axes - self.joined if node.op == "reduce" else axes

    def add(self, access: Access, buffer: Buffer) -> int:
        """One more access, of memory that is not a parameter; its number."""
        self.accesses.append(access)
        self.buffers.append(buffer)
        self.strides.append([self.extents(s) for s in access.strides])
        self.offsets.append(self.extents(access.offset))
        return len(self.accesses) - 1

    def depends(self, node: Expr) -> frozenset[int]:
        """The axes along which a value changes."""
        return self._depends[node]

    def widest(self, axes: Collection[int], nodes: Iterable[Expr]) -> int:
        """Bytes of the largest type in which something changes along some axes."""
        sizes = [compute_dtype(n.dtype).size_bytes for n in nodes if not self._depends[n].isdisjoint(axes)]
        return max(sizes, default=1)

    def run_of(self, number: int, axis: int, among: Collection[int]) -> list[int]:
        """The accesses among some that lie in the same steps along an axis as one does, by where they lie in it."""
        own = self.accesses[number]
        step = own.strides[axis]

        def is_beside(other: Access) -> bool:
            if not isinstance(own.offset, int) or not isinstance(other.offset, int) or not isinstance(step, int):
                return False
            same_layout = (other.name, other.strides) == (own.name, own.strides)
            return same_layout and other.offset // step == own.offset // step

        found = {a.offset: n for n in among if is_beside(a := self.accesses[n])}
        return [found[offset] for offset in sorted(found, key=int)] if step not in (0, 1) else [number]

    def has_masks(self, machine: Machine, axis: int) -> bool:
        """Whether everything that lanes along an axis touch can be accessed under a mask."""
        touched = [a for a in self.accesses if a.moves_along(axis)]
        return all(machine.has_masked_access(a.dtype) for a in touched)


class Scope:
    """Values known at one place in the loops of a nest: those computed here, and those of the scopes around."""

    def __init__(
        self,
        nest: LoopNest,
        starts: Mapping[int, Value],
        around: Scope | None = None,
        lane_axis: int | None = None,
        lanes: int = 1,
        mask: Value | None = None,
        touched: Collection[int] | None = None,
    ) -> None:
        """`starts` are the indices that this scope adds. `lanes` cover `lane_axis` from its start on, if it has one
        yet; `touched` are the numbers of the accesses that are used from here on, by default all."""
        self.nest, self.around = nest, around
        self.starts: dict[int, Value] = {**(around.starts if around else {}), **starts}
        self.lane_axis, self.lanes, self.mask = lane_axis, lanes, mask
        self.values: dict[Expr, Value] = {}
        self.places: dict[int, Value] = {}
        # By the first access of a run: what all of them are parts of.
        self.runs: dict[int, Value] = {}
        for number in range(len(nest.accesses)) if touched is None else touched:
            place = around.places[number] if around else nest.offsets[number]
            for axis, start in starts.items():
                place = place + start * nest.strides[number][axis]
            self.places[number] = place

    def inside(self, starts: Mapping[int, Value], touched: Collection[int]) -> Scope:
        """A scope in a loop around which this one is, with the same lanes."""
        return Scope(self.nest, starts, self, self.lane_axis, self.lanes, self.mask, touched)

    def known(self, node: Expr) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if node in scope.values:
                return scope.values[node]
            scope = scope.around
        return None

    def value(self, node: Expr) -> Value:
        found = self.known(node)
        assert found is not None, f"{node.op} is used before it is computed"
        return found

    def compute(self, nodes: Iterable[Expr]) -> None:
        """Append the computation of nodes, operands first, that are not known yet."""
        for node in nodes:
            if self.known(node) is None:
                self.values[node] = self._lowered(node)

    def _lowered(self, node: Expr) -> Value:
        k = self.nest.k
        match node.op:
            case "operand":
                return k.cast(self.load(int(node.value)), compute_dtype(node.dtype))
            case "gather":
                return k.cast(self._gathered(node), compute_dtype(node.dtype))
            case "index":
                axis = int(node.value)
                start = k.cast(self.starts[axis], node.dtype)
                return k.iota(node.dtype, self.lanes) + start if axis == self.lane_axis else start
            case "size":
                assert not isinstance(node.value, float)
                return self.nest.extents(node.value)
        return lower_node(k, node, [self.value(a) for a in node.args])

    def has_lanes(self, number: int) -> bool:
        """Whether an access changes along the axis that lanes cover."""
        return self.lane_axis is not None and self.nest.accesses[number].moves_along(self.lane_axis)

    def load(self, number: int) -> Value:
        k, nest = self.nest.k, self.nest
        if self.lane_axis is None or not self.has_lanes(number):
            return k.load(nest.buffers[number], self.places[number])
        stride = nest.strides[number][self.lane_axis]
        mask = self.mask if self.lanes > 1 else None
        if mask is None and nest.machine is not None and isinstance(nest.accesses[number].strides[self.lane_axis], int):
            step = int(nest.accesses[number].strides[self.lane_axis])
            run = nest.run_of(number, self.lane_axis, [n for n in self.places if n < len(nest.inputs)])
            if len(run) == step and is_near(nest.machine, nest.buffers[number], step, self.lanes, step):
                return self._of_run(run, number)
            if is_near(nest.machine, nest.buffers[number], step, self.lanes):
                return load_near(k, nest.buffers[number], self.places[number], step, self.lanes)
        align = self._align(number)
        return k.load(
            nest.buffers[number], self.places[number], lanes=self.lanes, stride=stride, mask=mask, align=align
        )

    def _of_run(self, run: Sequence[int], number: int) -> Value:
        """The elements of one of the accesses that lie side by side, which are all read at once."""
        k, step, first = self.nest.k, len(run), run[0]
        if first not in self.runs:
            self.runs[first] = k.load(self.nest.buffers[first], self.places[first], lanes=self.lanes * step)
        return k.shuffle(self.runs[first], range(run.index(number), self.lanes * step, step))

    def _align(self, number: int) -> int:
        """What the addresses of vectors are multiples of, where that is known."""
        if self.lanes == 1 or self.lanes != self.nest.aligned_lanes:
            return 0
        return min(VECTOR_BYTES, self.lanes * self.nest.buffers[number].dtype.size_bytes)

    def _gathered(self, node: Expr) -> Value:
        k, number = self.nest.k, int(node.value)
        place = self.places[number] + self.value(node.args[0])
        if self.lane_axis is not None and self.has_lanes(number) and self.lanes > 1:
            stride = self.nest.strides[number][self.lane_axis]
            if place.lanes == 1 and self.nest.accesses[number].strides[self.lane_axis] == 1:
                mask = self._both(self.mask, node, self.lanes)
                return k.load(self.nest.buffers[number], place, lanes=self.lanes, mask=mask)
            place = place + k.iota(DType.I64, self.lanes) * stride
        mask = self._both(self.mask if place.lanes > 1 else None, node, place.lanes)
        return k.load(self.nest.buffers[number], place, lanes=place.lanes, mask=mask)

    def _both(self, mask: Value | None, node: Expr, lanes: int) -> Value | None:
        """The lanes that exist and whose position does."""
        if len(node.args) == 1:
            return mask
        exists = self.nest.k.splat(self.value(node.args[1]), lanes)
        return exists if mask is None else exists & mask

    def store(self, number: int, value: Value, by: Value | None = None) -> None:
        """Store a value by an access, `by` so many elements from there: all lanes if it has one for each."""
        k = self.nest.k
        buffer = self.nest.buffers[number]
        data = k.cast(value, buffer.dtype)
        place = self.places[number] if by is None else self.places[number] + by
        if self.lane_axis is None or not self.has_lanes(number) or self.lanes == 1:
            k.store(buffer, place, data)
            return
        stride = self.nest.strides[number][self.lane_axis]
        align = 0 if by is not None else self._align(number)
        k.store(buffer, place, k.splat(data, self.lanes), stride=stride, mask=self.mask, align=align)

    def store_all(self, values: Mapping[int, Value], by: Value | None = None) -> None:
        """Store values by their accesses; those that lie side by side, one element of each, as one vector."""
        k, nest, left = self.nest.k, self.nest, dict(values)
        while left:
            number = next(iter(left))
            run = self._stored_run(number, left) if by is None else [number]
            if len(run) == 1:
                self.store(number, left.pop(number), by)
                continue
            buffer = nest.buffers[number]
            data = [k.splat(k.cast(left.pop(n), buffer.dtype), self.lanes) for n in run]
            k.store(buffer, self.places[run[0]], interleaved(k, data))

    def _stored_run(self, number: int, among: Collection[int]) -> list[int]:
        """The accesses that are stored together with one."""
        nest, axis = self.nest, self.lane_axis
        if nest.machine is None or axis is None or self.lanes == 1 or self.mask is not None:
            return [number]
        run = nest.run_of(number, axis, among) if self.has_lanes(number) else [number]
        is_whole = len(run) == nest.accesses[number].strides[axis]
        is_near = len(run) <= SPAN and nest.buffers[number].dtype is not DType.BOOL
        return run if is_whole and is_near else [number]
