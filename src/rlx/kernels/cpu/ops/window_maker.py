"""Products over the windows of pictures whose channels lie side by side, with weights in panels and an epilogue.

A block is some rows of some positions of a picture. What its windows see is copied to scratch (`window_pixels`) some
channels at a time; register tiles read it from there, each row of a tile at a position of its own, so that tiles go on
from one row of positions to the next. The sums, and what is done to them in the end, are those of any product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.compile.fuse.matmul_nest import WindowForm
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.blocks import BlockShape, panel_vectors
from rlx.kernels.cpu.matmul.matmul import MatmulMaker, MatrixOperand, ResultBlock
from rlx.kernels.cpu.matmul.tiles import MatrixView, TileStep, multiply_add
from rlx.kernels.cpu.ops.window_pixels import BlockPlaces, SeenPixels, Source, block_places, seen_size
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Kernel, Value, ValueType
from rlx.kernels.machines import Machine
from rlx.kernels.specs.products import ProductSpec

# Positions of a block at most, and of a row of them; panels of weights that share what is copied; elements that
# windows see of a step.
POSITIONS, WIDEST, PANELS, SEEN = 224, 64, 2, 24 << 10
# Rows of a register tile at most, blocks that several threads share evenly enough, and bytes of scratch.
TILE_ROWS, ENOUGH_BLOCKS = 12, 8
# Codes of 8 bits that one lane multiplies at once.
WORD = 4
# The same for windows over single channels: positions that are computed together, and vectors of channels of a block.
CHANNEL_POSITIONS, CHANNEL_VECTORS, CHANNEL_SEEN, TOGETHER = 128, 4, 8 << 10, 8


def window_kernel(name: str, machine: Machine, spec: ProductSpec) -> Kernel:
    windows = spec.windows
    assert windows is not None
    if spec.code_digits:
        spec = replace(spec, product=spec.product.in_words(WORD))
        return _CodeWindows(name, machine, spec, windows).build()
    maker = _WindowProduct if windows.together else _ChannelWindows
    return maker(name, machine, spec, windows).build()


class _Windows(MatmulMaker):
    """The blocks of windows over pictures."""

    def __init__(
        self, name: str, machine: Machine, spec: ProductSpec, windows: WindowForm, shape: BlockShape, place: BlockPlaces
    ) -> None:
        super().__init__(name, machine, spec.product, True, spec.accumulator, shape)
        self.windows, self.place = windows, place
        self.step = self.k.as_index(shape.columns)
        self.heights = self.block_heights()

    def block_heights(self) -> frozenset[int]:
        rows, places = (self.cuts(size, part) for size, part in zip(self.windows.result, self.place))
        return frozenset(r * p for r in rows for p in places)

    @staticmethod
    def cuts(size: int, part: int) -> set[int]:
        return {min(part, size - at) for at in range(0, size, part)}

    def build(self) -> Kernel:
        k, (height, width), place = self.k, self.windows.result, self.place
        counts = [k.as_index(-(-height // place.rows)), k.as_index(-(-width // place.places))]
        sizes = [k.ceildiv(self.n, self.shape.columns), self.batches, *counts]
        with k.parallel("block", total(k, sizes)) as number:
            column, image, row, at = unflatten(number, sizes)
            column = column * self.shape.columns
            self.top, self.left = row * place.rows, at * place.places
            self.rows = k.min(k.as_index(height) - self.top, place.rows)
            self.places = k.min(k.as_index(width) - self.left, place.places)
            columns = k.min(self.n - column, self.shape.columns)
            block = ResultBlock(image, self.zero, self.rows * self.places, column, columns)
            self.sum_up(block)
            self.finish(block)
        return k.build()

    def sum_up(self, block: ResultBlock) -> None:
        raise NotImplementedError

    def row_of(self, position: Value) -> Value:
        width = self.windows.result[1]
        if self.place.places == width:
            return self.top * width + position
        return (self.top + position // self.places) * width + self.left + position % self.places

    def seen_from(self, block: ResultBlock, channel: Value, pitch: Value, seen: SeenPixels, channels: Value) -> None:
        """Copy what a block sees of some channels."""
        windows = self.windows
        corner = [
            at * step - before for at, step, before in zip((self.top, self.left), windows.stride, windows.padding)
        ]
        image, row, place = self.a.strides
        start = self.a.offset + block.batch * image + channel
        whole = windows.together >= windows.channels and self.a.matrix.col_stride == windows.channels
        seen.copy(Source(self.a.buffer, start, row, place, whole), windows, corner[0], corner[1], channels, pitch)


def _tile_rows(machine: Machine, vectors: int) -> int:
    """As many rows of so many vectors as there are registers for."""
    most = (machine.vector_registers - vectors - 1) // vectors // 2 * 2
    return max(2, min(most, TILE_ROWS))


class _WindowProduct(_Windows):
    """y[position, o] = Σ over taps and channels of what windows see, times weights in panels."""

    # Elements that are multiplied at once.
    word = 1

    def __init__(self, name: str, machine: Machine, spec: ProductSpec, windows: WindowForm) -> None:
        acc, n, images = spec.accumulator, spec.product.n, spec.product.batch
        assert isinstance(n, int)
        lanes, vectors = machine.lanes(acc), panel_vectors(machine, acc, n)
        rows = _tile_rows(machine, vectors)
        together = min(windows.together, windows.channels)
        place = block_places(windows, together // self.word, POSITIONS, SEEN, WIDEST)
        panels = min(PANELS * max(1, 4 // vectors), -(-n // (lanes * vectors)))
        blocks = -(-windows.result[0] // place.rows) * -(-windows.result[1] // place.places)
        blocks *= images if isinstance(images, int) else 1
        while panels > 1 and blocks * -(-n // (lanes * vectors * panels)) < ENOUGH_BLOCKS:
            panels -= 1
        while place.rows > 1 and blocks * -(-n // (lanes * vectors * panels)) < ENOUGH_BLOCKS // 2:
            place = place._replace(rows=-(-place.rows // 2))
            blocks *= 2
        held = -(-place.total // rows) * rows
        shape = BlockShape(lanes, vectors, rows, held, panels, windows.window[0] * windows.window[1] * together, 0)
        super().__init__(name, machine, spec, windows, shape, place)
        self.together, k = together, self.k
        # Whether weights come from memory, each of them once, those of the next step behind those of this one.
        self.reads_once = blocks == 1 and panels == 1
        self.size = seen_size(windows, place)
        stored = self.a.matrix.dtype if self.word > 1 else acc
        scratch = k.local("seen", stored, self.size.rows * self.size.places * together)
        has_masks = self.has_masks([self.a])
        self.seen = SeenPixels(k, scratch, self.size, lanes * self.word, has_masks, windows.zero)
        self.begins = k.local("begins", DType.I64, held)

    def sum_up(self, block: ResultBlock) -> None:
        k, windows, width = self.k, self.windows, self.shape.width
        taps, b = windows.window[0] * windows.window[1], self.bs[0]
        self.find_begins()
        with k.loop("first", 0, windows.channels, self.together) as first:
            channels = k.min(k.as_index(windows.channels) - first, self.together)
            self.seen_from(block, first, channels, self.seen, channels)
            with k.loop("panel", 0, block.columns, width) as inside:
                panel = self.panel_from(b, block.column + inside, first * taps)
                positions = MatrixView(self.begins, self.zero, k.as_index(1), self.zero, block.rows - 1)
                sums = self.sums_of(0).moved(0, inside)
                self.tiles(block.rows, TileStep(positions, panel, channels, sums, k.eq(first, 0)))

    def panel_from(self, b: MatrixOperand, column: Value, line: Value) -> MatrixView:
        """The panel that begins with a column, from a line on."""
        k, width = self.k, self.shape.width
        return MatrixView(b.buffer, b.offset + column * self.depth + line * width, k.as_index(width), k.as_index(1))

    def find_begins(self) -> None:
        """For every position the number of the pixel that its first tap sees."""
        k, (tall, wide) = self.k, self.windows.stride
        with k.loop("row", 0, self.rows) as row, k.loop("at", 0, self.places) as at:
            k.store(self.begins, row * self.places + at, row * (tall * self.size.places) + at * wide)

    def tile(self, count: int, step: TileStep) -> None:
        """The sums of some positions, row of taps after row of taps."""
        k, shape, windows, b = self.k, self.shape, self.windows, step.panel
        sums, channels = step.sum_vectors(count, shape), step.steps
        starts = [k.load(self.begins, step.a.at(r, 0)) * channels for r in range(count)]
        high, wide = windows.window
        # Taps side by side are one run; those with pixels between them are not.
        runs, length = (high, wide) if windows.dilation[1] == 1 else (high * wide, 1)
        words = channels * length // self.word
        known = sums.known(k, step.is_new, lambda: self.first_sums(b) * count)
        with k.fold("run", 0, runs, init=known) as outer:
            tap_row, tap = (outer.index, 0) if length == wide else (outer.index // wide, outer.index % wide)
            pixel = tap_row * (windows.dilation[0] * self.size.places) + tap * windows.dilation[1]
            ahead, line = pixel * channels, outer.index * words
            places = [start + ahead for start in starts]
            with k.fold("p", 0, words, init=outer.values) as fold:
                if self.reads_once:
                    # Of the lines of the next step every tile asks for some.
                    number = (step.a.start // shape.tile_rows * runs + outer.index) * words + fold.index
                    k.prefetch(b.buffer, b.at(runs * words, 0) + number * shape.lanes * self.word)
                weights = self.weights(b, line + fold.index)
                totals: list[Value] = []
                for r, place in enumerate(places):
                    before = fold.values[r * shape.vectors : (r + 1) * shape.vectors]
                    totals += self.add(place + fold.index * self.word, weights, before)
                fold.next(*totals)
            outer.next(*fold.results)
        sums.store(k, outer.results)

    def first_sums(self, panel: MatrixView) -> list[Value]:
        """What the sums of a position begin with."""
        return [self.k.const(0, ValueType(self.acc, self.shape.lanes))] * self.shape.vectors

    def weights(self, panel: MatrixView, line: Value) -> list[Value]:
        k, lanes, at = self.k, self.shape.lanes, panel.at(line, 0)
        loads = (k.load(panel.buffer, at + v * lanes, lanes=lanes) for v in range(self.shape.vectors))
        return [k.cast(x, self.acc) for x in loads]

    def add(self, place: Value, weights: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """The sums of a position with one more element of what it sees."""
        k = self.k
        one = k.splat(k.load(self.seen.to, place), self.shape.lanes)
        return [multiply_add(k, one, x, before) for x, before in zip(weights, sums)]


class _CodeWindows(_WindowProduct):
    """The same for codes of 8 bits, four at a time; panels begin with a line of sums."""

    word = WORD

    def panel_from(self, b: MatrixOperand, column: Value, line: Value) -> MatrixView:
        k, width = self.k, self.shape.width
        place = column * ((self.depth + 1) * WORD) + line * width
        return MatrixView(b.buffer, b.offset + place, k.as_index(width * WORD), k.as_index(WORD))

    def first_sums(self, panel: MatrixView) -> list[Value]:
        return [self.k.bitcast(x, ValueType(DType.I32, self.shape.lanes)) for x in self.line(panel, self.zero)]

    def weights(self, panel: MatrixView, line: Value) -> list[Value]:
        return self.line(panel, line + 1)

    def line(self, panel: MatrixView, line: Value) -> list[Value]:
        k, at, size = self.k, panel.at(line, 0), self.shape.lanes * WORD
        return [k.load(panel.buffer, at + v * size, lanes=size) for v in range(self.shape.vectors)]

    def add(self, place: Value, weights: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        k, lanes = self.k, self.shape.lanes
        word = k.bitcast(k.load(self.seen.to, place, lanes=WORD), ValueType(DType.I32, 1))
        four = k.bitcast(k.splat(word, lanes), ValueType(DType.U8, lanes * WORD))
        return [k.dot4(before, four, x) for x, before in zip(weights, sums)]


class _ChannelWindows(_Windows):
    """y[position, c] = Σ over taps of what a window sees of channel c, times w[tap, c]: lanes are channels."""

    def __init__(self, name: str, machine: Machine, spec: ProductSpec, windows: WindowForm) -> None:
        acc, lanes = spec.accumulator, machine.lanes(spec.accumulator)
        vectors = -(-windows.channels // lanes)
        vectors = -(-vectors // -(-vectors // CHANNEL_VECTORS))
        place = block_places(windows, lanes * vectors, CHANNEL_POSITIONS, CHANNEL_SEEN, WIDEST)
        self.together = min(range(4, TOGETHER + 1), key=lambda n: -(-place.places // n) * (n + 1))
        # What is computed behind the end of a row is computed again for the next.
        shape = BlockShape(lanes, vectors, 1, place.total + self.together, 1, 1, 0)
        super().__init__(name, machine, spec, windows, shape, place)
        k, size = self.k, seen_size(windows, place)
        self.size = size._replace(places=size.places + self.together * windows.stride[1])
        held = self.size.rows * self.size.places * shape.columns
        scratch = k.local("seen", acc, held)
        self.seen = SeenPixels(k, scratch, self.size, lanes, self.has_masks([self.a]), windows.zero)

    def sum_up(self, block: ResultBlock) -> None:
        k, shape = self.k, self.shape
        pitch = k.as_index(shape.columns)
        self.seen_from(block, block.column, pitch, self.seen, block.columns)
        with (
            k.loop("c", 0, block.columns, shape.lanes) as c,
            k.loop("row", 0, self.rows) as row,
            k.loop("q", 0, self.places, self.together) as q,
        ):
            sums = self.positions(block, row, q, c)
            for i, value in enumerate(sums):
                k.store(self.sums, self.sums_of(0).at(row * self.places + q + i, c), value)

    def positions(self, block: ResultBlock, row: Value, q: Value, c: Value) -> list[Value]:
        """The sums of some neighbouring positions, for one vector of channels."""
        k, lanes, windows, w = self.k, self.shape.lanes, self.windows, self.bs[0]
        (high, wide), (tall, across), (below, beside) = windows.window, windows.stride, windows.dilation
        mask = None if windows.channels % lanes == 0 else k.lane_mask(block.columns - c, lanes)
        pixel, pitch = row * tall * self.size.places + q * across, self.shape.columns
        zero = k.const(0, ValueType(self.acc, lanes))
        with k.fold("tap_row", 0, high, init=[zero] * self.together) as fold:
            line = (pixel + fold.index * (below * self.size.places)) * pitch + c
            weights = w.offset + fold.index * wide * self.n + block.column + c
            known: dict[int, Value] = {}
            totals = list(fold.values)
            for tap in range(wide):
                weight = k.cast(k.load(w.buffer, weights + self.n * tap, lanes=lanes, mask=mask), self.acc)
                for i in range(self.together):
                    ahead = i * across + tap * beside
                    if ahead not in known:
                        known[ahead] = k.load(self.seen.to, line + ahead * pitch, lanes=lanes, mask=mask)
                    totals[i] = multiply_add(k, known[ahead], weight, totals[i])
            fold.next(*totals)
        return list(fold.results)
