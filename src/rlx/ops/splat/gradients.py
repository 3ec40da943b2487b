"""The gradient of splatting: from a loss on the image back to everything that describes the scene.

Walking the hits of a pixel from far to near, with g the gradient of its colour, T the transmittance before a hit and s
what the gradient sees behind it (at first g·background - g_a, because a = 1 - T):

    dc = T·α·g,   dα = T·(g·c - s),   s <- s·(1 - α) + α·(g·c)

With α = o·e^{-9/2·|p|²} and p = origin + t·direction the nearest point of the ray, p is orthogonal to the direction,
so d|p|² = 2p·(d origin + t·d direction). Both come from the map M = diag(inv_scale)·R of the splat: origin = M·(camera
- position), direction = M·ray. So the sum over pixels leaves one 3x3 gradient of M per splat, and the rest of the chain
is worked out per splat. Which splats are seen, and in which order, is taken as fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import convert, dims_of, promote_inexact, require_same_dtype
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.splat.geometry import (
    SMALLEST_SCALE,
    SUPPORT,
    background_of,
    camera_of,
    dot,
    inverse_scales,
    length_of,
    rotations_of,
    sh_basis,
    sh_basis_slopes,
    to_linear,
    uses_plain_colors,
)
from rlx.ops.splat.prepare import GaussianSplatPrepare
from rlx.ops.splat.raster import tile_pixels, to_tiles, trace_tile, trace_tiles
from rlx.ops.splat.scene import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
    PreparedScene,
    SceneOp,
    check_scene,
    gaussian_splat_packed_grad_len,
    scene_rows,
    unpack_prepared,
    working_arrays,
    working_dtype,
)
from rlx.ops.splat.scenes import scene_samples, scene_specs

Array = np.ndarray[Any, np.dtype[Any]]

_BACKWARD_DEFAULTS = GaussianSplatBackwardParams()
# d alpha = alpha·_PULL·(miss·d miss).
_PULL = -SUPPORT * SUPPORT


@op("gaussian_splat_render_backward")
class GaussianSplatRenderBackward(SceneOp):
    """The gradient of Σ d_rgba·image in the scene, for the image in linear light.

    This is the image that splats are trained on: C + T·max(background, 0)^2.2 and 1 - T, without the final power of 2.2
    and with at most `max_splat_steps` hits per pixel. d_rgba [height·width·4] is clamped to ±`loss_grad_clip` first,
    unless that is 0. SH coefficients above band `sh_band` get 0, unless that is 0; `max_anisotropy` concerns the
    trainer, not the gradient.

    The result is packed: positions 3N, scales 3N, rotations 4N, opacities N, colors 3N, sh_coeffs 3N·max(K, 1). Where
    colors stand in for band 0 they get its gradient, and band 0 gets 0. operands: the scene, d_rgba.
    """

    is_fusion_boundary = True

    loss_grad_clip: float = _BACKWARD_DEFAULTS.loss_grad_clip
    sh_band: int = _BACKWARD_DEFAULTS.sh_band
    max_anisotropy: float = _BACKWARD_DEFAULTS.max_anisotropy

    def check(self) -> None:
        super().check()
        if not self.loss_grad_clip >= 0:
            raise self.fail(f"loss_grad_clip cannot be negative (0 means no clipping), got {self.loss_grad_clip}")
        if not 0 <= self.sh_band <= 3:
            raise self.fail(f"sh_band is 0 (no limit) to 3, got {self.sh_band}")
        if not self.max_anisotropy >= 1:
            raise self.fail(f"max_anisotropy is a ratio of at least 1, got {self.max_anisotropy}")

    def infer(
        self,
        positions: Shape,
        scales: Shape,
        rotations: Shape,
        opacities: Shape,
        colors: Shape,
        sh: Shape,
        meta: Shape,
        d_rgba: Shape,
    ) -> Shape:
        splats, coefficients = check_scene(self, (positions, scales, rotations, opacities, colors, sh, meta))
        require_same_dtype(self, meta, d_rgba)
        length = self.width * self.height * 4
        if d_rgba.rank != 1 or not require_equal(d_rgba.dims[0], length, self.mnemonic):
            raise self.fail(f"d_rgba must be flat like the image, [{length}], got {d_rgba}")
        return meta.with_dims((gaussian_splat_packed_grad_len(splats, coefficients),))

    @np.errstate(all="ignore")
    def eval(self, *operands: Array) -> Array:
        *flat, d_rgba = working_arrays(*operands)
        scene = scene_rows(GaussianSplatInputs(*flat))
        packed = GaussianSplatPrepare(*self.params).eval(*flat)
        padded = self._summed_by_loops(packed, scene.meta, self.clipped(np, d_rgba).reshape(-1, 4))
        sums = SplatSums(*(x[: len(scene.opacities)] for x in padded))
        parts = self.chained(np, scene, sums)
        return np.concatenate([p.reshape(-1) for p in parts]).astype(operands[0].dtype)

    def decompose(self, *operands: Any) -> Any:
        """All pixels of all tiles at once; s comes from a running sum from the far end, divided by what reaches it."""
        from rlx import ops

        dtype = operands[0].dtype
        *flat, d_rgba = (convert(x, working_dtype(dtype)) for x in operands)
        scene = scene_rows(GaussianSplatInputs(*flat))
        packed = GaussianSplatPrepare(*self.params)(*flat)
        image_dims = self.height, self.width, 4
        padded = self._summed_by_tiles(packed, scene.meta, self.clipped(ops, d_rgba).reshape(image_dims))
        sums = SplatSums(*(ops.narrow(x, 0, 0, dims_of(scene.opacities)[0]) for x in padded))
        parts = self.chained(ops, scene, sums)
        return convert(ops.concat([p.reshape(-1) for p in parts]), dtype)

    def clipped(self, xp: ModuleType, d_rgba: Any) -> Any:
        clip = self.loss_grad_clip
        return xp.minimum(xp.maximum(d_rgba, -clip), clip) if clip else d_rgba

    def _summed_by_loops(self, packed: Array, meta: Array, d_image: Array) -> SplatSums:
        params = self.params
        prepared = unpack_prepared(packed, params)
        rows = np.zeros((len(prepared.valid), SUM_WIDTH), packed.dtype)
        background = to_linear(np, background_of(meta))
        for tile, pixels in enumerate(tile_pixels(params)):
            start, end = np.rint(prepared.ranges[tile]).astype(int)
            pulls = pulls_of_tile(prepared, tile, pixels, background, d_image[pixels], params)
            np.add.at(rows, np.rint(prepared.entries[start:end]).astype(int), pulls)
        return SplatSums.of(rows)

    def _summed_by_tiles(self, packed: Any, meta: Any, d_image: Any) -> SplatSums:
        from rlx import ops

        params = self.params
        prepared = unpack_prepared(packed, params)
        traced = trace_tiles(prepared, params, params.max_splat_steps)
        alpha, t, miss = traced.crossing
        g = to_tiles(d_image, params)
        g, g_a = g[:, :, :3], g[:, :, 3:]

        seen = ops.einsum("tpc,tmc->tpm", g, traced.color)
        weights = traced.transmittance * alpha
        after = traced.transmittance * (1.0 - alpha)
        background = dot(g, to_linear(ops, background_of(meta)))[:, :, None] - g_a
        reaching = ops.cumsum(weights * seen, axis=-1, exclusive=True, reverse=True)
        reaching = reaching + (1.0 - alpha).prod(axis=-1, keepdims=True) * background
        # Behind the hit at which a pixel is finished there is only the background.
        goes_on = after >= params.transmittance_threshold
        behind = ops.where(goes_on, reaching / ops.where(goes_on, after, 1.0), background)
        d_alpha = ops.where(alpha > 0.0, traced.transmittance * (seen - behind), 0.0)
        pull = _PULL * alpha * d_alpha

        opacity = ops.take(prepared.color_alpha[:, 3], traced.ids, axis=0, mode="clip")
        columns = [
            ops.einsum("tpm,tpc->tmc", weights, g),
            ((d_alpha * alpha).sum(axis=1) / ops.maximum(opacity, params.alpha_cutoff))[:, :, None],
            ops.einsum("tpm,tpmi->tmi", pull, miss),
            ops.einsum("tpmi,tpj->tmij", (pull * t)[..., None] * miss, traced.rays).reshape(*dims_of(traced.ids), 9),
        ]
        summed = ops.scatter_add(ops.concat(columns, axis=-1), traced.ids, dims_of(prepared.valid)[0], mode="clip")
        return SplatSums.of(summed)

    def chained(self, xp: ModuleType, scene: GaussianSplatInputs, sums: SplatSums) -> list[Any]:
        """The gradients of the scene's six tensors, from the sums of each splat."""
        camera = camera_of(xp, scene.meta, self.params)
        to_camera = camera.position - scene.positions
        inv_scale = inverse_scales(xp, scene.scales, self.radius_scale)[:, :, None]
        rotations = rotations_of(xp, scene.rotations)
        to_splat = inv_scale * rotations

        d_to_splat = sums.matrix + sums.origin[:, :, None] * to_camera[:, None, :]
        d_to_camera = xp.einsum("nij,ni->nj", to_splat, sums.origin)
        if scene.sh_coeffs.shape[1] > 1:
            d_to_camera = d_to_camera + _through_direction(xp, scene, to_camera, sums.color)
        unclamped = xp.exp(scene.scales) * (SUPPORT * self.radius_scale) > SMALLEST_SCALE
        in_range = (scene.opacities >= 0.0) & (scene.opacities <= 1.0)
        d_colors, d_sh = self._color_gradients(xp, scene, to_camera, sums.color)
        return [
            -d_to_camera,
            xp.where(unclamped, -dot(d_to_splat, to_splat), 0.0),
            _quaternion_gradient(xp, scene.rotations, inv_scale * d_to_splat),
            xp.where(in_range, sums.opacity, 0.0),
            d_colors,
            d_sh,
        ]

    def _color_gradients(
        self, xp: ModuleType, scene: GaussianSplatInputs, to_camera: Any, d_color: Any
    ) -> tuple[Any, Any]:
        """The gradients of colors [N, 3] and of SH coefficients [N, max(K, 1), 3]."""
        in_range = (scene.colors >= 0.0) & (scene.colors <= 1.0)
        plain = uses_plain_colors(scene)
        d_colors = xp.where(in_range & plain, d_color, 0.0)
        count = scene.sh_coeffs.shape[1]
        if count == 0:
            return d_colors, xp.zeros_like(d_color)
        basis = sh_basis(xp, to_camera / length_of(xp, to_camera)[:, None], count)
        d_sh = basis[:, :, None] * d_color[:, None, :]
        k = np.arange(count)[:, None]
        frozen = (k >= (self.sh_band + 1) ** 2) & (self.sh_band > 0)
        return d_colors, xp.where(((k == 0) & plain) | frozen, 0.0, d_sh)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def upstream(width: int, height: int) -> Spec:
            return spec(width * height * 4, low=-1.5, high=1.5, distinct=True)

        for scene in scene_samples(cls):
            settings = scene.op.attributes
            yield scene._replace(operands=(*scene.operands, upstream(settings["width"], settings["height"])))
        limited = cls(8, 8, 4, max_splat_steps=1, loss_grad_clip=0.0, sh_band=1)
        yield sample(limited, *scene_specs(3, 9), upstream(8, 8), dtypes=("f32", "f64"), smooth=False)


