"""The first stage of splatting: project the splats, list them by tile from near to far, and pack all of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import dim_max
from rlx.ir.dtype import DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import convert, dims_of, promote_inexact
from rlx.ops.define.samples import Sample
from rlx.ops.splat.geometry import (
    background_of,
    camera_of,
    colors_towards,
    inverse_scales,
    pixel_rays,
    rotations_of,
    to_linear,
)
from rlx.ops.splat.projection import Outlines, outlines, tiles_touched
from rlx.ops.splat.scene import (
    DEFAULTS,
    NO_ENTRIES,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
    SceneOp,
    check_scene,
    gaussian_splat_prep_packed_len,
    gaussian_splat_tile_count,
    prepared_settings,
    scene_rows,
    working_arrays,
    working_dtype,
)
from rlx.ops.splat.scenes import scene_samples

Array = np.ndarray[Any, np.dtype[Any]]


@op("gaussian_splat_prepare")
class GaussianSplatPrepare(SceneOp):
    """A scene prepared for `GaussianSplatRasterize`, packed into one flat buffer.

    Per splat: the colour towards the camera (spherical harmonics up to band 3), the opacity, whether it may be seen,
    and the map into its own coordinates. Then the ids of splats by tile, nearest to the camera first; the range of each
    tile, (0xFFFFFFFF, 0) where there are none; the ray of each pixel; and the settings [width, height, tile_size, tiles
    per row, alpha_cutoff, transmittance_threshold, background in linear light (3), max_splat_steps, 0].

    A splat is seen if its opacity reaches the cut-off, its centre lies between the near and the far plane, and its
    outline touches the image. A tile lists it if its box meets the outline. Entries beyond `max_list_entries` are left
    out, the farthest splats first. The buffer is f64 for scenes in f64, else f32.
    """

    is_fusion_boundary = True

    def infer(
        self, positions: Shape, scales: Shape, rotations: Shape, opacities: Shape, colors: Shape, sh: Shape, meta: Shape
    ) -> Shape:
        splats, _ = check_scene(self, (positions, scales, rotations, opacities, colors, sh, meta))
        length = gaussian_splat_prep_packed_len(splats, self.params)
        return Shape((length,), working_dtype(meta.dtype))

    @np.errstate(all="ignore")
    def eval(self, *operands: Array) -> Array:
        scene = with_a_splat(GaussianSplatInputs(*working_arrays(*operands)))
        projected = project(np, scene, self.params)
        touched = tiles_touched(np, projected.outlines, self.params)
        entries, ranges = _list_by_tile(touched, projected.order_key, self.params)
        parts = packed_parts(np, projected, entries, ranges, scene.meta, self.params)
        return np.concatenate([p.reshape(-1) for p in parts]).astype(scene.meta.dtype)

    def decompose(self, *operands: Any) -> Any:
        """The lists come from running counts instead of loops: of all (splat, tile) pairs in order of distance, those
        that touch are numbered twice, by splat to apply the limit and by tile to find their places."""
        from rlx import ops

        dtype = working_dtype(operands[0].dtype)
        scene = with_a_splat(GaussianSplatInputs(*(convert(x, dtype) for x in operands)))
        projected = project(ops, scene, self.params)
        touched = tiles_touched(ops, projected.outlines, self.params)
        entries, ranges = _list_by_count(touched, projected.order_key, self.params)
        parts = packed_parts(ops, projected, convert(entries, dtype), ranges, scene.meta, self.params)
        return ops.concat([p.reshape(-1) for p in parts])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return scene_samples(cls)


def with_a_splat(inputs: GaussianSplatInputs) -> GaussianSplatInputs:
    """The scene with an axis for splats; an empty one gets a transparent splat, so that there is something to index."""
    scene = scene_rows(inputs)
    n = dims_of(scene.opacities)[0]
    missing = dim_max(n, 1) - n
    if isinstance(missing, int) and missing == 0:
        return scene
    if isinstance(scene.opacities, np.ndarray):
        rows = [np.zeros((1, *x.shape[1:]), x.dtype) for x in scene[:-1]]
    else:
        from rlx.ops.shape.movement import pad

        rows = [pad(x, 0, high=(missing, *(0,) * (x.ndim - 1))) for x in scene[:-1]]
    return GaussianSplatInputs(*(*rows, scene.meta))


class Projected(NamedTuple):
    color_alpha: Any
    valid: Any
    pos_local: Any
    inv_scale: Any
    quat: Any
    rays: Any
    outlines: Outlines
    order_key: Any


def project(xp: ModuleType, scene: GaussianSplatInputs, params: GaussianSplatRenderParams) -> Projected:
    camera = camera_of(xp, scene.meta, params)
    rotations = rotations_of(xp, scene.rotations)
    opacity = xp.minimum(xp.maximum(scene.opacities, 0.0), 1.0)
    found = outlines(xp, scene, camera, rotations, opacity, params)
    inv_scale = inverse_scales(xp, scene.scales, params.radius_scale)
    turned = xp.einsum("nij,nj->ni", rotations, camera.position - scene.positions)
    color = colors_towards(xp, scene, camera)
    color_alpha = xp.stack([color[:, 0], color[:, 1], color[:, 2], opacity], axis=-1)
    return Projected(
        color_alpha=xp.where(found.visible[:, None], color_alpha, 0.0),
        valid=found.visible.astype(scene.meta.dtype),
        pos_local=inv_scale * turned,
        inv_scale=inv_scale,
        quat=scene.rotations,
        rays=pixel_rays(xp, camera, params),
        outlines=found,
        # Splats that are not seen come last; sorting is stable.
        order_key=xp.where(found.visible, found.distance, np.inf),
    )


def packed_parts(
    xp: ModuleType,
    projected: Projected,
    entries: Any,
    ranges: Any,
    meta: Any,
    params: GaussianSplatRenderParams,
) -> list[Any]:
    """The parts in the order of `PreparedScene`, and the settings."""
    before, after = (np.asarray(s, DType.of(meta.dtype).numpy) for s in prepared_settings(params))
    settings = [before, to_linear(xp, background_of(meta)), after]
    return [*projected[:5], entries, ranges, projected.rays, *settings]


def _list_by_tile(touched: Array, order_key: Array, params: GaussianSplatRenderParams) -> tuple[Array, Array]:
    """The ids listed for all tiles, tile after tile, and each tile's range."""
    nearest_first = np.argsort(order_key, kind="stable")
    ranks, tiles = (x[: params.max_list_entries] for x in np.nonzero(touched[nearest_first]))
    by_tile = np.argsort(tiles, kind="stable")
    entries = np.zeros(params.max_list_entries)
    entries[: len(ranks)] = nearest_first[ranks[by_tile]]
    every_tile = np.arange(gaussian_splat_tile_count(params))
    starts = np.searchsorted(tiles[by_tile], every_tile, side="left")
    ends = np.searchsorted(tiles[by_tile], every_tile, side="right")
    empty = starts == ends
    return entries, np.stack([np.where(empty, NO_ENTRIES, starts), np.where(empty, 0, ends)], axis=-1)


