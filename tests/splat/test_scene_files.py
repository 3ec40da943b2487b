"""Scenes in files: exact round trips, the compressed form by its bits, and files that lie."""

import struct

import numpy as np
import pytest

from rlx.errors import FormatError, ShapeError
from rlx.splat import GaussianScene, read_scene, write_scene
from rlx.splat.ply import read_ply
from rlx.splat.scene import SH_C0, logit


def random_scene(count=300, degree=3, seed=0):
    rng = np.random.default_rng(seed)
    turns = rng.normal(size=(count, 4))
    return GaussianScene(
        rng.normal(size=(count, 3)),
        rng.uniform(-5, -1, (count, 3)),
        turns / np.linalg.norm(turns, axis=1, keepdims=True),
        rng.uniform(-3, 3, count),
        rng.uniform(-1, 1, (count, (degree + 1) ** 2, 3)),
    ).checked()


@pytest.mark.parametrize("degree", range(4))
def test_plain_files_are_exact(tmp_path, degree):
    scene = random_scene(degree=degree)
    write_scene(tmp_path / "scene.ply", scene)
    for before, after in zip(scene, read_scene(tmp_path / "scene.ply")):
        np.testing.assert_array_equal(before, after)


def test_the_properties_are_those_of_the_field(tmp_path):
    scene = random_scene(2, degree=1)
    write_scene(tmp_path / "scene.ply", scene)
    vertex = read_ply(tmp_path / "scene.ply")["vertex"]
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"] + [f"f_rest_{i}" for i in range(9)]
    assert list(vertex) == [*names, "opacity", *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    # All red coefficients first, then green, then blue.
    np.testing.assert_array_equal(vertex["f_rest_4"], scene.sh[:, 2, 1])


PROPERTIES = [*"xyz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2"]
PROPERTIES += ["rot_0", "rot_1", "rot_2", "rot_3"]


def hand_written(kind, count=2, properties=PROPERTIES, type="float"):
    lines = ["ply", f"format {kind} 1.0", "comment by hand", f"element vertex {count}"]
    return "\n".join([*lines, *(f"property {type} {p}" for p in properties), "end_header\n"]).encode()


@pytest.mark.parametrize("kind, order", [("binary_little_endian", "<"), ("binary_big_endian", ">"), ("ascii", "")])
@pytest.mark.parametrize("type, code", [("float", "f"), ("double", "d")])
def test_text_and_either_byte_order(tmp_path, kind, order, type, code):
    values = np.arange(28) / 8
    rows = "\n".join(" ".join(map(str, row)) for row in values.reshape(2, 14)).encode() + b"\n"
    body = struct.pack(f"{order}28{code}", *values) if order else rows
    (tmp_path / "scene.ply").write_bytes(hand_written(kind, type=type) + body)
    scene = read_scene(tmp_path / "scene.ply")
    np.testing.assert_array_equal(scene.positions, [[0, 0.125, 0.25], [1.75, 1.875, 2.0]])
    np.testing.assert_array_equal(scene.rotations[1], [3.0, 3.125, 3.25, 3.375])
    np.testing.assert_array_equal(scene.opacities, [0.75, 2.5])


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_compressed_files_are_near(tmp_path, degree):
    scene = random_scene(700, degree)
    write_scene(tmp_path / "plain.ply", scene)
    write_scene(tmp_path / "small.ply", scene, compressed=True)
    back = read_scene(tmp_path / "small.ply")
    widths = np.ptp(scene.positions, axis=0)
    # Half a step of 11, 10 and 11 bits, over the width of a chunk at most.
    assert (np.abs(back.positions - scene.positions).max(axis=0) <= widths / [4094, 2046, 4094] * 1.01).all()
    assert np.abs(back.scales - scene.scales).max() <= 4.0 / 2046 * 1.01
    assert np.abs(np.abs((back.rotations * scene.rotations).sum(axis=1)) - 1).max() < 1e-5
    alpha, wanted = (1 / (1 + np.exp(-s.opacities)) for s in (back, scene))
    assert np.abs(alpha - wanted).max() <= 0.5 / 255 + 1e-6
    assert np.abs(back.sh[:, 0] - scene.sh[:, 0]).max() * SH_C0 <= 2 * SH_C0 / 510 * 1.01
    if degree:
        assert np.abs(back.sh[:, 1:] - scene.sh[:, 1:]).max() <= 4 / 256 + 1e-6
    assert (tmp_path / "small.ply").stat().st_size < 0.35 * (tmp_path / "plain.ply").stat().st_size


def test_the_bits_of_a_compressed_splat(tmp_path):
    """One splat packed by hand: 11-10-11 bits of position and scale, 2-10-10-10 of rotation, 8-8-8-8 of colour."""
    bounds = [f"{side}_{what}" for side in ("min", "max") for what in ("x", "y", "z")]
    bounds += [f"{side}_scale_{what}" for side in ("min", "max") for what in ("x", "y", "z")]
    packed = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
    header = ["ply", "format binary_little_endian 1.0", "element chunk 1", *(f"property float {b}" for b in bounds)]
    header += ["element vertex 1", *(f"property uint {p}" for p in packed), "end_header\n"]
    chunk = struct.pack("<12f", 0, 0, 0, 1, 2, 4, -4, -4, -4, 0, 0, 0)
    position = 2047 << 21 | 0 << 11 | 1024
    rotation = 2 << 30 | 1023 << 20 | 0 << 10 | 512
    scale = 0 << 21 | 1023 << 11 | 0
    color = 255 << 24 | 0 << 16 | 51 << 8 | 204
    body = struct.pack("<4I", position, rotation, scale, color)
    (tmp_path / "one.ply").write_bytes("\n".join(header).encode() + chunk + body)
    scene = read_scene(tmp_path / "one.ply")
    np.testing.assert_allclose(scene.positions, [[1, 0, 4 * 1024 / 2047]], rtol=1e-6)
    np.testing.assert_allclose(scene.scales, [[-4, 0, -4]], atol=1e-6)
    # The third of w, x, y, z is left out; the others are between -1/sqrt(2) and 1/sqrt(2).
    half = np.sqrt(0.5)
    w, x, z = half, -half, (512 / 1023 - 0.5) * np.sqrt(2)
    np.testing.assert_allclose(scene.rotations, [[w, x, 0.0, z]], atol=2e-3)
    np.testing.assert_allclose(scene.sh[0, 0], (np.array([1, 0, 0.2]) - 0.5) / SH_C0, rtol=1e-6)
    np.testing.assert_allclose(scene.opacities, [np.log(0.8 / 0.2)], rtol=1e-5)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"nothing", "not a PLY file"),
        (b"ply\nformat ascii 1.0\n", "no 'end_header' line"),
        (b"ply\nformat strange 1.0\nend_header\n", "line 2 of the header is not understood: 'format strange 1.0'"),
        (b"ply\nelement vertex 1\nend_header\n", "no 'format' line"),
        (b"ply\nformat ascii 1.0\nelement face 0\nend_header\n", r"needs an element 'vertex', found \['face'\]"),
        (hand_written("binary_little_endian", 10**11), "says 100000000000 rows of 56 bytes, but 0 bytes are left"),
        (hand_written("ascii", 5) + b"1 2\n", "says 5 rows, but 2 lines are left"),
        (hand_written("ascii", 1) + b"1 2\n", "needs 14 numbers in every row"),
        (hand_written("ascii", 1) + b"one\n", "a row that is not made of numbers"),
        (hand_written("ascii", 1) + b"1 " * 13 + b"nan\n", "rotations of splat 0 is not a finite number"),
        (hand_written("ascii", 0, PROPERTIES[:-1]), "properties rot_3 are missing; a point cloud becomes a scene with"),
        (
            hand_written("ascii", 0, [*PROPERTIES, "f_rest_0"]),
            "0, 9, 24 or 45 properties without a gap, found 1",
        ),
        (hand_written("ascii", 0, [*PROPERTIES, "x"]), "property x is declared twice"),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, message):
    (tmp_path / "bad.ply").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_scene(tmp_path / "bad.ply")


