"""A policy that acts in one jump, learnt from habits that disagree, then steered to the better one.

    python examples/flow_policy.py --out flow_policy.png

A point walks to a goal around which it may pass on two sides. The recorded steps veer to the left or to the right, half
of them each; the mean of both walks straight on, which nobody did. A flow map u(s, a, r, t) moves an action from noise
time r to t in one jump, a + (t - r)·u. It is trained on the diagonal r = t by flow matching, and off it by its own two
half jumps. A critic learns which steps bring the goal nearer; its gradient then says where the actions that the policy
jumps to should have been, and the policy is regressed to that (flow maps with Q-guidance, arXiv 2605.12416).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pictures import INKS, Canvas, write_png

import rlx
import rlx.numpy as rnp

VEER, SPREAD, STRIDE = 1.1, 0.15, 0.15
# A push across the way to the goal: on its left one gets ahead, on its right one is held back.
WIND = 0.5
NEAR = 0.12


def network(sizes: list[int], seed: int) -> list[Any]:
    """Weights and biases of layers."""
    rng = np.random.default_rng(seed)
    return [
        ((rng.standard_normal((a, b)) / np.sqrt(a)).astype("f4"), np.zeros(b, "f4"))
        for a, b in zip(sizes[:-1], sizes[1:])  # noqa: RUF007 (a pair of sizes is a layer)
    ]


def apply(layers: list[Any], x: Any) -> Any:
    for i, (w, b) in enumerate(layers):
        x = x @ w + b
        x = rlx.nn.silu(x) if i < len(layers) - 1 else x
    return x


def flow(params: Any, s: Any, a: Any, r: Any, t: Any) -> Any:
    """The mean velocity of actions a [n, 2] in states s [n, 2] from noise time r [n, 1] to t."""
    return apply(params, rnp.concatenate([s, a, r, t, rnp.sin(3.0 * r), rnp.sin(3.0 * t)], -1))


def jump(params: Any, s: Any, a: Any, r: Any, t: Any) -> Any:
    return a + (t - r) * flow(params, s, a, r, t)


def value(params: Any, s: Any, a: Any) -> Any:
    return apply(params, rnp.concatenate([s, a], -1))[:, 0]


def direction(s: Any) -> Any:
    """Unit vectors from states, which are positions as seen from the goal, towards the goal."""
    return -s / (np.linalg.norm(s, axis=-1, keepdims=True) + 1e-6)


def moved(s: Any, a: Any) -> Any:
    """Where a step leads: along the action, the further the more it keeps to the left of the way."""
    ahead = direction(s)
    left = np.stack([-ahead[:, 1], ahead[:, 0]], -1)
    return s + STRIDE * (a + WIND * np.sum(a * left, -1, keepdims=True) * ahead)


def reward(s: Any, a: Any) -> Any:
    """How much nearer the goal is after a step."""
    return np.linalg.norm(s, axis=-1) - np.linalg.norm(moved(s, a), axis=-1)


def recorded(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """States and what was done there: steps of length 1 that veer to either side."""
    s = rng.uniform(-1.2, 1.2, (count, 2))
    angle = rng.choice([-VEER, VEER], count) + SPREAD * rng.standard_normal(count)
    ahead = direction(s)
    c, d = np.cos(angle), np.sin(angle)
    return s.astype("f4"), np.stack([c * ahead[:, 0] - d * ahead[:, 1], d * ahead[:, 0] + c * ahead[:, 1]], -1).astype(
        "f4"
    )


def offline_loss(params: Any, batch: Any) -> Any:
    """Flow matching, self-distillation, and the critic's error."""
    s, a1, a0, r, t, gain = batch
    between = (1.0 - t) * a0 + t * a1
    matching = rnp.mean((flow(params["actor"], s, between, t, t) - (a1 - a0)) ** 2)
    low, high = rnp.minimum(r, t), rnp.maximum(r, t)
    middle = 0.5 * (low + high)
    start = (1.0 - low) * a0 + low * a1
    halves = rlx.stop_gradient(jump(params["actor"], s, jump(params["actor"], s, start, low, middle), middle, high))
    distilled = rnp.mean((jump(params["actor"], s, start, low, high) - halves) ** 2)
    critic = rnp.mean((value(params["critic"], s, a1) - gain) ** 2)
    return matching + 2.0 * distilled + 20.0 * critic


