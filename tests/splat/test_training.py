"""Losses, the optimiser, the schedule of densities, and training as a whole."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from test_scene_files import random_scene

from rlx.errors import FormatError, ShapeError
from rlx.splat import (
    DensitySettings,
    TrainSettings,
    load_dataset,
    psnr,
    read_scene,
    ssim,
    train,
    write_png,
    write_synthetic,
)
from rlx.splat.adam import AdamState, adam_step
from rlx.splat.checkpoint import read_checkpoint
from rlx.splat.dataset import downscaled
from rlx.splat.density import Pulls, densify, reset_opacities
from rlx.splat.scene import logit, sigmoid
from rlx.splat.training import Trainer


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    truth = write_synthetic(folder, views=9, width=48, height=36, splats=300, points=100)
    return folder, truth


def test_ssim_is_that_of_gaussian_windows():
    """Inside, where no window is cut, against SciPy's filter."""
    rng = np.random.default_rng(0)
    a, b = (np.cumsum(rng.uniform(0, 0.1, (40, 36, 3)), axis=0) % 1.0 for _ in range(2))
    b = 0.5 * a + 0.5 * b

    def blurred(x):
        return gaussian_filter(x, 1.5, axes=(0, 1), truncate=5 / 1.5, mode="reflect")

    ma, mb = blurred(a), blurred(b)
    va, vb, cov = blurred(a * a) - ma**2, blurred(b * b) - mb**2, blurred(a * b) - ma * mb
    similar = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    # The windows at the edges differ, so pictures that are 1 apart from the edge are compared by a crop of the map.
    from rlx.splat.losses import ssim_map

    found = np.asarray(ssim_map(a.astype(np.float32), b.astype(np.float32)))
    np.testing.assert_allclose(found[5:-5, 5:-5], similar[5:-5, 5:-5], atol=1e-4)
    assert abs(float(ssim(a.astype(np.float32), a.astype(np.float32))) - 1) < 1e-6


def test_psnr():
    a = np.zeros((4, 4, 3))
    assert psnr(a, a) == np.inf
    assert abs(psnr(a + 0.1, a) - 20) < 1e-9


def test_adam_is_the_published_rule():
    scene = random_scene(5, 0)
    gradient, rates = random_scene(5, 0, seed=1), type(scene)(*(np.float32(r) for r in (0.1, 0.2, 0.3, 0.4, 0.5)))
    state, moved = AdamState.zeros(scene), scene
    for step in range(1, 4):
        moved, state = adam_step(moved, gradient, state, rates, np.float32(step))
    for x, y, g, rate in zip(scene, moved, gradient, rates):
        # With a gradient that stays, both corrected means are the gradient's own: each step is its sign.
        np.testing.assert_allclose(np.asarray(y), x - 3 * rate * np.sign(g), rtol=1e-4, atol=1e-4)


def test_densities_follow_the_pulls():
    scene = random_scene(10, 0)
    scales = np.log(np.full((10, 3), 0.001, np.float32))
    scales[5:] = np.log(0.05)
    scene = scene._replace(scales=scales, opacities=logit(np.full(10, 0.5)))
    state = AdamState(*(s._replace(positions=s.positions + 7) for s in AdamState.zeros(scene)))
    pulls = Pulls(10)
    pulls.total[[0, 7]] = 1.0
    pulls.seen[:] = 1
    changed = densify(scene, state, pulls, 1.0, DensitySettings(), np.random.default_rng(0), False)
    assert (changed.cloned, changed.split, changed.pruned) == (1, 1, 0)
    assert changed.scene.splats == 12 and changed.state.mean.splats == 12
    np.testing.assert_array_equal(changed.scene.positions[9], scene.positions[0])
    np.testing.assert_allclose(np.exp(changed.scene.scales[10:]), 0.05 / 1.6, rtol=1e-5)
    assert np.linalg.norm(changed.scene.positions[10:] - scene.positions[7], axis=1).max() < 0.05 * 5
    # Those that stay keep their memory, those that are new have none.
    assert (changed.state.mean.positions[:9] == 7).all() and (changed.state.mean.positions[9:] == 0).all()


def test_densities_have_a_limit_and_prune():
    scene = random_scene(10, 0)._replace(opacities=logit(np.r_[np.full(9, 0.5), 0.001]))
    pulls = Pulls(10)
    pulls.total[:] = np.arange(10)
    pulls.seen[:] = 1
    settings = DensitySettings(max_splats=12)
    changed = densify(scene, AdamState.zeros(scene), pulls, 1.0, settings, np.random.default_rng(0), False)
    assert changed.split == 2 and changed.scene.splats <= 12 and changed.pruned >= 1
    assert (sigmoid(changed.scene.opacities) >= 0.005).all()
    large = densify(scene, AdamState.zeros(scene), Pulls(10), 3.0, settings, np.random.default_rng(0), True)
    assert (np.exp(large.scene.scales).max(axis=1) <= 0.3).all() and 1 < large.pruned < 9
    gone = scene._replace(opacities=np.full(10, -9, np.float32))
    left = densify(gone, AdamState.zeros(gone), Pulls(10), 1.0, settings, np.random.default_rng(0), False)
    assert left.scene.splats == 1


