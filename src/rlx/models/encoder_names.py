"""Where directories of text encoders keep each weight: role -> name, `{i}` being the layer; see
`rlx.models.weight_names`."""

from __future__ import annotations

from rlx.models.seq2seq_names import T5_ENCODER, by_layer

_BERT: dict[str, str] = {
    "embed": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "embed_norm": "bert.embeddings.LayerNorm",
    "q": "bert.encoder.layer.{i}.attention.self.query",
    "k": "bert.encoder.layer.{i}.attention.self.key",
    "v": "bert.encoder.layer.{i}.attention.self.value",
    "o": "bert.encoder.layer.{i}.attention.output.dense",
    "attn_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "up": "bert.encoder.layer.{i}.intermediate.dense",
    "down": "bert.encoder.layer.{i}.output.dense",
    "ffn_norm": "bert.encoder.layer.{i}.output.LayerNorm",
}
_ROBERTA: dict[str, str] = {role: name.replace("bert.", "roberta.", 1) for role, name in _BERT.items()}
_DATA2VEC: dict[str, str] = {role: name.replace("bert.", "data2vec_text.", 1) for role, name in _BERT.items()}
_ERNIE: dict[str, str] = {role: name.replace("bert.", "ernie.", 1) for role, name in _BERT.items()}
_ROBERTA_PRELAYERNORM: dict[str, str] = {
    role: name.replace("bert.", "roberta_prelayernorm.", 1) for role, name in _BERT.items()
} | {
    "attn_norm": "roberta_prelayernorm.encoder.layer.{i}.attention.LayerNorm",
    "ffn_norm": "roberta_prelayernorm.encoder.layer.{i}.intermediate.LayerNorm",
    "final_norm": "roberta_prelayernorm.LayerNorm",
}
_XLM_ROBERTA_XL: dict[str, str] = _ROBERTA | {
    "attn_norm": "roberta.encoder.layer.{i}.attention.self_attn_layer_norm",
    "ffn_norm": "roberta.encoder.layer.{i}.LayerNorm",
    "final_norm": "roberta.encoder.LayerNorm",
}
_MEGATRON_BERT: dict[str, str] = _BERT | {
    "attn_norm": "bert.encoder.layer.{i}.attention.ln",
    "ffn_norm": "bert.encoder.layer.{i}.ln",
    "final_norm": "bert.encoder.ln",
}
_ELECTRA: dict[str, str] = {role: name.replace("bert.", "electra.", 1) for role, name in _BERT.items()} | {
    "embed_project": "electra.embeddings_project",
}
_ALBERT_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
_ALBERT: dict[str, str] = {
    "embed": "albert.embeddings.word_embeddings",
    "positions": "albert.embeddings.position_embeddings",
    "token_types": "albert.embeddings.token_type_embeddings",
    "embed_norm": "albert.embeddings.LayerNorm",
    "embed_project": "albert.encoder.embedding_hidden_mapping_in",
    "q": f"{_ALBERT_LAYER}.attention.query",
    "k": f"{_ALBERT_LAYER}.attention.key",
    "v": f"{_ALBERT_LAYER}.attention.value",
    "o": f"{_ALBERT_LAYER}.attention.dense",
    "attn_norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
    "up": f"{_ALBERT_LAYER}.ffn",
    "down": f"{_ALBERT_LAYER}.ffn_output",
    "ffn_norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
}
_DISTILBERT: dict[str, str] = {
    "embed": "distilbert.embeddings.word_embeddings",
    "positions": "distilbert.embeddings.position_embeddings",
    "embed_norm": "distilbert.embeddings.LayerNorm",
    "q": "distilbert.transformer.layer.{i}.attention.q_lin",
    "k": "distilbert.transformer.layer.{i}.attention.k_lin",
    "v": "distilbert.transformer.layer.{i}.attention.v_lin",
    "o": "distilbert.transformer.layer.{i}.attention.out_lin",
    "attn_norm": "distilbert.transformer.layer.{i}.sa_layer_norm",
    "up": "distilbert.transformer.layer.{i}.ffn.lin1",
    "down": "distilbert.transformer.layer.{i}.ffn.lin2",
    "ffn_norm": "distilbert.transformer.layer.{i}.output_layer_norm",
}
_MPNET: dict[str, str] = {
    "embed": "mpnet.embeddings.word_embeddings",
    "positions": "mpnet.embeddings.position_embeddings",
    "embed_norm": "mpnet.embeddings.LayerNorm",
    "relative_bias": "mpnet.encoder.relative_attention_bias",
    "q": "mpnet.encoder.layer.{i}.attention.attn.q",
    "k": "mpnet.encoder.layer.{i}.attention.attn.k",
    "v": "mpnet.encoder.layer.{i}.attention.attn.v",
    "o": "mpnet.encoder.layer.{i}.attention.attn.o",
    "attn_norm": "mpnet.encoder.layer.{i}.attention.LayerNorm",
    "up": "mpnet.encoder.layer.{i}.intermediate.dense",
    "down": "mpnet.encoder.layer.{i}.output.dense",
    "ffn_norm": "mpnet.encoder.layer.{i}.output.LayerNorm",
}
_NOMIC: dict[str, str] = {
    "embed": "bert.embeddings.word_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "embed_norm": "bert.emb_ln",
    "qkv": "bert.encoder.layers.{i}.attn.Wqkv",
    "o": "bert.encoder.layers.{i}.attn.out_proj",
    "attn_norm": "bert.encoder.layers.{i}.norm1",
    "up": "bert.encoder.layers.{i}.mlp.fc11",
    "gate": "bert.encoder.layers.{i}.mlp.fc12",
    "down": "bert.encoder.layers.{i}.mlp.fc2",
    "ffn_norm": "bert.encoder.layers.{i}.norm2",
}

