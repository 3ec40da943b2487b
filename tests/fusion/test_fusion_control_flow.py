"""Branches and loops as straight code: counts, values, nesting, and what must not be lowered."""

import numpy as np
import pytest
from fusion_programs import assert_same_values, program, values_of

import rlx
from rlx import ops
from rlx.compile.claims.fusion.control_flow import STRAIGHT_FORMS
from rlx.errors import OpError
from rlx.fusion import LowerControlFlow, inline_if, unroll_while
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.text.pretty import kind_counts
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import If, While


def body(build, **inputs):
    return build_body("body", build, **{k: Shape(d, "f64") for k, d in inputs.items()})


def count(graph, mnemonic):
    return sum(n.op.mnemonic == mnemonic for n in graph.nodes)


def loop(rounds, carries=1, limit=20.0):
    """Squares every carry as long as the first is below the limit."""
    names = [f"x{i}" for i in range(carries)]

    def build(g):
        xs = [g.input(n, (3,), "f64") for n in names]
        cond = body(lambda *c: ops.reduce_max(c[0]) < limit, **dict.fromkeys(names, (3,)))
        step = body(lambda *c: tuple(x * x for x in c), **dict.fromkeys(names, (3,)))
        results = While(cond, step, rounds)(*xs)
        return list(results) if carries > 1 else results

    return program("loop", build)


def test_every_op_that_says_so_has_a_straight_form():
    assert set(STRAIGHT_FORMS) == {kind for kind, cls in OP_CLASSES.items() if cls.has_straight_form}


def test_counts_of_the_specification():
    def build(g):
        x, p = g.input("x", (3,), "f64"), g.input("p", (), "bool")
        y = If(body(lambda v: v + v, v=(3,)), body(lambda v: -v, v=(3,)))(p, x)
        return While(body(lambda v: ops.reduce_max(v) < 20.0, v=(3,)), body(lambda v: v * v, v=(3,)), 2)(y)

    graph = program("both", build)
    after = LowerControlFlow().run(graph)
    assert (count(after, "where"), count(after, "mul")) == (3, 4)
    for p in (False, True):
        for scale in (1.0, 3.0):
            values = {"x": np.array([1.0, 2.0, -0.5]) * scale, "p": np.array(p)}
            np.testing.assert_array_equal(interpret(after, values)[0], interpret(graph, values)[0])
    assert LowerControlFlow().run(after) is after


