"""The checks of training on a GPU, run on the host with few steps: that they check something, and say so."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import gpu_training_checks as checks

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["accumulation", "deterministic", "loss_scaling", "recomputation", "lora"])
def test_checks_pass_where_both_sides_are_the_host(name):
    steps = {"deterministic": 2, "accumulation": 5, "loss_scaling": 10, "recomputation": 1, "lora": 10}[name]
    assert checks.CHECKS[name]("cpu", steps) <= 1e-3


def test_curves_that_are_further_than_twice_torchs_are_found():
    exact = iter(checks.losses(checks.curve("cpu", 3)[0]))
    with pytest.raises(AssertionError, match="from the f32 curve"):
        checks.bf16_curve("cpu", 3, lambda text: next(exact))
    far = iter(np.full(3, 9.0))
    assert checks.bf16_curve("cpu", 3, lambda text: next(far)) < 0.1
