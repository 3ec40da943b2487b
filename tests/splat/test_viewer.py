"""The page of the viewer: what is in it, and that its numbers are those of the scene."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from test_scene_files import random_scene

from rlx.splat import Camera, read_png, render, synthetic_scene, write_viewer
from rlx.splat.viewer import PER_SPLAT


@pytest.fixture
def page(tmp_path):
    scene = random_scene(20, 3)
    camera = Camera.look_at((0, 1, 3), (0, 0, 0), (0, 1, 0), 64, 48, 50.0)
    write_viewer(tmp_path / "scene.html", scene, camera, background=(0, 0.5, 1), title="a <b> & c")
    return scene, (tmp_path / "scene.html").read_text()


def test_the_numbers(page):
    scene, text = page
    document = json.loads(re.search(r'<script id="scene" type="application/json">(.*?)</script>', text).group(1))
    numbers = np.frombuffer(base64.b64decode(document["splats"]), np.float32).reshape(20, PER_SPLAT)
    np.testing.assert_array_equal(numbers[:, :3], scene.positions)
    np.testing.assert_allclose(numbers[:, 3], 1 / (1 + np.exp(-scene.opacities)), rtol=1e-6)
    turns = Rotation.from_quat(scene.rotations, scalar_first=True).as_matrix()
    covariance = turns @ (np.exp(2 * scene.scales)[:, :, None] * turns.transpose(0, 2, 1))
    np.testing.assert_allclose(numbers[:, 4:10], covariance[:, *np.triu_indices(3)], rtol=1e-4, atol=1e-7)
    bands = np.frombuffer(base64.b64decode(document["bands"]), np.uint8).reshape(20, 15, 3)
    assert np.abs(((bands + 0.5) / 256 - 0.5) * 8 - scene.sh[:, 1:]).max() <= 4 / 256 + 1e-6
    assert document["count"] == 20 and document["coefficients"] == 16
    np.testing.assert_allclose(document["eye"], (0, 1, 3))
    assert abs(document["fov"] - 50) < 1e-9


def test_it_is_one_file(page):
    _, text = page
    assert (
        "http" not in text.replace("http-equiv", "") and "import " not in text and "@" not in text.split("<script>")[0]
    )
    assert "<title>a &lt;b&gt; &amp; c</title>" in text and "rgb(0, 128, 255)" in text


def test_the_harmonics_of_the_shader_are_those_of_the_op(page):
    """The constants of bands 1 to 3, as the shader has them, times the polynomials of the op."""
    from rlx.ops.splat.geometry import SPHERICAL_HARMONICS

    _, text = page
    shine = text[text.index("vec3 shine") : text.index("void main")]
    constants = {round(abs(float(c)), 6) for c in re.findall(r"-?\d\.\d{6,}", shine)}
    leading = {round(max(abs(c) for c in p.values()), 6) for p in SPHERICAL_HARMONICS[1:]}
    # A polynomial's largest coefficient is the shader's constant times a whole number up to 4.
    for value in leading:
        assert any(abs(c * n - value) < 2e-6 for c in constants for n in (1, 2, 3, 4)), value


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here to read the script with")
def test_the_script_can_be_read(page, tmp_path):
    _, text = page
    (tmp_path / "script.js").write_text(re.search(r"<script>(.*?)</script>", text, re.S).group(1))
    subprocess.run(["node", "--check", str(tmp_path / "script.js")], check=True, timeout=60)


@pytest.mark.targets
def test_a_browser_shows_what_is_rendered(tmp_path):
    """The viewer blends by the screen's covariance, the op by distances to rays: near, and not equal."""
    from backends.wasm.page_runs import driving, watched

    scene = synthetic_scene(400)
    camera = Camera.look_at((0, 1.5, 3), (0, 0, 0), (0, 1, 0), 320, 240, 50.0)
    write_viewer(tmp_path / "scene.html", scene, camera)
    with driving() as browser, watched(browser("--use-angle=swiftshader", "--enable-unsafe-swiftshader")) as page:
        page.set_viewport_size({"width": 320, "height": 240})
        page.goto((tmp_path / "scene.html").as_uri())
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.evaluate("() => { document.getElementById('note').hidden = true; ask(); }")
        page.screenshot(path=str(tmp_path / "shown.png"))
        assert not page.faults
    shown, wanted = read_png(tmp_path / "shown.png")[..., :3] / 255, np.asarray(render(scene, camera))[..., :3]
    assert wanted.max() > 0.5, "the scene is not in the picture"
    assert np.abs(shown - wanted).mean() < 0.02, np.abs(shown - wanted).mean()
