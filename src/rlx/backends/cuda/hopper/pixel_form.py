"""`PixelForm`: gradients of weights of convolutions on Hopper's tensor cores: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.form import product_refusal, tiling
from rlx.backends.cuda.hopper.gathering import gatherers
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Ready
from rlx.backends.cuda.hopper.pixel_sums import GradientOperands, PixelShape, pixel_product_text, window_gradient_text
from rlx.backends.cuda.hopper.product_form import OriginForm
from rlx.backends.cuda.hopper.product_shape import CONSUMERS, DEPTH, FEW_ROWS, ROWS, THREADS, ProductShape
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.hopper.window_product import UNIT
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.windows import GradientSums
from rlx.kernels.machines import Machine
from rlx.ops.lowered.window_gradients import WindowGradient


def pixel_refusal(origin: GradientSums, machine: Machine) -> str:
    """Why sums over pixels have no such form; empty if they have one."""
    if isinstance(origin.op, WindowGradient):
        if origin.x[3] % UNIT or origin.dy[3] % UNIT:
            return f"{origin.x[3]} and {origin.dy[3]} channels"
        if 2 * origin.x[1] * origin.x[2] * origin.x[3] >= 1 << 31:
            return "pictures of more than 2 GiB"
        if origin.op.run % DEPTH:
            return f"parts of {origin.op.run} pixels"
    elif origin.x[2] % UNIT:
        return f"pictures of {origin.x[2]} pixels"
    return product_refusal(origin.product, DType.F32, machine)


class PixelForm(OriginForm[GradientSums]):
    """One gradient."""

    name, entry = "wgmma tiles of pixels", "pixel_sums"

    @property
    def is_gathered(self) -> bool:
        return isinstance(self.origin.op, WindowGradient)

    def shape(self, columns: int) -> PixelShape:
        x, dy, run = self.origin.x, self.origin.dy, self.origin.op.run
        is_short = not self.is_gathered and self.origin.rows <= FEW_ROWS and columns % 128 == 0
        element, rows = ELEMENTS[self.product.a.dtype], FEW_ROWS if is_short else ROWS
        tile = ProductShape(columns, 1, not self.is_gathered, element, self.is_gathered, rows=rows)
        if self.is_gathered:
            steps = -(-(dy[0] * dy[1] * dy[2]) // DEPTH)
            return PixelShape(tile, self.origin.rows, self.origin.parts, run // DEPTH, steps)
        per = -(-x[2] // DEPTH)
        return PixelShape(tile, self.origin.rows, self.origin.parts, run, x[0] * per, per)

    def ptx(self, columns: int) -> str:
        """The code for tiles of so many columns."""
        shape, origin, triple = self.shape(columns), self.origin, self.machine.triple
        if isinstance(origin.op, WindowGradient):
            operands = GradientOperands(origin.op, origin.x, origin.dy)
            text = window_gradient_text(self.entry, shape, operands, self.finish, triple)
        else:
            text = pixel_product_text(self.entry, shape, self.finish, triple)
        return compile_optimized_assembly(text, self.machine, "the gradient of a convolution on tensor cores")

    def maps(self, columns: int, words: Sequence[int]) -> list[MapSpec]:
        """Of what the copy engine brings."""
        (b,), a, element = self.product.bs, self.product.a, ELEMENTS[self.product.a.dtype]
        if self.is_gathered:
            images, height, width, filters = self.origin.dy
            dy = words[self.places[b.name]]
            return [MapSpec.matrix(dy, images * height * width, filters, filters, DEPTH, element)]

        def pictures(name: str, dims: tuple[int, ...], rows: int) -> MapSpec:
            images, channels, pixels = dims
            sizes, strides = (pixels, channels, images), (pixels, channels * pixels)
            return MapSpec(words[self.places[name]], sizes, strides, (DEPTH, rows, 1), element)

        rows = self.shape(columns).tile.rows
        return [pictures(a.name, self.origin.x, rows), pictures(b.name, self.origin.dy, columns)]

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        filters, rows = self.number(self.product.n, words), self.origin.rows
        steps, parts = self.shape(64).each, self.origin.parts
        # Tiles of all parts are there at once.
        columns, _ = tiling(rows * parts, filters, steps * DEPTH, 1, gpu.info.multiprocessors, may_share=False)
        shape = self.shape(columns)
        specs, source = self.maps(columns, words), words[self.places[self.product.a.name]]
        if not all(s.is_possible for s in specs) or not self.is_aligned(words) or source % 16:
            return NOTHING
        what = f"{shape}\0{self.origin}\0{self._finish.text}"
        shared = shape.tile.shared_bytes
        function = self.function(columns, shared, what, lambda: self.ptx(columns), gpu)
        tiles = [-(-rows // ROWS), -(-filters // columns), shape.steps]
        arguments = [*([source] if self.is_gathered else []), *tiles, *self.passed(words)]
        block = ArgumentBlock(len(specs), len(arguments))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words(arguments)
        blocks = min(gpu.info.multiprocessors, tiles[0] * tiles[1] * parts)
        threads = gatherers(columns) + CONSUMERS if self.is_gathered else THREADS
        return Ready(function, Launch(blocks, threads, shared), block)
