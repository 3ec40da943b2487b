"""What a Hugging Face `config.json` says about models that see: towers for pictures, and for the texts beside them. One
table: `model_type` -> function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlx.errors import FormatError
from rlx.models.config import check_sizes
from rlx.models.hf_fields import HfFields
from rlx.ops.pointwise.unary import ActivationKind

Pooling = Literal["first", "attended"]
# The slope of what CLIP calls quick_gelu, x·sigmoid(1.702·x).
QUICK_SLOPE = 1.702


@dataclass(frozen=True)
class TowerConfig:
    """Layers with norms before their halves. With `sigmoid_slope` s the activation is x·sigmoid(s·x); with
    `scaled_halves` each feature of what a half adds is multiplied by a weight."""

    family: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    norm_eps: float
    activation: ActivationKind = ActivationKind.Gelu
    sigmoid_slope: float | None = None
    gated: bool = False
    scaled_halves: bool = False
    causal: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.family, {n: getattr(self, n) for n in ("layers", "hidden", "heads", "ffn")})
        if self.hidden % self.heads:
            raise FormatError(f"{self.family}: {self.heads} heads do not divide a width of {self.hidden}")


@dataclass(frozen=True)
class VisionConfig:
    """A tower that reads squares of `patch` pixels of a picture, and was trained on pictures of `image` pixels a side.

    Before them stand a token of its own (`has_first`) and `registers` more. One vector is made of the `first` token, or
    by attention with a query of its own (`attended`); with `norms_vector` the last norm is of that vector alone. With a
    `projection` a linear layer leads to so many features. A classifier has `labels`, and reads the first token, with
    `reads_mean` also the mean of the squares."""

    tower: TowerConfig
    image: int
    patch: int
    channels: int
    has_first: bool = True
    registers: int = 0
    norm_before: bool = False
    norms_vector: bool = False
    pooling: Pooling = "first"
    projection: int = 0
    labels: tuple[str, ...] = ()
    reads_mean: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.tower.family, {n: getattr(self, n) for n in ("image", "patch", "channels")})
        if self.patch > self.image:
            raise FormatError(f"{self.tower.family}: squares of {self.patch} pixels in pictures of {self.image}")

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self.projection or self.tower.hidden


@dataclass(frozen=True)
class TextTowerConfig:
    """A tower that reads texts, and takes the token `end`, the largest one (None), or with `fills` the last of a text
    that is filled with `pad` up to `context`."""

    tower: TowerConfig
    vocab: int
    context: int
    dimension: int
    end: int | None = None
    fills: bool = False
    pad: int = 0

    def __post_init__(self) -> None:
        sizes = {"vocab_size": self.vocab, "max_position_embeddings": self.context, "projection_dim": self.dimension}
        check_sizes(self.tower.family, sizes)


@dataclass(frozen=True)
class SightConfig:
    """A tower for pictures, and one for texts where the model has one."""

    family: str
    vision: VisionConfig
    text: TextTowerConfig | None = None


def sight_config_from_hf(fields: Mapping[str, Any]) -> SightConfig:
    """The config of a model that sees."""
    f = HfFields(fields)
    if f.family not in VISION:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is not a supported model of pictures; "
            f"supported: {', '.join(sorted(VISION))}"
        )
    f.refuse_quantized()
    return VISION[f.family](f)


def _tower(f: HfFields, usual: Mapping[str, Any], **more: Any) -> TowerConfig:
    """What towers write in the same way; what a file leaves out is as the class of its model has it."""
    act = f.text("hidden_act", usual["hidden_act"])
    activation: dict[str, Any] = {"sigmoid_slope": QUICK_SLOPE} if act == "quick_gelu" else {}
    return TowerConfig(
        f.family,
        layers=f.layers("num_hidden_layers") if f.has("num_hidden_layers") else usual["num_hidden_layers"],
        hidden=f.size("hidden_size", usual["hidden_size"]),
        heads=f.size("num_attention_heads", usual["num_attention_heads"]),
        norm_eps=f.number("layer_norm_eps", usual["layer_norm_eps"]),
        **(
            {"ffn": f.size("intermediate_size", usual["intermediate_size"])}
            | (activation or {"activation": _activation(act)})
            | more
        ),
    )


def _activation(name: str) -> ActivationKind:
    return HfFields({"hidden_act": name}).activation("hidden_act")


_USUAL: dict[str, Any] = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
}
_USUAL_CLIP = _USUAL | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_USUAL_CLIP_TEXT = _USUAL_CLIP | {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
_USUAL_SIGLIP = _USUAL | {"hidden_act": "gelu_pytorch_tanh"}


def _part(f: HfFields, name: str) -> HfFields:
    return HfFields({**f.table(name), "model_type": f.family})


def _clip_vision(f: HfFields) -> VisionConfig:
    return VisionConfig(
        _tower(f, _USUAL_CLIP),
        image=f.size("image_size", 224),
        patch=f.size("patch_size", 32),
        channels=f.size("num_channels", 3),
        norm_before=True,
        norms_vector=True,
        projection=f.size("projection_dim", 512),
    )


def _clip(f: HfFields) -> SightConfig:
    own, width = _part(f, "text_config"), f.size("projection_dim", 512)
    end = own.size("eos_token_id", 49407, least=0)
    text = TextTowerConfig(
        _tower(own, _USUAL_CLIP_TEXT, causal=True),
        vocab=own.size("vocab_size", 49408),
        context=own.size("max_position_embeddings", 77),
        dimension=width,
        # The first files say 2, which is wrong; there the end is the token with the largest number.
        end=None if end == 2 else end,
    )
    seen = _part(f, "vision_config").with_value("projection_dim", width)
    return SightConfig(f.family, _clip_vision(seen), text)


def _siglip_vision(f: HfFields) -> VisionConfig:
    f.refuse("vision_use_head", True)
    return VisionConfig(
        _tower(f, _USUAL_SIGLIP),
        image=f.size("image_size", 224),
        patch=f.size("patch_size", 16),
        channels=f.size("num_channels", 3),
        has_first=False,
        pooling="attended",
    )


def _siglip(f: HfFields) -> SightConfig:
    own = _part(f, "text_config")
    tower = _tower(own, _USUAL_SIGLIP)
    text = TextTowerConfig(
        tower,
        vocab=own.size("vocab_size", 32000),
        context=own.size("max_position_embeddings", 64),
        dimension=own.size("projection_size", tower.hidden),
        fills=True,
        pad=own.size("pad_token_id", 1, least=0),
    )
    return SightConfig(f.family, _siglip_vision(_part(f, "vision_config")), text)


def _labels(f: HfFields) -> tuple[str, ...]:
    """The labels of a classifier; of other models none."""
    if not any(str(name).endswith("ForImageClassification") for name in f.listed("architectures") or []):
        return ()
    named = {str(key): str(name) for key, name in f.table("id2label").items()} or {"0": "LABEL_0", "1": "LABEL_1"}
    if set(named) != {str(i) for i in range(len(named))}:
        raise FormatError(f"config.json: id2label must name the labels from 0 on, got {sorted(named)!r:.100}")
    return tuple(named[str(i)] for i in range(len(named)))


def _vit(f: HfFields) -> SightConfig:
    vision = VisionConfig(
        _tower(f, _USUAL | {"layer_norm_eps": 1e-12}),
        image=f.size("image_size", 224),
        patch=f.size("patch_size", 16),
        channels=f.size("num_channels", 3),
        labels=_labels(f),
    )
    return SightConfig(f.family, vision)


def _dinov2(f: HfFields) -> SightConfig:
    hidden, ratio = f.size("hidden_size", 768), f.size("mlp_ratio", 4)
    gated = f.flag("use_swiglu_ffn", False)
    # Two thirds of the width, up to the next multiple of 8.
    more = {"ffn": -(-int(ratio * hidden * 2 / 3) // 8) * 8, "activation": ActivationKind.Silu} if gated else {}
    has_registers = f.family == "dinov2_with_registers"
    vision = VisionConfig(
        _tower(f, _USUAL, **({"ffn": ratio * hidden, "gated": gated, "scaled_halves": True} | more)),
        image=f.size("image_size", 224),
        patch=f.size("patch_size", 16 if has_registers else 14),
        channels=f.size("num_channels", 3),
        registers=f.size("num_register_tokens", 4, least=0) if has_registers else 0,
        labels=_labels(f),
        reads_mean=True,
    )
    return SightConfig(f.family, vision)


VISION: dict[str, Callable[[HfFields], SightConfig]] = {
    "clip": _clip,
    "clip_vision_model": lambda f: SightConfig(f.family, _clip_vision(f)),
    "siglip": _siglip,
    "siglip_vision_model": lambda f: SightConfig(f.family, _siglip_vision(f)),
    "vit": _vit,
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2,
}
