"""`MmaForm`: products of many rows on chips without wgmma, from sm_80 on: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.batched_product import batched_refusal
from rlx.backends.cuda.hopper.form import FEWEST_ROWS, product_refusal
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Load, Ready, block_shared_bytes
from rlx.backends.cuda.hopper.mma_product import THREADS, MmaShape, mma_product_text
from rlx.backends.cuda.hopper.product_form import ProductForm
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.machines import Machine

_MOST_STAGES = 4
# What an element of C costs in tiles that are smaller than the largest: fragments are read more often. Estimates.
_COSTS = {(128, 256): 1.0, (128, 128): 1.15, (64, 128): 1.4, (64, 64): 1.9}


def mma_refusal(product: Product, acc: DType, machine: Machine) -> str:
    """Why a product has no such form; empty if it has one."""
    if not machine.has_mma:
        return f"{machine.name} has no mma of bf16"
    if machine.has_wgmma:
        return f"{machine.name} has wgmma"
    refusal = batched_refusal if product.batch != 1 else product_refusal
    return refusal(product, acc, machine, needs_wgmma=False)


class MmaForm(ProductForm):
    """One product, with code for some sizes of tiles."""

    name, entry = "mma tiles", "mma_product"

    def __init__(self, product: Product, params: Sequence[str], machine: Machine, load: Load, split: int = 0) -> None:
        super().__init__(product, params, machine, load)
        self.split = split
        self._element = ELEMENTS[product.a.dtype]
        self._along_k = all(b.row_stride == 1 for b in product.bs)
        self._is_turned = product.a.col_stride != 1

    def ptx(self, shape: MmaShape) -> str:
        text = mma_product_text(self.entry, shape, self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product on tensor cores")

    def shape(self, m: int, n: int, multiprocessors: int, batch: int = 1) -> MmaShape:
        """Tiles with which the multiprocessor that has most to do needs the least time."""
        parts = len(self.product.bs)

        def longest(size: tuple[int, int]) -> float:
            rows, columns = size
            tiles = batch * -(-m // rows) * -(-n * parts // columns)
            return -(-tiles // multiprocessors) * rows * columns * _COSTS[size]

        rows, columns = min((s for s in _COSTS if s[1] // parts >= 64), key=longest)
        room = block_shared_bytes(self.machine)
        kinds = self.split, self._is_turned, self.product.batch != 1
        shape = MmaShape(rows, columns // parts, parts, 2, self._along_k, self._element, *kinds)
        return shape._replace(stages=min(_MOST_STAGES, (room - 128) // shape.stage_bytes))

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, n, k, batch = (self.number(s, words) for s in (product.m, product.n, product.k, product.batch))
        # What lies side by side comes in pieces of 16 bytes.
        is_whole = (self._along_k or n % 8 == 0) and (m % 8 == 0 if self._is_turned else k % 8 == 0)
        if m < FEWEST_ROWS or n == 0 or k == 0 or batch == 0 or not is_whole or (self._along_k and k % 8):
            return NOTHING
        a, bs = product.a, product.bs
        lines = [self._line(a, a.col_stride, k, words) if self._is_turned else self._line(a, a.row_stride, m, words)]
        for b in bs:
            pitch, count = (b.col_stride, n) if self._along_k else (b.row_stride, k)
            lines.append(self._line(b, pitch, count, words))
        apart = [2 * self.number(x.batch_stride, words) for x in (a, *bs)] if product.batch != 1 else []
        if not self.is_aligned(words) or any(x % 16 for x in (*apart, *(x for line in lines for x in line))):
            return NOTHING
        shape = self.shape(m, n, gpu.info.multiprocessors, batch)
        tiles = batch * -(-m // shape.rows) * -(-n // shape.columns)
        if tiles >= 2**31:
            return NOTHING
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(shape, shape.shared_bytes, what, lambda: self.ptx(shape), gpu)
        arguments = [*(x for line in lines for x in line), *apart, m, n, k, *self.passed(words)]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(tiles, THREADS, shape.shared_bytes), block)

    def _line(self, matrix: Matrix, pitch: int | str, count: int, words: Sequence[int]) -> tuple[int, int]:
        """The address of the first line, and bytes to the next; one line may have any distance to it."""
        address = words[self.places[matrix.name]] + 2 * self.number(matrix.offset, words)
        return address, 2 * self.number(pitch, words) if count > 1 else 0
