"""`RoutedForm`: products with experts on Hopper's tensor cores: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.form import product_refusal
from rlx.backends.cuda.hopper.gathering import CHUNK_BYTES
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Ready, block_shared_bytes
from rlx.backends.cuda.hopper.product_form import OriginForm
from rlx.backends.cuda.hopper.product_shape import ROWS, THREADS, ProductShape
from rlx.backends.cuda.hopper.routed_product import routed_product_text, routed_shared_bytes
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.modules import Launch
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.matmul import RoutedOrigin
from rlx.kernels.machines import Machine

# What a column costs in tiles of so many; rows of A are gathered again for each tile. Estimates.
_COSTS = {256: 1.0, 128: 1.1, 64: 1.4}


def routed_refusal(origin: RoutedOrigin, machine: Machine) -> str:
    """Why a product with experts has no such form; empty if it has one."""
    product = origin.product
    if not isinstance(product.k, int) or product.k % (CHUNK_BYTES // 2):
        return f"rows of {product.k} elements"
    if product.a.dtype not in ELEMENTS:
        return f"{product.a.dtype} @ {product.bs[0].dtype}"
    if product.a.col_stride != 1 or len(product.bs) != 1:
        return "strides"
    if routed_shared_bytes(_shape(origin, 256), origin.experts) > block_shared_bytes(machine):
        return f"{origin.experts} experts"
    # The batch of B is its expert.
    return product_refusal(product, origin.acc, machine)


def _shape(origin: RoutedOrigin, columns: int) -> ProductShape:
    (b,) = origin.product.bs
    return ProductShape(columns, 1, b.row_stride == 1, ELEMENTS[origin.product.a.dtype])


class RoutedForm(OriginForm[RoutedOrigin]):
    """One product."""

    name, entry = "wgmma tiles of experts", "routed_product"

    def ptx(self, columns: int) -> str:
        """The code for tiles of so many columns."""
        assert isinstance(self.product.k, int)
        shape, triple = _shape(self.origin, columns), self.machine.triple
        text = routed_product_text(self.entry, shape, self.origin.experts, self.product.k, self.finish, triple)
        return compile_optimized_assembly(text, self.machine, "a product with experts")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product, experts = self.product, self.origin.experts
        m, n, k = (self.number(s, words) for s in (product.m, product.n, product.k))
        if m == 0 or n == 0 or k == 0:
            return NOTHING
        # As many as there could be: a chosen expert begins one tile, and all full tiles of rows are one more.
        row_tiles = min(m, experts) + m // ROWS
        columns = self.columns(row_tiles, n, gpu.info.multiprocessors)
        shape = _shape(self.origin, columns)
        source = words[self.places[product.a.name]] + 2 * self.number(product.a.offset, words)
        pitch = 2 * self.number(product.a.row_stride, words) if m > 1 else 0
        spec = self.matrices(words, n, k, shape)
        if not spec.is_possible or not self.is_aligned(words) or any(a % CHUNK_BYTES for a in (source, pitch)):
            return NOTHING
        shared = routed_shared_bytes(shape, experts)
        what = f"{shape}\0{experts}\0{product}\0{self._finish.text}"
        function = self.function(columns, shared, what, lambda: self.ptx(columns), gpu)
        route = words[self.places["route"]]
        tiles = [-(-n // columns), -(-k // shape.depth)]
        arguments = [source, pitch, route, m, *tiles, *self.passed(words)]
        block = ArgumentBlock(1, len(arguments))
        encode(gpu, spec, block.map_at(0))
        block.set_words(arguments)
        blocks = min(gpu.info.multiprocessors, row_tiles * tiles[0])
        return Ready(function, Launch(blocks, THREADS, shared), block)

    def matrices(self, words: Sequence[int], n: int, k: int, shape: ProductShape) -> MapSpec:
        """The matrices of all experts as the copy engine sees them."""
        (b,) = self.product.bs
        address = words[self.places[b.name]] + 2 * self.number(b.offset, words)
        row, column, expert = (self.number(s, words) for s in (b.row_stride, b.col_stride, b.batch_stride))
        # Where there is one of something, it may have any distance to the next.
        if shape.along_k:
            line, sizes, box = column if n > 1 else -(-k // 8) * 8, (k, n), (64, shape.columns, 1)
        else:
            line, sizes, box = row if k > 1 else -(-n // 8) * 8, (n, k), (64, shape.depth, 1)
        step = expert if self.origin.experts > 1 else line * sizes[1]
        return MapSpec(address, (*sizes, self.origin.experts), (line, step), box, shape.element)

    def columns(self, row_tiles: int, n: int, multiprocessors: int) -> int:
        """Of a tile: those with which the multiprocessor that has most to do needs the least time."""

        def longest(columns: int) -> float:
            return -(-row_tiles * -(-n // columns) // multiprocessors) * columns * _COSTS[columns]

        return min(_COSTS, key=longest)
