"""A small sentence encoder as a Hugging Face directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from models import tiny_models
from models.tiny_models import bert_arrays, byte_tokenizer
from rlx.formats.safetensors import write_safetensors

# Rows of whole blocks, which can be quantised.
BERT = replace(tiny_models.BERT, hidden=64, heads=4, ffn=96)


def write_encoder(folder: Path) -> Path:
    """A BERT with mean pooling and vectors of length 1; tokens are bytes."""
    c = BERT
    config = {"model_type": "bert", "hidden_size": c.hidden, "num_hidden_layers": c.layers, "hidden_act": "gelu"}
    config |= {"num_attention_heads": c.heads, "intermediate_size": c.ffn, "vocab_size": c.vocab}
    config |= {"max_position_embeddings": c.table_rows, "type_vocab_size": c.token_types, "layer_norm_eps": c.norm_eps}
    pooling = {"word_embedding_dimension": c.hidden, "pooling_mode_mean_tokens": True}
    modules = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    kinds = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<x>"}
    files = {"config.json": config, "1_Pooling/config.json": pooling, "modules.json": kinds}
    files |= {"tokenizer_config.json": tokenizer}
    (folder / "1_Pooling").mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    write_safetensors(folder / "model.safetensors", bert_arrays(c))
    byte_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    return folder
