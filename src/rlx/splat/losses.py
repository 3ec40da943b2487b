"""How far a picture is from another: L1, SSIM and PSNR. Pictures are [height, width, 3] in 0..1, tensors or arrays."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx import numpy as rnp

F32 = npt.NDArray[np.float32]

WINDOW, SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


@functools.cache
def _blur_matrix(size: int) -> F32:
    """[size, size]: each row a Gaussian window around its place; at the edges the window is cut and weighs 1 again."""
    apart = np.arange(size)[:, None] - np.arange(size)[None, :]
    weights = np.where(np.abs(apart) <= WINDOW // 2, np.exp(-0.5 * (apart / SIGMA) ** 2), 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _blurred(pictures: Any) -> Any:
    """[height, n, width] blurred along its first and last axis; a product with a matrix is its own fast gradient."""
    height, count, width = pictures.shape
    down = rnp.reshape(_blur_matrix(height) @ rnp.reshape(pictures, (height, count * width)), (height * count, width))
    return rnp.reshape(down @ _blur_matrix(width).T, (height, count, width))


def ssim_map(a: Any, b: Any) -> Any:
    """The structural similarity around every pixel [height, width, 3], by Gaussian windows of 11 pixels, σ = 1.5."""
    x, y = (rnp.transpose(p, (0, 2, 1)) for p in (a, b))
    channels = x.shape[1]
    blurred = _blurred(rnp.concatenate([x, y, x * x, y * y, x * y], axis=1))
    mean_x, mean_y, xx, yy, xy = (blurred[:, i * channels : (i + 1) * channels] for i in range(5))
    var_x, var_y, covariance = xx - mean_x * mean_x, yy - mean_y * mean_y, xy - mean_x * mean_y
    similar = (2.0 * mean_x * mean_y + _C1) * (2.0 * covariance + _C2)
    found = similar / ((mean_x * mean_x + mean_y * mean_y + _C1) * (var_x + var_y + _C2))
    return rnp.transpose(found, (0, 2, 1))


def ssim(a: Any, b: Any) -> Any:
    """The mean structural similarity of two pictures; 1 if they are equal."""
    return rnp.mean(ssim_map(a, b))


def photo_loss(picture: Any, wanted: Any, ssim_share: float = 0.2) -> Any:
    """(1 - share)·L1 + share·(1 - SSIM)."""
    # Pixels that are right already pull nowhere.
    l1 = rnp.mean(rnp.where(picture == wanted, 0.0, rnp.abs(picture - wanted)))
    return l1 if ssim_share == 0.0 else (1.0 - ssim_share) * l1 + ssim_share * (1.0 - ssim(picture, wanted))


def psnr(picture: Any, wanted: Any) -> float:
    """The peak signal-to-noise ratio in dB; inf if the pictures are equal."""
    error = float(np.mean((np.clip(np.asarray(picture, np.float64), 0, 1) - np.asarray(wanted, np.float64)) ** 2))
    return math.inf if error == 0.0 else -10.0 * math.log10(error)
