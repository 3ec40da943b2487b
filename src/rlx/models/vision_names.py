"""Where directories of models that see keep each weight, and weights that are stored without a name of their own given
as others have them; see `rlx.models.weight_names`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlx.errors import FormatError
from rlx.models.weights import Weight


def _clip_layers(side: str) -> dict[str, str]:
    layer = f"{side}.encoder.layers.{{i}}"
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return {
        **{part: f"{layer}.self_attn.{name}" for part, name in parts.items()},
        "attn_norm": f"{layer}.layer_norm1",
        "ffn_norm": f"{layer}.layer_norm2",
        "up": f"{layer}.mlp.fc1",
        "down": f"{layer}.mlp.fc2",
    }


CLIP_TEXTS: dict[str, str] = {
    "embed": "text_model.embeddings.token_embedding",
    "positions": "text_model.embeddings.position_embedding",
    "final_norm": "text_model.final_layer_norm",
    "projection": "text_projection",
    **_clip_layers("text_model"),
}
SIGLIP_TEXTS: dict[str, str] = CLIP_TEXTS | {"projection": "text_model.head"}
_CLIP: dict[str, str] = {
    "patch": "vision_model.embeddings.patch_embedding",
    "first": "vision_model.embeddings.class_embedding",
    "positions": "vision_model.embeddings.position_embedding",
    "norm_before": "vision_model.pre_layrnorm",
    "final_norm": "vision_model.post_layernorm",
    "projection": "visual_projection",
    **_clip_layers("vision_model"),
}
_SIGLIP: dict[str, str] = _CLIP | {
    "probe": "vision_model.head.probe",
    **{f"probe_{part}": f"vision_model.head.attention.{part}" for part in "qkv"},
    "probe_o": "vision_model.head.attention.out_proj",
    "probe_norm": "vision_model.head.layernorm",
    "probe_up": "vision_model.head.mlp.fc1",
    "probe_down": "vision_model.head.mlp.fc2",
}
_EMBEDDINGS: dict[str, str] = {
    "patch": "embeddings.patch_embeddings.projection",
    "first": "embeddings.cls_token",
    "registers": "embeddings.register_tokens",
    "positions": "embeddings.position_embeddings",
    "final_norm": "layernorm",
    "classifier": "classifier",
    "q": "encoder.layer.{i}.attention.attention.query",
    "k": "encoder.layer.{i}.attention.attention.key",
    "v": "encoder.layer.{i}.attention.attention.value",
    "o": "encoder.layer.{i}.attention.output.dense",
}
_VIT: dict[str, str] = _EMBEDDINGS | {
    "attn_norm": "encoder.layer.{i}.layernorm_before",
    "ffn_norm": "encoder.layer.{i}.layernorm_after",
    "up": "encoder.layer.{i}.intermediate.dense",
    "down": "encoder.layer.{i}.output.dense",
}
_DINO: dict[str, str] = _EMBEDDINGS | {
    "attn_norm": "encoder.layer.{i}.norm1",
    "ffn_norm": "encoder.layer.{i}.norm2",
    "attn_scale": "encoder.layer.{i}.layer_scale1.lambda1",
    "ffn_scale": "encoder.layer.{i}.layer_scale2.lambda1",
    "up": "encoder.layer.{i}.mlp.fc1",
    "gate_up": "encoder.layer.{i}.mlp.weights_in",
    "down": "encoder.layer.{i}.mlp.fc2",
}
VISION_NAMES: dict[str, dict[str, str]] = {
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "vit": _VIT,
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
}
# What may stand before all names but those of a classifier.
_PREFIXES = ("vit.", "dinov2.", "dinov2_with_registers.")
# Names of a tower that stands alone, which elsewhere begin with vision_model.
_TOWER_ALONE = (
    *("embeddings.patch_embedding.", "embeddings.class_embedding", "embeddings.position_embedding."),
    *("pre_layrnorm.", "encoder.layers.", "post_layernorm.", "head."),
)
# Tensors that are stored without a part, [1, .., D].
_VECTORS = ("class_embedding", "cls_token", "lambda1")
_TABLES = ("register_tokens", "position_embeddings", "probe")
# What nothing here reads: counts of places, the token of hidden squares, and a pooler that few of its models trained.
_UNREAD = ("position_ids", "embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias")


def usually_named(found: Mapping[str, Weight], layers: int) -> dict[str, Weight]:
    """The weights by the names above: what has no part has `.weight`, squares are rows, and q, k and v of a query of
    its own are apart."""
    result: dict[str, Weight] = {}
    for stored, weight in found.items():
        name = stored.removeprefix(next((p for p in _PREFIXES if stored.startswith(p)), ""))
        name = name.replace(".mlp.weights_out.", ".mlp.fc2.")
        if name.startswith(_TOWER_ALONE):
            name = f"vision_model.{name}"
        if name.endswith(_UNREAD):
            continue
        if ".in_proj_" in name:
            result |= _three(name, weight)
        elif name.endswith(_TABLES):
            result[f"{name}.weight"] = _reshaped(name, weight, (math.prod(weight.dims[:-1]), weight.dims[-1]))
        elif name.endswith(_VECTORS):
            result[f"{name}.weight"] = _reshaped(name, weight, weight.dims[-1:])
        elif len(weight.dims) == 4:
            result[name] = _reshaped(name, weight, (weight.dims[0], math.prod(weight.dims[1:])))
        else:
            result[name] = weight
    return result


def _three(name: str, weight: Weight) -> dict[str, Weight]:
    """q, k and v, which are stored as one."""
    base, part = name.rsplit(".in_proj_", 1)
    if weight.dims[0] % 3:
        raise FormatError(f"{name}: q, k and v cannot be {weight.dims[0]} rows")
    rows = weight.dims[0] // 3

    def third(number: int) -> Weight:
        return weight._replace(
            dims=(rows, *weight.dims[1:]), read=lambda: weight.read()[number * rows : (number + 1) * rows]
        )

    return {f"{base}.{role}.{part}": third(number) for number, role in enumerate("qkv")}


def _reshaped(name: str, weight: Weight, dims: tuple[int, ...]) -> Weight:
    if math.prod(weight.dims) != math.prod(dims):
        raise FormatError(f"{name}: a tensor {list(weight.dims)} cannot be read as {list(dims)}")
    return weight._replace(dims=dims, read=lambda: weight.read().reshape(dims))
