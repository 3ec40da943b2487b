"""Every rule fires on its own left side, keeps every bit if it says so, and leaves alone what it must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import mnemonics, run_and_check, same_bits

from random_graphs import BINDING, STEPS, floats, graphs, inputs_for
from rlx import ops
from rlx.compile.simplify.algebra import CANONICAL, AlgebraicSimplify, holds_every
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rules import apply_rules
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ops.control.bodies import build_body

INEXACT = AlgebraicSimplify(exact=False)
EXACT = AlgebraicSimplify()
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -1.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e4, 1e38, -1e38]
FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("i8", "u8", "i32", "u32", "i64")


def special(dtype):
    """Values at which identities break: signed zeros, infinities, NaN, denormals, the ends of integer types."""
    kind = DType.of(dtype)
    if kind is DType.BOOL:
        return np.array([False, True] * 8)
    if kind.is_int:
        info = np.iinfo(kind.numpy)
        return np.array([info.min, info.max, 0, 1, 2, 3, 100, info.max - 1] * 2).astype(kind.numpy)
    with np.errstate(all="ignore"):
        if kind.is_complex:
            real = np.array(SPECIAL)
            return (real + 1j * np.roll(real, 3)).astype(kind.numpy)
        return np.array(SPECIAL).astype(kind.numpy)


def graph_of(build, *dtypes, dims=(16,)):
    graph = Graph("left_side")
    with building(graph):
        graph.set_outputs([build(*(graph.input(f"x{i}", dims, d) for i, d in enumerate(dtypes)))])
    return graph


def fired(graph, rules=CANONICAL):
    return dict(apply_rules(graph, rules).fired)


def const(value, dtype):
    return np.asarray(value).astype(DType.of(dtype).numpy)


def with_const(kind, value, left=False):
    """x op c (or c op x) for every dtype the test asks for."""

    def build(x):
        c = const(value, x.dtype)
        return ops.binary(kind, c, x) if left else ops.binary(kind, x, c)

    return build


# rule, left side, dtypes, mnemonics that remain
EXACT_CASES = [
    ("drop_neutral_element", with_const("mul", 1), (*FLOATS, *INTS), []),
    ("drop_neutral_element", with_const("div", 1), (*FLOATS, *INTS), []),
    ("drop_neutral_element", with_const("pow", 1), (*FLOATS, *INTS), []),
    ("drop_neutral_element", with_const("sub", 0), (*FLOATS, *INTS, "c64"), []),
    ("drop_neutral_element", with_const("add", -0.0), FLOATS, []),
    ("drop_neutral_element", with_const("add", 0), INTS, []),
    ("drop_neutral_element", with_const("or", 0), (*INTS, "bool"), []),
    ("drop_neutral_element", with_const("xor", 0), (*INTS, "bool"), []),
    ("drop_neutral_element", with_const("and", -1), (*INTS, "bool"), []),
    ("drop_neutral_element", lambda x: x * np.ones(16, "f4"), ("f32",), []),
    ("constant_on_the_right", with_const("add", 3, left=True), (*FLOATS, *INTS), ["add"]),
    ("constant_on_the_right", with_const("mul", 3, left=True), (*FLOATS, *INTS, "c64"), ["mul"]),
    ("constant_on_the_right", with_const("max", 1, left=True), (*FLOATS, *INTS), ["max"]),
    ("constant_on_the_right", with_const("max", 0, left=True), (*INTS, "bool"), ["max"]),
    ("constant_on_the_right", with_const("xor", 3, left=True), INTS, ["xor"]),
    ("constant_on_the_right", lambda x: ops.lt(const(1, x.dtype), x), (*FLOATS, *INTS), ["gt"]),
    ("constant_on_the_right", lambda x: ops.ge(const(1, x.dtype), x), (*FLOATS, *INTS), ["le"]),
    ("constant_on_the_right", lambda x: ops.ne(const(1, x.dtype), x), (*FLOATS, *INTS), ["ne"]),
    ("square_instead_of_power", with_const("pow", 2), ("f16", "bf16", "f32", *INTS), ["mul"]),
    ("multiply_instead_of_divide", with_const("div", 4), FLOATS, ["mul"]),
    ("multiply_instead_of_divide", with_const("div", -0.125), FLOATS, ["mul"]),
    ("add_instead_of_subtracting_negation", lambda x: x - ops.neg(ops.sin(x)), FLOATS, ["sin", "add"]),
    ("add_instead_of_subtracting_negation", lambda x: x + ops.neg(x), (*FLOATS, *INTS, "c64"), ["sub"]),
    ("add_instead_of_subtracting_negation", lambda x: ops.neg(x) + ops.abs_(x), (*FLOATS, "i32"), ["abs", "sub"]),
    ("idempotent_pair", lambda x: ops.maximum(x, x), (*FLOATS, *INTS), []),
    ("idempotent_pair", lambda x: ops.minimum(x, x), (*FLOATS, *INTS), []),
    ("idempotent_pair", lambda x: ops.and_(x, x), (*INTS, "bool"), []),
    ("idempotent_pair", lambda x: ops.or_(x, x), (*INTS, "bool"), []),
    ("repeated_activation", lambda x: ops.neg(ops.neg(x)), (*FLOATS, *INTS, "c64"), []),
    *(
        ("repeated_activation", lambda x, k=k: ops.activation(k, ops.activation(k, x)), (*FLOATS, *INTS), [k])
        for k in ("abs", "relu", "floor", "ceil", "trunc", "round", "sign")
    ),
    ("cancel_reverses", lambda x: ops.reverse(ops.reverse(x, (-1,)), (0,)), ("f32", "i8"), []),
    ("cancel_reverses", lambda x: ops.reverse(x, ()), ("f32",), []),
    ("merge_reshapes", lambda x: ops.reshape(ops.reshape(x, (4, 4)), (2, 8)), ("f32",), ["reshape"]),
    ("merge_reshapes", lambda x: ops.Reshape((16,))(x), ("f32",), []),
    ("merge_reshapes", lambda x: ops.Expand((16,))(x), ("f32",), []),
    ("merge_reshapes", lambda x: ops.Expand((2, 3, 16))(ops.Expand((3, 16))(x)), ("f32",), ["expand"]),
    ("merge_transposes", lambda x: ops.Transpose((0,))(x), ("f32",), []),
    ("drop_whole_selection", lambda x: ops.Narrow(0, 0, 16)(x), ("f32",), []),
    ("drop_whole_selection", lambda x: ops.Slice((0,), (16,), (1,))(x), ("f32",), []),
    ("drop_whole_selection", lambda x: ops.Concat(0)(x), ("f32",), []),
    ("drop_whole_selection", lambda x: ops.Pad((0,), (0,), (0,))(x, const(7, x.dtype)), ("f32",), []),
    ("drop_whole_selection", lambda x: ops.Reduce("sum", ())(x), ("f32",), []),
    ("merge_casts", lambda x: ops.Cast(x.dtype)(x), FLOATS, []),
    ("merge_casts", lambda x: ops.cast(ops.cast(x, "f64"), x.dtype), ("f16", "bf16", "f32", "i32", "bool"), []),
    ("merge_casts", lambda x: ops.cast(ops.cast(x, "f32"), "f64"), ("f16", "bf16", "i8"), ["cast"]),
    ("merge_casts", lambda x: ops.cast(ops.cast(x, "i32"), "i8"), ("u8",), ["cast"]),
    ("merge_casts", lambda x: ops.cast(ops.cast(x, "c64"), "f32"), ("f32",), []),
    ("known_choice", lambda x: ops.where(ops.gt(x, x), x, x), ("f32", "i8"), []),
    ("known_choice", lambda x: ops.where(np.array([True]), x, ops.sin(x)), FLOATS, []),
    ("known_choice", lambda x: ops.where(np.zeros(16, "i4"), ops.sin(x), x), FLOATS, []),
    ("read_through_expand", lambda x: x * ops.expand(const(3, x.dtype), (16,)), FLOATS, ["mul"]),
    ("read_through_expand", lambda x: ops.lt(x, ops.expand(const([3], x.dtype), (16,))), FLOATS, ["lt"]),
    ("read_through_expand", lambda x: ops.expand(ops.reduce_sum(x), (16,)) - x, ("f32",), ["reduce_sum", "sub"]),
    ("expand_last", lambda x: x + ops.sin(ops.expand(const(3, x.dtype), (16,))), FLOATS, ["sin", "add"]),
]


@pytest.mark.parametrize(
    ("rule", "build", "dtype", "left"),
    [
        pytest.param(rule, build, d, left, id=f"{rule}-{i}-{d}")
        for i, (rule, build, dtypes, left) in enumerate(EXACT_CASES)
        for d in dtypes
    ],
)
def test_exact_rule_fires_and_keeps_every_bit(rule, build, dtype, left):
    graph = graph_of(build, dtype)
    assert rule in fired(graph, CANONICAL.exact())
    after = run_and_check(graph, EXACT, [special(dtype)])
    assert mnemonics(after) == left


def test_transposes_merge_into_one():
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    graph = graph_of(lambda t: ops.transpose(ops.transpose(t, (2, 0, 1)), (1, 0, 2)), "f32", dims=(2, 3, 4))
    after = run_and_check(graph, EXACT, [x])
    assert [n.op for n in after.nodes[1:]] == [ops.Transpose((0, 2, 1))]


INEXACT_CASES = [
    ("drop_added_zero", with_const("add", 0), [-0.0], [0.0], [-0.0]),
    ("drop_product_with_zero", with_const("mul", 0), [np.inf], [np.nan], [0.0]),
    # NumPy takes the root itself when the exponent is one number.
    ("root_instead_of_power", lambda x: ops.pow_(x, np.full(4, 0.5, "f4")), [-np.inf], [np.inf], [np.nan]),
    ("cancel_exp_and_log", lambda x: ops.exp(ops.log(x)), [-1.0], [np.nan], [-1.0]),
    ("cancel_exp_and_log", lambda x: ops.log(ops.exp(x)), [1000.0], [np.inf], [1000.0]),
]


@pytest.mark.parametrize(("rule", "build", "at", "before", "after"), INEXACT_CASES)
def test_inexact_rule_is_off_by_default_and_says_what_it_changes(rule, build, at, before, after):
    graph = graph_of(build, "f32", dims=(4,))
    at, before, after = (np.array(v * 4, "f4") for v in (at, before, after))
    assert same_bits(interpret(EXACT.run(graph), [at])[0], before)
    assert rule in fired(graph)
    simpler = INEXACT.run(graph)
    assert same_bits(interpret(simpler, [at])[0], after)
    usual = np.array([0.75, 0.5, 2.5, 3.5], "f4")
    np.testing.assert_allclose(interpret(graph, [usual])[0], interpret(simpler, [usual])[0], rtol=2e-7)
    assert INEXACT.run(simpler) is simpler


def test_power_in_f64_is_left_to_the_inexact_rule():
    exponents = np.full(16, 2.0)
    graph = graph_of(lambda x: ops.pow_(x, exponents), "f64")
    assert mnemonics(EXACT.run(graph)) == ["pow"]
    assert mnemonics(INEXACT.run(graph)) == ["mul"]


@pytest.mark.parametrize(
    ("build", "dtype", "why"),
    [
        (with_const("add", 0), "f32", "-0.0 + 0.0 is 0.0"),
        (with_const("sub", -0.0), "f32", "-0.0 - -0.0 is 0.0"),
        (with_const("mul", 1), "c64", "inf * (1 + 0j) has a NaN part"),
        (with_const("div", 1), "c64", "inf / (1 + 0j) has a NaN part"),
        (with_const("max", 0, left=True), "f32", "of 0.0 and -0.0 the second operand is taken"),
        (with_const("sub", 3, left=True), "f32", "subtraction does not commute"),
        (with_const("div", 3), "f32", "1/3 is rounded"),
        (with_const("div", 2.0**-128), "f32", "the reciprocal overflows"),
        (with_const("div", 2.0**127), "f32", "the reciprocal is denormal"),
        (with_const("div", 4), "i32", "integers have no reciprocal"),
        (lambda x: ops.neg(x) - x, "f32", "there is no form with fewer ops"),
        (lambda x: ops.cast(ops.cast(x, "f16"), "f32"), "f32", "the user asked for rounding"),
        (lambda x: ops.cast(ops.cast(x, "f32"), "u8"), "i8", "saturates where a direct cast wraps"),
        (lambda x: ops.cast(ops.cast(x, "f32"), "i32"), "i32", "f32 does not hold every i32"),
        (lambda x: ops.reverse(ops.reverse(ops.reshape(x, (4, 4)), (0,)), (1,)), "f32", "other axes"),
        (lambda x: ops.Slice((0,), (16,), (2,))(x), "f32", "every second element"),
        (lambda x: ops.tanh(ops.tanh(x)), "f32", "not a projection"),
        (lambda x: ops.where(np.array([True, False] * 8), x, ops.sin(x)), "f32", "both are chosen somewhere"),
        (lambda x: x * np.where(np.arange(16) == 3, 2, 1).astype("f4"), "f32", "one element is not 1"),
    ],
)
def test_what_looks_alike_is_left_alone(build, dtype, why):
    graph = graph_of(build, dtype)
    assert EXACT.run(graph) is graph, why


def test_an_operand_that_is_broadcast_is_not_the_result():
    graph = graph_of(lambda x: x * np.ones((3, 1), "f4"), "f32")
    result = apply_rules(graph, CANONICAL.exact())
    assert result.graph is graph
    (miss,) = result.misses
    assert (miss.rule, miss.reason) == ("drop_neutral_element", "broadcasts")
    assert miss.detail == "the operand is f32[16], the result f32[3,16]"


def test_an_expand_that_makes_the_shape_stays():
    graph = graph_of(lambda x: ops.reduce_sum(x) * ops.expand(const(3, "f32"), (16,)), "f32")
    assert EXACT.run(graph) is graph


@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 3.0])
def test_an_expanded_exponent_is_read_as_it_is(exponent):
    """Whether there is one exponent or many equal ones must not show in any bit."""
    graph = graph_of(lambda x: ops.pow_(x, ops.expand(const(exponent, "f64"), (2000,))), "f64", dims=(2000,))
    x = np.random.default_rng(0).normal(size=2000)
    x[: len(SPECIAL)] = SPECIAL
    after = run_and_check(graph, EXACT, [x])
    assert mnemonics(after) == ["pow"]


def test_an_empty_constant_is_filled_with_nothing():
    graph = graph_of(lambda x: x * np.ones((0,), "f4"), "f32", dims=(0,))
    assert EXACT.run(graph) is graph


def test_symbolic_sizes():
    graph = Graph("symbolic")
    with building(graph):
        x = graph.input("x", ("B", "S"), "f32")
        flat = ops.reshape(ops.reshape(x, (-1,)), ("B", "S"))
        graph.set_outputs([ops.narrow(flat, 0, 0, x.shape[0]) * ops.expand(const(1, "f32"), x.shape)])
    after = run_and_check(graph, EXACT, [np.ones((2, 3), "f4")])
    assert mnemonics(after) == []


def test_bodies_are_simplified_too():
    body = build_body("body", lambda v: ops.neg(ops.neg(v)) * 1.0, v=Shape((2,), "f32"))
    graph = Graph("outer")
    x = graph.input("x", (2,), "f32")
    graph.set_outputs([ops.If(body, body)(ops.gt(ops.reduce_sum(x), 0.0), x)])
    after = run_and_check(graph, EXACT, [np.ones(2, "f4")])
    (branch,) = (n.op for n in after.nodes if isinstance(n.op, ops.If))
    assert len(branch.then_body) == 1


def test_names_and_aliases_survive():
    graph = Graph("state")
    x = graph.input("x", (2,), "f32")
    y = (ops.sin(x) * 1.0).named("y")
    graph.set_outputs([y])
    graph.alias(y, "x")
    after = EXACT.run(graph)
    assert after.aliases == {0: "x"}
    assert after.nodes[0].name == "x"


@pytest.mark.parametrize("to", [d for d in DType if not d.is_storage and d is not DType.BF16], ids=str)
def test_holds_every_agrees_with_numpy(to):
    """NumPy's safe casts, except that it takes 64-bit integers into f64."""
    for source in DType:
        if source.is_storage or source is DType.BF16:
            continue
        rounds = source in (DType.I64, DType.U64) and not to.is_int
        assert holds_every(to, source) == (np.can_cast(source.numpy, to.numpy, "safe") and not rounds), source


