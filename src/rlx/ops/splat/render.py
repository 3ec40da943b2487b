"""Gaussian splatting: the image of a scene of oriented 3-D Gaussians, in one op or in its two stages.

This module holds the whole op and the public names; `splat_scene` has the data, `splat_prepare` and `splat_raster` the
stages, `splat_gradients` the way back, `splat_geometry` and `splat_projection` the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ir.tensor import target_graph
from rlx.ops.define.operands import convert, dtype_of, promote_inexact
from rlx.ops.define.samples import Sample
from rlx.ops.splat.gradients import GaussianSplatRenderBackward, gaussian_splat_render_backward
from rlx.ops.splat.prepare import GaussianSplatPrepare, gaussian_splat_prepare
from rlx.ops.splat.raster import GaussianSplatRasterize, gaussian_splat_rasterize
from rlx.ops.splat.scene import (
    DEFAULTS,
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
    SceneOp,
    check_scene,
    gaussian_splat_packed_grad_len,
    gaussian_splat_prep_packed_len,
    gaussian_splat_tile_count,
    unpack_gaussian_splat_packed_grads,
    working_arrays,
    working_dtype,
)
from rlx.ops.splat.scenes import scene_samples

__all__ = [
    "GaussianSplatBackwardParams",
    "GaussianSplatInputs",
    "GaussianSplatPrepare",
    "GaussianSplatRasterize",
    "GaussianSplatRender",
    "GaussianSplatRenderBackward",
    "GaussianSplatRenderParams",
    "gaussian_splat_packed_grad_len",
    "gaussian_splat_prep_packed_len",
    "gaussian_splat_prepare",
    "gaussian_splat_rasterize",
    "gaussian_splat_render",
    "gaussian_splat_render_backward",
    "gaussian_splat_render_decomposed",
    "gaussian_splat_render_meta",
    "gaussian_splat_tile_count",
    "unpack_gaussian_splat_packed_grads",
]

Array = np.ndarray[Any, np.dtype[Any]]


@op("gaussian_splat_render")
class GaussianSplatRender(SceneOp):
    """The image [height·width·4] of a scene: `GaussianSplatPrepare`, then `GaussianSplatRasterize`.

    Computed in f32 (f64 for scenes in f64) and rounded once. operands: the fields of `GaussianSplatInputs`.
    """

    is_fusion_boundary = True

    def infer(
        self, positions: Shape, scales: Shape, rotations: Shape, opacities: Shape, colors: Shape, sh: Shape, meta: Shape
    ) -> Shape:
        check_scene(self, (positions, scales, rotations, opacities, colors, sh, meta))
        return meta.with_dims((self.width * self.height * 4,))

    def eval(self, *operands: Array) -> Array:
        prepare, rasterize = self._stages()
        (meta,) = working_arrays(operands[-1])
        return np.asarray(rasterize.eval(prepare.eval(*operands), meta)).astype(operands[-1].dtype)

    def decompose(self, *operands: Any) -> Any:
        prepare, rasterize = self._stages()
        meta = operands[-1]
        return convert(rasterize(prepare(*operands), convert(meta, working_dtype(meta.dtype))), meta.dtype)

    def _stages(self) -> tuple[GaussianSplatPrepare, GaussianSplatRasterize]:
        settings = {k: v for k, v in self.attributes.items() if k != "radius_scale"}
        return GaussianSplatPrepare(**self.attributes), GaussianSplatRasterize(**settings)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return scene_samples(cls)


def gaussian_splat_render(inputs: GaussianSplatInputs, params: GaussianSplatRenderParams = DEFAULTS) -> Any:
    """The image of a scene, flat: height·width pixels of r, g, b, a."""
    return GaussianSplatRender(*params)(*promote_inexact(*inputs))


def gaussian_splat_render_decomposed(inputs: GaussianSplatInputs, params: GaussianSplatRenderParams = DEFAULTS) -> Any:
    """`gaussian_splat_render` as its two stages, for programs that rasterise a prepared scene more than once."""
    operands = GaussianSplatInputs(*promote_inexact(*inputs))
    image = gaussian_splat_rasterize(gaussian_splat_prepare(operands, params), operands.meta, params)
    return convert(image, dtype_of(operands.meta))


def gaussian_splat_render_meta(
    pos: Sequence[float],
    target: Sequence[float],
    up: Sequence[float],
    fov_y_deg: float,
    near: float,
    far: float,
    bg: Sequence[float],
    params: GaussianSplatRenderParams = DEFAULTS,
) -> Any:
    """The camera and the settings as the f32 vector [23] that scenes carry.

    It holds the camera's position, the point it looks at, its up direction, the vertical field of view in degrees, the
    near and far planes, the background colour, and the eight settings. Ops read the settings from their attributes.

    >>> gaussian_splat_render_meta((0, 0, 4), (0, 0, 0), (0, 1, 0), 60.0, 0.1, 100.0, (0, 0, 0)).shape
    (23,)
    """
    for name, vector in (("pos", pos), ("target", target), ("up", up), ("bg", bg)):
        if np.shape(vector) != (3,):
            raise ShapeError(f"gaussian_splat_render_meta: {name} needs 3 numbers, got {vector!r}")
    values = np.asarray([*pos, *target, *up, fov_y_deg, near, far, *bg, *params], np.float32)
    graph = target_graph(())
    return values if graph is None else graph.constant(values)
