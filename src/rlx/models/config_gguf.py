"""`DecoderConfig` from the metadata of a GGUF file. One table: architecture -> function.

Keys are those of the format, `<architecture>.block_count` and so on. Converters have already folded some things into
the weights: q and k of llama are stored for rotary pairs (2i, 2i+1), norms of gemma hold 1 + w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, MoeConfig, RopeConfig, check_sizes, checked_layers
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind

T = TypeVar("T")
Factors = Callable[[str], tuple[float, ...]]

_GELU_TANH = ActivationKind.GeluApprox


class GgufKeys:
    """Metadata of one architecture, read by the part of the key after its name."""

    def __init__(self, architecture: str, metadata: Mapping[str, Any]) -> None:
        self.architecture, self._metadata = architecture, metadata

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

    def one_for_all_layers(self, key: str, default: int | None = None) -> int:
        """A size that the format allows to be given per layer; layers that differ are refused."""
        value = self._metadata.get(self._full(key))
        if not isinstance(value, list | np.ndarray):
            return self.integer(key, default)
        if not len(value) or not all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in value):
            raise FormatError(
                f"GGUF key {self._full(key)!r} must be a whole number, or one for each layer, got {value!r:.80}"
            )
        sizes = {int(v) for v in value}
        if len(sizes) != 1:
            raise FormatError(
                f"GGUF key {self._full(key)!r} differs between layers ({sorted(sizes)}); such models are not supported"
            )
        return sizes.pop()

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _number(self, key: str, default: T | None, accepted: tuple[type, ...], kind: Callable[[Any], T]) -> T:
        value = self._metadata.get(self._full(key), default)
        if value is None:
            raise FormatError(f"GGUF key {self._full(key)!r} is missing; a {self.architecture} model needs it")
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, accepted):
            raise FormatError(f"GGUF key {self._full(key)!r} must be a number, got {value!r:.80}")
        return kind(value)


def decoder_config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], factors: Factors
) -> DecoderConfig:
    """The config of a GGUF language model.

    `tensors` are dims by name; they tell the vocabulary, and whether the head is the embedding. `factors` reads a small
    float tensor: frequency factors are kept as one.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in DECODERS:
        raise FormatError(
            f"GGUF architecture {architecture!r} is not supported; supported: {', '.join(sorted(DECODERS))}"
        )
    keys = GgufKeys(str(architecture), metadata)
    return DECODERS[str(architecture)](keys, _common(keys, tensors, factors))


def _common(keys: GgufKeys, tensors: Mapping[str, tuple[int, ...]], factors: Factors) -> dict[str, Any]:
    """What all architectures write in the same way, as arguments of `DecoderConfig`."""
    hidden, heads = keys.integer("embedding_length"), keys.one_for_all_layers("attention.head_count")
    check_sizes(keys.architecture, {"embedding_length": hidden, "attention.head_count": heads})
    head_dim = keys.integer("attention.key_length", hidden // heads)
    check_sizes(keys.architecture, {"the width of a head": head_dim})
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise FormatError(f"{keys.architecture}: keys and values of different width are not supported")
    if "token_embd.weight" not in tensors:
        raise FormatError("GGUF: the tensor 'token_embd.weight' is missing")
    return {
        "family": keys.architecture,
        "layers": checked_layers(keys.integer("block_count")),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys.one_for_all_layers("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "ffn": keys.one_for_all_layers("feed_forward_length"),
        "vocab": tensors["token_embd.weight"][0],
        "context": keys.integer("context_length"),
        "tied": "output.weight" not in tensors,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope": _rope(keys, head_dim, tensors, factors),
    }


def _rope(keys: GgufKeys, head_dim: int, tensors: Mapping[str, Any], factors: Factors) -> RopeConfig:
    kind = keys.text("rope.scaling.type", "none")
    settings: dict[str, Any] = {
        "base": keys.number("rope.freq_base", 10000.0),
        "dims": keys.integer("rope.dimension_count", head_dim),
        "factor": keys.number("rope.scaling.factor", 1.0),
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
        )
    if kind == "linear":
        return RopeConfig(**settings, scaling="linear")
    if kind not in ("none", "longrope"):
        raise FormatError(
            f"GGUF rope scaling {kind!r} is not supported; supported: none, linear, yarn, longrope, llama3 factors"
        )
    return RopeConfig(**settings)


def _moe(keys: GgufKeys, renormalize: bool, shared: bool = False) -> MoeConfig | None:
    if not keys.integer("expert_count", 0):
        return None
    ffn = keys.integer("expert_feed_forward_length", keys.one_for_all_layers("feed_forward_length"))
    return MoeConfig(
        experts=keys.integer("expert_count"),
        top_k=keys.integer("expert_used_count"),
        ffn=ffn,
        renormalize=renormalize,
        shared_ffn=keys.integer("expert_shared_feed_forward_length", 0) if shared else 0,
    )


def _llama(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    """llama, mistral and mixtral."""
    common["rope"] = _with_pairs_together(common["rope"])
    return DecoderConfig(**common, moe=_moe(keys, renormalize=True))


def _with_pairs_together(rope: RopeConfig) -> RopeConfig:
    from dataclasses import replace

    return replace(rope, style=RopeStyle.GptJ)


def _qwen2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common)


def _qwen3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm=True)


def _qwen2moe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, moe=_moe(keys, renormalize=False, shared=True))


