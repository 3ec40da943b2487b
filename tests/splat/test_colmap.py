"""COLMAP models, text and binary, written by hand here, and cameras through lenses."""

import struct

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from rlx.errors import FormatError, ShapeError
from rlx.splat import Camera, ColmapModel, read_colmap, undistorted, write_colmap_text
from rlx.splat.colmap import quaternion_of

TURN = Rotation.from_euler("xyz", [20, -35, 10], degrees=True)
SHIFT = np.array([0.3, -0.2, 1.5])


def binary_model(folder):
    """One OPENCV camera, one picture with two points in it, and two sparse points with tracks."""
    folder.mkdir(parents=True, exist_ok=True)
    lens = struct.pack("<QiiQQ8d", 1, 7, 4, 64, 48, 50.0, 51.0, 31.0, 25.0, 0.1, -0.02, 0.003, -0.001)
    (folder / "cameras.bin").write_bytes(lens)
    pose = struct.pack("<Qi7di", 1, 1, *TURN.as_quat(scalar_first=True), *SHIFT, 7)
    points = struct.pack("<Q", 2) + struct.pack("<ddq", 1.0, 2.0, 5) * 2
    (folder / "images.bin").write_bytes(pose + b"sub/a.png\0" + points)
    cloud = struct.pack("<Q", 2)
    for number, track in ((1, 0), (2, 3)):
        cloud += struct.pack("<Q3d3BdQ", number, number, 0.5, -1.0, 255, 0, 51, 0.1, track) + b"\0" * 8 * track
    (folder / "points3D.bin").write_bytes(cloud)


