"""Three bodies that chase each other on a figure of eight: find the orbit by derivatives through time.

    python examples/nbody.py --out nbody.png

The bodies move by leapfrog steps, which keep energy from drifting, inside `rlx.scan`. Where the orbit of Chenciner and
Montgomery begins is known to eight digits; here the velocities start 3 % off, and Gauss-Newton steps with
`rlx.jacfwd` through all time steps bring the bodies back to where they started after one period.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from pictures import INKS, Canvas, write_png

import rlx
import rlx.numpy as rnp

PERIOD, STEPS = 6.32591398, 1000
START = np.array([[0.97000436, -0.24308753], [-0.97000436, 0.24308753], [0.0, 0.0]])
# The velocity of the third body; the others have half of it, backwards.
KNOWN = np.array([-0.93240737, -0.86473146])


def acceleration(x: Any) -> Any:
    """Gravity between bodies [n, 2] of mass 1, with the constant 1."""
    away = x[None, :, :] - x[:, None, :]
    squared = rnp.sum(away * away, -1) + rnp.eye(x.shape[0], dtype=x.dtype)
    return rnp.sum(away / (squared * rnp.sqrt(squared))[..., None], 1)


def leapfrog(state: Any, step: Any) -> Any:
    """Half a kick, a drift, half a kick: a step that is reversible and symplectic."""
    x, v = state
    v = v + 0.5 * step * acceleration(x)
    x = x + step * v
    return x, v + 0.5 * step * acceleration(x)


def orbit(velocity: Any, steps: int = STEPS) -> Any:
    """Last positions and velocities, and the positions [steps, 3, 2] on the way."""
    v = rnp.stack([-0.5 * velocity, -0.5 * velocity, velocity])

    def one(state: Any, _: Any) -> Any:
        state = leapfrog(state, PERIOD / steps)
        return state, state[0]

    last, path = rlx.scan(one, (rnp.asarray(START, velocity.dtype), v), None, steps)
    return last, path


def misses(velocity: Any) -> Any:
    """How far positions and velocities are from where they began: 12 numbers, all 0 on a closed orbit."""
    (x, v), _ = orbit(velocity)
    start = rnp.stack([-0.5 * velocity, -0.5 * velocity, velocity])
    return rnp.concatenate([(x - START).reshape(-1), (v - start).reshape(-1)])


def energy(x: Any, v: Any) -> float:
    away = np.linalg.norm(x[:, None] - x[None], axis=-1)
    return float(0.5 * np.sum(v**2) - np.sum(1.0 / away[np.triu_indices(3, 1)]))


def close_orbit(velocity: Any, rounds: int = 8) -> tuple[Any, list[float]]:
    """Gauss-Newton on the misses."""
    both = rlx.jit(lambda v: (misses(v), rlx.jacfwd(misses)(v)))
    lengths = []
    for _ in range(rounds):
        r, jacobian = map(np.asarray, both(velocity))
        lengths.append(float(np.linalg.norm(r)))
        velocity = velocity - np.linalg.lstsq(jacobian, r, rcond=None)[0]
    return velocity, lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("nbody.png"))
    args = parser.parse_args()
    wrong = KNOWN * [1.03, 0.98]
    found, lengths = close_orbit(wrong)
    print("distance from a closed orbit:", ", ".join(f"{length:.1e}" for length in lengths))
    print(f"velocity found {np.round(found, 5).tolist()}, published {KNOWN.tolist()}")
    canvas = Canvas((-1.4, -0.9), (1.4, 0.9), 840, 540)
    for velocity, grey in ((wrong, True), (found, False)):
        (x, v), path = (np.asarray(part) if not isinstance(part, tuple) else part for part in orbit(velocity))
        for body in range(3):
            canvas.line(path[:, body, 0], path[:, body, 1], (205, 205, 205) if grey else INKS[body], 1 if grey else 2)
            canvas.dots(path[-1:, body, 0], path[-1:, body, 1], (160, 160, 160) if grey else INKS[body], 11)
    start = np.stack([-0.5 * found, -0.5 * found, found])
    print(f"energy changes by {abs(energy(np.asarray(x), np.asarray(v)) - energy(START, start)):.1e} over a period")
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
