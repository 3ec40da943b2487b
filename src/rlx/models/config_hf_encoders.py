"""`EncoderConfig` from a Hugging Face directory: the encoder from `config.json` (one table: `model_type` -> function),
pooling and normalisation from the files of sentence-transformers beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlx.errors import FormatError
from rlx.models.config import DisentangledConfig, EncoderConfig, RopeConfig
from rlx.models.config_hf_common import rope_from_hf
from rlx.models.config_hf_seq2seq import t5_encoder
from rlx.models.hf_fields import HfFields
from rlx.models.model_files import read_json
from rlx.models.sentence_modules import read_modules
from rlx.ops.pointwise.unary import ActivationKind


def encoder_config_from_hf(fields: Mapping[str, Any]) -> EncoderConfig:
    """The config of an encoder, without pooling."""
    read = HfFields({**_ABSENT.get(_family(fields), {}), **fields}, _family(fields))
    if read.family not in ENCODERS:
        raise FormatError(
            f"config.json: model_type {fields.get('model_type')!r} is not a supported encoder; "
            f"supported: {', '.join(sorted(ENCODERS))}. Language models are loaded with rlx.load, and "
            "their embed gives vectors, too"
        )
    read.refuse_quantized()
    return ENCODERS[read.family](read)


def is_encoder(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of an encoder."""
    return _family(fields) in ENCODERS


def is_encoder_directory(path: Path) -> bool:
    """Whether a model is made for vectors."""
    config = path / "config.json"
    return config.is_file() and is_encoder(read_json(config))


def _family(fields: Mapping[str, Any]) -> str:
    return str(fields.get("model_type")).replace("nomic-bert", "nomic_bert")


def encoder_config_from_directory(path: Path) -> EncoderConfig:
    """The config of an encoder with what `modules.json` puts behind it; mean pooling where there is no such file."""
    config = encoder_config_from_hf(read_json(path / "config.json"))
    modules = read_modules(path)
    if modules is None:
        return replace(config, pooling=("mean",))
    return replace(
        config,
        pooling=modules.pooling,
        dense=modules.dense,
        normalize=modules.normalize,
        context=min(config.context, modules.limit or config.context),
    )


def _bert(f: HfFields, **more: Any) -> EncoderConfig:
    f.refuse("position_embedding_type", "absolute")
    f.refuse("is_decoder", False)
    f.refuse("add_cross_attention", False)
    common: dict[str, Any] = {
        "family": f.family,
        "layers": f.layers("num_hidden_layers"),
        "hidden": f.size("hidden_size"),
        "heads": f.size("num_attention_heads"),
        "ffn": f.size("intermediate_size"),
        "vocab": f.size("vocab_size"),
        "context": f.size("max_position_embeddings"),
        "table_rows": f.size("max_position_embeddings"),
        "norm_eps": f.number("layer_norm_eps", 1e-12),
        "activation": f.activation("hidden_act"),
        "token_types": f.size("type_vocab_size", 0, least=0),
        "pad_id": f.size("pad_token_id", 0, least=0),
    }
    return EncoderConfig(**common | more)


def _roberta(f: HfFields, **more: Any) -> EncoderConfig:
    """Positions begin behind that of the padding token."""
    pad = f.size("pad_token_id", 1, least=0)
    return _bert(f, position_offset=pad + 1, pad_id=pad, context=f.size("max_position_embeddings") - pad - 1, **more)


def _ernie(f: HfFields) -> EncoderConfig:
    f.refuse("use_task_id", False)
    return _bert(f)


def _roberta_prelayernorm(f: HfFields) -> EncoderConfig:
    return _roberta(f, pre_norms=True)


def _xlm_roberta_xl(f: HfFields) -> EncoderConfig:
    return _roberta(f, pre_norms=True, embed_norm=False)


def _megatron_bert(f: HfFields) -> EncoderConfig:
    return _bert(f, pre_norms=True, embed_norm=False)


