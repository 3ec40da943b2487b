"""`VisionModel`: vectors and labels of pictures, and of texts beside them; `load_vision` makes one from a Hugging Face
directory or a name.

model = rlx.load_vision("path/to/clip-vit-base-patch32")
vectors = model.embed_images(["cat.jpg", array])           # f32[2, 512]
model.match(["cat.jpg"], ["a photo of a cat", "a photo of a dog"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.backends.api import CompileOptions
from rlx.errors import FormatError, OpError
from rlx.models.config_hf_vision import SightConfig, sight_config_from_hf
from rlx.models.model_files import open_weights, read_json, weights_identity
from rlx.models.picture_pixels import PictureRecipe, picture_recipe, pixels_of
from rlx.models.pull import find_directory
from rlx.models.text_classifier import Label
from rlx.models.vision import TowerProgram, build_texts, build_vision, spread_places
from rlx.models.vision_names import CLIP_TEXTS, SIGLIP_TEXTS, VISION_NAMES, usually_named
from rlx.models.weights import WeightFile, hf_weights, plain_weight, read_weights
from rlx.ops.lowered.int8_products import ACTIVATIONS
from rlx.runtime.session import Session

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.models.tokenizer import Tokenizer
    from rlx.runtime.compiled_graph import CompiledGraph

F32 = npt.NDArray[np.float32]
# Below every length that means something.
_TINY = 1e-12


class SightFiles(NamedTuple):
    """The config of a model, how its pictures are made ready, and the weights of its towers; what is added to, and
    multiplied with, the cosine of a picture and a text."""

    config: SightConfig
    recipe: PictureRecipe
    vision: WeightFile
    texts: WeightFile | None
    scale: float
    bias: float


def load_vision(
    path_or_name: str | os.PathLike[str],
    device: str = "cpu",
    threads: int | None = None,
    weights: str | None = None,
    activations: str = "f32",
    mmap: bool = True,
) -> VisionModel:
    """A model that sees (CLIP, SigLIP, ViT, DINOv2) from a Hugging Face directory, or a name that is pulled first.

    `weights`, `activations` and `mmap` are those of `rlx.load_encoder`."""
    from rlx.models.tokenizer import Tokenizer

    if activations not in ACTIVATIONS:
        raise OpError(f"load_vision: activations must be one of {', '.join(ACTIVATIONS)}, got {activations!r}")
    path = find_directory(path_or_name, "such a model")
    source = weights_identity(path) if mmap else ""
    files = open_sight(path, mmap)
    if weights is not None:
        source = ""
        files.vision.quantize(weights, files.config.vision.tower.layers)
        if files.texts is not None and files.config.text is not None:
            files.texts.quantize(weights, files.config.text.tower.layers)
    made = lambda: Tokenizer.from_directory(path)  # noqa: E731
    return VisionModel(files, made, path, device, threads, activations, source)


def open_sight(path: Path, mmap: bool = True) -> SightFiles:
    """A Hugging Face directory."""
    config = sight_config_from_hf(read_json(path / "config.json"))
    file = path / "preprocessor_config.json"
    recipe = picture_recipe(config.family, read_json(file) if file.is_file() else {}, config.vision.image)
    vision = config.vision
    height, width = recipe.shape
    if height % vision.patch or width % vision.patch:
        raise FormatError(f"{path}: pictures of {height} x {width} pixels are not made of squares of {vision.patch}")
    text = config.text
    layers = max(vision.tower.layers, 0 if text is None else text.tower.layers)
    names = VISION_NAMES[config.family]
    found = dict(hf_weights(open_weights(path, mmap), names, path.name, layers=layers, rearrange=usually_named).items())
    scale, bias = (_number(found.pop(name, None)) for name in ("logit_scale", "logit_bias"))
    beside = {name: found.pop(name) for name in list(found) if name.startswith(("text_model.", "text_projection."))}
    if "visual_projection.weight" not in found and vision.projection:
        # A tower that was saved without what stands behind it.
        vision = replace(vision, projection=0)
        config = replace(config, vision=vision)
    if config.vision.labels and "classifier.weight" not in found:
        raise FormatError(f"{path}: config.json names labels, and there is no 'classifier.weight'")
    if not config.vision.labels:
        found = {name: weight for name, weight in found.items() if not name.startswith("classifier.")}
    places = f"{names['positions']}.weight"
    if places in found:
        rows, columns = height // vision.patch, width // vision.patch
        found[places] = plain_weight(_places(found[places].read(), vision.has_first, rows, columns))
    texts = None
    if text is not None:
        own = SIGLIP_TEXTS if config.family.startswith("siglip") else CLIP_TEXTS
        texts = WeightFile(path.name, own, beside)
    return SightFiles(config, recipe, WeightFile(path.name, names, found), texts, float(np.exp(scale)), bias)


def _number(weight: Any) -> float:
    return 0.0 if weight is None else float(np.asarray(weight.read(), np.float64).reshape(-1)[0])


def _places(table: Any, has_first: bool, rows: int, columns: int) -> F32:
    """The places of squares, for a grid of so many rows and columns."""
    given = np.asarray(table, np.float32)
    squares = given[1:] if has_first else given
    side = round(len(squares) ** 0.5)
    if side * side != len(squares):
        raise FormatError(f"{len(squares)} places of squares are no square grid")
    return np.concatenate([given[: len(given) - len(squares)], spread_places(squares, rows, columns)])


class VisionModel:
    """A compiled model with its weights. Threads may share one."""

    def __init__(
        self,
        files: SightFiles,
        tokenizer: Callable[[], Tokenizer],
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        activations: str = "f32",
        source: str = "",
    ) -> None:
        """`source` says which weights these are; see `CompiledGraph.freeze_params`."""
        self.config, self.recipe, self.path = files.config, files.recipe, path
        self._scale, self._bias = files.scale, files.bias
        self._make_tokenizer = tokenizer
        session = Session(device, CompileOptions(threads=threads, activations=activations))

        def compiled(built: TowerProgram) -> CompiledGraph:
            program = session.compile(built.graph)
            read_weights(built.weights, program, source and f"{source}\n{built.graph.name} {files.recipe.shape}")
            return program

        self._vision = compiled(build_vision(files.config.vision, files.vision, *files.recipe.shape))
        self._texts = None
        if files.config.text is not None and files.texts is not None:
            self._texts = compiled(build_texts(files.config.text, files.texts))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def report(self) -> CompileReport:
        """What runs where, of the tower that reads pictures."""
        return self._vision.report

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self.config.vision.dimension

    @property
    def labels(self) -> tuple[str, ...]:
        """What a classifier tells apart."""
        return self.config.vision.labels

    def pixels(self, images: Any) -> F32:
        """f32[n, 3, H, W]: pictures as the model reads them."""
        return np.stack([pixels_of(image, self.recipe) for image in _several(images)])

    def forward(self, pixels: npt.ArrayLike) -> F32:
        """The hidden states f32[n, tokens, hidden] of pixels f32[n, 3, H, W]."""
        return self._run(np.asarray(pixels, np.float32))[0]

    def embed_images(self, images: Any, normalize: bool = True, batch_size: int = 8) -> F32:
        """One vector per picture, f32[n, dimension], of length 1 unless `normalize=False`; of a single picture
        f32[dimension]. A picture is an array uint8[height, width, 3], one of Pillow's, or a path."""
        found = self._in_batches(images, 1, self.dimension, batch_size, "embed_images")
        found = _unit(found) if normalize else found
        return found if _are_several(images) else found[0]

    def classify(self, images: Any, batch_size: int = 8) -> list[Label] | list[list[Label]]:
        """The labels of a picture, likeliest first; of several pictures a list for each."""
        if not self.labels:
            raise OpError(f"classify: {self.path.name} has no labels; embed_images gives vectors, match compares texts")
        logits = self._in_batches(images, 2, len(self.labels), batch_size, "classify").astype(np.float64)
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        likely = powers / powers.sum(-1, keepdims=True)
        found = [[Label(self.labels[i], float(row[i])) for i in np.argsort(-row, kind="stable")] for row in likely]
        return found if _are_several(images) else found[0]

    def embed_texts(self, texts: str | Sequence[str], normalize: bool = True, batch_size: int = 32) -> F32:
        """One vector per text, comparable with those of pictures; longer texts are cut."""
        text = self.config.text
        if text is None or self._texts is None:
            raise OpError(f"embed_texts: {self.path.name} reads pictures alone")
        many = [texts] if isinstance(texts, str) else list(texts)
        ids = self.tokenizer.encode_batch(many, max_length=text.context)
        found = np.empty((len(many), text.dimension), np.float32)
        for first in range(0, len(many), batch_size):
            found[first : first + batch_size] = self._read(ids[first : first + batch_size])
        found = _unit(found) if normalize else found
        return found[0] if isinstance(texts, str) else found

    def match(self, images: Any, texts: str | Sequence[str]) -> F32:
        """How well each text fits each picture, f32[pictures, texts], as the model was trained: the softmax of a row
        of CLIP's, and the sigmoid of each of SigLIP's, are likelihoods."""
        seen = np.atleast_2d(self.embed_images(images))
        read = np.atleast_2d(self.embed_texts(texts))
        return np.asarray(self._scale * (seen @ read.T) + self._bias, np.float32)

    def _read(self, ids: Sequence[Sequence[int]]) -> F32:
        text = self.config.text
        assert text is not None and self._texts is not None
        width = text.context if text.fills else max(max(map(len, ids)), 1)
        tokens, rows = np.full((len(ids), width), text.pad, np.int32), np.zeros((len(ids), 1), np.int32)
        for row, given in enumerate(ids):
            tokens[row, : len(given)] = given
            rows[row] = width - 1 if text.fills else self._end(given)
        return np.asarray(self._texts.run({"ids": tokens, "rows": rows})[0], np.float32)

    def _end(self, ids: Sequence[int]) -> int:
        """The place of the token that is read."""
        end = self.config.text.end if self.config.text is not None else None
        if end is None:
            return int(np.argmax(ids)) if len(ids) else 0
        return list(ids).index(end) if end in ids else 0

    def _run(self, pixels: F32) -> list[F32]:
        return [np.asarray(x, np.float32) for x in self._vision.run({"pixels": pixels})]

    def _in_batches(self, images: Any, output: int, width: int, batch_size: int, caller: str) -> F32:
        if batch_size < 1:
            raise OpError(f"{caller}: batch_size must be at least 1, got {batch_size}")
        many = _several(images)
        found = np.empty((len(many), width), np.float32)
        for first in range(0, len(many), batch_size):
            chosen = many[first : first + batch_size]
            found[first : first + batch_size] = self._run(self.pixels(chosen))[output]
        return found


def _are_several(images: Any) -> bool:
    return isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)


def _several(images: Any) -> list[Any]:
    return list(images) if _are_several(images) else [images]


def _unit(rows: F32) -> F32:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _TINY), np.float32)
