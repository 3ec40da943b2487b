"""`wave_matmul_kernel`: C = epilogue(A @ B) of f16 or bf16 by instructions for whole matrices (MFMA, WMMA).

A block of four waves computes a tile of C, each wave a quarter of it in sums that never leave its registers. Step by
step along K the block puts tiles of A and B into shared memory, line by line along K, while the elements of the next
step are on their way to registers; a wave reads vectors of 16 bytes and multiplies them 16 by 16. Which thread has
which element is the machine's `MatrixUnit`; that a step takes the elements of K in another order does not matter, since
A and B take the same. At the end sums pass through shared memory, so that rows of C are stored in vectors.

Rows, columns and elements of K that do not exist are read as others or as 0 and are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs_of

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import MatrixOperand, Product
from rlx.kernels.gpu.matmul import ProductMaker, ProductOrigin, TileShape
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value, ValueType
from rlx.kernels.machines import Machine, MatrixUnit

# Waves of a block along the rows and along the columns of its tile.
WAVES = (2, 2)
# Elements along K of a step, and of a vector of 16 bytes.
DEPTH, VECTOR = 32, 8
# Another vector behind each line of shared memory, so that lines begin in other banks.
PITCH = DEPTH + VECTOR
# Sums of a vector that is stored.
LANES = 4
# Rows or columns of C that a wave has at most, and columns that pass through shared memory at a time.
MOST, STAGED = 64, 32


def is_wave_product(machine: Machine, product: Product, acc: DType) -> bool:
    """Whether the machine multiplies such matrices by instructions."""
    dtypes = {m.dtype for m in (product.a, *product.bs)}
    return machine.matrix is not None and acc is DType.F32 and len(dtypes) == 1 and dtypes <= {*machine.matrix.factors}


def wave_matmul_kernel(
    name: str, machine: Machine, product: Product, acc: DType, most: int = MOST, waves: tuple[int, int] = WAVES
) -> Kernel:
    """The kernel; parameters are those of `matmul_kernel`. A wave has up to `most` rows and columns of C, and a block
    `waves` of them down and across."""
    if machine.matrix is None or not is_wave_product(machine, product, acc):
        raise OpError(f"matmul {name}: {machine.name} has no instructions for products of {product.a.dtype} in {acc}")
    if product.epilogue is None and len(product.bs) > 1:
        raise OpError(f"matmul {name}: several Bs need an epilogue that makes the Cs of their products")
    maker: type[WaveMaker] = WaveMaker
    if machine.matrix.is_by_memory:
        from rlx.kernels.gpu.matmul_fragments import FragmentMaker

        maker = FragmentMaker
    kernel = maker(GroupBuilder(name), product, machine, machine.matrix, min(most, maker.most), waves).build()
    kernel.origin = ProductOrigin(product, acc)
    return kernel


class WaveMaker(ProductMaker):
    """Tiles in the registers of waves, which thread has what being known."""

    k: GroupBuilder
    most = MOST

    def __init__(
        self,
        k: GroupBuilder,
        product: Product,
        machine: Machine,
        unit: MatrixUnit,
        most: int,
        waves: tuple[int, int],
    ) -> None:
        self.waves_down, self.waves_across = waves
        self.threads = self.waves_down * self.waves_across * unit.threads
        super().__init__(k, product, DType.F32, machine.shared_bytes, machine.few_rows)
        self.unit = unit
        side = unit.side
        self.wave_rows = _part(product.m, self.waves_down, most, side)
        # Registers for the sums of all Bs.
        columns = max(side, most // len(product.bs) // side * side)
        self.wave_columns = _part(product.n, self.waves_across, columns, side)
        rows, columns = self.waves_down * self.wave_rows, self.waves_across * self.wave_columns
        self.shape = TileShape(rows, columns, DEPTH, LANES)

    def tile(self, batch: Value, block: Value, row_blocks: Value, thread: Value) -> None:
        shape = self.shape
        row, column = block % row_blocks * shape.rows, block // row_blocks * shape.columns
        a = LineTile(self, "rows", self.a, shape.rows, True)
        bs = [LineTile(self, f"columns{n}", b, shape.columns, False) for n, b in enumerate(self.bs)]
        tiles = [a, *bs]
        for tile in tiles:
            tile.start(batch, row if tile.is_a else column, self.m if tile.is_a else self.n, thread)
        lane, wave = thread % self.unit.threads, thread // self.unit.threads
        # Where in its lines a thread begins to read.
        line = self.first_line(lane)
        down = wave // self.waves_across * self.wave_rows
        across = wave % self.waves_across * self.wave_columns
        places = [(down if tile.is_a else across) + line for tile in tiles]
        tall, wide = self.wave_rows // self.unit.side, self.wave_columns // self.unit.side
        sums = self.no_sums(tall * wide * len(bs))
        sums = self.multiplied_all(tiles, places, lane // self.unit.side, sums)
        self.store_tile(batch, row + down, column + across, wave, lane, sums)

    def tile_type(self, dtype: DType) -> DType:
        """As what elements of a type lie in shared memory."""
        return dtype

    def first_line(self, lane: Value) -> Value:
        """Of the lines that a wave reads, the first one of a thread."""
        return lane % self.unit.side

    def no_sums(self, count: int) -> list[Value]:
        """Sums of nothing, by an instruction: LLVM takes vectors of a loop apart that begin as a constant, and copies
        each of their elements in every step."""
        k, unit = self.k, self.unit
        factor = k.const(0, ValueType(self.product.a.dtype, unit.factor_lanes))
        return [k.wave_mma(unit, factor, factor, k.const(0, ValueType(DType.F32, unit.sum_lanes)))] * count

    def multiplied_all(
        self, tiles: Sequence[LineTile], places: Sequence[Value], group: Value, sums: list[Value]
    ) -> list[Value]:
        """The sums after all of K."""
        k, depth = self.k, self.depth
        if not isinstance(depth, Const):
            with k.fold("step", 0, depth, DEPTH, init=sums) as fold:
                fetched = [v for tile in tiles for v in tile.fetch(fold.index, depth)]
                fold.next(*self.step(tiles, places, group, list(fold.values), fetched))
            return list(fold.results)
        known = int(depth.literal)
        whole = known // DEPTH * DEPTH
        if whole:
            first = [v for tile in tiles for v in tile.fetch(k.as_index(0))]
            with k.fold("step", 0, whole, DEPTH, init=[*sums, *first]) as fold:
                fetched = list(fold.values[len(sums) :])
                # The last step reads itself once more, which nobody uses.
                following = k.min(fold.index + DEPTH, whole - DEPTH)
                self.put(tiles, fetched)
                after = [v for tile in tiles for v in tile.fetch(following)]
                fold.next(*self.multiplied_tiles(tiles, places, group, list(fold.values[: len(sums)])), *after)
            sums = list(fold.results[: len(sums)])
        if known > whole:
            fetched = [v for tile in tiles for v in tile.fetch(k.as_index(whole), depth)]
            sums = self.step(tiles, places, group, sums, fetched)
        return sums

    def step(
        self, tiles: Sequence[LineTile], places: Sequence[Value], group: Value, sums: list[Value], fetched: list[Value]
    ) -> list[Value]:
        self.put(tiles, fetched)
        return self.multiplied_tiles(tiles, places, group, sums)

    def put(self, tiles: Sequence[LineTile], fetched: list[Value]) -> None:
        # Everybody has read the tiles of the step before.
        self.k.barrier()
        for tile in tiles:
            tile.put([fetched.pop(0) for _ in range(tile.count)])
        self.k.barrier()

    def multiplied_tiles(
        self, tiles: Sequence[LineTile], places: Sequence[Value], group: Value, sums: list[Value]
    ) -> list[Value]:
        """The sums after what is in shared memory: by vectors along K, and by parts of them that one product takes."""
        k, lanes = self.k, self.unit.factor_lanes
        width = max(VECTOR, lanes)
        # Groups of threads that have different elements of K.
        side = self.unit.side
        groups = side // lanes
        along = group % groups * width if groups > 1 else k.as_index(0)
        for start in range(0, DEPTH, groups * width):
            a, *bs = (
                [
                    k.load(tile.buffer, (place + i * side) * PITCH + (along + start), lanes=width, align=16)
                    for i in range((self.wave_rows if tile.is_a else self.wave_columns) // side)
                ]
                for tile, place in zip(tiles, places)
            )
            for part in range(0, width, lanes):
                number = 0
                taken = range(part, part + lanes)
                rows = [v if width == lanes else k.shuffle(v, taken) for v in a]
                for b in bs:
                    columns = [v if width == lanes else k.shuffle(v, taken) for v in b]
                    for row in rows:
                        for column in columns:
                            sums[number] = k.wave_mma(self.unit, row, column, sums[number])
                            number += 1
        return sums

    def store_tile(
        self, batch: Value, row: Value, column: Value, wave: Value, lane: Value, sums: Sequence[Value]
    ) -> None:
        """The part of a wave, a matrix's rows of some columns at a time, through shared memory of its own."""
        k, unit, side = self.k, self.unit, self.unit.side
        wide, tall = self.wave_columns // side, self.wave_rows // side
        columns = min(self.wave_columns, STAGED)
        pitch = columns + LANES
        size = side * pitch
        waves = self.waves_down * self.waves_across
        staged = [k.shared(f"sums{n}", DType.F32, waves * size) for n in range(len(self.bs))]
        own = wave * size
        vectors = columns // LANES
        for i, start in pairs_of(range(tall), range(0, self.wave_columns, columns)):
            k.barrier()
            for n, buffer in enumerate(staged):
                for j in range(columns // side):
                    number = (n * tall + i) * wide + start // side + j
                    self.stage(buffer, own + j * side, pitch, lane, sums, number)
            k.barrier()
            with k.loop("vector", lane, side * vectors, unit.threads) as vector:
                inside, at = vector // vectors, vector % vectors * LANES
                here = row + (inside + i * side)
                with k.when(here < self.m):
                    kept = [(b, own + inside * pitch + at) for b in staged]
                    self.store_vector(batch, here, column + (at + start), kept)

    def stage(self, buffer: Buffer, place: Value, pitch: int, lane: Value, sums: Sequence[Value], number: int) -> None:
        """One matrix of sums to shared memory, its rows `pitch` apart: what a thread has, from its first row on."""
        k, unit, side = self.k, self.unit, self.unit.side
        first = lane // side * (1 if unit.interleaves_rows else unit.sum_lanes)
        apart = unit.threads // side if unit.interleaves_rows else 1
        for r in range(unit.sum_lanes):
            k.store(buffer, place + (first + r * apart) * pitch + lane % side, k.extract(sums[number], r))


class LineTile:
    """`lines` rows of A or columns of B, `DEPTH` elements of each along K, line after line in shared memory."""

    def __init__(self, maker: WaveMaker, name: str, operand: MatrixOperand, lines: int, is_a: bool) -> None:
        self.k, self.operand, self.is_a = maker.k, operand, is_a
        self.lines, self.threads = lines, maker.threads
        self.buffer: Buffer = self.k.shared(name, maker.tile_type(operand.matrix.dtype), lines * PITCH)
        matrix, size = operand.matrix, maker.product.m if is_a else maker.product.n
        line_step = matrix.row_stride if is_a else matrix.col_stride
        k_step = matrix.col_stride if is_a else matrix.row_stride
        # Lines that lie side by side are read across; others along K, element by element where that lies apart.
        self.is_across = line_step == 1 and k_step != 1 and isinstance(size, int) and size % VECTOR == 0
        vectors = lines * DEPTH // VECTOR
        self.count = -(-vectors // self.threads)
        self.spare = self.count * self.threads - vectors  # threads that have nothing to put, if there are any

    def start(self, batch: Value, first: Value, limit: Value, thread: Value) -> None:
        """Threads share the vectors of a tile so that neighbours read what lies side by side in memory."""
        k, zero = self.k, self.k.as_index(0)
        line_step, k_step = self.operand.strides[1:] if self.is_a else reversed(self.operand.strides[1:])
        origin = self.operand.at(batch, zero, zero).start
        self.k_step, self.thread = k_step, thread
        self.places: list[tuple[Value, Value, Value]] = []  # in shared memory, along K, of the line
        for number in range(self.count):
            # Spare threads read what others read.
            place = (thread + number * self.threads) % (self.lines * DEPTH // VECTOR)
            if self.is_across:
                across = self.lines // VECTOR
                line, p = place % across * VECTOR, place // across
                existing = k.min(first + line, limit - VECTOR)
            else:
                line, p = place // (DEPTH // VECTOR), place % (DEPTH // VECTOR) * VECTOR
                existing = k.min(first + line, limit - 1)
            self.places.append((line * PITCH + p, p, origin + existing * line_step))

    def fetch(self, step: Value, end: Value | None = None) -> list[Value]:
        """The vectors of this thread for a step; with an `end` of K, 0 behind it."""
        k, found = self.k, []
        for _, p, start in self.places:
            at = step + p
            place, stride = start + at * self.k_step, k.as_index(1) if self.is_across else self.k_step
            mask = None
            if end is not None:
                mask = k.splat(at < end, VECTOR) if self.is_across else k.lane_mask(end - at, VECTOR)
            found.append(k.load(self.operand.buffer, place, lanes=VECTOR, stride=stride, mask=mask))
        return found

    def put(self, values: Sequence[Value]) -> None:
        if not self.spare:
            self.put_all(values)
            return
        with self.k.when(self.thread < self.threads - self.spare):
            self.put_all(values)

    def put_all(self, values: Sequence[Value]) -> None:
        k = self.k
        for (place, _, _), fetched in zip(self.places, values):
            value = k.cast(fetched, self.buffer.dtype)
            if not self.is_across:
                k.store(self.buffer, place, value, align=16)
                continue
            for lane in range(VECTOR):
                k.store(self.buffer, place + lane * PITCH, k.extract(value, lane))


def _part(size: object, waves: int, most: int, side: int) -> int:
    """Rows or columns of a wave: no more than there are, in whole matrices."""
    part = most
    while isinstance(size, int) and part % (2 * side) == 0 and waves * part // 2 >= size:
        part //= 2
    return part
