"""A force field: a network learns the energy of a small cluster of atoms from energies and forces.

    python examples/force_field.py --steps 1500 --out run

Forces are minus the gradient of the energy, so the gradient of the loss goes through a gradient. The energy is a sum
over pairs and depends on distances only: it cannot change when the cluster is moved or turned. `forces.png` in the
folder `--out` has the forces it finds over the true ones, on clusters it has not seen.
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

ATOMS = 5
FIRST, SECOND = np.triu_indices(ATOMS, 1)
NETWORK = nn.mlp([32, 32, 1], nn.silu)
CENTRES = np.linspace(0.8, 2.6, 12).astype("f4")


def distances(positions: Any) -> Any:
    """Of all pairs; positions are [ATOMS, 3]."""
    return rnp.sqrt(rnp.sum((positions[FIRST] - positions[SECOND]) ** 2, axis=-1))


def lennard_jones(positions: Any) -> Any:
    """The truth: Σ (1/r¹² - 2/r⁶), lowest at a distance of 1."""
    power = distances(positions) ** -6
    return rnp.sum(power**2 - 2 * power)


def learned(params: Any, positions: Any) -> Any:
    """Each distance as bumps at fixed places, then a network, then the sum."""
    bumps = rnp.exp(-8 * (distances(positions)[:, None] - CENTRES) ** 2)
    return rnp.sum(NETWORK.apply(params, bumps))


def with_forces(energy: Any) -> Any:
    """Energies [B] and forces [B, ATOMS, 3] of clusters [B, ATOMS, 3]."""

    def both(positions: Any) -> Any:
        value, gradient = rlx.value_and_grad(energy)(positions)
        return value, -gradient

    return rlx.vmap(both)


TRUTH = rlx.jit(with_forces(lennard_jones))


def clusters(step: int, count: int) -> dict[str, Any]:
    """New clusters for every step: a bipyramid of neighbours at a distance near 1, shaken."""
    rng = np.random.default_rng([11, step])
    ring = [(np.cos(a) / np.sqrt(3), np.sin(a) / np.sqrt(3), 0.0) for a in 2 * np.pi * np.arange(3) / 3]
    best = np.array([*ring, (0, 0, np.sqrt(2 / 3)), (0, 0, -np.sqrt(2 / 3))])
    positions = np.float32(1.05 * best + 0.06 * rng.standard_normal((count, ATOMS, 3)))
    energy, forces = TRUTH(positions)
    return {"positions": positions, "energy": np.asarray(energy), "forces": np.asarray(forces)}


def loss(params: Any, batch: Any) -> Any:
    energy, forces = with_forces(lambda positions: learned(params, positions))(batch["positions"])
    energy_error = rnp.mean((energy - batch["energy"]) ** 2)
    force_error = rnp.mean((forces - batch["forces"]) ** 2)
    return energy_error + force_error, {"energy_error": energy_error, "force_error": force_error}


def draw_forces(path: Path, true: Any, found: Any) -> None:
    """Every component of every force as a dot; all of them lie on the line where both are the same."""
    most = float(np.percentile(np.abs(true), 99))
    canvas = Canvas((-most, -most), (most, most), 480, 480)
    canvas.line([-most, most], [-most, most], INKS[5])
    canvas.dots(true, found, INKS[0])
    write_png(path, canvas.image)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, metrics and pictures")
    args = parser.parse_args(argv)
    optimizer = optim.chain(optim.clip_by_global_norm(10.0), optim.adam(optim.cosine(5e-3, args.steps, 1e-5)))
    state = train.init_state(NETWORK.init(rlx.random.key(0), (1, len(CENTRES))), optimizer)
    step = train.make_step(loss, optimizer)
    result = train.fit(step, state, lambda n: clusters(n, args.batch), args.steps, out=args.out)
    test = clusters(10**6, 200)
    _, forces = with_forces(lambda positions: learned(result.state.params, positions))(test["positions"])
    error = float(np.sqrt(np.mean((np.asarray(forces) - test["forces"]) ** 2) / np.mean(test["forces"] ** 2)))
    if args.out is not None:
        draw_forces(args.out / "forces.png", test["forces"], np.asarray(forces))
    print(f"forces on clusters it has not seen are wrong by {error:.1%} of their size")
    return error


if __name__ == "__main__":
    run(main)
