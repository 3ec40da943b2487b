"""Cameras: where they stand, how they project, and how their lenses bend rays.

    camera = Camera.look_at((0, 0, 4), (0, 0, 0), width=640, height=480, fov_y=50)
    camera.project(points)                      # pixels [N, 2] and depths [N]
    camera.meta(background=(0, 0, 0))           # what the splatting ops take

Camera coordinates have x to the right, y down and z ahead, pixel (0, 0) is at the top left and its centre at (½, ½).
The ops see through an ideal camera: square pixels, the axis through the middle, no distortion. `ideal` gives that
camera for any other, and `undistorted` the picture that it would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError
from rlx.ops.splat.render import gaussian_splat_render_meta
from rlx.ops.splat.scene import GaussianSplatRenderParams

F64 = npt.NDArray[np.float64]

NEAR, FAR = 0.01, 1000.0
_NEWTON_STEPS = 8
_NO_DISTORTION = (0.0,) * 8


class Camera(NamedTuple):
    """A camera of width x height pixels with focal lengths fx, fy and principal point cx, cy in pixels.

    `rotation` [3, 3] turns world into camera coordinates, `position` [3] is the camera's place in the world.
    `distortion` has k1, k2, p1, p2, k3..k6: points are scaled by (1 + k1·r² + k2·r⁴ + k3·r⁶)/(1 + k4·r² + k5·r⁴ +
    k6·r⁶), and shifted by p1 and p2. For a fisheye lens θ·(1 + k1·θ² + k2·θ⁴ + k3·θ⁶ + k4·θ⁸) is the distance from the
    axis, and the others are 0.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    rotation: Any
    position: Any
    distortion: tuple[float, ...] = _NO_DISTORTION
    is_fisheye: bool = False
    name: str = ""

    @classmethod
    def look_at(
        cls,
        position: Sequence[float],
        target: Sequence[float],
        up: Sequence[float] = (0.0, 1.0, 0.0),
        width: int = 640,
        height: int = 480,
        fov_y: float = 50.0,
        name: str = "",
    ) -> Camera:
        """An ideal camera that looks at a point; `up` is what is up in its picture, fov_y is in degrees."""
        if width < 1 or height < 1 or not 0.0 < fov_y < 180.0:
            raise ShapeError(f"look_at: needs pixels and a fov_y between 0 and 180, got {width}x{height} and {fov_y}")
        here, there, upwards = (np.asarray(v, np.float64) for v in (position, target, up))
        forward = there - here
        right = np.cross(forward, upwards)
        if min(np.linalg.norm(forward), np.linalg.norm(right)) < 1e-9:
            raise ShapeError(f"look_at: {position}, {target} and up {up} leave open how the camera is held")
        forward, right = forward / np.linalg.norm(forward), right / np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        focal = 0.5 * height / math.tan(math.radians(fov_y) / 2)
        return cls(width, height, focal, focal, width / 2, height / 2, rotation, here, name=name)

    @property
    def is_ideal(self) -> bool:
        centred = abs(self.cx - self.width / 2) < 1e-6 and abs(self.cy - self.height / 2) < 1e-6
        return centred and abs(self.fx - self.fy) < 1e-6 * self.fy and not any(self.distortion) and not self.is_fisheye

    def ideal(self) -> Camera:
        """The ideal camera in its place, with the same number of pixels and the vertical focal length."""
        return self._replace(
            fx=self.fy,
            cx=self.width / 2,
            cy=self.height / 2,
            distortion=_NO_DISTORTION,
            is_fisheye=False,
        )

    def downscaled(self, factor: int) -> Camera:
        """The camera of a picture that is smaller by a whole factor; rows and columns that are left over are cut."""
        width, height = self.width // factor, self.height // factor
        if factor < 1 or width < 1 or height < 1:
            raise ShapeError(f"downscaled: {self.width}x{self.height} pixels cannot be made smaller by {factor}")
        return self.resized(width, height, 1.0 / factor, 1.0 / factor)

    def resized(self, width: int, height: int, across: float, down: float) -> Camera:
        """The camera of a picture with so many pixels, whose places are scaled so much in x and y."""
        return self._replace(
            width=width, height=height, fx=self.fx * across, fy=self.fy * down, cx=self.cx * across, cy=self.cy * down
        )

    def project(self, points: Any) -> tuple[F64, F64]:
        """Pixels [N, 2] and depths [N] of points [N, 3]; only those with a positive depth are in front."""
        local = (np.asarray(points, np.float64) - self.position) @ np.asarray(self.rotation).T
        depth = local[:, 2]
        plane = local[:, :2] / np.where(np.abs(depth) < 1e-12, 1e-12, depth)[:, None]
        return self.to_pixels(plane), depth

    def to_pixels(self, plane: F64) -> F64:
        """Pixels of points in the plane at depth 1, through the lens."""
        return distort(self, plane) * (self.fx, self.fy) + (self.cx, self.cy)

    def from_pixels(self, pixels: Any) -> F64:
        """The inverse of `to_pixels`."""
        bent = (np.asarray(pixels, np.float64) - (self.cx, self.cy)) / (self.fx, self.fy)
        return undistort(self, bent)

    def meta(
        self,
        background: Sequence[float] = (0.0, 0.0, 0.0),
        params: GaussianSplatRenderParams | None = None,
        near: float = NEAR,
        far: float = FAR,
    ) -> Any:
        """The vector [23] that describes an ideal camera to the ops; rows grow along y."""
        if not self.is_ideal:
            raise ShapeError(
                "meta: the ops need an ideal camera, this one has an own principal point, pixels that are not square, "
                "or a lens; render with camera.ideal() and compare with undistorted(camera, picture)"
            )
        rotation = np.asarray(self.rotation)
        target = self.position + rotation[2]
        fov_y = math.degrees(2 * math.atan(0.5 * self.height / self.fy))
        settings = params or GaussianSplatRenderParams(width=self.width, height=self.height)
        return gaussian_splat_render_meta(
            tuple(self.position), tuple(target), tuple(rotation[1]), fov_y, near, far, tuple(background), settings
        )


