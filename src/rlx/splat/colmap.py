"""COLMAP models: the cameras, the poses of the pictures and the sparse points that structure from motion finds.

    model = read_colmap("garden/sparse/0")      # text or binary files
    model.cameras["DSC0001.png"], model.points, model.colors

cameras, images and points3D are .txt or .bin files; binary ones are read if both are there. Every count is checked
against the size of the file before it is trusted.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import file_bytes, replace_file
from rlx.splat.camera import Camera


class _Model(NamedTuple):
    """A camera model of COLMAP: its name, and where its parameters go: fx fy cx cy, then those of the distortion."""

    name: str
    parameters: tuple[str, ...]
    is_fisheye: bool = False


# By id. "f" is both focal lengths.
_MODELS = {
    0: _Model("SIMPLE_PINHOLE", ("f", "cx", "cy")),
    1: _Model("PINHOLE", ("fx", "fy", "cx", "cy")),
    2: _Model("SIMPLE_RADIAL", ("f", "cx", "cy", "k1")),
    3: _Model("RADIAL", ("f", "cx", "cy", "k1", "k2")),
    4: _Model("OPENCV", ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2")),
    5: _Model("OPENCV_FISHEYE", ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"), True),
    6: _Model("FULL_OPENCV", ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")),
    8: _Model("SIMPLE_RADIAL_FISHEYE", ("f", "cx", "cy", "k1"), True),
    9: _Model("RADIAL_FISHEYE", ("f", "cx", "cy", "k1", "k2"), True),
}
_BY_NAME = {m.name: m for m in _MODELS.values()}
_DISTORTION = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
_LARGEST_SIDE = 1 << 16
_LONGEST_NAME = 4096
# Poses beyond this are damaged; squares of them still are numbers.
_FARTHEST = 1e100


class ColmapModel(NamedTuple):
    """Cameras by the name of their picture, and sparse points [N, 3] with colors [N, 3] in 0..1."""

    cameras: dict[str, Camera]
    points: npt.NDArray[np.float32]
    colors: npt.NDArray[np.float32]


class _Lens(NamedTuple):
    width: int
    height: int
    values: dict[str, float]
    is_fisheye: bool


class _Pose(NamedTuple):
    quaternion: Sequence[float]
    translation: Sequence[float]
    camera: int
    name: str


def read_colmap(folder: str | os.PathLike[str]) -> ColmapModel:
    """The model in a folder; folders of a whole project are searched in the usual places, sparse/0 and sparse."""
    place = _model_folder(Path(folder))
    if (place / "cameras.bin").is_file() and (place / "images.bin").is_file():
        lenses, poses = _binary_cameras(place / "cameras.bin"), _binary_images(place / "images.bin")
    else:
        lenses, poses = _text_cameras(place / "cameras.txt"), _text_images(place / "images.txt")
    cameras = {}
    for pose in poses:
        if pose.camera not in lenses:
            raise FormatError(f"{place}: picture {pose.name!r} has camera {pose.camera}, which is not in the model")
        if pose.name in cameras:
            raise FormatError(f"{place}: picture {pose.name!r} is in the model twice")
        cameras[pose.name] = _camera(place, lenses[pose.camera], pose)
    if (place / "points3D.bin").is_file():
        points, colors = _binary_points(place / "points3D.bin")
    elif (place / "points3D.txt").is_file():
        points, colors = _text_points(place / "points3D.txt")
    else:
        points, colors = np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    if not np.isfinite(points).all():
        raise FormatError(f"{place}: a point is not finite")
    return ColmapModel(cameras, points, colors)


def _model_folder(folder: Path) -> Path:
    tried = [folder, folder / "sparse" / "0", folder / "sparse"]
    for place in tried:
        if any((place / f"cameras.{kind}").is_file() for kind in ("bin", "txt")):
            return place
    raise FormatError(
        f"{folder}: no COLMAP model: looked for cameras.bin and cameras.txt in {', '.join(map(str, tried))}"
    )


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(f"{path}: {what}")


def _camera(path: Path, lens: _Lens, pose: _Pose) -> Camera:
    q = np.asarray(pose.quaternion, np.float64)
    length = math.hypot(*q)
    t = np.asarray(pose.translation, np.float64)
    if not (math.isfinite(length) and length > 1e-8 and (np.abs(t) < _FARTHEST).all()):
        _fail(path, f"picture {pose.name!r}: its rotation or translation is not one: {q.tolist()}, {t.tolist()}")
    rotation = rotation_of(q / length)
    v = lens.values
    fx, fy = (v.get(name, v.get("f", 0.0)) for name in ("fx", "fy"))
    return Camera(
        lens.width,
        lens.height,
        fx,
        fy,
        v["cx"],
        v["cy"],
        rotation,
        -rotation.T @ t,
        tuple(v.get(name, 0.0) for name in _DISTORTION),
        lens.is_fisheye,
        pose.name,
    )


def rotation_of(q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The matrix of a unit quaternion (w, x, y, z)."""
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _lens(path: Path, what: str, model: _Model, width: int, height: int, numbers: Sequence[float]) -> _Lens:
    if not (0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE):
        _fail(path, f"{what}: a picture of {width}x{height} pixels is none, or too large")
    if len(numbers) != len(model.parameters):
        _fail(path, f"{what}: {model.name} has {len(model.parameters)} parameters, got {len(numbers)}")
    values = dict(zip(model.parameters, numbers))
    focal = [v for name, v in values.items() if name in ("f", "fx", "fy")]
    if not all(map(math.isfinite, numbers)) or min(focal) <= 0:
        _fail(path, f"{what}: the parameters {list(numbers)} are not those of a camera")
    return _Lens(width, height, values, model.is_fisheye)


