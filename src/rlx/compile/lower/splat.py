"""Splatting in f32 as kernels do it: lists of tiles by loops instead of running counts over all pairs, and the gradient
in one more visit of the lists. Part of the table of `kernel_forms`.

Each function gives a builder of the better form, or None if the op is better left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import convert, dims_of
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.splat.geometry import background_of, to_linear
from rlx.ops.splat.gradients import GaussianSplatRenderBackward, SplatSums
from rlx.ops.splat.prepare import GaussianSplatPrepare, packed_parts, project, ranges_of, with_a_splat
from rlx.ops.splat.scene import GaussianSplatInputs, GaussianSplatRenderParams, scene_rows, working_dtype
from rlx.ops.splat.steps import TILES, SplatBlend, SplatBoxes, SplatGather, SplatPulls, SplatTileCounts, SplatTileLists

Form = Callable[..., Any]


def _prepare(op: Op, *operands: Any) -> Form | None:
    """Outlines in the order of their distance; then boxes, counts and lists, each by its own loops."""
    assert isinstance(op, GaussianSplatPrepare)
    if working_dtype(operands[0].dtype) is not DType.F32:
        return None
    params = op.params

    def build(*operands: Any) -> Any:
        scene = with_a_splat(GaussianSplatInputs(*(convert(x, DType.F32) for x in operands)))
        projected = project(ops, scene, params)
        order, _ = SortOrder()(projected.order_key)
        found = projected.outlines
        columns = [found.center, found.conic, projected.valid[:, None]]
        outlines = ops.take(ops.concat(columns, axis=-1), order, axis=0, mode="clip")
        sizes = params.width, params.height, params.tile_size
        boxes = SplatBoxes(*sizes)(outlines)
        before = ops.cumsum(boxes[TILES], exclusive=True)
        limit = params.max_list_entries
        counts = SplatTileCounts(*sizes, limit)(outlines, boxes, before)
        # Tile after tile, and in each of them block after block.
        by_tile = counts.T
        starts = ops.cumsum(by_tile.reshape(-1), exclusive=True).reshape(by_tile.shape).T
        entries, _ = SplatTileLists(*sizes, limit)(outlines, boxes, before, order, starts)
        ranges = ranges_of(by_tile.sum(axis=1), DType.F32)
        parts = packed_parts(ops, projected, entries, ranges, scene.meta, params)
        return ops.concat([p.reshape(-1) for p in parts])

    return build


def _backward(op: Op, *operands: Any) -> Form | None:
    """The image once more, and from it the sums of every entry, added up by splat."""
    assert isinstance(op, GaussianSplatRenderBackward)
    dtype = operands[0].dtype
    if working_dtype(dtype) is not DType.F32:
        return None

    def build(*operands: Any) -> Any:
        *flat, d_rgba = (convert(x, DType.F32) for x in operands)
        scene = scene_rows(GaussianSplatInputs(*flat))
        packed = GaussianSplatPrepare(*op.params)(*flat)
        settings = prepared_attributes(op.params)
        background = to_linear(ops, background_of(scene.meta))
        image = SplatBlend(**settings)(packed, background)
        pulls = SplatPulls(**settings)(packed, background, image, op.clipped(ops, d_rgba))
        rows = SplatGather(**settings)(packed, pulls)
        sums = SplatSums.of(ops.narrow(rows, 0, 0, dims_of(scene.opacities)[0]))
        parts = op.chained(ops, scene, sums)
        return convert(ops.concat([p.reshape(-1) for p in parts]), dtype)

    return build


def prepared_attributes(params: GaussianSplatRenderParams) -> dict[str, Any]:
    """The attributes of ops on prepared scenes."""
    return {name: value for name, value in params._asdict().items() if name != "radius_scale"}


SPLAT_FORMS: dict[type[Op], Callable[..., Form | None]] = {
    GaussianSplatPrepare: _prepare,
    GaussianSplatRenderBackward: _backward,
}
