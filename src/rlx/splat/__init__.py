"""Gaussian splats: scenes and their files, cameras and pictures, rendering, training and showing them.

from rlx import splat

splat.write_synthetic("toy")                                    # a folder as COLMAP leaves it
result = splat.train(splat.load_dataset("toy"), splat.TrainSettings(steps=500))
splat.write_scene("toy.ply", result.scene)
picture = splat.render(result.scene, splat.Camera.look_at((0, 1, 3), (0, 0, 0)))
splat.write_png("toy.png", splat.to_bytes(picture))
"""

from __future__ import annotations

from rlx.splat.camera import Camera, undistorted
from rlx.splat.colmap import ColmapModel, read_colmap, write_colmap_text
from rlx.splat.dataset import Dataset, View, downscaled, load_dataset
from rlx.splat.density import DensitySettings
from rlx.splat.losses import photo_loss, psnr, ssim
from rlx.splat.png import read_png, write_apng, write_png
from rlx.splat.rendering import RenderSettings, orbit, render, splat_image, to_bytes
from rlx.splat.scene import GaussianScene
from rlx.splat.scene_files import read_scene, write_scene
from rlx.splat.synthetic import synthetic_cameras, synthetic_scene, write_synthetic
from rlx.splat.training import Progress, TrainResult, TrainSettings, train
from rlx.splat.viewer import write_viewer

__all__ = [
    "Camera",
    "ColmapModel",
    "Dataset",
    "DensitySettings",
    "GaussianScene",
    "Progress",
    "RenderSettings",
    "TrainResult",
    "TrainSettings",
    "View",
    "downscaled",
    "load_dataset",
    "orbit",
    "photo_loss",
    "psnr",
    "read_colmap",
    "read_png",
    "read_scene",
    "render",
    "splat_image",
    "ssim",
    "synthetic_cameras",
    "synthetic_scene",
    "to_bytes",
    "train",
    "undistorted",
    "write_apng",
    "write_colmap_text",
    "write_png",
    "write_scene",
    "write_synthetic",
    "write_viewer",
]