def test_wrong_scenes_are_not_written(tmp_path):
    scene = random_scene(3, 1)
    with pytest.raises(ShapeError, match=r"scales of 3 splats must be \[3, 3\], got \[2, 3\]"):
        write_scene(tmp_path / "bad.ply", scene._replace(scales=scene.scales[:2]))
    with pytest.raises(ShapeError, match="1, 4, 9 or 16 coefficients per splat, got 2"):
        write_scene(tmp_path / "bad.ply", scene._replace(sh=scene.sh[:, :2]))
    assert not list(tmp_path.iterdir())


def test_points_become_splats():
    rng = np.random.default_rng(0)
    points, colors = rng.uniform(-1, 1, (50, 3)), rng.uniform(0, 1, (50, 3))
    scene = GaussianScene.from_points(points, colors, degree=2, opacity=0.25)
    apart = np.linalg.norm(points[:, None] - points, axis=-1)
    nearest = np.sqrt((np.sort(apart, axis=1)[:, 1:4] ** 2).mean(axis=1))
    np.testing.assert_allclose(np.exp(scene.scales), np.repeat(nearest[:, None], 3, axis=1), rtol=1e-5)
    np.testing.assert_allclose(scene.sh[:, 0] * SH_C0 + 0.5, colors, atol=1e-6)
    np.testing.assert_allclose(scene.opacities, logit(0.25))
    assert scene.sh_degree == 2 and scene.with_degree(1).sh.shape == (50, 4, 3)
    with pytest.raises(ShapeError, match="50 points need as many colors, got 49"):
        GaussianScene.from_points(points, colors[1:])
