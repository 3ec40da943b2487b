"""`HeadConfig` from a Hugging Face `config.json`: the labels of a classifier, and what stands on its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import EncoderConfig, HeadConfig
from rlx.models.config_hf_encoders import encoder_config_from_hf
from rlx.models.encoder_names import HF_ENCODERS, TEXT_HEADS, TOKEN_HEADS
from rlx.models.hf_fields import HfFields
from rlx.ops.pointwise.unary import ActivationKind

# How the classes of models end that score texts, and that score tokens.
_OF_TEXTS, _OF_TOKENS = "ForSequenceClassification", "ForTokenClassification"
# Labels of a file that names none.
_USUAL_LABELS = 2
# More than any model has.
_MOST_LABELS = 1 << 20


def classifier_config_from_hf(fields: Mapping[str, Any]) -> EncoderConfig:
    """The config of an encoder with a head."""
    config = encoder_config_from_hf(fields)
    if config.family not in TEXT_HEADS:
        raise FormatError(
            f"config.json: classifiers of {config.family} models are not supported; "
            f"supported: {', '.join(sorted(TEXT_HEADS))}"
        )
    f = HfFields(fields, config.family)
    return replace(config, head=_on_encoder(f, config, plain_head(f)))


def plain_head(f: HfFields) -> HeadConfig:
    """What is scored, and what of, without what a family does before that."""
    several = f.text("problem_type", "") == "multi_label_classification"
    return HeadConfig(_labels(f), _is_of_tokens(f), several=several)


def head_names(config: EncoderConfig) -> dict[str, str]:
    """Where a directory keeps the weights of a classifier."""
    assert config.head is not None
    return HF_ENCODERS[config.family] | (TOKEN_HEADS if config.head.of_tokens else TEXT_HEADS)[config.family]


def is_classifier(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a model that scores labels."""
    named = fields.get("architectures")
    return isinstance(named, list) and any(str(name).endswith((_OF_TEXTS, _OF_TOKENS)) for name in named)


def _is_of_tokens(f: HfFields) -> bool:
    named = [str(name) for name in f.listed("architectures") or []]
    if any(name.endswith(_OF_TEXTS) for name in named):
        return False
    if any(name.endswith(_OF_TOKENS) for name in named):
        return True
    raise FormatError(
        f"config.json: architectures must name a class for sequence or token classification, got {named!r:.100}; "
        "models without such a head are loaded with rlx.load_encoder"
    )


def _labels(f: HfFields) -> tuple[str, ...]:
    named = f.table("id2label")
    count = f.size("num_labels", len(named) or _USUAL_LABELS)
    if count > _MOST_LABELS:
        raise FormatError(f"config.json: {count} labels are more than any model has")
    by_id = {str(key): str(name) for key, name in named.items()}
    if by_id and set(by_id) != {str(i) for i in range(len(by_id))}:
        raise FormatError(f"config.json: id2label must name the labels from 0 on, got {sorted(by_id)!r:.100}")
    return tuple(by_id.get(str(i), f"LABEL_{i}") for i in range(len(by_id) or count))


def _on_encoder(f: HfFields, config: EncoderConfig, head: HeadConfig) -> HeadConfig:
    """The head of a family."""
    if config.family == "modernbert":
        kind = f.text("classifier_pooling", "cls")
        if kind not in ("cls", "mean"):
            raise FormatError(f"config.json: classifier_pooling={kind!r} is not supported; supported: cls, mean")
        activation = f.activation("classifier_activation") if f.has("classifier_activation") else ActivationKind.Gelu
        return replace(head, reads_mean=kind == "mean", dense=True, activation=activation, norm=True)
    if head.of_tokens:
        return head
    if config.family == "deberta-v2":
        given = f.has("pooler_hidden_act")
        return replace(head, dense=True, activation=f.activation("pooler_hidden_act") if given else ActivationKind.Gelu)
    different = {"distilbert": ActivationKind.Relu, "electra": ActivationKind.Gelu}
    return replace(head, dense=True, activation=different.get(config.family, ActivationKind.Tanh))
