"""Adapters on disk: folders of PEFT (adapter_config.json, adapter_model.safetensors) and GGUF files of llama.cpp.

    adapter = read_adapter("run", config, weights)
    write_peft("run", adapter, config, weights, base="smollm2")
    write_gguf_adapter("adapter.gguf", adapter, config, weights)

Modules have the names of Hugging Face's own classes in the first, those of GGUF tensors in the second. The rows of B
follow those of the base, which the two formats may store in different orders.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, OpError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.mapped_file import replace_file
from rlx.formats.safetensors import open_safetensors, write_safetensors
from rlx.models import encoder_names, weight_names
from rlx.models.adapters import PARTS, Adapter, LoraPair, Site, chosen_sites, linear_sites, require_fit
from rlx.models.config import DecoderConfig, EncoderConfig
from rlx.models.convert import ARCHITECTURES
from rlx.models.model_files import qkv_order, read_json
from rlx.models.weights import WeightFile

Config = DecoderConfig | EncoderConfig
CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Architecture of a GGUF file -> model type of the directories that are written so. Several may share one; their modules
# have the same names.
_FAMILIES = {architecture: family for family, architecture in reversed(ARCHITECTURES.items())}
# What would change the meaning of a file, and is not done here: setting, and the values that leave it out.
_REFUSED: dict[str, Sequence[object]] = {
    "bias": ("none",),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None, []),
    "target_parameters": (None, []),
}


def module_names(config: Config) -> Mapping[str, str]:
    """Role -> what PEFT calls the module, with `{i}` for the layer."""
    if isinstance(config, EncoderConfig):
        prefix = encoder_names.HF_ENCODER_PREFIX[config.family]
        return {role: name.removeprefix(prefix) for role, name in encoder_names.HF_ENCODERS[config.family].items()}
    family = config.family if config.family in weight_names.HF_DECODERS else _FAMILIES.get(config.family, "")
    names = weight_names.HF_DECODERS.get(family)
    if names is None:
        raise FormatError(f"adapters of {config.family} models have no names here; known: {', '.join(_FAMILIES)}")
    return names


def adapter_sites(targets: Sequence[str], config: Config, file: WeightFile) -> list[Site]:
    """The layers that `targets`, named as in PEFT, are."""
    return chosen_sites(targets, linear_sites(config, file), module_names(config))


def read_adapter(path: str | os.PathLike[str], config: Config, file: WeightFile) -> Adapter:
    """The adapter of a PEFT folder or a GGUF file, for the model of `config` and `file`."""
    place = Path(path)
    if (place / CONFIG_NAME).is_file():
        adapter = _read_peft(place, config, file)
    elif place.is_file() and place.suffix == ".gguf":
        adapter = _read_gguf(place, config, file)
    elif not place.exists():
        raise FormatError(f"{place}: there is no such adapter; a folder with {CONFIG_NAME}, or a .gguf file is needed")
    else:
        raise FormatError(
            f"{place}: this is no adapter: there is no {CONFIG_NAME}; if it is a run that has not ended, resume it"
        )
    require_fit(adapter, file)
    return adapter


def _read_peft(folder: Path, config: Config, file: WeightFile) -> Adapter:
    settings = read_json(folder / CONFIG_NAME)
    if settings.get("peft_type") != "LORA":
        raise FormatError(f"{folder}: adapters of type LORA are read, this is {settings.get('peft_type')!r}")
    for key, allowed in _REFUSED.items():
        if settings.get(key, allowed[0]) not in allowed:
            raise FormatError(f"{folder}: adapters with {key}={settings[key]!r:.60} are not supported")
    known = _modules(config, file)
    found: dict[Site, dict[str, npt.NDArray[np.float32]]] = {}
    place = folder / WEIGHTS_NAME
    with open_safetensors(place) as tensors:
        for key, tensor in tensors.tensors.items():
            module, part = _module_and_part(key)
            site = _site(module, known, config)
            if part not in PARTS or site is None:
                raise FormatError(
                    f"{place}: the adapter is of another model: it has {key!r}, and {file.what} no such linear layer"
                )
            values = np.array(tensor.array(), np.float32)
            found.setdefault(site, {})[part] = values.reshape(-1) if part == PARTS[2] else values
    wanted = PARTS if settings.get("use_dora") else PARTS[:2]
    rslora = bool(settings.get("use_rslora"))
    names = {site: module for module, site in known.items()}
    to_file = row_orders(config, file.is_gguf)

    def pair(site: Site, parts: Mapping[str, npt.NDArray[np.float32]]) -> LoraPair:
        for part in PARTS:
            if (part in parts) != (part in wanted):
                which = "missing" if part in wanted else f"there, and {CONFIG_NAME} says that this is no DoRA"
                raise FormatError(f"{place}: {part} of {names[site]!r} is {which}")
        _require_parts(f"{place}: {names[site]}", *(parts.get(part) for part in PARTS))
        rank = _by_pattern(folder, settings, "rank_pattern", names[site], settings.get("r"))
        alpha = _by_pattern(folder, settings, "alpha_pattern", names[site], settings.get("lora_alpha"))
        if rank != len(parts["lora_A"]) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise FormatError(
                f"{folder}: {CONFIG_NAME} says that {names[site]!r} has rank {rank} and alpha {alpha}, its lora_A is "
                f"{list(parts['lora_A'].shape)}"
            )
        rows = to_file(site[0], len(parts["lora_B"]))
        scale = alpha / (math.sqrt(rank) if rslora else rank)
        magnitude = parts.get(PARTS[2])
        return LoraPair(parts["lora_A"], parts["lora_B"][rows], scale, None if magnitude is None else magnitude[rows])

    if not found:
        raise FormatError(f"{place}: the adapter has no tensors")
    return Adapter(str(folder), {site: pair(site, parts) for site, parts in found.items()})


def _require_parts(
    what: str,
    a: npt.NDArray[np.float32] | None,
    b: npt.NDArray[np.float32] | None,
    magnitude: npt.NDArray[np.float32] | None = None,
) -> None:
    """Refuse parts that are no A [r, in], B [out, r] and m [out]."""
    assert a is not None and b is not None
    fits = a.ndim == b.ndim == 2 and len(a) > 0 and b.shape[1] == len(a)
    if not fits or (magnitude is not None and magnitude.shape != b.shape[:1]):
        raise FormatError(f"{what}: the parts do not fit each other: A is {list(a.shape)}, B {list(b.shape)}")


def _modules(config: Config, file: WeightFile) -> dict[str, Site]:
    names = module_names(config)
    return {names[role].replace("{i}", str(i)): (role, i) for role, i in linear_sites(config, file)}


def _module_and_part(key: str) -> tuple[str, str]:
    """The module and the part of a name such as base_model.model.model.layers.0.mlp.up_proj.lora_A.weight."""
    module, _, part = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
    return module, part


def _site(module: str, known: Mapping[str, Site], config: Config) -> Site | None:
    """The layer of a module, whose name may have the prefix of a class around the model, or lack its own."""
    if isinstance(config, EncoderConfig):
        return known.get(module.removeprefix(encoder_names.HF_ENCODER_PREFIX[config.family]))
    prefix = weight_names.HF_PREFIX[_FAMILIES.get(config.family, config.family)]
    return known.get(module, known.get(prefix + module))


def _by_pattern(folder: Path, settings: Mapping[str, Any], key: str, module: str, usual: Any) -> Any:
    """The value of the first name under `key` that a module's name ends with, else the usual one."""
    named = settings.get(key) or {}
    # Any expression may stand here. Names are what is written in practice, and take no time to compare.
    if not isinstance(named, dict) or not all(re.fullmatch(r"[\w.]+", name) for name in named):
        raise FormatError(f"{folder}: {key} must be an object of names of modules, got {named!r:.80}")
    return next((value for name, value in named.items() if f".{module}".endswith(f".{name}")), usual)


