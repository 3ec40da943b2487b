"""Builder methods for Gaussian splatting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.splat.render import GaussianSplatBackwardParams, GaussianSplatInputs, GaussianSplatRenderParams


class SplatBuilders(Builder):
    """A scene is seven flat f32 tensors, `GaussianSplatInputs`; an image is [W·H·4]."""

    __slots__ = ()

    def gaussian_splat_render(self, inputs: GaussianSplatInputs, params: GaussianSplatRenderParams) -> Tensor:
        """The image of a scene."""
        return self._build(ops.gaussian_splat_render, inputs, params)

    def gaussian_splat_render_meta(
        self,
        pos: Sequence[float],
        target: Sequence[float],
        up: Sequence[float],
        fov_y_deg: float,
        near: float,
        far: float,
        bg: Sequence[float],
        params: GaussianSplatRenderParams,
    ) -> Tensor:
        """Camera and render settings as the constant that the other ops read."""
        return self._build(ops.gaussian_splat_render_meta, pos, target, up, fov_y_deg, near, far, bg, params)

    def gaussian_splat_prepare(self, inputs: GaussianSplatInputs, params: GaussianSplatRenderParams) -> Tensor:
        """Projection, binning and sorting, packed for `gaussian_splat_rasterize`."""
        return self._build(ops.gaussian_splat_prepare, inputs, params)

    def gaussian_splat_rasterize(self, prep: TensorLike, meta: TensorLike, params: GaussianSplatRenderParams) -> Tensor:
        """The image of a prepared scene."""
        return self._build(ops.gaussian_splat_rasterize, prep, meta, params)

    def gaussian_splat_render_decomposed(
        self, inputs: GaussianSplatInputs, params: GaussianSplatRenderParams
    ) -> Tensor:
        """`gaussian_splat_render` as its two stages."""
        return self._build(ops.gaussian_splat_render_decomposed, inputs, params)

    def gaussian_splat_render_backward(
        self, inputs: GaussianSplatInputs, d_loss_rgba: TensorLike, bwd_params: GaussianSplatBackwardParams
    ) -> Tensor:
        """The gradient of a loss on the image in everything that describes the scene, packed."""
        return self._build(ops.gaussian_splat_render_backward, inputs, d_loss_rgba, bwd_params)
