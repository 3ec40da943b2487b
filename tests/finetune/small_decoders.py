"""Small decoders to tune: random ones, and the first layer of the model that comes with rlx, as a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import rlx.models
from models.tiny_models import BERT, LLAMA, bert_arrays, gguf_file, llama_arrays
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant, Input
from rlx.models.config import EncoderConfig
from rlx.models.model_files import DecoderFiles
from rlx.ops.pointwise.conversion import Cast

SHIPPED = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
ONE_LAYER = dataclasses.replace(LLAMA, layers=1, ffn=64)
ONE_LAYER_BERT: EncoderConfig = dataclasses.replace(BERT, layers=1)
__all__ = ["ONE_LAYER", "ONE_LAYER_BERT", "SHIPPED", "bert_arrays", "decoder_files", "one_layer_file", "widened"]


def decoder_files(quantized: str | None = None, seed: int = 0) -> DecoderFiles:
    """A random Llama of one layer, with its matrices in a GGUF type if one is given."""
    file = gguf_file(llama_arrays(ONE_LAYER, seed))
    if quantized is not None:
        file.quantize(quantized, ONE_LAYER.layers)
    return DecoderFiles(Path("tiny"), ONE_LAYER, file, lambda: None)


def one_layer_file(path: Path, type: str | None = None) -> Path:
    """The shipped model without its later layers; with `type` F32 as floats."""
    with open_gguf(SHIPPED) as file:
        metadata = dict(file.metadata.typed())
        count = metadata["llama.block_count"]
        metadata["llama.block_count"] = count._replace(value=1)
        kept = [t for t in file.tensors.values() if not t.name.startswith("blk.") or t.name.startswith("blk.0.")]
        tensors = {t.name: np.asarray(t.array(), np.float32) if type == "F32" else t for t in kept}
        write_gguf(path, metadata, tensors)
    return path


def widened(graph: Graph) -> Graph:
    """The same program in f64."""
    wide = Graph(graph.name)
    ids = {}
    for node in graph.nodes:
        op = node.op
        if isinstance(op, Input):
            dtype = DType.F64 if op.type.dtype is DType.F32 else op.type.dtype
            made = wide.input(op.key, op.type.dims, dtype)
        elif isinstance(op, Constant):
            value = op.value.array
            made = wide.constant(value.astype(np.float64) if value.dtype == np.float32 else value)
        else:
            if isinstance(op, Cast) and op.dtype is DType.F32:
                op = dataclasses.replace(op, dtype=DType.F64)
            made = wide.append(op, [ids[i] for i in node.inputs])
        ids[node.id] = made.id
    wide.set_outputs([ids[o] for o in graph.outputs])
    return wide