def online_loss(params: Any, batch: Any, reach: float = 0.35) -> Any:
    """The jump from noise should have led `reach` further up the critic's slope."""
    s, _, a0, _, _, _ = batch
    zero, one = rnp.zeros_like(a0[:, :1]), rnp.ones_like(a0[:, :1])
    a = rlx.stop_gradient(jump(params["actor"], s, a0, zero, one))
    slope = rlx.grad(lambda a: rnp.sum(value(params["critic"], s, a)))(a)
    length = rnp.sqrt(rnp.sum(slope * slope, -1, keepdims=True) + 1e-12)
    better = a + reach * slope / length
    # Actions keep the length of the recorded ones: the critic knows no others.
    better = rlx.stop_gradient(better / rnp.sqrt(rnp.sum(better * better, -1, keepdims=True) + 1e-6))
    return rnp.mean((flow(params["actor"], s, a0, zero, one) - (better - a0)) ** 2)


def train(loss: Callable[..., Any], params: Any, rounds: int, seed: int, rate: float, size: int = 256) -> Any:
    """Adam; only what the loss depends on changes."""
    rng = np.random.default_rng(seed)

    @rlx.jit
    def update(params: Any, m: Any, v: Any, t: Any, batch: Any) -> Any:
        slope = rlx.grad(loss)(params, batch)
        m = rlx.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, slope)
        v = rlx.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, slope)
        scale = rate * rnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return rlx.tree.map(lambda p, a, b: p - scale * a / (rnp.sqrt(b) + 1e-8), params, m, v), m, v

    m = v = rlx.tree.map(np.zeros_like, params)
    for t in range(1, rounds + 1):
        s, a = recorded(size, rng)
        noise, times = rng.standard_normal((size, 2)), rng.random((2, size, 1))
        batch = tuple(np.asarray(x, np.float32) for x in (s, a, noise, *times, reward(s, a)))
        params, m, v = update(params, m, v, np.float32(t), batch)
    return params


def act(params: Any, s: Any, noise: Any) -> Any:
    """One jump from noise to an action."""
    zero, one = np.zeros((len(s), 1), "f4"), np.ones((len(s), 1), "f4")
    return np.asarray(_act(params["actor"], np.asarray(s, np.float32), np.asarray(noise, np.float32), zero, one))


_act = rlx.jit(jump)


def walks(params: Any, count: int, steps: int, seed: int = 0) -> Any:
    """Paths [steps + 1, count, 2] from a ring around the goal."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(count) / count
    path = [np.stack([np.cos(angle), np.sin(angle)], -1)]
    for _ in range(steps):
        s = path[-1]
        there = np.linalg.norm(s, axis=-1, keepdims=True) < NEAR
        path.append(np.where(there, s, moved(s, act(params, s, rng.standard_normal((count, 2))))))
    return np.stack(path)


def arrived(path: Any) -> float:
    return float(np.mean(np.linalg.norm(path[-1], axis=-1) < NEAR))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("flow_policy.png"))
    args = parser.parse_args()
    params = {"actor": network([8, 96, 96, 2], 0), "critic": network([4, 64, 64, 1], 1)}
    params = train(offline_loss, params, 3000, 0, 2e-3)
    steered = train(online_loss, params, 600, 1, 5e-4)
    rng = np.random.default_rng(5)
    s, _ = recorded(2000, rng)
    noise = rng.standard_normal((2000, 2))
    ahead = direction(s)
    for name, policy in (("learnt", params), ("steered", steered)):
        a = act(policy, s, noise)
        side = ahead[:, 0] * a[:, 1] - ahead[:, 1] * a[:, 0]
        path = walks(policy, 200, 14)
        print(
            f"{name}: veers left {np.mean(side > 0.3):.0%}, right {np.mean(side < -0.3):.0%}, "
            f"gains {np.mean(reward(s, a)):.3f} a step, arrives within 14 steps {arrived(path):.0%}"
        )
    canvas = Canvas((-1.3, -1.3), (4.1, 1.3), 1080, 520)
    for shift, policy, ink in ((0.0, params, INKS[0]), (2.8, steered, INKS[1])):
        path = walks(policy, 24, 14)
        for i in range(path.shape[1]):
            canvas.line(path[:, i, 0] + shift, path[:, i, 1], ink, 1)
            canvas.dots(path[:, i, 0] + shift, path[:, i, 1], ink, 3)
        canvas.dots([shift], [0.0], (20, 20, 20), 13)
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