def _bent(camera: Camera, x: F64, y: F64) -> tuple[F64, F64]:
    k1, k2, p1, p2, k3, k4, k5, k6 = camera.distortion
    r2 = x * x + y * y
    if camera.is_fisheye:
        r = np.sqrt(r2)
        theta = np.arctan(r)
        t2 = theta * theta
        scale = np.where(r > 1e-12, theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4)))) / np.maximum(r, 1e-12), 1)
        return x * scale, y * scale
    radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
    bent_x = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    bent_y = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    return bent_x, bent_y


def distort(camera: Camera, plane: F64) -> F64:
    """Where the lens shows points [N, 2] of the plane at depth 1."""
    return np.stack(_bent(camera, plane[..., 0], plane[..., 1]), axis=-1)


def undistort(camera: Camera, bent: F64) -> F64:
    """The inverse of `distort` by Newton's method, with differences for the slopes."""
    if not any(camera.distortion) and not camera.is_fisheye:
        return bent
    goal_x, goal_y = bent[..., 0], bent[..., 1]
    x, y = goal_x.copy(), goal_y.copy()
    step = 1e-6
    for _ in range(_NEWTON_STEPS):
        at_x, at_y = _bent(camera, x, y)
        right_x, right_y = _bent(camera, x + step, y)
        down_x, down_y = _bent(camera, x, y + step)
        a, b, c, d = (right_x - at_x) / step, (down_x - at_x) / step, (right_y - at_y) / step, (down_y - at_y) / step
        determinant = a * d - b * c
        determinant = np.where(np.abs(determinant) < 1e-9, 1e-9, determinant)
        miss_x, miss_y = at_x - goal_x, at_y - goal_y
        x = x - (d * miss_x - b * miss_y) / determinant
        y = y - (a * miss_y - c * miss_x) / determinant
    return np.stack([x, y], axis=-1)


def undistorted(camera: Camera, picture: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The picture [height, width, c] as `camera.ideal()` would have taken it, and where it is known [height, width]."""
    pixels = np.asarray(picture, np.float32)
    if pixels.ndim != 3 or pixels.shape[:2] != (camera.height, camera.width):
        raise ShapeError(
            f"undistorted: the camera takes {camera.height}x{camera.width} pixels, got a picture {list(pixels.shape)}"
        )
    if camera.is_ideal:
        return pixels, np.ones(pixels.shape[:2], np.bool_)
    rows, columns = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    plane = camera.ideal().from_pixels(np.stack([columns, rows], axis=-1))
    source = camera.to_pixels(plane) - 0.5
    x, y = source[..., 0], source[..., 1]
    with np.errstate(invalid="ignore"):
        known = (x >= 0) & (y >= 0) & (x <= camera.width - 1) & (y <= camera.height - 1)
    x, y = (np.where(known, v, 0.0) for v in (x, y))
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, bottom = np.minimum(left + 1, camera.width - 1), np.minimum(top + 1, camera.height - 1)
    u, v = ((f - whole)[..., None].astype(np.float32) for f, whole in ((x, left), (y, top)))
    upper = pixels[top, left] * (1 - u) + pixels[top, right] * u
    lower = pixels[bottom, left] * (1 - u) + pixels[bottom, right] * u
    return np.where(known[..., None], upper * (1 - v) + lower * v, 0.0).astype(np.float32), known
