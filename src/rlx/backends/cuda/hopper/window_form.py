"""`WindowForm`: convolutions on Hopper's tensor cores: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.form import product_refusal, tiling
from rlx.backends.cuda.hopper.gathering import gatherers
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Ready
from rlx.backends.cuda.hopper.product_form import OriginForm
from rlx.backends.cuda.hopper.product_shape import CONSUMERS, ROWS, ProductShape
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.hopper.window_product import UNIT, WindowShape, window_product_text
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.windows import WindowOrigin
from rlx.kernels.machines import Machine


def window_refusal(origin: WindowOrigin, machine: Machine) -> str:
    """Why a product over windows has no such form; empty if it has one."""
    if origin.picture[3] % UNIT:
        return f"{origin.picture[3]} channels"
    if 2 * max(origin.picture[1] * origin.picture[2] * origin.picture[3], origin.product.weight_shape[0]) >= 1 << 31:
        return "pictures of more than 2 GiB"
    return product_refusal(origin.product, DType.F32, machine)


class WindowForm(OriginForm[WindowOrigin]):
    """One convolution."""

    name, entry = "wgmma tiles of windows", "window_product"

    def shape(self, columns: int) -> WindowShape:
        tile = ProductShape(columns, 1, True, ELEMENTS[self.product.a.dtype])
        return WindowShape(tile, self.origin.op, self.origin.picture)

    def ptx(self, columns: int) -> str:
        """The code for tiles of so many columns."""
        text = window_product_text(self.entry, self.shape(columns), self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a convolution on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, n, k = (self.number(s, words) for s in (product.m, product.n, product.k))
        columns, _ = tiling(m, n, k, 1, gpu.info.multiprocessors, may_share=False)
        shape = self.shape(columns)
        (b,) = product.bs
        source = words[self.places[product.a.name]]
        spec = MapSpec.matrix(words[self.places[b.name]], n, k, k, columns, shape.tile.element)
        if not spec.is_possible or not self.is_aligned(words) or source % 16:
            return NOTHING
        what = f"{shape}\0{product}\0{self._finish.text}"
        shared = shape.tile.shared_bytes
        function = self.function(columns, shared, what, lambda: self.ptx(columns), gpu)
        tiles = [-(-m // ROWS), -(-n // columns), -(-k // shape.tile.depth)]
        arguments = [source, *tiles, *self.passed(words)]
        block = ArgumentBlock(1, len(arguments))
        encode(gpu, spec, block.map_at(0))
        block.set_words(arguments)
        blocks = min(gpu.info.multiprocessors, tiles[0] * tiles[1])
        return Ready(function, Launch(blocks, gatherers(columns) + CONSUMERS, shared), block)
