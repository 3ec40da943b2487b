"""Triangular systems by substitution; `factorize` has what makes other systems triangular."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.matmul.tiles import MatrixView, copy_lines
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.column_blocks import COLUMNS, ColumnBlock
from rlx.kernels.cpu.ops.windows import lane_count
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import FLOATS, Value
from rlx.ops.linalg.solve import TriangularSolve

# What a register tile has: rows of the matrix, and vectors of right sides; fewer where there would be few tiles.
ROWS, VECTORS = 4, 4
FEW_TILES = 4
# Rows of a block, and right sides up to which most of a block would be empty.
BLOCK, FEW_COLUMNS = 64, 16
# Where the next row of a block in scratch begins: not in the same set of a cache.
WIDTH = BLOCK + 8


def _are_real(op: Op, operands: Sequence[Shape]) -> bool:
    return all(t.dtype in FLOATS for t in operands)


@op_kernel(TriangularSolve, kind="solve", supports=_are_real)
def triangular_solve(site: OpSite) -> None:
    """x[i] = (b[i] - Σ A[i, j]·x[j]) / A[i, i], over the j that are known already; from the last row up if only those
    below are. The lanes are right sides; one iteration solves for some vectors of them. Sums are formed in f64."""
    if _has_blocks(site):
        _BlockSubstitution(site).build()
    else:
        _Substitution(site).build()


def _has_blocks(site: OpSite) -> bool:
    """Whether there are rows and right sides enough for products of blocks."""
    size, columns = site.inputs[1].shape.dims[-2:]
    are_many = all(isinstance(n, int) and n >= least for n, least in ((size, BLOCK), (columns, FEW_COLUMNS)))
    return are_many and not site.machine.is_gpu


class _BlockSubstitution:
    """Some columns of x at a time, from block to block of rows: b less the products with all blocks that are known, and
    then substitution within the block."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, TriangularSolve)
        self.k, self.op = site.k, site.op
        (self.a, self.b), (self.x,) = site.inputs, site.outputs
        self.size, self.columns = self.b.dims[-2:]
        self.is_forward = site.op.lower != site.op.transpose
        self.sums, self.known = (ColumnBlock(site, name, BLOCK) for name in ("sums", "known"))
        # Numbers that are widened are so once for all columns of a block.
        self.widened = None if self.a.shape.dtype is DType.F64 else self.k.local("factors", DType.F64, BLOCK * WIDTH)

    def build(self) -> None:
        k, lead = self.k, self.b.dims[:-2]
        groups, blocks = k.ceildiv(self.columns, COLUMNS), k.ceildiv(self.size, BLOCK)
        with k.parallel("group", total(k, lead) * groups) as group:
            self.place = unflatten(group // groups, lead)
            self.first = group % groups * COLUMNS
            self.count = k.min(self.columns - self.first, COLUMNS)
            with k.loop("step", 0, blocks) as step:
                self.solve(step if self.is_forward else blocks - 1 - step, blocks)

    def solve(self, block: Value, blocks: Value) -> None:
        """x in the rows of one block."""
        k, start = self.k, block * BLOCK
        rows = k.min(self.size - start, BLOCK)
        # Tiles are whole: the last row stands in for those that are not there.
        tile = self.sums.shape.tile_rows
        line = self.line(self.b, start)
        filled = k.ceildiv(rows, tile) * tile
        self.sums.load(self.b.buffer, lambda row: line(k.min(row, rows - 1)), filled, self.count, negative=True)
        with k.loop("other", *((0, block) if self.is_forward else (block + 1, blocks))) as other:
            begin = other * BLOCK
            steps = k.min(self.size - begin, BLOCK)
            self.known.load(self.x.buffer, self.line(self.x, begin), steps, self.count)
            factors = self.as_doubles(self.matrix(start, begin), rows, steps)
            self.sums.add_product(factors._replace(last_row=rows - 1), rows, steps, self.known)
        triangle = self.matrix(start, start)

        def factor(i: Value, j: Value) -> Value:
            return k.cast(k.load(triangle.buffer, triangle.at(i, j)), DType.F64)

        self.sums.substitute(rows, factor, self.is_forward, self.op.unit_diagonal, negative=True)
        self.sums.store(self.x.buffer, self.line(self.x, start), rows, self.count)

    def as_doubles(self, factors: MatrixView, rows: Value, columns: Value) -> MatrixView:
        """A block of the matrix, where it is or widened in scratch; that lies as the matrix does."""
        if self.widened is None:
            return factors
        k, one, width = self.k, self.k.as_index(1), self.k.as_index(WIDTH)
        strides, counts = ((one, width), (columns, rows)) if self.op.transpose else ((width, one), (rows, columns))
        result = MatrixView(self.widened, k.as_index(0), *strides)
        views = [v.turned() if self.op.transpose else v for v in (factors, result)]
        has_masks = self.sums.has_masks(self.a.buffer)
        copy_lines(k, views[0], views[1], *counts, self.sums.shape.lanes, has_masks)
        return result

    def line(self, slab: Slab, start: Value) -> Callable[[Value], Value]:
        return lambda row: slab.at(*self.place, start + row, self.first)

    def matrix(self, i: Value, j: Value) -> MatrixView:
        """The matrix that is solved for, from an element on."""
        strides = self.a.strides[-2:]
        if self.op.transpose:
            return MatrixView(self.a.buffer, self.a.at(*self.place, j, i), strides[1], strides[0])
        return MatrixView(self.a.buffer, self.a.at(*self.place, i, j), strides[0], strides[1])


class _Substitution:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, TriangularSolve)
        self.k, self.op = site.k, site.op
        (self.a, self.b), (self.x,) = site.inputs, site.outputs
        self.size, self.columns = self.b.dims[-2:]
        self.lanes = lane_count(site.machine.lanes(DType.F64), self.b.shape.dims[-1])
        columns = self.b.shape.dims[-1]
        is_narrow = isinstance(columns, int) and columns <= FEW_TILES * VECTORS * self.lanes
        self.vectors = VECTORS // 2 if is_narrow or site.machine.vector_registers < 32 else VECTORS
        # Row i of the matrix that is solved for reads x above the diagonal, or below it.
        self.is_forward = site.op.lower != site.op.transpose

    def build(self) -> None:
        """Blocks of several vectors; those of the last columns end under a mask."""
        k = self.k
        lead = self.b.dims[:-2]
        width = self.vectors * self.lanes if self.lanes > 1 else 1
        blocks = k.ceildiv(self.columns, width)
        with k.parallel("block", total(k, lead) * blocks) as block:
            self.place = unflatten(block // blocks, lead)
            first = block % blocks * width
            if self.lanes == 1:
                self.solve([first], [None])
                return
            firsts = [first + v * self.lanes for v in range(self.vectors)]
            with k.when(first + width <= self.columns):
                self.solve(firsts, [None] * self.vectors)
            masks = [k.lane_mask(self.columns - at, self.lanes) for at in firsts]
            with k.when((first + width > self.columns) & (firsts[-1] < self.columns)):
                self.solve(firsts, masks)
            with k.when(firsts[-1] >= self.columns), k.loop("vector", first, self.columns, self.lanes) as at:
                self.solve([at], [k.lane_mask(self.columns - at, self.lanes)])

    def solve(self, firsts: Sequence[Value], masks: Sequence[Value | None]) -> None:
        """Some rows at a time, so that what is known is read once for all of them; then those that are left."""
        k = self.k
        groups = self.size // ROWS
        with k.loop("group", 0, groups) as group:
            start = group * ROWS if self.is_forward else self.size - (group + 1) * ROWS
            self.rows([start + r for r in range(ROWS)], firsts, masks)
        with k.loop("rest", groups * ROWS, self.size) as rest:
            self.rows([rest if self.is_forward else self.size - 1 - rest], firsts, masks)

    def rows(self, rows: list[Value], firsts: Sequence[Value], masks: Sequence[Value | None]) -> None:
        k = self.k
        start, stop = (k.as_index(0), rows[0]) if self.is_forward else (rows[-1] + 1, self.size)
        sums = [x for i in rows for x in self.load(self.b, i, firsts, masks)]
        width = len(firsts)
        with k.fold("j", start, stop, init=sums) as fold:
            known = self.load(self.x, fold.index, firsts, masks)
            after = []
            for r, i in enumerate(rows):
                factor = self.factor(i, fold.index)
                after += [s - factor * x for s, x in zip(fold.values[r * width : (r + 1) * width], known)]
            fold.next(*after)
        found: dict[int, list[Value]] = {}
        order = range(len(rows)) if self.is_forward else reversed(range(len(rows)))
        for r in order:
            values = list(fold.results[r * width : (r + 1) * width])
            for other, xs in found.items():
                factor = self.factor(rows[r], rows[other])
                values = [value - factor * x for value, x in zip(values, xs)]
            if not self.op.unit_diagonal:
                head = self.factor(rows[r], rows[r])
                values = [value / head for value in values]
            found[r] = values
            place = self.x.at(*self.place, rows[r])
            for c, value, mask in zip(firsts, values, masks):
                k.store(self.x.buffer, place + c, k.cast(value, self.x.shape.dtype), mask=mask)

    def factor(self, i: Value, j: Value) -> Value:
        """A[i, j] of the matrix that is solved for, in all lanes."""
        index = (j, i) if self.op.transpose else (i, j)
        value = self.k.load(self.a.buffer, self.a.at(*self.place, *index))
        return self.k.splat(self.k.cast(value, DType.F64), self.lanes)

    def load(self, slab: Slab, row: Value, firsts: Sequence[Value], masks: Sequence[Value | None]) -> list[Value]:
        place = slab.at(*self.place, row)
        values = [self.k.load(slab.buffer, place + c, lanes=self.lanes, mask=mask) for c, mask in zip(firsts, masks)]
        return [self.k.cast(value, DType.F64) for value in values]
