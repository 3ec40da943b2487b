"""Models that also see: Hugging Face directories in which a language model is one part of several.

The language model is read as one of its own family. The parts for pictures are left out here; those that are known are
read by `rlx.models.picture_prompts`. Positions of three axes (time, height, width) are those of one axis where there is
nothing but text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rlx.errors import FormatError

if TYPE_CHECKING:
    T = TypeVar("T")

# model_type of the whole -> that of its language model, where the file does not say it.
WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "smolvlm": "llama",
}
# Language models that have a name of their own inside of another model.
_FAMILIES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
# What their settings leave out, which those of a model that stands alone must have.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
    },
}
# Where the tensors of the language model are found, and where those of others.
_TEXT_PREFIXES = {
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_OTHER_PARTS = (
    *("visual.", "vision_model.", "vision_tower.", "multi_modal_projector.", "connector.", "image_newline"),
    *("model.visual.", "model.vision_model.", "model.vision_tower.", "model.multi_modal_projector."),
    *("model.connector.", "model.image_newline"),
)
# Settings that may stand beside those of the language model, and then count in the place of its own.
_BESIDE = ("tie_word_embeddings", "quantization_config")


def is_wrapper(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a model with other parts."""
    kind = fields.get("model_type")
    return isinstance(kind, str) and kind in WRAPPERS


def text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model; those of a model that stands alone are given back."""
    if not is_wrapper(fields):
        return fields
    usual = WRAPPERS[str(fields["model_type"])]
    inner = fields.get("text_config")
    if inner is None:
        return {**fields, "model_type": usual}
    if not isinstance(inner, Mapping):
        raise FormatError(f"config.json: text_config must be an object, got {inner!r:.100}")
    family = str(inner.get("model_type", usual))
    family = _FAMILIES.get(family, family)
    beside = {name: fields[name] for name in _BESIDE if fields.get(name) is not None}
    return {**_LEFT_OUT.get(family, {}), **inner, **beside, "model_type": family}


def text_tensors(tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors of the language model, by the names that they have where it stands alone."""
    found = {}
    for name, tensor in tensors.items():
        if not name.startswith(_OTHER_PARTS):
            prefix = next((prefix for prefix in _TEXT_PREFIXES if name.startswith(prefix)), "")
            found[_TEXT_PREFIXES.get(prefix, "") + name.removeprefix(prefix)] = tensor
    return found
