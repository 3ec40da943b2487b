"""`gpu_matmul_kernel`: C = epilogue(A @ B) on a GPU, exact in the type of the sums, for any strides and sizes.

A block computes a tile of C. Step by step along K its threads put a tile of A and one of each B into shared memory,
while the elements of the next step are already on their way to registers; each thread multiplies its rows by its
columns. Rows and columns that do not exist read the last one that does and are not stored. Products of few rows have a
way of their own (`matmul_few`), chosen when the kernel runs where the number of rows is not known before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, MatrixOperand, Product
from rlx.kernels.gpu.matmul_few import FEW_ROWS, FewRows, few_form
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extents
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import SHORT_FLOATS, Buffer, Const, Kernel, Value, ValueType
from rlx.kernels.specs.expr import compute_dtype, lower_expr

THREADS = 256
# Threads along the rows and along the columns of a tile.
SIDE = 16
# Bytes that the threads of a block share on most GPUs.
SHARED_BYTES = 48 << 10
# Rows from which on a choice of tiles counts: for fewer, where their number is not known before, an estimate is made.
MANY_ROWS = 128
# Bytes of what a thread reads from shared memory at a time.
VECTOR_BYTES = 16


class TileShape(NamedTuple):
    """A tile of C, `rows` by `columns`, and the depth of a step along K. A thread has `height` by `width` of it, in
    groups of `lanes`: neighbouring threads read neighbouring groups, so that no two meet in a bank of memory."""

    rows: int
    columns: int
    depth: int
    lanes: int

    @property
    def height(self) -> int:
        return self.rows // SIDE

    @property
    def width(self) -> int:
        return self.columns // SIDE


class TensorTiles(NamedTuple):
    """How the tensor-core form of a product of many rows cuts it: columns of a tile, 0 for those that an estimate says,
    and rows of tiles that are walked before the next column of them. `rlx tune` measures which are best."""

    columns: int = 0
    band: int = 8


USUAL = TensorTiles()


class ProductOrigin(NamedTuple):
    """What a product kernel was made of: the product, the type of its sums, and how tensor cores are to cut it."""

    product: Product
    acc: DType
    tiles: TensorTiles = USUAL


def tile_sets(has_wgmma: bool, product: Product, acc: DType) -> list[TensorTiles]:
    """What is worth trying, the usual one first; only this where there is no such form."""
    types = {product.a.dtype, *(b.dtype for b in product.bs)}
    is_few = isinstance(product.m, int) and product.m < MANY_ROWS
    if not has_wgmma or is_few or acc is not DType.F32 or product.batch != 1 or not types <= SHORT_FLOATS:
        return [USUAL]
    widest = 256 // len(product.bs)
    found = [TensorTiles(columns) for columns in (widest, widest // 2, widest // 4) if columns >= 64]
    return [USUAL, *found, TensorTiles(widest, 16), TensorTiles(widest, 4)]


class RoutedOrigin(NamedTuple):
    """The same of a product in which every row has the B of one of so many experts; the kernel has the route as
    its parameter `route`."""

    product: Product
    acc: DType
    experts: int


def tile_shape(acc: DType, product: Product, shared_bytes: int = SHARED_BYTES) -> TileShape:
    """Large tiles where there are rows and columns for them, and registers for the sums; steps as deep as half of the
    shared memory has room for, of which products of few rows may have the other."""
    lanes = VECTOR_BYTES // acc.size_bytes
    small = SIDE * lanes
    has_many_rows = not isinstance(product.m, int) or product.m > small
    has_many_columns = not isinstance(product.n, int) or product.n > small
    wide = lanes == 4 and has_many_rows and has_many_columns
    rows, columns = 2 * small if wide else small, 2 * small if wide and len(product.bs) == 1 else small
    lines = rows + lanes + len(product.bs) * (columns + lanes)
    depth = 16
    while depth > 2 and depth * lines * acc.size_bytes > shared_bytes // 2:
        depth //= 2
    return TileShape(rows, columns, depth, lanes)


def gpu_matmul_kernel(
    name: str,
    product: Product,
    accumulator: DType | None = None,
    shared_bytes: int = SHARED_BYTES,
    few_rows: int = FEW_ROWS,
    has_subgroups: bool = False,
) -> Kernel:
    """A product of numbers, accumulated in f32 for f16 and bf16. Parameters are those of `matmul_kernel`; up to
    `few_rows` rows go their own way, by subgroups where the machine has them."""
    acc = accumulator or compute_dtype(product.a.dtype)
    stored = product.cs[0].dtype
    if product.epilogue is None and (len(product.bs) > 1 or acc.is_float != stored.is_float):
        raise OpError(f"matmul {name}: accumulates in {acc} and stores {stored}; say the conversion in an epilogue")
    k = GroupBuilder(name) if has_subgroups else KernelBuilder(name)
    kernel = ProductMaker(k, product, acc, shared_bytes, few_rows, has_subgroups).build()
    kernel.origin = ProductOrigin(product, acc)
    return kernel


class TilePlace(NamedTuple):
    """Which tile: its matrix of A and C, and that of B, its first row and column, and where rows end."""

    batch: Value
    matrix: Value
    row: Value
    column: Value
    end: Value


class ProductMaker:
    """Tiles in the registers of threads; other ways to compute a tile give their own `shape` and `tile`."""

    threads = THREADS

    def __init__(
        self,
        k: KernelBuilder,
        product: Product,
        acc: DType,
        shared_bytes: int,
        few_rows: int,
        has_subgroups: bool = False,
    ) -> None:
        self.k = k
        self.product, self.acc, self.epilogue, self.few_rows_most = product, acc, product.epilogue, few_rows
        form = few_form(product)
        align = VECTOR_BYTES if form.is_aligned and self.may_be_few else 0
        self.a = MatrixOperand(k, product.a, align=align if form.along_k else 0)
        self.bs = [MatrixOperand(k, b, align=align) for b in product.bs]
        # An operand of the epilogue may be C itself: each element is read before it is written.
        self.cs = [MatrixOperand(k, c, write=True, noalias=False) for c in product.cs]
        operands = self.epilogue.operands if self.epilogue else ()
        self.extra = [MatrixOperand(k, operand, noalias=False) for operand in operands]
        self.declare_pointers()
        extents = Extents(k)
        sizes = (product.m, product.n, product.k, product.batch)
        self.m, self.n, self.depth, self.batches = (extents(s) for s in sizes)
        for operand in (self.a, *self.bs, *self.cs, *self.extra):
            operand.declare_strides(extents)
        self.shape = tile_shape(acc, product, shared_bytes)
        sizes_of_few = (self.m, self.n, self.depth)
        self.few = FewRows(k, self.a, self.bs, sizes_of_few, acc, self.threads, form, few_rows, has_subgroups)

    def declare_pointers(self) -> None:
        """More parameters behind the operands."""

    def row_of(self, number: Value) -> Value:
        """The row of A and C that a row of a tile is."""
        return number

    @property
    def may_be_few(self) -> bool:
        return not isinstance(self.product.m, int) or self.product.m <= self.few_rows_most

    def build(self) -> Kernel:
        """Blocks of tiles, or of the way for few rows."""
        k, m = self.k, self.product.m
        row_blocks = k.ceildiv(self.m, self.shape.rows)
        tiles = row_blocks * k.ceildiv(self.n, self.shape.columns)
        few = self.few.blocks()
        if isinstance(m, int):
            with self.blocks(few if self.may_be_few else tiles) as (batch, block, thread):
                self.few_rows(batch, block, thread) if self.may_be_few else self.tile(batch, block, row_blocks, thread)
            return k.build()
        is_few = k.min(k.max(k.as_index(self.few_rows_most + 1) - self.m, 0), 1)
        with self.blocks(is_few * few + (1 - is_few) * tiles) as (batch, block, thread):
            with k.when(self.m <= self.few_rows_most):
                self.few_rows(batch, block, thread)
            with k.otherwise():
                self.tile(batch, block, row_blocks, thread)
        return k.build()

    def blocks(self, count: Value) -> _Blocks:
        return _Blocks(self.k, count, self.batches, self.threads)

    def few_rows(self, batch: Value, block: Value, thread: Value) -> None:
        self.few.run(batch, block, thread, lambda row, column, lanes, sums: self.store(batch, row, column, lanes, sums))

    # Tiles.

    def tile(self, batch: Value, block: Value, row_blocks: Value, thread: Value) -> None:
        # Neighbouring blocks share their columns of B, the larger operand of most products.
        row, column = block % row_blocks * self.shape.rows, block // row_blocks * self.shape.columns
        self.tile_at(TilePlace(batch, batch, row, column, self.m), thread)

    def tile_at(self, at: TilePlace, thread: Value) -> None:
        k, shape, acc = self.k, self.shape, self.acc
        tiles = [_SharedTile(k, "rows", self.a, acc, shape.rows, shape.depth, True)]
        for number, b in enumerate(self.bs):
            tiles.append(_SharedTile(k, f"columns{number}", b, acc, shape.columns, shape.depth, False))
        tiles[0].start(at.batch, at.row, at.end, thread, self.row_of)
        for tile in tiles[1:]:
            tile.start(at.matrix, at.column, self.n, thread)
        zero = k.const(0, ValueType(acc, shape.lanes))
        sums: list[Value] = [zero] * (len(self.bs) * shape.height * (shape.width // shape.lanes))
        if isinstance(self.depth, Const) and self.depth.literal == 0:
            self.finish(at, thread, sums)
            return
        first = [value for tile in tiles for value in tile.fetch(k.as_index(0), self.depth)]
        with k.fold("step", 0, self.depth, shape.depth, init=[*sums, *first]) as fold:
            fetched = list(fold.values[len(sums) :])
            # Everybody has read the tiles of the step before.
            k.barrier()
            for tile in tiles:
                tile.put([fetched.pop(0) for _ in range(tile.count)])
            k.barrier()
            after = [value for tile in tiles for value in tile.fetch(fold.index + shape.depth, self.depth)]
            fold.next(*self.multiplied(tiles, list(fold.values[: len(sums)]), thread), *after)
        self.finish(at, thread, fold.results[: len(sums)])

    def multiplied(self, tiles: Sequence[_SharedTile], sums: list[Value], thread: Value) -> list[Value]:
        """The sums after one step: every row of a thread times every vector of its columns."""
        k, shape = self.k, self.shape
        rows, columns = thread // SIDE * shape.lanes, thread % SIDE * shape.lanes
        for p in range(shape.depth):
            a = tiles[0].read(p, rows, shape.height // shape.lanes, shape.lanes)
            number = 0
            for tile in tiles[1:]:
                b = tile.read(p, columns, shape.width // shape.lanes, shape.lanes)
                for group in a:
                    for lane in range(shape.lanes):
                        factor = k.splat(k.extract(group, lane), shape.lanes)
                        for vector in b:
                            sums[number] = self.multiply_add(factor, vector, sums[number])
                            number += 1
        return sums

    def multiply_add(self, a: Value, b: Value, total: Value) -> Value:
        return self.k.fma(a, b, total) if self.acc.is_float else total + a * b

    def finish(self, at: TilePlace, thread: Value, sums: Sequence[Value]) -> None:
        """Sums go through memory of the thread, so that the code of an epilogue is there once for all its rows."""
        k, shape = self.k, self.shape
        vectors = shape.width // shape.lanes
        kept = k.local("sums", self.acc, len(sums) * shape.lanes)
        for number, value in enumerate(sums):
            k.store(kept, k.as_index(number * shape.lanes), value)
        per_b = shape.height * vectors
        with k.loop("r", 0, shape.height) as r:
            group, inside = r // shape.lanes, r % shape.lanes
            here = at.row + (group * (SIDE * shape.lanes) + (thread // SIDE * shape.lanes + inside))
            with k.when(here < at.end):
                row = self.row_of(here)
                for v in range(vectors):
                    start = at.column + (thread % SIDE * shape.lanes + v * SIDE * shape.lanes)
                    places = [(r * vectors + (v + b * per_b)) * shape.lanes for b in range(len(self.bs))]
                    self.store_vector(at.batch, row, start, [(kept, place) for place in places])

    def store_vector(self, batch: Value, row: Value, column: Value, kept: Sequence[tuple[Buffer, Value]]) -> None:
        k, lanes, n = self.k, self.shape.lanes, self.product.n
        if isinstance(n, int) and n % lanes == 0:
            with k.when(column < self.n):
                self.store(batch, row, column, lanes, [k.load(b, place, lanes=lanes) for b, place in kept])
            return
        with k.loop("lane", 0, lanes) as lane, k.when(column + lane < self.n):
            self.store(batch, row, column + lane, 1, [k.load(b, place + lane) for b, place in kept])

    def store(self, batch: Value, row: Value, column: Value, lanes: int, sums: Sequence[Value]) -> None:
        store_elements(self.k, self.epilogue, self.cs, self.extra, (batch, row, column), lanes, sums)


def store_elements(
    k: KernelBuilder,
    epilogue: Epilogue | None,
    cs: Sequence[MatrixOperand],
    extra: Sequence[MatrixOperand],
    place: tuple[Value, Value, Value],
    lanes: int,
    sums: Sequence[Value],
    align: Callable[[Matrix], int] = lambda matrix: 0,
    given: Sequence[Value] | None = None,
) -> None:
    """The epilogue of neighbouring elements of a row, from (batch, row, column) on, and their store. `align` says what
    their places in a matrix are multiples of, in bytes; `given` are the operands of the epilogue, if they have been
    read before."""
    batch, row, column = place
    values, zero = list(sums), k.as_index(0)
    views = [o.at(batch, row, column) for o in (*cs, *extra)]
    if epilogue is not None:
        values += given or ()
        for view, operand in zip(views[len(cs) :], extra if given is None else ()):
            at, stride = view.at(zero, zero), view.column_stride
            values.append(k.load(view.buffer, at, lanes=lanes, stride=stride, align=align(operand.matrix)))
        indices = (batch, row, k.iota(DType.I64, lanes) + column)
        values = lower_expr(k, epilogue.exprs, values, lanes, indices)
    for view, value, operand in zip(views, values, cs):
        data = k.cast(value, view.buffer.dtype)
        k.store(view.buffer, view.at(zero, zero), data, stride=view.column_stride, align=align(operand.matrix))


class _Blocks:
    """The parallel loop over blocks of all batches, and the threads in it."""

    def __init__(self, k: KernelBuilder, count: Value, batches: Value, threads: int) -> None:
        self._k, self._count = k, count
        self._parallel = k.parallel("block", count * batches)
        self._threads = k.threads("thread", threads)

    def __enter__(self) -> tuple[Value, Value, Value]:
        block = self._parallel.__enter__()
        thread = self._threads.__enter__()
        return block // self._count, block % self._count, thread

    def __exit__(self, *error: object) -> None:
        self._threads.__exit__(*error)  # type: ignore[arg-type]
        self._parallel.__exit__(*error)  # type: ignore[arg-type]


class _SharedTile:
    """`lines` rows of A or columns of B, `depth` elements of each along K, in shared memory: line after line of one
    place in K, so that threads read vectors of lines."""

    def __init__(
        self, k: KernelBuilder, name: str, operand: MatrixOperand, acc: DType, lines: int, depth: int, is_a: bool
    ) -> None:
        self.k, self.operand, self.acc, self.is_a = k, operand, acc, is_a
        self.lines, self.depth = lines, depth
        # Another line of memory for each place, so that storing along K meets other banks.
        self.pitch = lines + VECTOR_BYTES // acc.size_bytes
        self.buffer = k.shared(name, acc, depth * self.pitch)
        self.count = lines * depth // THREADS

    def start(
        self,
        batch: Value,
        first: Value,
        limit: Value,
        thread: Value,
        line_of: Callable[[Value], Value] = lambda number: number,
    ) -> None:
        """Threads share the elements of a tile so that neighbours read what lies side by side in memory. `line_of` says
        which line of the operand one of the tile is."""
        k, matrix = self.k, self.operand.matrix
        along_lines = (matrix.row_stride if self.is_a else matrix.col_stride) == 1
        zero = k.as_index(0)
        origin = self.operand.at(batch, zero, zero)
        line_step, k_step = self.operand.strides[1:] if self.is_a else reversed(self.operand.strides[1:])
        self.places: list[tuple[Value, Value, Value]] = []
        for number in range(self.count):
            place = thread + number * THREADS
            line, p = (
                (place % self.lines, place // self.lines) if along_lines else (place // self.depth, place % self.depth)
            )
            start = origin.start + line_of(k.min(first + line, limit - 1)) * line_step
            self.places.append((p * self.pitch + line, p, start))
        self.k_step = k_step

    def fetch(self, step: Value, depth: Value) -> list[Value]:
        """The elements of this thread for a step; 0 behind the end of K."""
        k, buffer, found = self.k, self.operand.buffer, []
        known = int(depth.literal) if isinstance(depth, Const) else None
        for _, p, start in self.places:
            at = step + p
            if known is None:
                found.append(k.cast(k.load(buffer, start + at * self.k_step, mask=at < depth), self.acc))
                continue
            # The step after the last one reads what is there, and is not used.
            value = k.cast(k.load(buffer, start + k.min(at, known - 1) * self.k_step), self.acc)
            found.append(value if known % self.depth == 0 else k.select(at < depth, value, 0))
        return found

    def put(self, values: Sequence[Value]) -> None:
        for (place, _, _), value in zip(self.places, values):
            self.k.store(self.buffer, place, value)

    def read(self, p: int, first: Value, groups: int, lanes: int) -> list[Value]:
        """Vectors of lines at a place of K, `SIDE` vectors apart."""
        k, align = self.k, lanes * self.acc.size_bytes
        start = first + p * self.pitch
        return [k.load(self.buffer, start + g * SIDE * lanes, lanes=lanes, align=align) for g in range(groups)]