Rows = Callable[[str, int], "npt.NDArray[np.intp] | slice"]


def row_orders(config: Config, in_gguf: bool) -> Rows:
    """(role, rows) -> which row of a Hugging Face module stands at each place of a GGUF file, or of what a model that
    was read from a directory has in memory. See `rlx.models.convert` and `rlx.models.weights`."""
    everything = slice(None)
    if isinstance(config, EncoderConfig):
        return lambda role, count: everything
    architecture = ARCHITECTURES.get(config.family, config.family)
    is_paired = in_gguf and architecture in weight_names.GGUF_PAIRS_TOGETHER
    heads = {"q": config.heads, "k": config.kv_heads} if is_paired else {}
    qkv = qkv_order(config, _FAMILIES.get(architecture, architecture))

    def order(role: str, count: int) -> npt.NDArray[np.intp] | slice:
        if role in heads and count % (2 * heads[role]) == 0:
            # The two features of a rotary pair are neighbours.
            return np.arange(count).reshape(heads[role], 2, -1).swapaxes(1, 2).reshape(-1)
        places = qkv(count) if role == "qkv" and qkv is not None else None
        return everything if places is None else places

    return order


def _as_hf(pair: LoraPair, role: str, to_file: Rows) -> LoraPair:
    """A pair with its rows as Hugging Face has them."""
    order = to_file(role, len(pair.b))
    if isinstance(order, slice):
        return pair
    back = np.argsort(order)
    return pair._replace(b=pair.b[back], magnitude=None if pair.magnitude is None else pair.magnitude[back])


