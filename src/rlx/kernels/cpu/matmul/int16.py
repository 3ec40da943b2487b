"""`int16_matmul_kernel`: products of 16-bit codes by instructions that add two of them, on the blocks of `matmul`.

Two neighbours along K are one word of 32 bits, so that the product is cut like one of words of half the depth. A tile
keeps whole numbers in registers over a block of 32, then multiplies them by the scales of the block and adds them to
sums in scratch, which stays in the first cache: a load and a store for every sixteen words of a row and a vector of
columns. Panels are read as they lie, and so are rows (`rlx.ops.lowered.int16_products`).
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape, block_shape
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, PanelPart, Product, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.ops.lowered.int8_products import BLOCK
from rlx.ops.lowered.int16_products import COLUMN_BLOCK, PAIR, ROW_BLOCK

BF16, F32, I16, I32 = DType.BF16, DType.F32, DType.I16, DType.I32
# Words of a block.
WORDS = BLOCK // PAIR


def has_word_dots(machine: Machine) -> bool:
    """Whether products of codes of 16 bits are faster than those of floats."""
    return not machine.is_gpu and machine.lanes(F32) in machine.pair_lanes


def int16_matmul_kernel(name: str, machine: Machine, product: Product) -> Kernel:
    """C[m, n] = epilogue(A @ B) for rows A of k codes as `Int16Rows` stores them and the panels B of `Int16Panels`,
    `panel_width(machine, f32, n)` columns wide."""
    return _Int16Maker(name, machine, product.in_words(PAIR), True, F32, _shape(machine, product)).build()


def _shape(machine: Machine, product: Product) -> BlockShape:
    shape = block_shape(machine, F32, product.n, len(product.bs), copies_a=False)
    return shape._replace(depth=max(WORDS, shape.depth // WORDS * WORDS))


class _Int16Maker(MatmulMaker):
    multiplies_elements = False

    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        source = self.a.at(block.batch, block.row, start // WORDS * ROW_BLOCK)
        return source._replace(last_row=block.rows - 1)

    def panel_of(self, part: PanelPart) -> MatrixView:
        k, line = self.k, self.shape.width * COLUMN_BLOCK
        first = part.column * (self.depth // WORDS * COLUMN_BLOCK)
        place = part.b.offset + (first + part.start // WORDS * line)
        return MatrixView(part.b.buffer, place, k.as_index(line), k.as_index(1))

    def tile(self, count: int, step: TileStep) -> None:
        k, shape = self.k, self.shape
        sums = step.sum_vectors(count, shape)
        zero = k.const(0, ValueType(F32, shape.lanes))
        with k.when(step.is_new):
            sums.store(k, [zero] * len(sums.places))
        rows = [step.a.at(r, 0) for r in range(count)]
        with k.loop("block", 0, step.steps // WORDS) as block:
            column = step.panel.at(block, 0)
            lines = [row + block * ROW_BLOCK for row in rows]
            dots = self.block_dots(step, lines, column)
            places = [column + v * shape.lanes for v in range(shape.vectors)]
            scales = [k.bitcast(k.load(step.panel.buffer, at, lanes=shape.lanes), BF16) for at in places]
            steps = [k.cast(scale, F32) for scale in scales]
            for r, line in enumerate(lines):
                scale = self.scale(step, line)
                for number, factor in enumerate(steps, r * shape.vectors):
                    known = k.load(self.sums, sums.places[number], lanes=shape.lanes)
                    product = k.cast(dots[number], F32) * factor
                    k.store(self.sums, sums.places[number], k.fma(product, scale, known))

    def scale(self, step: TileStep, line: Value) -> Value:
        """The scale of a block of a row, in all lanes."""
        k = self.k
        bits = k.load(step.a.buffer, line + BLOCK, lanes=PAIR)
        return k.splat(k.bitcast(bits, ValueType(F32)), self.shape.lanes)

    def block_dots(self, step: TileStep, lines: list[Value], column: Value) -> tuple[Value, ...]:
        """The dot products of a block of rows and a panel, row by row."""
        k, vectors, lanes, width = self.k, self.shape.vectors, self.shape.lanes, self.shape.width
        zeros = [k.const(0, ValueType(I32, lanes))] * (len(lines) * vectors)
        with k.fold("word", 0, WORDS, init=zeros) as fold:
            place = column + width + fold.index * (width * PAIR)
            pairs = [k.load(step.panel.buffer, place + v * lanes * PAIR, lanes=lanes * PAIR) for v in range(vectors)]
            totals: list[Value] = []
            for r, line in enumerate(lines):
                word = k.bitcast(k.load(step.a.buffer, line + fold.index * PAIR, lanes=PAIR), ValueType(I32))
                pair = k.bitcast(k.splat(word, lanes), ValueType(I16, lanes * PAIR))
                totals += [k.dot2(fold.values[r * vectors + v], pair, x) for v, x in enumerate(pairs)]
            fold.next(*totals)
        return tuple(fold.results)