def _list_by_count(touched: Any, order_key: Any, params: GaussianSplatRenderParams) -> tuple[Any, Any]:
    """What `_list_by_tile` gives, as tensors."""
    from rlx import ops

    limit = params.max_list_entries
    nearest_first = ops.argsort(order_key)
    near = ops.take(touched, nearest_first, axis=0, mode="clip")
    kept = (near & (ops.cumsum(near.reshape(-1), exclusive=True).reshape(near.shape) < limit)).T
    places = ops.cumsum(kept.reshape(-1), exclusive=True)
    places = ops.where(kept.reshape(-1), places, limit)
    ids = ops.broadcast_to(nearest_first, kept.shape).reshape(-1)
    entries = ops.zeros(limit, "i32").at[places].set(ids, mode="drop")
    return entries, ranges_of(kept.astype("i32").sum(axis=1), order_key.dtype)


def ranges_of(counts: Any, dtype: DType) -> Any:
    """Where the list of each tile starts and ends, from how many entries each has; tensors."""
    from rlx import ops

    ends = ops.cumsum(counts)
    empty = counts == 0
    starts = ops.where(empty, NO_ENTRIES, (ends - counts).astype(dtype))
    return ops.stack([starts, ops.where(empty, 0.0, ends.astype(dtype))], axis=-1)


def gaussian_splat_prepare(inputs: GaussianSplatInputs, params: GaussianSplatRenderParams = DEFAULTS) -> Any:
    """The scene projected, binned and sorted, packed for `gaussian_splat_rasterize`; see `GaussianSplatPrepare`."""
    return GaussianSplatPrepare(*params)(*promote_inexact(*inputs))
