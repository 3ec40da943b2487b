"""Adam with a learning rate per part of the scene. Kept apart, so that another optimiser can take its place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx import numpy as rnp
from rlx.splat.scene import GaussianScene

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-15


class AdamState(NamedTuple):
    """Running means of the gradient and of its square, shaped as the scene."""

    mean: GaussianScene
    square: GaussianScene

    @classmethod
    def zeros(cls, scene: GaussianScene) -> AdamState:
        return cls(*(GaussianScene(*(np.zeros(np.shape(x), np.float32) for x in scene)) for _ in range(2)))

    def taken(self, which: Any) -> AdamState:
        return AdamState(self.mean.taken(which), self.square.taken(which))


def adam_step(
    scene: GaussianScene, gradient: GaussianScene, state: AdamState, rates: GaussianScene, step: Any
) -> tuple[GaussianScene, AdamState]:
    """One step; `rates` has what each part is multiplied with, `step` counts from 1. Arrays or tensors."""
    fix_mean, fix_square = (1.0 - b**step for b in (rnp.float32(BETA1), rnp.float32(BETA2)))
    moved, means, squares = [], [], []
    for x, g, m, v, rate in zip(scene, gradient, state.mean, state.square, rates):
        m = BETA1 * m + (1.0 - BETA1) * g
        v = BETA2 * v + (1.0 - BETA2) * g * g
        moved.append(x - rate * (m / fix_mean) / (rnp.sqrt(v / fix_square) + EPSILON))
        means.append(m)
        squares.append(v)
    return GaussianScene(*moved), AdamState(GaussianScene(*means), GaussianScene(*squares))
