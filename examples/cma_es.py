"""Minimise functions that can only be called: evolution with a covariance matrix that adapts (CMA-ES).

    python examples/cma_es.py --out cma_es.png

One generation is one compiled program: samples from a normal distribution, the values of a function, and the update of
mean, step size and covariance of Hansen's tutorial (arXiv 1604.00772). Nothing is differentiated. The picture shows
generations on Rosenbrock's curved valley; in ten dimensions the same program gets there, too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pictures import Canvas, colours, write_png

import rlx
import rlx.numpy as rnp


def rosenbrock(x: Any) -> Any:
    """A valley along a parabola; 0 at (1, 1, ..)."""
    return rnp.sum(100.0 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1.0 - x[..., :-1]) ** 2, -1)


class State(NamedTuple):
    """The distribution N(mean, (size·covariance)), and the paths that it adapts by."""

    mean: Any
    size: Any
    covariance: Any
    size_path: Any
    shape_path: Any
    round: Any


def start(mean: Any, size: float) -> State:
    n = len(mean)
    return State(np.asarray(mean, float), np.float64(size), np.eye(n), np.zeros(n), np.zeros(n), np.float64(0))


def generation(function: Callable[[Any], Any], n: int, population: int) -> Any:
    """The compiled step (state, key) -> (state, samples, their values)."""
    parents = population // 2
    weights = math.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    weights = weights / weights.sum()
    mass = 1.0 / np.sum(weights**2)
    size_rate = (mass + 2) / (n + mass + 5)
    size_damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + size_rate
    path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
    one_rate = 2 / ((n + 1.3) ** 2 + mass)
    many_rate = min(1 - one_rate, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
    usual_length = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))

    @rlx.jit
    def step(state: State, key: Any) -> tuple[State, Any, Any]:
        values, axes = rnp.linalg.eigh(state.covariance)
        root = axes * rnp.sqrt(rnp.maximum(values, 1e-30))
        z = rlx.random.normal(key, (population, n), "f64")
        y = z @ root.T
        x = state.mean + state.size * y
        f = function(x)
        best = rnp.argsort(f)[:parents]
        y_mean = weights @ y[best]
        # The step that was taken, in the coordinates in which all directions are alike.
        white = axes @ (axes.T @ y_mean / rnp.sqrt(rnp.maximum(values, 1e-30)))
        size_path = (1 - size_rate) * state.size_path + math.sqrt(size_rate * (2 - size_rate) * mass) * white
        length = rnp.sqrt(rnp.sum(size_path * size_path))
        expected = rnp.sqrt(1 - (1 - size_rate) ** (2 * (state.round + 1)))
        steady = rnp.where(length / expected < (1.4 + 2 / (n + 1)) * usual_length, 1.0, 0.0)
        grown = math.sqrt(path_rate * (2 - path_rate) * mass) * y_mean
        shape_path = (1 - path_rate) * state.shape_path + steady * grown
        many = (y[best] * weights[:, None]).T @ y[best]
        kept = 1 - one_rate - many_rate + (1 - steady) * one_rate * path_rate * (2 - path_rate)
        covariance = kept * state.covariance + one_rate * rnp.outer(shape_path, shape_path) + many_rate * many
        size = state.size * rnp.exp((size_rate / size_damping) * (length / usual_length - 1))
        mean = state.mean + state.size * y_mean
        symmetric = 0.5 * (covariance + covariance.T)
        return State(mean, size, symmetric, size_path, shape_path, state.round + 1), x, f

    return step


def minimise(
    function: Callable[[Any], Any], mean: Any, size: float, rounds: int, population: int = 0, seed: int = 0
) -> tuple[State, list[Any], list[float]]:
    """The last state, the samples of each generation, and the best value of each."""
    n = len(mean)
    population = population or 4 + int(3 * math.log(n))
    step, state = generation(function, n, population), start(mean, size)
    key = rlx.random.key(seed)
    samples, best = [], []
    for _ in range(rounds):
        key, own = rlx.random.split(key)
        state, x, f = step(state, own)
        samples.append(np.asarray(x))
        best.append(float(np.min(np.asarray(f))))
        if best[-1] < 1e-14:
            break
    return state, samples, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("cma_es.png"))
    args = parser.parse_args()
    _, samples, best = minimise(rosenbrock, np.array([-1.5, 1.8]), 0.4, 100, population=12)
    print(f"2 dimensions: {best[0]:.2g} to {best[-1]:.1e} in {sum(map(len, samples))} calls")
    state, many, values = minimise(rosenbrock, np.full(10, -1.0), 0.5, 1500)
    print(f"10 dimensions: {values[0]:.2g} to {values[-1]:.1e} in {sum(map(len, many))} calls")
    print("mean found", np.round(np.asarray(state.mean), 4).tolist())
    x, y = np.meshgrid(np.linspace(-2, 2, 640), np.linspace(3, -1, 480))
    height = np.log(np.asarray(rosenbrock(np.stack([x, y], -1))) + 0.05)
    canvas = Canvas((-2, -1), (2, 3), 640, 480)
    canvas.image[:] = colours(0.15 + 0.75 * (height - height.min()) / np.ptp(height))
    for i, generation_samples in enumerate(samples[::6]):
        shade = int(255 - 255 * min(i / 8, 1))
        canvas.dots(generation_samples[:, 0], generation_samples[:, 1], (shade, 255, shade), 5)
    means = np.array([s.mean(0) for s in samples])
    canvas.line(means[:, 0], means[:, 1], (255, 255, 255), 2)
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
