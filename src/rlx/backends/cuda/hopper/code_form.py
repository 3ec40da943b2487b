"""`CodeRowsForm`: products with GGUF panels on the tensor cores: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.code_rows import BYTES, DIGITS, TILE, CodeShape, code_rows_text
from rlx.backends.cuda.hopper.launching import NOTHING, Load, Ready, block_shared_bytes
from rlx.backends.cuda.hopper.product_form import ProductForm
from rlx.backends.cuda.hopper.stored_codes import StoredFormat
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.matmul_codes import CodesOrigin
from rlx.kernels.machines import Machine
from rlx.quant.panels import PANEL_ROWS

_ELEMENTS = {DType.F32: "f32", DType.BF16: "bf16", DType.F16: "f16"}
# Tiles of digits that a block has sums for.
MOST_TILES = 4


def codes_refusal(origin: CodesOrigin, machine: Machine) -> str:
    """Why a product with stored blocks has no such form; empty if it has one."""
    product = origin.product
    if not machine.has_mma:
        return f"{machine.name} has no mma of bytes"
    if StoredFormat.of(origin.layout) is None:
        return "values that are no bytes"
    if product.a.dtype not in _ELEMENTS:
        return f"{product.a.dtype} @ codes"
    if origin.acc is not DType.F32:
        return f"sums in {origin.acc}"
    if len(product.bs) > 2:
        return f"{len(product.bs)} products of one A"
    if product.batch != 1:
        return "batches"
    if product.a.col_stride != 1:
        return "strides"
    if product.epilogue is not None and any(e.dtype is DType.BOOL for e in product.epilogue.operands):
        return "an epilogue that reads bool"
    return ""


class CodeRowsForm(ProductForm):
    """One product, with code for one row and for some numbers of rows that a block takes."""

    name, entry = "mma of codes", "code_rows"

    def __init__(self, origin: CodesOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(origin.product, params, machine, load)
        stored = StoredFormat.of(origin.layout)
        assert stored is not None
        self._stored = stored

    def shape(self, m: int, multiprocessors: int = 132) -> CodeShape:
        """For m rows: one of them, or as many as tiles of digits have room for."""
        product, element = self.product, _ELEMENTS[self.product.a.dtype]
        digits = DIGITS[element]
        # Two steps in a record, or two products, need as many registers as two tiles.
        most = max(1, MOST_TILES // (self._stored.groups * len(product.bs)))
        tiles = min(most, -(-m * digits // TILE))
        rows = 1 if m == 1 else tiles * TILE // digits
        depth, columns = product.weight_shape
        shape = CodeShape(self._stored, len(product.bs), rows, depth, element)
        shares = self.shares(m, rows, columns, multiprocessors)
        return shape.for_panels(-(-columns // (PANEL_ROWS * shares)), block_shared_bytes(self.machine))

    def shares(self, m: int, rows: int, columns: int, multiprocessors: int) -> int:
        """In how many parts panels are shared out: blocks of all rows together are one for each multiprocessor."""
        return min(-(-columns // PANEL_ROWS), max(1, multiprocessors // -(-m // rows)))

    def ptx(self, shape: CodeShape) -> str:
        text = code_rows_text(self.entry, shape, self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product with stored blocks")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, (k, n) = self.number(product.m, words), product.weight_shape
        if m == 0 or n == 0 or k == 0:
            return NOTHING
        size = BYTES[_ELEMENTS[product.a.dtype]]
        at = words[self.places[product.a.name]] + size * self.number(product.a.offset, words)
        pitch = size * self.number(product.a.row_stride, words) if m > 1 else 0
        weights = [words[self.places[b.name]] + self.number(b.offset, words) for b in product.bs]
        if not self.is_aligned(words) or any(address % 16 for address in (at, pitch, *weights)):
            return NOTHING
        shape = self.shape(m, gpu.info.multiprocessors)
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(shape, shape.shared_bytes, what, lambda: self.ptx(shape), gpu)
        row_blocks = -(-m // shape.rows)
        shares = self.shares(m, shape.rows, n, gpu.info.multiprocessors)
        arguments = [at, pitch, *weights, m, row_blocks, -(-n // PANEL_ROWS), shares, *self.passed(words)]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(shares * row_blocks, 32 * shape.warps, shape.shared_bytes), block)
