"""Pictures and their gradients against a per-pixel renderer in f64 that has neither tiles nor lists."""

import numpy as np
import pytest
from test_scene_files import random_scene

import rlx
from ops.splat_oracle import display_image, linear_image
from rlx.errors import ShapeError
from rlx.ops.splat.render import (
    GaussianSplatInputs,
    GaussianSplatRender,
    GaussianSplatRenderParams,
    gaussian_splat_render_meta,
)
from rlx.splat import Camera, RenderSettings, orbit, render, rendering, splat_image, to_bytes
from rlx.splat.scene import odd_band_signs

CAMERA = Camera.look_at((0.4, 0.7, 5.0), (0.1, 0.0, 0.0), (0, 1, 0), 40, 30, 45.0)
BACKGROUND = (0.2, 0.1, 0.4)


def oracle(scene, camera, background, settings=None):
    """What `linear_image` makes of a scene, from its own numbers."""
    params = (settings or RenderSettings()).params(camera.width, camera.height, 1)
    k = scene.sh.shape[1]
    inputs = GaussianSplatInputs(
        scene.positions.reshape(-1),
        scene.scales.reshape(-1),
        (scene.rotations / np.linalg.norm(scene.rotations, axis=1, keepdims=True)).reshape(-1),
        1 / (1 + np.exp(-scene.opacities)),
        np.zeros(3 * scene.splats),
        (scene.sh * odd_band_signs(k)).reshape(-1),
        np.asarray(camera.meta(background)),
    )
    inputs = GaussianSplatInputs(*(np.asarray(x, np.float64) for x in inputs))
    image = linear_image(inputs, params, np.asarray(background, np.float64))
    return image.reshape(camera.height, camera.width, 4)


@pytest.mark.parametrize("degree", range(4))
def test_pictures(degree):
    scene = random_scene(60, degree, seed=degree)
    scene = scene._replace(scales=scene.scales + 0.5, sh=0.3 * scene.sh)
    wanted = oracle(scene, CAMERA, BACKGROUND)
    np.testing.assert_allclose(render(scene, CAMERA, BACKGROUND), wanted, atol=2e-5)
    assert wanted[..., 3].max() > 0.5


def test_odd_bands_look_along_the_ray():
    """Files say: colour = 0.5 + c0·sh0 - c1·y·sh1 + .., with the direction from the camera to the splat."""
    scene = random_scene(1, 1)._replace(opacities=np.float32([9.0]), scales=np.float32([[-2.0] * 3]))
    scene = scene._replace(positions=np.float32([[0, 0, 0]]))
    camera = Camera.look_at((0, 0, 2), (0, 0, 0), (0, 1, 0), 31, 31, 40.0)
    sh = scene.sh[0]
    x, y, z = 0.0, 0.0, -1.0
    wanted = 0.5 + 0.28209479 * sh[0] + 0.48860251 * (-y * sh[1] + z * sh[2] - x * sh[3])
    middle = render(scene, camera)[15, 15]
    np.testing.assert_allclose(middle[:3] / middle[3], wanted, rtol=1e-4)


def test_one_program_for_any_number_of_splats():
    rlx.clear_compile_cache()
    rendering._renderer.cache_clear()
    before = rlx.compile_count()
    for count in (0, 1, 7, 90):
        scene = random_scene(count, 0)
        np.testing.assert_allclose(render(scene, CAMERA), oracle(scene, CAMERA, (0, 0, 0)), atol=2e-5)
    assert rlx.compile_count() == before + 1


def test_lists_grow_until_nothing_is_left_out(monkeypatch):
    monkeypatch.setattr(rendering, "_FIRST_ENTRIES", 16)
    monkeypatch.setattr(rendering, "_enough", {})
    scene = random_scene(60, 0)
    np.testing.assert_allclose(render(scene, CAMERA), oracle(scene, CAMERA, (0, 0, 0)), atol=2e-5)
    assert rendering._enough[40, 30] > 16
    monkeypatch.setattr(rendering, "MOST_ENTRIES", 16)
    monkeypatch.setattr(rendering, "_enough", {})
    with pytest.raises(ShapeError, match="the lists of tiles hold at most 16 entries"):
        render(scene, CAMERA)


