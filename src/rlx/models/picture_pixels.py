"""Pictures as the pixels that a model reads: resized, cut, and shifted as `preprocessor_config.json` says.

Pictures are arrays u8[H, W, 3] (or [H, W], [H, W, 4]), pictures of Pillow, or paths, which need Pillow. Resizing gives
the bytes that Pillow gives: the weights of a filter around each pixel as whole numbers, columns first, then rows. (From
its version 13 on Pillow begins with the rows of tall pictures, which rounds a few bytes to their neighbours.)
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, OpError, RlxError
from rlx.models.hf_fields import HfFields

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
# Bits behind the point in the weights of filters, and pictures larger than this, which are a mistake.
_BITS = 22
_MOST_PIXELS = 1 << 28


@dataclass(frozen=True)
class PictureRecipe:
    """How pictures become pixels.

    They are resized to `size` (height, width), or so that the shorter side is `shortest` pixels long; then the middle
    `crop` is cut out; bytes are multiplied by `scale`, and of each channel `mean` is taken and the rest divided by
    `deviation`. None leaves a step out."""

    size: tuple[int, int] | None = None
    shortest: int | None = None
    crop: tuple[int, int] | None = None
    filter: str = "bicubic"
    scale: float = 1.0
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of what comes out."""
        found = self.crop or self.size
        if found is None:
            raise FormatError("preprocessor_config.json: pictures must be cut or resized to one size")
        return found


# Numbers of filters in Pillow.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_USUAL: dict[str, dict[str, Any]] = {
    "clip": {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 224},
    "siglip": {"resample": 3},
    "vit": {"resample": 2},
    "dinov2": {"size": {"shortest_edge": 256}, "resample": 3, "do_center_crop": True, "crop_size": 224},
}
_CLIP_MEAN, _CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture_recipe(family: str, fields: Mapping[str, Any], image: int) -> PictureRecipe:
    """What `preprocessor_config.json` says; what it leaves out, or all of it, is as the family has it."""
    kind = next((name for name in _USUAL if family.startswith(name)), "vit")
    f = HfFields({"size": image, "do_center_crop": False, **_USUAL[kind], **fields}, family)
    usual = {"clip": (_CLIP_MEAN, _CLIP_DEVIATION), "dinov2": (_IMAGENET_MEAN, _IMAGENET_DEVIATION)}
    mean, deviation = usual.get(kind, ((0.5,) * 3, (0.5,) * 3))
    resamples, size, shortest = f.flag("do_resize", True), None, None
    if resamples:
        size, shortest = _size(f, "size", kind == "clip")
    number = f.size("resample", least=0)
    if resamples and number not in _FILTERS:
        raise FormatError(f"preprocessor_config.json: resample={number} is not supported; supported: 0 to 3")
    crop = _size(f, "crop_size", False)[0] if f.flag("do_center_crop", False) else None
    normalizes = f.flag("do_normalize", True)
    return PictureRecipe(
        size=size,
        shortest=shortest,
        crop=crop,
        filter=_FILTERS.get(number, "bicubic"),
        scale=f.number("rescale_factor", 1 / 255) if f.flag("do_rescale", True) else 1.0,
        mean=_numbers(f, "image_mean", mean) if normalizes else None,
        deviation=_numbers(f, "image_std", deviation) if normalizes else None,
    )


def _size(f: HfFields, name: str, is_shortest: bool) -> tuple[tuple[int, int] | None, int | None]:
    """A height and width, or the length of the shorter side; a single number is one or the other."""
    try:
        table = HfFields(f.table(name), f.family)
    except FormatError:
        side = f.size(name)
        return (None, side) if is_shortest else ((side, side), None)
    if table.has("shortest_edge"):
        return None, table.size("shortest_edge")
    return (table.size("height"), table.size("width")), None


def _numbers(f: HfFields, name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(x) for x in f.listed(name) or usual)


def pixels_of(picture: Any, recipe: PictureRecipe) -> F32:
    """f32[3, H, W] of a picture."""
    pixels = as_bytes(picture)
    if recipe.size is not None:
        pixels = resized(pixels, *recipe.size, recipe.filter)
    elif recipe.shortest is not None:
        pixels = resized(pixels, *_with_shorter_side(pixels.shape[0], pixels.shape[1], recipe.shortest), recipe.filter)
    if recipe.crop is not None:
        pixels = _middle(pixels, *recipe.crop)
    if pixels.shape[:2] != recipe.shape:
        raise OpError(f"a picture of {pixels.shape[0]} x {pixels.shape[1]} pixels was given, {recipe.shape} are read")
    return shifted(pixels, recipe)


