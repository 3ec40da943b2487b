"""The geometry of splatting: the camera and its rays, rotations, colours, and how a ray crosses a Gaussian.

Each formula is written once, for arrays and for tensors: `xp` is the namespace to compute in, `numpy` in `eval` and
`rlx.ops` in `decompose`. Vectors lie along the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ops.splat.scene import GaussianSplatInputs, GaussianSplatRenderParams

# The radius, in standard deviations, of the sphere that splat coordinates map a Gaussian to.
SUPPORT = 3.0
SMALLEST_SCALE = 1e-6
_SMALLEST_LENGTH = 1e-12
# |direction|² in splat coordinates below which a Gaussian is too wide for a ray to have a nearest point.
FLAT = 1e-10
GAMMA = 2.2


def dot(a: Any, b: Any) -> Any:
    """a·b along the last axis."""
    return (a * b).sum(axis=-1)


def cross(xp: ModuleType, a: Any, b: Any) -> Any:
    """a×b along the last axis."""
    a_next, a_last = xp.roll(a, -1, axis=-1), xp.roll(a, 1, axis=-1)
    b_next, b_last = xp.roll(b, -1, axis=-1), xp.roll(b, 1, axis=-1)
    return a_next * b_last - a_last * b_next


def length_of(xp: ModuleType, v: Any) -> Any:
    """|v| along the last axis, never 0."""
    # The limit is inside of the root, which has no slope at 0.
    return xp.sqrt(xp.maximum(dot(v, v), _SMALLEST_LENGTH**2))


def normalized(xp: ModuleType, v: Any) -> Any:
    return v / length_of(xp, v)[..., None]


class Camera(NamedTuple):
    """`axes` has the rows right, up and forward; `focal` is in pixels."""

    position: Any
    axes: Any
    focal: Any
    near: Any
    far: Any


def camera_of(xp: ModuleType, meta: Any, params: GaussianSplatRenderParams) -> Camera:
    """forward = target - position, right = up × forward, up = forward × right, all unit; ½·height/tan(½·fov)."""
    position, target, up = meta[0:3], meta[3:6], meta[6:9]
    forward = normalized(xp, target - position)
    right = normalized(xp, cross(xp, up, forward))
    axes = xp.stack([right, cross(xp, forward, right), forward])
    focal = (0.5 * params.height) / xp.tan(meta[9] * (math.pi / 360.0))
    return Camera(position, axes, focal, meta[10], meta[11])


def pixel_rays(xp: ModuleType, camera: Camera, params: GaussianSplatRenderParams) -> Any:
    """Unit directions [height·width, 3] through the centres of the pixels; rows go along the camera's up."""
    right, up, forward = camera.axes[0], camera.axes[1], camera.axes[2]
    dtype = camera.axes.dtype
    columns = (xp.arange(params.width).astype(dtype) + (0.5 - 0.5 * params.width)) / camera.focal
    rows = (xp.arange(params.height).astype(dtype) + (0.5 - 0.5 * params.height)) / camera.focal
    rays = rows[:, None, None] * up + (columns[:, None] * right + forward)
    return normalized(xp, rays).reshape(params.height * params.width, 3)


def background_of(meta: Any) -> Any:
    return meta[12:15]


def to_linear(xp: ModuleType, color: Any) -> Any:
    """Display values to linear light: max(c, 0)^2.2."""
    return xp.maximum(color, 0.0) ** GAMMA


def rotations_of(xp: ModuleType, quaternions: Any) -> Any:
    """Matrices R [n, 3, 3] of v -> v + 2·((v×u + w·v)×u) for q = (w, u): R = (1 - 2|u|²)·I + 2·u·uᵀ - 2w·[u]×."""
    w, x, y, z = (quaternions[:, i] for i in range(4))
    diagonal = 1.0 - 2.0 * (x * x + y * y + z * z)
    entries = [
        diagonal + 2.0 * x * x,
        2.0 * (x * y + w * z),
        2.0 * (x * z - w * y),
        2.0 * (x * y - w * z),
        diagonal + 2.0 * y * y,
        2.0 * (y * z + w * x),
        2.0 * (x * z + w * y),
        2.0 * (y * z - w * x),
        diagonal + 2.0 * z * z,
    ]
    return xp.stack(entries, axis=-1).reshape(-1, 3, 3)


def inverse_scales(xp: ModuleType, scales: Any, radius_scale: float) -> Any:
    """1/S with S = 3·radius_scale·σ, the semi-axes of the sphere of splat coordinates."""
    return 1.0 / xp.maximum(xp.exp(scales) * (SUPPORT * radius_scale), SMALLEST_SCALE)


class Crossing(NamedTuple):
    """A ray and a Gaussian: `alpha` at the nearest point `miss` = origin + t·direction, 0 if it does not count."""

    alpha: Any
    t: Any
    miss: Any


def cross_splat(xp: ModuleType, origin: Any, direction: Any, opacity: Any, cutoff: float) -> Crossing:
    """alpha = opacity·exp(-½·9·|miss|²), origin and direction in splat coordinates.

    Gaussians behind the camera and alphas below the cut-off do not count.
    """
    squared = dot(direction, direction)
    wide = squared <= FLAT
    t = -dot(origin, direction) / xp.where(wide, 1.0, squared)
    miss = origin + t[..., None] * direction
    alpha = opacity * xp.exp((-0.5 * SUPPORT * SUPPORT) * dot(miss, miss))
    counts = ~wide & (t > 0.0) & (alpha >= cutoff)
    return Crossing(xp.where(counts, alpha, 0.0), t, miss)


