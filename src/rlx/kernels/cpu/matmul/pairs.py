"""`pair_matmul_kernel`: products of bf16 by instructions that add two of them, on the blocks and tiles of `matmul`.

Two neighbours along K are one word of 32 bits, so that the product is cut like one of words of half the depth. Rows of
A are words as they lie. Panels of B hold a word for each column, packed once (`pack_pairs`) or copied to scratch, and
where a product of floats multiplies and adds, this one adds two products (`dot2`): twice as many in the same time.
Products are exact and sums are f32, so that errors are those of products of floats, except that what is below 2**-126
may count as 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BLOCK_SIZES, BlockShape, BlockSizes, block_shape, pack_panels
from rlx.kernels.cpu.matmul.matmul import REUSE, MatmulMaker, PanelPart, Product, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep, copy_elements, in_vectors, transposed
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value, ValueType
from rlx.kernels.machines import Machine

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32
# Elements of a word.
PAIR = 2
# Rows up to which B passes by faster as it lies.
FEW_ROWS = 8


def has_pairs(machine: Machine, dtype: DType) -> bool:
    """Whether products of a type are better computed in pairs."""
    return dtype is BF16 and machine.lanes(F32) in machine.dot2_lanes


def pairs_as_they_lie(machine: Machine, product: Product) -> bool:
    """Whether a product whose B is not packed is better computed in pairs."""
    is_known = isinstance(product.k, int) and product.k > 0 and product.k % PAIR == 0 and isinstance(product.n, int)
    is_few = isinstance(product.m, int) and product.m <= FEW_ROWS
    dtypes = (product.a.dtype, *(b.dtype for b in product.bs))
    return is_known and not is_few and all(has_pairs(machine, dtype) for dtype in dtypes)


def pair_matmul_kernel(
    name: str, machine: Machine, product: Product, packed: bool = True, sizes: BlockSizes = BLOCK_SIZES[0]
) -> Kernel:
    """C[batch, m, n] = epilogue(A[batch, m, k] @ B[batch, k, n]) for bf16 A and B; k is even. A B that is `packed` is
    B[k, n] as `pack_pairs` lays it out in panels of `panel_width(machine, f32, n)` columns."""
    shape = pair_block(machine, product, packed, sizes)
    return _PairMaker(name, machine, product.in_words(PAIR), packed, F32, shape).build()


def pair_block(machine: Machine, product: Product, packed: bool, sizes: BlockSizes) -> BlockShape:
    """The block of a product in pairs."""
    copies_a = product.a.col_stride != 1
    if packed:
        return block_shape(machine, F32, product.n, len(product.bs), copies_a=copies_a, sizes=sizes)
    return block_shape(
        machine,
        F32,
        product.n,
        len(product.bs),
        copies_b=True,
        copies_a=copies_a,
        reuse=REUSE,
        sizes=sizes,
        scratch_bytes=machine.copies_bytes,
    )


def pack_pairs(b: np.ndarray[Any, np.dtype[Any]], width: int) -> np.ndarray[Any, np.dtype[Any]]:
    """B[K, N] as panels [ceil(N / width), K / 2, width, 2], the last one filled up with zeros."""
    panels = pack_panels(b, width)
    count, k, _ = panels.shape
    return np.ascontiguousarray(panels.reshape(count, k // PAIR, PAIR, width).transpose(0, 1, 3, 2))


class _PairMaker(MatmulMaker):
    multiplies_elements = False

    def make_panel(self) -> Buffer:
        return self.k.local("panel", BF16, self.shape.depth * self.shape.width * PAIR)

    @cached_property
    def words_of_a(self) -> Buffer:
        """Scratch for a step of rows of A that do not lie side by side."""
        return self.k.local("words", BF16, self.shape.rows * PAIR * (self.shape.depth + self.shape.pad))

    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        k, shape, a = self.k, self.shape, self.a.matrix
        source = self.a.at(block.batch, block.row, start * PAIR)
        last = block.rows - 1
        if a.col_stride == 1:
            return source._replace(column_stride=k.as_index(PAIR), last_row=last)
        if a.row_stride == 1 and self.has_masks([self.a]):
            to = MatrixView(self.words_of_a, self.zero, k.as_index(PAIR), k.as_index(PAIR * shape.rows), last)
            lines = MatrixView(source.buffer, source.start, source.column_stride, source.row_stride)
            pair_lines(k, lines, to.buffer, to.start, to.column_stride, steps, block.rows, shape.lanes)
            return to
        line = k.as_index(PAIR * (shape.depth + shape.pad))
        to = MatrixView(self.words_of_a, self.zero, line, k.as_index(1))
        copy_elements(k, source, to, block.rows, steps * PAIR)
        return to._replace(column_stride=k.as_index(PAIR), last_row=last)

    def panel_of(self, part: PanelPart) -> MatrixView:
        k, b, shape, line = self.k, part.b, self.shape, self.k.as_index(self.shape.width * PAIR)
        if self.packed:
            place = b.offset + (part.column * (self.depth * PAIR) + part.start * line)
            return MatrixView(b.buffer, place, line, k.as_index(PAIR))
        assert self.panel is not None
        source = b.at(part.block.batch, part.start * PAIR, part.column)
        left = k.min(self.n - part.column, shape.width)
        if b.matrix.row_stride == 1:
            turn_words(k, source, self.panel, part.steps, left - 1, shape)
        elif b.matrix.col_stride == 1 and self.has_masks([b]):
            with k.when(left >= shape.width):
                pair_lines(k, source, self.panel, self.zero, line, part.steps, k.as_index(shape.width), shape.lanes)
            with k.otherwise():
                pair_lines(k, source, self.panel, self.zero, line, part.steps, left, shape.lanes, shape.width)
        else:
            gather_pairs(k, source, self.panel, part.steps, left - 1, shape)
        return MatrixView(self.panel, self.zero, line, k.as_index(PAIR))

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
                at = row + a.column_stride * fold.index
                word = k.bitcast(k.load(a.buffer, at, lanes=PAIR), ValueType(I32))
                pair = k.bitcast(k.splat(word, lanes), ValueType(BF16, lanes * PAIR))
                totals += [k.dot2(fold.values[r * vectors + v], pair, x) for v, x in enumerate(pairs)]
            fold.next(*totals)
        sums.store(k, fold.results)


def pair_lines(
    k: KernelBuilder,
    source: MatrixView,
    to: Buffer,
    start: Value,
    pitch: Value,
    words: Value,
    count: Value,
    lanes: int,
    width: int = 0,
) -> None:
    """Lines 2p and 2p + 1 of what lies side by side along its columns, as words: `pitch` apart, `count` in each, and
    zeros up to a `width` if it is given."""
    order = [i // PAIR + i % PAIR * lanes for i in range(PAIR * lanes)]
    with k.loop("word", 0, words) as p:
        lines = [source.at(p * PAIR + i, 0) for i in range(PAIR)]
        place = start + pitch * p

        def join(j: Value, width: int, mask: Value | None) -> None:
            first, second = (k.load(source.buffer, line + j, lanes=width, mask=mask) for line in lines)
            # What lies behind the last one is never used, and there is room for it.
            k.store(to, place + j * PAIR, k.shuffle(first, order, second))

        if width:
            with k.loop("j", 0, width, lanes) as j:
                join(j, lanes, k.lane_mask(count - j, lanes))
        else:
            in_vectors(k, "j", count, lanes, True, join)


def turn_words(k: KernelBuilder, source: MatrixView, to: Buffer, words: Value, last: Value, shape: BlockShape) -> None:
    """Words of columns that lie side by side along K, as lines of a panel; columns after `last` are copies of it."""
    lanes, line = shape.lanes, shape.width * PAIR
    whole = words // lanes * lanes
    with k.loop("vector", 0, shape.vectors) as vector:
        first = vector * lanes
        with k.loop("word", 0, whole, lanes) as p:
            places = [source.at(p * PAIR, k.min(first + c, last)) for c in range(lanes)]
            loaded = (k.load(source.buffer, at, lanes=lanes * PAIR) for at in places)
            columns = [k.bitcast(pairs, ValueType(I32, lanes)) for pairs in loaded]
            for i, row in enumerate(transposed(k, columns)):
                pairs = k.bitcast(row, ValueType(BF16, lanes * PAIR))
                k.store(to, (p + i) * line + first * PAIR, pairs)
        with k.loop("word", whole, words) as p, k.loop("j", 0, lanes) as j:
            pair = k.load(source.buffer, source.at(p * PAIR, k.min(first + j, last)), lanes=PAIR)
            k.store(to, p * line + (first + j) * PAIR, pair)


def gather_pairs(
    k: KernelBuilder, source: MatrixView, to: Buffer, words: Value, last: Value, shape: BlockShape
) -> None:
    """A panel of words from any strides; columns after `last` are copies of it."""
    with k.loop("word", 0, words) as p, k.loop("j", 0, shape.width) as j:
        for i in range(PAIR):
            value = k.load(source.buffer, source.at(p * PAIR + i, k.min(j, last)))
            k.store(to, p * (shape.width * PAIR) + (j * PAIR + i), value)
