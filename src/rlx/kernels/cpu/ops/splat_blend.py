"""The image of a prepared scene, tile by tile, and the sums of its gradient.

A tile's pixels lie in vectors. Entries of its list are taken in chunks: what a ray needs of a splat is worked out once
per tile, then every vector of pixels goes through the chunk. |miss|² = |o × r|²/|r|² for the ray from o along r, so
that splats which a whole vector misses cost no division and no exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value, ValueType
from rlx.ops.splat.geometry import FLAT, GAMMA, SUPPORT
from rlx.ops.splat.gradients import SUM_WIDTH
from rlx.ops.splat.raster import GaussianSplatRasterize, PreparedSceneOp
from rlx.ops.splat.scene import gaussian_splat_prep_packed_len, gaussian_splat_tile_count
from rlx.ops.splat.steps import SplatBlend, SplatGather, SplatPulls

# Entries that are worked out before pixels look at them.
CHUNK = 32
# Numbers kept of an entry: the matrix (9), the origin (3), the colour (3), the opacity, and the largest |miss|².
MATRIX, ORIGIN, COLOR, OPACITY, REACH = 0, 9, 12, 15, 16
ENTRY = 17
_HALF_SQUARE = 0.5 * SUPPORT * SUPPORT
# Splats that one iteration adds up, at least.
SPLATS = 1024


# The largest side of a tile: up to eleven numbers for each of its pixels are kept on the stack.
MOST_TILE = 128


def _fits(op: Op, operands: Sequence[Shape]) -> bool:
    assert isinstance(op, PreparedSceneOp)
    return operands[0].dtype is DType.F32 and op.tile_size <= MOST_TILE


def dot(k: KernelBuilder, a: Sequence[Value], b: Sequence[Value]) -> Value:
    return k.fma(a[0], b[0], k.fma(a[1], b[1], a[2] * b[2]))


class _Crossing(NamedTuple):
    """How a vector of rays meets an entry: r = matrix·ray, |r|², o·r, |o × r|², and which rays may count it."""

    direction: list[Value]
    squared: Value
    along: Value
    crossed: Value
    may_count: Value


class Tile:
    """One tile of an image: its entries, and its pixels in vectors, with what is known of them in local memory."""

    def __init__(self, site: OpSite) -> None:
        op = site.op
        assert isinstance(op, PreparedSceneOp)
        self.site, self.k, self.op, self.params = site, site.k, op, op.params
        self.prep = site.inputs[0]
        k, params = site.k, op.params
        self.lanes = site.machine.lanes(DType.F32)
        self.size = params.tile_size
        self.columns = -(-params.width // params.tile_size)
        self.tiles = gaussian_splat_tile_count(params)
        self.cells = -(-self.size * self.size // self.lanes) * self.lanes
        shortest = int(gaussian_splat_prep_packed_len(1, params))
        self.splats = (self.prep.dims[0] - shortest) // 15 + 1
        # Where the parts of the prepared scene begin.
        n = self.splats
        self.origins, self.scales, self.quaternions, self.entries = n * 5, n * 8, n * 11, n * 15
        self.ranges = self.entries + params.max_list_entries
        self.rays = self.ranges + 2 * self.tiles
        self.chunk = k.local("chunk", DType.F32, CHUNK * ENTRY)
        self.ray = [k.local(f"ray_{axis}", DType.F32, self.cells) for axis in "xyz"]
        self.left = k.local("left", DType.F32, self.cells)
        self.steps = k.local("steps", DType.I32, self.cells) if self.max_steps else None

    @property
    def max_steps(self) -> int:
        return 0 if isinstance(self.op, GaussianSplatRasterize) else self.params.max_splat_steps

    def const(self, value: float, lanes: int = 0) -> Value:
        return self.k.const(value, ValueType(DType.F32, lanes or self.lanes))

    def load(self, place: Value) -> Value:
        return self.k.load(self.prep.buffer, place)

    def range_of(self, tile: Value) -> tuple[Value, Value]:
        """The entries of a tile; nothing outside of the list, whatever the buffer says."""
        k, limit = self.k, self.params.max_list_entries
        start, end = (k.cast(k.op("round", self.load(self.ranges + tile * 2 + i)), DType.I64) for i in range(2))
        start = k.max(k.min(start, limit), 0)
        return start, k.max(k.min(end, limit), start)

    def end_of_lists(self) -> Value:
        """Lists lie side by side: what is behind all of them belongs to no tile."""
        k = self.k
        with k.fold("each", 0, self.tiles, init=[k.as_index(0)]) as last:
            start, end = self.range_of(last.index)
            last.next(k.select(start < end, k.max(end, last.values[0]), last.values[0]))
        return last.results[0]

    def pixel(self, tile: Value, cell: Value) -> tuple[Value, Value]:
        """The number of a cell's pixel in the image, and whether there is one."""
        row = tile // self.columns * self.size + cell // self.size
        column = tile % self.columns * self.size + cell % self.size
        is_inside = (row < self.params.height) & (column < self.params.width) & (cell < self.size * self.size)
        return row * self.params.width + column, is_inside

    def start(self, tile: Value) -> None:
        """Rays of the pixels, through which everything is seen so far; cells beyond the image see nothing."""
        k = self.k
        with k.loop("cell", 0, self.cells) as cell:
            pixel, is_inside = self.pixel(tile, cell)
            with k.when(is_inside):
                for axis in range(3):
                    k.store(self.ray[axis], cell, self.load(self.rays + pixel * 3 + axis))
                k.store(self.left, cell, 1.0)
            with k.otherwise():
                for axis in range(3):
                    k.store(self.ray[axis], cell, 0.0)
                k.store(self.left, cell, 0.0)
            if self.steps is not None:
                k.store(self.steps, cell, 0)

    def fill_chunk(self, first: Value, count: Value) -> None:
        """Work out what rays need of some entries."""
        k = self.k
        with k.loop("j", 0, count) as j:
            splat = self.id_of(first + j)
            at = j * ENTRY
            w, x, y, z = (self.load(self.quaternions + splat * 4 + i) for i in range(4))
            diagonal = 1.0 - (x * x + y * y + z * z) * 2.0
            rotation = [
                diagonal + x * x * 2.0,
                (x * y + w * z) * 2.0,
                (x * z - w * y) * 2.0,
                (x * y - w * z) * 2.0,
                diagonal + y * y * 2.0,
                (y * z + w * x) * 2.0,
                (x * z + w * y) * 2.0,
                (y * z - w * x) * 2.0,
                diagonal + z * z * 2.0,
            ]
            for row in range(3):
                scale = self.load(self.scales + splat * 3 + row)
                for column in range(3):
                    k.store(self.chunk, at + (MATRIX + 3 * row + column), rotation[3 * row + column] * scale)
                k.store(self.chunk, at + (ORIGIN + row), self.load(self.origins + splat * 3 + row))
                k.store(self.chunk, at + (COLOR + row), self.load(splat * 4 + row))
            opacity = self.load(splat * 4 + 3)
            k.store(self.chunk, at + OPACITY, opacity)
            # A little more than the cut-off asks for: alpha itself decides.
            reach = k.op("log", k.max(opacity * (1.0 / self.params.alpha_cutoff), 1.0)) * (1.0 / _HALF_SQUARE)
            k.store(self.chunk, at + REACH, reach * 1.001 + 1e-5)

    def id_of(self, entry: Value) -> Value:
        k = self.k
        splat = k.cast(k.op("round", self.load(self.entries + entry)), DType.I64)
        return k.max(k.min(splat, self.splats - 1), 0)

    def entry(self, j: Value, number: int) -> Value:
        return self.k.splat(self.k.load(self.chunk, j * ENTRY + number), self.lanes)

    def cross(self, j: Value, ray: Sequence[Value], left: Value) -> _Crossing:
        k = self.k
        m = [self.entry(j, MATRIX + i) for i in range(9)]
        o = [self.entry(j, ORIGIN + i) for i in range(3)]
        r = [dot(k, m[3 * i : 3 * i + 3], ray) for i in range(3)]
        squared, along = dot(k, r, r), dot(k, o, r)
        across = [k.fma(o[i], r[(i + 1) % 3], -(o[(i + 1) % 3] * r[i])) for i in range(3)]
        crossed = dot(k, across, across)
        goes_on = left >= self.params.transmittance_threshold
        may_count = goes_on & (along < 0.0) & (squared > FLAT) & (crossed <= self.entry(j, REACH) * squared)
        return _Crossing(r, squared, along, crossed, may_count)

    def alpha(self, j: Value, crossing: _Crossing, steps: Value | None) -> Value:
        """0 where the entry does not count."""
        k = self.k
        squared = k.select(crossing.squared > FLAT, crossing.squared, self.const(1.0))
        alpha = self.entry(j, OPACITY) * k.op("exp_negative", (crossing.crossed / squared) * -_HALF_SQUARE)
        counts = crossing.may_count & (alpha >= self.params.alpha_cutoff)
        if steps is not None:
            counts = counts & (steps < self.max_steps)
        return k.select(counts, alpha, self.const(0.0))

    def stepped(self, steps: Value, alpha: Value) -> Value:
        return steps + self.k.cast(alpha > 0.0, DType.I32)

    def vector(self, buffer_of: str, at: Value) -> Value:
        return self.k.load(getattr(self, buffer_of), at, lanes=self.lanes)

    def rays_at(self, at: Value) -> list[Value]:
        return [self.k.load(buffer, at, lanes=self.lanes) for buffer in self.ray]


