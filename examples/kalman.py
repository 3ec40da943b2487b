"""Smooth a noisy track in a number of steps that grows with the logarithm of its length.

    python examples/kalman.py --out kalman.png

A Kalman smoother goes forwards and backwards over a track, one measurement after the other. Written with an
associative combination of neighbouring pieces (Särkkä and García-Fernández, 2021) both passes are
`rlx.ops.associative_scan`: 256 measurements need 8 rounds of small batched matrix products each way. The noise
levels are learnt first, by the gradient of the likelihood of the measurements through an ordinary `rlx.scan`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from pictures import INKS, Canvas, write_png

import rlx
import rlx.numpy as rnp
from rlx import ops

STEP = 0.1
# Position and velocity in the plane; positions are measured.
MOTION = np.kron(np.array([[1.0, STEP], [0.0, 1.0]]), np.eye(2))
KICKS = np.kron(np.array([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]]), np.eye(2))
MEASURED = np.eye(2, 4)
FIRST_MEAN, FIRST_SPREAD = np.zeros(4), 10.0 * np.eye(4)


def turned(m: Any) -> Any:
    return rnp.swapaxes(m, -1, -2)


def column(v: Any) -> Any:
    return v[..., None]


def filtering_elements(y: Any, q: Any, r: Any) -> tuple[Any, ...]:
    """What each measurement [n, 2] says by itself: (A, b, C, η, J), the first with the prior in it."""
    n = y.shape[0]
    noise, kicks = r * np.eye(2), q * KICKS
    spread = MEASURED @ kicks @ MEASURED.T + noise
    gain = turned(rnp.linalg.solve(spread, MEASURED @ kicks))
    kept = np.eye(4) - gain @ MEASURED
    back = turned(rnp.linalg.solve(spread, MEASURED @ MOTION))
    prior = MOTION @ FIRST_SPREAD @ MOTION.T + kicks
    first_gain = turned(rnp.linalg.solve(MEASURED @ prior @ MEASURED.T + noise, MEASURED @ prior))
    mean = MOTION @ FIRST_MEAN
    first_b = mean + first_gain @ (y[0] - MEASURED @ mean)
    first_c = prior - first_gain @ (MEASURED @ prior)

    def with_first(first: Any, other: Any) -> Any:
        return rnp.concatenate([first[None], rnp.broadcast_to(other, (n - 1, *first.shape))])

    return (
        with_first(np.zeros((4, 4)), kept @ MOTION),
        rnp.concatenate([first_b[None], y[1:] @ gain.T]),
        with_first(first_c, kept @ kicks),
        y @ back.T,
        rnp.broadcast_to(back @ (MEASURED @ MOTION), (n, 4, 4)),
    )


def join_filtered(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two neighbouring pieces as one."""
    a1, b1, c1, e1, j1 = one
    a2, b2, c2, e2, j2 = two
    middle = turned(rnp.linalg.solve(np.eye(4) + j2 @ c1, turned(a2)))
    other = turned(rnp.linalg.solve(np.eye(4) + c1 @ j2, a1))
    a = middle @ a1
    b = (middle @ column(b1 + (c1 @ column(e2))[..., 0]))[..., 0] + b2
    c = middle @ c1 @ turned(a2) + c2
    e = (other @ column(e2 - (j2 @ column(b1))[..., 0]))[..., 0] + e1
    return a, b, c, e, other @ j2 @ a1 + j1