def text_model(folder, camera="7 OPENCV 64 48 50 51 31 25 0.1 -0.02 0.003 -0.001"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cameras.txt").write_text(f"# cameras\n{camera}\n")
    pose = " ".join(repr(float(v)) for v in (*TURN.as_quat(scalar_first=True), *SHIFT))
    (folder / "images.txt").write_text(f"# two lines each\n1 {pose} 7 sub/a.png\n1.0 2.0 5 1.0 2.0 5\n")
    (folder / "points3D.txt").write_text("1 1 0.5 -1 255 0 51 0.1\n2 2 0.5 -1 255 0 51 0.1 1 2 1 3\n")


def test_text_and_binary_say_the_same(tmp_path):
    binary_model(tmp_path / "binary" / "sparse" / "0")
    text_model(tmp_path / "text")
    models = [read_colmap(tmp_path / name) for name in ("binary", "text")]
    for model in models:
        camera = model.cameras["sub/a.png"]
        np.testing.assert_allclose(camera.rotation, TURN.as_matrix(), atol=1e-12)
        np.testing.assert_allclose(camera.position, -TURN.inv().apply(SHIFT), atol=1e-12)
        assert camera.distortion == (0.1, -0.02, 0.003, -0.001, 0, 0, 0, 0)
        assert (camera.fx, camera.fy, camera.cx, camera.cy) == (50, 51, 31, 25)
        np.testing.assert_array_equal(model.points, np.float32([[1, 0.5, -1], [2, 0.5, -1]]))
        np.testing.assert_allclose(model.colors, [[1, 0, 0.2]] * 2, atol=1e-7)


def test_models_are_written(tmp_path):
    text_model(tmp_path / "a")
    model = read_colmap(tmp_path / "a")
    write_colmap_text(tmp_path / "b", model)
    again = read_colmap(tmp_path / "b")
    one, other = model.cameras["sub/a.png"], again.cameras["sub/a.png"]
    np.testing.assert_allclose(one.rotation, other.rotation, atol=1e-14)
    np.testing.assert_allclose(one.position, other.position, atol=1e-14)
    assert one[:6] == other[:6] and one.distortion == other.distortion
    np.testing.assert_array_equal(model.points, again.points)
    np.testing.assert_array_equal(model.colors, again.colors)
    with pytest.raises(FormatError, match="is a fisheye"):
        write_colmap_text(tmp_path / "b", ColmapModel({"x": one._replace(is_fisheye=True)}, model.points, model.colors))


@pytest.mark.parametrize("seed", range(20))
def test_quaternions_of_rotations(seed):
    turn = Rotation.random(rng=np.random.default_rng(seed))
    if seed < 4:
        # Half a turn around each axis, where w is 0, and none.
        turn = Rotation.from_rotvec(np.pi * np.eye(4, 3)[seed])
    np.testing.assert_allclose(
        Rotation.from_quat(quaternion_of(turn.as_matrix()), scalar_first=True).as_matrix(), turn.as_matrix(), atol=1e-7
    )


@pytest.mark.parametrize(
    "camera, message",
    [
        ("7 FOV 64 48 50 51 31 25 0.1", "the camera model FOV is not read, only SIMPLE_PINHOLE"),
        ("7 PINHOLE 64 48 50 51 31", "PINHOLE has 4 parameters, got 3"),
        ("7 PINHOLE 64 0 50 51 31 25", "64x0 pixels is none"),
        ("7 PINHOLE 64 48 -50 51 31 25", "not those of a camera"),
        ("7 PINHOLE 64 48 50 51 31 many", "line 2: could not convert"),
        ("seven PINHOLE 64 48 50 51 31 25", "a whole number is wanted, got 'seven'"),
        ("8 PINHOLE 64 48 50 51 31 25", "has camera 7, which is not in the model"),
    ],
)
def test_wrong_cameras_are_refused(tmp_path, camera, message):
    text_model(tmp_path, camera)
    with pytest.raises(FormatError, match=message):
        read_colmap(tmp_path)


def test_counts_are_checked_before_they_are_trusted(tmp_path):
    binary_model(tmp_path)
    (tmp_path / "points3D.bin").write_bytes(struct.pack("<Q", 2**60))
    with pytest.raises(FormatError, match=rf"{2**60} items are said to follow, 0 bytes hold at most 0"):
        read_colmap(tmp_path)


LENSES = [
    ("SIMPLE_RADIAL", (0.12,), lambda r2: 1 + 0.12 * r2),
    ("RADIAL", (-0.1, 0.05), lambda r2: 1 - 0.1 * r2 + 0.05 * r2**2),
    ("RADIAL_FISHEYE", (0.04, -0.01), None),
]


@pytest.mark.parametrize("name, terms, radial", LENSES)
def test_lenses_bend_by_their_formulas(tmp_path, name, terms, radial):
    text_model(tmp_path, f"7 {name} 64 48 50 32 24 {' '.join(map(str, terms))}")
    camera = read_colmap(tmp_path).cameras["sub/a.png"]
    plane = np.random.default_rng(0).uniform(-0.6, 0.6, (50, 2))
    r = np.linalg.norm(plane, axis=1)
    if radial is None:
        theta = np.arctan(r)
        scale = theta * (1 + terms[0] * theta**2 + terms[1] * theta**4) / r
    else:
        scale = radial(r**2)
    wanted = plane * scale[:, None] * 50 + (32, 24)
    np.testing.assert_allclose(camera.to_pixels(plane), wanted, atol=1e-12)
    np.testing.assert_allclose(camera.from_pixels(wanted), plane, atol=1e-9)


def test_projection_is_that_of_the_pose():
    camera = Camera.look_at((1, 2, 3), (0, 0.5, 0), (0, 1, 0), 64, 48, 60.0)
    points = np.random.default_rng(0).normal(size=(20, 3))
    pixels, depth = camera.project(points)
    forward = np.array([0, 0.5, 0]) - (1, 2, 3)
    forward /= np.linalg.norm(forward)
    np.testing.assert_allclose(depth, (points - (1, 2, 3)) @ forward, atol=1e-12)
    # The target is in the middle, and what is above it in the world is above it in the picture.
    middle, _ = camera.project(np.array([[0, 0.5, 0], [0, 0.8, 0]]))
    np.testing.assert_allclose(middle[0], (32, 24), atol=1e-9)
    assert middle[1, 1] < 24 and abs(np.linalg.det(camera.rotation) - 1) < 1e-12
    assert pixels.shape == (20, 2)


def test_pictures_are_straightened():
    """A smooth pattern seen through a lens becomes the pattern that the ideal camera sees."""
    lens = Camera(80, 60, 60.0, 66.0, 38.0, 31.0, np.eye(3), np.zeros(3), (-0.15, 0.03, 0.002, -0.003, 0, 0, 0, 0))

    def pattern(plane):
        return np.stack([0.5 + 0.4 * np.sin(7 * plane[..., 0]), 0.5 + 0.4 * np.cos(5 * plane[..., 1])], axis=-1)

    rows, columns = np.mgrid[0:60, 0:80] + 0.5
    pixels = np.stack([columns, rows], axis=-1)
    straight, known = undistorted(lens, pattern(lens.from_pixels(pixels)))
    assert 0.7 < known.mean() < 1.0
    wanted = pattern(lens.ideal().from_pixels(pixels))
    assert np.abs(straight - wanted)[known].max() < 3e-3
    same, everywhere = undistorted(lens.ideal(), wanted)
    np.testing.assert_array_equal(same, wanted.astype(np.float32))
    assert everywhere.all()
    with pytest.raises(ShapeError, match="the camera takes 60x80 pixels"):
        undistorted(lens, wanted[1:])
    with pytest.raises(ShapeError, match="the ops need an ideal camera"):
        lens.meta()


def test_smaller_cameras_see_the_same():
    camera = Camera.look_at((0, 0, 4), (0, 0, 0), (0, 1, 0), 640, 480, 50)
    points = np.random.default_rng(0).normal(size=(20, 3))
    np.testing.assert_allclose(camera.downscaled(4).project(points)[0] * 4, camera.project(points)[0], rtol=1e-12)
    with pytest.raises(ShapeError, match="cannot be made smaller by 500"):
        camera.downscaled(500)
