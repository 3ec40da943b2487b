"""The examples of the gallery: what they compute against references nobody here wrote, and, in the long tests, each
file as a user runs it."""

import importlib
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import rlx

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
RNG = np.random.default_rng(1)


@pytest.fixture
def example(monkeypatch):
    """A file of the folder as a module; its neighbours are found as when it is run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def decoded(path):
    """The pixels of a PNG file without filters, by the format's own description."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, parts = 8, {}
    while place < len(data):
        size, name = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(name + body)
        parts[name], place = body, place + 12 + size
    width, height, depth, kind = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width, 3) if kind == 2 else (height, width))


def test_pictures_are_png_files(example, tmp_path):
    pictures = example("pictures")
    image = RNG.integers(0, 256, (5, 7, 3), np.uint8)
    pictures.write_png(tmp_path / "a.png", image)
    np.testing.assert_array_equal(decoded(tmp_path / "a.png"), image)
    pictures.write_png(tmp_path / "b.png", image[..., 0])
    np.testing.assert_array_equal(decoded(tmp_path / "b.png"), image[..., 0])
    with pytest.raises(ValueError, match=r"needs an image \[h, w\] or \[h, w, 3\], got \(5, 7, 2\)"):
        pictures.write_png(tmp_path / "c.png", image[..., :2])
    scale = pictures.colours([0.0, 1.0, -3.0, 9.0, np.nan])
    np.testing.assert_array_equal(scale[[0, 1, 0]], scale[[2, 3, 4]])


def test_parallel_smoothing_is_the_smoother(example):
    """The textbook's recursions, one measurement after the other."""
    kalman = example("kalman")
    _, y = kalman.track(20, 0.5, 0.8)
    q, r = 0.7, 0.9
    f, kicks, h = kalman.MOTION, q * kalman.KICKS, kalman.MEASURED
    mean, spread = kalman.FIRST_MEAN, kalman.FIRST_SPREAD
    steps = []
    surprise = 0.0
    for measured in y:
        mean, spread = f @ mean, f @ spread @ f.T + kicks
        predicted = (mean, spread)
        seen = h @ spread @ h.T + r * np.eye(2)
        miss = measured - h @ mean
        surprise += 0.5 * (miss @ np.linalg.inv(seen) @ miss + np.log(np.linalg.det(2 * np.pi * seen)))
        gain = spread @ h.T @ np.linalg.inv(seen)
        mean, spread = mean + gain @ miss, spread - gain @ seen @ gain.T
        steps.append((*predicted, mean, spread))
    means, spreads = [mean], [spread]
    for (_, _, mean, spread), (next_mean, next_spread, _, _) in zip(steps[-2::-1], steps[:0:-1]):
        back = spread @ f.T @ np.linalg.inv(next_spread)
        means.append(mean + back @ (means[-1] - next_mean))
        spreads.append(spread + back @ (spreads[-1] - next_spread) @ back.T)
    got = kalman.smoothed(y, q, r)
    np.testing.assert_allclose(got[0], means[::-1], atol=1e-9)
    np.testing.assert_allclose(got[1], spreads[::-1], atol=1e-9)
    np.testing.assert_allclose(kalman.surprise(np.log([q, r]), y), surprise / 20, rtol=1e-9)


def test_nets_hang_as_scipy_says(example):
    net_of = example("form_finding")
    net = net_of.square_net(7)
    q = RNG.uniform(0.5, 2.0, len(net.edges))
    incidence = scipy.sparse.coo_matrix(
        (
            np.tile([1.0, -1.0], len(net.edges)),
            (np.repeat(np.arange(len(net.edges)), 2), net.edges.reshape(-1)),
        ),
        (len(net.edges), len(net.xyz)),
    ).tocsr()
    free, fixed = incidence[:, net.free], incidence[:, ~net.free]
    stiffness = free.T @ scipy.sparse.diags(q) @ free
    right = net.loads[net.free] - free.T @ scipy.sparse.diags(q) @ fixed @ net.xyz[~net.free]
    wanted = scipy.sparse.linalg.spsolve(stiffness.tocsc(), right)
    positions = net_of.equilibrium(net)
    got = np.asarray(rlx.jit(positions)(q))
    np.testing.assert_allclose(got[net.free], wanted, atol=1e-10)
    np.testing.assert_array_equal(got[~net.free], net.xyz[~net.free])

    def loss(q):
        return rlx.numpy.sum(rlx.numpy.sin(3.0 * positions(q)))

    direction = RNG.standard_normal(len(q))
    wanted_slope = (float(loss(q + 1e-6 * direction)) - float(loss(q - 1e-6 * direction))) / 2e-6
    np.testing.assert_allclose(np.asarray(rlx.grad(loss)(q)) @ direction, wanted_slope, rtol=1e-5)


def test_leapfrog_goes_back_the_way_it_came(example):
    nbody = example("nbody")
    x, v = RNG.standard_normal((3, 2)), RNG.standard_normal((3, 2))
    others = ([1, 2], [0, 2], [0, 1])
    away = [sum((x[j] - x[i]) / np.linalg.norm(x[j] - x[i]) ** 3 for j in near) for i, near in enumerate(others)]
    np.testing.assert_allclose(nbody.acceleration(x), away, rtol=1e-12)
    there = nbody.leapfrog((x, v), 0.01)
    back = nbody.leapfrog(there, -0.01)
    np.testing.assert_allclose(back[0], x, atol=1e-14)
    np.testing.assert_allclose(back[1], v, atol=1e-14)


