"""Pictures of scenes: compiled once for a size, for any number of splats, and differentiable.

    picture = render(scene, camera)             # f32 [height, width, 4]: r, g, b as shown, and how opaque
    pixels = to_bytes(picture)                  # for `write_png`

Colours are blended as they are shown, as the files of the field have them; nothing is raised to a power. The lists of
the tiles have room for `max_list_entries`; a picture that needs more is made again with more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rlx
from rlx.errors import ShapeError
from rlx.ops.splat.geometry import background_of
from rlx.ops.splat.gradients import GaussianSplatRenderBackward, SplatSums
from rlx.ops.splat.prepare import GaussianSplatPrepare
from rlx.ops.splat.scene import GaussianSplatInputs, GaussianSplatRenderParams, scene_rows, unpack_prepared
from rlx.ops.splat.steps import SplatBlend, SplatGather, SplatPulls
from rlx.splat.camera import Camera
from rlx.splat.scene import GaussianScene

F32 = npt.NDArray[np.float32]

MOST_ENTRIES = 2**24
_FIRST_ENTRIES = 2**14


class RenderSettings(NamedTuple):
    """How splats become pixels; see `GaussianSplatRenderParams`. A radius_scale of 1 is that of the field's files."""

    tile_size: int = 16
    radius_scale: float = 1.0
    alpha_cutoff: float = 1.0 / 255.0
    transmittance_threshold: float = 1e-4

    def params(self, width: int, height: int, entries: int) -> GaussianSplatRenderParams:
        return GaussianSplatRenderParams(
            width,
            height,
            self.tile_size,
            self.radius_scale,
            self.alpha_cutoff,
            0,
            self.transmittance_threshold,
            entries,
        )


def splat_image(operands: GaussianSplatInputs, params: GaussianSplatRenderParams) -> tuple[Any, Any]:
    """The image [height·width·4] of a scene, C + T·background and 1 - T, and how many entries its lists have.

    It has a gradient in everything but the camera, exact but for the order and visibility of splats; the second result
    has none.
    """
    image, entries = _image(params, *operands)
    return image, entries


def _prepared(params: GaussianSplatRenderParams, operands: Sequence[Any]) -> tuple[Any, Any, dict[str, Any]]:
    settings = {k: v for k, v in params._asdict().items() if k != "radius_scale"}
    packed = GaussianSplatPrepare(*params)(*operands)
    return packed, background_of(operands[-1]), settings


@functools.partial(rlx.custom_vjp, nondiff_argnums=(0,))
def _image(params: GaussianSplatRenderParams, *operands: Any) -> Any:
    packed, background, settings = _prepared(params, operands)
    entries = rlx.ops.reduce_max(unpack_prepared(packed, params).ranges[:, 1], 0)
    return SplatBlend(**settings)(packed, background), entries


def _image_forward(params: GaussianSplatRenderParams, *operands: Any) -> Any:
    packed, background, settings = _prepared(params, operands)
    image = SplatBlend(**settings)(packed, background)
    entries = rlx.ops.reduce_max(unpack_prepared(packed, params).ranges[:, 1], 0)
    return (image, entries), (operands, packed, image)


def _image_backward(params: GaussianSplatRenderParams, kept: Any, cotangents: Any) -> Any:
    operands, packed, image = kept
    settings = {k: v for k, v in params._asdict().items() if k != "radius_scale"}
    scene = scene_rows(GaussianSplatInputs(*operands))
    pulls = SplatPulls(**settings)(packed, background_of(scene.meta), image, cotangents[0])
    rows = SplatGather(**settings)(packed, pulls)
    sums = SplatSums.of(rlx.ops.narrow(rows, 0, 0, scene.opacities.shape[0]))
    gradients = GaussianSplatRenderBackward(*params).chained(rlx.ops, scene, sums)
    flat = [g.reshape(x.shape) for g, x in zip(gradients, operands)]
    return (*flat, rlx.ops.zeros_like(operands[-1]))


_image.defvjp(_image_forward, _image_backward)


def scene_specs(coefficients: int) -> GaussianScene:
    """The types of a scene with any number of splats, for `lower`."""
    dims = (("N", 3), ("N", 3), ("N", 4), ("N",), ("N", coefficients, 3))
    return GaussianScene(*(rlx.Spec(d) for d in dims))


@functools.lru_cache(maxsize=32)
def _renderer(params: GaussianSplatRenderParams, coefficients: int) -> Callable[..., Any]:
    def picture(scene: GaussianScene, meta: Any) -> Any:
        return splat_image(scene.operands(meta), params)

    return rlx.jit(picture).lower(scene_specs(coefficients), rlx.Spec((23,))).compile()


# How many entries were enough for pictures of a size: the next one of that size starts there.
_enough: dict[tuple[int, int], int] = {}


def render(
    scene: GaussianScene,
    camera: Camera,
    background: Sequence[float] = (0.0, 0.0, 0.0),
    settings: RenderSettings | None = None,
) -> F32:
    """The picture [height, width, 4] that an ideal camera takes of a scene."""
    chosen = settings or RenderSettings()
    whole = scene.checked()
    size = (camera.width, camera.height)
    entries = _enough.get(size, _FIRST_ENTRIES)
    while True:
        params = chosen.params(*size, entries)
        image, listed = _renderer(params, whole.sh.shape[1])(whole, np.asarray(camera.meta(background, params)))
        if int(listed) < entries:
            break
        entries = next_entries(entries)
    _enough[size] = entries
    return np.asarray(image, np.float32).reshape(camera.height, camera.width, 4)


def next_entries(entries: int) -> int:
    """More room for the lists of tiles, or an error where there can be no more."""
    if entries >= MOST_ENTRIES:
        raise ShapeError(
            f"the lists of tiles hold at most {MOST_ENTRIES} entries, and this picture needs more; "
            "render it smaller, with larger tiles, or fewer splats"
        )
    return min(4 * entries, MOST_ENTRIES)


def to_bytes(picture: F32) -> npt.NDArray[np.uint8]:
    """The colours of a picture as uint8 [height, width, 3]."""
    return np.rint(np.clip(picture[..., :3], 0.0, 1.0) * 255.0).astype(np.uint8)


def orbit(center: Sequence[float], start: Camera, count: int, axis: Sequence[float] | None = None) -> list[Camera]:
    """Cameras on a circle through `start` around an axis through `center`, all looking at it."""
    middle = np.asarray(center, np.float64)
    turn = np.asarray(axis if axis is not None else -np.asarray(start.rotation)[1], np.float64)
    turn = turn / np.linalg.norm(turn)
    arm = np.asarray(start.position) - middle
    fov = math.degrees(2 * math.atan(0.5 * start.height / start.fy))
    cameras = []
    for i in range(count):
        angle = 2 * math.pi * i / count
        # Rodrigues' rotation of the arm.
        turned = (
            arm * math.cos(angle)
            + np.cross(turn, arm) * math.sin(angle)
            + turn * float(turn @ arm) * (1 - math.cos(angle))
        )
        cameras.append(
            Camera.look_at(tuple(middle + turned), tuple(middle), tuple(turn), start.width, start.height, fov)
        )
    return cameras
