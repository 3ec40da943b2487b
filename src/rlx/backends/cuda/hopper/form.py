"""`hopper_form`: the tensor-core kernel of a product, if it has one, and how it is launched.

The loop kernel of the product stays what it means, and what runs where the copy engine cannot read an operand or there
are too few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.group_emit import group_text
from rlx.backends.cuda.hopper.launching import BYTES, ELEMENTS, NOTHING, Load, Ready
from rlx.backends.cuda.hopper.product import product_text
from rlx.backends.cuda.hopper.product_form import ProductForm
from rlx.backends.cuda.hopper.product_shape import CONSUMERS, DEPTH, FEW_ROWS, ROWS, THREADS, ProductShape, check_shape
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.matmul import MANY_ROWS, USUAL, TensorTiles
from rlx.kernels.gpu.matmul_groups import GroupTiles, product_kernel
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine

# One row is a matter of the memory's speed alone.
FEWEST_ROWS = 2

_WORDS = ELEMENTS | BYTES

# Columns of tiles, of all products together, and what a step of a column costs in them relative to the widest: in
# narrower ones A is read more often. Estimates.
_COSTS = {256: 1.0, 192: 1.02, 128: 1.06, 64: 1.4}

# Steps along K in whose time a block begins and finishes a tile, and sums what blocks have that share one. Estimates.
_TILE_STEPS, _SHARE_STEPS = 6, 14

# Multiprocessors whose blocks can read each other's memory: of those of a cluster all must be in one such group.
_NEIGHBOURS = 16
_MOST_SHARING = 4


def hopper_form(product: Product, acc: DType, params: Sequence[str], machine: Machine, load: Load) -> HopperForm | None:
    """The form of a product of f16, bf16 or f8 with sums in f32; `params` are the names of the parameters of its loop
    kernel."""
    if product_refusal(product, acc, machine):
        return None
    return HopperForm(product, params, machine, load)


# Why a product of several matrices has not the form of one.
BATCHES = "batches"


def product_refusal(product: Product, acc: DType, machine: Machine, needs_wgmma: bool = True) -> str:
    """Why a product has no form; empty if it has one."""
    a, bs = product.a, product.bs
    if needs_wgmma and not machine.has_wgmma:
        return f"{machine.name} has no wgmma"
    are_bytes = needs_wgmma and all(m.dtype in BYTES for m in (a, *bs))
    if not are_bytes and (a.dtype not in ELEMENTS or any(b.dtype is not a.dtype for b in bs)):
        return f"{a.dtype} @ {bs[0].dtype}"
    if acc is not DType.F32:
        return f"sums in {acc}"
    if len(bs) > 2:
        return f"{len(bs)} products of one A"
    if product.batch != 1:
        return BATCHES
    along_k = all(b.row_stride == 1 for b in bs)
    if (a.col_stride != 1 and a.row_stride != 1) or (not along_k and any(b.col_stride != 1 for b in bs)):
        return "strides"
    if are_bytes and (a.col_stride != 1 or not along_k or any(b.dtype is not bs[0].dtype for b in bs)):
        return "f8 that does not lie side by side along K"
    if isinstance(product.m, int) and product.m < FEWEST_ROWS:
        return "one row"
    # Bools are bytes in memory and bits in code.
    if product.epilogue is not None and any(e.dtype is DType.BOOL for e in product.epilogue.operands):
        return "an epilogue that reads bool"
    return ""


class HopperForm(ProductForm):
    """One product. Code is made when it is first launched, for wide tiles of C or, where those are too few to fill the
    GPU, for narrow ones, or for blocks that share tiles."""

    name, entry = "wgmma tiles", "product"
    waits = True
    # Whether tiles have 64 rows where there are no more, and one group of warps that multiplies: benchmarks try it
    # (`cuda_peers.py --groups batch_products`).
    has_few_row_tiles = False

    def __init__(
        self,
        product: Product,
        params: Sequence[str],
        machine: Machine,
        load: Load,
        tiles: TensorTiles = USUAL,
        split: int = 0,
    ) -> None:
        super().__init__(product, params, machine, load)
        self.tiles, self.split = tiles, split
        self._element, self._b_element = (_WORDS[m.dtype] for m in (product.a, product.bs[0]))
        self._along_k = all(b.row_stride == 1 for b in product.bs)
        self._is_turned = product.a.col_stride != 1

    def ptx(self, columns: int, sharing: int = 1, rows: int = ROWS) -> str:
        """The code for tiles of so many columns of each product, which so many blocks share, and so many rows."""
        shape = self._shape(columns, sharing, rows)
        check_shape(shape)
        if self.has_loop_kernel(sharing):
            text = group_text(self.group_kernel(shape), self.machine)
        else:
            text = product_text(self.entry, shape, self.finish, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "a product on tensor cores")

    def has_loop_kernel(self, sharing: int) -> bool:
        """Whether the code is printed from loop IR. Blocks that share tiles, and stages of two types, have text of
        their own."""
        return sharing == 1 and self._element == self._b_element

    def group_kernel(self, shape: ProductShape) -> Kernel:
        """The kernel of a shape in loop IR."""
        tiles = GroupTiles(shape.columns, shape.depth, shape.stages, band=shape.band, parts=shape.split)
        tiles = tiles._replace(groups=shape.rows // tiles.rows)
        return product_kernel(self.product, tiles)

    def _shape(self, columns: int, sharing: int = 1, rows: int = ROWS) -> ProductShape:
        parts, band = len(self.product.bs), self.tiles.band
        elements = self._element, self._b_element
        shape = ProductShape(columns, parts, self._along_k, elements[0], self._is_turned, sharing, elements[1], band)
        return shape._replace(split=self.split, rows=rows)

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, n, k = (self.number(s, words) for s in (product.m, product.n, product.k))
        if m < FEWEST_ROWS or k == 0:
            return NOTHING
        # Of all parts of a line, where numbers are sums of several.
        of_a, of_b, depth = (2 * k, self.split * k, (self.split + 1) * k) if self.split else (k, k, k)
        columns, sharing = self.tiling_for(m, n, depth, gpu.info.multiprocessors)
        rows = self._tile_rows(m, columns, sharing)
        specs = [self._map(product.a, words, *(((of_a, m), 64) if self._is_turned else ((m, of_a), rows)))]
        for b in product.bs:
            size, box = ((n, of_b), columns) if self._along_k else ((of_b, n), 64)
            specs.append(self._map(b, words, size, box))
        if not all(spec.is_possible for spec in specs) or not self.is_aligned(words):
            return NOTHING
        shape = self._shape(columns, sharing, rows)
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(shape, shape.shared_bytes, what, lambda: self.ptx(columns, sharing, rows), gpu)
        block = ArgumentBlock(len(specs), 3 + len(self._passed))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        tiles = [-(-m // rows), -(-n // columns), -(-depth // shape.depth)]
        block.set_words([*tiles, *self.passed(words)])
        blocks = tiles[0] * tiles[1]
        blocks = min(gpu.info.multiprocessors, blocks) if sharing == 1 else blocks * sharing
        threads = THREADS if rows == ROWS else THREADS - CONSUMERS // 2
        return Ready(function, Launch(blocks, threads, shape.shared_bytes, sharing), block)

    def _tile_rows(self, m: int, columns: int, sharing: int) -> int:
        can_be_few = self.has_few_row_tiles and self.has_loop_kernel(sharing) and len(self.product.bs) == 1
        return FEW_ROWS if can_be_few and m <= FEW_ROWS and columns % 128 == 0 else ROWS

    def tiling_for(self, m: int, n: int, k: int, multiprocessors: int) -> tuple[int, int]:
        """Columns of a tile and how many blocks share one: what was chosen, or an estimate."""
        if self.tiles.columns and m >= MANY_ROWS:
            return self.tiles.columns, 1
        return tiling(m, n, k, len(self.product.bs), multiprocessors, self._shape(64).depth)

    def _map(self, matrix: Matrix, words: Sequence[int], size: tuple[int, int], box: int) -> MapSpec:
        is_turned = self._is_turned if matrix is self.product.a else self._along_k
        pitch = self.number(matrix.col_stride if is_turned else matrix.row_stride, words)
        size_bytes = matrix.dtype.size_bytes
        address = words[self.places[matrix.name]] + size_bytes * self.number(matrix.offset, words)
        # One row may have any distance to the next.
        unit = 16 // size_bytes
        pitch = pitch if size[0] > 1 else -(-size[1] // unit) * unit
        return MapSpec.matrix(address, *size, pitch, box, _WORDS[matrix.dtype])


def tiling(
    m: int, n: int, k: int, parts: int, multiprocessors: int, depth: int = DEPTH, may_share: bool = True
) -> tuple[int, int]:
    """Columns of a tile, and how many blocks share one: those with which the multiprocessor that has most to do needs
    the least time."""
    steps = -(-k // depth)

    def longest(found: tuple[int, int]) -> float:
        columns, sharing = found
        tiles = -(-m // ROWS) * -(-n // columns)
        at_once = multiprocessors // _NEIGHBOURS * (_NEIGHBOURS // sharing) if sharing > 1 else multiprocessors
        alone = _TILE_STEPS + (_SHARE_STEPS if sharing > 1 else 0)
        return -(-tiles // at_once) * (-(-steps // sharing) + alone) * columns * _COSTS[columns * parts]

    # The copy engine brings at least 64 columns. Every block that shares has something to sum.
    widths = [c // parts for c in _COSTS if c % parts == 0 and c // parts % 64 == 0]
    most = min(_MOST_SHARING, multiprocessors // _NEIGHBOURS) if parts == 1 and may_share else 1
    shares = [s for s in range(1, most + 1) if s == 1 or (s - 1) * -(-steps // s) < steps]
    return min(((c, s) for s in shares for c in widths), key=longest)
