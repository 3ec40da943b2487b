"""Gradients of splatting against central differences of an independent renderer in linear light."""

import numpy as np
import pytest
from splat_oracle import alphas, camera_meta, counted_hits, linear_image, make_scene, pixel_directions

import rlx
from rlx.errors import OpError
from rlx.ops.splat.render import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderBackward,
    GaussianSplatRenderParams,
    gaussian_splat_render,
    gaussian_splat_render_backward,
    unpack_gaussian_splat_packed_grads,
)

SMALL = GaussianSplatRenderParams(width=6, height=5, tile_size=4, max_list_entries=400)
OPERANDS = ("positions", "scales", "rotations", "opacities", "colors", "sh_coeffs")
STEP = 1e-5


def upstream(params=SMALL, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, params.width * params.height * 4)


def gradients(scene, d_rgba, params=SMALL, loss_grad_clip=0.0, **backward):
    settings = GaussianSplatBackwardParams(params, loss_grad_clip, **backward)
    packed = gaussian_splat_render_backward(scene, d_rgba, settings)
    n = len(scene.opacities)
    parts = unpack_gaussian_splat_packed_grads(np.asarray(packed), n, len(scene.sh_coeffs) // max(3 * n, 1))
    return dict(zip(OPERANDS, parts))


def differences(scene, d_rgba, params=SMALL):
    """The same by central differences, with the hits of the given scene; quaternions move on the unit sphere."""
    alpha = alphas(scene, pixel_directions(scene.meta, params.width, params.height), params.radius_scale)
    hits = counted_hits(alpha, scene, params, params.max_splat_steps)

    def loss(changed):
        return (linear_image(changed, params, scene.meta[12:15] ** 2.2, hits).reshape(-1) * d_rgba).sum()

    result = {}
    for name in OPERANDS:
        value = getattr(scene, name)
        slopes = np.zeros(len(value))
        for i in range(len(value)):
            shift = STEP * (np.arange(len(value)) == i)
            high, low = (loss(scene._replace(**{name: value + s})) for s in (shift, -shift))
            slopes[i] = (high - low) / (2 * STEP)
        result[name] = slopes
    return result


def along_the_sphere(gradient, quaternions):
    """SciPy normalises quaternions, so that differences see only what is orthogonal to them."""
    g, q = gradient.reshape(-1, 4), quaternions.reshape(-1, 4)
    return (g - (g * q).sum(axis=-1, keepdims=True) * q).reshape(-1)


def assert_gradients(scene, params=SMALL, atol=1e-8):
    d_rgba = upstream(params)
    found, expected = gradients(scene, d_rgba, params), differences(scene, d_rgba, params)
    found["rotations"] = along_the_sphere(found["rotations"], scene.rotations)
    for name in OPERANDS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=atol, err_msg=name)
    return found


@pytest.mark.parametrize("coefficients", [0, 1, 4, 16])
def test_gradients_are_central_differences(coefficients):
    found = assert_gradients(make_scene(3, coefficients, seed=coefficients))
    assert all(np.abs(found[name]).max() > 1e-3 for name in ("positions", "scales", "rotations", "opacities"))
    used, unused = ("sh_coeffs", "colors") if coefficients else ("colors", "sh_coeffs")
    assert np.abs(found[used]).max() > 1e-3
    assert not found[unused].any()


def test_many_hits_per_pixel():
    assert_gradients(make_scene(7, 1, seed=8, scales=np.full(21, -0.7)))


def test_pixels_that_stop_early():
    scene = make_scene(5, 0, seed=2, scales=np.full(15, 0.0), opacities=np.full(5, 0.9))
    assert_gradients(scene, SMALL._replace(transmittance_threshold=0.3))


def test_the_step_limit():
    scene = make_scene(5, 0, seed=3, scales=np.full(15, -0.5), opacities=np.full(5, 0.4))
    found = assert_gradients(scene, SMALL._replace(max_splat_steps=2))
    unlimited = assert_gradients(scene, SMALL._replace(max_splat_steps=0))
    assert np.abs(found["opacities"] - unlimited["opacities"]).max() > 1e-3


def test_an_opaque_hit():
    """alpha = 1 at a pixel that looks at the centre: nothing shines through, and the gradient is still finite."""
    params = GaussianSplatRenderParams(width=1, height=1, tile_size=1)
    meta = camera_meta(pos=(0, 0, 4), target=(0, 0, 0))
    positions = [0.0, 0.0, 0.0, 0.1, 0.0, -1.0]
    scene = make_scene(2, 0, positions=positions, opacities=[1.0, 0.5], meta=meta)
    d_rgba = upstream(params)
    found = gradients(scene, d_rgba, params)
    seen = d_rgba[:3] @ scene.colors[:3]
    # The pixel is finished, so behind the first splat there is only the background.
    expected = seen - (d_rgba[:3] @ scene.meta[12:15] ** 2.2 - d_rgba[3])
    np.testing.assert_allclose(found["opacities"], [expected, 0.0], rtol=1e-12)
    np.testing.assert_allclose(found["colors"], [*d_rgba[:3], 0.0, 0.0, 0.0], rtol=1e-12)


def test_quaternions_off_the_unit_sphere():
    """The formula takes them as given: differences of the op's own linear image along all four components."""
    scene = make_scene(2, 0, seed=4)
    scene = scene._replace(rotations=scene.rotations * np.repeat([0.8, 1.2], 4))
    rng = np.random.default_rng(0)
    d_rgba = upstream()
    # The image is linear in colors, so their gradient is a picture of the image: its slope along the quaternions must
    # be the change of the quaternions' gradient with the colors.
    direction = rng.normal(size=8)

    def weighted(rotations):
        return gradients(scene._replace(rotations=rotations), d_rgba)["colors"]

    step = STEP * direction
    mixed = (weighted(scene.rotations + step) - weighted(scene.rotations - step)) / (2 * STEP)
    for i in range(6):
        shift = 1e-3 * (np.arange(6) == i)
        high, low = (gradients(scene._replace(colors=scene.colors + s), d_rgba)["rotations"] for s in (shift, -shift))
        np.testing.assert_allclose(((high - low) / 2e-3) @ direction, mixed[i], rtol=1e-6, atol=1e-8)


