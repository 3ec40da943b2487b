"""Splatting by the book, in f64 and without tiles or lists: every ray against every Gaussian, nearest centre first.

Shapes come from SciPy's rotations and from covariances: along a ray the Mahalanobis distance to the centre is least
where its derivative vanishes, and that least distance gives alpha.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation
from scipy.special import sph_harm_y

from rlx.ops.splat.render import GaussianSplatInputs


def make_scene(count, coefficients, seed=0, **changes):
    """A random scene in f64, seen from z = 4; `changes` replace whole operands."""
    rng = np.random.default_rng(seed)
    scene = GaussianSplatInputs(
        positions=rng.uniform(-1.2, 1.2, 3 * count),
        scales=rng.uniform(-2.5, -0.5, 3 * count),
        rotations=Rotation.random(count, rng=rng).as_quat(scalar_first=True).reshape(-1) if count else np.zeros(0),
        opacities=rng.uniform(0.1, 0.98, count),
        colors=rng.uniform(0.0, 1.0, 3 * count),
        sh_coeffs=rng.uniform(-0.4, 0.4, 3 * coefficients * count),
        meta=camera_meta(),
    )
    return scene._replace(**{k: np.asarray(v, float) for k, v in changes.items()})


def camera_meta(pos=(0.3, -0.2, 4.0), target=(0.0, 0.1, 0.0), fov=50.0, bg=(0.3, 0.1, 0.6)):
    up, near, far = (0.0, 1.0, 0.0), 0.1, 50.0
    return np.array([*pos, *target, *up, fov, near, far, *bg, *[0.0] * 8])


def pixel_directions(meta, width, height):
    """Unit rays [height·width, 3] through pixel centres."""
    forward = meta[3:6] - meta[0:3]
    forward = forward / np.linalg.norm(forward)
    right = np.cross(meta[6:9], forward)
    right = right / np.linalg.norm(right)
    up = np.cross(forward, right)
    focal = 0.5 * height / np.tan(np.radians(meta[9]) / 2)
    rays = [
        (x + 0.5 - width / 2) / focal * right + (y + 0.5 - height / 2) / focal * up + forward
        for y in range(height)
        for x in range(width)
    ]
    return np.array(rays) / np.linalg.norm(rays, axis=-1, keepdims=True)


def real_spherical_harmonics(direction):
    """The 16 real harmonics of degree <= 3 at a unit vector, from SciPy's complex ones."""
    x, y, z = direction
    theta, phi = np.arccos(z), np.arctan2(y, x)
    values = []
    for degree in range(4):
        for order in range(-degree, degree + 1):
            value = sph_harm_y(degree, abs(order), theta, phi)
            values.append(value.real if order == 0 else np.sqrt(2.0) * (value.imag if order < 0 else value.real))
    return np.array(values)


def splat_colors(scene):
    count = len(scene.opacities)
    sh = scene.sh_coeffs.reshape(count, -1, 3) if count else np.zeros((0, 0, 3))
    colors = np.clip(scene.colors.reshape(count, 3), 0, 1)
    plain = sh.shape[1] == 0 or not sh[:, 0].any()
    result = np.zeros((count, 3))
    for i in range(count):
        offset = scene.meta[:3] - scene.positions[3 * i : 3 * i + 3]
        basis = real_spherical_harmonics(offset / np.linalg.norm(offset))[: sh.shape[1]]
        terms = basis[:, None] * sh[i]
        result[i] = (colors[i] if plain else 0.5 + terms[0]) + terms[1:].sum(axis=0)
    return result


def alphas(scene, rays, radius_scale):
    """opacity·exp(-½·distance²) for every ray and splat, 0 for splats that the ray leaves behind; [rays, N]."""
    count = len(scene.opacities)
    result = np.zeros((len(rays), count))
    for i in range(count):
        turn = Rotation.from_quat(scene.rotations[4 * i : 4 * i + 4], scalar_first=True).as_matrix()
        deviations = radius_scale * np.exp(scene.scales[3 * i : 3 * i + 3])
        precision = np.linalg.inv(turn @ np.diag(deviations**2) @ turn.T)
        offset = scene.meta[:3] - scene.positions[3 * i : 3 * i + 3]
        t = -(rays @ precision @ offset) / ((rays @ precision) * rays).sum(axis=-1)
        nearest = offset + t[:, None] * rays
        density = np.exp(-0.5 * ((nearest @ precision) * nearest).sum(axis=-1))
        result[:, i] = np.where(t > 0, np.clip(scene.opacities[i], 0, 1) * density, 0.0)
    return result


def counted_hits(alpha, scene, params, max_steps=0):
    """Which (ray, splat) pairs are blended, and the order of splats from near to far."""
    distances = np.linalg.norm(scene.positions.reshape(-1, 3) - scene.meta[:3], axis=-1)
    order = np.argsort(distances, kind="stable")
    counted = np.zeros(alpha.shape, bool)
    for r in range(len(alpha)):
        left, steps = 1.0, 0
        for i in order:
            if left < params.transmittance_threshold or (max_steps and steps == max_steps):
                break
            if alpha[r, i] >= params.alpha_cutoff:
                counted[r, i] = True
                left, steps = left * (1 - alpha[r, i]), steps + 1
    return counted, order


def linear_image(scene, params, background, hits=None, max_steps=0):
    """C + T·background and 1 - T for every pixel, [pixels, 4]; `hits` fixes what is blended."""
    alpha = alphas(scene, pixel_directions(scene.meta, params.width, params.height), params.radius_scale)
    counted, order = hits or counted_hits(alpha, scene, params, max_steps)
    colors = splat_colors(scene)
    image, left = np.zeros((len(alpha), 3)), np.ones(len(alpha))
    for i in order:
        a = np.where(counted[:, i], alpha[:, i], 0.0)
        image += (left * a)[:, None] * colors[i]
        left = left * (1 - a)
    return np.concatenate([image + left[:, None] * background, (1 - left)[:, None]], axis=-1)


def display_image(scene, params):
    """The image as it is shown; alpha is that of pixels whose tile lists something."""
    image = linear_image(scene, params, scene.meta[12:15])
    image[:, :3] = np.maximum(image[:, :3], 0.0) ** 2.2
    return image
