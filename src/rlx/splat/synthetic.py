"""A scene that is known exactly: a ring, a ball and a floor of splats, and a folder of pictures of it.

truth = synthetic_scene()
write_synthetic("toy", views=24)            # images/*.png and sparse/0/*.txt, as COLMAP leaves them
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from rlx.splat.camera import Camera
from rlx.splat.colmap import ColmapModel, write_colmap_text
from rlx.splat.png import write_png
from rlx.splat.rendering import render, to_bytes
from rlx.splat.scene import COEFFICIENTS, F32, SH_C0, GaussianScene, logit

# How much the sparse points of `write_synthetic` are off, in units of the scene.
POINT_NOISE = 0.02


def synthetic_scene(splats: int = 2000, seed: int = 0, degree: int = 1) -> GaussianScene:
    """Splats that lie flat on surfaces: half on a ring, a quarter on a ball in it, the rest on a chequered floor."""
    rng = np.random.default_rng(seed)
    counts = splats // 2, splats // 4, splats - splats // 2 - splats // 4
    shapes = [_ring(counts[0], rng), _ball(counts[1], rng), _floor(counts[2], rng)]
    positions, normals, colors = (np.concatenate(column) for column in zip(*shapes))
    sh = np.zeros((splats, COEFFICIENTS[degree], 3), np.float32)
    sh[:, 0] = (colors - 0.5) / SH_C0
    if degree:
        # A soft light from above, seen from everywhere, and a little shine.
        sh[:, 1:4] = rng.normal(0.0, 0.06, (splats, 3, 1)) * (0.4 + colors[:, None, :])
    width = 0.9 / math.sqrt(splats / 12.0)
    scales = np.log(width * rng.uniform([0.7, 0.7, 0.12], [1.2, 1.2, 0.25], (splats, 3)))
    return GaussianScene(
        positions=positions,
        scales=scales,
        rotations=_turned_to(normals),
        opacities=logit(rng.uniform(0.75, 0.98, splats)),
        sh=sh,
    ).checked()


def _ring(count: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    around, tube = rng.uniform(0, 2 * math.pi, (2, count))
    out = np.stack([np.cos(around), np.zeros(count), np.sin(around)], axis=-1)
    normal = out * np.cos(tube)[:, None] + np.array([0.0, 1.0, 0.0]) * np.sin(tube)[:, None]
    hue = around[:, None] + np.array([0.0, 2.1, 4.2])
    stripes = 0.85 + 0.15 * np.sign(np.sin(8 * tube))[:, None]
    return out + 0.32 * normal, normal, (0.5 + 0.45 * np.cos(hue)) * stripes


def _ball(count: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    normal = rng.normal(size=(count, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    bands = 0.5 + 0.5 * np.sign(np.sin(9 * normal[:, :1]) * np.sin(9 * normal[:, 1:2]))
    color = bands * np.array([0.95, 0.85, 0.3]) + (1 - bands) * np.array([0.15, 0.2, 0.5])
    return np.array([0.0, 0.15, 0.0]) + 0.45 * normal, normal, color


def _floor(count: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    place = rng.uniform(-1.6, 1.6, (count, 2))
    squares = (np.floor(place[:, :1] / 0.5) + np.floor(place[:, 1:] / 0.5)) % 2
    color = 0.25 + 0.45 * squares * np.array([1.0, 0.95, 0.9])
    positions = np.stack([place[:, 0], np.full(count, -0.45), place[:, 1]], axis=-1)
    return positions, np.tile([0.0, 1.0, 0.0], (count, 1)), color


def _turned_to(normals: Any) -> F32:
    """Quaternions that turn z onto the normals."""
    n = np.asarray(normals, np.float64)
    q = np.stack([1.0 + n[:, 2], -n[:, 1], n[:, 0], np.zeros(len(n))], axis=-1)
    q[q[:, 0] < 1e-6] = (0.0, 1.0, 0.0, 0.0)
    return np.asarray(q / np.linalg.norm(q, axis=1, keepdims=True), np.float32)


def synthetic_cameras(views: int = 24, width: int = 128, height: int = 96, seed: int = 0) -> list[Camera]:
    """Cameras on three circles around the scene, a little off, all looking at its middle."""
    rng = np.random.default_rng(seed)
    cameras = []
    for i in range(views):
        angle = 2 * math.pi * i * 0.381966 + rng.uniform(-0.05, 0.05)
        rise = (0.25, 0.55, 0.9)[i % 3] + rng.uniform(-0.05, 0.05)
        far = 3.4 + rng.uniform(-0.2, 0.2)
        place = far * math.cos(rise) * math.sin(angle), far * math.sin(rise), far * math.cos(rise) * math.cos(angle)
        cameras.append(Camera.look_at(place, (0.0, -0.05, 0.0), (0, 1, 0), width, height, 45.0, f"view_{i:03d}.png"))
    return cameras


def write_synthetic(
    folder: str | os.PathLike[str],
    views: int = 24,
    width: int = 128,
    height: int = 96,
    splats: int = 2000,
    points: int = 600,
    seed: int = 0,
) -> GaussianScene:
    """Write pictures of `synthetic_scene` and what structure from motion would know of it; the scene itself is given
    back. The points are some of the splats' places, a little off, in the colours of their splats."""
    place = Path(folder)
    truth = synthetic_scene(splats, seed)
    cameras = {c.name: c for c in synthetic_cameras(views, width, height, seed)}
    for name, camera in cameras.items():
        write_png(place / "images" / name, to_bytes(render(truth, camera)))
    rng = np.random.default_rng(seed + 1)
    chosen = rng.choice(truth.splats, min(points, truth.splats), replace=False)
    places = truth.positions[chosen] + rng.normal(0.0, POINT_NOISE, (len(chosen), 3)).astype(np.float32)
    colors = np.clip(truth.sh[chosen, 0] * SH_C0 + 0.5, 0.0, 1.0)
    write_colmap_text(place / "sparse" / "0", ColmapModel(cameras, places, colors))
    return truth
