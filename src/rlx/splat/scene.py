"""A scene of Gaussian splats as it is stored and trained, and its way into the ops.

    scene = GaussianScene.from_points(points, colors)       # one splat per point
    operands = scene.operands(camera.meta())                # what `rlx.ops` renders

Everything is kept as trainers keep it, so that any number is a valid value: the logarithm of a scale, the logit of
an opacity, quaternions of any length. Coefficients of spherical harmonics follow the files of the field, which look
along the ray, from the camera to the splat; the ops look back, which turns the sign of the odd bands.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError
from rlx.ops.splat.render import GaussianSplatInputs

F32 = npt.NDArray[np.float32]

# Coefficients per channel of the bands 0..d, and back.
COEFFICIENTS = (1, 4, 9, 16)
# The constant band: 1/(2·sqrt(π)).
SH_C0 = 0.5 / math.sqrt(math.pi)
_ODD_BANDS = (*range(1, 4), *range(9, 16))
_LARGEST_LOGIT = 15.0


class GaussianScene(NamedTuple):
    """N splats: positions [N, 3], scales [N, 3] (log σ), rotations [N, 4] (w, x, y, z, splat to world), opacities [N]
    (logits) and sh [N, K, 3] with K = 1, 4, 9 or 16; all f32."""

    positions: Any
    scales: Any
    rotations: Any
    opacities: Any
    sh: Any

    @property
    def splats(self) -> int:
        return int(self.opacities.shape[0])

    @property
    def sh_degree(self) -> int:
        return COEFFICIENTS.index(self.sh.shape[1])

    def checked(self) -> GaussianScene:
        """The scene in f32, or an error that says which part does not fit."""
        parts = GaussianScene(*(np.ascontiguousarray(x, np.float32) for x in self))
        n = len(parts.positions)
        coefficients = parts.sh.shape[1] if parts.sh.ndim == 3 else -1
        wanted = ((n, 3), (n, 3), (n, 4), (n,), (n, coefficients, 3))
        for name, part, dims in zip(self._fields, parts, wanted):
            if part.shape != dims:
                raise ShapeError(f"GaussianScene: {name} of {n} splats must be {list(dims)}, got {list(part.shape)}")
        if coefficients not in COEFFICIENTS:
            raise ShapeError(f"GaussianScene: sh must have 1, 4, 9 or 16 coefficients per splat, got {coefficients}")
        return parts

    def operands(self, meta: Any) -> GaussianSplatInputs:
        """The operands of the splatting ops, flat; tensors inside `rlx.jit`, arrays outside."""
        from rlx import numpy as rnp

        n, k = self.sh.shape[0], self.sh.shape[1]
        lengths = rnp.sqrt(rnp.sum(self.rotations * self.rotations, axis=-1, keepdims=True) + 1e-24)
        return GaussianSplatInputs(
            positions=rnp.reshape(self.positions, (3 * n,)),
            scales=rnp.reshape(self.scales, (3 * n,)),
            rotations=rnp.reshape(self.rotations / lengths, (4 * n,)),
            opacities=1.0 / (1.0 + rnp.exp(-self.opacities)),
            # Where all of band 0 is 0 the ops take colors in its place, and their gradient with it.
            colors=rnp.reshape(0.5 + SH_C0 * self.sh[:, 0], (3 * n,)),
            sh_coeffs=rnp.reshape(self.sh * odd_band_signs(k), (3 * k * n,)),
            meta=meta,
        )

    def with_degree(self, degree: int) -> GaussianScene:
        """The scene with exactly the bands 0..degree: more are dropped, missing ones are 0."""
        if not 0 <= degree <= 3:
            raise ShapeError(f"GaussianScene: the degree of spherical harmonics is 0 to 3, got {degree}")
        sh = np.zeros((self.splats, COEFFICIENTS[degree], 3), np.float32)
        kept = min(sh.shape[1], self.sh.shape[1])
        sh[:, :kept] = np.asarray(self.sh)[:, :kept]
        return self._replace(sh=sh)

    def taken(self, which: Any) -> GaussianScene:
        """Some of the splats: positions in the scene, or a mask."""
        return GaussianScene(*(np.asarray(x)[which] for x in self))

    @classmethod
    def from_points(cls, points: Any, colors: Any, degree: int = 0, opacity: float = 0.1) -> GaussianScene:
        """One round splat per point [N, 3], as wide as its nearest neighbours are far; colors [N, 3] in 0..1."""
        positions = np.ascontiguousarray(points, np.float32).reshape(-1, 3)
        rgb = np.ascontiguousarray(colors, np.float32).reshape(-1, 3)
        if len(rgb) != len(positions):
            raise ShapeError(f"from_points: {len(positions)} points need as many colors, got {len(rgb)}")
        if not (np.isfinite(positions).all() and np.isfinite(rgb).all()):
            raise ShapeError("from_points: points and colors must be finite")
        n = len(positions)
        sh = np.zeros((n, COEFFICIENTS[degree], 3), np.float32)
        sh[:, 0] = (rgb - 0.5) / SH_C0
        rotations = np.zeros((n, 4), np.float32)
        rotations[:, 0] = 1.0
        widths = np.log(np.maximum(mean_neighbour_distance(positions), 1e-5))
        return cls(
            positions=positions,
            scales=np.repeat(widths[:, None], 3, axis=1).astype(np.float32),
            rotations=rotations,
            opacities=np.full(n, logit(opacity), np.float32),
            sh=sh,
        )


def odd_band_signs(coefficients: int) -> F32:
    """[K, 1]: -1 for coefficients whose harmonic changes sign with the direction."""
    signs = np.ones((coefficients, 1), np.float32)
    signs[[i for i in _ODD_BANDS if i < coefficients]] = -1.0
    return signs


def logit(opacity: Any) -> Any:
    """log(p/(1 - p)), kept finite."""
    p = np.clip(np.asarray(opacity, np.float64), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(p) - np.log1p(-p), -_LARGEST_LOGIT, _LARGEST_LOGIT).astype(np.float32)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def mean_neighbour_distance(points: F32, neighbours: int = 3) -> F32:
    """The root mean square distance to the nearest points [N]; found cell by cell, in blocks of bounded size."""
    n = len(points)
    if n <= 1:
        return np.full(n, 0.1, np.float32)
    neighbours = min(neighbours, n - 1)
    # Sorted along the longest axis, near points have near ranks: a window around each rank is enough for a start.
    order = np.argsort(points[:, np.ptp(points, axis=0).argmax()], kind="stable")
    is_small = n <= 4096
    window = n if is_small else 1024
    squared = np.empty(n, np.float32)
    ranked = points[order].astype(np.float64)
    for start in range(0, n, 512):
        stop = min(start + 512, n)
        low, high = (0, n) if is_small else (max(0, start - window), min(n, stop + window))
        apart = ((ranked[start:stop, None] - ranked[None, low:high]) ** 2).sum(axis=-1)
        apart[np.arange(stop - start), np.arange(start - low, stop - low)] = np.inf
        nearest = np.partition(apart, neighbours - 1, axis=1)[:, :neighbours]
        squared[order[start:stop]] = nearest.mean(axis=1)
    return np.sqrt(squared)
