"""What follows from weights alone is computed once: the two programs together mean what the one did."""

import numpy as np
import pytest
from hypothesis import given, settings

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx.compile.weights.split import split_prepare
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all

relaxed = settings(max_examples=60)


def run_both(programs, values, binding=None):
    """The outputs of `main` with what `prepare` made of the weights."""
    leaves = dict(values)
    if programs.prepare is not None:
        leaves |= dict(zip(programs.prepared, interpret(programs.prepare, values), strict=True))
    return interpret(programs.main, leaves, binding)


def mnemonics(graph):
    return [n.op.mnemonic for n in graph.nodes if not n.is_leaf]


def keys(nodes):
    return [n.op.key for n in nodes]


def two_projections():
    g = Graph("joined")
    x, w0, w1 = g.input("x", ("B", 4)), g.param("w0", (4, 3)), g.param("w1", (4, 5))
    g.set_outputs([x @ g.concat_([w0, w1], 1)])
    return g


def test_joined_weights_are_joined_once():
    main, prepare, prepared = split_prepare(two_projections())
    assert mnemonics(prepare) == ["concat"]
    assert keys(prepare.params) == ["w0", "w1"]
    assert mnemonics(main) == ["matmul"]
    assert keys(main.params) == list(prepared) == ["prepared.0"]
    assert keys(main.inputs) == ["x"]


@relaxed
@given(graphs())
def test_random_graphs_keep_their_meaning(graph):
    values = inputs_for(graph)
    programs = split_prepare(graph)
    for part in (p for p in programs[:2] if p is not None):
        assert verify_all(part) == []
    for a, b in zip(interpret(graph, values, BINDING), run_both(programs, values, BINDING), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_program_without_such_values_stays_as_it_is():
    g = Graph("plain")
    x, w = g.input("x", (2, 4)), g.param("w", (4, 3))
    g.set_outputs([rlx.relu(x @ w)])
    assert split_prepare(g).main is g
    assert split_prepare(g).prepare is None


def test_values_that_would_only_take_memory_are_not_kept():
    g = Graph("free")
    x, w, b = g.input("x", (2, 3, 4)), g.param("w", (4, 4)), g.param("b", (4,))
    wide = g.expand(b, (2, 3, 4))
    flat = w.reshape((16,))
    g.set_outputs([x + wide, flat, g.input("n", ("B",)) + g.expand(g.param("c", (1,)), ("B",))])
    assert split_prepare(g).prepare is None


def test_what_both_programs_need_is_computed_in_both():
    g = Graph("both")
    x, w = g.input("x", (2, 6)), g.param("w", (4, 3))
    rows = w.reshape((2, 6))
    g.set_outputs([x + rows, x * rlx.exp(rows)])
    main, prepare, _ = programs = split_prepare(g)
    assert mnemonics(main).count("reshape") == mnemonics(prepare).count("reshape") == 1
    assert "exp" in mnemonics(prepare)
    values = {"x": np.ones((2, 6), "f4"), "w": np.arange(12, dtype="f4").reshape(4, 3)}
    for a, b in zip(interpret(g, values), run_both(programs, values), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_weight_is_not_kept_twice(tied):
    g = Graph("tied")
    ids, x, w = g.input("ids", (3,), "i32"), g.input("x", (3, 4)), g.param("w", (8, 4))
    logits = x @ rlx.transpose(w, (1, 0))
    g.set_outputs([logits, rlx.gather(w, ids, 0)] if tied else [logits])
    assert (split_prepare(g).prepare is None) == tied


def test_several_results_effects_and_outputs():
    g = Graph("mixed")
    x, w = g.input("x", (3, 3)), g.param("w", (3, 3))
    q, r = rlx.qr(w)
    g.set_outputs([x @ q, r, w])
    programs = split_prepare(g)
    assert len(programs.prepared) == 2
    values = {"x": np.eye(3, dtype="f4"), "w": np.arange(9, dtype="f4").reshape(3, 3) ** 2}
    for a, b in zip(interpret(g, values), run_both(programs, values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_names_and_unread_weights_survive():
    g = two_projections()
    g.param("spare", (2,))
    g.param("prepared.7", (2,))
    programs = split_prepare(g)
    assert programs.prepared == ("prepared_.0",)
    assert set(keys(programs.main.params)) == {"prepared_.0", "spare", "prepared.7"}
    source = programs.main.leaf("prepared_.0").origin.source
    assert source.file == __file__