def test_neighbours_and_their_weights(example):
    umap = example("umap_digits")
    x, labels = umap.drawn_digits(60)
    assert x.shape == (60, 784) and x.min() >= 0 and x.max() <= 1 and set(labels) <= set(range(10))
    found, distances = umap.neighbours(x, 5, block=25)
    exact = np.linalg.norm(x[:, None].astype("f8") - x[None], axis=-1)
    np.fill_diagonal(exact, np.inf)
    np.testing.assert_allclose(distances, np.sort(exact, -1)[:, :5], atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(exact, found, -1), distances, atol=1e-3)
    weight = np.asarray(umap.weights(distances))
    np.testing.assert_allclose(weight.sum(-1), np.log2(5), rtol=1e-3)
    dense = np.zeros((60, 60))
    np.put_along_axis(dense, found, weight, -1)
    union = dense + dense.T - dense * dense.T
    i, j, w = umap.joined(found, weight)
    got = np.zeros((60, 60))
    got[i, j] = got[j, i] = w
    np.testing.assert_allclose(got, union, atol=1e-6)


def test_normals_stand_on_surfaces(example):
    scene = example("ray_marching")
    # On the floor, and on top of the lowest ball.
    points = np.array([[3.0, 0.0, 1.0], [-2.0, 0.0, -2.0]], "f4")
    np.testing.assert_allclose(scene.normals(points), [[0, 1, 0], [0, 1, 0]], atol=1e-3)
    far, _ = scene.walk(np.array([3.0, 2.0, 1.0], "f4"), np.array([[0.0, -1.0, 0.0]], "f4"), 60)
    np.testing.assert_allclose(far, [2.0], atol=1e-3)


def run(script, folder, *options):
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text)]


@pytest.mark.long
def test_the_radio_plays(tmp_path):
    said = run("radio.py", tmp_path, "--out", "radio")
    station, *tones = numbers(said)[:5]
    assert abs(station - 180) < 3
    # Quarters of a second tell tones apart that are 4 Hz apart.
    np.testing.assert_allclose(tones, [440.0, 554.37, 659.26, 880.0], atol=4)
    picture = decoded(tmp_path / "radio.png").astype(int).sum(-1)
    assert picture.shape == (250, 512)
    # The station is brighter than the band beside it.
    assert picture[:, 320:378].mean() > 1.2 * picture[:, 400:].mean()
    assert rlx.audio.read_wav(tmp_path / "radio.wav").rate == 44100


@pytest.mark.long
def test_the_orbit_closes(tmp_path):
    said = run("nbody.py", tmp_path)
    distances = numbers(said.splitlines()[0])
    assert distances[0] > 0.1 and distances[-1] < 1e-5
    velocity = numbers(said.splitlines()[1])
    np.testing.assert_allclose(velocity[:2], velocity[2:], atol=1e-4)
    assert numbers(said.splitlines()[2])[0] < 1e-9
    assert decoded(tmp_path / "nbody.png").min() < 100


@pytest.mark.long
def test_the_track_is_smoothed(tmp_path):
    said = run("kalman.py", tmp_path)
    motion, _, measurement, _ = numbers(said.splitlines()[0])
    assert 0.15 < motion < 0.6 and 0.9 < measurement < 1.1
    measured, smoothed = numbers(said.splitlines()[1])
    assert smoothed < 0.3 * measured
    assert decoded(tmp_path / "kalman.png").min() < 100


@pytest.mark.long
def test_the_net_comes_to_its_target(tmp_path):
    before, after = numbers(run("form_finding.py", tmp_path).splitlines()[1])[:2]
    assert after < 0.2 * before
    assert decoded(tmp_path / "net.png").min() < 100


@pytest.mark.long
def test_evolution_finds_the_minimum(tmp_path):
    said = run("cma_es.py", tmp_path).splitlines()
    assert numbers(said[0])[2] < 1e-6 and numbers(said[1])[2] < 1e-10
    np.testing.assert_allclose(numbers(said[2]), 1.0, atol=1e-3)
    assert decoded(tmp_path / "cma_es.png").std() > 10


@pytest.mark.long
def test_the_scene_is_rendered(tmp_path):
    run("ray_marching.py", tmp_path, "--width", "160")
    picture = decoded(tmp_path / "scene.png").astype(int)
    assert picture.shape == (90, 160, 3)
    # Sky above is blue, the ring on the right is not.
    assert picture[5, 80, 2] > picture[5, 80, 0] and picture[50, 120, 0] > picture[50, 120, 2]


@pytest.mark.long
def test_digits_find_their_like(tmp_path):
    said = run("umap_digits.py", tmp_path, "--count", "800")
    _, trust, alike = numbers(said)
    assert trust > 0.95 and alike > 95
    assert decoded(tmp_path / "digits.png").min() < 100


@pytest.mark.long
def test_the_policy_is_steered(tmp_path):
    learnt, steered = (numbers(line) for line in run("flow_policy.py", tmp_path).splitlines())
    # Both habits are learnt, one is kept: numbers are left, right, gain, steps, arrived.
    assert min(learnt[0], learnt[1]) > 25 and steered[1] < 5
    assert steered[2] > 1.5 * learnt[2] and steered[4] > 90
    assert decoded(tmp_path / "flow_policy.png").min() < 100
