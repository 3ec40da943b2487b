"""Pictures with their cameras, as trainers want them: ideal cameras, straightened pictures, some of them held out.

data = load_dataset("garden", downscale=4)      # images/*.png and a COLMAP model in sparse/0
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, ShapeError
from rlx.splat.camera import Camera, undistorted
from rlx.splat.colmap import read_colmap
from rlx.splat.png import read_png

F32 = npt.NDArray[np.float32]

_PICTURE_FOLDERS = ("images", "input", ".")


class View(NamedTuple):
    """An ideal camera, the picture [height, width, 3] that it took, in 0..1, and where that is known."""

    camera: Camera
    picture: F32
    known: npt.NDArray[np.bool_]


class Dataset(NamedTuple):
    """Views to train on and views that are held out, sparse points with colours, and the size of the scene: how far
    the cameras are from their middle."""

    training: list[View]
    held_out: list[View]
    points: F32
    colors: F32

    @property
    def extent(self) -> float:
        places = np.stack([np.asarray(v.camera.position) for v in (*self.training, *self.held_out)])
        return max(1.1 * float(np.linalg.norm(places - places.mean(axis=0), axis=1).max()), 1e-3)

    @property
    def center(self) -> npt.NDArray[np.float64]:
        """The point that is nearest to where all cameras look."""
        views = [*self.training, *self.held_out]
        directions = np.stack([np.asarray(v.camera.rotation)[2] for v in views])
        places = np.stack([np.asarray(v.camera.position) for v in views])
        across = np.eye(3) - directions[:, :, None] * directions[:, None, :]
        result: npt.NDArray[np.float64] = np.linalg.lstsq(
            across.sum(axis=0), np.einsum("nij,nj->i", across, places), rcond=None
        )[0]
        return result


def load_dataset(
    folder: str | os.PathLike[str],
    downscale: int = 1,
    hold_out_every: int = 8,
    background: Sequence[float] = (0.0, 0.0, 0.0),
) -> Dataset:
    """Every picture of a COLMAP model; each `hold_out_every`-th in the order of names is held out (0: none)."""
    place = Path(folder)
    model = read_colmap(place)
    if not model.cameras:
        raise FormatError(f"{place}: the model has no pictures")
    names = sorted(model.cameras)
    pictures = _picture_folder(place, names[0])
    views = [load_view(pictures / _safe(place, name), model.cameras[name], downscale, background) for name in names]
    is_held = [hold_out_every > 0 and i % hold_out_every == 0 for i in range(len(views))]
    if all(is_held):
        raise FormatError(f"{place}: {len(views)} pictures leave none to train on; hold out fewer")
    training = [v for v, held in zip(views, is_held) if not held]
    return Dataset(training, [v for v, held in zip(views, is_held) if held], model.points, model.colors)


def _safe(folder: Path, name: str) -> Path:
    """A name from a file as a path inside of a folder."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise FormatError(f"{folder}: the picture {name!r} lies outside of the folder")
    return path


def _picture_folder(folder: Path, name: str) -> Path:
    for sub in _PICTURE_FOLDERS:
        if (folder / sub / _safe(folder, name)).is_file():
            return folder / sub
    raise FormatError(f"{folder}: picture {name!r} is in none of {', '.join(_PICTURE_FOLDERS)}")


def load_view(path: Path, camera: Camera, downscale: int, background: Sequence[float]) -> View:
    pixels = read_png(path).astype(np.float32) / 255.0
    rgb, alpha = _colors(pixels)
    if alpha is not None:
        rgb = rgb * alpha + (1.0 - alpha) * np.asarray(background, np.float32)
    fitted = _fitted(path, camera, rgb)
    straight, known = undistorted(fitted, rgb)
    ideal = fitted.ideal()
    if downscale != 1:
        ideal, straight = ideal.downscaled(downscale), downscaled(straight, downscale)
        known = downscaled(known[..., None].astype(np.float32), downscale)[..., 0] >= 1.0
        # Cut rows and columns move the middle by less than a pixel: the camera is ideal again without them.
        ideal = ideal._replace(cx=ideal.width / 2, cy=ideal.height / 2)
    return View(ideal, straight, known)


def _colors(pixels: F32) -> tuple[F32, F32 | None]:
    channels = pixels.shape[2]
    rgb = np.repeat(pixels[..., :1], 3, axis=2) if channels < 3 else pixels[..., :3]
    return rgb, pixels[..., -1:] if channels in (2, 4) else None


def _fitted(path: Path, camera: Camera, picture: F32) -> Camera:
    """The camera for a picture that was saved smaller than the model says."""
    height, width = picture.shape[:2]
    if (height, width) == (camera.height, camera.width):
        return camera
    across, down = width / camera.width, height / camera.height
    if abs(across / down - 1.0) > 0.02:
        raise FormatError(
            f"{path}: the picture has {width}x{height} pixels, its camera {camera.width}x{camera.height}, other shapes"
        )
    return camera.resized(width, height, across, down)


def downscaled(picture: F32, factor: int) -> F32:
    """The mean of blocks of factor x factor pixels; rows and columns that are left over are cut."""
    height, width = picture.shape[0] // factor, picture.shape[1] // factor
    if factor < 1 or height < 1 or width < 1:
        raise ShapeError(f"downscaled: {list(picture.shape[:2])} pixels cannot be made smaller by {factor}")
    blocks = picture[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    return np.asarray(blocks.mean(axis=(1, 3)), np.float32)