def test_all_carries_of_a_loop():
    graph = loop(3, carries=2)
    after = unroll_while(graph)
    assert (count(after, "where"), count(after, "while")) == (6, 0)
    for scale in (0.5, 2.0, 5.0):
        values = {k: scale * (1 + np.abs(v)) for k, v in values_of(graph).items()}
        for want, got in zip(interpret(graph, values), interpret(after, values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_loop_that_never_runs_gives_what_it_got():
    graph = loop(0)
    assert kind_counts(unroll_while(graph)) == {"Input": 1, "Constant": 1}
    assert_same_values(graph, unroll_while(graph))


@pytest.mark.parametrize("dims", [(), (1,), (3,), (0,)])
@pytest.mark.parametrize("dtype", ["f32", "i32", "bool"])
def test_conditions_of_any_type_and_shape(dtype, dims):
    """A loop goes on while all elements of its condition are not 0; nothing at all counts as all."""
    carry, flags = Shape((3,), "f64"), Shape(dims, dtype)
    cond = build_body("cond", lambda x, c: c, x=carry, c=flags)
    step = build_body("step", lambda x, c: x + 1.0, x=carry, c=flags)
    graph = program("flags", lambda g: While(cond, step, 2, 1)(g.input("x", carry), g.input("c", flags)))
    after = unroll_while(graph)
    for first in (0, 1):
        c = np.ones(dims, flags.dtype.numpy)
        if c.size:
            c.reshape(-1)[0] = first
        values = {"x": np.zeros(3), "c": c}
        np.testing.assert_array_equal(interpret(after, values)[0], interpret(graph, values)[0])


def test_several_results_and_a_predicate_of_rank_1():
    def build(g):
        x, p = g.input("x", (3,), "f64"), g.input("p", (1,), "f64")
        return list(If(body(lambda v: (v + v, v < 0.0), v=(3,)), body(lambda v: (-v, v > 0.0), v=(3,)))(p, x))

    graph = program("pair", build)
    after = inline_if(graph)
    assert count(after, "where") == 2 and count(after, "if") == 0
    for p in (0.0, 0.25):
        values = {"x": np.array([1.0, -2.0, 0.5]), "p": np.array([p])}
        for want, got in zip(interpret(graph, values), interpret(after, values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_nested_flow_is_lowered_at_every_depth():
    def choose(v):
        return rlx.cond(
            ops.reduce_sum(v) > 0.0,
            lambda u: u * 0.5,
            lambda u: rlx.while_loop(lambda w: ops.reduce_sum(w) < 1.0, lambda w: w + 1.0, u, max_iterations=3),
            v,
        )

    def build(g):
        x = g.input("x", (2,), "f64")
        y = rlx.while_loop(lambda v: ops.reduce_max(v) < 4.0, choose, x, max_iterations=2)
        _, ys = rlx.scan(lambda c, v: (c, choose(v)), ops.zeros((), "f64"), ops.stack([y, -y]))
        return [y, ys]

    graph = program("nested", build)
    after = LowerControlFlow().run(graph)
    assert not any(isinstance(n.op, If | While) for g in (after, *all_bodies(after)) for n in g.nodes)
    for seed in range(4):
        values = values_of(graph, seed=seed)
        for want, got in zip(interpret(graph, values), interpret(after, values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_symbolic_sizes():
    def build(g):
        x, p = g.input("x", ("B", 2), "f64"), g.input("p", (), "bool")
        return rlx.cond(p, lambda v: v + 1.0, lambda v: v * 2.0, x)

    graph = program("symbolic", build)
    after = inline_if(graph)
    assert_same_values(graph, after, {"B": 3})


def test_loops_without_bound_cannot_be_unrolled():
    graph = loop(None)
    with pytest.raises(OpError, match=r"unroll_while: the loop %\d+ \(body @body\) has no max_iterations.*run_while"):
        unroll_while(graph)
    assert LowerControlFlow().run(graph) is graph


def test_effects_happen_only_where_they_should():
    g = Graph("loud")
    with building(g):
        x, p = g.input("x", (2,), "f64"), g.input("p", (), "bool")
        y = rlx.cond(p, lambda v: ops.debug_print("chosen {}", v), lambda v: v, x)
        z = rlx.while_loop(lambda v: v[0] < 4.0, lambda v: ops.debug_print("round {}", v) + 1.0, y, max_iterations=3)
    g.set_outputs([z])
    assert inline_if(g) is g and LowerControlFlow().run(g) is g
    with pytest.raises(OpError, match="has an effect, which must not happen after its last round"):
        unroll_while(g)


def test_a_branch_that_may_not_end_stays_a_branch():
    def build(g):
        x, p = g.input("x", (), "f64"), g.input("p", (), "bool")
        return rlx.cond(p, lambda v: rlx.while_loop(lambda w: w < 8.0, lambda w: w * 2.0, v), lambda v: v, x)

    graph = program("endless", build)
    after = inline_if(graph)
    assert after is graph
    assert interpret(after, {"x": np.array(0.0), "p": np.array(False)})[0] == 0.0


def test_kept_kinds():
    def build(g):
        x, p = g.input("x", (3,), "f64"), g.input("p", (), "bool")
        y = rlx.cond(p, lambda v: v + 1.0, lambda v: v * 2.0, x)
        return rlx.while_loop(lambda v: v[0] < 1.0, lambda v: v + 1.0, y, max_iterations=1)

    graph = program("kept", build)
    assert LowerControlFlow(keep=("If", "While")).run(graph) is graph
    assert {"If", "While"} & set(kind_counts(LowerControlFlow(keep=("While",)).run(graph))) == {"While"}
    assert {"If", "While"} & set(kind_counts(LowerControlFlow(keep=("If",)).run(graph))) == {"If"}
