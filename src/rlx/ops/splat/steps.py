"""Steps of splatting that have loops of their own, as compilers make kernels of them.

`rlx.compile.lower.splat` writes the splatting ops with these: which tiles each outline touches, how many outlines each
tile has, the lists of the tiles, the image in linear light, and the sums that its gradient is made of. All are in f32.
Outlines come in the order of their splats' distance, nearest first, one row each: the centre x and y in pixels, the
conic a, b, c, and 1 if the splat may be seen, else 0 (see `Outlines`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.splat.gradients import SUM_WIDTH, pulls_of_tile
from rlx.ops.splat.projection import Outlines, tiles_touched
from rlx.ops.splat.raster import GaussianSplatRasterize, PreparedSceneOp, tile_pixels, trace_tile
from rlx.ops.splat.scene import (
    DEFAULTS,
    GaussianSplatRenderParams,
    SplatOp,
    unpack_prepared,
)

__all__ = ["SplatBlend", "SplatBoxes", "SplatGather", "SplatPulls", "SplatTileCounts", "SplatTileLists"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")
OUTLINE_WIDTH = 6
# Rows of the result of `SplatBoxes`.
FIRST_ROW, LAST_ROW, FIRST_COLUMN, LAST_COLUMN, TILES = range(5)
BOX_ROWS = 5
# Outlines are counted and listed in so many blocks, each by itself.
BLOCKS = 32


class _TileOp(SplatOp):
    """An op on outlines of an image that is cut into tiles."""

    primitive = True
    lowered = True
    jvp = vjp = batch = _INTERNAL

    width: int = DEFAULTS.width
    height: int = DEFAULTS.height
    tile_size: int = DEFAULTS.tile_size

    @property
    def columns(self) -> int:
        return -(-self.width // self.tile_size)

    @property
    def rows(self) -> int:
        return -(-self.height // self.tile_size)

    def check(self) -> None:
        if min(self.width, self.height, self.tile_size) < 1:
            raise self.fail(f"sizes are at least 1, got {self.width}, {self.height} and {self.tile_size}")

    def require(self, name: str, got: Shape, dims: tuple[Size, ...], dtype: DType) -> None:
        fits = got.rank == len(dims) and all(require_equal(a, b, self.mnemonic) for a, b in zip(got.dims, dims))
        if not fits or got.dtype is not dtype:
            raise self.fail(f"needs {name} {Shape(dims, dtype)}, got {got}")

    def touched(self, outlines: Array) -> Array:
        """Which tiles each outline touches, bool [n, tiles]."""
        found = Outlines(outlines[:, 5] > 0, outlines[:, 0], outlines[:, :2], outlines[:, 2:5])
        params = GaussianSplatRenderParams(self.width, self.height, self.tile_size)
        return np.asarray(tiles_touched(np, found, params))


@op("splat_boxes")
class SplatBoxes(_TileOp):
    """For outlines [n, 6], i32 [5, n]: the first and last row and the first and last column of the tiles that each
    touches, and how many these are. Outlines that touch none have a last row of -1."""

    def infer(self, outlines: Shape) -> Shape:
        self.require("outlines", outlines, (outlines.dims[0], OUTLINE_WIDTH), DType.F32)
        return Shape((BOX_ROWS, outlines.dims[0]), DType.I32)

    def eval(self, outlines: Array) -> Array:
        touched = self.touched(outlines)
        grid = touched.reshape(-1, self.rows, self.columns)
        result = np.zeros((BOX_ROWS, len(outlines)), np.int32)
        for axis, size, first, last in (
            (2, self.rows, FIRST_ROW, LAST_ROW),
            (1, self.columns, FIRST_COLUMN, LAST_COLUMN),
        ):
            has: Array = np.any(grid, axis=axis)
            result[first] = np.where(has.any(axis=1), has.argmax(axis=1), 0)
            result[last] = np.where(has.any(axis=1), size - 1 - has[:, ::-1].argmax(axis=1), -1)
        result[TILES] = touched.sum(axis=1)
        return result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for settings in _SIZES:
            yield sample(cls(*settings), spec(len(_OUTLINES), OUTLINE_WIDTH, values=_OUTLINES), dtypes=("f32",))
        yield sample(cls(*_SIZES[0]), spec("N", OUTLINE_WIDTH, values=_OUTLINES), dtypes=("f32",), N=len(_OUTLINES))
        yield sample(cls(*_SIZES[0]), spec(0, OUTLINE_WIDTH), dtypes=("f32",))


class _ListOp(_TileOp):
    """Outlines, their boxes, and how many tiles all nearer ones touch: at most `limit` of all are listed."""

    limit: int = DEFAULTS.max_list_entries

    def require_lists(self, outlines: Shape, boxes: Shape, before: Shape) -> None:
        n = outlines.dims[0]
        self.require("outlines", outlines, (n, OUTLINE_WIDTH), DType.F32)
        self.require("boxes", boxes, (BOX_ROWS, n), DType.I32)
        self.require("before", before, (n,), DType.I32)

    def listed(self, outlines: Array, before: Array) -> Array:
        """What is listed, bool [n, tiles]."""
        touched = self.touched(outlines)
        number = np.cumsum(touched, axis=1) - touched + before[:, None]
        return touched & (number < self.limit)

    def counts(self, outlines: Array, before: Array) -> Array:
        """How many outlines of each block every tile lists, i32 [32, tiles]."""
        result = np.zeros((BLOCKS, self.rows * self.columns), np.int32)
        block = np.arange(len(outlines)) // max(1, -(-len(outlines) // BLOCKS))
        np.add.at(result, block, self.listed(outlines, before))
        return result


@op("splat_tile_counts")
class SplatTileCounts(_ListOp):
    """How many outlines of each block every tile lists, i32 [32, tiles].

    A block is ceil(n/32) outlines that follow each other. operands outlines [n, 6], boxes [5, n], before [n].
    """

    def infer(self, outlines: Shape, boxes: Shape, before: Shape) -> Shape:
        self.require_lists(outlines, boxes, before)
        return Shape((BLOCKS, self.rows * self.columns), DType.I32)

    def eval(self, outlines: Array, boxes: Array, before: Array) -> Array:
        return self.counts(outlines, before)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for settings in _SIZES:
            for limit in (6, 100):
                yield sample(cls(*settings, limit), *_list_specs(settings), dtypes=("f32",))


@op("splat_tile_lists")
class SplatTileLists(_ListOp):
    """The splats that the tiles list, tile after tile, nearest first, as f32 [limit], 0 behind the last; and where the
    part of each block ends in them, i32 [32, tiles].

    operands outlines [n, 6], boxes [5, n], before [n], order [n] (the ids of the splats), starts [32, tiles] (where the
    part of each block starts).
    """

    def infer(self, outlines: Shape, boxes: Shape, before: Shape, order: Shape, starts: Shape) -> tuple[Shape, Shape]:
        self.require_lists(outlines, boxes, before)
        self.require("order", order, before.dims, DType.I32)
        self.require("starts", starts, (BLOCKS, self.rows * self.columns), DType.I32)
        return Shape((self.limit,), DType.F32), starts

    def eval(self, outlines: Array, boxes: Array, before: Array, order: Array, starts: Array) -> tuple[Array, Array]:
        result = np.zeros(self.limit, np.float32)
        for tile, listed in enumerate(self.listed(outlines, before).T):
            ids = order[listed]
            result[starts[0, tile] : starts[0, tile] + len(ids)] = ids
        return result, starts + self.counts(outlines, before)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for settings in _SIZES:
            for limit in (6, 100):
                counting = SplatTileCounts(*settings, limit)
                counts = counting.counts(np.asarray(_OUTLINES, np.float32), _before(settings))
                starts = (np.cumsum(counts.T) - counts.T.reshape(-1)).reshape(counts.T.shape).T
                order = spec(len(_OUTLINES), values=[2, 0, 4, 1, 3], dtype="i32")
                operands = (*_list_specs(settings), order, spec(*counts.shape, values=starts, dtype="i32"))
                yield sample(cls(*settings, limit), *operands, dtypes=("f32",))


class _BlendOp(PreparedSceneOp):
    """A step on a prepared scene in f32."""

    primitive = True
    lowered = True
    jvp = vjp = batch = _INTERNAL

    def require_operands(self, prep: Shape, background: Shape) -> None:
        require_dtype(self, prep.dtype is DType.F32, "f32", prep)
        self.require_prepared(prep)
        if background != Shape((3,), DType.F32):
            raise self.fail(f"background must be f32[3], got {background}")


@op("splat_blend")
class SplatBlend(_BlendOp):
    """The image [height·width·4] of a prepared scene in linear light, as gradients see it: C + T·background and 1 - T,
    with at most `max_splat_steps` hits per pixel (0: no limit). operands prep, background [3]."""

    def infer(self, prep: Shape, background: Shape) -> Shape:
        self.require_operands(prep, background)
        return prep.with_dims((self.width * self.height * 4,))

    @np.errstate(all="ignore")
    def eval(self, prep: Array, background: Array) -> Array:
        scene = unpack_prepared(prep, self.params)
        image = np.empty((self.height * self.width, 4), prep.dtype)
        for tile, pixels in enumerate(tile_pixels(self.params)):
            trace = trace_tile(scene, tile, scene.rays[pixels], self.params, self.max_splat_steps)
            color = np.zeros((len(pixels), 3), prep.dtype)
            for hit in trace.hits:
                color += (hit.transmittance * hit.crossing.alpha)[:, None] * scene.color_alpha[hit.splat, :3]
            image[pixels, :3] = color + trace.transmittance[:, None] * background
            image[pixels, 3] = 1.0 - trace.transmittance
        return image.reshape(-1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        background = spec(3, values=[0.2, 0.4, 0.1])
        for scene in GaussianSplatRasterize.samples():
            prep = scene.operands[0]
            yield scene._replace(op=cls(**scene.op.attributes), operands=(prep, background), dtypes=("f32",))


@op("splat_pulls")
class SplatPulls(_BlendOp):
    """What every entry of the tiles' lists gets from the gradient of the image, f32 [max_list_entries, 16].

    A row has the gradients of the splat's colour (3) and opacity (1), of the camera in its coordinates (3), and of the
    matrix that takes rays there (9), summed over the pixels of the tile; 0 for entries that no tile has. operands prep,
    background [3], image and d_image, as `SplatBlend` gives the image.
    """

    def infer(self, prep: Shape, background: Shape, image: Shape, d_image: Shape) -> Shape:
        self.require_operands(prep, background)
        for name, shape in (("image", image), ("d_image", d_image)):
            if shape != Shape((self.width * self.height * 4,), DType.F32):
                raise self.fail(f"{name} must be f32[{self.width * self.height * 4}], got {shape}")
        return prep.with_dims((self.max_list_entries, SUM_WIDTH))

    @np.errstate(all="ignore")
    def eval(self, prep: Array, background: Array, image: Array, d_image: Array) -> Array:
        scene = unpack_prepared(prep, self.params)
        result = np.zeros((self.max_list_entries, SUM_WIDTH), prep.dtype)
        for tile, pixels in enumerate(tile_pixels(self.params)):
            start, end = scene.ranges[tile]
            if start < end:
                rows = pulls_of_tile(scene, tile, pixels, background, d_image.reshape(-1, 4)[pixels], self.params)
                result[int(start) : int(end)] = rows
        return result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        background = [0.2, 0.4, 0.1]
        for scene in SplatBlend.samples():
            prep = scene.arrays("f32")[0]
            image = scene.op.eval(prep, np.asarray(background, np.float32))
            upstream = spec(len(image), low=-1.5, high=1.5, distinct=True)
            operands = (*scene.operands, spec(len(image), values=image), upstream)
            yield scene._replace(op=cls(**scene.op.attributes), operands=operands, smooth=False)


@op("splat_gather")
class SplatGather(_BlendOp):
    """The rows of `SplatPulls` added up by splat, those of entries that a tile has; f32 [n, 16] with n >= 1.

    operands prep, pulls.
    """

    def infer(self, prep: Shape, pulls: Shape) -> Shape:
        require_dtype(self, prep.dtype is DType.F32, "f32", prep)
        splats = self.require_prepared(prep)
        if pulls != Shape((self.max_list_entries, SUM_WIDTH), DType.F32):
            raise self.fail(f"pulls must be f32[{self.max_list_entries}, {SUM_WIDTH}], got {pulls}")
        return prep.with_dims((splats, SUM_WIDTH))

    def eval(self, prep: Array, pulls: Array) -> Array:
        scene = unpack_prepared(prep, self.params)
        result = np.zeros((len(scene.valid), SUM_WIDTH), prep.dtype)
        for start, end in scene.ranges[scene.ranges[:, 0] < scene.ranges[:, 1]].astype(int):
            np.add.at(result, np.rint(scene.entries[start:end]).astype(int), pulls[start:end])
        return result

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scene in SplatPulls.samples():
            pulls = scene.op.eval(*scene.arrays("f32"))
            operands = (scene.operands[0], spec(*pulls.shape, values=pulls))
            yield scene._replace(op=cls(**scene.op.attributes), operands=operands)


# A large one, a small one, one that covers everything, one that is not seen, and a slanted one over a corner.
_OUTLINES = (
    (7.3, 6.1, 0.02, 0.005, 0.05, 1.0),
    (13.2, 2.4, 1.5, 0.0, 1.2, 1.0),
    (3.0, 3.0, 0.0, 0.0, 0.0, 1.0),
    (8.0, 8.0, 0.1, 0.0, 0.1, 0.0),
    (20.5, 9.0, 0.021, -0.02, 0.021, 1.0),
)
_SIZES = ((20, 13, 4), (16, 16, 16))


def _before(settings: tuple[int, int, int]) -> Array:
    tiles = SplatBoxes(*settings).eval(np.asarray(_OUTLINES, np.float32))[TILES]
    return np.asarray(np.cumsum(tiles) - tiles, np.int32)


def _list_specs(settings: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    outlines = np.asarray(_OUTLINES, np.float32)
    n = len(outlines)
    boxes = SplatBoxes(*settings).eval(outlines)
    return (
        spec(n, OUTLINE_WIDTH, values=_OUTLINES),
        spec(BOX_ROWS, n, values=boxes, dtype="i32"),
        spec(n, values=_before(settings), dtype="i32"),
    )
