"""`map_kernel`: a pointwise DAG over an index space, each operand with its own strides, any number of outputs.

Views cost nothing here: a transposed, narrowed or broadcast operand is a stride and an offset. Work is cut into
chunks by the shape alone, so results do not depend on how many workers take part. A kernel may have several parts, each
with its own index space: that is how values are joined along an axis without being copied first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlx.errors import OpError
from rlx.kernels.cpu.narrow_axes import NarrowScope, narrow_size
from rlx.kernels.cpu.turned_axes import TurnedBlocks, TurnedScope, block_lanes, block_width, tile_sizes, turned_axis
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents, total, unflatten
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import Expr, is_simple, topological
from rlx.kernels.specs.map_parts import MapPart as MapPart
from rlx.kernels.specs.map_parts import Move as Move
from rlx.kernels.specs.scopes import VECTOR_BYTES, LoopNest, Scope, aligned_lanes
from rlx.kernels.specs.scopes import Access as Access

# Elements per parallel iteration: some tens of microseconds of memory traffic, so that dealing them out costs nothing.
CHUNK = 8192
# The same for maps that have very many: every array is then read along for longer before the next piece of it.
LONG_CHUNK = 32768
# A chunk is a multiple of this many elements, and so of all vectors.
WHOLE_VECTORS = 256
# Functions of which so many fit side by side into this many registers, and gain by it.
_CHAINS = dict.fromkeys(("exp", "expm1", "tanh", "sigmoid", "silu", "gelu", "gelu_approx", "erf", "log", "log1p"), 4)
_CHAINS |= {"cbrt": 4, **dict.fromkeys(("pow", "asin", "acos", "asinh", "acosh", "atanh"), 2)}
MANY_REGISTERS = 32
# The most that is computed in a map whose code is repeated for the ends of rows.
SHORT_CODE = 8
GPU_THREADS = 256
GPU_ELEMENTS_PER_THREAD = 4


def map_kernel(
    name: str,
    machine: Machine,
    shape: Sequence[Extent],
    inputs: Sequence[Access],
    outputs: Sequence[Access],
    exprs: Sequence[Expr],
) -> Kernel:
    """`outputs[j][i] = exprs[j](inputs[0][i], inputs[1][i], ..)` for every index `i` of `shape`.

    Parameters: the inputs' pointers, the outputs' pointers, then every named extent once, in the order of the shape and
    of each access's strides and offset. An output may be the same memory as an input with the same layout.
    """
    return piecewise_kernel(name, machine, [MapPart(tuple(shape), tuple(inputs), tuple(outputs), tuple(exprs))])


def piecewise_kernel(name: str, machine: Machine, parts: Sequence[MapPart]) -> Kernel:
    """Several maps as one kernel. No part may write what another one reads or writes.

    Parameters: the inputs of all parts, the outputs of all parts, each once, then the extents of each part in turn.
    """
    for part in parts:
        if len(part.exprs) != len(part.outputs) or not part.outputs:
            raise OpError(f"map {name}: {len(part.outputs)} outputs for {len(part.exprs)} expressions")
        for access in (*part.inputs, *part.outputs):
            if len(access.strides) != len(part.shape):
                raise OpError(f"map {name}: {access.name} has {len(access.strides)} strides for {len(part.shape)} axes")
    k = KernelBuilder(name)
    align = VECTOR_BYTES if machine.is_gpu and any(_thread_lanes(merged_part(p)) > 1 for p in parts) else 0
    inputs, outputs = [a for p in parts for a in p.inputs], [a for p in parts for a in p.outputs]
    buffers = declare_buffers(k, inputs, outputs, align=align)
    extents = Extents(k)
    scratch: dict[str, Buffer] = {}
    makers = _side_by_side([_PartMaker(k, machine, extents, buffers, part, scratch) for part in parts])
    counts = [maker.blocks() for maker in makers]
    total = counts[0]
    for count in counts[1:]:
        total = total + count
    with k.parallel("block" if machine.is_gpu else "chunk", total) as block:
        _choose_part(k, makers, counts, block)
    return k.build()


def declare_buffers(
    k: KernelBuilder,
    inputs: Sequence[Access],
    outputs: Sequence[Access],
    reads_outputs: bool = False,
    align: int = 0,
) -> dict[str, Buffer]:
    """A pointer for every name; in place is allowed, so nothing is promised about aliasing."""
    read = {a.name: a.dtype for a in inputs}
    written = {a.name: a.dtype for a in outputs}
    buffers = {name: k.pointer(name, dtype, noalias=False, align=align) for name, dtype in read.items()}
    for name, dtype in written.items():
        buffers[name] = k.pointer(name, dtype, write=True, read=reads_outputs, noalias=False, align=align)
    return buffers


def _thread_lanes(part: MapPart) -> int:
    """Neighbouring elements that one thread of a GPU takes: those of a vector in memory."""
    if part.move is not None:
        return 1
    return aligned_lanes(part.shape, (*part.inputs, *part.outputs), part.exprs, len(part.shape) - 1)


def _choose_part(k: KernelBuilder, makers: Sequence[_PartMaker], counts: Sequence[Value], block: Value) -> None:
    """Run the part that a block belongs to, with the number that it has there."""
    if len(makers) == 1:
        makers[0].run(block)
        return
    with k.when(block < counts[0]):
        makers[0].run(block)
    with k.otherwise():
        _choose_part(k, makers[1:], counts[1:], block - counts[0])


def _side_by_side(makers: Sequence[_PartMaker]) -> list[_PartMaker]:
    """Parts whose rows follow each other in one output are visited together, row by row: visited one after the other,
    each would go through all lines of memory for the few of its own elements in each."""
    found: list[_PartMaker] = []
    for maker in makers:
        first = next((other for other in found if other.continues_in(maker)), None)
        if first is None:
            found.append(maker)
        else:
            first.beside.append(maker)
    return found


class _PartMaker:
    def __init__(
        self,
        k: KernelBuilder,
        machine: Machine,
        extents: Extents,
        buffers: dict[str, Buffer],
        part: MapPart,
        scratch: dict[str, Buffer],
    ) -> None:
        self.k, self.machine = k, machine
        # All named extents are parameters, in an order that does not depend on which axes merge.
        for extent in (*part.shape, *(e for a in (*part.inputs, *part.outputs) for e in (*a.strides, a.offset))):
            extents(extent)
        part = merged_part(part)
        self.nest = LoopNest(k, extents, part.shape, buffers, part.inputs, part.outputs, part.all_exprs)
        self.nest.machine = None if machine.is_gpu else machine
        self.narrow = 0 if machine.is_gpu else narrow_size(part, machine.vector_bytes)
        # The axis along which lanes go, and behind it at most one that they cover whole.
        self.part, self.inner = part, len(part.shape) - (2 if self.narrow else 1)
        outer = range(self.inner)
        # CPUs have workers enough without the axes along which the place alone changes.
        is_ordered = part.move is not None and not (part.move.is_unique and machine.is_gpu)
        self.serial = [a for a in outer if is_ordered and not part.outputs[0].moves_along(a)]
        self.dealt = [a for a in outer if a not in self.serial]
        self.inner_size = part.shape[self.inner]
        self.chunk = _chunk(part.shape) // max(self.narrow, 1) // WHOLE_VECTORS * WHOLE_VECTORS
        nodes = self.nest.nodes
        covered = range(self.inner, len(part.shape))
        self.uniform = [n for n in nodes if self.nest.depends(n).isdisjoint(covered)]
        self.register_lanes = max(1, machine.vector_bytes // self.nest.widest(covered, nodes))
        if self.narrow and self.register_lanes % self.narrow == 0:
            self.register_lanes //= self.narrow
        while isinstance(self.inner_size, int) and self.register_lanes // 2 >= max(self.inner_size, 1):
            self.register_lanes //= 2
        self.lanes = self.register_lanes * self.side_by_side()
        self.has_masks = all(self.nest.has_masks(machine, axis) for axis in covered)
        lanes = block_lanes(self.register_lanes)
        # Blocks at the end of an axis are read under a mask.
        turned = None if machine.is_gpu or self.narrow or not self.has_masks else turned_axis(part, lanes)
        self.turned = None
        if turned is not None:
            width = block_width(lanes, self.lanes)
            self.turned = TurnedBlocks(k, self.nest, turned, self.inner, lanes, width, scratch)
            self.chunk = -(-self.chunk // width) * width
        # Parts whose rows are visited together with those of this one.
        self.beside: list[_PartMaker] = []

    def continues_in(self, other: _PartMaker) -> bool:
        """Whether rows of another part stand beside those of this one, and a chunk has whole rows of both."""
        if self.machine.is_gpu or self.inner == 0 or self.part.shape[: self.inner] != other.part.shape[: other.inner]:
            return False
        places = [[(a.name, a.strides[:-1]) for a in maker.part.outputs] for maker in (self, other)]
        if len(places[0]) != 1 or places[0] != places[1]:
            return False
        together = (self, *self.beside, other)
        if any(m.part.move is not None or m.narrow or m.turned is not None for m in together):
            return False
        lengths = [m.inner_size for m in together if isinstance(m.inner_size, int)]
        return len(lengths) == len(together) and sum(lengths) <= CHUNK

    def side_by_side(self) -> int:
        """Registers of a vector. A math function is a long chain of instructions, each of which waits for the one
        before: several chains keep the units busy, where there are registers for them."""
        math = [n.op for n in self.nest.nodes if not is_simple(n)]
        if self.register_lanes == 1 or self.machine.vector_registers < MANY_REGISTERS or not math:
            return 1
        chains = _CHAINS.get(math[0], 1) if len(math) == 1 else 1
        while isinstance(self.inner_size, int) and chains > 1 and self.register_lanes * chains > self.inner_size:
            chains //= 2
        return chains

    def blocks(self) -> Value:
        """Chunks of the part, by its shape alone; a row is the innermost axis."""
        k, sizes = self.k, self.nest.sizes
        if self.machine.is_gpu:
            lanes = self.nest.aligned_lanes = _thread_lanes(self.part)
            # Vectors keep enough bytes in flight by themselves.
            self.steps = 1 if lanes > 1 else GPU_ELEMENTS_PER_THREAD
            self.total = total(k, [sizes[a] for a in (*self.dealt, self.inner)])
            return k.ceildiv(self.total, GPU_THREADS * self.steps * lanes)
        self.parts_of_row = k.ceildiv(sizes[self.inner], self.chunk)
        if self.inner == 0:
            return self.parts_of_row
        elements = total(k, [sizes[a] for a in (*self.serial, self.inner)])
        self.counts = [sizes[a] for a in self.dealt]
        if self.turned is not None:
            self.counts = tile_sizes(k, sizes, self.dealt, self.turned.axis, self.turned.lanes)
            elements = elements * self.turned.lanes
        for maker in self.beside:
            elements = elements + maker.nest.sizes[maker.inner]
        self.rows = total(k, self.counts)
        self.rows_per_chunk = k.max(1, k.as_index(self.chunk) // k.max(elements, 1))
        return (self.rows + (self.rows_per_chunk - 1)) // self.rows_per_chunk * self.parts_of_row

    def run(self, block: Value) -> None:
        if self.machine.is_gpu:
            self.gpu_block(block)
            return
        k = self.k
        if self.inner == 0:
            self.part_of_row({}, block)
            return
        # One chunk is several short rows, or a part of a long one.
        first = (block // self.parts_of_row) * self.rows_per_chunk
        end, part = k.min(first + self.rows_per_chunk, self.rows), block % self.parts_of_row
        if len(self.counts) < 2:
            with k.loop("row", first, end) as row:
                self.row(unflatten(row, self.counts), part)
            return
        # Run by run along the last of the axes: a place need not be divided up for every row.
        run = k.max(self.counts[-1], 1)
        with k.loop("run", first // run, (end + (run - 1)) // run) as number:
            outer, base = unflatten(number, self.counts[:-1]), number * run
            with k.loop("row", k.max(first - base, 0), k.min(end - base, run)) as row:
                self.row([*outer, row], part)

    def row(self, index: Sequence[Value], part: Value) -> None:
        """A part of the row, or of the turned rows, at an index of the axes that are dealt out."""
        starts = dict(zip(self.dealt, index))
        if self.turned is not None:
            self.turned_rows(self.turned, starts, part)
        else:
            self.in_order(starts, self.serial, lambda place: self.part_of_row(place, part))
            for maker in self.beside:
                maker.part_of_row(starts, part)

    def in_order(
        self, starts: Mapping[int, Value], axes: Sequence[int], body: Callable[[Mapping[int, Value]], None]
    ) -> None:
        """Do `body` at every index of some axes, one after the other."""
        if not axes:
            body(starts)
            return
        with self.k.loop(f"j{axes[0]}", 0, self.nest.sizes[axes[0]]) as i:
            self.in_order({**starts, axes[0]: i}, axes[1:], body)

    def part_of_row(self, outer: Mapping[int, Value], part: Value) -> None:
        """Elements part*chunk .. of the row at the outer indices: whole vectors, then a masked one or single ones."""
        k = self.k
        row = Scope(self.nest, outer)
        row.compute(self.uniform)
        if self.has_short_rows():
            self.short_row(row)
            return
        start = part * self.chunk
        stop = k.min(start + self.chunk, self.nest.sizes[self.inner])
        self.stretch(start, stop, lambda i, lanes, exist: self.elements(row, i, lanes, exist))

    def has_short_rows(self) -> bool:
        """Whether rows are so short that their ends matter, and the code is short enough to be there several times."""
        size = self.inner_size
        if self.inner == 0 or self.narrow or not isinstance(size, int) or not self.lanes <= size * 2 <= CHUNK:
            return False
        return len(self.nest.nodes) <= SHORT_CODE and all(is_simple(n) for n in self.nest.nodes)

    def short_row(self, row: Scope) -> None:
        """A whole row of known length: vectors, then narrower and narrower ones instead of one under a mask."""
        k, size, lanes = self.k, int(self.inner_size), self.lanes
        whole = size // lanes * lanes
        with k.loop("i", 0, whole, lanes) as i:
            self.elements(row, i, lanes)
        while (lanes := lanes // 2) and whole < size:
            if size - whole >= lanes:
                self.elements(row, k.as_index(whole), lanes)
                whole += lanes

    def stretch(self, start: Value, stop: Value, elements: Callable[[Value, int, Value | None], None]) -> None:
        """`elements(i, lanes, exist)` over start..stop-1 of a row."""
        k = self.k
        if self.lanes == 1:
            with k.loop("i", start, stop) as i:
                elements(i, 1, None)
            return
        lanes = self.register_lanes
        for width in (self.lanes,) if self.has_masks else dict.fromkeys((self.lanes, lanes)):
            whole = start + (stop - start) // width * width
            with k.loop("i", start, whole, width) as i:
                elements(i, width, None)
            if isinstance(self.inner_size, int) and self.inner_size % width == 0:
                return
            start = whole
        if self.has_masks:
            with k.loop("i", start, stop, lanes) as i:
                elements(i, lanes, stop - i)
        else:
            with k.loop("i", start, stop) as i:
                elements(i, 1, None)

    def turned_rows(self, turned: TurnedBlocks, tile: Mapping[int, Value], part: Value) -> None:
        """A part of as many rows as a block has, which is turned for them piece by piece."""
        k, nest, size = self.k, self.nest, self.nest.sizes[turned.axis]
        first = tile[turned.axis] * turned.lanes
        rows = k.min(size - first, turned.lanes)
        is_whole = isinstance(size, Const) and size.literal % turned.lanes == 0
        begin = part * self.chunk
        stop = k.min(begin + self.chunk, nest.sizes[self.inner])
        with k.loop("piece", begin, stop, turned.width) as start:
            end = k.min(start + turned.width, stop)
            place = {**tile, turned.axis: first, self.inner: start}
            turned.fill(place, end - start, None if is_whole else rows)
            with k.loop("turned_row", 0, rows) as u:
                row = Scope(nest, {**tile, turned.axis: first + u})
                row.compute(self.uniform)

                def elements(i: Value, lanes: int, exist: Value | None) -> None:
                    mask = None if exist is None else k.lane_mask(exist, lanes)
                    at = u * turned.width + (i - start)
                    self.finish(TurnedScope(nest, {self.inner: i}, row, turned, at, lanes, mask))

                self.stretch(start, end, elements)

    def elements(self, row: Scope, i: Value, lanes: int, exist: Value | None = None) -> None:
        """Load, compute and store `lanes` elements from inner index `i`, of which so many may `exist`."""
        if self.narrow:
            self.finish(NarrowScope(self.nest, {self.inner: i}, row, self.narrow, lanes, exist))
            return
        mask = None if exist is None else self.k.lane_mask(exist, lanes)
        self.finish(Scope(self.nest, {self.inner: i}, row, self.inner, lanes, mask))

    def finish(self, scope: Scope) -> None:
        scope.compute(self.nest.nodes)
        move = self.part.move
        if move is None or move.exists is None:
            self.store(scope)
            return
        with self.k.when(scope.value(move.exists)):
            self.store(scope)

    def store(self, scope: Scope) -> None:
        by = scope.value(self.part.move.by) if self.part.move is not None else None
        first = len(self.nest.inputs)
        scope.store_all({first + j: scope.value(expr) for j, expr in enumerate(self.part.exprs)}, by)

    def gpu_block(self, block: Value) -> None:
        """A block covers consecutive elements, neighbouring threads neighbouring ones, so that accesses coalesce."""
        k, lanes = self.k, self.nest.aligned_lanes
        axes = (*self.dealt, self.inner)
        lane_axis = self.inner if lanes > 1 else None

        def finish(at: Mapping[int, Value]) -> None:
            self.finish(Scope(self.nest, at, None, lane_axis, lanes))

        with k.threads("thread", GPU_THREADS) as thread:
            for step in range(self.steps):
                place = block * (GPU_THREADS * self.steps * lanes) + (thread + step * GPU_THREADS) * lanes
                with k.when(place < self.total):
                    starts = dict(zip(axes, unflatten(place, [self.nest.sizes[a] for a in axes])))
                    self.in_order(starts, self.serial, finish)


def _chunk(shape: Sequence[Extent]) -> int:
    """Elements per parallel iteration: more of them where that leaves iterations enough for many workers."""
    sizes = [size for size in shape if isinstance(size, int)]
    is_long = len(sizes) == len(shape) and math.prod(sizes) >= 32 * LONG_CHUNK
    return LONG_CHUNK if is_long else CHUNK


def merged_part(part: MapPart) -> MapPart:
    """The same part with axes merged, at least one of them; indices of the index space keep all axes as they are."""
    accesses = [*part.inputs, *part.outputs]
    has_indices = any(node.op == "index" for node in topological(part.all_exprs))
    axes = merge_axes(part.shape, [a.strides for a in accesses], keep=has_indices) or [(1, (0,) * len(accesses))]
    moved = [replace(a, strides=tuple(strides[n] for _, strides in axes)) for n, a in enumerate(accesses)]
    count = len(part.inputs)
    return replace(
        part, shape=tuple(size for size, _ in axes), inputs=tuple(moved[:count]), outputs=tuple(moved[count:])
    )


def merge_axes(
    shape: Sequence[Extent], strides: Sequence[tuple[Extent, ...]], keep: bool = False
) -> list[tuple[Extent, tuple[Extent, ...]]]:
    """The same index space with fewer axes, as (size, stride per operand): axes of size 1 go, and two axes join where
    for every operand a step of the outer one is a whole run of the inner one. `keep` leaves the axes as they are.

    >>> merge_axes((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    [(2, (12, 0)), (12, (1, 1))]
    """
    axes: list[tuple[Extent, tuple[Extent, ...]]] = []
    for axis, size in enumerate(shape):
        steps = tuple(s[axis] for s in strides)
        if size == 1 and not keep:
            continue
        if not keep and axes and isinstance(size, int) and isinstance(axes[-1][0], int):
            outer_size, outer_steps = axes[-1]
            if all(isinstance(i, int) and o == i * size for o, i in zip(outer_steps, steps)):
                axes[-1] = (int(outer_size) * size, steps)
                continue
        axes.append((size, steps))
    return axes
