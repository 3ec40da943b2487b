"""Opening a model: a GGUF file, or a Hugging Face directory."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.errors import FormatError
from rlx.models import weight_names
from rlx.models.adapters import Adapter
from rlx.models.config import DecoderConfig
from rlx.models.hf_layouts import REARRANGED
from rlx.models.hf_wrappers import is_wrapper, text_tensors
from rlx.models.weights import (
    QkvOrder,
    WeightFile,
    gguf_weights,
    hf_weights,
    order_by_heads,
    order_by_quarters,
)

if TYPE_CHECKING:
    from rlx.formats.safetensors import SafetensorsTensor
    from rlx.models.picture_prompts import PictureParts

# A config of a model is small; a larger file is not what it claims to be.
_MAX_CONFIG_BYTES = 16 << 20


class DecoderFiles(NamedTuple):
    """What is needed to build a language model; the tokenizer is only made when text is.

    `source` says which weights these are, the same text for the same weights; empty where nothing does, and
    where prepared weights are not to be mapped from the cache either. `pictures` are the parts that read pictures, or
    why there are none."""

    path: Path
    config: DecoderConfig
    weights: WeightFile
    tokenizer: Callable[[], Any]
    source: str = ""
    adapters: tuple[Adapter, ...] = ()
    pictures: PictureParts | str = "it is a model of texts"


_TORCH = (
    "this is a checkpoint of torch; give the directory with its config.json, or a GGUF file. A model that is written "
    "in torch goes through torch.onnx.export and rlx.onnx.load"
)
# What is no language model by itself, by the ending of the file, and what to do with it.
_OTHER_FILES = {
    ".onnx": "this is an ONNX model; rlx.onnx.load reads it, and rlx run on the command line",
    ".rlx": "this is a program; rlx.load_graph reads it, and rlx run on the command line",
    ".rlxc": "this is a compiled program; rlx.load_compiled reads it, and rlx run on the command line",
    ".safetensors": "these are weights alone; give the directory that has the config.json, too",
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _TORCH),
}


def open_decoder(path: Path, mmap: bool = True) -> DecoderFiles:
    """The config and weights of a language model. With `mmap=False` nothing of it depends on files from then on."""
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file():
            return _open_directory(path, mmap)
        if len(ggufs) != 1:
            raise FormatError(
                f"{path}: a model directory has a config.json or exactly one .gguf file, this has {len(ggufs)}"
            )
        path = ggufs[0]
    if hint := _OTHER_FILES.get(path.suffix):
        raise FormatError(f"{path}: {hint}")
    return _open_gguf(path, mmap)


def _open_gguf(path: Path, mmap: bool) -> DecoderFiles:
    from rlx.formats.gguf import open_gguf
    from rlx.models.config_gguf import decoder_config_from_gguf
    from rlx.models.tokenizer import Tokenizer

    # Before the file is opened: if it is replaced in between, nothing is found under this name again.
    source = identity(_parts(path)) if mmap else ""
    file = open_gguf(path, mmap)
    tensors = file.tensors

    def factors(name: str) -> tuple[float, ...]:
        if name not in tensors:
            raise FormatError(f"{path}: the tensor {name!r} is missing")
        return tuple(np.asarray(tensors[name].array(), np.float64).reshape(-1).tolist())

    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    config = decoder_config_from_gguf(file.metadata, shapes, factors)
    weights = gguf_weights(tensors, path.name, weight_names.gguf_names(config))
    if mmap:
        return DecoderFiles(path, config, weights, lambda: Tokenizer.from_gguf(file), source)
    # Made now: later it would keep all of the file in memory until then.
    tokenizer = Tokenizer.from_gguf(file)
    return DecoderFiles(path, config, weights, lambda: tokenizer, source)


def identity(files: Iterable[Path]) -> str:
    """A text that changes when one of the files does."""
    described = []
    for file in sorted(files):
        info = file.stat()
        described.append(f"{file.resolve()} {info.st_size} {info.st_mtime_ns} {info.st_ino}")
    return "\n".join(described)


def _parts(path: Path) -> Iterable[Path]:
    """A file, and the parts that lie beside it if it is the first of several."""
    split = re.search(r"-00001(-of-\d{5}\.gguf)$", path.name)
    if split is None:
        return [path]
    return path.parent.glob(f"{glob.escape(path.name[: split.start()])}-?????{split[1]}")


def _open_directory(path: Path, mmap: bool) -> DecoderFiles:
    from rlx.models.config_hf import decoder_config_from_hf
    from rlx.models.tokenizer import Tokenizer

    fields = read_json(path / "config.json")
    config, tensors = decoder_config_from_hf(fields), open_weights(path, mmap)
    family = config.family
    source = weights_identity(path) if mmap else ""
    weights = hf_weights(
        text_tensors(tensors) if is_wrapper(fields) else tensors,
        weight_names.hf_names(config),
        path.name,
        layers=config.layers,
        prefix=weight_names.HF_PREFIX[family],
        experts=config.moe.experts if config.moe is not None else 0,
        in_out=family in weight_names.HF_IN_OUT,
        norms_plus_one=family in weight_names.HF_NORM_PLUS_ONE,
        qkv_order=qkv_order(config, family),
        rearrange=REARRANGED.get(family),
    )
    files = DecoderFiles(path, config, weights, lambda: Tokenizer.from_directory(path), source)
    if not is_wrapper(fields):
        return files
    from rlx.models.picture_prompts import picture_parts  # most models read words alone

    return files._replace(pictures=picture_parts(path, fields, tensors, config.hidden))


def open_weights(folder: Path, mmap: bool = True) -> Mapping[str, SafetensorsTensor]:
    """The tensors of a Hugging Face directory: of safetensors, or where there are none of what torch has saved."""
    from rlx.formats import safetensors, torch_checkpoints

    if not any(folder.glob("*.safetensors*")):
        for name in (torch_checkpoints.INDEX_NAME, torch_checkpoints.SINGLE_NAME):
            if (folder / name).is_file():
                return torch_checkpoints.open_torch(folder / name, mmap)
        raise FormatError(
            f"{folder}: there are no weights; a model directory has model.safetensors or "
            f"{torch_checkpoints.SINGLE_NAME}, or an index of one of them with its parts"
        )
    return safetensors.open_safetensors(folder, mmap).tensors


def weights_identity(folder: Path) -> str:
    """A text that changes when the weights of a Hugging Face directory do."""
    # Layers behind an encoder lie in folders of their own.
    return identity(
        {file for end in ("safetensors", "bin") for depth in ("", "*/") for file in folder.glob(f"{depth}*.{end}*")}
    )


def qkv_order(config: DecoderConfig, family: str) -> QkvOrder | None:
    """The order in which rows of fused q, k and v are wanted that directories of a family store otherwise."""
    if family in weight_names.HF_QKV_BY_QUARTER:
        return order_by_quarters
    if family not in weight_names.HF_QKV_BY_HEAD:
        return None
    return lambda rows: order_by_heads(rows, config.heads, config.kv_heads)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object."""
    value = _parsed(path)
    if not isinstance(value, dict):
        raise FormatError(f"{path}: a JSON object is needed, got {type(value).__name__}")
    return value


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """A small JSON list of objects."""
    value = _parsed(path)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise FormatError(f"{path}: a JSON list of objects is needed")
    return value


def _parsed(path: Path) -> Any:
    if not path.is_file():
        raise FormatError(f"{path}: there is no such file; a Hugging Face model directory has one")
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise FormatError(f"{path}: {path.stat().st_size} bytes are too many for a config")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
