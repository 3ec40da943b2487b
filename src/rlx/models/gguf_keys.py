"""Metadata of GGUF files: typed, with errors that name the key; and what all architectures write in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from rlx.errors import FormatError
from rlx.models.config import RopeConfig, check_sizes, checked_layers
from rlx.models.rope_tables import yarn_gain

T = TypeVar("T")
Factors = Callable[[str], tuple[float, ...]]


class GgufKeys:
    """Metadata of one architecture, read by the part of the key after its name, and the dims of all tensors."""

    def __init__(self, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> None:
        self.architecture, self._metadata, self.tensors = architecture, metadata, tensors

    def integer(self, key: str, default: int | None = None) -> int:
        return self._number(key, default, (int, np.integer), int)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._number(key, default, (int, float, np.integer, np.floating), float)
        if not 0 < value < 1e30:
            raise FormatError(f"GGUF key {self._full(key)!r} must be a positive number, got {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._metadata.get(self._full(key), default)
        if not isinstance(value, str):
            raise FormatError(f"GGUF key {self._full(key)!r} must be a string, got {value!r:.80}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(self._full(key), default)
        if not isinstance(value, bool | np.bool_):
            raise FormatError(f"GGUF key {self._full(key)!r} must be true or false, got {value!r:.80}")
        return bool(value)

    def has(self, key: str) -> bool:
        return self._full(key) in self._metadata

    def one_for_all_layers(self, key: str, default: int | None = None, may_be_none: bool = False) -> int:
        """A size that the format allows to be given per layer; layers that differ are refused, but with `may_be_none`
        for those that have none of it, with a 0."""
        value = self._metadata.get(self._full(key))
        if not isinstance(value, list | np.ndarray):
            return self.integer(key, default)
        if not len(value) or not all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in value):
            raise FormatError(
                f"GGUF key {self._full(key)!r} must be a whole number, or one for each layer, got {value!r:.80}"
            )
        sizes = {int(v) for v in value}
        if may_be_none and len(sizes) > 1:
            sizes.discard(0)
        if len(sizes) != 1:
            raise FormatError(
                f"GGUF key {self._full(key)!r} differs between layers ({sorted(sizes)}); such models are not supported"
            )
        return sizes.pop()

    def layers_without(self, key: str) -> frozenset[int]:
        """The layers of which a size that is given per layer is 0."""
        value = self._metadata.get(self._full(key))
        return (
            frozenset(i for i, v in enumerate(value) if v == 0) if isinstance(value, list | np.ndarray) else frozenset()
        )

    def layer_flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """A list of true or false for each layer; None where there is no list."""
        value = self._metadata.get(self._full(key))
        if not isinstance(value, list | np.ndarray):
            return None
        if len(value) != layers or not all(isinstance(v, bool | np.bool_) for v in value):
            raise FormatError(
                f"GGUF key {self._full(key)!r} must be true or false for each of {layers} layers, got {value!r:.80}"
            )
        return tuple(bool(v) for v in value)

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _number(self, key: str, default: T | None, accepted: tuple[type, ...], kind: Callable[[Any], T]) -> T:
        value = self._metadata.get(self._full(key), default)
        if value is None:
            raise FormatError(f"GGUF key {self._full(key)!r} is missing; a {self.architecture} model needs it")
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, accepted):
            raise FormatError(f"GGUF key {self._full(key)!r} must be a number, got {value!r:.80}")
        return kind(value)


def common_keys(keys: GgufKeys, factors: Factors) -> dict[str, Any]:
    """What all architectures write in the same way, as arguments of `DecoderConfig`."""
    tensors = keys.tensors
    if keys.has("ssm.inner_size") and not keys.one_for_all_layers("attention.head_count", 0):
        return _without_attention(keys)
    hidden, heads = keys.integer("embedding_length"), keys.one_for_all_layers("attention.head_count")
    check_sizes(keys.architecture, {"embedding_length": hidden, "attention.head_count": heads})
    head_dim = keys.integer("attention.key_length", hidden // heads)
    check_sizes(keys.architecture, {"the width of a head": head_dim})
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise FormatError(f"{keys.architecture}: keys and values of different width are not supported")
    return {
        "family": keys.architecture,
        "layers": checked_layers(keys.integer("block_count")),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys.one_for_all_layers("attention.head_count_kv", heads, may_be_none=True),
        "head_dim": head_dim,
        "ffn": keys.one_for_all_layers("feed_forward_length"),
        "vocab": _words(tensors),
        "context": keys.integer("context_length"),
        "tied": "output.weight" not in tensors,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope": _rope(keys, head_dim, tensors, factors),
    }


def _words(tensors: Mapping[str, tuple[int, ...]]) -> int:
    if "token_embd.weight" not in tensors:
        raise FormatError("GGUF: the tensor 'token_embd.weight' is missing")
    return tensors["token_embd.weight"][0]


def _without_attention(keys: GgufKeys) -> dict[str, Any]:
    """The same for a model of state-space layers alone, which has no heads and no feed-forward halves."""
    hidden, layers = keys.integer("embedding_length"), checked_layers(keys.integer("block_count"))
    return {
        "family": keys.architecture,
        "layers": layers,
        "hidden": hidden,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": hidden,
        "ffn": 0,
        "vocab": _words(keys.tensors),
        "context": keys.integer("context_length"),
        "tied": "output.weight" not in keys.tensors,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        "recurrent_layers": frozenset(range(layers)),
    }


def _rope(keys: GgufKeys, head_dim: int, tensors: Mapping[str, Any], factors: Factors) -> RopeConfig:
    # A factor without a type, also under the name that old files have for it, is one of linear positions.
    has_factor = keys.has("rope.scaling.factor") or keys.has("rope.scale_linear")
    kind = keys.text("rope.scaling.type", "linear" if has_factor else "none")
    settings: dict[str, Any] = {
        "base": keys.number("rope.freq_base", 10000.0),
        "dims": keys.integer("rope.dimension_count", head_dim),
        "factor": keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)),
        "original_context": keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
    }
    if "rope_freqs.weight" in tensors:
        return RopeConfig(**settings, scaling="llama3", factors=factors("rope_freqs.weight"))
    if "rope_factors_long.weight" in tensors:
        return RopeConfig(
            **settings,
            scaling="longrope",
            attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
            factors=factors("rope_factors_short.weight"),
            long_factors=factors("rope_factors_long.weight"),
        )
    if kind == "yarn":
        return RopeConfig(
            **settings,
            scaling="yarn",
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=keys.number("rope.scaling.attn_factor", 1.0) * yarn_gain(settings["factor"]),
        )
    if kind == "linear":
        return RopeConfig(**settings, scaling="linear")
    if kind not in ("none", "longrope"):
        raise FormatError(
            f"GGUF rope scaling {kind!r} is not supported; supported: none, linear, yarn, longrope, llama3 factors"
        )
    return RopeConfig(**settings)