# The real spherical harmonics as polynomials of the unit direction: {(i, j, k): coefficient of x^i·y^j·z^k}.
_Monomial = tuple[int, int, int]
_Polynomial = dict[_Monomial, float]
_C0 = 0.5 * math.sqrt(1.0 / math.pi)
_C1 = 0.5 * math.sqrt(3.0 / math.pi)
_C2 = 0.25 * math.sqrt(5.0 / math.pi), 0.5 * math.sqrt(15.0 / math.pi)
_C3 = tuple(0.25 * math.sqrt(c / math.pi) for c in (7.0, 10.5, 17.5, 105.0))
SPHERICAL_HARMONICS: tuple[_Polynomial, ...] = (
    {(0, 0, 0): _C0},
    {(0, 1, 0): -_C1},
    {(0, 0, 1): _C1},
    {(1, 0, 0): -_C1},
    {(1, 1, 0): _C2[1]},
    {(0, 1, 1): -_C2[1]},
    {(0, 0, 2): 2 * _C2[0], (2, 0, 0): -_C2[0], (0, 2, 0): -_C2[0]},
    {(1, 0, 1): -_C2[1]},
    {(2, 0, 0): 0.5 * _C2[1], (0, 2, 0): -0.5 * _C2[1]},
    {(2, 1, 0): -3 * _C3[2], (0, 3, 0): _C3[2]},
    {(1, 1, 1): 2 * _C3[3]},
    {(0, 1, 2): -4 * _C3[1], (2, 1, 0): _C3[1], (0, 3, 0): _C3[1]},
    {(0, 0, 3): 2 * _C3[0], (2, 0, 1): -3 * _C3[0], (0, 2, 1): -3 * _C3[0]},
    {(1, 0, 2): -4 * _C3[1], (3, 0, 0): _C3[1], (1, 2, 0): _C3[1]},
    {(2, 0, 1): _C3[3], (0, 2, 1): -_C3[3]},
    {(3, 0, 0): -_C3[2], (1, 2, 0): 3 * _C3[2]},
)


def _derivative(polynomial: _Polynomial, axis: int) -> _Polynomial:
    return {_lowered(m, axis): c * m[axis] for m, c in polynomial.items() if m[axis]}


def _lowered(monomial: _Monomial, axis: int) -> _Monomial:
    """The monomial divided by the coordinate `axis`."""
    i, j, k = (e - (a == axis) for a, e in enumerate(monomial))
    return i, j, k


def _values(xp: ModuleType, polynomials: Sequence[_Polynomial], direction: Any) -> Any:
    """Polynomials at directions [n, 3], as [n, len(polynomials)]: monomials times a matrix of coefficients."""
    used = {m for p in polynomials for m in p} | {(0, 0, 0)}
    degree = max(map(sum, used))
    powers: dict[_Monomial, Any] = {(0, 0, 0): xp.ones_like(direction[:, 0])}
    for i, j, k in sorted(product(range(degree + 1), repeat=3), key=sum):
        if 0 < i + j + k <= degree:
            axis = 0 if i else 1 if j else 2
            powers[i, j, k] = powers[_lowered((i, j, k), axis)] * direction[:, axis]
    matrix = [[p.get(m, 0.0) for p in polynomials] for m in powers]
    return xp.stack(list(powers.values()), axis=-1) @ np.asarray(matrix, DType.of(direction.dtype).numpy)


def sh_basis(xp: ModuleType, direction: Any, count: int) -> Any:
    """The first `count` (at least 1) spherical harmonics at unit directions [n, 3], as [n, count]."""
    return _values(xp, SPHERICAL_HARMONICS[:count], direction)


def sh_basis_slopes(xp: ModuleType, direction: Any, count: int) -> Any:
    """The gradients of the same polynomials in x, y and z, as [n, count, 3]."""
    slopes = [_derivative(p, axis) for p in SPHERICAL_HARMONICS[:count] for axis in range(3)]
    return _values(xp, slopes, direction).reshape(-1, count, 3)


def uses_plain_colors(scene: GaussianSplatInputs) -> Any:
    """Whether colors stand in for band 0: there are no SH coefficients, or all of band 0 is zero."""
    if scene.sh_coeffs.shape[1] == 0:
        return True
    return (scene.sh_coeffs[:, 0] == 0.0).all()


def colors_towards(xp: ModuleType, scene: GaussianSplatInputs, camera: Camera) -> Any:
    """½ + Σ_k b_k(d)·sh_k with d the unit direction from splat to camera.

    Colors that stand in for band 0 are clamped to [0, 1] and take the place of ½ + b_0·sh_0.
    """
    plain = xp.minimum(xp.maximum(scene.colors, 0.0), 1.0)
    count = scene.sh_coeffs.shape[1]
    if count == 0:
        return plain
    basis = sh_basis(xp, normalized(xp, camera.position - scene.positions), count)
    bands = basis[:, :, None] * scene.sh_coeffs
    constant = xp.where(uses_plain_colors(scene), plain, 0.5 + bands[:, 0])
    return constant + bands[:, 1:].sum(axis=1)