_MODERNBERT: dict[str, str] = {
    "embed": "model.embeddings.tok_embeddings",
    "embed_norm": "model.embeddings.norm",
    "final_norm": "model.final_norm",
    "attn_norm": "model.layers.{i}.attn_norm",
    "qkv": "model.layers.{i}.attn.Wqkv",
    "o": "model.layers.{i}.attn.Wo",
    "ffn_norm": "model.layers.{i}.mlp_norm",
    "gate_up": "model.layers.{i}.mlp.Wi",
    "down": "model.layers.{i}.mlp.Wo",
}

_DEBERTA: dict[str, str] = {role: name.replace("bert.", "deberta.", 1) for role, name in _BERT.items()} | {
    "embed_project": "deberta.embeddings.embed_proj",
    "places": "deberta.encoder.rel_embeddings",
    "places_norm": "deberta.encoder.LayerNorm",
    "q": "deberta.encoder.layer.{i}.attention.self.query_proj",
    "k": "deberta.encoder.layer.{i}.attention.self.key_proj",
    "v": "deberta.encoder.layer.{i}.attention.self.value_proj",
    "places_q": "deberta.encoder.layer.{i}.attention.self.pos_query_proj",
    "places_k": "deberta.encoder.layer.{i}.attention.self.pos_key_proj",
}

HF_ENCODERS: dict[str, dict[str, str]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": _DATA2VEC,
    "roberta-prelayernorm": _ROBERTA_PRELAYERNORM,
    "xlm-roberta-xl": _XLM_ROBERTA_XL,
    "ernie": _ERNIE,
    "megatron-bert": _MEGATRON_BERT,
    "electra": _ELECTRA,
    "albert": _ALBERT,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "nomic_bert": _NOMIC,
    "modernbert": _MODERNBERT,
    "deberta-v2": _DEBERTA,
    "t5": T5_ENCODER,
    "mt5": T5_ENCODER,
    "umt5": by_layer(T5_ENCODER),
}
# The prefix of the encoder inside files that also hold a head; files of the encoder alone leave it out.
HF_ENCODER_PREFIX = {family: names["embed"].split(".")[0] + "." for family, names in HF_ENCODERS.items()}

# What stands on an encoder that scores labels.
_ON_POOLER = {"head_out": "classifier"}
_OF_TWO_LAYERS = {"head_dense": "classifier.dense", "head_out": "classifier.out_proj"}
_ROBERTA_LINE = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl")
TEXT_HEADS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("bert", "megatron-bert"), _ON_POOLER | {"head_dense": "bert.pooler.dense"}),
    **dict.fromkeys((*_ROBERTA_LINE, "electra", "mpnet"), _OF_TWO_LAYERS),
    "ernie": _ON_POOLER | {"head_dense": "ernie.pooler.dense"},
    "albert": _ON_POOLER | {"head_dense": "albert.pooler"},
    "distilbert": _ON_POOLER | {"head_dense": "pre_classifier"},
    "modernbert": _ON_POOLER | {"head_dense": "head.dense", "head_norm": "head.norm"},
    "deberta-v2": _ON_POOLER | {"head_dense": "pooler.dense"},
}
TOKEN_HEADS: dict[str, dict[str, str]] = {
    family: TEXT_HEADS["modernbert"] if family == "modernbert" else _ON_POOLER for family in TEXT_HEADS
}
