"""`ExpandedForm`: products of many rows with GGUF panels on tensor cores: weights are written out for each product,
which many rows hardly notice, into memory that the products of all layers share.

Rows of bf16 and f16 meet weights of their own type. Rows of f32, and weights for them, are sums of two numbers of bf16
(`rlx.kernels.gpu.expand_codes`), so that results are those of products in f32 to about 16 bits of each factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.form import HopperForm, product_refusal
from rlx.backends.cuda.hopper.launching import NOTHING, Load, Ready, Surroundings, TensorForm
from rlx.backends.cuda.hopper.mma_form import MmaForm, mma_refusal
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.backends.program.grid import Grid
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.gpu.expand_codes import expand_kernel, pitch_of, split_kernel
from rlx.kernels.gpu.matmul_codes import CodesOrigin
from rlx.kernels.ir.loop_ir import Buffer, Kernel
from rlx.kernels.machines import Machine

_ROWS = (DType.F32, DType.BF16, DType.F16)
# Rows from which on weights are written out, by the numbers that a weight is the sum of, 0 for rows that are no f32: on
# an H200 both forms take the same time with about 64, 32, and 30 (Q4_K) to 50 (Q8_0) rows.
LEAST_ROWS = {2: 64, 1: 32, 0: 40}
# Of the memory of a GPU, what weights that are written out may take.
_SHARE = 16
_ALIGN = 1024


def expanded_refusal(origin: CodesOrigin, machine: Machine) -> str:
    """Why a product with stored blocks has no such form; empty if it has one."""
    product = origin.product
    if product.a.dtype not in _ROWS:
        return f"{product.a.dtype} @ codes"
    if isinstance(product.m, int) and product.m < LEAST_ROWS[_parts(origin)]:
        return "few rows"
    if product.a.col_stride != 1:
        return "strides"
    refusal = product_refusal if machine.has_wgmma else mma_refusal
    return refusal(_expanded(origin), origin.acc, machine)


def _parts(origin: CodesOrigin) -> int:
    """Numbers of bf16 that a weight is the sum of, for rows of f32; 0 for others."""
    if origin.product.a.dtype is not DType.F32:
        return 0
    return 1 if origin.layout.is_short else 2


def _expanded(origin: CodesOrigin) -> Product:
    """The product of what is written out."""
    product, parts = origin.product, _parts(origin)
    k, _ = product.weight_shape
    pitch = pitch_of(k)
    dtype = DType.BF16 if parts else product.a.dtype
    bs = tuple(Matrix(f"lines{i}", dtype, 1, max(1, parts) * pitch) for i in range(len(product.bs)))
    if not parts:
        return replace(product, b=bs)
    return replace(product, k=pitch, a=Matrix("split_rows", dtype, 2 * pitch), b=bs)


class ExpandedForm(TensorForm):
    """One product."""

    entry = "product"

    def __init__(self, origin: CodesOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.origin, self.parts, self.product = origin, _parts(origin), _expanded(origin)
        written = ["split_rows", *(b.name for b in self.product.bs)]
        form = HopperForm if machine.has_wgmma else MmaForm
        self.name = f"{'wgmma' if machine.has_wgmma else 'mma'} of codes that are written out"
        self.waits = form.waits
        self.tiles = form(self.product, [*params, *written], machine, load, split=self.parts)
        # One for all code, so that all of it is known in one place.
        self._functions = self.tiles._functions

    @cached_property
    def expand(self) -> Kernel:
        """What writes out a weight."""
        (k, n), dtype = self.origin.product.weight_shape, self.product.bs[0].dtype
        return expand_kernel("expand_codes", self.machine, self.origin.layout, k, n, dtype, max(1, self.parts))

    @cached_property
    def split(self) -> Kernel:
        """What makes two numbers of each of f32."""
        return split_kernel("split_rows", self.origin.product.weight_shape[0])

    def row_bytes(self, m: int) -> int:
        return _aligned(4 * m * pitch_of(self.origin.product.weight_shape[0])) if self.parts else 0

    @property
    def weight_bytes(self) -> int:
        """Of one B."""
        k, n = self.origin.product.weight_shape
        return _aligned(2 * max(1, self.parts) * pitch_of(k) * n)

    def scratch_bytes(self, words: Sequence[int], gpu: Gpu) -> int:
        m, (k, n) = self.number(self.origin.product.m, words), self.origin.product.weight_shape
        size = self.row_bytes(m) + len(self.product.bs) * self.weight_bytes
        is_worth_it = m >= LEAST_ROWS[self.parts] and k > 0 and n > 0
        return size if is_worth_it and size <= gpu.info.memory_bytes // _SHARE else 0

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        return NOTHING

    def prepared_with(self, words: Sequence[int], gpu: Gpu, around: Surroundings) -> Ready:
        scratch = around.scratch
        if not scratch or not self.scratch_bytes(words, gpu):
            return NOTHING
        product = self.origin.product
        m, a = self.number(product.m, words), product.a
        first = scratch + self.row_bytes(m)
        lines = [first + i * self.weight_bytes for i in range(len(product.bs))]
        before = []
        if self.parts:
            rows = words[self.places[a.name]] + 4 * self.number(a.offset, words)
            stride = self.number(a.row_stride, words)
            if rows % 16 or stride % 4:
                return NOTHING
            before.append(self._loops(self.split, [rows, scratch, m, stride], gpu))
        for b, to in zip(product.bs, lines):
            weights = words[self.places[b.name]] + self.number(b.offset, words)
            if weights % 16:
                return NOTHING
            before.append(self._loops(self.expand, [weights, to], gpu))
        return self.tiles.prepared([*words, scratch, *lines], gpu)._replace(before=tuple(before))

    def _loops(self, kernel: Kernel, arguments: list[int], gpu: Gpu) -> Ready:
        """A launch of a kernel of loops."""
        text, machine = kernel.text, self.machine
        function = self.function(kernel.name, 0, text, lambda: compile_assembly(kernel, machine), gpu, kernel.name)
        sizes = [word for word, param in zip(arguments, kernel.params) if not isinstance(param, Buffer)]
        blocks = Grid.of(kernel)(sizes)
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(blocks, kernel.thread_count), block)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
