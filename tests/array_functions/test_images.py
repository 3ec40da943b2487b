"""`rlx.image` against what the methods mean: means, repeated pixels, straight lines, kernels written out."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import image
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(0)
PICTURE = rng.normal(size=(2, 6, 8, 3))
SMOOTH = ("linear", "cubic", "lanczos3", "lanczos5", "area", "bicubic-pytorch")


def test_means_over_whole_pixels():
    wanted = PICTURE.reshape(2, 3, 2, 4, 2, 3).mean((2, 4))
    np.testing.assert_allclose(image.resize(PICTURE, (2, 3, 4, 3), "area"), wanted, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 4, 6, 12, 30])
def test_nearest_pixels(size):
    ids = np.floor((np.arange(size) + 0.5) * 6 / size + 1e-9).astype(int)
    for dtype in ("f8", "u1", "bool"):
        x = (PICTURE * 50).astype(dtype)
        found = image.resize(x, (2, size, 8, 3), "nearest")
        np.testing.assert_array_equal(found, x[:, ids])
        assert found.dtype == x.dtype


def test_straight_lines_between_pixels():
    x = rng.normal(size=5)
    for size in (5, 7, 20):
        places = (np.arange(size) + 0.5) * 5 / size - 0.5
        np.testing.assert_allclose(image.resize(x, (size,), "bilinear"), np.interp(places, np.arange(5), x), rtol=1e-12)


def test_a_cubic_written_out():
    """One new pixel between four: Keys' weights at distances ½ and 3/2 are 9/16 and -1/16."""
    x = np.array([1.0, 5.0, 2.0, 7.0, 3.0, 4.0])
    found = image.resize(x, (12,), "cubic")
    quarter = np.array([-0.0703125, 0.8671875, 0.2265625, -0.0234375])
    np.testing.assert_allclose(found[5], quarter @ x[1:5], rtol=1e-12)
    np.testing.assert_allclose(found[6], quarter[::-1] @ x[1:5], rtol=1e-12)


@pytest.mark.parametrize("method", SMOOTH)
@pytest.mark.parametrize("antialias", [True, False])
def test_even_pictures_stay_even(method, antialias):
    for size in ((3, 5), (13, 9), (6, 1)):
        found = image.resize(np.full((2, 6, 8, 3), 2.5), (2, *size, 3), method, antialias=antialias)
        np.testing.assert_allclose(found, 2.5, rtol=1e-12)
    same = image.resize(PICTURE, PICTURE.shape, method, antialias=antialias)
    np.testing.assert_array_equal(same, PICTURE)


def test_in_programs():
    loss = rlx.jit(
        rlx.grad(lambda x: rnp.sum(image.resize(x, (3, 4), "linear", antialias=False) * np.arange(12).reshape(3, 4)))
    )
    weights = np.arange(12).reshape(3, 4)
    rows = lambda n, m: np.stack([image.resize(e, (m,), "linear", antialias=False) for e in np.eye(n)])  # noqa: E731
    np.testing.assert_allclose(loss(PICTURE[0, :, :, 0]), rows(6, 3) @ weights @ rows(8, 4).T, rtol=1e-9)
    batched = (
        rlx.jit(lambda x: image.resize(x, (x.shape[0], 3, 4, 3), "cubic"))
        .lower(rlx.Spec(("B", 6, 8, 3), "f64"))
        .compile()
    )
    np.testing.assert_allclose(batched(PICTURE), image.resize(PICTURE, (2, 3, 4, 3), "cubic"), rtol=1e-12)
    assert image.resize(np.int32([[1, 2], [3, 4]]), (4, 4), "linear").dtype == np.float32


def test_shifts_by_whole_pixels():
    x = PICTURE[0, :, :, 0]
    moved = image.scale_and_translate(x, (6, 8), (0, 1), np.ones(2), np.array([1.0, -2.0]), "linear")
    wanted = np.zeros_like(x)
    wanted[1:, :-2] = x[:-1, 2:]
    np.testing.assert_allclose(moved, wanted, atol=1e-12)
    scale = np.array([2.0, 0.5])
    same = image.scale_and_translate(x, (12, 4), (0, 1), scale, np.zeros(2), "lanczos3")
    np.testing.assert_allclose(same, image.resize(x, (12, 4), "lanczos3"), rtol=1e-9, atol=1e-12)


def test_derivatives_by_the_shift():
    x = np.sin(np.arange(12.0))

    def shifted(t):
        return image.scale_and_translate(x, (12,), (0,), np.ones(1), rnp.reshape(t, (1,)), "cubic")[5]

    step = np.float64(1e-6)
    slope = (np.asarray(shifted(0.3 + step)) - np.asarray(shifted(0.3 - step))) / (2 * step)
    np.testing.assert_allclose(rlx.grad(shifted)(np.float64(0.3)), slope, rtol=1e-6)


def test_bad_arguments():
    with pytest.raises(ShapeError, match=r"shape \(3,\) has 1 sizes for an image of 4 axes"):
        image.resize(PICTURE, (3,), "linear")
    with pytest.raises(OpError, match="there is no method 'zoom'; there are area"):
        image.resize(PICTURE, PICTURE.shape, "zoom")
    with pytest.raises(ShapeError, match="one number for each of the 2 spatial_dims"):
        image.scale_and_translate(PICTURE, PICTURE.shape, (1, 2), np.ones(1), np.ones(2), "linear")
    with pytest.raises(ShapeError, match="axis 3 changes its size"):
        image.scale_and_translate(PICTURE, (2, 6, 8, 4), (1, 2), np.ones(2), np.ones(2), "linear")
