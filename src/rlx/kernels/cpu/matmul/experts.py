"""Every row times the matrix of its expert: `expert_matmul_kernel` on the blocks and panels of `matmul_quant`,
`routed_matmul_kernel` on those of `matmul`.

A block has rows of one expert. How many blocks an expert has depends on the ids, the number of parallel iterations must
not: there are as many as there could be, and each finds its expert in the route; those that find none do nothing.
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, Product, ResultBlock
from rlx.kernels.cpu.matmul.quant import QuantMaker
from rlx.kernels.cpu.matmul.tiles import MatrixView, copy_elements, copy_lines
from rlx.kernels.ir.loop_ir import Kernel, Value
from rlx.kernels.machines import Machine
from rlx.kernels.specs.expr import compute_dtype
from rlx.quant.panels import PanelFormat


def expert_matmul_kernel(name: str, machine: Machine, layout: PanelFormat, experts: int, product: Product) -> Kernel:
    """C[i] = epilogue(A[i] @ W) for each of m rows i, where B is u8 and holds the panels of the W of all experts, one
    `batch_stride` after the other. Behind the pointers of the product is that of the route
    (`rlx.ops.lowered.expert_products`)."""
    return _ExpertMaker(name, machine, layout, experts, product).build()


def routed_matmul_kernel(name: str, machine: Machine, experts: int, product: Product) -> Kernel:
    """C[i] = epilogue(A[i] @ B[e]) for each of m rows i and its expert e. Behind the pointers of the product is that of
    the route."""
    return _RoutedMaker(name, machine, experts, product).build()


class _RoutedRows(MatmulMaker):
    """Blocks whose rows are those of one expert, which is their batch."""

    experts: int

    def declare_pointers(self) -> None:
        self.route = self.k.pointer("route", DType.I32)

    def listed(self, place: Value) -> Value:
        return self.k.cast(self.k.load(self.route, place), DType.I64)

    def row_of(self, position: Value) -> Value:
        return self.k.max(self.k.min(self.listed(position + 2 * self.experts), self.m - 1), 0)

    def build(self) -> Kernel:
        k, shape = self.k, self.shape
        # A chosen expert begins one block, and every full block of rows one more at most.
        row_blocks = k.min(self.m, self.experts) + self.m // shape.rows
        step = self.step = self.block_columns()
        groups = (self.n + step - 1) // step
        with k.parallel("block", row_blocks * groups) as number:
            # Neighbours share their rows, and read one expert from the first column to the last.
            expert, row, rows = self.rows_of_block(number // groups)
            column = number % groups * step
            with k.when(rows > 0):
                self.block(ResultBlock(expert, row, rows, column, k.min(self.n - column, step)))
        return k.build()

    def rows_of_block(self, number: Value) -> tuple[Value, Value, Value]:
        """The expert of a block of rows, where its rows begin in the route, and how many they are; 0 for none."""
        k, most = self.k, self.shape.rows
        zero = self.zero
        with k.fold("chosen", 0, k.min(self.m, self.experts), init=[number, zero, zero, zero, zero, zero]) as fold:
            left, begin, *found = fold.values
            end = k.max(k.min(self.listed(fold.index + self.experts), self.m), begin)
            count = end - begin
            blocks = k.ceildiv(count, most)
            is_here = (left >= 0) & (left < blocks)
            here = [k.select(is_here, new, old) for new, old in zip((fold.index, begin, count, left), found)]
            fold.next(left - blocks, end, *here)
        _, _, place, begin, count, inside = fold.results
        # Blocks of equal height, as far as whole tiles allow.
        tiles, blocks = k.ceildiv(count, self.shape.tile_rows), k.max(k.ceildiv(count, most), 1)
        height = (tiles + blocks - 1) // blocks * self.shape.tile_rows
        expert = k.max(k.min(self.listed(place), self.experts - 1), 0)
        row = inside * height
        return expert, begin + row, k.min(count - row, height)

    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        k, shape = self.k, self.shape
        to = MatrixView(self.rows_of_a, self.zero, k.as_index(shape.depth + shape.pad), k.as_index(1))
        one = k.as_index(1)
        with k.loop("row", 0, block.rows) as line:
            source = self.a.at(self.zero, self.row_of(block.row + line), start)
            if self.a.matrix.col_stride == 1:
                copy_lines(k, source, to.moved(line, 0), one, steps, shape.lanes, self.has_masks([self.a]))
            else:
                copy_elements(k, source, to.moved(line, 0), one, steps)
        self.repeat_last_row(block, to, steps)
        return to


class _ExpertMaker(_RoutedRows, QuantMaker):
    def __init__(self, name: str, machine: Machine, layout: PanelFormat, experts: int, product: Product) -> None:
        super().__init__(name, machine, layout, product)
        self.experts = experts


class _RoutedMaker(_RoutedRows):
    def __init__(self, name: str, machine: Machine, experts: int, product: Product) -> None:
        super().__init__(name, machine, product, False, compute_dtype(product.a.dtype))
        self.experts, shape = experts, self.shape
        # Always panels: the other ways read rows of A that lie a stride apart.
        if not self.has_panels:
            self.panel = self.k.local("panel", self.acc, shape.depth * shape.width)
        self.has_panels, self.has_dots, self.has_streams = True, False, False