@op_kernel(GaussianSplatRasterize, SplatBlend, kind="splat", supports=_fits)
def splat_blend(site: OpSite) -> None:
    _Blend(site).build()


class _Blend(Tile):
    def __init__(self, site: OpSite) -> None:
        super().__init__(site)
        self.colors = [self.k.local(f"color_{c}", DType.F32, self.cells) for c in "rgb"]
        # The scene's camera has the background at its place 12; the step has it alone.
        self.background_at = 12 if isinstance(self.op, GaussianSplatRasterize) else 0

    def build(self) -> None:
        k = self.k
        with k.parallel("tile", self.tiles) as tile:
            self.start(tile)
            with k.loop("at", 0, self.cells, self.lanes) as at:
                for color in self.colors:
                    k.store(color, at, self.const(0.0))
            start, end = self.range_of(tile)
            with k.fold("first", start, end, CHUNK, init=[k.const(1, DType.BOOL)]) as f:
                count = k.min(end - f.index, CHUNK)
                (goes_on,) = k.choose(
                    f.values[0], lambda: [self.blend_chunk(f.index, count)], lambda: [k.const(0, DType.BOOL)]
                )
                f.next(goes_on)
            self.finish(tile, start < end)

    def blend_chunk(self, first: Value, count: Value) -> Value:
        """Let all pixels go through a chunk; whether any of them goes on."""
        k = self.k
        self.fill_chunk(first, count)
        with k.fold("at", 0, self.cells, self.lanes, init=[k.const(0, DType.BOOL)]) as f:
            at = f.index
            left = self.vector("left", at)
            with k.when(k.reduce("or", left >= self.params.transmittance_threshold)):
                self.blend_pixels(at, left, count)
            still = k.reduce("or", self.vector("left", at) >= self.params.transmittance_threshold)
            f.next(f.values[0] | still)
        return f.results[0]

    def blend_pixels(self, at: Value, left: Value, count: Value) -> None:
        k = self.k
        ray = self.rays_at(at)
        state = [left, *(k.load(color, at, lanes=self.lanes) for color in self.colors)]
        if self.steps is not None:
            state.append(k.load(self.steps, at, lanes=self.lanes))
        with k.fold("j", 0, count, init=state) as f:
            crossing = self.cross(f.index, ray, f.values[0])

            def blended() -> list[Value]:
                left, *colors = f.values[:4]
                steps = f.values[4] if self.steps is not None else None
                alpha = self.alpha(f.index, crossing, steps)
                weight = left * alpha
                after = [left * (1.0 - alpha)]
                after += [k.fma(weight, self.entry(f.index, COLOR + c), color) for c, color in enumerate(colors)]
                return after if steps is None else [*after, self.stepped(steps, alpha)]

            f.next(*k.choose(k.reduce("or", crossing.may_count), blended, lambda: f.values))
        k.store(self.left, at, f.results[0])
        for color, value in zip(self.colors, f.results[1:4]):
            k.store(color, at, value)
        if self.steps is not None:
            k.store(self.steps, at, f.results[4])

    def finish(self, tile: Value, has_entries: Value) -> None:
        """The background behind everything, and the pixels to their places."""
        k = self.k
        (image,) = self.site.outputs
        is_shown = isinstance(self.op, GaussianSplatRasterize)
        with k.loop("at", 0, self.cells, self.lanes) as at:
            left = self.vector("left", at)
            for c, color in enumerate(self.colors):
                background = k.load(self.site.inputs[1].buffer, self.background_at + c)
                value = k.load(color, at, lanes=self.lanes) + left * k.splat(background, self.lanes)
                if is_shown:
                    value = k.op("pow", k.max(value, 0.0), self.const(GAMMA))
                k.store(color, at, value)
        with k.loop("cell", 0, self.cells) as cell:
            pixel, is_inside = self.pixel(tile, cell)
            with k.when(is_inside):
                for c, color in enumerate(self.colors):
                    k.store(image.buffer, pixel * 4 + c, k.load(color, cell))
                opaque = 1.0 - k.load(self.left, cell)
                if is_shown:
                    opaque = k.select(has_entries, opaque, k.const(1.0, DType.F32))
                k.store(image.buffer, pixel * 4 + 3, opaque)