def filtered(y: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """Means [n, 4] and covariances [n, 4, 4] given the measurements so far."""
    _, means, spreads, _, _ = ops.associative_scan(join_filtered, filtering_elements(y, q, r))
    return means, spreads


def smoothed(y: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """Means and covariances given all measurements."""
    means, spreads = filtered(y, q, r)
    predicted = MOTION @ spreads @ MOTION.T + q * KICKS
    e = turned(rnp.linalg.solve(predicted, MOTION @ spreads))
    g = means - (e @ column(means @ MOTION.T))[..., 0]
    rest = spreads - e @ MOTION @ spreads
    e, g, rest = (rnp.concatenate([part[:-1], last[-1:]]) for part, last in ((e, 0 * e), (g, means), (rest, spreads)))

    def join(later: tuple[Any, ...], earlier: tuple[Any, ...]) -> tuple[Any, ...]:
        e2, g2, l2 = later
        e1, g1, l1 = earlier
        return e1 @ e2, (e1 @ column(g2))[..., 0] + g1, e1 @ l2 @ turned(e1) + l1

    _, means, spreads = ops.associative_scan(join, (e, g, rest), reverse=True)
    return means, spreads


def surprise(logs: Any, y: Any) -> Any:
    """-log likelihood of the measurements for each, the noise levels being exp(logs).

    Here measurements come one after the other, in the order in which a filter sees them.
    """
    q, r = rnp.exp(logs[0]), rnp.exp(logs[1])

    def step(state: Any, measured: Any) -> Any:
        mean, spread = state
        mean, spread = MOTION @ mean, MOTION @ spread @ MOTION.T + q * KICKS
        miss = measured - MEASURED @ mean
        seen = MEASURED @ spread @ MEASURED.T + r * np.eye(2)
        gain = rnp.linalg.solve(seen, MEASURED @ spread).T
        determinant = seen[0, 0] * seen[1, 1] - seen[0, 1] * seen[1, 0]
        cost = 0.5 * (miss @ rnp.linalg.solve(seen, miss) + rnp.log(determinant)) + math.log(2 * math.pi)
        return (mean + gain @ miss, spread - gain @ MEASURED @ spread), cost

    return rnp.mean(rlx.scan(step, (FIRST_MEAN, FIRST_SPREAD), y)[1])


def track(n: int, q: float, r: float, seed: int = 0) -> tuple[Any, Any]:
    """True states [n, 4] and measurements [n, 2]."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(q * KICKS)
    states = [np.array([0.0, 0.0, 1.0, 0.0])]
    for _ in range(n):
        states.append(MOTION @ states[-1] + root @ rng.standard_normal(4))
    truth = np.stack(states[1:])
    return truth, truth[:, :2] + math.sqrt(r) * rng.standard_normal((n, 2))


def learn(y: Any, rounds: int = 60) -> tuple[float, float]:
    """Noise levels that make the measurements likeliest, by gradient steps whose size adapts."""
    both = rlx.jit(rlx.value_and_grad(surprise))
    logs, rate = np.zeros(2), 0.5
    value, slope = both(logs, y)
    for _ in range(rounds):
        tried = logs - rate * np.asarray(slope)
        new_value, new_slope = both(tried, y)
        if float(new_value) < float(value):
            logs, value, slope, rate = tried, new_value, new_slope, rate * 1.5
        else:
            rate *= 0.4
    return float(np.exp(logs[0])), float(np.exp(logs[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kalman.png"))
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    truth, y = track(args.length, 0.3, 1.0)
    q, r = learn(y)
    print(f"noise learnt: motion {q:.2f} (true 0.30), measurement {r:.2f} (true 1.00)")
    means, _ = rlx.jit(smoothed)(y, q, r)
    path = np.asarray(means)[:, :2]
    errors = [float(np.sqrt(np.mean(np.sum((p - truth[:, :2]) ** 2, -1)))) for p in (y, path)]
    print(f"mean distance to the truth: measured {errors[0]:.2f}, smoothed {errors[1]:.2f}")
    low, high = np.minimum(y, truth[:, :2]).min(0), np.maximum(y, truth[:, :2]).max(0)
    canvas = Canvas(tuple(low - 1), tuple(high + 1), 840, 540)
    canvas.dots(y[:, 0], y[:, 1], (200, 200, 200), 2)
    canvas.line(truth[:, 0], truth[:, 1], (20, 20, 20), 2)
    canvas.line(path[:, 0], path[:, 1], INKS[1], 2)
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
