"""A neural ordinary differential equation: a network learns the velocity of a spiral from points of its path.

    python examples/neural_ode.py --steps 1500 --out run

The path is a `rlx.scan` of Runge-Kutta steps; with `num_checkpoints` its gradient keeps a few states and computes the
others again, so that memory grows with the square root of the length. `path.png` in the folder `--out` has the true
path (black) and what is learned, from the same start (blue).
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
from rlx import nn, optim, train

NETWORK = nn.mlp([64, 2], nn.tanh)


def path(velocity: Any, start: Any, length: int, dt: float, num_checkpoints: int = 0) -> Any:
    """States [length, ..] after each of `length` steps of the classical Runge-Kutta rule."""

    def step(y: Any, _: Any) -> tuple[Any, Any]:
        k1 = velocity(y)
        k2 = velocity(y + dt / 2 * k1)
        k3 = velocity(y + dt / 2 * k2)
        k4 = velocity(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return rlx.scan(step, start, None, length=length, num_checkpoints=num_checkpoints)[1]


def spiral(y: Any) -> Any:
    """The true velocity: cubes of the coordinates, turned and damped."""
    return rnp.stack([-0.1 * y[..., 0] ** 3 + 2 * y[..., 1] ** 3, -2 * y[..., 0] ** 3 - 0.1 * y[..., 1] ** 3], axis=-1)


def learned(params: Any) -> Any:
    return lambda y: NETWORK.apply(params, y**3)


def draw_paths(place: Path, true: Any, found: Any) -> None:
    canvas = Canvas((-2.2, -2.2), (2.2, 2.2), 480, 480)
    canvas.line(true[:, 0], true[:, 1], INKS[5])
    canvas.line(found[:, 0], found[:, 1], INKS[0], 2)
    write_png(place, canvas.image)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--length", type=int, default=25, help="steps of the pieces of the path that are learned from")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    args = parser.parse_args(argv)
    dt, total = 0.02, 500
    whole = np.asarray(path(spiral, np.float32([2, 0]), total, dt))
    kept = math.isqrt(args.length)

    def pieces(step: int) -> dict[str, Any]:
        starts = np.random.default_rng([3, step]).integers(0, total - args.length - 1, args.batch)
        return {"y0": whole[starts], "y": np.stack([whole[s + 1 : s + 1 + args.length] for s in starts], axis=1)}

    def loss(params: Any, batch: Any) -> Any:
        return rnp.mean(rnp.abs(path(learned(params), batch["y0"], args.length, dt, kept) - batch["y"]))

    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(optim.cosine(2e-2, args.steps, 1e-4)))
    state = train.init_state(NETWORK.init(rlx.random.key(0), (1, 2)), optimizer)
    result = train.fit(train.make_step(loss, optimizer), state, pieces, args.steps, out=args.out)
    again = np.asarray(path(learned(result.state.params), whole[0], total - 1, dt))
    if args.out is not None:
        draw_paths(args.out / "path.png", whole, again)
    error = float(np.abs(again[:100] - whole[1:101]).mean())
    print(f"mean distance after {args.steps} steps, along 100 steps of the path: {error:.3f}")
    return error


if __name__ == "__main__":
    run(main)
