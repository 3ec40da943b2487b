"""Rendering of Gaussian splats against an independent renderer without tiles."""

import numpy as np
import pytest
from splat_oracle import (
    alphas,
    camera_meta,
    display_image,
    make_scene,
    pixel_directions,
    real_spherical_harmonics,
    splat_colors,
)

import rlx
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ops.splat.geometry import sh_basis, sh_basis_slopes
from rlx.ops.splat.render import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatPrepare,
    GaussianSplatRasterize,
    GaussianSplatRender,
    GaussianSplatRenderParams,
    gaussian_splat_packed_grad_len,
    gaussian_splat_prep_packed_len,
    gaussian_splat_prepare,
    gaussian_splat_rasterize,
    gaussian_splat_render,
    gaussian_splat_render_decomposed,
    gaussian_splat_render_meta,
    gaussian_splat_tile_count,
    unpack_gaussian_splat_packed_grads,
)
from rlx.ops.splat.scene import PreparedScene, unpack_prepared

SMALL = GaussianSplatRenderParams(width=12, height=10, tile_size=4, max_list_entries=400)


def render(scene, params=SMALL):
    return np.asarray(gaussian_splat_render(scene, params)).reshape(-1, 4)


def prepared(scene, params=SMALL):
    return unpack_prepared(np.asarray(gaussian_splat_prepare(scene, params)), params)


def listed(scene, params=SMALL):
    """The ids in the list of every tile."""
    found = prepared(scene, params)
    return [found.entries[int(a) : int(b)].astype(int).tolist() for a, b in found.ranges]