def _qwen3moe(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, qk_norm=True, moe=_moe(keys, renormalize=True))


def _gemma2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window = keys.integer("attention.sliding_window", 4096)
    return DecoderConfig(
        **common,
        activation=_GELU_TANH,
        post_norms=True,
        windows=tuple(window if i % 2 == 0 else None for i in range(common["layers"])),
        attention_scale=_gemma_scale(common, large=46),
        attention_softcap=keys.number("attn_logit_softcapping", 50.0),
        final_softcap=keys.number("final_logit_softcapping", 30.0),
        embed_scale=math.sqrt(common["hidden"]),
    )


def _gemma3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window, every = keys.integer("attention.sliding_window"), keys.integer("attention.sliding_window_pattern", 6)
    if every < 1:
        raise FormatError(f"GGUF key 'gemma3.attention.sliding_window_pattern' must be positive, got {every}")
    return DecoderConfig(
        **common,
        activation=_GELU_TANH,
        post_norms=True,
        qk_norm=True,
        windows=tuple(None if (i + 1) % every == 0 else window for i in range(common["layers"])),
        local_rope=RopeConfig(base=keys.number("rope.freq_base_swa", 10000.0), dims=common["rope"].dims),
        attention_scale=_gemma_scale(common, large=62),
        final_softcap=keys.number("final_logit_softcapping") if keys.has("final_logit_softcapping") else None,
        embed_scale=math.sqrt(common["hidden"]),
    )


def _gemma_scale(common: dict[str, Any], large: int) -> float:
    """The files do not say it: the largest model of each generation, known by its depth, scales by hidden/heads."""
    width = common["hidden"] // common["heads"] if common["layers"] == large else common["head_dim"]
    return float(max(width, 1) ** -0.5)


def _phi3(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    window = keys.integer("attention.sliding_window", 0)
    windows = (window,) * common["layers"] if window else ()
    return DecoderConfig(**common, windows=windows, fused_qkv=True, fused_gate_up=True)


def _gpt2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    common.update(rope=None, norm_eps=keys.number("attention.layer_norm_epsilon"))
    return DecoderConfig(
        **common, norm="layer", activation=_GELU_TANH, gated=False, fused_qkv=True, learned_positions=True
    )


def _olmo2(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**common, pre_norms=False, post_norms=True, qk_norm_whole=True)


def _gptneox(keys: GgufKeys, common: dict[str, Any]) -> DecoderConfig:
    common.update(norm_eps=keys.number("attention.layer_norm_epsilon"))
    return DecoderConfig(
        **common,
        norm="layer",
        activation=ActivationKind.Gelu,
        gated=False,
        fused_qkv=True,
        parallel_residual=keys.flag("use_parallel_residual", True),
    )


DECODERS: dict[str, Callable[[GgufKeys, dict[str, Any]], DecoderConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "olmo2": _olmo2,
    "gptneox": _gptneox,
}
