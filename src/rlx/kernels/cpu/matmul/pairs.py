"""`pair_matmul_kernel`: products of bf16 by instructions that add two of them, on the blocks and tiles of `matmul`.

Two neighbours along K are one word of 32 bits, so that the product is cut like one of words of half the depth. Rows of
A are words as they lie. Panels of B hold a word for each column (`pack_pairs`), and where a product of floats
multiplies and adds, this one adds two products (`dot2`): twice as many in the same time. Products are exact and sums
are f32, so that errors are those of products of floats, except that what is below 2**-126 may count as 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BLOCK_SIZES, BlockShape, BlockSizes, block_shape, pack_panels
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, PanelPart, Product, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep, copy_elements
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value, ValueType
from rlx.kernels.machines import Machine

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32
# Elements of a word.
PAIR = 2


def has_pairs(machine: Machine, dtype: DType) -> bool:
    """Whether products of a type are better computed in pairs."""
    return dtype is BF16 and machine.lanes(F32) in machine.dot2_lanes


def pair_matmul_kernel(name: str, machine: Machine, product: Product, sizes: BlockSizes = BLOCK_SIZES[0]) -> Kernel:
    """C[batch, m, n] = epilogue(A[batch, m, k] @ B[k, n]) for bf16 A and B, the latter as `pack_pairs` lays it out in
    panels of `panel_width(machine, f32, n)` columns; k is even."""
    shape = pair_block(machine, product, sizes)
    return _PairMaker(name, machine, product.in_words(PAIR), True, F32, shape).build()


def pair_block(machine: Machine, product: Product, sizes: BlockSizes) -> BlockShape:
    """The block of a product in pairs."""
    return block_shape(machine, F32, product.n, len(product.bs), copies_a=product.a.col_stride != 1, sizes=sizes)


def pack_pairs(b: np.ndarray[Any, np.dtype[Any]], width: int) -> np.ndarray[Any, np.dtype[Any]]:
    """B[K, N] as panels [ceil(N / width), K / 2, width, 2], the last one filled up with zeros."""
    panels = pack_panels(b, width)
    count, k, _ = panels.shape
    return np.ascontiguousarray(panels.reshape(count, k // PAIR, PAIR, width).transpose(0, 1, 3, 2))


class _PairMaker(MatmulMaker):
    @cached_property
    def words_of_a(self) -> Buffer:
        """Scratch for a step of rows of A that do not lie side by side."""
        return self.k.local("words", BF16, self.shape.rows * PAIR * (self.shape.depth + self.shape.pad))

    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        k, shape = self.k, self.shape
        source = self.a.at(block.batch, block.row, start * PAIR)
        if self.a.matrix.col_stride == 1:
            return source._replace(column_stride=k.as_index(PAIR), last_row=block.rows - 1)
        line = k.as_index(PAIR * (shape.depth + shape.pad))
        to = MatrixView(self.words_of_a, self.zero, line, k.as_index(1))
        copy_elements(k, source, to, block.rows, steps * PAIR)
        return to._replace(column_stride=k.as_index(PAIR), last_row=block.rows - 1)

    def panel_of(self, part: PanelPart) -> MatrixView:
        k, line = self.k, self.shape.width * PAIR
        place = part.b.offset + (part.column * (self.depth * PAIR) + part.start * line)
        return MatrixView(part.b.buffer, place, k.as_index(line), k.as_index(PAIR))

    def tile(self, count: int, step: TileStep) -> None:
        k, vectors, lanes = self.k, self.shape.vectors, self.shape.lanes
        a, panel, sums = step.a, step.panel, step.sum_vectors(count, self.shape)
        known = sums.known(k, step.is_new)
        rows = [a.at(r, 0) for r in range(count)]
        with k.fold("p", 0, step.steps, init=known) as fold:
            line = panel.at(fold.index, 0)
            pairs = [k.load(panel.buffer, line + v * lanes * PAIR, lanes=lanes * PAIR) for v in range(vectors)]
            totals: list[Value] = []
            for r, row in enumerate(rows):
                word = k.bitcast(k.load(a.buffer, row + fold.index * PAIR, lanes=PAIR), ValueType(I32))
                pair = k.bitcast(k.splat(word, lanes), ValueType(BF16, lanes * PAIR))
                totals += [k.dot2(fold.values[r * vectors + v], pair, x) for v, x in enumerate(pairs)]
            fold.next(*totals)
        sums.store(k, fold.results)
