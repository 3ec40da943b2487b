"""`int8_matmul_kernel`: products of 8-bit codes by dot-product instructions, on the blocks and tiles of `matmul`.

Four neighbouring codes are one word of 32 bits, so that a product of codes is cut like one of words: rows of A are
copied to scratch as words, panels of B hold a word for each column, and where a product of floats multiplies and adds,
this one adds the products of four codes. Codes of A are unsigned, 128 too large; the first line of a panel holds the
sums to start from, which take that back (`rlx.ops.lowered.int8_products`).
"""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, PanelPart, Product, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value, ValueType
from rlx.kernels.machines import Machine

I8, U8, I32 = DType.I8, DType.U8, DType.I32
# Bytes of a word.
WORD = 4


def int8_matmul_kernel(name: str, machine: Machine, product: Product) -> Kernel:
    """C[m, n] = epilogue(Σ (A - 128)·B) for codes A[m, k] of u8, side by side along k, and the panels B of i8.

    The first operands of the epilogue are the sums, i32, which are what is stored without one. Panels are
    `panel_width(machine, i32, n)` columns wide.
    """
    return _Int8Maker(name, machine, product.in_words(WORD), True, I32).build()


class _Int8Maker(MatmulMaker):
    def rows_in_step(self, block: ResultBlock, start: Value, steps: Value) -> MatrixView:
        k, shape = self.k, self.shape
        source = self.a.at(block.batch, block.row, start * WORD)
        to = MatrixView(self.rows_of_a, self.zero, k.as_index(shape.depth + shape.pad), k.as_index(1))
        whole = steps // shape.lanes * shape.lanes
        with k.loop("line", 0, block.rows) as line:
            first, place = source.at(line, 0), to.at(line, 0)
            for begin, end, lanes in ((self.zero, whole, shape.lanes), (whole, steps, 1)):
                with k.loop("word", begin, end, lanes) as j:
                    k.store(to.buffer, place + j, self.words(source.buffer, first + j * WORD, lanes))
        self.repeat_last_row(block, to, steps)
        return to

    def words(self, buffer: Buffer, place: Value, lanes: int) -> Value:
        """Codes as words."""
        return self.k.bitcast(self.k.load(buffer, place, lanes=lanes * WORD), ValueType(I32, lanes))

    def panel_of(self, part: PanelPart) -> MatrixView:
        k, line = self.k, self.shape.width * WORD
        lines = self.depth + 1
        place = part.b.offset + (part.column * lines * WORD + part.start * line)
        return MatrixView(part.b.buffer, place, k.as_index(line), k.as_index(WORD))

    def tile(self, count: int, step: TileStep) -> None:
        k, shape, lanes = self.k, self.shape, self.shape.lanes
        a, panel, sums = step.a, step.panel, step.sum_vectors(count, shape)

        def starts() -> list[Value]:
            return [self.words(panel.buffer, panel.at(0, v * lanes), lanes) for v in range(shape.vectors)] * count

        with k.fold("p", 0, step.steps, init=sums.known(k, step.is_new, starts)) as fold:
            line = panel.at(fold.index + 1, 0)
            codes = [k.load(panel.buffer, line + v * lanes * WORD, lanes=lanes * WORD) for v in range(shape.vectors)]
            totals: list[Value] = []
            for r in range(count):
                word = k.splat(k.load(a.buffer, a.at(r, fold.index)), lanes)
                four = k.bitcast(word, ValueType(U8, lanes * WORD))
                totals += [k.dot4(fold.values[r * shape.vectors + v], four, x) for v, x in enumerate(codes)]
            fold.next(*totals)
        sums.store(k, fold.results)