def _mpnet(f: HfFields) -> EncoderConfig:
    # The position of padding is fixed in this family, whatever the id of its token.
    context = f.size("max_position_embeddings") - 2
    buckets = f.size("relative_attention_num_buckets", 32, least=4)
    return _bert(f, position_offset=2, context=context, relative_buckets=buckets, token_types=0)


def _electra(f: HfFields) -> EncoderConfig:
    width, hidden = f.size("embedding_size", 128), f.size("hidden_size")
    return _bert(f, embed_width=0 if width == hidden else width)


def _albert(f: HfFields) -> EncoderConfig:
    """All layers have the same weights."""
    f.refuse("num_hidden_groups", 1)
    f.refuse("inner_group_num", 1)
    return _bert(f, embed_width=f.size("embedding_size", 128))


def _distilbert(f: HfFields) -> EncoderConfig:
    return EncoderConfig(
        family="distilbert",
        layers=f.layers("n_layers"),
        hidden=f.size("dim"),
        heads=f.size("n_heads"),
        ffn=f.size("hidden_dim"),
        vocab=f.size("vocab_size"),
        context=f.size("max_position_embeddings"),
        table_rows=f.size("max_position_embeddings"),
        activation=f.activation("activation"),
        pad_id=f.size("pad_token_id", 0, least=0),
    )


