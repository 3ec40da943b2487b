"""A picture of a scene that is nothing but a function: rays walk through a signed distance field.

    python examples/ray_marching.py --out scene.png

`distance` says how far a point is from the nearest surface, so a ray may walk that far without meeting one. All rays
walk together in one compiled loop; the normals that the light needs are the gradient of `distance`, by `rlx.grad`, at
every point at once, by `rlx.vmap`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from pictures import write_png

import rlx
import rlx.numpy as rnp

LIGHT = np.array([0.5, 0.8, -0.35], "f4") / np.float32(np.linalg.norm([0.5, 0.8, -0.35]))
EYE = np.array([0.0, 1.3, -4.2], "f4")
FAR = 14.0


def length(v: Any) -> Any:
    """The length of vectors, with a gradient also where it is 0."""
    return rnp.sqrt(rnp.sum(v * v, -1) + 1e-12)


def smooth_min(a: Any, b: Any, width: float) -> Any:
    """The smaller one, rounded off where they are equal: surfaces melt into each other."""
    part = rnp.clip(0.5 + 0.5 * (b - a) / width, 0.0, 1.0)
    return b + (a - b) * part - width * part * (1.0 - part)


def distance(p: Any) -> Any:
    """From points [.., 3] to the scene: balls that melt together, a ring, and a floor."""
    balls = [(-0.9, 0.6, 0.1, 0.6), (-0.1, 0.9, 0.3, 0.45), (-0.5, 1.35, -0.1, 0.3)]
    blob = None
    for x, y, z, radius in balls:
        one = length(p - np.array([x, y, z], "f4")) - radius
        blob = one if blob is None else smooth_min(blob, one, 0.25)
    q = p - np.array([1.0, 0.62, -0.2], "f4")
    # The ring is turned by 60 degrees, so that one sees through it.
    y, z = 0.5 * q[..., 1] - 0.87 * q[..., 2], 0.87 * q[..., 1] + 0.5 * q[..., 2]
    around = rnp.sqrt(q[..., 0] ** 2 + z * z + 1e-12) - 0.5
    ring = rnp.sqrt(around * around + y * y + 1e-12) - 0.16
    return rnp.minimum(smooth_min(blob, ring, 0.1), p[..., 1])


def walk(origin: Any, direction: Any, steps: int) -> tuple[Any, Any]:
    """How far rays get, and how narrowly they passed surfaces on the way."""

    def step(_: Any, state: Any) -> Any:
        far, narrow = state
        free = distance(origin + far[..., None] * direction)
        narrow = rnp.minimum(narrow, 12.0 * free / far)
        return rnp.minimum(far + rnp.maximum(free, 0.0), FAR), narrow

    start = rnp.full(direction.shape[:-1], 0.02, "float32")
    return rlx.fori_loop(0, steps, step, (start, rnp.ones_like(start)))


def normals(p: Any) -> Any:
    """Which way surfaces look at points [n, 3]: where the distance grows fastest."""
    slope = rlx.vmap(rlx.grad(distance))(p)
    return slope / length(slope)[..., None]


@rlx.jit
def render(direction: Any) -> Any:
    """Colours [n, 3] that rays from the eye see."""
    far, _ = walk(rnp.asarray(EYE), direction, 90)
    hit = EYE + far[..., None] * direction
    normal = normals(hit)
    _, open_sky = walk(hit + 0.01 * normal, rnp.broadcast_to(LIGHT, hit.shape), 50)
    shadow = rnp.clip(open_sky, 0.0, 1.0)
    sun = rnp.maximum(rnp.sum(normal * LIGHT, -1), 0.0) * shadow
    sky = 0.5 + 0.5 * normal[..., 1]
    crowd = rnp.clip(distance(hit + 0.2 * normal) / 0.2, 0.0, 1.0)
    gleam = rnp.maximum(
        rnp.sum((direction - 2.0 * rnp.sum(direction * normal, -1)[..., None] * normal) * LIGHT, -1), 0.0
    )
    floor = hit[..., 1] < 0.01
    squares = (rnp.floor(hit[..., 0] * 1.5) + rnp.floor(hit[..., 2] * 1.5)) % 2.0
    stone = (0.35 + 0.25 * squares)[..., None] * np.array([1.0, 0.97, 0.9], "f4")
    clay = 0.5 + 0.5 * rnp.sin(np.array([0.6, 1.3, 2.2], "f4") + 1.7 * hit[..., :1])
    colour = rnp.where(floor[..., None], stone, clay * 0.8)
    lit = colour * (1.1 * sun + 0.45 * sky * crowd)[..., None] + 0.5 * (gleam**40 * shadow)[..., None]
    haze = rnp.clip(far / FAR, 0.0, 1.0)[..., None] ** 3
    blue = np.array([0.55, 0.7, 0.9], "f4") * (1.0 - 0.5 * direction[..., 1:2])
    return rnp.clip(lit * (1.0 - haze) + blue * haze, 0.0, 1.0) ** 0.4545


def rays(width: int, height: int) -> Any:
    """Directions [height·width, 3] through the pixels of a screen, looking slightly down."""
    x, y = np.meshgrid((np.arange(width) + 0.5 - width / 2) / height, (height / 2 - np.arange(height) - 0.5) / height)
    d = np.stack([x, y - 0.17, np.full_like(x, 1.15)], -1).reshape(-1, 3)
    return (d / np.linalg.norm(d, axis=-1, keepdims=True)).astype("f4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scene.png"))
    parser.add_argument("--width", type=int, default=640)
    args = parser.parse_args()
    height = args.width * 9 // 16
    image = np.asarray(render(rays(args.width, height))).reshape(height, args.width, 3)
    write_png(args.out, (255 * image + 0.5).astype(np.uint8))
    print(f"{args.width} x {height} rays: {args.out}")


if __name__ == "__main__":
    main()