def shifted(pixels: U8, recipe: PictureRecipe) -> F32:
    """f32[3, H, W] of bytes."""
    values: F32 = pixels.astype(np.float32) * np.float32(recipe.scale)
    if recipe.mean is not None and recipe.deviation is not None:
        values = (values - np.array(recipe.mean, np.float32)).astype(np.float32)
        values = (values / np.array(recipe.deviation, np.float32)).astype(np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)


def as_bytes(picture: Any) -> U8:
    """u8[H, W, 3] of an array, a picture of Pillow, or a path."""
    if isinstance(picture, str | os.PathLike):
        picture = _opened(picture)
    if hasattr(picture, "convert"):
        picture = picture.convert("RGB")
    found = np.asarray(picture)
    if found.ndim == 2:
        found = np.repeat(found[..., None], 3, -1)
    if found.ndim != 3 or found.shape[2] not in (1, 3, 4) or 0 in found.shape:
        raise OpError(f"a picture is an array [height, width, 3], got {list(found.shape)}")
    if found.dtype != np.uint8:
        raise OpError(f"a picture is an array of bytes (uint8), got {found.dtype}; floats from 0 to 1 are (x * 255)")
    if found.shape[0] * found.shape[1] > _MOST_PIXELS:
        raise OpError(f"a picture of {found.shape[0]} x {found.shape[1]} pixels is too large")
    return np.repeat(found, 3, -1) if found.shape[2] == 1 else found[..., :3]


def _opened(path: str | os.PathLike[str]) -> Any:
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        raise RlxError(
            f"{os.fspath(path)}: Pillow is needed to read files of pictures; pip install pillow, or give arrays "
            "uint8[height, width, 3]"
        ) from None
    try:
        return image.open(path)
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)}: this picture cannot be read: {error}") from None


def _with_shorter_side(height: int, width: int, shortest: int) -> tuple[int, int]:
    longer = int(shortest * max(height, width) / min(height, width))
    return (shortest, longer) if height <= width else (longer, shortest)


def _middle(pixels: U8, height: int, width: int) -> U8:
    """The middle of a picture; what is beyond its edges is black."""
    more = [max(wanted - had, 0) for wanted, had in zip((height, width), pixels.shape)]
    if any(more):
        ends = [(-(-size // 2), size // 2) for size in more]
        pixels = np.pad(pixels, (*ends, (0, 0)))
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def resized(pixels: U8, height: int, width: int, filter: str = "bicubic") -> U8:
    """u8[height, width, C] of u8[H, W, C], by the filter "bicubic", "bilinear", "lanczos" or "nearest"."""
    if filter == "nearest":
        rows, columns = (_nearest(had, wanted) for had, wanted in zip(pixels.shape, (height, width)))
        return pixels[rows][:, columns]
    if pixels.shape[1] != width:
        pixels = _filtered(pixels.swapaxes(0, 1), width, filter).swapaxes(0, 1)
    return pixels if pixels.shape[0] == height else _filtered(pixels, height, filter)


def _nearest(given: int, wanted: int) -> npt.NDArray[np.int64]:
    """The pixel in which the middle of each new one lies. Steps are added up one by one, as Pillow adds them: where a
    middle is on an edge, the last bit decides."""
    step = given / wanted
    places = np.cumsum(np.concatenate([[step * 0.5], np.full(wanted - 1, step)]))
    return np.minimum(places.astype(np.int64), given - 1)


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _linear(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _lanczos(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


_SHAPES: dict[str, tuple[Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]], float]] = {
    "bicubic": (_cubic, 2.0),
    "bilinear": (_linear, 1.0),
    "lanczos": (_lanczos, 3.0),
}


def _filtered(pixels: U8, size: int, filter: str) -> U8:
    """The first axis resized."""
    shape, reach = _SHAPES[filter]
    given = pixels.shape[0]
    step = given / size
    wide = max(step, 1.0)
    result = np.empty((size, *pixels.shape[1:]), np.uint8)
    for place in range(size):
        centre = (place + 0.5) * step
        first, last = max(int(centre - reach * wide + 0.5), 0), min(int(centre + reach * wide + 0.5), given)
        weights = shape((np.arange(first, last) - centre + 0.5) / wide)
        weights = weights / math.fsum(weights)
        whole = np.trunc(weights * (1 << _BITS) + np.where(weights < 0, -0.5, 0.5)).astype(np.int64)
        sums = np.tensordot(whole, pixels[first:last].astype(np.int64), 1) + (1 << (_BITS - 1))
        result[place] = np.clip(sums >> _BITS, 0, 255)
    return result
