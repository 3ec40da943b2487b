"""A scene as one HTML file that shows it in a browser, with nothing to install and nothing to load.

write_viewer("garden.html", scene, camera, target=(0, 0, 0))
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlx.formats.mapped_file import replace_file
from rlx.splat.camera import Camera
from rlx.splat.scene import SH_C0, GaussianScene, sigmoid
from rlx.splat.viewer_page import PAGE

# Numbers of a splat: place (3), opacity (1), the upper half of its covariance (6), colour (3).
PER_SPLAT = 13
_SH_RANGE = 8.0


def write_viewer(
    path: str | os.PathLike[str],
    scene: GaussianScene,
    camera: Camera,
    target: Sequence[float] = (0.0, 0.0, 0.0),
    up: Sequence[float] | None = None,
    background: Sequence[float] = (0.0, 0.0, 0.0),
    title: str = "Gaussian splats",
) -> None:
    """Write the page; it opens with the view of the camera, and turns around the target."""
    whole = scene.checked()
    rest = np.clip(np.floor((whole.sh[:, 1:] / _SH_RANGE + 0.5) * 256.0), 0, 255).astype(np.uint8)
    document = {
        "count": whole.splats,
        "coefficients": int(whole.sh.shape[1]),
        "splats": _text(viewer_numbers(whole)),
        "bands": _text(rest),
        "eye": [float(v) for v in camera.position],
        "target": [float(v) for v in target],
        "up": [float(v) for v in (up if up is not None else -np.asarray(camera.rotation)[1])],
        "fov": math.degrees(2 * math.atan(0.5 * camera.height / camera.fy)),
        "background": [float(v) for v in background],
    }
    shown = ", ".join(str(round(255 * float(np.clip(v, 0, 1)))) for v in background)
    page = PAGE.replace("@TITLE@", html.escape(title)).replace("@BACKGROUND@", shown)
    page = page.replace("@SCENE@", json.dumps(document))
    with replace_file(Path(path)) as file:
        file.write(page.encode())


def viewer_numbers(scene: GaussianScene) -> npt.NDArray[np.float32]:
    """What the page draws [N, 13]."""
    w, x, y, z = (np.asarray(scene.rotations, np.float64) / np.linalg.norm(scene.rotations, axis=1, keepdims=True)).T
    rotation = np.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x * x + y * y),
        ],
        axis=-1,
    ).reshape(-1, 3, 3)
    axes = rotation * np.exp(np.asarray(scene.scales, np.float64))[:, None, :]
    covariance = axes @ axes.transpose(0, 2, 1)
    rows, columns = np.triu_indices(3)
    parts = (
        scene.positions,
        sigmoid(scene.opacities)[:, None],
        covariance[:, rows, columns],
        scene.sh[:, 0] * SH_C0 + 0.5,
    )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _text(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
