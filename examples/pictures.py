"""Pictures for the examples: arrays of colours to PNG files, with nothing but zlib.

image = colours(values)                     # f32[h, w] from 0 to 1 -> u8[h, w, 3]
write_png("picture.png", image)
"""

from __future__ import annotations

import itertools
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# From dark blue over magenta and orange to white, brightness rising evenly.
_SCALE = np.array([[8, 8, 32], [60, 16, 100], [150, 30, 110], [225, 80, 60], [250, 165, 50], [255, 250, 220]], float)
# Lines and dots, apart from each other also without colour.
INKS = [(40, 90, 160), (215, 95, 30), (60, 140, 70), (150, 60, 140), (120, 90, 60), (20, 20, 20)]


def colours(values: Any) -> Array:
    """Values from 0 to 1 as colours; what lies outside is cut off, NaN is black."""
    clean = np.nan_to_num(np.clip(np.asarray(values, np.float64), 0.0, 1.0))
    place = clean * (len(_SCALE) - 1)
    return np.stack([np.interp(place, np.arange(len(_SCALE)), _SCALE[:, c]) for c in range(3)], -1).astype(np.uint8)


def write_png(path: str | Path, image: Any) -> None:
    """An image u8[h, w, 3] or u8[h, w] as a PNG file."""
    pixels = np.asarray(image, np.uint8)
    if pixels.ndim not in (2, 3) or 0 in pixels.shape or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(f"write_png: needs an image [h, w] or [h, w, 3], got {pixels.shape}")
    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0
    # Each row begins with the number of its filter, 0 for none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1).tobytes()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)), (b"IDAT", zlib.compress(rows, 9))]
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in [*chunks, (b"IEND", b"")]:
        data += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    Path(path).write_bytes(data)


class Canvas:
    """A white picture of a part of the plane, on which lines and dots are drawn."""

    def __init__(
        self, low: tuple[float, float], high: tuple[float, float], width: int = 640, height: int = 480
    ) -> None:
        self.image = np.full((height, width, 3), 255, np.uint8)
        self._low = np.array(low, float)
        self._scale = (np.array([width, height]) - 1) / np.maximum(np.array(high, float) - self._low, 1e-12)

    def line(self, x: Any, y: Any, ink: tuple[int, int, int] = INKS[0], width: int = 1) -> None:
        """Straight lines between points, one after the other."""
        points = self._pixels(x, y)
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if not np.isfinite([x0, y0, x1, y1]).all():
                continue
            steps = int(min(max(abs(x1 - x0), abs(y1 - y0), 1), 4000)) + 1
            part = np.linspace(0, 1, steps)
            self._put(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, ink, width)

    def dots(self, x: Any, y: Any, ink: tuple[int, int, int] = INKS[0], width: int = 3) -> None:
        points = self._pixels(x, y)
        points = points[np.isfinite(points).all(1)]
        self._put(points[:, 0], points[:, 1], ink, width)

    def _pixels(self, x: Any, y: Any) -> Array:
        points = (np.stack([np.ravel(x), np.ravel(y)], -1).astype(float) - self._low) * self._scale
        points[:, 1] = self.image.shape[0] - 1 - points[:, 1]
        return points

    def _put(self, x: Array, y: Array, ink: tuple[int, int, int], width: int) -> None:
        height, wide = self.image.shape[:2]
        for dx in range(-(width // 2), (width + 1) // 2):
            for dy in range(-(width // 2), (width + 1) // 2):
                columns, rows = np.rint(x).astype(int) + dx, np.rint(y).astype(int) + dy
                inside = (columns >= 0) & (columns < wide) & (rows >= 0) & (rows < height)
                self.image[rows[inside], columns[inside]] = ink
