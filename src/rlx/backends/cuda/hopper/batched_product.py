"""`BatchedForm`: products of several matrices at once on Hopper's tensor cores.

Convolutions with windows of one pixel are such: a matrix of weights by every picture as it lies. Tiles of one matrix
follow those of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.epilogue import FinishCall
from rlx.backends.cuda.hopper.form import product_refusal, tiling
from rlx.backends.cuda.hopper.instructions import copy_box
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Load, Ready
from rlx.backends.cuda.hopper.product import ProductWriter
from rlx.backends.cuda.hopper.product_form import ProductForm
from rlx.backends.cuda.hopper.product_shape import (
    DEPTH,
    FEW_ROWS,
    ROWS,
    SLAB_BYTES,
    THREADS,
    ProductShape,
    check_shape,
)
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.hopper.writer import Val
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.machines import Machine


def batched_refusal(product: Product, acc: DType, machine: Machine, needs_wgmma: bool = True) -> str:
    """Why a product of several matrices has no such form; empty if it has one."""
    operands = product.epilogue.operands if product.epilogue else ()
    if not all(isinstance(m.batch_stride, int) for m in (product.a, *product.bs, *product.cs, *operands)):
        return "matrices that lie a size apart which only the run knows"
    if len(product.bs) > 1 or product.a.dtype not in ELEMENTS:
        return "several products of one A, or f8"
    return product_refusal(replace(product, batch=1), acc, machine, needs_wgmma)


def batched_product_text(
    name: str, shape: ProductShape, moves: tuple[bool, bool], finish: FinishCall, triple: str
) -> str:
    """The LLVM module; `moves` says whether A and B are others for every matrix. Parameters: tensor maps of both, of
    three axes, tiles of rows, of columns and of depth, and the matrices (i32), then those of the epilogue."""
    check_shape(shape)
    return _Batched(name, shape, moves, finish).text(triple)


class _Batched(ProductWriter):
    def __init__(self, name: str, shape: ProductShape, moves: tuple[bool, bool], finish: FinishCall) -> None:
        self.moves = moves
        super().__init__(name, shape, finish)

    def declare_operands(self) -> None:
        super().declare_operands()
        self.matrices = self.w.param("matrices", "i32")

    def tile_count(self) -> Val:
        return self.row_tiles * self.column_tiles * self.matrices

    def origin(self, tile: Val) -> tuple[Val, Val]:
        each = self.row_tiles * self.column_tiles
        self.matrix = tile // each
        self.epilogue.matrix = self.w.wide(self.matrix)
        return super().origin(tile % each)

    def copy_a(self, to: Val, row: Val, depth: Val, barrier: Val) -> None:
        matrix = self.matrix if self.moves[0] else self.w.value(0)
        if not self.shape.is_turned:
            copy_box(self.w, to, self.map_a, (depth, row, matrix), barrier)
            return
        for slab in range(self.shape.rows // 64):
            copy_box(self.w, to + slab * SLAB_BYTES, self.map_a, (row + slab * 64, depth, matrix), barrier)

    def copy_b(self, to: Val, map_b: Val, column: Val, depth: Val, barrier: Val) -> None:
        matrix = self.matrix if self.moves[1] else self.w.value(0)
        if self.shape.along_k:
            copy_box(self.w, to, map_b, (depth, column, matrix), barrier)
            return
        for slab in range(self.shape.columns // 64):
            copy_box(self.w, to + slab * SLAB_BYTES, map_b, (column + slab * 64, depth, matrix), barrier)


class BatchedForm(ProductForm):
    """One product of several matrices, with code for some widths of tiles."""

    name, entry = "wgmma tiles of matrices", "batched_product"
    waits = True

    def __init__(self, product: Product, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(product, params, machine, load)
        (b,) = product.bs
        self.b, self.moves = b, (product.a.batch_stride != 0, b.batch_stride != 0)

    def shape(self, columns: int, rows: int = ROWS) -> ProductShape:
        a = self.product.a
        return ProductShape(columns, 1, self.b.row_stride == 1, ELEMENTS[a.dtype], a.col_stride != 1, rows=rows)

    def ptx(self, columns: int, rows: int = ROWS) -> str:
        """The code for tiles of so many columns and rows."""
        shape = self.shape(columns, rows)
        text = batched_product_text(self.entry, shape, self.moves, self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product of matrices on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, n, k, batch = (self.number(s, words) for s in (product.m, product.n, product.k, product.batch))
        if m < 1 or n < 1 or k < 1 or batch < 1:
            return NOTHING
        row_tiles = -(-m // ROWS)
        columns, _ = tiling(row_tiles * ROWS * batch, n, k, 1, gpu.info.multiprocessors, may_share=False)
        rows = FEW_ROWS if m <= FEW_ROWS and columns % 128 == 0 else ROWS
        shape = self.shape(columns, rows)
        specs = [
            self.map(product.a, (k, m) if shape.is_turned else (m, k), 64 if shape.is_turned else rows, batch, words),
            self.map(self.b, (n, k) if shape.along_k else (k, n), columns if shape.along_k else 64, batch, words),
        ]
        if not all(s.is_possible for s in specs) or not self.is_aligned(words):
            return NOTHING
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(shape, shape.shared_bytes, what, lambda: self.ptx(columns, rows), gpu)
        tiles = [row_tiles, -(-n // columns), -(-k // DEPTH), batch]
        block = ArgumentBlock(2, len(tiles) + len(self._passed))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words([*tiles, *self.passed(words)])
        blocks = min(gpu.info.multiprocessors, tiles[0] * tiles[1] * batch)
        return Ready(function, Launch(blocks, THREADS, shape.shared_bytes), block)

    def map(self, matrix: Matrix, size: tuple[int, int], box: int, batch: int, words: Sequence[int]) -> MapSpec:
        """Rows and elements of a row as they lie, and the matrices as a third axis: of one that stands still, one."""
        stride = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
        rows, length = size
        pitch = self.number(stride, words) if rows > 1 else -(-length // 8) * 8
        far = self.number(matrix.batch_stride, words)
        address = words[self.places[matrix.name]] + 2 * self.number(matrix.offset, words)
        sizes = (length, rows, batch if far else 1)
        return MapSpec(address, sizes, (pitch, far or rows * pitch), (64, box, 1), ELEMENTS[matrix.dtype])
