"""What the Gaussian-splatting ops share: the scene and its settings, their checks, and the layout of packed buffers.

Everything is flat, as in `GaussianSplatInputs`. A buffer of a prepared scene holds ids and counts next to coordinates,
so it is f32 for scenes in f16, bf16 and f32, and f64 for scenes in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import ceildiv, dim_max, require_at_most, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape, Size
from rlx.ops.control.body_calls import kept_decomposition
from rlx.ops.define.operands import dims_of, require_float, require_same_dtype

Array = np.ndarray[Any, np.dtype[Any]]

META_LENGTH = 23
# Bands 0 to 3 of the spherical harmonics.
MAX_SH_COEFFS = 16
# The start of a tile's range when nothing is listed for it.
NO_ENTRIES = float(0xFFFFFFFF)
_SETTINGS_LENGTH = 11
# Ids up to here are exact in f32.
_MOST_IDS = 2**24


class GaussianSplatInputs(NamedTuple):
    """A scene of N Gaussians and the camera that looks at it, as seven flat tensors (or arrays) of one float dtype.

    positions [3N]; scales [3N], the logarithms of the standard deviations; rotations [4N], quaternions (w, x, y, z)
    that turn world into splat coordinates and are used as given, so they should be unit; opacities [N], clamped to
    [0, 1]; colors [3N]; sh_coeffs [N·K·3] with K <= 16; meta [23], see `gaussian_splat_render_meta`.
    """

    positions: Any
    scales: Any
    rotations: Any
    opacities: Any
    colors: Any
    sh_coeffs: Any
    meta: Any


class GaussianSplatRenderParams(NamedTuple):
    """Settings of a render.

    An image of width x height pixels is cut into tiles of tile_size. A Gaussian is `radius_scale` times as wide as its
    scales say and ends where its alpha falls below `alpha_cutoff`. A pixel is finished when less than
    `transmittance_threshold` of what is behind would be seen; gradients also stop after `max_splat_steps` hits (0: no
    limit). The tiles together list at most `max_list_entries` splats, those nearest to the camera first.
    """

    width: int = 64
    height: int = 64
    tile_size: int = 16
    radius_scale: float = 1.6
    alpha_cutoff: float = 1.0 / 255.0
    max_splat_steps: int = 32
    transmittance_threshold: float = 0.01
    max_list_entries: int = 576


DEFAULTS = GaussianSplatRenderParams()


class GaussianSplatBackwardParams(NamedTuple):
    """Settings of `gaussian_splat_render_backward`.

    The upstream gradient of every pixel is clamped to ±`loss_grad_clip` (0: not clamped). SH coefficients above band
    `sh_band` are frozen (0: none are). `max_anisotropy` is the bound that a trainer puts on the ratio of a splat's axes
    when it applies the gradient; the gradient itself does not depend on it.
    """

    render: GaussianSplatRenderParams = DEFAULTS
    loss_grad_clip: float = 1.0
    sh_band: int = 0
    max_anisotropy: float = 10.0


def gaussian_splat_tile_count(params: GaussianSplatRenderParams) -> int:
    """How many tiles cover the image.

    >>> gaussian_splat_tile_count(GaussianSplatRenderParams(width=40, height=16))
    3
    """
    return int(ceildiv(params.width, params.tile_size) * ceildiv(params.height, params.tile_size))


def _prepared_lengths(num_splats: Size, params: GaussianSplatRenderParams) -> tuple[Size, ...]:
    """The lengths of the parts of a prepared scene, in the order of `PreparedScene`, and of the settings after them."""
    n = num_splats
    tiles = gaussian_splat_tile_count(params)
    pixels = params.width * params.height
    return (4 * n, n, 3 * n, 3 * n, 4 * n, params.max_list_entries, 2 * tiles, 3 * pixels, _SETTINGS_LENGTH)


def gaussian_splat_prep_packed_len(num_splats: Size, params: GaussianSplatRenderParams) -> Size:
    """The length of a prepared scene: 15n + max_list_entries + 2·tiles + 3·pixels + 11, n = max(num_splats, 1).

    >>> gaussian_splat_prep_packed_len(2, GaussianSplatRenderParams(width=8, height=8, max_list_entries=5))
    240
    """
    return list(accumulate(_prepared_lengths(dim_max(num_splats, 1), params)))[-1]


def gaussian_splat_packed_grad_len(num_splats: Size, sh_coeffs_per_splat: int) -> Size:
    """The length of packed gradients: N·(14 + 3·max(K, 1)).

    >>> gaussian_splat_packed_grad_len(2, 4)
    52
    """
    return num_splats * (14 + 3 * max(sh_coeffs_per_splat, 1))


def unpack_gaussian_splat_packed_grads(packed: Any, num_splats: Size, sh_coeffs_per_splat: int) -> tuple[Any, ...]:
    """The gradients of positions, scales, rotations, opacities, colors and sh_coeffs, each as flat as its operand."""
    wanted = gaussian_splat_packed_grad_len(num_splats, sh_coeffs_per_splat)
    dims = dims_of(packed)
    if len(dims) != 1 or not require_equal(dims[0], wanted, "unpack_gaussian_splat_packed_grads"):
        raise ShapeError(
            f"unpack_gaussian_splat_packed_grads: {num_splats} splats with {sh_coeffs_per_splat} SH coefficients each "
            f"have a gradient of dims [{wanted}], got {list(dims)}"
        )
    n = num_splats
    return _cut(packed, (3 * n, 3 * n, 4 * n, n, 3 * n, 3 * n * sh_coeffs_per_splat))


def _cut(flat: Any, lengths: Sequence[Size]) -> tuple[Any, ...]:
    """Consecutive pieces of a flat array or tensor."""
    ends = list(accumulate(lengths))
    return tuple(flat[end - length : end] for length, end in zip(lengths, ends))


class PreparedScene(NamedTuple):
    """What `GaussianSplatPrepare` hands to `GaussianSplatRasterize`, with n = max(N, 1) splats.

    color_alpha [n, 4]: colour towards the camera and opacity, 0 if the splat cannot be seen; valid [n]: 1 if it can.
    pos_local [n, 3]: the camera in coordinates of the splat, where three standard deviations are a sphere of radius 1;
    inv_scale [n, 3] and quat [n, 4] take directions there. entries [max_list_entries]: ids of splats, tile after tile,
    nearest first; ranges [tiles, 2]: where the entries of a tile start and end. rays [pixels, 3]: unit directions.
    """

    color_alpha: Any
    valid: Any
    pos_local: Any
    inv_scale: Any
    quat: Any
    entries: Any
    ranges: Any
    rays: Any


def unpack_prepared(packed: Any, params: GaussianSplatRenderParams) -> PreparedScene:
    """The parts of a packed buffer, array or tensor, without the settings at its end."""
    parts = _cut(packed, _prepared_lengths(prepared_splats(dims_of(packed)[0], params), params))
    widths = (4, 1, 3, 3, 4, 1, 2, 3)
    return PreparedScene(*(x if w == 1 else x.reshape(-1, w) for x, w in zip(parts, widths)))


def prepared_splats(length: Size, params: GaussianSplatRenderParams) -> Size:
    """How many splats a packed buffer of this length holds, at least 1 if it is one."""
    return (length - gaussian_splat_prep_packed_len(1, params)) // 15 + 1


def prepared_settings(params: GaussianSplatRenderParams) -> tuple[list[float], list[float]]:
    """The numbers at the end of a packed buffer, before and after the linear background colour."""
    columns = float(ceildiv(params.width, params.tile_size))
    before = [params.width, params.height, params.tile_size, columns]
    return [*before, params.alpha_cutoff, params.transmittance_threshold], [params.max_splat_steps, 0.0]


def working_dtype(dtype: DType) -> DType:
    """What scenes of `dtype` are computed and prepared in."""
    return DType.F64 if dtype is DType.F64 else DType.F32


def sh_coeffs_per_splat(sh_length: Size, num_splats: Size) -> Size:
    """K of sh_coeffs [N·K·3]; 0 for an empty scene."""
    return 0 if num_splats == 0 else sh_length // (3 * num_splats)


def scene_rows(inputs: GaussianSplatInputs) -> GaussianSplatInputs:
    """The scene with an axis for splats: [N, 3], [N, 3], [N, 4], [N], [N, 3], [N, K, 3] and meta."""
    n = dims_of(inputs.opacities)[0]
    k = sh_coeffs_per_splat(dims_of(inputs.sh_coeffs)[0], n)
    return inputs._replace(
        positions=inputs.positions.reshape(n, 3),
        scales=inputs.scales.reshape(n, 3),
        rotations=inputs.rotations.reshape(n, 4),
        colors=inputs.colors.reshape(n, 3),
        sh_coeffs=inputs.sh_coeffs.reshape(n, k, 3),
    )


def working_arrays(*operands: Array) -> tuple[Array, ...]:
    """Operands of `eval` in the dtype that the op computes in."""
    dtype = working_dtype(DType.of(operands[0].dtype)).numpy
    return tuple(np.asarray(x).astype(dtype) for x in operands)


def check_params(op: Op, params: GaussianSplatRenderParams) -> None:
    """Refuse settings that no scene can be rendered with."""
    if min(params.width, params.height, params.tile_size) < 1:
        raise op.fail(
            f"width, height and tile_size are at least 1, got {params.width}, {params.height} and {params.tile_size}"
        )
    if not params.radius_scale > 0:
        raise op.fail(f"radius_scale must be positive, got {params.radius_scale}")
    if not 0 < params.alpha_cutoff < 1:
        raise op.fail(f"alpha_cutoff lies between 0 and 1, both excluded; got {params.alpha_cutoff}")
    if not 0 < params.transmittance_threshold < 1:
        raise op.fail(
            f"transmittance_threshold lies between 0 and 1, both excluded; got {params.transmittance_threshold}"
        )
    if params.max_splat_steps < 0:
        raise op.fail(f"max_splat_steps cannot be negative (0 means no limit), got {params.max_splat_steps}")
    if not 1 <= params.max_list_entries <= _MOST_IDS:
        raise op.fail(f"max_list_entries is 1 to 2^24, got {params.max_list_entries}")


class SplatOp(Op):
    """An op whose values hold ids and coordinates in floats, and so do those of its derivatives and batches."""

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any]:
        return kept_decomposition(self)


class SceneOp(SplatOp):
    """An op on a scene: operands are the fields of `GaussianSplatInputs`, attributes `GaussianSplatRenderParams`."""

    width: int = DEFAULTS.width
    height: int = DEFAULTS.height
    tile_size: int = DEFAULTS.tile_size
    radius_scale: float = DEFAULTS.radius_scale
    alpha_cutoff: float = DEFAULTS.alpha_cutoff
    max_splat_steps: int = DEFAULTS.max_splat_steps
    transmittance_threshold: float = DEFAULTS.transmittance_threshold
    max_list_entries: int = DEFAULTS.max_list_entries

    @property
    def params(self) -> GaussianSplatRenderParams:
        return GaussianSplatRenderParams(*(getattr(self, f) for f in GaussianSplatRenderParams._fields))

    def check(self) -> None:
        check_params(self, self.params)


def check_scene(op: Op, scene: Sequence[Shape]) -> tuple[Size, int]:
    """Refuse operands that are no scene; the numbers of splats and of SH coefficients per splat."""
    require_float(op, *scene)
    dtype = require_same_dtype(op, *scene)
    flat = GaussianSplatInputs(*scene)
    for name, shape in zip(flat._fields, scene):
        if shape.rank != 1:
            raise op.fail(f"{name} must be flat, of rank 1, got {shape}; reshape it to (-1,)")
    n = flat.opacities.dims[0]
    k = sh_coeffs_per_splat(flat.sh_coeffs.dims[0], n)
    if not isinstance(k, int) or k > MAX_SH_COEFFS:
        raise op.fail(f"sh_coeffs must be [{n}*K*3] with a fixed K of at most {MAX_SH_COEFFS}, got {flat.sh_coeffs}")
    lengths = GaussianSplatInputs(3 * n, 3 * n, 4 * n, n, 3 * n, 3 * n * k, META_LENGTH)
    for name, shape, length in zip(flat._fields, scene, lengths):
        if not require_equal(shape.dims[0], length, op.mnemonic):
            raise op.fail(f"{name} must hold {length} numbers for the {n} splats of opacities, got {shape}")
    if working_dtype(dtype) is DType.F32 and not require_at_most(n, _MOST_IDS, op.mnemonic):
        raise op.fail(f"{n} splats are more than f32 ids can tell apart (2^24); cast the scene to f64")
    return n, k
