"""The pieces of a `prepare` program make together what the whole makes, each from its own weights."""

import numpy as np
from hypothesis import given, settings

import rlx
from random_graphs import graphs, inputs_for
from rlx.backends.program.program import build_programs
from rlx.compile.compiler import CompilePipeline
from rlx.compile.memory.interpret import interpret_lir
from rlx.compile.weights.pieces import MAX_PIECES, prepare_pieces
from rlx.ir.graph import Graph

rng = np.random.default_rng(3)
WIDTH = 8


def layers(count, shares=False):
    """Each layer joins two weights of its own; with `shares`, one of them is that of the first layer."""
    g = Graph("layers")
    x, common = g.input("x", ("B", WIDTH)), g.param("common", (WIDTH, WIDTH))
    for i in range(count):
        a = common if shares else g.param(f"a{i}", (WIDTH, WIDTH))
        x = rlx.tanh(x @ rlx.concat([a, g.param(f"b{i}", (WIDTH, WIDTH))], 1))[:, :WIDTH]
    g.set_outputs([x @ common])
    return g


def compiled(graph):
    return CompilePipeline.new("cpu").compile(graph)


def weights_of(lir):
    return {n.op.key: rng.normal(size=n.shape.dims).astype(n.shape.dtype.numpy) for n in lir.as_graph().params}


def check_pieces(lir, pieces, values):
    wanted = interpret_lir(lir, values)
    assert sorted(n for piece in pieces for n in piece.outputs) == list(range(len(wanted)))
    assert sorted(k for piece in pieces for k in piece.lir.kernels) == sorted(lir.kernels)
    for piece in pieces:
        for number, found in zip(piece.outputs, interpret_lir(piece.lir, values), strict=True):
            np.testing.assert_array_equal(found, wanted[number])


def test_layers_are_pieces():
    lir = compiled(layers(5)).prepare
    pieces = prepare_pieces(lir, limit=1)
    assert [piece.outputs for piece in pieces] == [(i,) for i in range(len(lir.as_graph().outputs))]
    check_pieces(lir, pieces, weights_of(lir))


def test_small_layers_share_a_piece():
    lir = compiled(layers(6)).prepare
    # A layer reads two weights and makes as much of them.
    of_layer = 4 * WIDTH * WIDTH * 4
    for limit, wanted in ((2 * of_layer, 3), (3 * of_layer, 2), (10 * of_layer, 1)):
        pieces = prepare_pieces(lir, limit)
        assert len(pieces) == wanted
        check_pieces(lir, pieces, weights_of(lir))
    assert prepare_pieces(lir)[0].lir is lir


def test_there_are_never_too_many():
    pieces = prepare_pieces(compiled(layers(3 * MAX_PIECES)).prepare, limit=1)
    assert MAX_PIECES // 2 < len(pieces) <= MAX_PIECES


def test_a_weight_may_be_read_in_several_pieces():
    result = compiled(layers(3, shares=True))
    pieces = prepare_pieces(result.prepare, limit=1)
    assert len(pieces) >= 3
    check_pieces(result.prepare, pieces, weights_of(result.prepare))


def test_programs_ask_for_their_own_weights_only(monkeypatch):
    monkeypatch.setattr("rlx.compile.weights.pieces.prepare_pieces.__defaults__", (1,))
    result = compiled(layers(3))
    programs = build_programs(result)
    asked = [{leaf.name for leaf in p.program.params} for p in programs.prepare]
    assert {f"{n}{i}" for n in "ab" for i in range(3)} <= set().union(*asked)
    assert all(len(names) <= 2 for names in asked)
    assert tuple(name for p in programs.prepare for name in p.results) == result.prepared


@settings(max_examples=60)
@given(graphs())
def test_random_programs(graph):
    lir = compiled(graph).prepare
    if lir is not None:
        check_pieces(lir, prepare_pieces(lir, limit=1), inputs_for(graph))
