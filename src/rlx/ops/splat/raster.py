"""The second stage of splatting: every pixel blends the splats that its tile lists, from near to far.

A splat with colour c and alpha α lets 1 - α of what is behind it through: C += T·α·c, T *= 1 - α, from C = 0 and T = 1,
until T falls below the threshold. What is left over shows the background.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import Dim, ceildiv, dim_min, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape, Size
from rlx.ops.define.operands import convert, dims_of, dtype_of, require_dtype, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, spec
from rlx.ops.splat.geometry import (
    Crossing,
    background_of,
    cross_splat,
    rotations_of,
    to_linear,
)
from rlx.ops.splat.prepare import GaussianSplatPrepare
from rlx.ops.splat.scene import (
    DEFAULTS,
    META_LENGTH,
    GaussianSplatRenderParams,
    PreparedScene,
    SplatOp,
    check_params,
    gaussian_splat_prep_packed_len,
    prepared_splats,
    unpack_prepared,
)

Array = np.ndarray[Any, np.dtype[Any]]


class PreparedSceneOp(SplatOp):
    """An op on a prepared scene; attributes are `GaussianSplatRenderParams`, but for the radius_scale."""

    width: int = DEFAULTS.width
    height: int = DEFAULTS.height
    tile_size: int = DEFAULTS.tile_size
    alpha_cutoff: float = DEFAULTS.alpha_cutoff
    max_splat_steps: int = DEFAULTS.max_splat_steps
    transmittance_threshold: float = DEFAULTS.transmittance_threshold
    max_list_entries: int = DEFAULTS.max_list_entries

    @property
    def params(self) -> GaussianSplatRenderParams:
        return GaussianSplatRenderParams(**self.attributes)

    def check(self) -> None:
        check_params(self, self.params)

    def require_prepared(self, prep: Shape) -> Size:
        """Refuse what is no prepared scene of these settings; the number of its splats."""
        require_rank(self, prep, 1)
        splats = prepared_splats(prep.dims[0], self.params)
        if not require_equal(prep.dims[0], gaussian_splat_prep_packed_len(splats, self.params), self.mnemonic):
            shortest = gaussian_splat_prep_packed_len(1, self.params)
            raise self.fail(
                f"prep must hold {shortest} + 15·i numbers, got {prep}; prepare the scene with the same settings"
            )
        return splats


@op("gaussian_splat_rasterize")
class GaussianSplatRasterize(PreparedSceneOp):
    """The image [height·width·4] of a scene from `GaussianSplatPrepare`, row by row, as r, g, b, a.

    With C and T as above, rgb = max(C + T·background, 0)^2.2 and a = 1 - T; but a = 1 where a tile lists no splat at
    all. The background is read from meta. `max_splat_steps` limits gradients, not the image. operands prep, meta.
    """

    is_fusion_boundary = True

    def infer(self, prep: Shape, meta: Shape) -> Shape:
        require_rank(self, prep, 1)
        require_dtype(self, prep.dtype in (DType.F32, DType.F64), "f32 or f64", prep, meta)
        require_same_dtype(self, prep, meta)
        if meta.rank != 1 or not require_equal(meta.dims[0], META_LENGTH, self.mnemonic):
            raise self.fail(f"meta must be [{META_LENGTH}], got {meta}")
        self.require_prepared(prep)
        return prep.with_dims((self.width * self.height * 4,))

    @np.errstate(all="ignore")
    def eval(self, prep: Array, meta: Array) -> Array:
        params = self.params
        scene = unpack_prepared(prep, params)
        image = np.empty((self.height * self.width, 4), prep.dtype)
        for tile, pixels in enumerate(tile_pixels(params)):
            rays = scene.rays[pixels]
            trace = trace_tile(scene, tile, rays, params, max_steps=0)
            color = np.zeros((len(pixels), 3), prep.dtype)
            for hit in trace.hits:
                color += (hit.transmittance * hit.crossing.alpha)[:, None] * scene.color_alpha[hit.splat, :3]
            image[pixels, :3] = to_linear(np, color + trace.transmittance[:, None] * background_of(meta))
            image[pixels, 3] = 1.0 - trace.transmittance if trace.hits else 1.0
        return image.reshape(-1)

    def decompose(self, prep: Any, meta: Any) -> Any:
        """All pixels of all tiles at once, with the transmittance as a running product along the entries of a tile."""
        from rlx import ops

        params = self.params
        traced = trace_tiles(unpack_prepared(prep, params), params, max_steps=0)
        weights = traced.transmittance * traced.crossing.alpha
        left = (1.0 - traced.crossing.alpha).prod(axis=-1, keepdims=True)
        color = ops.einsum("tpm,tmc->tpc", weights, traced.color) + left * background_of(meta)
        opaque = ops.where((traced.counts == 0)[:, None, None], 1.0, 1.0 - left)
        image = ops.concat([to_linear(ops, color), opaque], axis=-1)
        return from_tiles(image, params).reshape(-1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scene in GaussianSplatPrepare.samples():
            arrays = scene.arrays("f64")
            prep = scene.op.eval(*arrays)
            size: Size = len(prep)
            for symbol, splats in scene.binding.items():
                size = size + 15 * (Dim.symbol(symbol) - splats)
            settings = {k: v for k, v in scene.op.attributes.items() if k != "radius_scale"}
            operands = spec(size, values=prep), spec(META_LENGTH, values=arrays[-1])
            yield scene._replace(op=cls(**settings), operands=operands, dtypes=("f32", "f64"))


def tile_pixels(params: GaussianSplatRenderParams) -> Iterator[Array]:
    """For each tile, row by row, the positions of its pixels in the image."""
    size = params.tile_size
    positions = np.arange(params.height * params.width).reshape(params.height, params.width)
    for top in range(0, params.height, size):
        for left in range(0, params.width, size):
            yield positions[top : top + size, left : left + size].reshape(-1)


class Hit(NamedTuple):
    """A splat on the rays of a tile: how they cross it, alpha being 0 where it does not count, and T before it."""

    splat: int
    crossing: Crossing
    transmittance: Array


class TileTrace(NamedTuple):
    """What the rays of a tile meet from near to far, and the transmittance behind all of it."""

    hits: list[Hit]
    transmittance: Array


def trace_tile(
    scene: PreparedScene, tile: int, rays: Array, params: GaussianSplatRenderParams, max_steps: int
) -> TileTrace:
    """Every entry of a tile against its rays; with `max_steps`, no ray counts more hits than that."""
    start, end = np.rint(scene.ranges[tile]).astype(int)
    transmittance, steps = np.ones(len(rays), rays.dtype), np.zeros(len(rays), int)
    hits = []
    for splat in np.rint(scene.entries[start:end]).astype(int):
        rotation = rotations_of(np, scene.quat[splat : splat + 1])[0]
        directions = scene.inv_scale[splat] * (rays @ rotation.T)
        opacity = scene.color_alpha[splat, 3]
        crossing = cross_splat(np, scene.pos_local[splat], directions, opacity, params.alpha_cutoff)
        finished = transmittance < params.transmittance_threshold
        if max_steps:
            finished = finished | (steps >= max_steps)
        crossing = crossing._replace(alpha=np.where(finished, 0.0, crossing.alpha).astype(rays.dtype))
        hits.append(Hit(splat, crossing, transmittance))
        steps = steps + (crossing.alpha > 0)
        transmittance = transmittance * (1.0 - crossing.alpha)
    return TileTrace(hits, transmittance)


class TracedTiles(NamedTuple):
    """The entries [tiles, m] of all tiles against their p pixels: crossing and transmittance before are [tiles, p, m].

    Tiles with less than m entries (`counts` has their numbers) are filled up with splats whose alpha is 0.
    """

    ids: Any
    counts: Any
    color: Any
    rays: Any
    crossing: Crossing
    transmittance: Any


def trace_tiles(scene: PreparedScene, params: GaussianSplatRenderParams, max_steps: int) -> TracedTiles:
    """What `trace_tile` finds for each tile, as tensors."""
    from rlx import ops

    most = dim_min(params.max_list_entries, dims_of(scene.valid)[0])
    ranges = ops.round_(scene.ranges)
    starts, ends = ranges[:, 0], ranges[:, 1]
    counts = ops.where(ends > starts, ends - starts, 0.0).astype("i32")
    first = ops.where(counts > 0, starts, 0.0).astype("i32")
    step = ops.iota(most)
    entries = ops.round_(scene.entries).astype("i32")
    ids = ops.take(entries, first[:, None] + step, axis=0, mode="clip")

    def listed(x: Any) -> Any:
        return ops.take(x, ids, axis=0, mode="clip")

    color_alpha = listed(scene.color_alpha)
    to_splat = scene.inv_scale[:, :, None] * rotations_of(ops, scene.quat)
    rays = to_tiles(scene.rays.reshape(params.height, params.width, 3), params)
    directions = ops.einsum("tmij,tpj->tpmi", listed(to_splat), rays)
    origins = listed(scene.pos_local)[:, None]
    crossing = cross_splat(ops, origins, directions, color_alpha[:, None, :, 3], params.alpha_cutoff)

    alpha = ops.where((step < counts[:, None])[:, None], crossing.alpha, 0.0)
    # T only falls, so the entries at which it is still high enough are those before the stop.
    transmittance = ops.cumprod(1.0 - alpha, axis=-1, exclusive=True)
    counted = transmittance >= params.transmittance_threshold
    if max_steps:
        counted = counted & (ops.cumsum((alpha > 0.0).astype("i32"), axis=-1, exclusive=True) < max_steps)
    crossing = crossing._replace(alpha=ops.where(counted, alpha, 0.0))
    return TracedTiles(ids, counts, color_alpha[:, :, :3], rays, crossing, transmittance)


def to_tiles(image: Any, params: GaussianSplatRenderParams) -> Any:
    """[height, width, c] to [tiles, tile_size², c], with zeros beyond the edges of the image."""
    from rlx.ops.shape.movement import pad, transpose

    size = params.tile_size
    rows, columns = ceildiv(params.height, size), ceildiv(params.width, size)
    padded = pad(image, 0, high=(rows * size - params.height, columns * size - params.width, 0))
    blocks = padded.reshape(rows, size, columns, size, -1)
    return transpose(blocks, (0, 2, 1, 3, 4)).reshape(rows * columns, size * size, -1)


def from_tiles(tiles: Any, params: GaussianSplatRenderParams) -> Any:
    """[tiles, tile_size², c] to [height, width, c]: the inverse of `to_tiles`."""
    from rlx.ops.shape.movement import transpose

    size = params.tile_size
    rows, columns = ceildiv(params.height, size), ceildiv(params.width, size)
    blocks = transpose(tiles.reshape(rows, columns, size, size, -1), (0, 2, 1, 3, 4))
    return blocks.reshape(rows * size, columns * size, -1)[: params.height, : params.width]


def gaussian_splat_rasterize(prep: Any, meta: Any, params: GaussianSplatRenderParams = DEFAULTS) -> Any:
    """The image [height·width·4] of a prepared scene; see `GaussianSplatRasterize`."""
    settings = {k: v for k, v in params._asdict().items() if k != "radius_scale"}
    return GaussianSplatRasterize(**settings)(prep, convert(meta, dtype_of(prep)))