@op_kernel(SplatPulls, kind="splat", supports=_fits)
def splat_pulls(site: OpSite) -> None:
    _Pulls(site).build()


class _Pulls(Tile):
    """With S_i what the gradient g sees of all that comes after entry i, dα_i = T_i·(g·c_i) - S_i/(1 - α_i), and S
    falls from g·(image) by T_i·α_i·(g·c_i) at each entry: so entries are visited from near to far again."""

    def __init__(self, site: OpSite) -> None:
        super().__init__(site)
        k = self.k
        self.gradient = [k.local(f"gradient_{c}", DType.F32, self.cells) for c in "rgb"]
        self.ahead = k.local("ahead", DType.F32, self.cells)
        self.backdrop = k.local("backdrop", DType.F32, self.cells)
        _, self.background, self.image, self.d_image = site.inputs
        (self.pulls,) = site.outputs

    def build(self) -> None:
        k = self.k
        with k.parallel("tile", self.tiles + 1) as tile:
            with k.when(tile < self.tiles):
                start, end = self.range_of(tile)
                with k.when(start < end):
                    self.start(tile)
                    self.load_gradients(tile)
                    with k.fold("first", start, end, CHUNK, init=[k.const(1, DType.BOOL)]) as f:
                        count = k.min(end - f.index, CHUNK)
                        (goes_on,) = k.choose(
                            f.values[0],
                            lambda: [self.pull_chunk(f.index, count)],
                            lambda: [self.clear(f.index, count)],
                        )
                        f.next(goes_on)
            with k.otherwise():
                last = self.end_of_lists()
                self.clear(last, self.params.max_list_entries - last)

    def clear(self, first: Value, count: Value) -> Value:
        k = self.k
        with k.loop("place", first * SUM_WIDTH, (first + count) * SUM_WIDTH) as place:
            k.store(self.pulls.buffer, place, 0.0)
        return k.const(0, DType.BOOL)

    def load_gradients(self, tile: Value) -> None:
        k = self.k
        with k.loop("cell", 0, self.cells) as cell:
            pixel, is_inside = self.pixel(tile, cell)

            def known() -> list[Value]:
                g = [k.load(self.d_image.buffer, pixel * 4 + c) for c in range(4)]
                seen = [k.load(self.image.buffer, pixel * 4 + c) for c in range(4)]
                # image = C + T·background and a = 1 - T: what all entries and the background add to g·image, less
                # T·g_a for the alpha that the gradient sees as -g_a behind everything.
                ahead = dot(k, g[:3], seen[:3]) - (1.0 - seen[3]) * g[3]
                background = [k.load(self.background.buffer, c) for c in range(3)]
                return [*g[:3], ahead, dot(k, g[:3], background) - g[3]]

            zero = k.const(0.0, DType.F32)
            values = k.choose(is_inside, known, lambda: [zero] * 5)
            for buffer, value in zip([*self.gradient, self.ahead, self.backdrop], values):
                k.store(buffer, cell, value)

    def pull_chunk(self, first: Value, count: Value) -> Value:
        """The sums of a chunk's entries, one after the other; whether any pixel goes on."""
        k = self.k
        self.fill_chunk(first, count)
        with k.loop("j", 0, count) as j:
            zeros = [self.const(0.0)] * SUM_WIDTH
            with k.fold("at", 0, self.cells, self.lanes, init=zeros) as f:
                left, ray = self.vector("left", f.index), self.rays_at(f.index)
                crossing = self.cross(j, ray, left)
                f.next(
                    *k.choose(
                        k.reduce("or", crossing.may_count),
                        lambda: self.pulled(j, f.index, left, ray, crossing, f.values),
                        lambda: f.values,
                    )
                )
            sums = [k.reduce("add", total) for total in f.results]
            opacity = k.load(self.chunk, j * ENTRY + OPACITY)
            sums[3] = k.select(opacity > 0.0, sums[3] / opacity, 0.0)
            for i, value in enumerate(sums):
                k.store(self.pulls.buffer, (first + j) * SUM_WIDTH + i, value)
        with k.fold("at", 0, self.cells, self.lanes, init=[k.const(0, DType.BOOL)]) as alive:
            still = k.reduce("or", self.vector("left", alive.index) >= self.params.transmittance_threshold)
            alive.next(alive.values[0] | still)
        return alive.results[0]

    def pulled(
        self, j: Value, at: Value, left: Value, ray: Sequence[Value], crossing: _Crossing, sums: Sequence[Value]
    ) -> list[Value]:
        k = self.k
        steps = k.load(self.steps, at, lanes=self.lanes) if self.steps is not None else None
        alpha = self.alpha(j, crossing, steps)
        if self.steps is not None and steps is not None:
            k.store(self.steps, at, self.stepped(steps, alpha))
        g = [k.load(buffer, at, lanes=self.lanes) for buffer in self.gradient]
        seen = dot(k, g, [self.entry(j, COLOR + c) for c in range(3)])
        weight = left * alpha
        after = left * (1.0 - alpha)
        ahead = self.vector("ahead", at) - weight * seen
        k.store(self.left, at, after)
        k.store(self.ahead, at, ahead)
        # Behind the hit at which a pixel is finished there is only the background.
        goes_on = after >= self.params.transmittance_threshold
        behind = k.select(goes_on, ahead / k.select(goes_on, after, self.const(1.0)), self.vector("backdrop", at))
        counts = alpha > 0.0
        d_alpha = k.select(counts, left * (seen - behind), self.const(0.0))
        share = d_alpha * alpha
        pull = share * -(SUPPORT * SUPPORT)
        squared = k.select(crossing.squared > FLAT, crossing.squared, self.const(1.0))
        t = -crossing.along / squared
        miss = [k.fma(t, r, self.entry(j, ORIGIN + i)) for i, r in enumerate(crossing.direction)]
        # Rays that do not count may have no nearest point.
        moved = [k.select(counts, pull * m, self.const(0.0)) for m in miss]
        turned = [k.select(counts, m * t, self.const(0.0)) for m in moved]
        added = [weight * c for c in g]
        added += [share, *moved, *(turned[i] * ray[c] for i in range(3) for c in range(3))]
        return [total + value for total, value in zip(sums, added)]


