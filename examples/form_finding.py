"""Find the shape of a hanging net, and the forces that make it a wanted shape.

    python examples/form_finding.py --out net.png

In the force-density method each cable has a ratio q of force to length, and the free nodes hang where
K(q)·x = loads + what the anchors pull, a sparse system that is linear once q is chosen. Here K is never stored: it is
applied edge by edge, and conjugate gradients solve the system in a compiled loop. The adjoint of a solve is a solve
with the same matrix (`rlx.custom_vjp`), so the gradient of any loss by all q costs one more. With it, the net is
brought to a target surface.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pictures import Canvas, colours, write_png

import rlx
import rlx.numpy as rnp
from rlx import ops


class Net(NamedTuple):
    """Nodes on a square grid, joined to their neighbours; those on the rim are anchored."""

    xyz: Any
    edges: Any
    free: Any

    @property
    def loads(self) -> Any:
        """A weight on each free node."""
        return np.where(self.free[:, None], np.array([0.0, 0.0, -0.02]), 0.0)


def square_net(side: int) -> Net:
    ids = np.arange(side * side).reshape(side, side)
    place = np.linspace(-1, 1, side)
    x, y = np.meshgrid(place, place, indexing="ij")
    edges = np.concatenate(
        [np.stack([a.ravel(), b.ravel()], -1) for a, b in ((ids[1:], ids[:-1]), (ids[:, 1:], ids[:, :-1]))]
    )
    free = np.zeros((side, side), bool)
    free[1:-1, 1:-1] = True
    return Net(np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], -1), edges.astype(np.int32), free.ravel())


def pull(net: Net, q: Any, x: Any) -> Any:
    """Σ over the cables of each node of q·(x[node] - x[other]): what K does to positions [n, 3]."""
    head, tail = net.edges[:, 0], net.edges[:, 1]
    force = q[:, None] * (x[head] - x[tail])
    return ops.scatter_add(force, head, len(net.xyz)) - ops.scatter_add(force, tail, len(net.xyz))


def solve(net: Net, q: Any, b: Any, tolerance: float = 1e-12) -> Any:
    """x, 0 at the anchors, with K·x = b at the free nodes, by conjugate gradients; b [n, 3] is 0 at the anchors."""
    mask = net.free[:, None].astype(float)

    def step(state: Any) -> Any:
        x, r, p, rr = state
        kp = mask * pull(net, q, p)
        along = rr / rnp.maximum(rnp.sum(p * kp), 1e-300)
        x, r = x + along * p, r - along * kp
        new = rnp.sum(r * r)
        return x, r, r + new / rnp.maximum(rr, 1e-300) * p, new

    start = (0.0 * b, b, b, rnp.sum(b * b))
    return rlx.while_loop(lambda state: state[3] > tolerance**2, step, start)[0]


def equilibrium(net: Net) -> Any:
    """The function from force densities [edges] to positions [n, 3]."""

    @rlx.custom_vjp
    def solution(q: Any, b: Any) -> Any:
        return solve(net, q, b)

    def forward(q: Any, b: Any) -> Any:
        x = solve(net, q, b)
        return x, (q, x)

    def backward(kept: Any, ct: Any) -> Any:
        q, x = kept
        # K is symmetric: b̄ = K⁻¹·x̄, and q̄ = -b̄·(dK/dq·x) edge by edge.
        b_ct = solve(net, q, net.free[:, None] * ct)
        head, tail = net.edges[:, 0], net.edges[:, 1]
        return -rnp.sum((b_ct[head] - b_ct[tail]) * (x[head] - x[tail]), -1), b_ct

    solution.defvjp(forward, backward)
    anchors = np.where(net.free[:, None], 0.0, net.xyz)

    def positions(q: Any) -> Any:
        return anchors + solution(q, net.free[:, None] * (net.loads - pull(net, q, anchors)))

    return positions


def target_height(net: Net) -> Any:
    """A surface with two valleys."""
    x, y = net.xyz[:, 0], net.xyz[:, 1]
    rim = (1 - x**2) * (1 - y**2)
    return -rim * (0.35 + 0.25 * np.cos(2 * np.pi * x))


def fit(net: Net, rounds: int = 300) -> tuple[Any, list[float]]:
    """Force densities exp(p) whose net comes closest to the target, by Adam."""
    positions, wanted = equilibrium(net), target_height(net)

    def loss(p: Any) -> Any:
        return rnp.mean((positions(rnp.exp(p))[:, 2] - wanted) ** 2) + 1e-6 * rnp.mean(p * p)

    @rlx.jit
    def update(p: Any, m: Any, v: Any, t: Any) -> Any:
        value, slope = rlx.value_and_grad(loss)(p)
        m, v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope * slope
        step = (m / (1 - 0.9**t)) / (rnp.sqrt(v / (1 - 0.99**t)) + 1e-12)
        return p - 0.05 * step, m, v, value

    p, m, v = (np.zeros(len(net.edges)) for _ in range(3))
    values = []
    for t in range(1, rounds + 1):
        p, m, v, value = update(p, m, v, float(t))
        values.append(float(value))
    return np.exp(np.asarray(p)), values


def draw(canvas: Canvas, net: Net, xyz: Any, q: Any, shift: float) -> None:
    """The net turned upside down, as the vault that stands where it hangs; cables are coloured by force density."""
    x = 0.8 * (xyz[:, 0] - xyz[:, 1]) + shift
    y = 0.4 * (xyz[:, 0] + xyz[:, 1]) - 1.2 * xyz[:, 2]
    inks = colours(0.85 * (np.log(q) - np.log(q).min()) / max(np.ptp(np.log(q)), 1e-9))
    for (a, b), ink in zip(net.edges, inks):
        canvas.line(x[[a, b]], y[[a, b]], tuple(int(c) for c in ink), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("net.png"))
    parser.add_argument("--side", type=int, default=17, help="nodes along an edge")
    args = parser.parse_args()
    net = square_net(args.side)
    q, values = fit(net)
    positions = rlx.jit(equilibrium(net))
    before, after = (np.asarray(positions(d)) for d in (np.ones(len(net.edges)), q))
    miss = [float(np.sqrt(np.mean((x[:, 2] - target_height(net)) ** 2))) for x in (before, after)]
    print(f"{len(net.edges)} cables, {int(net.free.sum())} free nodes")
    print(f"distance from the target surface: {miss[0]:.3f} before, {miss[1]:.3f} after {len(values)} steps")
    canvas = Canvas((-1.8, -1.0), (5.3, 1.5), 1050, 370)
    draw(canvas, net, before, np.ones(len(net.edges)), 0.0)
    draw(canvas, net, after, q, 3.5)
    write_png(args.out, canvas.image)


if __name__ == "__main__":
    main()
