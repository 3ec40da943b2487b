"""A product on tensor cores that copy and multiply asynchronously, as Hopper's do: C = epilogue(A @ B, ..).

Blocks that stay walk the tiles of C. One group of threads has tiles of A and B brought into a ring of stages; others
multiply them, a part of the rows each, and finish what they have summed up themselves, two neighbours at a time. A
stage is given back when the product behind it has been started: then the one that read it is awaited, and tensor cores
never wait for one another.

`rlx.kernels.ir.group_interpret` runs this kernel; `rlx.backends.cuda.hopper.group_emit` prints it for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.gpu.pair_finish import finish_kernel
from rlx.kernels.ir.extents import Extents
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.kernels.ir.pair_calls import PairRead
from rlx.kernels.ir.regions import Region, Slabs


class GroupTiles(NamedTuple):
    """A tile of C has `groups` times `rows` rows and `columns` columns of each product; a stage is `depth` elements
    along K. Where an operand does not lie side by side along K, `slab` elements are brought at a time. With `parts` the
    operands are sums, A of two and B of so many numbers, whose parts follow each other along K (`SplitSteps`)."""

    columns: int
    depth: int = 64
    stages: int = 4
    rows: int = 64
    groups: int = 2
    slab: int = 64
    band: int = 8
    parts: int = 0


class SplitSteps(NamedTuple):
    """How a product walks along K whose lines are [rests | rounded] of A and [rounded | rests], or [rounded] alone, of
    B (`rlx.kernels.gpu.expand_codes`): rests of A with B, rounded A with rests of B, and at last what is rounded of
    both. The sums of what is small come first, and lose nothing beside those of what is large.

    >>> [SplitSteps(2).places(step, 10, lambda is_late, a, b: a if is_late else b) for step in (0, 9, 10, 19, 20, 29)]
    [(0, 0), (9, 9), (10, 10), (19, 19), (10, 0), (19, 9)]
    >>> [SplitSteps(1).places(step, 10, lambda is_late, a, b: a if is_late else b) for step in (0, 9, 10, 19)]
    [(0, 0), (9, 9), (10, 0), (19, 9)]
    """

    parts: int

    @property
    def terms(self) -> int:
        return self.parts + 1

    def places(self, step: Any, each: Any, select: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
        """Of a step in A and in B, where a part has so many steps."""
        first = each * self.parts
        is_late = step > first - 1
        rounded = step - first
        return select(is_late, rounded + each, step), select(is_late, rounded, step)


# Threads of a group, and the registers of those that bring tiles and of those that multiply.
GROUP_THREADS = 128
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232


def product_kernel(product: Product, tiles: GroupTiles) -> Kernel:
    """The kernel, whose parameters are the matrices and sizes of the product, then how many blocks there are, tiles of
    rows and of columns, and steps along K, at least one."""
    return _ProductMaker(product, tiles).kernel()


class _ProductMaker:
    def __init__(self, product: Product, tiles: GroupTiles) -> None:
        k = self.k = GroupBuilder("product")
        self.product, self.tiles = product, tiles
        epilogue = product.epilogue
        self.operands = epilogue.operands if epilogue else ()
        self.buffers: dict[str, Buffer] = {}
        for matrix in (product.a, *product.bs, *self.operands):
            self.buffers[matrix.name] = k.pointer(matrix.name, matrix.dtype, noalias=False)
        for matrix in product.cs:
            self.buffers[matrix.name] = k.pointer(matrix.name, matrix.dtype, write=True, noalias=False)
        self.extents = Extents(k)
        self.m, self.n, self.depth = (self.extents(s) for s in (product.m, product.n, product.k))
        for matrix in (product.a, *product.bs, *product.cs, *self.operands):
            for stride in (matrix.batch_stride, matrix.row_stride, matrix.col_stride, matrix.offset):
                self.extents(stride)
        self.blocks, self.row_tiles, self.column_tiles, self.steps = (
            k.index(name) for name in ("blocks", "row_tiles", "column_tiles", "steps")
        )
        self.split = SplitSteps(tiles.parts)
        self.is_turned = product.a.col_stride != 1
        self.along_k = all(b.row_stride == 1 for b in product.bs)
        self.a_size = tiles.groups * tiles.rows * tiles.depth
        self.b_size = tiles.columns * tiles.depth
        self.stage_size = self.a_size + len(product.bs) * self.b_size
        dtype = product.a.dtype
        self.stages = k.shared("stages", dtype, tiles.stages * self.stage_size, align=1024)
        self.stage_bytes = self.stage_size * dtype.size_bytes
        self.full = k.phases("full", tiles.stages)
        self.empty = k.phases("empty", tiles.stages, tiles.groups)
        self.totals = [k.fragment(f"total{i}", DType.F32, tiles.rows, tiles.columns) for i in range(len(product.bs))]
        self.done = k.token("done")

    def kernel(self) -> Kernel:
        k, tiles = self.k, self.tiles
        with k.parallel("block", self.blocks):
            k.assume(self.steps > 0)
            # Counted once, and not by each role.
            self.row_tiles * self.column_tiles
            if tiles.parts:
                self.part_steps = self.steps // self.split.terms
            with k.roles() as roles:
                with roles.role("producer", threads=GROUP_THREADS, registers=PRODUCER_REGISTERS):
                    self.produce()
                with roles.role(
                    "consumer", threads=GROUP_THREADS, copies=tiles.groups, registers=CONSUMER_REGISTERS
                ) as group:
                    self.consume(group)
        return k.build()

    def advanced(self, stage: Value, round: Value) -> list[Value]:
        """The stage behind, and how often the ring has been gone through."""
        k = self.k
        following = stage + 1
        wraps = k.eq(following, self.tiles.stages)
        return [k.select(wraps, 0, following), round + k.select(wraps, k.as_index(1), 0)]

    # The group that brings tiles.

    def produce(self) -> None:
        k, tiles = self.k, self.tiles
        zero = k.as_index(0)
        with k.walk("tile", self.row_tiles, self.column_tiles, band=tiles.band, init=[zero, zero]) as (row, col, walk):
            row, column = row * (tiles.groups * tiles.rows), col * tiles.columns
            with k.fold("step", 0, self.steps, init=walk.values) as ring:
                stage, round = ring.values
                k.await_phases(self.empty, stage, round)
                k.arrive(self.full, stage, bytes=self.stage_bytes)
                of_a = of_b = ring.index
                if tiles.parts:
                    of_a, of_b = self.split.places(ring.index, self.part_steps, k.select)
                self.bring_a(stage, row, of_a * tiles.depth)
                for number, b in enumerate(self.product.bs):
                    self.bring_b(stage, number, b, column, of_b * tiles.depth)
                ring.next(*self.advanced(stage, round))
            walk.next(*ring.results)

    def bring_a(self, stage: Value, row: Value, depth: Value) -> None:
        k, tiles = self.k, self.tiles
        start = stage * self.stage_size
        if not self.is_turned:
            rows = tiles.groups * tiles.rows
            self.bring(k.region(self.stages, start, rows, tiles.depth), self.product.a, row, depth, stage)
            return
        # A slab for each group.
        for group in range(tiles.groups):
            to = k.region(self.stages, start + group * tiles.rows * tiles.depth, tiles.depth, tiles.rows)
            self.bring(to, self.product.a, depth, row + group * tiles.rows, stage, is_turned=True)

    def bring_b(self, stage: Value, number: int, b: Matrix, column: Value, depth: Value) -> None:
        k, tiles = self.k, self.tiles
        start = stage * self.stage_size + (self.a_size + number * self.b_size)
        if self.along_k:
            to = k.region(self.stages, start, tiles.columns, tiles.depth)
            self.bring(to, b, column, depth, stage, is_turned=True)
            return
        for slab in range(tiles.columns // tiles.slab):
            to = k.region(self.stages, start + slab * tiles.slab * tiles.depth, tiles.depth, tiles.slab)
            self.bring(to, b, depth, column + slab * tiles.slab, stage)

    def bring(self, to: Region, matrix: Matrix, row: Value, col: Value, stage: Value, is_turned: bool = False) -> None:
        """Start to copy a box of a matrix, or of its transpose if that is how its elements lie side by side."""
        k, a = self.k, self.product.a
        # Of all parts of a line.
        parts = self.tiles.parts and (2 if matrix is a else self.tiles.parts)
        depth = self.depth * parts if parts else self.depth
        height, width = (self.m, depth) if matrix is a else (depth, self.n)
        pitch = matrix.row_stride
        if is_turned:
            height, width, pitch = width, height, matrix.col_stride
        whole = k.region(self.buffers[matrix.name], self.extents(matrix.offset), 1, 1, self.extents(pitch))
        k.start_copy(to, k.box(whole, row, col, to.rows, to.cols, height, width), self.full, stage)

    # The groups that multiply.

    def consume(self, group: Value) -> None:
        k, tiles = self.k, self.tiles
        zero, parts = k.as_index(0), len(self.totals)
        with k.walk("tile", self.row_tiles, self.column_tiles, band=tiles.band, init=[zero] * 3) as (row, col, walk):
            row, column = row * (tiles.groups * tiles.rows), col * tiles.columns
            for total in self.totals:
                k.fill(total, 0.0)
            with k.fold("step", 0, self.steps, init=walk.values) as ring:
                stage, round, before = ring.values
                k.await_phases(self.full, stage, round + 1)
                for number, total in enumerate(self.totals):
                    self.multiply(total, number, stage, group)
                # What read the stage before has ended when only these are under way.
                k.await_token(self.done, running=parts)
                with k.when(ring.index > 0):
                    k.arrive(self.empty, before)
                ring.next(*self.advanced(stage, round), stage)
            k.await_token(self.done)
            k.arrive(self.empty, ring.results[2])
            self.finish(row + group * tiles.rows, column)
            walk.next(*ring.results)

    def multiply(self, total: Buffer, number: int, stage: Value, group: Value) -> None:
        k, tiles = self.k, self.tiles
        start = stage * self.stage_size
        own, first = start + group * (tiles.rows * tiles.depth), start + (self.a_size + number * self.b_size)
        shape = (tiles.depth, tiles.rows) if self.is_turned else (tiles.rows, tiles.depth)
        a = k.region(self.stages, own, *shape)
        b: Region | Slabs = k.slabs(self.stages, first, tiles.depth, tiles.columns, tiles.slab)
        if self.along_k:
            b = k.region(self.stages, first, tiles.columns, tiles.depth)
        k.mma(total, a, b, self.done, a_transposed=self.is_turned, b_transposed=self.along_k)

    def finish(self, row: Value, column: Value) -> None:
        reads = [
            PairRead(self.buffers[o.name], *(self.extents(s) for s in (o.offset, o.row_stride, o.col_stride)))
            for o in self.operands
        ]
        self.k.call_pairs(finish_kernel(self.product), self.totals, (row, column), (self.m, self.n), reads)
