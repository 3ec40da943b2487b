"""Gaussian-process regression: length, height and noise of a kernel learned by the marginal likelihood.

    python examples/gp_regression.py

The gradient goes through a Cholesky factor and triangular solves, in f64.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import optim, train


def kernel(params: Any, a: Any, b: Any) -> Any:
    """height²·exp(-|a - b|²/(2·length²)), of points [N] and [M]."""
    distance = (a[:, None] - b[None, :]) * rnp.exp(-params["log_length"])
    return rnp.exp(2 * params["log_height"] - 0.5 * distance**2)


def factor(params: Any, x: Any) -> Any:
    """The Cholesky factor of the covariance of what is observed at x."""
    noise = rnp.exp(2 * params["log_noise"]) + 1e-9
    return rnp.linalg.cholesky(kernel(params, x, x) + noise * rnp.eye(x.shape[0], dtype=x.dtype))


def loss(params: Any, data: Any) -> Any:
    """-log p(y) per point."""
    lower = factor(params, data["x"])
    whitened = rlx.triangular_solve(lower, data["y"][:, None], lower=True)[:, 0]
    count = data["x"].shape[0]
    log_det = rnp.sum(rnp.log(rnp.diagonal(lower)))
    return (0.5 * rnp.sum(whitened**2) + log_det + 0.5 * count * math.log(2 * math.pi)) / count


@rlx.jit
def predict(params: Any, data: Any, x: Any) -> Any:
    """Mean and standard deviation of the function at new points."""
    lower = factor(params, data["x"])
    across = rlx.triangular_solve(lower, kernel(params, data["x"], x), lower=True)
    whitened = rlx.triangular_solve(lower, data["y"][:, None], lower=True)
    variance = rnp.exp(2 * params["log_height"]) - rnp.sum(across**2, axis=0)
    return (across.T @ whitened)[:, 0], rnp.sqrt(rnp.maximum(variance, 0.0))


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--points", type=int, default=80)
    parser.add_argument("--out", help="a folder for checkpoints, metrics and the loss curve")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-4, 4, args.points))
    data = {"x": x, "y": np.sin(2 * x) + 0.5 * x + 0.2 * rng.standard_normal(args.points)}
    optimizer = optim.adam(0.05)
    state = train.init_state({name: np.zeros(()) for name in ("log_length", "log_height", "log_noise")}, optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, lambda step: data, args.steps, out=args.out)
    params = result.state.params
    found = {name.removeprefix("log_"): math.exp(float(value)) for name, value in params.items()}
    print(", ".join(f"{name} {value:.3f}" for name, value in sorted(found.items())), "(the noise put in was 0.200)")
    grid = np.linspace(-3.5, 3.5, 50)
    mean, deviation = (np.asarray(v) for v in predict(params, data, grid))
    inside = np.abs(mean - np.sin(2 * grid) - 0.5 * grid) < 2 * deviation + 1e-9
    print(f"the true curve lies within two deviations at {inside.mean():.0%} of {len(grid)} places")
    return found


if __name__ == "__main__":
    main()
