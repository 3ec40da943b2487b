"""Curves of a run: as text for a terminal and as a PNG file, with nothing but zlib."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlx.errors import TrainingError
from rlx.formats.mapped_file import replace_file

__all__ = ["curve_text", "write_curve", "write_png"]

Points = Sequence[tuple[float, float]]
Pixels = npt.NDArray[np.uint8]

# Digits of three columns and five rows, the top row in the highest three bits.
_GLYPHS = {
    "0": 0b111101101101111,
    "1": 0b010110010010111,
    "2": 0b111001111100111,
    "3": 0b111001111001111,
    "4": 0b101101111001001,
    "5": 0b111100111001111,
    "6": 0b111100111101111,
    "7": 0b111001001001001,
    "8": 0b111101111101111,
    "9": 0b111101111001111,
    ".": 0b000000000000010,
    "-": 0b000000111000000,
    "e": 0b000111111100111,
    "+": 0b000010111010000,
}
_INK, _GRID, _LINE = (90, 90, 90), (225, 225, 225), (31, 90, 180)


def _finite(points: Points) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    xs, ys = np.array(points, np.float64).reshape(-1, 2).T
    shown = np.isfinite(ys)
    if not shown.any():
        raise TrainingError("a curve needs at least one finite value")
    return xs[shown], ys[shown]


def _limits(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    room = (high - low) or abs(high) or 1.0
    return (low, high) if high > low else (low - room / 2, high + room / 2)


def curve_text(points: Points, width: int = 60, height: int = 12) -> str:
    """The curve in rows of characters, two dots in each from top to bottom; the means of what falls into a column."""
    xs, ys = _finite(points)
    (left, right), (low, high) = _limits(xs), _limits(ys)
    columns = np.minimum((xs - left) / (right - left) * width, width - 1).astype(int)
    dots = 2 * height
    grid = [[0] * width for _ in range(height)]
    for column in np.unique(columns):
        mean = ys[columns == column].mean()
        dot = min(int((high - mean) / (high - low) * dots), dots - 1)
        grid[dot // 2][int(column)] |= 1 + dot % 2
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    room = max(len(text) for text in labels.values())
    rows = [f"{labels.get(i, ''):>{room}} ┤{''.join(' ▀▄█'[cell] for cell in row)}" for i, row in enumerate(grid)]
    foot = f"{' ' * room} └{f'{left:g}':<{width - 10}}{f'{right:g}':>10}"
    return "\n".join([*rows, foot.rstrip()])


def write_curve(path: str | os.PathLike[str], points: Points, width: int = 640, height: int = 360) -> None:
    """The curve as a PNG file, with a grid and numbers at its lines."""
    xs, ys = _finite(points)
    image: Pixels = np.full((height, width, 3), 255, np.uint8)
    left, top, right, bottom = 60, 12, width - 16, height - 28
    (x_low, x_high), (y_low, y_high) = _limits(xs), _limits(ys)
    for value in _ticks(y_low, y_high):
        row = round(bottom - (value - y_low) / (y_high - y_low) * (bottom - top))
        image[row, left : right + 1] = _GRID
        _write(image, f"{value:.4g}", left - 6, row - 5, align_right=True)
    for value in _ticks(x_low, x_high):
        column = round(left + (value - x_low) / (x_high - x_low) * (right - left))
        image[top : bottom + 1, column] = _GRID
        _write(image, f"{value:.6g}", column + 4 * len(f"{value:.6g}"), bottom + 8, align_right=True)
    columns = left + (xs - x_low) / (x_high - x_low) * (right - left)
    rows = bottom - (ys - y_low) / (y_high - y_low) * (bottom - top)
    for i in range(max(len(columns) - 1, 1)):
        j = min(i + 1, len(columns) - 1)
        _draw_line(image, columns[i], rows[i], columns[j], rows[j])
    write_png(path, image)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between the limits."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw)
    # The product with a whole number, rounded, so that 0.30000000000000004 is not written.
    return [round(n * step, 12) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _write(image: Pixels, text: str, x: int, y: int, align_right: bool) -> None:
    """Digits of twice three by five pixels; parts outside the picture are left out."""
    at = x - 8 * len(text) + 2 if align_right else x
    for character in text:
        bits = _GLYPHS.get(character, 0)
        for row in range(5):
            for column in range(3):
                if bits >> (14 - 3 * row - column) & 1:
                    high, wide = max(y + 2 * row, 0), max(at + 2 * column, 0)
                    image[high : high + 2, wide : wide + 2] = _INK
        at += 8


def _draw_line(image: Pixels, x0: float, y0: float, x1: float, y1: float) -> None:
    count = int(max(abs(x1 - x0), abs(y1 - y0))) + 1
    columns = np.rint(np.linspace(x0, x1, count + 1)).astype(int)
    rows = np.rint(np.linspace(y0, y1, count + 1)).astype(int)
    for thickness in (0, 1):
        image[np.clip(rows + thickness, 0, len(image) - 1), np.clip(columns, 0, image.shape[1] - 1)] = _LINE


def write_png(path: str | os.PathLike[str], image: Pixels) -> None:
    """Bytes [height, width] of grey or [height, width, 3] of red, green and blue as a PNG file."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise TrainingError(
            f"write_png: u8 [height, width] or [height, width, 3] is needed, got {image.dtype}{list(image.shape)}"
        )
    height, width = image.shape[:2]
    # Each row begins with its filter, 0 for none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    try:
        with replace_file(Path(path)) as file:
            file.write(b"\x89PNG\r\n\x1a\n" + body)
    except OSError as error:
        raise TrainingError(f"{path}: the picture cannot be written: {error.strerror}") from error
