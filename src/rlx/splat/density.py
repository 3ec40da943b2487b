"""Where a scene needs more splats and where it can do without: clone, split, prune, reset.

A splat whose picture pulls at its place is too coarse there. Small ones are doubled, large ones become two smaller
ones; those that nobody sees go; and from time to time all become almost transparent, so that only the needed return.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.splat.adam import AdamState
from rlx.splat.camera import Camera
from rlx.splat.colmap import rotation_of
from rlx.splat.scene import F32, GaussianScene, logit, sigmoid

# What a split splat is divided by, and the opacity of a reset.
SPLIT_SHRINK = 1.6
RESET_OPACITY = 0.01


class DensitySettings(NamedTuple):
    """When and how the number of splats changes: from `first_step` to `last_step`, and in the first half of training.

    Shares are of the scene's extent; `pull_threshold` is in half picture widths, see `Pulls`.
    """

    first_step: int = 500
    last_step: int = 15_000
    every: int = 100
    reset_every: int = 3_000
    pull_threshold: float = 2e-4
    small_share: float = 0.01
    least_opacity: float = 0.005
    largest_share: float = 0.1
    max_splats: int = 1_000_000


class Pulls:
    """The mean strength with which pictures pull at each splat, in half picture widths."""

    def __init__(self, count: int) -> None:
        self.total, self.seen = np.zeros(count, np.float64), np.zeros(count, np.int64)

    def add(self, scene: GaussianScene, gradient: F32, camera: Camera) -> None:
        """The gradient [N, 3] of the positions for one picture: its part across the view, as a shift on the picture."""
        rotation = np.asarray(camera.rotation)
        across = np.asarray(gradient, np.float64) @ rotation[:2].T
        depth = (np.asarray(scene.positions, np.float64) - camera.position) @ rotation[2]
        per_pixel = np.linalg.norm(across, axis=1) * np.maximum(depth, 0.0) / camera.fx
        is_seen = per_pixel > 0
        self.total += per_pixel * 0.5 * camera.width
        self.seen += is_seen

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        return self.total / np.maximum(self.seen, 1)


class Changed(NamedTuple):
    scene: GaussianScene
    state: AdamState
    cloned: int
    split: int
    pruned: int


def densify(
    scene: GaussianScene,
    state: AdamState,
    pulls: Pulls,
    extent: float,
    settings: DensitySettings,
    rng: np.random.Generator,
    prune_large: bool,
) -> Changed:
    """One round of cloning, splitting and pruning."""
    widest = np.exp(np.asarray(scene.scales, np.float64)).max(axis=1)
    room = max(0, settings.max_splats - scene.splats)
    mean = pulls.mean
    chosen = np.flatnonzero(mean > settings.pull_threshold)
    # Where there is not room for all, those that are pulled most.
    chosen = chosen[np.argsort(-mean[chosen], kind="stable")][:room]
    is_small = widest[chosen] <= settings.small_share * extent
    clones, splits = chosen[is_small], chosen[~is_small]
    halves = [_half(scene.taken(splits), rng) for _ in range(2)]
    kept = np.ones(scene.splats, np.bool_)
    kept[splits] = False
    parts = [scene.taken(kept), scene.taken(clones), *halves]
    grown = GaussianScene(*(np.concatenate(columns) for columns in zip(*parts)))
    old = state.taken(kept)
    fresh = AdamState.zeros(grown.taken(slice(int(kept.sum()), None)))
    grown_state = AdamState(*(GaussianScene(*(np.concatenate(c) for c in zip(a, b))) for a, b in zip(old, fresh)))
    stays = sigmoid(grown.opacities) >= settings.least_opacity
    if prune_large:
        stays &= np.exp(np.asarray(grown.scales, np.float64)).max(axis=1) <= settings.largest_share * extent
    stays &= np.isfinite(grown.positions).all(axis=1) & np.isfinite(grown.scales).all(axis=1)
    if not stays.any():
        stays[np.argmax(grown.opacities)] = True
    return Changed(grown.taken(stays), grown_state.taken(stays), len(clones), len(splits), int((~stays).sum()))


def _half(scene: GaussianScene, rng: np.random.Generator) -> GaussianScene:
    """Splats drawn from the ones given, smaller, at places that follow their shape."""
    offsets = rng.normal(size=(scene.splats, 3)) * np.exp(np.asarray(scene.scales, np.float64))
    turned = np.empty_like(offsets)
    for i, q in enumerate(np.asarray(scene.rotations, np.float64)):
        turned[i] = rotation_of(q / max(float(np.linalg.norm(q)), 1e-12)) @ offsets[i]
    return scene._replace(
        positions=(scene.positions + turned).astype(np.float32),
        scales=(scene.scales - np.log(SPLIT_SHRINK)).astype(np.float32),
    )


def reset_opacities(scene: GaussianScene, state: AdamState) -> tuple[GaussianScene, AdamState]:
    """All opacities at most `RESET_OPACITY`, and no memory of how they moved."""
    lowered = np.minimum(np.asarray(scene.opacities), logit(RESET_OPACITY)).astype(np.float32)
    zeros = np.zeros_like(lowered)
    forgotten = AdamState(*(part._replace(opacities=zeros) for part in state))
    return scene._replace(opacities=lowered), forgotten
