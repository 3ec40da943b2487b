"""What the families of Hugging Face `config.json` files have in common: sizes, rotary positions, attention windows.

Rotary settings are read in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import RopeConfig
from rlx.models.hf_fields import HfFields
from rlx.models.rope_tables import yarn_gain
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind


def common_fields(f: HfFields, norm_eps: str | float = "rms_norm_eps", **rope: Any) -> dict[str, Any]:
    """What most families write in the same way, as arguments of `DecoderConfig`. `norm_eps` is the name of a field, or
    a number that the family fixes; `rope` are arguments of `rope_from_hf`."""
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    head_dim = f.size("head_dim", max(hidden // heads, 1))
    return {
        "family": f.family,
        "layers": f.layers("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": f.size("num_key_value_heads", heads),
        "head_dim": head_dim,
        "ffn": f.size("intermediate_size"),
        "vocab": f.size("vocab_size"),
        "context": f.size("max_position_embeddings"),
        "norm_eps": f.number(norm_eps) if isinstance(norm_eps, str) else norm_eps,
        **activation_fields(f, "hidden_act", "hidden_activation"),
        "tied": f.flag("tie_word_embeddings", False),
        "rope": rope_from_hf(f, head_dim, **rope),
    }


def activation_fields(f: HfFields, *names: str) -> dict[str, Any]:
    """An activation as arguments of `DecoderConfig`, for which it may be a square."""
    if f.is_square(*names):
        return {"activation": ActivationKind.Relu, "squared_activation": True}
    return {"activation": f.activation(*names)}


def granite_multipliers(f: HfFields) -> dict[str, Any]:
    """The factors of Granite models, as arguments of `DecoderConfig`."""
    return {
        "embed_scale": f.number("embedding_multiplier", 1.0),
        "attention_scale": f.number("attention_multiplier", 1.0),
        "residual_multiplier": f.number("residual_multiplier", 1.0),
        "logit_multiplier": 1.0 / f.number("logits_scaling", 1.0),
    }


def qwen_windows(f: HfFields, layers: int) -> tuple[int | None, ...]:
    uses, first = f.flag("use_sliding_window", False), f.size("max_window_layers", 0, least=0)
    return windows_from_hf(f, layers, lambda i: i >= first) if uses else ()


def rope_from_hf(
    f: HfFields,
    head_dim: int,
    layer_type: str | None = None,
    *,
    base: float = 10000.0,
    partial: float | None = None,
    style: RopeStyle = RopeStyle.NeoX,
    context: int | None = None,
) -> RopeConfig:
    """Rotary positions; `layer_type` picks those of one kind of layers where they differ. `base`, `partial` and
    `context` (the length of texts) count where the file does not say them. `partial` is the share of a head that turns;
    a family without it turns whole heads whatever the file says."""
    settings = f.table("rope_parameters") or f.table("rope_scaling")
    if layer_type is not None and isinstance(settings.get(layer_type), Mapping):
        settings = settings[layer_type]
    kind = settings.get("rope_type", settings.get("type", "default"))
    read = HfFields(settings, f"{f.family} (rope {kind})")
    if partial is not None:
        partial = read.number("partial_rotary_factor", f.number("partial_rotary_factor", partial))
    context = f.size("max_position_embeddings", context)
    common: dict[str, Any] = {
        "base": read.number("rope_theta", f.number("rope_theta", base)),
        "dims": head_dim if partial is None else int(head_dim * partial),
        "style": style,
    }
    if kind == "linear":
        return RopeConfig(**common, scaling="linear", factor=read.number("factor"))
    if kind == "dynamic" and read.has("alpha") and common["dims"] > 2:
        # Stretched by a fixed amount, unlike what is called dynamic elsewhere.
        common["base"] *= read.number("alpha") ** (common["dims"] / (common["dims"] - 2))
    if kind in ("default", "dynamic", "mrope"):
        # Positions of several axes are those of one where there is nothing but text. Dynamic ones are stretched for
        # texts beyond the context alone, which are not read here.
        return RopeConfig(**common)
    common["original_context"] = f.size(
        "original_max_position_embeddings", read.size("original_max_position_embeddings", context)
    )
    if kind == "llama3":
        return RopeConfig(
            **common,
            scaling="llama3",
            factor=read.number("factor"),
            low_freq_factor=read.number("low_freq_factor"),
            high_freq_factor=read.number("high_freq_factor"),
        )
    if kind == "yarn":
        factor = read.number("factor", context / common["original_context"])
        return RopeConfig(
            **common,
            scaling="yarn",
            factor=factor,
            beta_fast=read.number("beta_fast", 32.0),
            beta_slow=read.number("beta_slow", 1.0),
            truncate=read.flag("truncate", True),
            attention_factor=read.optional_number("attention_factor") or _ratio_of_gains(read, factor),
        )
    if kind in ("longrope", "su"):
        return RopeConfig(
            **common,
            scaling="longrope",
            factor=read.number("factor", context / common["original_context"]),
            attention_factor=read.optional_number("attention_factor"),
            factors=read.numbers("short_factor"),
            long_factors=read.numbers("long_factor"),
        )
    raise FormatError(
        f"config.json: rope type {kind!r} is not supported; supported: default, linear, dynamic, llama3, yarn, longrope"
    )


def _ratio_of_gains(read: HfFields, factor: float) -> float | None:
    """What YaRN tables grow by where a file gives two weights of the gain, of which 0 stands for none."""
    names = ("mscale", "mscale_all_dim")
    if any(read.is_zero(name) or not read.has(name) for name in names):
        return None
    over, under = (yarn_gain(factor, read.number(name)) for name in names)
    return over / under


def yarn_score_gain(f: HfFields) -> float:
    """What scores are multiplied by in models of DeepSeek whose positions are stretched."""
    settings = f.table("rope_parameters") or f.table("rope_scaling")
    read = HfFields(settings, f.family)
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind == "default" or read.is_zero("mscale_all_dim") or not read.has("mscale_all_dim"):
        return 1.0
    return yarn_gain(read.number("factor"), read.number("mscale_all_dim")) ** 2


def windows_from_hf(f: HfFields, layers: int, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Which layers see a window: as `layer_types` says, or by the rule of the family."""
    window = f.size("sliding_window", 0, least=0)
    types = f.listed("layer_types")
    if types is not None:
        if len(types) != layers or any(t not in ("full_attention", "sliding_attention") for t in types):
            raise FormatError(f"config.json: layer_types must name {layers} full or sliding layers, got {types}")
        slides = [t == "sliding_attention" for t in types]
    else:
        slides = [bool(window) and default(i) for i in range(layers)]
    if any(slides) and not window:
        raise FormatError("config.json: layer_types names sliding layers, but there is no sliding_window")
    return tuple(window if s else None for s in slides) if any(slides) else ()
