"""What the files of sentence-transformers say beside a model: how hidden states become one vector, how long a text may
be, and which prompts stand before texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rlx.errors import FormatError, OpError
from rlx.models.config import DenseConfig, PoolingMode
from rlx.models.hf_fields import HfFields
from rlx.models.model_files import read_json, read_json_list
from rlx.ops.pointwise.unary import ActivationKind

# How older pooling configs name the modes, in the order in which their results are joined.
_POOLING: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class SentenceModules(NamedTuple):
    """What `modules.json` puts behind a model, and the most tokens of a text that are read; None: as many as fit."""

    pooling: tuple[PoolingMode, ...]
    dense: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    limit: int | None = None


def read_modules(path: Path) -> SentenceModules | None:
    """What stands behind the model of a directory; None where it does not say."""
    if not (path / "modules.json").is_file():
        return None
    pooling: tuple[PoolingMode, ...] = ()
    dense: list[DenseConfig] = []
    normalize = False
    for module in read_json_list(path / "modules.json"):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling_modes(read_json(path / str(module.get("path", "")) / "config.json"))
        elif kind == "Dense" and pooling and not normalize:
            dense.append(_dense(path, str(module.get("path", ""))))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise FormatError(
                f"{path / 'modules.json'}: module {module.get('type')!r} is not supported here; "
                "supported, in this order: Transformer, Pooling, Dense, Normalize"
            )
    if not pooling:
        raise FormatError(f"{path / 'modules.json'}: there is no Pooling module, so there is no one vector per text")
    return SentenceModules(pooling, tuple(dense), normalize, _length_limit(path))


class VectorRules(NamedTuple):
    """How a language model makes one vector of a text: of its last token or as a mean, of length 1 or not, and of how
    many tokens."""

    reads_last: bool
    normalize: bool
    limit: int


def vector_rules(path: Path, context: int, pooling: str | None, normalize: bool | None) -> VectorRules:
    """What was asked for, and where it was not, what the directory of a language model says."""
    if pooling not in (None, "mean", "last"):
        raise OpError(f"embed: pooling must be mean or last, got {pooling!r:.80}")
    modules = read_modules(path)
    if modules is None:
        return VectorRules(pooling == "last", normalize is not False, context)
    if pooling is None and (modules.dense or modules.pooling not in (("mean",), ("lasttoken",))):
        raise OpError(
            f"embed: {path.name} makes its vectors in a way that is not supported for language models "
            f"(pooling {', '.join(modules.pooling)}, {len(modules.dense)} dense layers); give pooling='mean' or 'last'"
        )
    reads_last = modules.pooling == ("lasttoken",) if pooling is None else pooling == "last"
    return VectorRules(
        reads_last, modules.normalize if normalize is None else normalize, min(context, modules.limit or context)
    )


# What may be done to the result of a linear layer behind the pooling, by the end of the name that torch has for it.
_DENSE_ACTIVATIONS = {
    "Identity": None,
    "Tanh": ActivationKind.Tanh,
    "ReLU": ActivationKind.Relu,
    "GELU": ActivationKind.Gelu,
    "SiLU": ActivationKind.Silu,
    "Sigmoid": ActivationKind.Sigmoid,
}


def _dense(path: Path, folder: str) -> DenseConfig:
    if folder != Path(folder).name:
        raise FormatError(f"{path / 'modules.json'}: the folder of a module lies beside the file, got {folder!r:.100}")
    f = HfFields(read_json(path / folder / "config.json"), "Dense")
    # Files that leave it out mean what the library then took.
    name = f.text("activation_function", "Tanh").rsplit(".", 1)[-1]
    if name not in _DENSE_ACTIVATIONS:
        known = ", ".join(_DENSE_ACTIVATIONS)
        raise FormatError(f"{folder}: activation_function {name!r} is not supported; supported: {known}")
    return DenseConfig(folder, f.size("in_features"), f.size("out_features"), _DENSE_ACTIVATIONS[name])


def _pooling_modes(fields: Mapping[str, Any]) -> tuple[PoolingMode, ...]:
    if fields.get("include_prompt") is False:
        raise FormatError("Pooling config.json: include_prompt=false is not supported")
    named = fields.get("pooling_mode")
    if named is None:
        return tuple(mode for name, mode in _POOLING.items() if fields.get(name))
    known = {str(mode): mode for mode in _POOLING.values()}
    listed = [named] if isinstance(named, str) else list(named)
    unknown = [mode for mode in listed if mode not in known]
    if unknown:
        raise FormatError(f"Pooling config.json: pooling_mode {unknown[0]!r} is not one of {', '.join(known)}")
    return tuple(known[mode] for mode in listed)


def _length_limit(path: Path) -> int | None:
    """How many tokens of a text are read."""
    file = path / "sentence_bert_config.json"
    return HfFields(read_json(file)).size("max_seq_length", 0, least=0) or None if file.is_file() else None


class Prompts:
    """Texts that a model wants before its inputs, by name; from `config_sentence_transformers.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        file = self._path / "config_sentence_transformers.json"
        return read_json(file) if file.is_file() else {}

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        return {str(k): str(v) for k, v in HfFields(self._settings).table("prompts").items()}

    def chosen(self, prompt: str | None, name: str | None) -> str:
        """What stands before each text: a prompt, the one of that name, or the one that the model has for all texts."""
        if prompt is not None and name is not None:
            raise OpError("embed: give prompt or prompt_name, not both")
        if prompt is not None:
            return prompt
        name = name if name is not None else self._settings.get("default_prompt_name")
        if name is None:
            return ""
        if name not in self.by_name:
            known = ", ".join(map(repr, self.by_name)) or "none"
            raise OpError(f"embed: this model has no prompt {name!r}; it has: {known}")
        return self.by_name[name]
