"""What a Hugging Face directory says about a Whisper model: sizes from `config.json`, tokens from
`generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlx.errors import FormatError
from rlx.models.hf_fields import HfFields
from rlx.models.model_files import read_json
from rlx.ops.pointwise.unary import ActivationKind

# The recipe of the features that all published models read.
SAMPLE_RATE, HOP = 16000, 160
_RECIPE = {"sampling_rate": SAMPLE_RATE, "n_fft": 400, "hop_length": HOP}


class WhisperConfig(NamedTuple):
    """Sizes of a model. The encoder reads `frames` = 2·`positions` frames of features at a time."""

    mels: int
    positions: int
    context: int
    vocab: int
    hidden: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn: int
    activation: ActivationKind
    tied: bool

    @property
    def frames(self) -> int:
        return 2 * self.positions

    @property
    def samples(self) -> int:
        """Samples of one window, 30 s in published models."""
        return self.frames * HOP


class WhisperTokens(NamedTuple):
    """Ids with a role. `languages` and `tasks` are empty for models of one language."""

    start: int
    ends: frozenset[int]
    no_timestamps: int | None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_at_first: tuple[int, ...]


def whisper_config(path: Path) -> WhisperConfig:
    """The config of a model directory; what changes the mathematics in an unknown way is refused."""
    fields = HfFields(read_json(path / "config.json"))
    if fields.family != "whisper":
        raise FormatError(f"{path}: speech is read by models of type 'whisper', this is {fields.family!r}")
    fields.refuse_quantized()
    # Published models have no such factor, and what other libraries make of it differs.
    fields.refuse("scale_embedding", False)
    recipe = path / "preprocessor_config.json"
    if recipe.is_file():
        given = read_json(recipe)
        for name, wanted in _RECIPE.items():
            if given.get(name, wanted) != wanted:
                raise FormatError(f"{recipe}: {name}={given[name]!r} is not supported; Whisper models have {wanted}")
    hidden = fields.size("d_model")
    config = WhisperConfig(
        mels=fields.size("num_mel_bins", 80),
        positions=fields.size("max_source_positions", 1500),
        context=fields.size("max_target_positions", 448),
        vocab=fields.size("vocab_size"),
        hidden=hidden,
        encoder_layers=fields.layers("encoder_layers"),
        encoder_heads=fields.size("encoder_attention_heads"),
        encoder_ffn=fields.size("encoder_ffn_dim"),
        decoder_layers=fields.layers("decoder_layers"),
        decoder_heads=fields.size("decoder_attention_heads"),
        decoder_ffn=fields.size("decoder_ffn_dim"),
        activation=fields.activation("activation_function"),
        tied=fields.flag("tie_word_embeddings", True),
    )
    for name, heads in (("encoder", config.encoder_heads), ("decoder", config.decoder_heads)):
        if hidden % heads:
            raise FormatError(f"config.json: d_model={hidden} is not a multiple of {name}_attention_heads={heads}")
    return config


def whisper_tokens(path: Path, vocab: int) -> WhisperTokens:
    """The tokens of a model directory. `generation_config.json` comes first, then `config.json`."""
    own = read_json(path / "config.json")
    file = path / "generation_config.json"
    given = {**own, **(read_json(file) if file.is_file() else {})}
    ends = given.get("eos_token_id")
    tokens = WhisperTokens(
        start=_id(given.get("decoder_start_token_id"), "decoder_start_token_id"),
        ends=frozenset(_id(i, "eos_token_id") for i in (ends if isinstance(ends, list) else [ends])),
        no_timestamps=given.get("no_timestamps_token_id"),
        languages={name.strip("<|>"): _id(i, "lang_to_id") for name, i in _table(given, "lang_to_id").items()},
        tasks={name: _id(i, "task_to_id") for name, i in _table(given, "task_to_id").items()},
        suppressed=_ids(given, "suppress_tokens"),
        suppressed_at_first=_ids(given, "begin_suppress_tokens"),
    )
    used = [tokens.start, *tokens.ends, *tokens.languages.values(), *tokens.tasks.values(), *tokens.suppressed]
    used += [*tokens.suppressed_at_first] + ([] if tokens.no_timestamps is None else [tokens.no_timestamps])
    wrong = next((i for i in used if not 0 <= _id(i, "a token") < vocab), None)
    if wrong is not None:
        raise FormatError(f"{path}: the token {wrong} is not one of the {vocab} tokens of this model")
    return tokens


def _id(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"generation_config.json: {name} must be a token id, got {value!r}")
    return value


def _ids(given: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = given.get(name) or []
    if not isinstance(value, list):
        raise FormatError(f"generation_config.json: {name} must be a list of token ids, got {value!r}")
    # -1 stands for "none" in some files.
    return tuple(i for i in (_id(v, name) for v in value) if i >= 0)


def _table(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name) or {}
    if not isinstance(value, Mapping):
        raise FormatError(f"generation_config.json: {name} must be an object, got {value!r}")
    return value
