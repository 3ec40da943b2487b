"""`FewRowsForm`: products of few rows with weights [n, k]: which have this form, and its launches.

Where the chip has a copy engine, up to eight rows stream their weights through shared memory (`stream_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.few_rows import COLUMNS, ROWS, THREADS, FewShape, few_rows_text
from rlx.backends.cuda.hopper.launching import ALONE, ELEMENTS, NOTHING, Load, Ready, Surroundings, block_shared_bytes
from rlx.backends.cuda.hopper.product_form import ProductForm
from rlx.backends.cuda.hopper.stream_rows import DEPTH as STREAM_DEPTH
from rlx.backends.cuda.hopper.stream_rows import ROWS as STREAM_ROWS
from rlx.backends.cuda.hopper.stream_rows import THREADS as STREAM_THREADS
from rlx.backends.cuda.hopper.stream_rows import UNIT, StreamShape, stream_rows_text
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.machines import Machine

# Rows up to which the weights alone count.
MOST_ROWS = 16


def few_rows_refusal(product: Product, acc: DType, machine: Machine) -> str:
    """Why a product has no form for few rows; empty if it has one."""
    a, bs = product.a, product.bs
    if not machine.has_mma:
        return f"{machine.name} has no mma of bf16"
    # Where weights stream, f32 may be cut into numbers of bf16.
    is_wide = a.dtype is DType.F32 and bs[0].dtype is DType.BF16 and machine.has_early_launch
    if (a.dtype not in ELEMENTS and not is_wide) or any(b.dtype is not (bs[0] if is_wide else a).dtype for b in bs):
        return f"{a.dtype} @ {bs[0].dtype}"
    if acc is not DType.F32:
        return f"sums in {acc}"
    if len(bs) > 2:
        return f"{len(bs)} products of one A"
    if product.batch != 1:
        return "batches"
    if a.col_stride != 1 or any(b.row_stride != 1 for b in bs):
        return "weights that are not [n, k]"
    if isinstance(product.m, int) and not 0 < product.m <= MOST_ROWS:
        return "many rows"
    if product.epilogue is not None and any(e.dtype is DType.BOOL for e in product.epilogue.operands):
        return "an epilogue that reads bool"
    return ""


class FewRowsForm(ProductForm):
    """One product, for up to 8 or up to 16 rows."""

    name, entry = "mma of few rows", "few_rows"
    waits = True

    def __init__(self, product: Product, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(product, params, machine, load)
        self._is_wide = product.a.dtype is DType.F32

    def shape(self, tiles: int) -> FewShape:
        element = ELEMENTS[self.product.a.dtype]
        return FewShape(len(self.product.bs), tiles, element, self.machine.has_early_launch)

    def ptx(self, tiles: int) -> str:
        text = few_rows_text(self.entry, self.shape(tiles), self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product of few rows")

    def stream_ptx(self) -> str:
        text = stream_rows_text(self.entry, self.stream_shape, self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product of few rows")

    @property
    def stream_shape(self) -> StreamShape:
        return StreamShape(len(self.product.bs), ELEMENTS[self.product.bs[0].dtype], self._is_wide)

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        return self.prepared_with(words, gpu, ALONE)

    def prepared_with(self, words: Sequence[int], gpu: Gpu, around: Surroundings) -> Ready:
        product = self.product
        m, n, k = (self.number(s, words) for s in (product.m, product.n, product.k))
        if not 0 < m <= MOST_ROWS or n == 0 or k == 0 or k % 8:
            return NOTHING
        lines = [self._line(product.a, product.a.row_stride, m, words)]
        lines += [self._line(b, b.col_stride, n, words) for b in product.bs]
        if not self.is_aligned(words) or any(at % 16 or pitch % 16 for at, pitch in lines):
            return NOTHING
        addresses = [x for line in lines for x in line]
        passed = self.passed(words)
        if self.machine.has_early_launch and m <= STREAM_ROWS and k >= STREAM_DEPTH:
            is_fixed = all(self.places[b.name] in around.fixed for b in product.bs)
            return self._stream([*addresses, m, n, k], [int(is_fixed), *passed], n, k, gpu)
        if self._is_wide:
            return NOTHING
        tiles = -(-m // ROWS)
        shape = self.shape(tiles)
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(tiles, shape.shared_bytes, what, lambda: self.ptx(tiles), gpu)
        arguments = [*addresses, m, n, k, *passed]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(-(-n // COLUMNS), THREADS, shape.shared_bytes), block)

    def _stream(self, first: Sequence[int], last: Sequence[int], n: int, k: int, gpu: Gpu) -> Ready:
        """One block on each multiprocessor; between its first and its last arguments is how many stages it has."""
        shape, units = self.stream_shape, -(-n // UNIT)
        blocks = min(gpu.info.multiprocessors, units)
        room = block_shared_bytes(self.machine)
        stages = shape.stages(-(-units // blocks), k, room)
        what = f"{shape}\0{self.product}\0{self._finish.text}"
        most = shape.shared_bytes(shape.most_stages(room))
        function = self.function("stream", most, what, self.stream_ptx, gpu)
        arguments = [*first, stages, *last]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(blocks, STREAM_THREADS, shape.shared_bytes(stages)), block)

    def _line(self, matrix: Matrix, pitch: int | str, count: int, words: Sequence[int]) -> tuple[int, int]:
        """The address of the first row, and bytes to the next; one row may have any distance to it."""
        size = matrix.dtype.size_bytes
        address = words[self.places[matrix.name]] + size * self.number(matrix.offset, words)
        return address, size * self.number(pitch, words) if count > 1 else 0