def write_peft(
    folder: str | os.PathLike[str],
    adapter: Adapter,
    config: Config,
    file: WeightFile,
    base: str = "",
    targets: Sequence[str] = (),
) -> None:
    """Write an adapter as PEFT does. `base` names the model, `targets` the modules as they were asked for."""
    place, names, to_file = Path(folder), module_names(config), row_orders(config, file.is_gguf)
    ranks = {pair.rank for pair in adapter.pairs.values()}
    scales = {pair.scale for pair in adapter.pairs.values()}
    if len(ranks) != 1 or len(scales) != 1:
        raise OpError("write_peft: all pairs of an adapter must have one rank and one alpha")
    (rank,), (scale,) = ranks, scales
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    for (role, layer), pair in adapter.pairs.items():
        module = _PREFIX + names[role].replace("{i}", str(layer))
        for part, array in _as_hf(pair, role, to_file).arrays().items():
            tensors[f"{module}.{part}" + ("" if part == PARTS[2] else ".weight")] = np.ascontiguousarray(array)
    alpha = scale * rank
    settings = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": config.family in weight_names.HF_IN_OUT,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": adapter.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(targets or {names[role].rsplit(".", 1)[-1] for role, _ in adapter.pairs}),
        "task_type": "FEATURE_EXTRACTION" if isinstance(config, EncoderConfig) else "CAUSAL_LM",
        "use_dora": adapter.is_dora,
        "use_rslora": False,
    }
    write_safetensors(place / WEIGHTS_NAME, tensors, {"format": "pt"})
    # Last: a folder with a config is an adapter.
    with replace_file(place / CONFIG_NAME) as out:
        out.write((json.dumps(settings, indent=2) + "\n").encode())


def write_gguf_adapter(
    path: str | os.PathLike[str], adapter: Adapter, config: DecoderConfig, file: WeightFile, name: str = ""
) -> None:
    """Write an adapter as llama.cpp reads it (`--lora`)."""
    if adapter.is_dora:
        raise FormatError("GGUF adapters have no place for the magnitudes of DoRA; merge it into the model instead")
    scales = {(pair.rank, pair.scale) for pair in adapter.pairs.values()}
    if len({rank * scale for rank, scale in scales}) != 1:
        raise FormatError("GGUF adapters have one alpha for all layers; merge this one into the model instead")
    to_file, to_gguf = row_orders(config, file.is_gguf), row_orders(config, True)
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    for (role, layer), pair in adapter.pairs.items():
        tensor = f"{weight_names.GGUF[role].replace('{i}', str(layer))}.weight"
        rows = _as_hf(pair, role, to_file).b[to_gguf(role, len(pair.b))]
        tensors[f"{tensor}.lora_a"], tensors[f"{tensor}.lora_b"] = pair.a, np.ascontiguousarray(rows)
    rank, scale = next(iter(scales))
    metadata: dict[str, Any] = {
        "general.type": "adapter",
        "general.architecture": ARCHITECTURES.get(config.family, config.family),
        "general.name": name or "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": np.float32(rank * scale),
    }
    write_gguf(path, metadata, tensors)


def _read_gguf(path: Path, config: Config, file: WeightFile) -> Adapter:
    with open_gguf(path) as gguf:
        kind, own = gguf.metadata.get("adapter.type"), gguf.metadata.get("general.architecture")
        if kind != "lora":
            raise FormatError(f"{path}: this GGUF file is no LoRA adapter: adapter.type is {kind!r}")
        architecture = ARCHITECTURES.get(config.family, config.family)
        if own != architecture:
            raise FormatError(
                f"{path}: the adapter is of another model: it is for {own}, {file.what} is {architecture}"
            )
        # As for llama.cpp: 0, or none, leaves the product as it is.
        alpha = gguf.metadata.get("adapter.lora.alpha", 0.0)
        names = {
            f"{weight_names.GGUF[role].replace('{i}', str(i))}.weight": (role, i)
            for role, i in linear_sites(config, file)
        }
        parts: dict[Site, dict[str, npt.NDArray[np.float32]]] = {}
        for key, tensor in gguf.tensors.items():
            module, _, part = key.rpartition(".")
            if module not in names or part not in ("lora_a", "lora_b"):
                raise FormatError(
                    f"{path}: the adapter is of another model: {file.what} has no linear layer for {key!r}"
                )
            parts.setdefault(names[module], {})[part] = np.array(tensor.array(), np.float32)
    if not isinstance(alpha, int | float) or not math.isfinite(alpha) or not parts:
        raise FormatError(f"{path}: adapter.lora.alpha is no number, or the adapter has no tensors")
    to_gguf, to_file = row_orders(config, True), row_orders(config, file.is_gguf)
    pairs: dict[Site, LoraPair] = {}
    for (role, layer), found in parts.items():
        if len(found) != 2:
            raise FormatError(f"{path}: the {role} of layer {layer} has only {', '.join(found)}")
        a, b = found["lora_a"], found["lora_b"]
        _require_parts(f"{path}: the {role} of layer {layer}", a, b)
        stored = LoraPair(a, b, alpha / len(a) if alpha else 1.0)
        hf = _as_hf(stored, role, to_gguf)
        pairs[role, layer] = hf._replace(b=hf.b[to_file(role, len(b))])
    return Adapter(str(path), pairs)
