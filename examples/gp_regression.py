"""Gaussian-process regression: length, height and noise of a kernel learned by the marginal likelihood.

    python examples/gp_regression.py --out run

The gradient goes through a Cholesky factor and triangular solves, in f64. `curve.png` in the folder `--out` has
what was observed (dots), the true curve (black), and the mean that is found (blue) with two deviations to both sides.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run
from pictures import INKS, Canvas, write_png

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


def truth(x: Any) -> Any:
    return np.sin(2 * x) + 0.5 * x


def draw_curve(path: Path, params: Any, data: Any) -> None:
    x = np.linspace(-5, 5, 641)
    mean, deviation = (np.asarray(v) for v in predict(params, data, x))
    canvas = Canvas((-5, -4), (5, 4))
    for place, middle, width in zip(x, mean, 2 * deviation):
        canvas.line([place, place], [middle - width, middle + width], (205, 220, 240), 2)
    canvas.line(x, truth(x), INKS[5])
    canvas.line(x, mean, INKS[0], 2)
    canvas.dots(data["x"], data["y"], INKS[1], 5)
    write_png(path, canvas.image)


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--points", type=int, default=80)
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-4, 4, args.points))
    data = {"x": x, "y": truth(x) + 0.2 * rng.standard_normal(args.points)}
    optimizer = optim.adam(0.05)
    state = train.init_state({name: np.zeros(()) for name in ("log_length", "log_height", "log_noise")}, optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, lambda step: data, args.steps, out=args.out)
    params = result.state.params
    found = {name.removeprefix("log_"): math.exp(float(value)) for name, value in params.items()}
    print(", ".join(f"{name} {value:.3f}" for name, value in sorted(found.items())), "(the noise put in was 0.200)")
    grid = np.linspace(-3.5, 3.5, 50)
    if args.out is not None:
        draw_curve(args.out / "curve.png", params, data)
    mean, deviation = (np.asarray(v) for v in predict(params, data, grid))
    inside = np.abs(mean - truth(grid)) < 2 * deviation + 1e-9
    print(f"the true curve lies within two deviations at {inside.mean():.0%} of {len(grid)} places")
    return found


if __name__ == "__main__":
    run(main)
