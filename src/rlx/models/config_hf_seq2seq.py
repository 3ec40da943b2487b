"""`Seq2SeqConfig` from a Hugging Face `config.json`: models that read one text and write another. One table:
`model_type` -> function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DecoderConfig, EncoderConfig, Seq2SeqConfig
from rlx.models.hf_fields import ACTIVATIONS, HfFields
from rlx.ops.pointwise.unary import ActivationKind

# The length of texts for models that know distances in the place of positions.
_NO_LIMIT = 1 << 20


def seq2seq_config_from_hf(fields: Mapping[str, Any], generation: Mapping[str, Any]) -> Seq2SeqConfig:
    """The config of a model, with what `generation_config.json` says about its tokens."""
    f = HfFields(fields)
    if f.family not in SEQ2SEQ:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is not a supported model that reads one text and "
            f"writes another; supported: {', '.join(sorted(SEQ2SEQ))}. Language models are loaded with rlx.load"
        )
    f.refuse_quantized()
    encoder, decoder = SEQ2SEQ[f.family](f)
    given = HfFields({**fields, **{name: value for name, value in generation.items() if value is not None}}, f.family)
    start = given.size("decoder_start_token_id", given.size("bos_token_id", 0, least=0), least=0)
    first = (given.size("forced_bos_token_id", least=0),) if given.has("forced_bos_token_id") else ()
    return Seq2SeqConfig(encoder, decoder, start, first, _never(given))


def is_seq2seq(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a whole model of this kind; there are directories of their encoders alone."""
    named = fields.get("architectures") or []
    return str(fields.get("model_type")) in SEQ2SEQ and not any("Encoder" in str(name) for name in named)


def _never(given: HfFields) -> tuple[int, ...]:
    """Tokens that may not be written; what is longer than a token is left to those who sample."""
    listed = given.listed("bad_words_ids") or []
    return tuple(words[0] for words in listed if isinstance(words, list) and len(words) == 1)


def t5_encoder(f: HfFields) -> EncoderConfig:
    """Distances in the place of positions, and scores that are not scaled."""
    activation, gated = _t5_activation(f)
    return EncoderConfig(
        family=f.family,
        layers=f.layers("num_layers"),
        hidden=f.size("d_model"),
        heads=f.size("num_heads"),
        head_width=f.size("d_kv"),
        ffn=f.size("d_ff"),
        vocab=f.size("vocab_size"),
        context=f.size("n_positions", 512),
        norm="rms",
        norm_eps=f.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated=gated,
        learned_positions=False,
        relative_buckets=f.size("relative_attention_num_buckets", 32, least=4),
        relative_max_distance=f.size("relative_attention_max_distance", 128, least=2),
        relative_by_layer=f.family == "umt5",
        attention_scale=1.0,
        pre_norms=True,
        embed_norm=False,
        pad_id=f.size("pad_token_id", 0, least=0),
    )


def _t5_activation(f: HfFields) -> tuple[ActivationKind, bool]:
    """`feed_forward_proj`: a name, or gated- and a name; "gated-gelu" means the approximation."""
    named = f.text("feed_forward_proj", "relu")
    name, gated = named.removeprefix("gated-"), named.startswith("gated-")
    if named == "gated-gelu":
        name = "gelu_new"
    if name not in ACTIVATIONS:
        raise FormatError(f"config.json: feed_forward_proj={named!r} is not supported")
    return ACTIVATIONS[name], gated


def _t5(f: HfFields) -> tuple[EncoderConfig, DecoderConfig]:
    activation, gated = _t5_activation(f)
    hidden, heads = f.size("d_model"), f.size("num_heads")
    # Whether words are told by the table that reads them is seen in the file; what such files say about it is scaling.
    is_scaled = f.family != "mt5" and f.flag("scale_decoder_outputs", f.flag("tie_word_embeddings", True))
    decoder = DecoderConfig(
        family=f.family,
        layers=f.layers("num_decoder_layers") if f.has("num_decoder_layers") else f.layers("num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=f.size("d_kv"),
        ffn=f.size("d_ff"),
        vocab=f.size("vocab_size"),
        context=_NO_LIMIT,
        norm_eps=f.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated=gated,
        attention_scale=1.0,
        relative_buckets=f.size("relative_attention_num_buckets", 32, least=4),
        relative_max_distance=f.size("relative_attention_max_distance", 128, least=2),
        relative_by_layer=f.family == "umt5",
        logit_multiplier=hidden**-0.5 if is_scaled else 1.0,
        reads_source=True,
    )
    return t5_encoder(f), decoder


def _bart(
    f: HfFields, pre_norms: bool = False, embed_norm: bool = True, offset: int = 2
) -> tuple[EncoderConfig, DecoderConfig]:
    """Positions that are learned, or that are those of sines; then `offset` is the row of the first one."""
    hidden, context = f.size("d_model"), f.size("max_position_embeddings")
    scale = math.sqrt(hidden) if f.flag("scale_embedding", False) else 1.0
    activation = f.activation("activation_function")
    heads = f.size("decoder_attention_heads")
    encoder = EncoderConfig(
        family=f.family,
        layers=f.layers("encoder_layers"),
        hidden=hidden,
        heads=f.size("encoder_attention_heads"),
        ffn=f.size("encoder_ffn_dim"),
        vocab=f.size("vocab_size"),
        context=context,
        table_rows=context + offset,
        position_offset=offset,
        embed_scale=scale,
        norm_eps=1e-5,
        activation=activation,
        pre_norms=pre_norms,
        embed_norm=embed_norm,
        pad_id=f.size("pad_token_id", 1, least=0),
    )
    decoder = DecoderConfig(
        family=f.family,
        layers=f.layers("decoder_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        ffn=f.size("decoder_ffn_dim"),
        vocab=f.size("vocab_size"),
        context=context,
        norm="layer",
        norm_eps=1e-5,
        activation=activation,
        gated=False,
        learned_positions=True,
        position_offset=offset,
        pre_norms=pre_norms,
        sum_norms=not pre_norms,
        final_norm=pre_norms,
        embed_norm=embed_norm,
        embed_scale=scale,
        reads_source=True,
    )
    return encoder, decoder


def _mbart(f: HfFields) -> tuple[EncoderConfig, DecoderConfig]:
    return _bart(f, pre_norms=True)


def _marian(f: HfFields) -> tuple[EncoderConfig, DecoderConfig]:
    f.refuse("share_encoder_decoder_embeddings", True)
    return _bart(f, embed_norm=False, offset=0)


def _pegasus(f: HfFields) -> tuple[EncoderConfig, DecoderConfig]:
    return _bart(f, pre_norms=True, embed_norm=False, offset=0)


def _m2m(f: HfFields) -> tuple[EncoderConfig, DecoderConfig]:
    """Positions begin behind that of the padding token."""
    scaled = f.with_default("scale_embedding", True)
    return _bart(scaled, pre_norms=True, embed_norm=False, offset=f.size("pad_token_id", 1, least=0) + 1)


SEQ2SEQ: dict[str, Callable[[HfFields], tuple[EncoderConfig, DecoderConfig]]] = {
    "t5": _t5,
    "mt5": _t5,
    "umt5": _t5,
    "bart": _bart,
    "mbart": _mbart,
    "marian": _marian,
    "pegasus": _pegasus,
    "m2m_100": _m2m,
}
