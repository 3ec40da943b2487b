"""Models are written in HIR blocks: what they are made of, and that lowering them changes no bit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from models.tiny_models import BERT, LLAMA, bert_arrays, encoder_weights, gguf_file, llama_arrays
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ir.module import HirModule
from rlx.models.decoder import _Decoder
from rlx.models.encoder import _Encoder

# What blocks stand for: none of these is in a module as a plain op.
INSIDE = {"matmul", "dequant_matmul", "attention", "rope", "rms_norm", "layer_norm", "silu", "gelu"}


def decoder(kv_dtype=DType.F32, config=LLAMA):
    made = _Decoder(config, gguf_file(llama_arrays(config)), kv_dtype, (), None)
    return made.graph, made.build().graph


def encoder():
    made = _Encoder(BERT, encoder_weights(bert_arrays(BERT)), (), None)
    return made.graph, made.build().graph


def kinds(graph):
    return Counter(node.op.mnemonic for node in graph.nodes)


@pytest.mark.parametrize("kv_dtype", [None, DType.F32, DType.I8], ids=str)
def test_a_decoder_is_made_of_blocks(kv_dtype):
    module, program = decoder(kv_dtype)
    assert isinstance(module, HirModule) and program.level == "mir"
    counts = kinds(module)
    per_layer = {"hir.linear": 7, "hir.rms_norm": 2, "hir.rope": 2, "hir.attention": 1, "hir.gated": 1}
    once = {"hir.linear": 1, "hir.rms_norm": 1}
    for kind, number in per_layer.items():
        assert counts[kind] == number * LLAMA.layers + once.get(kind, 0), kind
    assert not INSIDE & set(counts)
    assert not [node for node in program.nodes if node.op.is_block]


def test_an_encoder_is_made_of_blocks():
    module, program = encoder()
    counts = kinds(module)
    assert counts["hir.linear"] == 6 * BERT.layers and counts["hir.attention"] == BERT.layers
    assert counts["hir.layer_norm"] == 2 * BERT.layers + 1
    assert not (INSIDE - {"gelu"}) & set(counts)
    assert not [node for node in program.nodes if node.op.is_block]


def values(graph, **sizes):
    """Numbers for the leaves, the same for every graph with the same leaves."""
    source = np.random.default_rng(7)
    given = {"tokens": 50, "ids": 50, "positions": 4, "rows": 2, "kv_len": 5, "lengths": 3}
    found = {}
    for leaf in (*graph.inputs, *graph.params):
        name, shape = leaf.op.key, leaf.shape.bind(sizes)
        if shape.dtype.is_float:
            found[name] = source.normal(size=shape.dims).astype(shape.dtype.numpy)
        else:
            found[name] = source.integers(0, given[name], shape.dims).astype(shape.dtype.numpy)
    return found


@pytest.mark.parametrize("build", [decoder, encoder, lambda: decoder(config=replace(LLAMA, qk_norm=False))])
def test_lowering_changes_no_bit(build):
    module, program = build()
    sizes = {"B": 2, "S": 3, "C": 8, "R": 1}
    leaves = values(program, **sizes)
    for a, b in zip(interpret(module, leaves), interpret(program, leaves), strict=True):
        np.testing.assert_array_equal(a, b)


def test_reports_name_blocks_as_they_were_written():
    _, program = decoder()
    told = {(node.origin.scope, node.origin.written) for node in program.nodes if node.origin is not None}
    assert ("layer 0 / attention", "attention") in told and ("layer 1 / feed forward", "swiglu") in told
    assert ("layer 1 / attention", "rms_norm") in told and ("head", "linear") in told