@op_kernel(SplatGather, kind="splat", supports=_fits)
def splat_gather(site: OpSite) -> None:
    """Ranges of splats are dealt out; each goes through all entries, a vector of ids at a time."""
    tile = Tile(site)
    k = site.k
    pulls, (sums,) = site.inputs[1], site.outputs
    together = k.max(SPLATS, k.ceildiv(tile.splats, 16))
    lanes = tile.lanes
    with k.parallel("part", (tile.splats + (together - 1)) // together) as part:
        low = part * together
        high = k.min(low + together, tile.splats)
        with k.loop("place", low * SUM_WIDTH, high * SUM_WIDTH) as place:
            k.store(sums.buffer, place, 0.0)
        ends = [k.splat(k.cast(v, DType.F32) - 0.5, lanes) for v in (low, high)]
        stop = tile.end_of_lists()
        with k.loop("v", 0, stop, lanes) as v:
            exists = k.lane_mask(stop - v, lanes)
            ids = k.load(tile.prep.buffer, tile.entries + v, lanes=lanes, mask=exists, other=-1.0)
            is_mine = (ids >= ends[0]) & (ids < ends[1])
            with (
                k.when(k.reduce("or", is_mine)),
                k.loop("entry", v, k.min(v + lanes, stop)) as entry,
            ):
                splat = tile.id_of(entry)
                with k.when((splat >= low) & (splat < high)):
                    for i in range(0, SUM_WIDTH, min(lanes, SUM_WIDTH)):
                        width = min(lanes, SUM_WIDTH)
                        here = k.load(sums.buffer, splat * SUM_WIDTH + i, lanes=width)
                        more = k.load(pulls.buffer, entry * SUM_WIDTH + i, lanes=width)
                        k.store(sums.buffer, splat * SUM_WIDTH + i, here + more)