def test_resets_lower_opacities():
    scene = random_scene(10, 0)
    state = AdamState(*(s._replace(opacities=s.opacities + 7) for s in AdamState.zeros(scene)))
    lowered, forgotten = reset_opacities(scene, state)
    np.testing.assert_allclose(sigmoid(lowered.opacities), np.minimum(sigmoid(scene.opacities), 0.01), rtol=1e-4)
    assert not forgotten.mean.opacities.any()


def test_datasets(toy, tmp_path):
    folder, _ = toy
    data = load_dataset(folder)
    assert len(data.training) == 7 and len(data.held_out) == 2 and len(data.points) == 100
    np.testing.assert_allclose(data.center, (0, -0.05, 0), atol=1e-6)
    small = load_dataset(folder, downscale=2, hold_out_every=0)
    assert len(small.training) == 9 and small.training[0].picture.shape == (18, 24, 3)
    np.testing.assert_allclose(small.training[0].picture, downscaled(data.held_out[0].picture, 2))
    with pytest.raises(FormatError, match="leave none to train on"):
        load_dataset(folder, hold_out_every=1)
    write_png(folder / "images" / "view_000.png", np.zeros((36, 36, 3), np.uint8))
    with pytest.raises(FormatError, match="36x36 pixels, its camera 48x36"):
        load_dataset(folder)
    write_synthetic(folder, views=9, width=48, height=36, splats=300, points=100)


SETTINGS = TrainSettings(
    steps=120,
    sh_degree=1,
    report_every=40,
    band_every=60,
    checkpoint_every=60,
    position_rate=1e-3,
    last_position_rate=1e-4,
    density=DensitySettings(first_step=20, last_step=80, every=20, reset_every=1000, max_splats=250),
)


def test_training_learns(toy, tmp_path):
    """Better pictures of views that were held out, more splats, and the same again after a stop."""
    folder, _ = toy
    data = load_dataset(folder)
    start = Trainer(data, SETTINGS).evaluate()
    path = tmp_path / "state.npz"
    result = train(data, SETTINGS, checkpoint=path)
    assert [p.step for p in result.history] == [40, 80, 120]
    assert result.psnr > start + 3.0
    assert result.history[-1].loss < 0.6 * result.history[0].loss
    assert 100 < result.scene.splats <= 250
    assert result.scene.sh[:, 1:].any()
    assert read_checkpoint(path).step == 120

    again = tmp_path / "again.npz"
    trainer = Trainer(data, SETTINGS._replace(report_every=1), again)
    for progress in trainer.run():
        if progress.step == 90:
            break
    assert read_checkpoint(again).step == 60
    resumed = train(data, SETTINGS, checkpoint=again)
    assert resumed.history[0].step == 80
    # Pulls since the last change of density start again, so that splats may differ; what is learnt does not much.
    assert abs(resumed.psnr - result.psnr) < 1.0


def test_wrong_training_is_refused(toy, tmp_path):
    folder, _ = toy
    data = load_dataset(folder)
    with pytest.raises(ShapeError, match="needs steps and an sh_degree of 0 to 3, got 0 and 1"):
        train(data, SETTINGS._replace(steps=0))
    with pytest.raises(ShapeError, match="no views to train on"):
        train(data._replace(training=[]), SETTINGS)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="not a checkpoint of splat training"):
        train(data, SETTINGS, checkpoint=tmp_path / "bad.npz")
    train(data, SETTINGS._replace(steps=1), checkpoint=tmp_path / "one.npz")
    with pytest.raises(ShapeError, match="4 coefficients per splat, an sh_degree of 0 needs 1"):
        train(data, SETTINGS._replace(sh_degree=0), checkpoint=tmp_path / "one.npz")


def test_the_command(toy, tmp_path, capsys):
    from rlx.cli import main

    folder, _ = toy
    out = tmp_path / "out.ply"
    words = ["splat", "train", str(folder), str(out), "--steps", "2", "--sh-degree", "0", "--json"]
    assert main(words) == 0
    assert '"psnr"' in capsys.readouterr().out
    assert read_scene(out).splats == 100
    camera = ["--camera", "0,1,3", "--size", "48x36"]
    assert main(["splat", "render", str(out), *camera, str(tmp_path / "a.png")]) == 0
    assert (
        main(["splat", "render", str(out), "--camera", "view_003.png", "--model", str(folder), str(tmp_path / "b.png")])
        == 0
    )
    assert main(["splat", "orbit", str(out), *camera, "--frames", "2", str(tmp_path / "c.png")]) == 0
    assert main(["splat", "view", str(out), *camera, str(tmp_path / "d.html")]) == 0
    assert main(["splat", "compress", str(out), str(tmp_path / "e.ply")]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"out.ply", "a.png", "b.png", "c.png", "d.html", "e.ply"}
    capsys.readouterr()
    assert main(["splat", "render", str(out), "--camera", "here", str(tmp_path / "f.png")]) == 1
    assert "--camera must be x,y,z" in capsys.readouterr().err
    assert main(["splat", "render", str(out), "--camera", "x", "--model", str(folder), str(tmp_path / "f.png")]) == 1
    assert "no picture is called 'x'; it has 9" in capsys.readouterr().err
    assert main(["splat", "train", str(tmp_path), str(out)]) == 1
    assert "no COLMAP model" in capsys.readouterr().err
    assert not (tmp_path / "f.png").exists()