@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64", "c64"])
@pytest.mark.parametrize("source", ["f8e4m3", "f8e5m2", "f4e2m1", "bf16", "f16", "i8", "u8", "i4", "u4", "i16"])
def test_holds_every_agrees_with_a_round_trip_of_all_values(source, to):
    source, to = DType.of(source), DType.of(to)
    count = 16 if source.value[1] == "4" else 2 ** (8 * source.size_bytes)
    values = np.arange(count).astype(f"u{source.size_bytes}").view(source.numpy)
    with np.errstate(all="ignore"):
        there = values.astype(np.float32).astype(to.numpy)
        back = (there.real if to.is_complex else there).astype(np.float32).astype(source.numpy)
        kept = np.array_equal(values.astype(np.float64), back.astype(np.float64), equal_nan=True)
    assert holds_every(to, source) == kept


def neutral_step(draw, values):
    """x op c or c op x, where c is a number that some rule looks for, written out or expanded."""
    x = draw(st.sampled_from(floats(values)))
    c = x.graph.constant(draw(st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, np.inf])), x.dtype)
    c = ops.expand(c, x.shape) if draw(st.booleans()) else c
    kind = draw(st.sampled_from(["add", "sub", "mul", "div", "pow", "max", "min"]))
    return ops.binary(kind, *((x, c) if draw(st.booleans()) else (c, x)))


def undone_step(draw, values):
    """Something and its inverse, or the same thing twice."""
    x = draw(st.sampled_from(floats(values)))
    kind = draw(st.sampled_from(["neg", "abs", "relu", "round", "cast", "flatten"]))
    if kind == "cast":
        return ops.cast(ops.cast(x, draw(st.sampled_from(["f64", "f32", "f16", "bf16"]))), x.dtype)
    if kind == "flatten":
        return ops.reshape(ops.reshape(x, (x.size,)), x.shape)
    return ops.activation(kind, ops.activation(kind, x))


@settings(max_examples=100)
@given(graphs(steps=(*STEPS, *[(neutral_step, floats), (undone_step, floats)] * 4)))
def test_random_graphs_keep_their_bits(graph):
    run_and_check(graph, EXACT, inputs_for(graph), BINDING)


def test_every_rule_is_tested():
    tested = {rule for rule, *_ in EXACT_CASES} | {rule for rule, *_ in INEXACT_CASES}
    assert {r.name for r in CANONICAL.rules} == tested | {"square_instead_of_f64_power"}
    assert {r.name for r in CANONICAL.rules if r.exact} == {rule for rule, *_ in EXACT_CASES}