class SplatSums(NamedTuple):
    """Per splat, summed over all pixels: the gradients of its colour [n, 3] and opacity [n], of the camera in its
    coordinates [n, 3], and of the matrix that takes rays there [n, 3, 3]."""

    color: Any
    opacity: Any
    origin: Any
    matrix: Any

    @classmethod
    def of(cls, rows: Any) -> SplatSums:
        """The sums of rows [n, 16], array or tensor."""
        return cls(rows[:, :3], rows[:, 3], rows[:, 4:7], rows[:, 7:].reshape(-1, 3, 3))


# Numbers of a splat's sums.
SUM_WIDTH = 16


def pulls_of_tile(
    prepared: PreparedScene,
    tile: int,
    pixels: Array,
    background: Array,
    d_image: Array,
    params: GaussianSplatRenderParams,
) -> Array:
    """The sums over the pixels of one tile, one row [16] for each entry of its list; d_image [pixels, 4]."""
    rays, g, g_a = prepared.rays[pixels], d_image[:, :3], d_image[:, 3]
    behind = g @ background - g_a
    trace = trace_tile(prepared, tile, rays, params, params.max_splat_steps)
    rows = np.zeros((len(trace.hits), SUM_WIDTH), rays.dtype)
    for row, (splat, (alpha, t, miss), transmittance) in reversed([*zip(rows, trace.hits)]):
        seen = g @ prepared.color_alpha[splat, :3]
        d_alpha = np.where(alpha > 0, transmittance * (seen - behind), 0.0)
        behind = behind * (1.0 - alpha) + alpha * seen
        pull = _PULL * alpha * d_alpha
        row[:3] = (transmittance * alpha) @ g
        row[3] = (d_alpha @ alpha) / prepared.color_alpha[splat, 3]
        row[4:7] = pull @ miss
        row[7:] = np.einsum("p,pi,pj->ij", pull * t, miss, rays).reshape(-1)
    return rows


