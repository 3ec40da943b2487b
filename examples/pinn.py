"""A physics-informed network: it learns the travelling wave of the Korteweg-de Vries equation u_t + 6·u·u_x + u_xxx = 0
from the equation itself, its start and its edges; no solution is shown to it. Third derivatives by nested `rlx.jvp`.

    python examples/pinn.py --steps 3000 --out run

`wave.png` in the folder `--out` has the exact wave (thin) and what is learned (thick): at the start, half way and at
the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run
from pictures import INKS, Canvas, write_png

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train

SPEED, LEFT, RIGHT, END = 2.0, -4.0, 6.0, 1.0
NETWORK = nn.mlp([32, 32, 32, 1], nn.tanh)


def exact(x: Any, t: Any) -> Any:
    """The soliton: (c/2)/cosh²(√c/2·(x - c·t))."""
    return SPEED / 2 / np.cosh(np.sqrt(SPEED) / 2 * (x - SPEED * t)) ** 2


def wave(params: Any, x: Any, t: Any) -> Any:
    """u at points x, t: both [N]."""
    inputs = rnp.stack([(x - LEFT) / (RIGHT - LEFT) * 2 - 1, t / END * 2 - 1], axis=1)
    return NETWORK.apply(params, inputs)[:, 0]


def along(f: Any, x: Any) -> Any:
    """The value and the derivative of f, which works on each point by itself."""
    return rlx.jvp(f, (x,), (rnp.ones_like(x),))


def residual(params: Any, x: Any, t: Any) -> Any:
    """u_t + 6·u·u_x + u_xxx at points inside."""

    def u(x: Any) -> Any:
        return wave(params, x, t)

    def u_x(x: Any) -> Any:
        return along(u, x)[1]

    def u_xx(x: Any) -> Any:
        return along(u_x, x)[1]

    _, u_t = along(lambda t: wave(params, x, t), t)
    value, slope = along(u, x)
    return u_t + 6 * value * slope + along(u_xx, x)[1]


def points(step: int, count: int) -> dict[str, Any]:
    """New points for every step: inside, at the start and at both edges."""
    rng = np.random.default_rng([7, step])
    x, t = rng.uniform(LEFT, RIGHT, (2, count)), rng.uniform(0, END, (2, count))
    edge = np.where(np.arange(count) % 2, LEFT, RIGHT)
    known = {"x": np.concatenate([x[1], edge]), "t": np.concatenate([np.zeros(count), t[1]])}
    batch = {"x": x[0], "t": t[0], "known": known | {"u": exact(known["x"], known["t"])}}
    return rlx.tree.map(np.float32, batch)


def loss(params: Any, batch: Any) -> Any:
    known = batch["known"]
    inside = rnp.mean(residual(params, batch["x"], batch["t"]) ** 2)
    outside = rnp.mean((wave(params, known["x"], known["t"]) - known["u"]) ** 2)
    return inside + 20 * outside


def draw_waves(path: Path, params: Any) -> None:
    x = np.linspace(LEFT, RIGHT, 321).astype("f4")
    canvas = Canvas((LEFT, -0.1), (RIGHT, 1.1), 640, 360)
    for t, ink in zip(np.float32([0, END / 2, END]), INKS):
        canvas.line(x, np.asarray(wave(params, x, np.full_like(x, t))), ink, 3)
        canvas.line(x, exact(x, t), INKS[5])
    write_png(path, canvas.image)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    args = parser.parse_args(argv)
    optimizer = optim.adam(optim.cosine(args.rate, args.steps, 1e-5))
    state = train.init_state(NETWORK.init(rlx.random.key(0), (1, 2)), optimizer)
    step = train.make_step(loss, optimizer)
    result = train.fit(step, state, lambda n: points(n, args.points), args.steps, out=args.out, save_every=500)
    x, t = (a.reshape(-1).astype("f4") for a in np.meshgrid(np.linspace(LEFT, RIGHT, 81), np.linspace(0, END, 21)))
    found, wanted = np.asarray(wave(result.state.params, x, t)), exact(x, t)
    if args.out is not None:
        draw_waves(args.out / "wave.png", result.state.params)
    error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    print(f"distance to the exact wave: {error:.2%} of it, after {args.steps} steps")
    return error


if __name__ == "__main__":
    run(main)
