"""Where splats appear: their outlines on the image, which of them may be seen, and the tiles that they touch.

With μ = (x, y, z) the centre and Σ the squared shape of an ellipsoid in camera coordinates, the lines of sight that
touch it form the dual conic μ·μᵀ - Σ. In the plane at distance 1 this is an ellipse around

    c = (xz - Σxz, yz - Σyz)/(z² - Σzz)

with the squared shape

    V_ij = (z²·Σ_ij - z·(μ_i·Σ_jz + μ_j·Σ_iz) + μ_i·μ_j·Σzz - (Σ_ij·Σzz - Σ_iz·Σ_jz))/(z² - Σzz)²,   i, j in x, y

as long as the ellipsoid lies in front of the camera's plane, z² > Σzz. The terms that cancel between V's two usual
forms have been taken out, so that small splats keep their precision in f32.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from rlx.ops.splat.geometry import SMALLEST_SCALE, Camera, cross, dot, length_of
from rlx.ops.splat.scene import GaussianSplatInputs, GaussianSplatRenderParams

_NEAREST_DEPTH = 1e-4
TOLERANCE = 1e-6
# Outlines are widened to at least an eighth of a pixel, and those that are longer than their width by a factor of more
# than some two hundred give way to their disc: f32 could not tell such an ellipse from a line.
_THINNEST = 0.125**2
_NEEDLE = 1e-4


class Outlines(NamedTuple):
    """What a splat may cover: a·x² + 2b·xy + c·y² <= 1 with x, y in pixels from `center` [n, 2]; `conic` [n, 3]."""

    visible: Any
    distance: Any
    center: Any
    conic: Any


def outlines(
    xp: ModuleType,
    scene: GaussianSplatInputs,
    camera: Camera,
    rotations: Any,
    opacity: Any,
    params: GaussianSplatRenderParams,
) -> Outlines:
    """The outlines of the ellipsoids outside of which alpha is below the cut-off.

    A splat whose ellipsoid meets the camera's plane has no ellipse: it may cover the whole image.
    """
    half = (0.5 * params.width, 0.5 * params.height)
    view = scene.positions - camera.position
    mean = xp.einsum("nj,aj->na", view, camera.axes)
    x, y, z = mean[:, 0], mean[:, 1], mean[:, 2]
    shape = _squared_shape(xp, scene.scales, camera, rotations, opacity, params)
    xx, xy, xz, yy, yz, zz = (shape[:, i, j] for i in range(3) for j in range(i, 3))

    in_front = z * z > zz * (1.0 + TOLERANCE)
    room = xp.where(in_front, z * z - zz, 1.0)
    scale = camera.focal / room

    def spread(i: Any, j: Any, ij: Any, iz: Any, jz: Any) -> Any:
        return scale * scale * (z * z * ij - z * (i * jz + j * iz) + i * j * zz - (ij * zz - iz * jz))

    vxx, vxy, vyy = spread(x, x, xx, xz, xz) + _THINNEST, spread(x, y, xy, xz, yz), spread(y, y, yy, yz, yz) + _THINNEST
    center_x, center_y = scale * (x * z - xz) + half[0], scale * (y * z - yz) + half[1]
    difference = 0.5 * (vxx - vyy)
    squared_radius = 0.5 * (vxx + vyy) + xp.sqrt(difference * difference + vxy * vxy)
    radius = xp.sqrt(squared_radius) + 1.0
    on_image = (abs(center_x - half[0]) <= half[0] + radius) & (abs(center_y - half[1]) <= half[1] + radius)

    determinant = vxx * vyy - vxy * vxy
    is_ellipse = determinant > _NEEDLE * vxx * vyy
    divisor = xp.where(is_ellipse, determinant, squared_radius)
    conic = xp.stack([xp.where(is_ellipse, v, w) / divisor for v, w in ((vyy, 1.0), (-vxy, 0.0), (vxx, 1.0))], axis=-1)

    reach = xp.sqrt(xx + yy + zz)
    in_view = _meets_side(xp, x, z, half[0], camera.focal, reach) & _meets_side(xp, y, z, half[1], camera.focal, reach)
    depth = (z > xp.maximum(camera.near, _NEAREST_DEPTH)) & (z < camera.far)
    return Outlines(
        depth & (opacity >= params.alpha_cutoff) & xp.where(in_front, on_image, in_view),
        length_of(xp, view),
        xp.stack([center_x, center_y], axis=-1),
        xp.where(in_front[:, None], conic, 0.0),
    )


def _squared_shape(
    xp: ModuleType, scales: Any, camera: Camera, rotations: Any, opacity: Any, params: GaussianSplatRenderParams
) -> Any:
    """Σ = (MᵀM)⁻¹ [n, 3, 3] in camera coordinates, for the map M that makes the ellipsoid a unit sphere.

    With M's columns a, b, c the rows of its inverse are b×c, c×a and a×b over a·(b×c): quaternions need not be unit.
    """
    support = xp.sqrt(2.0 * xp.log(xp.maximum(opacity / params.alpha_cutoff, 1.0)))
    semi_axes = xp.maximum(xp.exp(scales) * params.radius_scale * support[:, None], SMALLEST_SCALE)
    columns = xp.einsum("nij,aj->nai", rotations, camera.axes) / semi_axes[:, None]
    a, b, c = columns[:, 0], columns[:, 1], columns[:, 2]
    adjoint = xp.stack([cross(xp, b, c), cross(xp, c, a), cross(xp, a, b)], axis=1)
    inverse = adjoint / dot(a, adjoint[:, 0])[:, None, None]
    return xp.einsum("nai,nbi->nab", inverse, inverse)


def _meets_side(xp: ModuleType, x: Any, z: Any, half: float, focal: Any, reach: Any) -> Any:
    """Whether a sphere meets the wedge |x|·focal <= half·z between two opposite sides of the view."""
    return abs(x) * focal - half * z <= reach * xp.sqrt(focal * focal + half * half)


def tiles_touched(xp: ModuleType, found: Outlines, params: GaussianSplatRenderParams) -> Any:
    """Which tiles' boxes meet which outlines, as bool [n, tiles]: the least value of the conic on the box is <= 1."""
    size = float(params.tile_size)
    columns, rows = -(-params.width // params.tile_size), -(-params.height // params.tile_size)
    dtype = found.center.dtype
    tile = xp.arange(rows * columns)
    left = (tile % columns).astype(dtype) * size - found.center[:, 0:1]
    top = (tile // columns).astype(dtype) * size - found.center[:, 1:2]
    a, b, c = found.conic[:, 0:1], found.conic[:, 1:2], found.conic[:, 2:3]

    def value(x: Any, y: Any) -> Any:
        return a * x * x + 2.0 * b * x * y + c * y * y

    def clamped(v: Any, low: Any) -> Any:
        return xp.minimum(xp.maximum(v, low), low + size)

    # A conic of zeros stands for the whole image; its edges have the value 0 wherever they are looked at.
    down, along = -b / xp.where(c > 0.0, c, 1.0), -b / xp.where(a > 0.0, a, 1.0)
    on_edges = [value(x, clamped(down * x, top)) for x in (left, left + size)]
    on_edges += [value(clamped(along * y, left), y) for y in (top, top + size)]
    least = xp.minimum(xp.minimum(on_edges[0], on_edges[1]), xp.minimum(on_edges[2], on_edges[3]))
    around = (left <= 0.0) & (left + size >= 0.0) & (top <= 0.0) & (top + size >= 0.0)
    return found.visible[:, None] & (around | (least <= 1.0 + TOLERANCE))