def _unknown(path: Path, what: str, model: object) -> NoReturn:
    known = " ".join(_BY_NAME)
    _fail(
        path,
        f"{what}: the camera model {model} is not read, only {known}; COLMAP's image_undistorter converts it",
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments; empty ones are kept, as a picture may have no points."""
    if not path.is_file():
        _fail(path, "the file is missing")
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("#"):
                yield number, line.strip()


def _numbers(path: Path, line: int, words: Sequence[str]) -> list[float]:
    try:
        return [float(w) for w in words]
    except ValueError as error:
        _fail(path, f"line {line}: {error}")


def _whole(path: Path, line: int, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        _fail(path, f"line {line}: a whole number is wanted, got {word[:40]!r}")
    return int(word)


def _text_cameras(path: Path) -> dict[int, _Lens]:
    lenses = {}
    for number, line in _lines(path):
        words = line.split()
        if not words:
            continue
        if len(words) < 4:
            _fail(path, f"line {number}: id, model, width, height and parameters are wanted, got {line[:80]!r}")
        if words[1] not in _BY_NAME:
            _unknown(path, f"line {number}", words[1][:40])
        width, height = _whole(path, number, words[2]), _whole(path, number, words[3])
        parameters = _numbers(path, number, words[4:])
        lens = _lens(path, f"line {number}", _BY_NAME[words[1]], width, height, parameters)
        lenses[_whole(path, number, words[0])] = lens
    return lenses


def _text_images(path: Path) -> list[_Pose]:
    """Two lines per picture: the pose, and its points, which are not needed."""
    poses = []
    lines = _lines(path)
    for number, line in lines:
        if not line:
            continue
        words = line.split(maxsplit=9)
        if len(words) != 10:
            _fail(path, f"line {number}: id, qw qx qy qz, tx ty tz, camera and name are wanted, got {line[:80]!r}")
        values = _numbers(path, number, words[1:8])
        poses.append(_Pose(values[:4], values[4:], _whole(path, number, words[8]), words[9]))
        next(lines, None)
    return poses


def _text_points(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    rows = []
    for number, line in _lines(path):
        if line:
            words = line.split(maxsplit=7)
            if len(words) < 7:
                _fail(path, f"line {number}: id, x y z and r g b are wanted, got {line[:80]!r}")
            rows.append(_numbers(path, number, words[1:7]))
    table = np.asarray(rows, np.float64).reshape(-1, 6)
    with np.errstate(over="ignore"):
        return table[:, :3].astype(np.float32), np.clip(table[:, 3:] / 255.0, 0, 1).astype(np.float32)


class _Bytes:
    """A binary file read front to back, checked against its end before every step."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.at = path, bytes(file_bytes(path)), 0

    def take(self, layout: str) -> tuple[float, ...]:
        size = struct.calcsize(layout)
        if size > len(self.content) - self.at:
            _fail(self.path, f"byte {self.at}: {size} bytes are wanted, the file ends; it is cut off or damaged")
        values = struct.unpack_from(layout, self.content, self.at)
        self.at += size
        return values

    def count(self, least: int) -> int:
        """A number of items of at least `least` bytes."""
        count = int(self.take("<Q")[0])
        self.require(count, least)
        return count

    def require(self, count: int, least: int) -> None:
        left = len(self.content) - self.at
        if count > left // least:
            _fail(
                self.path,
                f"byte {self.at}: {count} items are said to follow, {left} bytes hold at most {left // least}",
            )

    def name(self) -> str:
        end = self.content.find(b"\0", self.at, self.at + _LONGEST_NAME)
        if end < 0:
            _fail(self.path, f"byte {self.at}: a name has no end")
        text = self.content[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return text


def _binary_cameras(path: Path) -> dict[int, _Lens]:
    file = _Bytes(path)
    lenses = {}
    for _ in range(file.count(24)):
        what = f"byte {file.at}"
        identity, model, width, height = (int(v) for v in file.take("<iiQQ"))
        if model not in _MODELS:
            _unknown(path, what, model)
        parameters = file.take(f"<{len(_MODELS[model].parameters)}d")
        lenses[identity] = _lens(path, what, _MODELS[model], width, height, parameters)
    return lenses


def _binary_images(path: Path) -> list[_Pose]:
    file = _Bytes(path)
    poses = []
    for _ in range(file.count(73)):
        values = file.take("<i7di")
        name = file.name()
        points = file.count(24)
        file.at += 24 * points
        poses.append(_Pose(values[1:5], values[5:8], int(values[8]), name))
    return poses


def _binary_points(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    file = _Bytes(path)
    count = file.count(51)
    points, colors = np.empty((count, 3), np.float32), np.empty((count, 3), np.float32)
    with np.errstate(over="ignore"):
        for i in range(count):
            _, x, y, z, r, g, b, _ = file.take("<Q3d3Bd")
            points[i], colors[i] = (x, y, z), (r / 255.0, g / 255.0, b / 255.0)
            track = file.count(8)
            file.at += 8 * track
    return points, colors


def write_colmap_text(folder: str | os.PathLike[str], model: ColmapModel) -> None:
    """A model as text files; cameras that have no lens become PINHOLE, others FULL_OPENCV."""
    place = Path(folder)
    cameras, images = [], []
    for number, (name, camera) in enumerate(model.cameras.items(), 1):
        if camera.is_fisheye:
            raise FormatError(f"write_colmap_text: camera {name!r} is a fisheye, which is not written")
        has_lens = any(camera.distortion)
        numbers = (camera.fx, camera.fy, camera.cx, camera.cy, *(camera.distortion if has_lens else ()))
        kind = "FULL_OPENCV" if has_lens else "PINHOLE"
        cameras.append(f"{number} {kind} {camera.width} {camera.height} {' '.join(map(repr, map(float, numbers)))}")
        rotation = np.asarray(camera.rotation)
        pose = (*quaternion_of(rotation), *(-rotation @ camera.position))
        images.append(f"{number} {' '.join(map(repr, map(float, pose)))} {number} {name}\n")
    points = [
        f"{i} {' '.join(repr(float(v)) for v in p)} {' '.join(str(round(float(v) * 255)) for v in c)} 0"
        for i, (p, c) in enumerate(zip(model.points, model.colors), 1)
    ]
    for name, lines in (("cameras", cameras), ("images", images), ("points3D", points)):
        with replace_file(place / f"{name}.txt") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())


def quaternion_of(rotation: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The quaternion (w, x, y, z), w >= 0, of a rotation: the eigenvector of its largest eigenvalue 1, by its sums."""
    m = rotation
    squares = 0.25 * np.maximum(
        0.0,
        [
            1 + m[0, 0] + m[1, 1] + m[2, 2],
            1 + m[0, 0] - m[1, 1] - m[2, 2],
            1 - m[0, 0] + m[1, 1] - m[2, 2],
            1 - m[0, 0] - m[1, 1] + m[2, 2],
        ],
    )
    w, x, y, z = np.sqrt(squares)
    products = {
        0: (w, (m[2, 1] - m[1, 2]) / 4, (m[0, 2] - m[2, 0]) / 4, (m[1, 0] - m[0, 1]) / 4),
        1: ((m[2, 1] - m[1, 2]) / 4, x, (m[0, 1] + m[1, 0]) / 4, (m[0, 2] + m[2, 0]) / 4),
        2: ((m[0, 2] - m[2, 0]) / 4, (m[0, 1] + m[1, 0]) / 4, y, (m[1, 2] + m[2, 1]) / 4),
        3: ((m[1, 0] - m[0, 1]) / 4, (m[0, 2] + m[2, 0]) / 4, (m[1, 2] + m[2, 1]) / 4, z),
    }
    best = int(np.argmax(squares))
    row = np.array(products[best], np.float64)
    row[[i for i in range(4) if i != best]] /= row[best]
    return row if row[0] >= 0 else -row