def test_the_upstream_gradient_is_clipped():
    scene = make_scene(3, 1)
    wild = 5 * upstream()
    clipped = gradients(scene, wild, loss_grad_clip=0.5)
    by_hand = gradients(scene, np.clip(wild, -0.5, 0.5))
    for name in OPERANDS:
        np.testing.assert_array_equal(clipped[name], by_hand[name])
    assert np.abs(clipped["colors"] - gradients(scene, wild)["colors"]).max() == 0
    assert np.abs(clipped["sh_coeffs"] - gradients(scene, wild)["sh_coeffs"]).max() > 1e-3


@pytest.mark.parametrize("band, live", [(0, 16), (1, 4), (2, 9), (3, 16)])
def test_bands_above_sh_band_are_frozen(band, live):
    scene = make_scene(2, 16)
    found = gradients(scene, upstream(), sh_band=band)
    free = gradients(scene, upstream())
    coefficients, all_of_them = (g["sh_coeffs"].reshape(2, 16, 3) for g in (found, free))
    np.testing.assert_array_equal(coefficients[:, :live], all_of_them[:, :live])
    assert not coefficients[:, live:].any()
    np.testing.assert_array_equal(found["positions"], free["positions"])


def test_clamped_parameters_have_no_gradient():
    scene = make_scene(2, 0, colors=[-0.1, 0.5, 1.2, 0.3, 0.0, 1.0], opacities=[1.5, 0.6], scales=[-20.0, *[-1.0] * 5])
    found = gradients(scene, upstream())
    np.testing.assert_array_equal(found["colors"] == 0, [True, False, True, False, False, False])
    np.testing.assert_array_equal(found["opacities"] == 0, [True, False])
    assert found["scales"][0] == 0


def test_max_anisotropy_is_left_to_the_trainer():
    scene = make_scene(2, 0, scales=[0.0, -6.0, 0.0, -1.0, -1.0, -1.0])
    a, b = (gradients(scene, upstream(), max_anisotropy=x) for x in (1.0, 100.0))
    for name in OPERANDS:
        np.testing.assert_array_equal(a[name], b[name])


def test_without_coefficients_sh_gets_zeros():
    scene = make_scene(2, 0)
    packed = gaussian_splat_render_backward(scene, upstream(), GaussianSplatBackwardParams(SMALL))
    assert len(packed) == 2 * 17
    assert not np.asarray(packed)[28:].any()
    empty = gaussian_splat_render_backward(make_scene(0, 0), upstream(), GaussianSplatBackwardParams(SMALL))
    assert np.asarray(empty).shape == (0,)


@pytest.mark.parametrize("dtype, rtol", [("f16", 2e-3), ("bf16", 2e-2), ("f32", 2e-4)])
def test_narrow_dtypes_agree_with_f64(dtype, rtol):
    dtype = rlx.DType.of(dtype).numpy
    narrow = [x.astype(dtype) for x in (*make_scene(3, 4), upstream())]
    found = gaussian_splat_render_backward(
        GaussianSplatInputs(*narrow[:-1]), narrow[-1], GaussianSplatBackwardParams(SMALL)
    )
    assert np.asarray(found).dtype == dtype
    wide = [x.astype(np.float64) for x in narrow]
    expected = np.asarray(
        gaussian_splat_render_backward(GaussianSplatInputs(*wide[:-1]), wide[-1], GaussianSplatBackwardParams(SMALL))
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(found).astype(float), expected, rtol=rtol, atol=rtol * scale)


def test_the_derivative_of_the_shown_image():
    """Through the decomposition, gamma and camera included: a directional derivative against differences."""
    from rlx.autodiff.functions import jvp

    params = SMALL._replace(tile_size=8, max_list_entries=8)
    scene = make_scene(2, 4, seed=1)
    rng = np.random.default_rng(0)
    tangents = [rng.normal(size=x.shape) for x in scene]

    def shown(*operands):
        return gaussian_splat_render(GaussianSplatInputs(*operands), params)

    _, tangent = jvp(shown, tuple(scene), tuple(tangents))
    high, low = (shown(*(x + s * 1e-6 * t for x, t in zip(scene, tangents))) for s in (1, -1))
    np.testing.assert_allclose(tangent, (np.asarray(high) - np.asarray(low)) / 2e-6, atol=1e-6)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"loss_grad_clip": -1.0}, "loss_grad_clip cannot be negative"),
        ({"sh_band": 4}, r"sh_band is 0 \(no limit\) to 3, got 4"),
        ({"max_anisotropy": 0.5}, "max_anisotropy is a ratio of at least 1, got 0.5"),
        ({"height": 0}, "width, height and tile_size are at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(OpError, match=message):
        GaussianSplatRenderBackward(**settings)


def test_wrong_upstream_gradients_are_refused():
    shapes = [rlx.Shape((n,)) for n in (3, 3, 4, 1, 3, 3, 23)]
    op = GaussianSplatRenderBackward(4, 4)
    with pytest.raises(OpError, match=r"d_rgba must be flat like the image, \[64\], got f32\[16,4\]"):
        op.infer(*shapes, rlx.Shape((16, 4)))
    with pytest.raises(OpError, match="needs one dtype for all"):
        op.infer(*shapes, rlx.Shape((64,), "f64"))
