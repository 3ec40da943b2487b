"""`row_kernel`: maps and reductions along rows in one kernel: softmax, norms, losses, sums over any axes.

A row is visited once for each reduction that needs the ones before it, and once more to store what has an element for
each of its own: softmax is max, then sum of exp, then the quotients. A row is in cache after the first visit. Lanes lie
along the row; where memory runs the other way, as in a sum over columns, lanes are neighbouring rows. In both cases
a sum is formed in an order that the shape alone decides, so that every number of workers gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import CHUNK, GPU_THREADS, declare_buffers
from rlx.kernels.cpu.row_visits import Visit, may_keep_in_outputs, needed, plan_visits
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents, total, unflatten
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Literal, Value
from rlx.kernels.ir.subgroups import has_subgroup_join, join_subgroups
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import JOINS, Expr, compute_dtype, is_simple
from rlx.kernels.specs.scopes import SPAN, VECTOR_BYTES, Access, LoopNest, Scope, aligned_lanes
from rlx.ops.reduction.reductions import ReduceOp, identity_of

# Vectors of this many registers keep enough additions in flight; code with math functions needs the registers itself.
WIDE = 4
# Across rows a wide vector is a longer piece of each line of memory: fewer pages are touched for the same work.
WIDEST = 8
# There should be some vectors of rows for each worker.
UNITS = 8
# Elements of a row that a thread of a GPU keeps from visit to visit.
MOST_IN_REGISTERS = 32
# Threads of a GPU that run in step.
WARP = 32
# Elements that a thread of a GPU reads before it does anything with them, of rows that lie across, and how much may be
# computed of each.
AT_ONCE, MOST_NODES = 8, 32

# What is done at each place of a row: carried values in, carried values out.
Body = Callable[[Scope, Sequence[Value]], Sequence[Value]]


def row_kernel(
    name: str,
    machine: Machine,
    rows: Sequence[Extent],
    length: Sequence[Extent],
    inputs: Sequence[Access],
    outputs: Sequence[Access],
    exprs: Sequence[Expr],
) -> Kernel:
    """`outputs[j] = exprs[j]` for every row of the index space `rows` and every element of the axes `length` of a row.

    Strides of accesses are those of `rows`, then those of `length`. A `reduce` joins all elements of a row. An output
    that does not move along the row is stored once per row. An output may be the same memory as an input with the same
    layout. Parameters are those of a map: inputs, outputs, then every named extent once.
    """
    if not length:
        raise OpError(f"row {name}: a row needs at least one axis; use map_kernel")
    if len(exprs) != len(outputs) or not outputs:
        raise OpError(f"row {name}: {len(outputs)} outputs for {len(exprs)} expressions")
    for access in (*inputs, *outputs):
        if len(access.strides) != len(rows) + len(length):
            raise OpError(
                f"row {name}: {access.name} has {len(access.strides)} strides for {len(rows)} + {len(length)} axes"
            )
    return _RowMaker(name, machine, (*rows, *length), len(rows), inputs, outputs, exprs).build()


class _RowMaker:
    def __init__(
        self,
        name: str,
        machine: Machine,
        shape: tuple[Extent, ...],
        row_count: int,
        inputs: Sequence[Access],
        outputs: Sequence[Access],
        exprs: Sequence[Expr],
    ) -> None:
        k = self.k = GroupBuilder(name) if machine.has_subgroups else KernelBuilder(name)
        self.machine, self.shape = machine, shape
        is_fixed = all(isinstance(size, int) for size in shape[row_count:])
        fixed = math.prod(int(size) for size in shape[row_count:]) if is_fixed else None
        self.row_axes = list(range(row_count))
        length = range(row_count, len(shape))
        accesses = (*inputs, *outputs)
        self.lane_axis = self.best_lane_axis(length, accesses)
        in_vectors = machine.is_gpu and self.lane_axis in length
        lanes = aligned_lanes(shape, accesses, exprs, self.lane_axis) if in_vectors else 1
        align = VECTOR_BYTES if lanes > 1 else 0
        buffers = declare_buffers(k, inputs, outputs, may_keep_in_outputs(exprs, fixed), align)
        nest = self.nest = LoopNest(k, Extents(k), shape, buffers, inputs, outputs, exprs, length)
        nest.aligned_lanes = lanes
        nest.machine = None if machine.is_gpu else machine
        # Of a GPU that share a row.
        self.threads = self.threads_of_row(lanes)
        # The axis that lanes cover is the innermost one.
        self.length_axes = sorted(length, key=lambda axis: axis == self.lane_axis)
        self.lies_along_rows = self.lane_axis in length
        self.stored_per_element = [
            j for j, a in enumerate(outputs) if any(a.moves_along(axis) for axis in self.length_axes)
        ]
        self.stored_per_row = [j for j in range(len(outputs)) if j not in self.stored_per_element]
        self.plan = plan_visits(nest, self.stored_per_element, fixed, self.lies_along_rows and not machine.is_gpu)
        self.kept = self.place_kept()
        self.has_masks = nest.has_masks(machine, self.lane_axis)
        self.shared: dict[str, Buffer] = {}
        self.exchanges = 0
        # By the number of the vector: values of the row that a thread of a GPU has in registers.
        self.held: dict[int, dict[Expr, Value]] = {}

    def best_lane_axis(self, length: range, accesses: Sequence[Access]) -> int:
        """The axis along which most of what is accessed lies side by side in memory; in doubt, along the row."""
        weights = dict.fromkeys(range(len(self.shape)), 0)
        sizes = [size for size in self.shape if isinstance(size, int)]
        by_size = len(sizes) == len(self.shape)
        for access in accesses:
            moved = [axis for axis in weights if access.moves_along(axis)]
            # A few numbers of each row, as the moments of a bias after its gradient, cost nothing beside the rows.
            weight = math.prod(sizes[axis] for axis in moved) if by_size else len(moved)
            for axis in moved:
                # Elements that lie a few apart are read with those between, which others of them may be.
                step = access.strides[axis]
                weights[axis] += weight * (2 if step == 1 else int(isinstance(step, int) and 1 < step <= SPAN))
        return max(reversed(weights), key=lambda axis: (weights[axis], axis in length))

    def threads_of_row(self, lanes: int) -> int:
        """As many as a block has, or fewer where then each has whole vectors of a row and keeps them in registers."""
        axes = [axis for axis in range(len(self.shape)) if axis not in self.row_axes]
        size = self.shape[axes[0]]
        if self.machine.gpu != "nvptx" or len(axes) > 1 or not isinstance(size, int) or lanes == 1:
            return GPU_THREADS
        if size % (GPU_THREADS * lanes) == 0:
            return GPU_THREADS
        fitting = (t for t in range(WARP, GPU_THREADS, WARP) if size % (t * lanes) == 0)
        return next((t for t in fitting if size // t <= MOST_IN_REGISTERS), GPU_THREADS)

    def place_kept(self) -> dict[Expr, int]:
        """The accesses of what is kept; memory of the thread is in the order in which the axes of a row are visited."""
        places: dict[Expr, int] = {}
        for node, output in self.plan.kept.items():
            places[node] = self.add_local(f"kept{len(places)}", node) if output is None else output
        return places

    def add_local(self, name: str, node: Expr) -> int:
        dtype = compute_dtype(node.dtype)
        strides: dict[int, int] = {}
        step = 1
        for axis in reversed(self.length_axes):
            strides[axis] = step
            step *= int(self.shape[axis])
        access = Access(name, dtype, tuple(strides.get(a, 0) for a in range(len(self.shape))))
        return self.nest.add(access, self.k.local(name, dtype, max(step, 1)))

    def build(self) -> Kernel:
        if self.machine.is_gpu:
            self.gpu()
        elif self.lies_along_rows:
            self.cpu_along_rows()
        else:
            self.cpu_across_rows()
        return self.k.build()

    def cpu_along_rows(self) -> None:
        """A chunk is one long row or several short ones."""
        k, sizes = self.k, self.nest.sizes
        rows = total(k, [sizes[a] for a in self.row_axes])
        per_chunk = self.per_chunk(total(k, [sizes[a] for a in self.length_axes]))
        with self.chunks("row", rows, per_chunk) as row:
            self.row(Scope(self.nest, self.row_starts(self.row_axes, row)))

    def cpu_across_rows(self) -> None:
        """A unit is a vector of neighbouring rows; a chunk is one unit of long rows or several of short ones."""
        k, sizes = self.k, self.nest.sizes
        outer = [a for a in self.row_axes if a != self.lane_axis]
        lanes = self.lanes_across()
        side = sizes[self.lane_axis]
        blocks = k.ceildiv(side, lanes)
        units = total(k, [sizes[a] for a in outer]) * blocks
        per_chunk = self.per_chunk(total(k, [sizes[a] for a in self.length_axes]) * lanes)
        with self.chunks("unit", units, per_chunk) as unit:
            self.vector_of_rows(self.row_starts(outer, unit // blocks), unit % blocks * lanes, lanes)

    def vector_of_rows(self, starts: dict[int, Value], first: Value, lanes: int) -> None:
        k, side = self.k, self.nest.sizes[self.lane_axis]

        def lanes_from(row: Value, lanes: int, mask: Value | None = None) -> None:
            self.row(Scope(self.nest, {**starts, self.lane_axis: row}, None, self.lane_axis, lanes, mask))

        if isinstance(side, Const) and side.literal % lanes == 0:
            lanes_from(first, lanes)
            return
        # Only the last vector has lanes without a row: a mask would cost all others more than what they compute.
        with k.when(first + lanes <= side):
            lanes_from(first, lanes)
        with k.otherwise():
            if not self.has_masks:
                with k.loop("last", first, side) as row:
                    lanes_from(row, 1)
                return
            for width, is_whole in self.last_vectors(side, lanes):
                lanes_from(first, width, None if is_whole else k.lane_mask(side - first, width))
                first = first + width

    def last_vectors(self, side: Value, lanes: int) -> list[tuple[int, bool]]:
        """The vectors of the rows behind those of so many lanes, and whether each is whole: narrower and narrower ones
        where the number of rows is known and the code is short."""
        if not isinstance(side, Const) or not all(is_simple(n) for n in self.nest.nodes):
            return [(lanes, False)]
        left, found = int(side.literal) % lanes, []
        while lanes > self.register_lanes():
            lanes //= 2
            if left >= lanes:
                found.append((lanes, True))
                left -= lanes
        return [*found, (lanes, False)] if left else found

    def gpu(self) -> None:
        """A block for each row whose elements lie side by side, else a thread for each row."""
        k, sizes = self.k, self.nest.sizes
        order = sorted(self.row_axes, key=lambda axis: axis == self.lane_axis)
        rows = total(k, [sizes[a] for a in order])
        if self.lies_along_rows:
            with k.parallel("row", rows) as row, k.threads("thread", self.threads) as thread:
                self.thread = thread
                self.row(Scope(self.nest, self.row_starts(order, row)))
            return
        with k.parallel("block", k.ceildiv(rows, GPU_THREADS)) as block, k.threads("thread", GPU_THREADS) as thread:
            row = block * GPU_THREADS + thread
            with k.when(row < rows):
                self.row(Scope(self.nest, self.row_starts(order, row)))

    @contextmanager
    def chunks(self, name: str, count: Value, per_chunk: Value) -> Iterator[Value]:
        """A loop over 0..count-1, `per_chunk` of them in one parallel iteration."""
        k = self.k
        with k.parallel("chunk", (count + (per_chunk - 1)) // per_chunk) as chunk:
            first = chunk * per_chunk
            with k.loop(name, first, k.min(first + per_chunk, count)) as index:
                yield index

    def per_chunk(self, elements: Value) -> Value:
        return self.k.max(1, self.k.as_index(CHUNK) // self.k.max(elements, 1))

    def row_starts(self, axes: Sequence[int], row: Value) -> dict[int, Value]:
        return dict(zip(axes, unflatten(row, [self.nest.sizes[a] for a in axes])))

    def lanes(self, visit: Visit) -> int:
        """Elements of a vector along the row: as many as fit into one register, into several for short code."""
        if self.machine.is_gpu:
            return self.nest.aligned_lanes
        lanes = max(1, self.machine.vector_bytes // self.nest.widest([self.lane_axis], visit.nodes))
        if lanes > 1 and all(is_simple(n) for n in visit.nodes if n not in visit.loads):
            lanes *= WIDE
        side = self.shape[self.lane_axis]
        while isinstance(side, int) and lanes > 1 and lanes // 2 >= side:
            lanes //= 2
        return lanes

    def lanes_across(self) -> int:
        """Neighbouring rows in one vector: many, as long as workers have some vectors, and an only one is full."""
        nodes, lanes = self.nest.nodes, self.register_lanes()
        if lanes == 1:
            return 1
        side = self.shape[self.lane_axis]
        if not isinstance(side, int):
            return lanes * WIDE
        sizes = [self.shape[axis] for axis in self.row_axes if axis != self.lane_axis]
        others = math.prod(size for size in sizes if isinstance(size, int))
        wide = WIDEST if all(is_simple(n) for n in nodes) else WIDE
        while wide > 1 and (side < lanes * wide or others * side < lanes * wide * UNITS):
            wide //= 2
        return lanes * wide

    def register_lanes(self) -> int:
        """Neighbouring rows in one register."""
        return max(1, self.machine.vector_bytes // self.nest.widest([self.lane_axis], self.nest.nodes))

    # What happens in one row, or in one vector of rows.

    def row(self, scope: Scope) -> None:
        whole = self.only_visit()
        for number, reductions in enumerate(self.plan.passes):
            visit = whole or self.plan.visits[number]
            scope.values.update(zip(reductions, self.joined(scope, reductions, visit, whole is not None)))
        if self.stored_per_element and whole is None:
            self.store_elements(scope)
        if not self.stored_per_row:
            return
        scope.compute(needed([self.nest.exprs[j] for j in self.stored_per_row]))
        if self.machine.is_gpu and self.lies_along_rows:
            with self.k.when(self.k.eq(self.thread, 0)):
                self.store_row(scope)
        else:
            self.store_row(scope)

    def store_row(self, scope: Scope) -> None:
        for j in self.stored_per_row:
            scope.store(len(self.nest.inputs) + j, scope.value(self.nest.exprs[j]))

    def only_visit(self) -> Visit | None:
        """The visit that does all, where elements that are stored do not wait for what is joined; on GPUs, whose
        threads would read and compute them again."""
        roots = [self.nest.exprs[j] for j in self.stored_per_element]
        if not self.machine.is_gpu or len(self.plan.passes) != 1 or not roots:
            return None
        nodes = needed([*(r.args[0] for r in self.plan.passes[0]), *roots])
        return None if any(n.op == "reduce" for n in nodes) else Visit(nodes, [], [])

    def store_elements(self, scope: Scope) -> None:
        def body(place: Scope, values: Sequence[Value]) -> Sequence[Value]:
            self.store_element(place)
            return values

        self.visit(scope, self.plan.visits[-1], self.element_accesses(), [], [], body)

    def element_accesses(self) -> list[int]:
        return [len(self.nest.inputs) + j for j in self.stored_per_element]

    def store_element(self, place: Scope) -> None:
        values = (place.value(self.nest.exprs[j]) for j in self.stored_per_element)
        place.store_all(dict(zip(self.element_accesses(), values)))

    def joined(self, scope: Scope, reductions: Sequence[Expr], visit: Visit, stores: bool) -> list[Value]:
        """The values of reductions that need nothing of each other, in one visit of the row, which also stores elements
        if it is the only one."""
        k = self.k
        lanes = self.lanes(visit) if self.lies_along_rows else scope.lanes
        starts = [self.identity(r) for r in reductions]

        def body(place: Scope, values: Sequence[Value]) -> Sequence[Value]:
            if stores:
                self.store_element(place)
            return [self.join(r, place, value) for r, value in zip(reductions, values)]

        wide = [k.splat(s, lanes if self.has_lanes(r) else 1) for r, s in zip(reductions, starts)]
        vectors, singles = self.visit(scope, visit, self.element_accesses() if stores else [], wide, starts, body)
        if not self.lies_along_rows:
            return list(vectors)
        totals = [k.reduce(JOINS[str(r.value)][0], v) for r, v in zip(reductions, vectors)]
        if singles is not starts:
            totals = [k.op(JOINS[str(r.value)][0], a, b) for r, a, b in zip(reductions, totals, singles)]
        return self.over_threads(reductions, totals) if self.machine.is_gpu else totals

    def has_lanes(self, reduction: Expr) -> bool:
        """Whether partial results have lanes: always along the row, across rows if the rows differ."""
        return self.lies_along_rows or self.lane_axis in self.nest.depends(reduction.args[0])

    def identity(self, reduction: Expr) -> Value:
        dtype = compute_dtype(reduction.dtype)
        value: Literal = identity_of(ReduceOp(str(reduction.value)), dtype)
        return self.k.const(value, dtype)

    def join(self, reduction: Expr, place: Scope, total: Value) -> Value:
        k = self.k
        value = k.splat(place.value(reduction.args[0]), total.lanes)
        if place.mask is not None and self.lies_along_rows:
            value = k.select(place.mask, value, k.splat(self.identity(reduction), total.lanes))
        return k.op(JOINS[str(reduction.value)][0], total, value)

    def visit(
        self,
        scope: Scope,
        visit: Visit,
        written: Sequence[int],
        vectors: Sequence[Value],
        singles: Sequence[Value],
        body: Body,
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """Do `body` at every place of the row. `vectors` are carried from vector to vector, and `singles`, where there
        are elements beside the vectors, from one of these to the next."""
        read = [int(n.value) for n in visit.nodes if n.op in ("operand", "gather") and n not in visit.loads]
        kept = [self.kept[n] for n in (*visit.loads, *visit.saves)]
        touched = list(dict.fromkeys((*read, *written, *kept)))
        scope.compute(n for n in visit.nodes if not self.nest.depends(n) & self.nest.joined)

        def everything(place: Scope, values: Sequence[Value]) -> Sequence[Value]:
            for node in visit.loads:
                place.values[node] = place.load(self.kept[node])
            place.compute(visit.nodes)
            for node in visit.saves:
                place.store(self.kept[node], place.value(node))
            return body(place, values)

        sweep = _Sweep(visit.nodes, frozenset(visit.loads), touched, self.lanes(visit), everything)
        return self.visit_axes(sweep, scope, self.length_axes, vectors, singles)

    def visit_axes(
        self, sweep: _Sweep, scope: Scope, axes: Sequence[int], vectors: Sequence[Value], singles: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        axis, *rest = axes
        if not rest:
            return self.visit_innermost(sweep, scope, axis, vectors, singles)
        k, count = self.k, len(vectors)
        with k.fold(f"j{axis}", 0, self.nest.sizes[axis], init=[*vectors, *singles]) as fold:
            place = scope.inside({axis: fold.index}, sweep.touched)
            place.compute(n for n in sweep.nodes if n not in sweep.later and not self.nest.depends(n) & {*rest})
            carried = self.visit_axes(sweep, place, rest, fold.values[:count], fold.values[count:])
            fold.next(*carried[0], *carried[1])
        return fold.results[:count], fold.results[count:]

    def visit_innermost(
        self, sweep: _Sweep, scope: Scope, axis: int, vectors: Sequence[Value], singles: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """Whole vectors, then a masked one or single elements; across rows and on a GPU one element at a time."""
        size, lanes = self.nest.sizes[axis], sweep.lanes
        if not self.lies_along_rows:
            step = self.elements_at_once(axis, sweep.nodes)
            return self.loop(sweep, scope, axis, (0, size, step), vectors), singles
        if self.machine.is_gpu:
            if self.steps_in_registers(axis, lanes):
                return self.in_registers(sweep, scope, axis, vectors, lanes), singles
            bounds = (self.thread * lanes, size, self.threads * lanes)
            return self.loop(sweep, scope, axis, bounds, vectors, lanes), singles
        whole = size // lanes * lanes
        if not (isinstance(whole, Const) and whole.literal == 0):
            vectors = self.loop(sweep, scope, axis, (0, whole, lanes), vectors, lanes)
        if lanes == 1 or (isinstance(size, Const) and size.literal % lanes == 0):
            return vectors, singles
        if self.has_masks:
            return self.loop(sweep, scope, axis, (whole, size, lanes), vectors, lanes, is_masked=True), singles
        return vectors, self.loop(sweep, scope, axis, (whole, size, 1), singles)

    def steps_in_registers(self, axis: int, lanes: int) -> int:
        """How many vectors of a row each thread of a block has, if the row is so short that they stay in registers from
        visit to visit; else 0."""
        size = self.shape[axis]
        if not isinstance(size, int) or len(self.length_axes) > 1 or size % (self.threads * lanes):
            return 0
        return size // (self.threads * lanes) if size // self.threads <= MOST_IN_REGISTERS else 0

    def in_registers(
        self, sweep: _Sweep, scope: Scope, axis: int, values: Sequence[Value], lanes: int
    ) -> Sequence[Value]:
        """All vectors of this thread, one after the other; what was read or cost much on an earlier visit is there."""
        for step in range(self.steps_in_registers(axis, lanes)):
            start = self.thread * lanes + step * self.threads * lanes
            place = Scope(self.nest, {axis: start}, scope, axis, lanes, None, sweep.touched)
            held = self.held.setdefault(step, {})
            place.values.update(held)
            values = sweep.body(place, values)
            found = ((n, v) for n, v in place.values.items() if axis in self.nest.depends(n))
            held.update((n, v) for n, v in found if n.op == "operand" or not is_simple(n))
        return values

    def loop(
        self,
        sweep: _Sweep,
        scope: Scope,
        axis: int,
        bounds: tuple[Value | int, Value, int],
        values: Sequence[Value],
        lanes: int = 1,
        is_masked: bool = False,
    ) -> Sequence[Value]:
        """From start to stop by steps, `lanes` elements of the row or one element of each lane of rows at a time."""
        k = self.k
        start, stop, step = bounds
        with k.fold(f"i{axis}", start, stop, step, init=values) as fold:
            if self.lies_along_rows:
                mask = k.lane_mask(stop - fold.index, lanes) if is_masked else None
                place = Scope(self.nest, {axis: fold.index}, scope, axis, lanes, mask, sweep.touched)
            else:
                place = scope.inside({axis: fold.index}, sweep.touched)
            carried: Sequence[Value] = fold.values
            if not self.lies_along_rows and step > 1:
                places = [place, *(scope.inside({axis: fold.index + i}, sweep.touched) for i in range(1, step))]
                # All are read before the first is stored: one wait instead of many.
                for one in places:
                    one.compute(sweep.nodes)
                for one in places[:-1]:
                    carried = sweep.body(one, carried)
                place = places[-1]
            fold.next(*sweep.body(place, carried))
        return fold.results

    def elements_at_once(self, axis: int, nodes: Sequence[Expr]) -> int:
        """Elements of a row across which a thread of a GPU goes at a time."""
        size = self.shape[axis]
        most = AT_ONCE if all(is_simple(n) for n in nodes) else AT_ONCE // 2
        if self.machine.gpu != "nvptx" or not isinstance(size, int) or len(nodes) > MOST_NODES or size % most:
            return 1
        return most

    def over_threads(self, reductions: Sequence[Expr], values: Sequence[Value]) -> list[Value]:
        """The values of all threads of a block joined, and known to all of them: first by one warp, each thread of it
        those of its own number, then by everybody."""
        k, thread = self.k, self.thread
        partial = [self.exchange(number, value.dtype) for number, value in enumerate(values)]
        # The next exchange has memory of its own: nobody stores to this one before everybody has read it.
        self.exchanges += 1
        joins = [JOINS[str(r.value)][0] for r in reductions]
        if isinstance(k, GroupBuilder) and all(has_subgroup_join(j, v) for j, v in zip(joins, values)):
            return join_subgroups(k, joins, values, partial)
        for buffer, value in zip(partial, values):
            k.store(buffer, thread, value)
        k.barrier()
        with k.when(thread < WARP):
            for buffer, join in zip(partial, joins):
                parts = [k.load(buffer, thread + start) for start in range(0, self.threads, WARP)]
                k.store(buffer, thread, self.in_pairs(join, parts))
        k.barrier()
        return [self.in_pairs(j, [k.load(b, i) for i in range(WARP)]) for b, j in zip(partial, joins)]

    def exchange(self, number: int, dtype: DType) -> Buffer:
        name = f"partial{self.exchanges % 2}_{number}_{dtype}"
        if name not in self.shared:
            self.shared[name] = self.k.shared(name, dtype, self.threads)
        return self.shared[name]

    def in_pairs(self, join: str, values: list[Value]) -> Value:
        while len(values) > 1:
            half = len(values) // 2
            rest = values[2 * half :]
            values = [self.k.op(join, a, b) for a, b in zip(values[:half], values[half:])] + rest
        return values[0]


class _Sweep(NamedTuple):
    """How a visit goes: what is computed (`later` of it is loaded), which accesses that touches, how wide, and what is
    done at each place."""

    nodes: Sequence[Expr]
    later: frozenset[Expr]
    touched: Sequence[int]
    lanes: int
    body: Body