def _nomic(f: HfFields) -> EncoderConfig:
    """Both spellings: the one of the model's own code (`n_embd`) and that of transformers (`hidden_size`)."""
    shared: dict[str, Any] = {
        "family": "nomic_bert",
        "activation": ActivationKind.Silu,
        "gated": True,
        "fused_qkv": True,
        "learned_positions": False,
        "token_types": f.size("type_vocab_size", 0, least=0),
        "vocab": f.size("vocab_size"),
        "pad_id": f.size("pad_token_id", 0, least=0),
    }
    if not f.has("n_embd"):
        hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
        f.refuse("hidden_act", "silu")
        return EncoderConfig(
            **shared,
            layers=f.layers("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            ffn=f.size("intermediate_size"),
            context=f.size("max_position_embeddings"),
            norm_eps=f.number("layer_norm_eps", 1e-12),
            rope=rope_from_hf(f, f.size("head_dim", max(hidden // heads, 1))),
        )
    for name, accepted in (
        ("prenorm", False),
        ("activation_function", "swiglu"),
        ("rotary_emb_fraction", 1.0),
        ("rotary_emb_interleaved", False),
        ("use_rms_norm", False),
        ("parallel_block", False),
        ("causal", False),
        ("scale_attn_by_inverse_layer_idx", False),
    ):
        f.refuse(name, accepted)
    hidden, heads = f.size("n_embd"), f.size("n_head")
    return EncoderConfig(
        **shared,
        layers=f.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        ffn=f.size("n_inner"),
        context=f.size("n_positions"),
        norm_eps=f.number("layer_norm_epsilon", 1e-12),
        rope=RopeConfig(base=f.number("rotary_emb_base", 10000.0), dims=hidden // heads),
    )


_LAYER_TYPES = ("full_attention", "sliding_attention")


def _modernbert(f: HfFields) -> EncoderConfig:
    f.refuse("position_embedding_type", "absolute", "sans_pos")
    hidden, heads, layers = f.size("hidden_size"), f.size("num_attention_heads"), f.layers("num_hidden_layers")
    head_dim = max(hidden // heads, 1)
    every, types = f.size("global_attn_every_n_layers", 3), f.listed("layer_types")
    if types is not None and (len(types) != layers or any(t not in _LAYER_TYPES for t in types)):
        raise FormatError(f"config.json: layer_types must name {layers} full or sliding layers, got {types!r:.100}")
    slides = [i % every > 0 for i in range(layers)] if types is None else [t == _LAYER_TYPES[1] for t in types]
    if f.table("rope_parameters"):
        rope, local = (rope_from_hf(f, head_dim, kind) for kind in _LAYER_TYPES)
    else:
        bases = f.number("global_rope_theta", 160000.0), f.optional_number("local_rope_theta")
        rope, local = (RopeConfig(base=base or bases[0], dims=head_dim) for base in bases)
    return EncoderConfig(
        family="modernbert",
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=f.size("intermediate_size"),
        vocab=f.size("vocab_size"),
        context=f.size("max_position_embeddings"),
        norm_eps=f.number("norm_eps", 1e-5),
        activation=f.activation("hidden_activation", "hidden_act"),
        rope=rope,
        local_rope=local,
        # Half of the window on either side.
        local_reach=f.size("local_attention", 128) // 2,
        local_layers=frozenset(i for i, slides_here in enumerate(slides) if slides_here),
        learned_positions=False,
        fused_qkv=True,
        fused_gate_up=True,
        pre_norms=True,
        pad_id=f.size("pad_token_id", 0, least=0),
    )


def _deberta(f: HfFields) -> EncoderConfig:
    """Tokens know each other's places by attention alone, in the third version also without learned positions."""
    f.refuse("conv_kernel_size", 0)
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    f.refuse("attention_head_size", max(hidden // heads, 1))
    width = f.size("embedding_size", hidden)
    found = _disentangled(f)
    return _bert(
        f,
        disentangled=found if f.flag("relative_attention", False) else None,
        # Scores of places count here whether there are any or not.
        attention_scale=(max(hidden // heads, 1) * (1 + found.of_keys + found.of_queries)) ** -0.5,
        learned_positions=f.flag("position_biased_input", True),
        embed_width=0 if width == hidden else width,
        norm_behind_project=True,
        norm_eps=f.number("layer_norm_eps", 1e-7),
    )


def _disentangled(f: HfFields) -> DisentangledConfig:
    # Numbers below 1 stand for "not given".
    context = f.size("max_position_embeddings")
    longest = context if f.is_below_one("max_relative_positions") else f.size("max_relative_positions", context)
    buckets = 0 if f.is_below_one("position_buckets") else f.size("position_buckets", 0, least=0)
    kinds = f.listed("pos_att_type")
    if kinds is None:
        kinds = f.text("pos_att_type", "").split("|")
    if any(kind not in ("c2p", "p2c", "") for kind in kinds):
        raise FormatError(f"config.json: pos_att_type must be of c2p and p2c, got {kinds!r:.100}")
    return DisentangledConfig(
        span=buckets or longest,
        max_distance=longest,
        buckets=buckets,
        of_keys="c2p" in kinds,
        of_queries="p2c" in kinds,
        shared=f.flag("share_att_key", False),
        norm="layer_norm" in f.text("norm_rel_ebd", "none").lower(),
    )


# What fields mean that a file leaves out, where it is not what null means.
_ABSENT: dict[str, dict[str, Any]] = {
    **{
        family: {"type_vocab_size": 2}
        for family in (
            *("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm"),
            *("ernie", "megatron-bert", "electra", "albert"),
        )
    },
    "xlm-roberta-xl": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "mpnet": {"pad_token_id": 1},
    "nomic_bert": {"type_vocab_size": 2, "rope_theta": 1000.0},
    "modernbert": {"local_rope_theta": 10000.0},
}
ENCODERS: dict[str, Callable[[HfFields], EncoderConfig]] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "data2vec-text": _roberta,
    "roberta-prelayernorm": _roberta_prelayernorm,
    "xlm-roberta-xl": _xlm_roberta_xl,
    "ernie": _ernie,
    "megatron-bert": _megatron_bert,
    "distilbert": _distilbert,
    "electra": _electra,
    "albert": _albert,
    "mpnet": _mpnet,
    "nomic_bert": _nomic,
    "modernbert": _modernbert,
    "deberta-v2": _deberta,
    "t5": t5_encoder,
    "mt5": t5_encoder,
    "umt5": t5_encoder,
}
