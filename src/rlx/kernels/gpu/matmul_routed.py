"""`routed_tiles_kernel`: every row times the matrix of its expert, by tiles in shared memory, exact in the type of the
sums. A block has rows of one expert, which it finds in the `Route`, and some of the columns."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Product
from rlx.kernels.cpu.matmul.route import Route
from rlx.kernels.gpu.matmul import ProductMaker, TilePlace
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Value
from rlx.kernels.machines import Machine


def routed_tiles_kernel(name: str, machine: Machine, experts: int, product: Product, acc: DType) -> Kernel:
    """C[i] = epilogue(A[i] @ B[e]) for each of m rows i and its expert e. Behind the pointers of the product is that of
    the route."""
    return _RoutedTiles(KernelBuilder(name), experts, product, acc, machine).build()


class _RoutedTiles(ProductMaker):
    def __init__(self, k: KernelBuilder, experts: int, product: Product, acc: DType, machine: Machine) -> None:
        self.experts = experts
        super().__init__(k, product, acc, machine.shared_bytes, few_rows=0)

    def declare_pointers(self) -> None:
        self.lists = self.k.pointer("route", DType.I32)

    def row_of(self, number: Value) -> Value:
        return self.route.row(number)

    def build(self) -> Kernel:
        k, shape = self.k, self.shape
        self.route = Route(k, self.lists, self.experts, self.m)
        columns = k.ceildiv(self.n, shape.columns)
        with self.blocks(self.route.most_blocks(shape.rows) * columns) as (batch, number, thread):
            # Neighbours share their rows, and read one expert from the first column to the last.
            block = self.route.block(number // columns, shape.rows)
            with k.when(block.height > 0):
                end = block.first + block.height
                self.tile_at(TilePlace(batch, block.expert, block.first, number % columns * shape.columns, end), thread)
        return k.build()
