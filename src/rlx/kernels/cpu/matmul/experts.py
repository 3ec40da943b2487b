"""Every row times the matrix of its expert: `expert_matmul_kernel` on the blocks and panels of `matmul_quant`,
`int8_expert_kernel` on those of `int8_blocks`, `routed_matmul_kernel` on those of `matmul`. A block has rows of one
expert, which it finds in the `Route`."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.int8_blocks import BlockCodesMaker
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, Product, ResultBlock
from rlx.kernels.cpu.matmul.quant import QuantMaker
from rlx.kernels.cpu.matmul.route import Route
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


def int8_expert_kernel(
    name: str, machine: Machine, layout: PanelFormat, experts: int, product: Product, *, digits: int
) -> Kernel:
    """The same for rows A as `Int8Blocks` stores them, with codes of so many digits."""
    return _Int8ExpertMaker(name, machine, layout, experts, product, digits).build()


def routed_matmul_kernel(name: str, machine: Machine, experts: int, product: Product) -> Kernel:
    """C[i] = epilogue(A[i] @ B[e]) for each of m rows i and its expert e. Behind the pointers of the product is that of
    the route."""
    return _RoutedMaker(name, machine, experts, product).build()


class _RoutedRows(MatmulMaker):
    """Blocks whose rows are those of one expert, which is their batch."""

    experts: int

    def declare_pointers(self) -> None:
        self.lists = self.k.pointer("route", DType.I32)

    def row_of(self, position: Value) -> Value:
        return self.route.row(position)

    def build(self) -> Kernel:
        k, shape = self.k, self.shape
        route = self.route = Route(k, self.lists, self.experts, self.m)
        step = self.step = self.block_columns()
        groups = (self.n + step - 1) // step
        with k.parallel("block", route.most_blocks(shape.rows) * groups) as number:
            # Neighbours share their rows, and read one expert from the first column to the last.
            expert, row, rows = route.block(number // groups, shape.rows, shape.tile_rows)
            column = number % groups * step
            with k.when(rows > 0):
                self.block(ResultBlock(expert, row, rows, column, k.min(self.n - column, step)))
        return k.build()

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


class _Int8ExpertMaker(_RoutedRows, BlockCodesMaker):
    def __init__(
        self, name: str, machine: Machine, layout: PanelFormat, experts: int, product: Product, digits: int
    ) -> None:
        super().__init__(name, machine, layout, product, digits)
        self.experts = experts

    def is_one_tile(self, block: ResultBlock) -> Value:
        return block.rows <= self.shape.tile_rows


class _RoutedMaker(_RoutedRows):
    def __init__(self, name: str, machine: Machine, experts: int, product: Product) -> None:
        super().__init__(name, machine, product, False, compute_dtype(product.a.dtype))
        self.experts, shape = experts, self.shape
        # Always panels: the other ways read rows of A that lie a stride apart.
        if not self.has_panels:
            self.panel = self.k.local("panel", self.acc, shape.depth * shape.width)
        self.has_panels, self.has_dots, self.has_streams = True, False, False
