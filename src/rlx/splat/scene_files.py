"""Scenes in PLY files: the property names of 3D Gaussian splatting, and the compressed form that viewers load.

    scene = read_scene("garden.ply")
    write_scene("garden.ply", scene)
    write_scene("small.ply", scene, compressed=True)        # about a quarter of the size

The plain form has x, y, z, f_dc_0..2, f_rest_*, opacity (a logit), scale_0..2 (logarithms) and rot_0..3 (w, x, y, z);
f_rest lists all red coefficients above band 0, then green, then blue. The compressed form has chunks of 256 splats:
each number is a whole number of 8 to 11 bits between the least and the largest value of its chunk, quaternions leave
out their largest component, and coefficients above band 0 are bytes between -4 and 4.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.splat.ply import Column, read_ply, write_ply
from rlx.splat.scene import COEFFICIENTS, F32, SH_C0, GaussianScene, logit, sigmoid

U32 = npt.NDArray[np.uint32]

CHUNK = 256
_POSITION_BITS = (11, 10, 11)
_COLOR_BITS = (8, 8, 8, 8)
_SH_RANGE = 8.0
_PLACES = ("x", "y", "z")
_SCALES = ("scale_x", "scale_y", "scale_z")
_COLORS = ("r", "g", "b")
_PLAIN = (*_PLACES, *(f"f_dc_{i}" for i in range(3)), "opacity", *(f"scale_{i}" for i in range(3)))
_PLAIN_ALL = (*_PLAIN, *(f"rot_{i}" for i in range(4)))
_PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")


@np.errstate(all="ignore")  # numbers that become too large are found at the end
def read_scene(path: str | os.PathLike[str]) -> GaussianScene:
    """The scene of a PLY file, plain or compressed."""
    place = Path(path)
    elements = read_ply(place)
    vertex = elements.get("vertex")
    if vertex is None:
        raise FormatError(f"{place}: a scene needs an element 'vertex', found {sorted(elements) or 'none'}")
    if all(name in vertex for name in _PACKED):
        scene = _unpacked(place, elements["vertex"], elements.get("chunk"), elements.get("sh"))
    elif all(name in vertex for name in _PLAIN_ALL):
        scene = _plain(place, vertex)
    else:
        missing = [name for name in _PLAIN_ALL if name not in vertex]
        raise FormatError(
            f"{place}: these are no splats: the properties {' '.join(missing)} are missing; "
            "a point cloud becomes a scene with GaussianScene.from_points"
        )
    for name, part in zip(scene._fields, scene):
        if not np.isfinite(part).all():
            raise FormatError(f"{place}: {name} of splat {_first_bad(part)} is not a finite number")
    return scene


def _first_bad(part: F32) -> int:
    return int(np.argwhere(~np.isfinite(part))[0][0])


def _stacked(columns: dict[str, Column], names: tuple[str, ...]) -> F32:
    with np.errstate(all="ignore"):
        return np.stack([columns[name].astype(np.float32) for name in names], axis=-1)


def _plain(path: Path, vertex: dict[str, Column]) -> GaussianScene:
    n = len(vertex["x"])
    return GaussianScene(
        positions=_stacked(vertex, _PLACES),
        scales=_stacked(vertex, ("scale_0", "scale_1", "scale_2")),
        rotations=_stacked(vertex, ("rot_0", "rot_1", "rot_2", "rot_3")),
        opacities=vertex["opacity"].astype(np.float32),
        sh=np.concatenate(
            [_stacked(vertex, ("f_dc_0", "f_dc_1", "f_dc_2")).reshape(n, 1, 3), _rest(path, vertex, n)], axis=1
        ),
    )


def _rest(path: Path, columns: dict[str, Column], n: int) -> F32:
    """The coefficients above band 0 as [N, K - 1, 3]."""
    count = sum(name.startswith("f_rest_") for name in columns)
    names = tuple(f"f_rest_{i}" for i in range(count))
    if count not in [3 * (k - 1) for k in COEFFICIENTS] or any(name not in columns for name in names):
        raise FormatError(f"{path}: f_rest_0, 1, .. must be 0, 9, 24 or 45 properties without a gap, found {count}")
    if count == 0:
        return np.zeros((n, 0, 3), np.float32)
    return _stacked(columns, names).reshape(n, 3, count // 3).transpose(0, 2, 1)


def write_scene(path: str | os.PathLike[str], scene: GaussianScene, compressed: bool = False) -> None:
    """A scene to a PLY file, plain (exact) or compressed."""
    whole = scene.checked()
    if compressed:
        write_ply(Path(path), _packed(whole))
        return
    rest = whole.sh[:, 1:].transpose(0, 2, 1).reshape(whole.splats, -1)
    columns: dict[str, Column] = dict(zip(_PLACES, whole.positions.T))
    # Readers expect the normals that the field's first program wrote, and ignore them.
    columns |= {name: np.zeros(whole.splats, np.float32) for name in ("nx", "ny", "nz")}
    columns |= {f"f_dc_{i}": whole.sh[:, 0, i] for i in range(3)}
    columns |= {f"f_rest_{i}": rest[:, i] for i in range(rest.shape[1])}
    columns["opacity"] = whole.opacities
    columns |= {f"scale_{i}": whole.scales[:, i] for i in range(3)}
    columns |= {f"rot_{i}": whole.rotations[:, i] for i in range(4)}
    write_ply(Path(path), {"vertex": columns})


def _unpacked(
    path: Path, vertex: dict[str, Column], chunk: dict[str, Column] | None, sh: dict[str, Column] | None
) -> GaussianScene:
    names = [f"{side}_{what}" for what in (*_PLACES, *_SCALES) for side in ("min", "max")]
    missing = [name for name in names if chunk is None or name not in chunk]
    if chunk is None or missing:
        raise FormatError(f"{path}: a compressed scene needs an element 'chunk' with {' '.join(missing)}")
    n = len(vertex["packed_position"])
    chunks = len(chunk["min_x"])
    if chunks * CHUNK < n:
        raise FormatError(f"{path}: {n} splats need {-(-n // CHUNK)} chunks of {CHUNK}, the file has {chunks}")
    which = np.arange(n) // CHUNK
    packed = [vertex[name].astype(np.uint32) for name in _PACKED]
    rgba = _split(packed[3], _COLOR_BITS)
    if all(f"{side}_{what}" in chunk for what in _COLORS for side in ("min", "max")):
        rgb = _between(chunk, _COLORS, which, rgba[:, :3])
    else:
        rgb = rgba[:, :3]
    coefficients = ((rgb - 0.5) / SH_C0).astype(np.float32).reshape(n, 1, 3)
    if sh:
        if len(next(iter(sh.values()))) != n:
            raise FormatError(f"{path}: element 'sh' must have one row per splat, {n}")
        shares = {name: _share_of_byte(column) for name, column in sh.items()}
        rest = (_rest(path, shares, n) - 0.5) * _SH_RANGE
        coefficients = np.concatenate([coefficients, rest.astype(np.float32)], axis=1)
    return GaussianScene(
        positions=_between(chunk, _PLACES, which, _split(packed[0], _POSITION_BITS)),
        scales=_between(chunk, _SCALES, which, _split(packed[2], _POSITION_BITS)),
        rotations=_unpacked_rotations(packed[1]),
        opacities=logit(rgba[:, 3]),
        sh=coefficients,
    )


def _share_of_byte(code: Column) -> Column:
    """Bytes stand for the middle of their interval, the first and the last for the ends of the range."""
    value = code.astype(np.float32)
    return np.where(value <= 0, 0.0, np.where(value >= 255, 1.0, (value + 0.5) / 256.0)).astype(np.float32)


def _between(chunk: dict[str, Column], names: tuple[str, ...], which: npt.NDArray[np.int64], share: F32) -> F32:
    low, high = (_stacked(chunk, tuple(f"{side}_{name}" for name in names))[which] for side in ("min", "max"))
    with np.errstate(all="ignore"):
        return low + (high - low) * share


def _split(packed: U32, bits: tuple[int, ...]) -> F32:
    """Fields of a number, the first in its highest bits, each as a share of its largest value."""
    fields = []
    shift = sum(bits)
    for width in bits:
        shift -= width
        largest = np.uint32((1 << width) - 1)
        fields.append((packed >> np.uint32(shift) & largest).astype(np.float32) / np.float32(largest))
    return np.stack(fields, axis=-1)


def _joined(shares: F32, bits: tuple[int, ...]) -> U32:
    packed = np.zeros(len(shares), np.uint32)
    for i, width in enumerate(bits):
        largest = (1 << width) - 1
        code = np.clip(np.rint(shares[:, i] * largest), 0, largest).astype(np.uint32)
        packed = packed << np.uint32(width) | code
    return packed


def _unpacked_rotations(packed: U32) -> F32:
    largest = packed >> np.uint32(30)
    three = (_split(packed & np.uint32(0x3FFFFFFF), (10, 10, 10)) - 0.5) * np.float32(np.sqrt(2.0))
    missing = np.sqrt(np.maximum(1.0 - (three * three).sum(axis=-1), 0.0))
    result = np.empty((len(packed), 4), np.float32)
    for i in range(4):
        rows = largest == i
        result[rows] = np.insert(three[rows], i, missing[rows], axis=1)
    return result


def _packed_rotations(rotations: F32) -> U32:
    unit = rotations / np.maximum(np.linalg.norm(rotations, axis=-1, keepdims=True), 1e-12)
    largest = np.abs(unit).argmax(axis=-1)
    rows = np.arange(len(unit))
    unit = unit * np.where(unit[rows, largest] < 0, -1.0, 1.0)[:, None]
    others = unit[np.arange(4) != largest[:, None]].reshape(-1, 3)
    code = _joined((others / np.sqrt(2.0) + 0.5).astype(np.float32), (10, 10, 10))
    return code | largest.astype(np.uint32) << np.uint32(30)


def _packed(scene: GaussianScene) -> dict[str, dict[str, Column]]:
    n = scene.splats
    rgb = (scene.sh[:, 0] * SH_C0 + 0.5).astype(np.float32)
    chunk: dict[str, Column] = {}
    shares = []
    for names, values in ((_PLACES, scene.positions), (_SCALES, scene.scales), (_COLORS, rgb)):
        starts = np.arange(0, n, CHUNK)
        low = np.minimum.reduceat(values, starts, axis=0) if n else np.zeros((0, 3), np.float32)
        high = np.maximum.reduceat(values, starts, axis=0) if n else np.zeros((0, 3), np.float32)
        chunk |= {f"min_{name}": low[:, i] for i, name in enumerate(names)}
        chunk |= {f"max_{name}": high[:, i] for i, name in enumerate(names)}
        which = np.arange(n) // CHUNK
        shares.append((values - low[which]) / np.maximum((high - low)[which], 1e-20))
    vertex: dict[str, Column] = {
        "packed_position": _joined(shares[0], _POSITION_BITS),
        "packed_rotation": _packed_rotations(scene.rotations),
        "packed_scale": _joined(shares[1], _POSITION_BITS),
        "packed_color": _joined(
            np.concatenate([shares[2], sigmoid(scene.opacities).astype(np.float32)[:, None]], axis=1), _COLOR_BITS
        ),
    }
    elements = {"chunk": chunk, "vertex": vertex}
    if scene.sh.shape[1] > 1:
        rest = scene.sh[:, 1:].transpose(0, 2, 1).reshape(n, -1)
        code = np.clip(np.floor((rest / _SH_RANGE + 0.5) * 256.0), 0, 255).astype(np.uint8)
        elements["sh"] = {f"f_rest_{i}": code[:, i] for i in range(code.shape[1])}
    return elements
