"""Scenes on which the splatting ops are tested."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.splat.scene import META_LENGTH, SceneOp


def scene_specs(count: int, sh_coeffs: int, symbol: str | None = None, wide: bool = False) -> list[Spec]:
    """`count` splats around the origin, seen from z = 4; with `symbol` their number is symbolic, bound to `count`.

    Pixels at the rim of a splat lie near the jump at the cut-off. Splats that are `wide` and not too opaque cover the
    whole image, and no pixel is finished: the image is smooth.
    """
    rng = np.random.default_rng(count + sh_coeffs)
    quaternions = rng.normal(size=(count, 4))
    quaternions /= np.linalg.norm(quaternions, axis=-1, keepdims=True)
    scene = {
        "positions": rng.uniform(-1.0, 1.0, (count, 3)),
        "scales": rng.uniform(-2.0, -0.7, (count, 3)) + (2.2 if wide else 0.0),
        "rotations": quaternions,
        "opacities": rng.uniform(0.2, 0.6 if wide else 0.95, (count, 1)),
        "colors": rng.uniform(0.1, 0.9, (count, 3)),
        "sh_coeffs": rng.uniform(-0.1, 0.1, (count, 3 * sh_coeffs)),
    }
    operands = [spec(f"{v.shape[1]}*{symbol}" if symbol else v.size, values=v.reshape(v.size)) for v in scene.values()]
    camera = [0.2, -0.3, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 60.0, 0.1, 100.0, 0.1, 0.15, 0.2]
    return [*operands, spec(META_LENGTH, values=[*camera, *[0.0] * (META_LENGTH - len(camera))])]


def scene_samples(make: type[SceneOp]) -> Iterator[Sample]:
    """Scenes without and with all SH bands, of symbolic size, with more entries than fit, that stop early, and none."""
    small = {"width": 8, "height": 8, "tile_size": 4, "max_list_entries": 24}
    yield sample(make(**small), *scene_specs(3, 0, wide=True))
    yield sample(make(7, 5, 4, radius_scale=1.0, max_list_entries=6), *scene_specs(4, 16), smooth=False)
    yield sample(make(**small), *scene_specs(3, 4, "N", wide=True), dtypes=("f32", "f64"), N=3)
    early = make(6, 4, 16, max_splat_steps=0, transmittance_threshold=0.5)
    yield sample(early, *scene_specs(3, 2), dtypes=("f64",), smooth=False)
    yield sample(make(**small), *scene_specs(0, 0), dtypes=("f32",))