def assert_shows(scene, params=SMALL, atol=1e-12):
    """The image is the oracle's; where a tile lists nothing, alpha is 1."""
    expected = display_image(scene, params).reshape(params.height, params.width, 4)
    columns = -(-params.width // params.tile_size)
    for tile, ids in enumerate(listed(scene, params)):
        if not ids:
            top, left = (params.tile_size * i for i in divmod(tile, columns))
            expected[top : top + params.tile_size, left : left + params.tile_size, 3] = 1.0
    np.testing.assert_allclose(render(scene, params), expected.reshape(-1, 4), rtol=0, atol=atol)


def test_defaults_are_those_of_the_op():
    settings = (64, 64, 16, 1.6, 1 / 255, 32, 0.01, 576)
    assert GaussianSplatRenderParams() == settings
    assert GaussianSplatRender().params == GaussianSplatPrepare().params == settings
    assert GaussianSplatBackwardParams() == (GaussianSplatRenderParams(), 1.0, 0, 10.0)


def test_lengths_of_packed_buffers():
    params = GaussianSplatRenderParams(width=17, height=16, max_list_entries=7)
    assert gaussian_splat_tile_count(params) == 2
    assert gaussian_splat_prep_packed_len(3, params) == 15 * 3 + 7 + 2 * 2 + 3 * 17 * 16 + 11
    assert gaussian_splat_prep_packed_len(0, params) == gaussian_splat_prep_packed_len(1, params)
    assert gaussian_splat_packed_grad_len(3, 4) == 3 * (14 + 12)
    assert gaussian_splat_packed_grad_len(3, 0) == 3 * 17


def test_unpacking_gradients():
    packed = np.arange(gaussian_splat_packed_grad_len(2, 4))
    parts = unpack_gaussian_splat_packed_grads(packed, 2, 4)
    assert [len(p) for p in parts] == [6, 6, 8, 2, 6, 24]
    np.testing.assert_array_equal(np.concatenate(parts), packed)
    assert len(unpack_gaussian_splat_packed_grads(np.zeros(17), 1, 0)[-1]) == 0
    with pytest.raises(ShapeError, match=r"2 splats with 4 SH coefficients each have a gradient of dims \[52\], got"):
        unpack_gaussian_splat_packed_grads(packed[:-1], 2, 4)


def test_meta_holds_camera_and_settings_in_order():
    meta = gaussian_splat_render_meta((1, 2, 3), (4, 5, 6), (7, 8, 9), 10, 11, 12, (13, 14, 15), SMALL)
    assert meta.dtype == np.float32
    np.testing.assert_array_equal(meta[:15], range(1, 16))
    np.testing.assert_allclose(meta[15:], SMALL, rtol=1e-7)
    with pytest.raises(ShapeError, match=r"up needs 3 numbers, got \(0, 1\)"):
        gaussian_splat_render_meta((0, 0, 4), (0, 0, 0), (0, 1), 60, 0.1, 100, (0, 0, 0))


@pytest.mark.parametrize("count, coefficients", [(1, 0), (3, 1), (6, 4), (4, 9), (4, 16), (12, 3)])
def test_images_agree_with_a_renderer_without_tiles(count, coefficients):
    assert_shows(make_scene(count, coefficients, seed=count))


@pytest.mark.parametrize("tile_size", [1, 3, 16])
def test_the_tile_size_does_not_change_the_colours(tile_size):
    scene = make_scene(8, 1, seed=3, scales=np.random.default_rng(0).uniform(-4, -1.5, 24))
    expected = render(scene)
    other = render(scene, SMALL._replace(tile_size=tile_size, max_list_entries=2000))
    np.testing.assert_allclose(other[:, :3], expected[:, :3], atol=1e-14)


def test_the_validation_scene():
    """18 splats on a line, in f32, to the stated bound of 2e-6."""
    i = np.arange(18)
    t = i / 17
    scene = GaussianSplatInputs(
        positions=np.stack([2 * t - 1, 0.8 * np.sin(0.17 * i), 2 * t - 1], axis=-1).reshape(-1),
        scales=np.full(54, np.log(0.04)),
        rotations=np.tile([1.0, 0.0, 0.0, 0.0], 18),
        opacities=0.25 + 0.5 * t,
        colors=np.stack([0.2 + 0.7 * t, 0.15 + 0.6 * (1 - t), 0.1 + 0.5 * t], axis=-1).reshape(-1),
        sh_coeffs=np.zeros(0),
        meta=camera_meta(pos=(0, 0, 4), target=(0, 0, 0), fov=60.0, bg=(0.1, 0.15, 0.2)),
    )
    params = GaussianSplatRenderParams(width=32, height=32, tile_size=8)
    single = GaussianSplatInputs(*(x.astype(np.float32) for x in scene))
    image = render(single, params)
    assert image.dtype == np.float32
    expected = display_image(GaussianSplatInputs(*(x.astype(np.float64) for x in single)), params)
    np.testing.assert_allclose(image[:, :3], expected[:, :3], rtol=0, atol=2e-6)


def test_spherical_harmonics_are_scipys():
    directions = np.random.default_rng(0).normal(size=(5, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    expected = np.array([real_spherical_harmonics(d) for d in directions])
    for count in (1, 2, 4, 9, 16):
        np.testing.assert_allclose(sh_basis(np, directions, count), expected[:, :count], rtol=1e-12, atol=1e-14)


def test_slopes_of_spherical_harmonics():
    at, step = np.array([[0.3, -0.5, 0.7]]), 1e-6
    for axis in range(3):
        shift = step * np.eye(3)[axis]
        difference = (sh_basis(np, at + shift, 16) - sh_basis(np, at - shift, 16)) / (2 * step)
        np.testing.assert_allclose(sh_basis_slopes(np, at, 16)[:, :, axis], difference, atol=1e-9)


def test_colours_towards_the_camera():
    scene = make_scene(3, 9, seed=1)
    np.testing.assert_allclose(prepared(scene).color_alpha[:, :3], splat_colors(scene), atol=1e-14)


def test_zeros_in_band_0_let_colors_stand_in():
    coefficients = np.random.default_rng(0).uniform(-0.3, 0.3, (2, 4, 3))
    coefficients[:, 0] = 0.0
    scene = make_scene(2, 4, colors=[0.2, 1.5, -0.5, 0.1, 0.9, 0.4], sh_coeffs=coefficients.reshape(-1))
    np.testing.assert_allclose(prepared(scene).color_alpha[:, :3], splat_colors(scene), atol=1e-14)
    coefficients[1, 0, 0] = 1e-3
    scene = scene._replace(sh_coeffs=coefficients.reshape(-1))
    np.testing.assert_allclose(prepared(scene).color_alpha[:, :3], splat_colors(scene), atol=1e-14)


def test_quaternions_are_used_as_given():
    """v + 2·((v×u + w·v)×u), which is no rotation unless |q| = 1; tiles must still list what is seen."""
    scene = make_scene(4, 0, seed=2, scales=np.random.default_rng(0).uniform(-4, -1.5, 12))
    scene = scene._replace(rotations=scene.rotations * np.repeat([0.8, 1.1, 1.0, 0.7], 4))
    found = prepared(scene)
    w, u = scene.rotations.reshape(4, 4)[:, :1], scene.rotations.reshape(4, 4)[:, 1:]
    offset = scene.meta[:3] - scene.positions.reshape(4, 3)
    turned = offset + 2 * np.cross(np.cross(offset, u) + w * offset, u)
    sigma = SMALL.radius_scale * np.exp(scene.scales.reshape(4, 3))
    np.testing.assert_allclose(found.pos_local, turned / (3 * sigma), rtol=1e-12)
    one_tile = SMALL._replace(tile_size=16)
    np.testing.assert_allclose(render(scene)[:, :3], render(scene, one_tile)[:, :3], atol=1e-14)
    assert any(len(ids) < 4 for ids in listed(scene))


def test_a_tile_lists_exactly_the_splats_that_reach_into_it():
    params = GaussianSplatRenderParams(width=16, height=16, tile_size=2, max_list_entries=4000)
    scene = make_scene(5, 0, seed=4, scales=np.random.default_rng(1).uniform(-3.5, -1.0, 15))
    fine = 12
    dense = alphas(scene, pixel_directions(scene.meta, 16 * fine, 16 * fine), params.radius_scale)
    largest = dense.reshape(8, 2 * fine, 8, 2 * fine, 5).max(axis=(1, 3)).reshape(64, 5)
    for ids, alpha in zip(listed(scene, params), largest):
        for splat in range(5):
            # Between the two bounds lie outlines that pass between the samples or are widened by 1/8 pixel.
            if alpha[splat] >= params.alpha_cutoff:
                assert splat in ids
            if alpha[splat] < 0.4 * params.alpha_cutoff:
                assert splat not in ids
    assert 0 < sum(map(len, listed(scene, params))) < 64 * 5


def test_entries_go_from_near_to_far():
    scene = make_scene(6, 0, seed=5, scales=np.full(18, -0.5))
    distances = np.linalg.norm(scene.positions.reshape(-1, 3) - scene.meta[:3], axis=-1)
    for ids in listed(scene):
        assert ids == sorted(ids, key=lambda i: distances[i])


def test_equal_distances_keep_the_order_of_splats():
    scene = make_scene(3, 0, positions=np.zeros(9), scales=np.full(9, -1.0))
    assert listed(scene)[4] == [0, 1, 2]


def test_the_list_is_cut_at_the_far_end():
    scene = make_scene(6, 0, seed=5, scales=np.full(18, -0.5))
    full, cut = listed(scene), listed(scene, SMALL._replace(max_list_entries=11))
    assert sum(map(len, cut)) == 11
    order = np.argsort(np.linalg.norm(scene.positions.reshape(-1, 3) - scene.meta[:3], axis=-1))
    pairs = [(rank, tile) for rank, i in enumerate(order) for tile, ids in enumerate(full) if i in ids][:11]
    assert cut == [[order[r] for r, t in pairs if t == tile] for tile in range(len(full))]


def test_pixels_stop_at_the_threshold():
    scene = make_scene(8, 0, seed=6, scales=np.full(24, 0.0), opacities=np.full(8, 0.9))
    loose = SMALL._replace(transmittance_threshold=0.3)
    assert_shows(scene, loose)
    assert np.abs(render(scene, loose) - render(scene, SMALL._replace(transmittance_threshold=1e-9))).max() > 1e-3


def test_the_step_limit_does_not_change_the_image():
    scene = make_scene(6, 0, seed=7)
    np.testing.assert_array_equal(render(scene, SMALL._replace(max_splat_steps=1)), render(scene))


@pytest.mark.parametrize(
    "changes",
    [
        {"opacities": [0.003]},
        {"opacities": [-0.5]},
        {"positions": [0.0, 0.0, 4.5]},
        {"positions": [0.0, 0.0, 3.95]},
        {"positions": [0.0, 0.0, -60.0]},
        {"positions": [30.0, 0.0, 0.0]},
        {"positions": [np.nan, 0.0, 0.0]},
    ],
    ids=["faint", "negative opacity", "behind", "before the near plane", "beyond the far plane", "beside", "nan"],
)
def test_what_cannot_be_seen_is_not_listed(changes):
    scene = make_scene(1, 0, scales=np.full(3, -3.0), **changes)
    found = prepared(scene)
    assert not found.valid.any()
    assert not found.color_alpha.any()
    np.testing.assert_array_equal(found.ranges, np.tile([float(0xFFFFFFFF), 0.0], (len(found.ranges), 1)))
    background = np.array([*scene.meta[12:15] ** 2.2, 1.0])
    np.testing.assert_allclose(render(scene), np.tile(background, (120, 1)), rtol=1e-15)


def test_opacities_above_1_are_clamped():
    scene = make_scene(2, 0, opacities=[3.0, 0.5])
    np.testing.assert_array_equal(prepared(scene).color_alpha[:, 3], [1.0, 0.5])
    assert_shows(scene)


def test_a_camera_inside_a_splat_sees_it_everywhere():
    scene = make_scene(1, 0, positions=[0.0, 0.0, 3.0], scales=[0.5, 0.5, 0.5])
    assert all(ids == [0] for ids in listed(scene))
    assert_shows(scene)


def test_a_splat_across_the_camera_plane():
    """Its outline is a hyperbola; it is listed everywhere when it may be seen, and nowhere when it lies aside."""
    ahead = make_scene(1, 0, positions=[1.0, 0.0, 3.4], scales=[-1.0, -1.0, 0.3], rotations=[1.0, 0, 0, 0])
    assert all(ids == [0] for ids in listed(ahead))
    assert_shows(ahead)
    aside = ahead._replace(positions=np.array([20.0, 0.0, 3.0]))
    assert not any(listed(aside))
    assert_shows(aside)


def test_a_needle_is_listed_wherever_it_is_seen():
    scene = make_scene(1, 0, positions=np.zeros(3), scales=[0.5, -9.0, -9.0], opacities=[0.9])
    scene = scene._replace(rotations=np.array([np.cos(0.4), 0.0, 0.0, np.sin(0.4)]))
    assert_shows(scene, SMALL._replace(tile_size=1))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_small_floats_are_computed_in_f32(dtype):
    dtype = rlx.DType.of(dtype).numpy
    scene = GaussianSplatInputs(*(x.astype(dtype) for x in make_scene(3, 4)))
    wide = GaussianSplatInputs(*(x.astype(np.float32) for x in scene))
    assert np.asarray(gaussian_splat_prepare(scene, SMALL)).dtype == np.float32
    np.testing.assert_array_equal(gaussian_splat_prepare(scene, SMALL), gaussian_splat_prepare(wide, SMALL))
    for function in (gaussian_splat_render, gaussian_splat_render_decomposed):
        image = np.asarray(function(scene, SMALL))
        assert image.dtype == dtype
        np.testing.assert_array_equal(image, np.asarray(function(wide, SMALL)).astype(dtype))


def test_the_layout_of_a_prepared_scene():
    scene = make_scene(2, 1)
    packed = np.asarray(gaussian_splat_prepare(scene, SMALL))
    found = prepared(scene)
    np.testing.assert_allclose(found.rays, pixel_directions(scene.meta, 12, 10), atol=1e-15)
    np.testing.assert_allclose(found.inv_scale, np.exp(-scene.scales).reshape(-1, 3) / 4.8)
    np.testing.assert_array_equal(found.quat.reshape(-1), scene.rotations)
    np.testing.assert_array_equal(packed[18:26], [*found.inv_scale.reshape(-1)[2:], *scene.rotations[:4]])
    settings = [12, 10, 4, 3, 1 / 255, 0.01, *scene.meta[12:15] ** 2.2, 32, 0]
    np.testing.assert_allclose(packed[-11:], settings, rtol=1e-15)


def test_an_empty_scene_is_background():
    scene = make_scene(0, 0)
    assert len(gaussian_splat_prepare(scene, SMALL)) == gaussian_splat_prep_packed_len(1, SMALL)
    np.testing.assert_allclose(render(scene), np.tile([*scene.meta[12:15] ** 2.2, 1.0], (120, 1)))


def test_two_stages_are_the_render():
    scene = make_scene(5, 4)
    staged = gaussian_splat_rasterize(gaussian_splat_prepare(scene, SMALL), scene.meta, SMALL)
    np.testing.assert_array_equal(staged, gaussian_splat_render(scene, SMALL))
    np.testing.assert_array_equal(gaussian_splat_render_decomposed(scene, SMALL), staged)


SYMBOLIC = [(f"{w}*N",) for w in (3, 3, 4, 1, 3, 12)] + [(23,)]


@pytest.mark.parametrize("params", [SMALL, SMALL._replace(max_list_entries=11, tile_size=3)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_stages_from_primitive_ops(count, params, traced):
    """Prepared parts one by one (the marks of empty tiles dwarf any common tolerance), with a symbolic scene size."""
    scene = make_scene(count, 4, seed=9, scales=np.random.default_rng(2).uniform(-3, -1, 3 * count))
    packed = traced(GaussianSplatPrepare(*params).decompose, *scene, dims=SYMBOLIC)
    found, expected = unpack_prepared(packed, params), prepared(scene, params)
    for name in PreparedScene._fields:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-13, atol=1e-13, err_msg=name)
    np.testing.assert_allclose(packed[-11:], np.asarray(gaussian_splat_prepare(scene, params))[-11:], rtol=1e-15)


def test_builders_record_the_ops():
    graph = Graph("splats")
    scene = make_scene(3, 1)
    inputs = GaussianSplatInputs(*(graph.input(n, x.shape, "f64") for n, x in zip(scene._fields, scene)))
    meta = graph.gaussian_splat_render_meta((0, 0, 4), (0, 0, 0), (0, 1, 0), 60.0, 0.1, 100.0, (0, 0, 0), SMALL)
    assert meta.type == rlx.Shape((23,), "f32")
    whole = graph.gaussian_splat_render(inputs, SMALL)
    prep = graph.gaussian_splat_prepare(inputs, SMALL)
    staged = graph.gaussian_splat_rasterize(prep, inputs.meta, SMALL)
    both = graph.gaussian_splat_render_decomposed(inputs, SMALL)
    backward = graph.gaussian_splat_render_backward(inputs, whole, GaussianSplatBackwardParams(SMALL))
    assert isinstance(backward.node.op, rlx.ops.GaussianSplatRenderBackward)
    graph.set_outputs([whole, staged, both])
    whole, staged, both = interpret(graph, list(scene))
    np.testing.assert_array_equal(staged, whole)
    np.testing.assert_array_equal(both, whole)


def operands(n="N", k=1, dtype="f32"):
    return [rlx.Shape((size,), dtype) for size in (f"3*{n}", f"3*{n}", f"4*{n}", f"{n}", f"3*{n}", f"{3 * k}*{n}", 23)]


def test_types():
    render, prepare = GaussianSplatRender(8, 8, 4), GaussianSplatPrepare(8, 8, 4)
    assert render.infer(*operands(dtype="bf16")) == rlx.Shape((256,), "bf16")
    assert prepare.infer(*operands(dtype="bf16")) == rlx.Shape(("15*max(N, 1) + 787",), "f32")
    assert prepare.infer(*operands(n=2, dtype="f64")) == rlx.Shape((817,), "f64")


@pytest.mark.parametrize(
    "index, shape, message",
    [
        (
            0,
            "f32[7]",
            r"splat_render: positions must hold 6 numbers for the 2 splats of opacities, got f32\[7\]",
        ),
        (2, "f32[2,4]", r"rotations must be flat, of rank 1, got f32\[2,4\]; reshape it to \(-1,\)"),
        (5, "f32[7]", r"sh_coeffs must hold 6 numbers for the 2 splats"),
        (5, "f32[102]", r"sh_coeffs must be \[2\*K\*3\] with a fixed K of at most 16, got f32\[102\]"),
        (5, "f32[S]", r"sh_coeffs must be \[2\*K\*3\] with a fixed K of at most 16, got f32\[S\]"),
        (6, "f32[22]", r"meta must hold 23 numbers"),
        (4, "f64[6]", "needs one dtype for all"),
        (4, "i32[6]", "needs float operands"),
    ],
)
def test_wrong_scenes_are_refused(index, shape, message):
    shapes = operands(n=2)
    shapes[index] = rlx.Shape.of(shape)
    with pytest.raises(OpError, match=message):
        GaussianSplatRender().infer(*shapes)


def test_more_splats_than_ids():
    with pytest.raises(OpError, match=r"16777217 splats are more than f32 ids can tell apart \(2\^24\)"):
        GaussianSplatRender().infer(*operands(n=2**24 + 1))
    GaussianSplatRender().infer(*operands(n=2**24 + 1, dtype="f64"))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"width": 0}, "width, height and tile_size are at least 1, got 0, 64 and 16"),
        ({"radius_scale": 0.0}, "radius_scale must be positive, got 0.0"),
        ({"alpha_cutoff": 0.0}, "alpha_cutoff lies between 0 and 1, both excluded; got 0.0"),
        ({"transmittance_threshold": 1.0}, "transmittance_threshold lies between 0 and 1, both excluded; got 1.0"),
        ({"max_splat_steps": -1}, "max_splat_steps cannot be negative"),
        ({"max_list_entries": 0}, r"max_list_entries is 1 to 2\^24, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(OpError, match=message):
        GaussianSplatRender(**settings)


def test_wrong_buffers_are_refused():
    op = GaussianSplatRasterize(8, 8, 4)
    meta = rlx.Shape((23,))
    with pytest.raises(OpError, match=r"prep must hold 802 \+ 15·i numbers, got f32\[816\]; prepare the scene"):
        op.infer(rlx.Shape((816,)), meta)
    with pytest.raises(OpError, match=r"prep must hold 802"):
        op.infer(rlx.Shape((787,)), meta)
    with pytest.raises(OpError, match=r"meta must be \[23\], got f32\[22\]"):
        op.infer(rlx.Shape((802,)), rlx.Shape((22,)))
    with pytest.raises(OpError, match="needs f32 or f64 operands"):
        op.infer(rlx.Shape((802,), "f16"), rlx.Shape((23,), "f16"))
