"""From pictures to a scene of Gaussian splats to a page that shows it, without anything to download.

    python examples/splats.py [FOLDER] [STEPS]

FOLDER is a COLMAP project (images/*.png and sparse/0); without one, a small synthetic scene is made first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rlx import splat


def main() -> None:
    out = Path(tempfile.mkdtemp(prefix="rlx-splats-"))
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else out / "toy"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    if len(sys.argv) < 2:
        splat.write_synthetic(folder, views=16, width=96, height=72)
    data = splat.load_dataset(folder)
    settings = splat.TrainSettings(
        steps=steps,
        sh_degree=1,
        report_every=max(1, steps // 6),
        density=splat.DensitySettings(max_splats=2000, first_step=100, last_step=steps // 2),
    )
    result = splat.train(data, settings, report=print)
    splat.write_scene(out / "scene.ply", result.scene)
    camera = (data.held_out or data.training)[0].camera
    splat.write_png(out / "view.png", splat.to_bytes(splat.render(result.scene, camera)))
    splat.write_viewer(out / "scene.html", result.scene, camera, target=tuple(data.center))
    print(f"{result.scene.splats} splats, {result.psnr:.2f} dB on views that were held out; open {out / 'scene.html'}")


if __name__ == "__main__":
    main()