def test_the_strict_gate():
    """The 18-splat scene of the specification: at most 2e-6 from the reference, cosine distance at most 1e-12."""
    i = np.arange(18)
    t = i / 17
    params = GaussianSplatRenderParams(64, 64, 8, 1.6, 1 / 255, 32768, 1e-4, 131072)
    scene = GaussianSplatInputs(
        np.stack([-1 + 2 * t, 0.8 * np.sin(0.17 * i), -1 + 2 * t], axis=-1).reshape(-1),
        np.full(54, np.log(0.04)),
        np.tile([1.0, 0, 0, 0], 18),
        0.25 + 0.5 * t,
        np.stack([0.2 + 0.7 * t, 0.15 + 0.6 * (1 - t), 0.1 + 0.5 * t], axis=-1).reshape(-1),
        np.zeros(0),
        np.asarray(
            gaussian_splat_render_meta((0, 0, 4), (0, 0, 0), (0, 1, 0), 60.0, 0.1, 100.0, (0.1, 0.15, 0.2), params)
        ),
    )
    narrow = [np.asarray(x, np.float32) for x in scene]
    graph = rlx.Graph("gate")
    graph.set_outputs([GaussianSplatRender(*params)(*(graph.input(f"x{n}", a.shape) for n, a in enumerate(narrow)))])
    found = np.asarray(rlx.Session("cpu").compile(graph).run({f"x{n}": a for n, a in enumerate(narrow)})[0])
    # The camera is read in f32, as the op gets it.
    wanted = display_image(scene._replace(meta=narrow[-1].astype(np.float64)), params)
    found, wanted = found.reshape(-1, 4)[:, :3].astype(np.float64), wanted[:, :3]
    assert np.abs(found - wanted).max() <= 2e-6
    cosine = (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted)
    assert 1 - cosine <= 1e-12


def test_gradients_are_differences():
    """The gradient of a weighted sum of the picture, against central differences of the per-pixel renderer."""
    camera = Camera.look_at((0, 0.3, 4.0), (0, 0, 0), (0, 1, 0), 12, 9, 45.0)
    rng = np.random.default_rng(0)
    scene = random_scene(4, 1, seed=3)
    # Wide enough that no rim with its jump at the cut-off crosses the picture.
    scene = scene._replace(scales=scene.scales * 0.1 + 0.8, opacities=scene.opacities * 0.2 - 0.5, sh=0.2 * scene.sh)
    weights = rng.normal(size=(9, 12, 4)).astype(np.float32)
    params = RenderSettings().params(12, 9, 64)
    meta = np.asarray(camera.meta(BACKGROUND))

    def loss(s):
        image, _ = splat_image(s.operands(meta), params)
        return rlx.numpy.sum(image * weights.reshape(-1))

    value, gradient = rlx.jit(rlx.value_and_grad(loss))(scene)
    wide = type(scene)(*(x.astype(np.float64) for x in scene))

    def wanted(s):
        return (oracle(s, camera, BACKGROUND) * weights).sum()

    np.testing.assert_allclose(float(value), wanted(wide), rtol=1e-4)
    for name, part, found in zip(scene._fields, wide, gradient):
        slopes = np.zeros(part.size)
        for i in range(part.size):
            shift = (1e-5 * (np.arange(part.size) == i)).reshape(part.shape)
            high, low = (wanted(wide._replace(**{name: part + s})) for s in (shift, -shift))
            slopes[i] = (high - low) / 2e-5
        assert np.abs(slopes).max() > 1e-3
        np.testing.assert_allclose(np.asarray(found).reshape(-1), slopes, rtol=2e-3, atol=2e-4, err_msg=name)


def test_orbits_go_around():
    start = Camera.look_at((0, 1, 3), (0, 0.2, 0), (0, 1, 0), 64, 48, 50.0)
    cameras = orbit((0, 0.2, 0), start, 8, (0, 1, 0))
    np.testing.assert_allclose(cameras[0].position, start.position, atol=1e-12)
    np.testing.assert_allclose(cameras[4].position, (0, 1, -3), atol=1e-12)
    for camera in cameras:
        np.testing.assert_allclose(camera.project([[0, 0.2, 0]])[0], [[32, 24]], atol=1e-9)


def test_bytes_are_rounded_and_clipped():
    picture = np.float32([[[-0.5, 0.5, 2.0, 1.0]]])
    np.testing.assert_array_equal(to_bytes(picture), [[[0, 128, 255]]])
