"""Pictures in the prompts of a language model: what `rlx.load` finds beside the words of SmolVLM, Idefics3 and LLaVA.

A tower and a connector make rows of a picture that stand in the place of words. Pictures of SmolVLM and Idefics3 are
cut into tiles, each of which becomes as many rows as the whole, which comes last.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, OpError
from rlx.ir.dtype import DType
from rlx.models.config_hf_vision import VISION, VisionConfig
from rlx.models.hf_fields import HfFields
from rlx.models.picture_pixels import PictureRecipe, as_bytes, picture_recipe, pixels_of, resized, shifted
from rlx.models.picture_tokens import PictureToken
from rlx.models.picture_turns import turns_with_pictures
from rlx.models.vision import ConnectorConfig, build_rows, spread_places
from rlx.models.vision_names import VISION_NAMES, usually_named
from rlx.models.weights import Weight, WeightFile, hf_weights, read_weights

if TYPE_CHECKING:
    from rlx.formats.safetensors import SafetensorsTensor
    from rlx.models.tokenizer import Tokenizer
    from rlx.runtime.session import Session

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

# Sides of pictures that are cut into tiles are at most this long.
_LONGEST = 4096
# Pictures whose rows are kept, for the next turns of a conversation.
_KEPT = 8


class PictureParts(NamedTuple):
    """What a directory says about its pictures: the tower, what connects it, how pictures are made ready, the token
    that stands for a row, and the weights. With `tiles` they are cut into squares of so many pixels, after the longer
    side was made `longest` pixels long; with 0 they are one piece. Of a tower only `used` layers may be needed."""

    vision: VisionConfig
    connector: ConnectorConfig
    recipe: PictureRecipe
    token: int
    weights: WeightFile
    final_norm: bool
    tiled: bool = False
    tiles: bool = True
    longest: int = 0

    @property
    def rows(self) -> int:
        """How many rows a picture, or a tile of one, becomes."""
        height, width = self.recipe.shape
        return (height // self.vision.patch) * (width // self.vision.patch) // self.connector.shuffle**2


def picture_parts(
    folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, SafetensorsTensor], hidden: int
) -> PictureParts | str:
    """The parts of a directory that read pictures; or why there are none, for its texts are read all the same."""
    family = str(fields.get("model_type"))
    read = _FAMILIES.get(family)
    if read is None:
        return f"of {family} models texts are read; pictures are by {', '.join(sorted(_FAMILIES))}"
    own = {_usual(name): tensor for name, tensor in tensors.items() if _is_of_pictures(name)}
    if not own:
        return "its files have no tower for pictures"
    try:
        return read(folder, HfFields(fields), own, hidden)
    except FormatError as error:
        return str(error)


def _usual(name: str) -> str:
    return name.removeprefix("model.").removeprefix("vision_tower.")


def _is_of_pictures(name: str) -> bool:
    return _usual(name).startswith(
        ("vision_model.", "embeddings.", "encoder.", "post_layernorm.", "pre_layrnorm.")
    ) or ("connector." in name or "multi_modal_projector." in name)


def _tower(f: HfFields, kind: str, defaults: Mapping[str, Any]) -> VisionConfig:
    table = {**defaults, **f.table("vision_config"), "model_type": kind}
    return VISION[kind](HfFields(table)).vision


def _idefics3(folder: Path, f: HfFields, tensors: Mapping[str, Any], hidden: int) -> PictureParts:
    vision = _tower(f, "siglip_vision_model", _IDEFICS_TOWER)
    fields, family = _processor(folder), f.family
    resample = fields.get("resample", 1)
    recipe = replace(picture_recipe("siglip", fields | {"size": vision.image, "resample": resample}, vision.image))
    side = HfFields(HfFields(fields).table("max_image_size"), family).size("longest_edge", vision.image)
    recipe = replace(recipe, size=(side, side))
    shuffle, patch = f.size("scale_factor", 2), vision.patch
    if side % (patch * shuffle):
        raise FormatError(f"{folder}: tiles of {side} pixels are not made of {shuffle} by {shuffle} squares of {patch}")
    longest = HfFields(HfFields(fields).table("size"), family).size("longest_edge", 4 * side)
    weights = _weights(folder, tensors, vision, "siglip_vision_model")
    places = f"{VISION_NAMES['siglip']['positions']}.weight"
    order = bucketed_places(vision.image // patch, side // patch)
    weights[places] = _placed(weights, places, len(order), lambda table: table[order])
    return PictureParts(
        vision,
        ConnectorConfig(hidden, shuffle),
        recipe,
        f.size("image_token_id", 128257, least=0),
        _file(folder, weights, "siglip_vision_model", "connector.modality_projection.proj"),
        final_norm=True,
        tiled=True,
        tiles=HfFields(fields).flag("do_image_splitting", True),
        longest=longest,
    )


def _llava(folder: Path, f: HfFields, tensors: Mapping[str, Any], hidden: int) -> PictureParts:
    f.refuse("vision_feature_select_strategy", "default")
    layer = f.whole("vision_feature_layer", -2)
    kind = str(f.table("vision_config").get("model_type", "clip_vision_model"))
    if kind != "clip_vision_model":
        raise FormatError(f"config.json: pictures of llava models are read by clip_vision_model, got {kind!r}")
    vision = _tower(f, kind, _LLAVA_TOWER)
    layers = vision.tower.layers
    used = layer if layer >= 0 else layers + 1 + layer
    if not 1 <= used <= layers:
        raise FormatError(f"config.json: vision_feature_layer must name one of {layers} layers, got {layer}")
    vision = replace(vision, tower=replace(vision.tower, layers=used), projection=0)
    recipe = picture_recipe("clip", _processor(folder), vision.image)
    projector = "multi_modal_projector.linear"
    weights = _weights(folder, tensors, vision, kind)
    unread = tuple(f"vision_model.encoder.layers.{i}." for i in range(used, layers))
    weights = {name: w for name, w in weights.items() if not name.startswith((*unread, "vision_model.post_layernorm"))}
    places = f"{VISION_NAMES[kind]['positions']}.weight"
    rows, columns = (side // vision.patch for side in recipe.shape)
    weights[places] = _placed(
        weights,
        places,
        rows * columns + 1,
        lambda table: np.concatenate([table[:1], spread_places(table[1:], rows, columns)]),
    )
    return PictureParts(
        vision,
        ConnectorConfig(
            hidden, activation=f.with_default("projector_hidden_act", "gelu").activation("projector_hidden_act")
        ),
        recipe,
        f.size("image_token_index", f.size("image_token_id", 32000, least=0), least=0),
        _file(folder, weights, kind, f"{projector}_2", f"{projector}_1"),
        final_norm=False,
    )


_FAMILIES: dict[str, Callable[[Path, HfFields, Mapping[str, Any], int], PictureParts]] = {
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "llava": _llava,
}
_IDEFICS_TOWER: dict[str, Any] = {"image_size": 224, "patch_size": 32, "hidden_size": 1152, "intermediate_size": 3072}
_IDEFICS_TOWER |= {"num_hidden_layers": 12, "num_attention_heads": 16, "hidden_act": "gelu_pytorch_tanh"}
_LLAVA_TOWER = {"image_size": 336, "patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096}
_LLAVA_TOWER |= {"num_hidden_layers": 24, "num_attention_heads": 16}


def _processor(folder: Path) -> dict[str, Any]:
    """What a directory says about its pictures, in a file of its own or among what is made ready."""
    from rlx.models.model_files import read_json

    for name, key in (("preprocessor_config.json", None), ("processor_config.json", "image_processor")):
        if (folder / name).is_file():
            found = read_json(folder / name)
            inner = found if key is None else found.get(key)
            if isinstance(inner, dict):
                return inner
    return {}


def _weights(folder: Path, tensors: Mapping[str, Any], vision: VisionConfig, kind: str) -> dict[str, Weight]:
    names = VISION_NAMES[kind]
    file = hf_weights(tensors, names, folder.name, layers=vision.tower.layers, rearrange=usually_named)
    # The head of a tower that was trained beside texts is not read.
    return {name: weight for name, weight in file.items() if not name.startswith("vision_model.head.")}


def _placed(weights: Mapping[str, Weight], name: str, rows: int, change: Callable[[F32], F32]) -> Weight:
    """The places of squares, changed when they are read."""
    if name not in weights:
        raise FormatError(f"the tensor {name!r} is missing")
    table = weights[name]
    return Weight((rows, table.dims[-1]), DType.F32, None, lambda: change(np.asarray(table.read(), np.float32)))


def _file(folder: Path, weights: Mapping[str, Weight], kind: str, last: str, first: str = "") -> WeightFile:
    return WeightFile(folder.name, VISION_NAMES[kind] | {"connector": last, "connector_up": first}, weights)


def bucketed_places(trained: int, wanted: int) -> npt.NDArray[np.intp]:
    """For a grid of `wanted` by `wanted` squares the places, of `trained` by `trained` that were learned, in which they
    begin: as those who trained them round, in single precision."""
    bounds = np.array([(i + 1) / trained for i in range(trained - 1)], np.float32)
    starts = np.minimum(np.arange(wanted, dtype=np.float32) * np.float32(1 / wanted), np.float32(1 - 1e-6))
    places = np.searchsorted(bounds, starts, side="right")
    found: npt.NDArray[np.intp] = (places[:, None] * trained + places).reshape(-1)
    return found


class PictureReader:
    """Compiled parts. Threads may share one."""

    def __init__(self, parts: PictureParts, session: Session, vocab: int) -> None:
        self.parts = parts
        built = build_rows(parts.vision, parts.connector, parts.weights, *parts.recipe.shape, parts.final_norm)
        self._program = session.compile(built.graph)
        read_weights(built.weights, self._program)
        self._next = vocab
        self._numbers: dict[bytes, int] = {}
        self._kept: dict[bytes, F32] = {}

    def prompt(self, text: str, pictures: Sequence[Any], tokenizer: Tokenizer, add_special: bool) -> list[int]:
        """The tokens of a text that has a mark for each picture."""
        mark = tokenizer.token(self.parts.token)
        if mark is None:
            raise FormatError(f"token {self.parts.token} stands for pictures, and the tokenizer has none")
        pieces = text.split(mark)
        if len(pieces) - 1 != len(pictures):
            raise OpError(f"the prompt has {len(pieces) - 1} times {mark}, and there are {len(pictures)} pictures")
        tokens: list[PictureToken] = []
        whole = pieces[0]
        for picture, after in zip(pictures, pieces[1:]):
            pixels, grid = picture_tiles(as_bytes(picture), self.parts)
            tokens += self._tokens(pixels)
            whole += self._written(mark, grid) + after
        ids, left = tokenizer.encode(whole, add_special=add_special), iter(tokens)
        if ids.count(self.parts.token) != len(tokens):
            raise FormatError(f"the tokenizer makes {ids.count(self.parts.token)} tokens of {len(tokens)} times {mark}")
        return [next(left) if token == self.parts.token else token for token in ids]

    def conversation(
        self,
        turns: Sequence[dict[str, object]],
        images: Sequence[Any],
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The tokens of a conversation; see `turns_with_pictures`."""
        shown, pictures = turns_with_pictures(turns, images)
        return self.prompt(tokenizer.render_chat(shown, tools=tools), pictures, tokenizer, add_special=False)

    def _written(self, mark: str, grid: tuple[int, int]) -> str:
        """The text that stands for a picture of so many rows and columns of tiles."""
        rows = mark * self.parts.rows
        if not self.parts.tiled:
            return rows
        around, text = "<fake_token_around_image>", ""
        for row in range(grid[0]):
            text += "".join(f"{around}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(grid[1])) + "\n"
        return f"{text}{chr(10) if text else ''}{around}<global-img>{rows}{around}"

    def _tokens(self, pixels: Sequence[F32]) -> list[PictureToken]:
        key = hashlib.blake2b(b"".join(part.tobytes() for part in pixels)).digest()
        if key not in self._kept:
            # One by one: the memory that they need does not grow with their number.
            rows = [np.asarray(self._program.run({"pixels": part[None]})[0])[0] for part in pixels]
            self._kept = dict([*self._kept.items(), (key, np.concatenate(rows))][-_KEPT:])
        found = self._kept[key]
        if key not in self._numbers:
            self._numbers[key], self._next = self._next, self._next + len(found)
        return [PictureToken(self._numbers[key] + i, row) for i, row in enumerate(found)]


def picture_tiles(pixels: U8, parts: PictureParts) -> tuple[list[F32], tuple[int, int]]:
    """What is read of a picture: its tiles and the whole, and how many rows and columns of tiles there are."""
    recipe = parts.recipe
    if not parts.tiled:
        return [pixels_of(pixels, recipe)], (0, 0)
    side, kind = recipe.shape[0], recipe.filter
    pixels = resized(pixels, *_with_longer_side(pixels.shape[0], pixels.shape[1], parts.longest), kind)
    if not parts.tiles:
        return [shifted(resized(pixels, side, side, kind), recipe)], (0, 0)
    pixels = resized(pixels, *_whole_tiles(pixels.shape[0], pixels.shape[1], side), kind)
    rows, columns = (length // side for length in pixels.shape[:2])
    if rows * columns == 1:
        return [shifted(pixels, recipe)], (0, 0)
    places = [(row * side, column * side) for row in range(rows) for column in range(columns)]
    tiles = [pixels[top : top + side, left : left + side] for top, left in places]
    tiles.append(resized(pixels, side, side, kind))
    return [shifted(tile, recipe) for tile in tiles], (rows, columns)


def _with_longer_side(height: int, width: int, longest: int) -> tuple[int, int]:
    """The longer side as wanted, but at most as long as any may be; the other goes along, to an even number."""
    ratio = width / height
    if width >= height:
        height, width = int(longest / ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _LONGEST:
        return max(int(_LONGEST / ratio), 1), _LONGEST
    if height > width and height > _LONGEST:
        return _LONGEST, max(int(_LONGEST * ratio), 1)
    return height, width


def _whole_tiles(height: int, width: int, side: int) -> tuple[int, int]:
    """Both sides up to whole tiles, the longer one first."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return math.ceil(int(width / ratio) / side) * side, width
    height = math.ceil(height / side) * side
    return height, math.ceil(int(height * ratio) / side) * side