def _quaternion_gradient(xp: ModuleType, quaternions: Any, d_rotation: Any) -> Any:
    """From the gradient G of R = (1 - 2|u|²)·I + 2·u·uᵀ - 2w·[u]×, with x the axial vector of G (G·[v]× = v·x):
    dw = -2·u·x and du = -4·tr(G)·u + 2·(G + Gᵀ)·u - 2w·x."""
    w, u = quaternions[:, 0:1], quaternions[:, 1:]
    g = d_rotation
    axial = xp.stack([g[:, 2, 1] - g[:, 1, 2], g[:, 0, 2] - g[:, 2, 0], g[:, 1, 0] - g[:, 0, 1]], axis=-1)
    trace = (g[:, 0, 0] + g[:, 1, 1] + g[:, 2, 2])[:, None]
    symmetric = xp.einsum("nij,nj->ni", g, u) + xp.einsum("nji,nj->ni", g, u)
    d_w = -2.0 * dot(u, axial)
    d_u = -4.0 * trace * u + 2.0 * symmetric - 2.0 * w * axial
    return xp.stack([d_w, d_u[:, 0], d_u[:, 1], d_u[:, 2]], axis=-1)


def _through_direction(xp: ModuleType, scene: GaussianSplatInputs, to_camera: Any, d_color: Any) -> Any:
    """The gradient in the vector from splat to camera of the colour that its direction d chooses: (I - d·dᵀ)/|v|."""
    length = length_of(xp, to_camera)[:, None]
    direction = to_camera / length
    slopes = sh_basis_slopes(xp, direction, scene.sh_coeffs.shape[1])
    d_basis = xp.einsum("nkc,nc->nk", scene.sh_coeffs, d_color)
    d_direction = xp.einsum("nk,nki->ni", d_basis, slopes)
    return (d_direction - direction * dot(direction, d_direction)[:, None]) / length


def gaussian_splat_render_backward(
    inputs: GaussianSplatInputs, d_loss_rgba: Any, bwd_params: GaussianSplatBackwardParams = _BACKWARD_DEFAULTS
) -> Any:
    """The packed gradient of a loss on the linear image; see `GaussianSplatRenderBackward`, and
    `unpack_gaussian_splat_packed_grads` for its parts."""
    render, *backward = bwd_params
    return GaussianSplatRenderBackward(*render, *backward)(*promote_inexact(*inputs, d_loss_rgba))
