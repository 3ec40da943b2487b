"""Splatting against the torch renderer of benchmarks/splats.py: the picture, and autograd's gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rlx.ops.splat.render import GaussianSplatRenderBackward, GaussianSplatRenderParams
from rlx.ops.splat.scene import unpack_gaussian_splat_packed_grads

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]

PARAMS = GaussianSplatRenderParams(56, 40, 16, 1.0, 1 / 255, 0, 1e-4, 2**13)


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "splats.py"
    found = importlib.util.spec_from_file_location("benchmark_of_splats", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_gradients_are_those_of_autograd(benchmark):
    import torch

    scene = benchmark.random_scene(400, PARAMS)
    upstream = np.random.default_rng(1).normal(size=56 * 40 * 4).astype(np.float32)
    backward = benchmark.compiled(GaussianSplatRenderBackward(*PARAMS, 0.0, 0, 10.0), len(upstream))
    parts = unpack_gaussian_splat_packed_grads(backward(*scene, upstream), 400, 0)
    peer = benchmark.TorchRenderer(scene, PARAMS).gradients(torch.tensor(upstream).view(40, 56, 4))
    for name, got, wanted in zip(benchmark.NAMES, parts, peer):
        scale = float(wanted.abs().max())
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-3, atol=1e-4 * scale, err_msg=name)


def test_the_benchmark_holds_both_to_the_definition(benchmark, capsys):
    benchmark.check_small()
    apart = [float(word.rstrip(",")) for word in capsys.readouterr().out.split() if "e-" in word]
    assert len(apart) == 2 and max(apart) < 1e-5
