"""A step of an LU in panels: what the last panel does to the columns behind it, some columns at a time, and the next
panel, which is the first iteration and so begins before all others."""

from __future__ import annotations

from math import prod

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.tiles import MatrixView
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.column_blocks import COLUMNS, ColumnBlock
from rlx.kernels.cpu.ops.factorize import PanelLu
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.lowered.lu_steps import LuStep

# Elements of a cache line.
LINE = 8


@op_kernel(LuStep, kind="factorize")
def lu_step(site: OpSite) -> None:
    _Step(site).build()


class _Step:
    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, LuStep)
        self.site, self.k = site, site.k
        panel, order, rest = site.inputs
        *lead, rows, columns = rest.shape.static_dims
        # What differs from step to step is passed: one piece of code serves all steps of a matrix, and all matrices.
        self.count, self.rows, self.columns = (site.argument(n) for n in (prod(lead), rows, columns))
        self.done, self.width = panel.shape.static_dims[-1], site.op.width
        self.left = self.rows - self.done
        self.order = _matrices(self.k, order, self.rows)
        self.panel = _matrices(self.k, panel, self.rows, self.done)
        self.rest = _matrices(self.k, rest, self.rows, self.columns)
        upper, factors, behind, pivots, after = site.outputs
        self.upper = _matrices(self.k, upper, self.done, self.columns)
        self.factors = _matrices(self.k, factors, self.left, self.width)
        self.behind = _matrices(self.k, behind, self.left, self.columns - self.width)
        ids = _matrices(self.k, pivots, self.width), _matrices(self.k, after, self.left)
        self.lu = PanelLu(site, self.factors, *ids, self.left, self.k.as_index(self.width))
        self.block = ColumnBlock(site, "upper", self.done)
        self.products = ColumnBlock(site, "products", self.block.shape.tile_rows)

    def build(self) -> None:
        k = self.k
        groups = k.ceildiv(self.columns - self.width, COLUMNS) + 1
        with k.parallel("group", self.count * groups) as number:
            matrix, group = number // groups, number % groups
            with k.when(k.eq(group, 0)):
                with k.loop("first", 0, self.width, COLUMNS) as first:
                    self.follow(matrix, first, k.min(self.width - first, COLUMNS), self.factors, first)
                self.lu.factorize([matrix])
            with k.otherwise():
                to = (group - 1) * COLUMNS
                first = to + self.width
                self.follow(matrix, first, k.min(self.columns - first, COLUMNS), self.behind, to)

    def follow(self, matrix: Value, first: Value, count: Value, result: Slab, to: Value) -> None:
        """What the panel does to `count` columns from `first` on; they go to the columns of a result from `to` on."""
        k, block, done = self.k, self.block, self.k.as_index(self.done)

        def source(row: Value) -> Value:
            number = k.load(self.order.buffer, self.order.at(matrix, row))
            return self.rest.at(matrix, k.cast(number, DType.I64), first)

        block.load(self.rest.buffer, source, done, count)
        block.substitute(done, lambda i, p: k.load(self.panel.buffer, self.panel.at(matrix, i, p)))
        block.store(self.upper.buffer, lambda row: self.upper.at(matrix, row, first), done, count)
        tile = block.shape.tile_rows
        below = MatrixView(self.panel.buffer, self.panel.at(matrix, done), done, k.as_index(1), self.left - 1)
        with k.loop("below", 0, self.left, tile) as row:
            # Rows stand in no order that a processor would foresee.
            for r in range(tile):
                later = source(k.min(row + (tile + r), self.left - 1) + done)
                for column in range(0, COLUMNS, LINE):
                    k.prefetch(self.rest.buffer, later + column)
            self.products.add_product(below.moved(row, 0), k.as_index(tile), done, block, is_new=True)
            self.products.store(
                result.buffer,
                lambda r: result.at(matrix, row + r, to),
                k.min(self.left - row, tile),
                count,
                (self.rest.buffer, lambda r: source(row + r + done)),
            )


def _matrices(k: KernelBuilder, slab: Slab, *dims: Value | int) -> Slab:
    """Matrices, or lines, one behind the other, of sizes that are passed."""
    sizes = [k.as_index(d) for d in dims]
    strides = [total(k, sizes[n:]) for n in range(len(sizes) + 1)]
    return slab._replace(dims=(*slab.dims[:1], *sizes), strides=tuple(strides), offset=k.as_index(0))
