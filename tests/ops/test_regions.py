"""Regions: the text of chains, what they compute, and how inputs are read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx import ops
from rlx.compile.claims.region_encode import encode_chain_steps
from rlx.errors import OpError
from rlx.ir.graph import Graph
from rlx.ir.text.graph_text import parse, show
from rlx.ops import Chain, ChainOperand, ChainStep, TransformStep

rng = np.random.default_rng(15)
TUPLES = (("binary", "add", ("input", 0), ("input", 1)), ("activation", "tanh", ("step", 0)))


def test_chains_are_written_as_text_or_tuples():
    chain = Chain.of("add(i0, i1); tanh(s0)")
    assert chain == Chain.of(TUPLES) == Chain.of(chain)
    assert chain.steps == TUPLES
    assert str(chain) == "add(i0,i1);tanh(s0)"
    assert hash(chain) == hash(Chain.of(TUPLES))
    assert (len(chain), chain.input_count) == (2, 2)
    with pytest.raises(AttributeError):
        chain.steps = ()


def test_constructors_of_steps():
    read, step = ChainOperand.Input, ChainOperand.Step
    chain = Chain(
        [
            ChainStep.Compare("lt", read(0), read(1)),
            ChainStep.Where(step(0), read(0), read(1)),
            ChainStep.Cast("f16", step(1)),
            ChainStep.Activation("gelu", step(2)),
            ChainStep.Binary("mul", step(3), step(2)),
        ]
    )
    assert str(chain) == "lt(i0,i1);where(s0,i0,i1);cast_f16(s1);gelu(s2);mul(s3,s2)"
    assert str(Chain([TransformStep.ResizeNearest2x(read(0))])) == "resize_nearest_2x(i0)"


_KINDS = {"binary": st.sampled_from(["add", "max", "pow"]), "activation": st.sampled_from(["gelu", "exp", "erf_inv"])}


@st.composite
def chains(draw):
    steps = []
    for i in range(draw(st.integers(1, 6))):
        operand = st.tuples(st.just("input"), st.integers(0, 20))
        if i:
            operand = operand | st.tuples(st.just("step"), st.integers(0, i - 1))
        kind = draw(st.sampled_from(["binary", "activation", "where", "cast", "compare"]))
        if kind == "where":
            steps.append(("where", draw(operand), draw(operand), draw(operand)))
            continue
        names = {"cast": st.sampled_from(["f16", "bf16", "i32"]), "compare": st.sampled_from(["eq", "le"])} | _KINDS
        count = 2 if kind in ("binary", "compare") else 1
        steps.append((kind, draw(names[kind]), *(draw(operand) for _ in range(count))))
    return Chain(steps)


@given(chains())
def test_text_round_trip(chain):
    assert Chain.of(str(chain)) == chain


def test_chains_encode_for_devices():
    words = encode_chain_steps(list(Chain.of("mul(i0,i1);relu(s0)"))).reshape(-1, 4)
    assert words[:2].tolist() == [[2, 2, 0, 1], [0, 3, 0x80000000, 0]]


def test_region_in_a_program_round_trips():
    graph = Graph("g")
    x = graph.input("x", ("B", 4), "f32")
    graph.set_outputs([ops.ElementwiseRegion("add(i0,i0);gelu(s0)", 0, (0, 4))(x)])
    assert 'chain="add(i0,i0);gelu(s0)"' in show(graph)
    assert parse(show(graph)) == graph


def test_inputs_are_read_whole_in_turn_or_as_scalars():
    x, row = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 4))
    scalar, pair = np.array([2.0]), np.array([1.0, -1.0])
    region = ops.ElementwiseRegion("mul(i0,i2);add(s0,i1);add(s1,i3)", 0b100, (0, 12, 0, 2))
    got = region.eval(x, row, scalar, pair)
    flat = x.ravel()
    expected = [flat[e] * 2.0 + row.ravel()[e % 12] + pair[e % 2] for e in range(24)]
    np.testing.assert_allclose(got.ravel(), expected)


def test_steps_keep_their_dtypes():
    x = np.array([1.5, -2.5], np.float32)
    got = ops.ElementwiseRegion("lt(i0,i1);cast_i32(s0)")(x, np.zeros(2, np.float32))
    assert got.dtype == np.int32
    assert got.tolist() == [0, 1]


def test_prologue_reads_at_half_resolution():
    half, full = rng.standard_normal((1, 2, 2, 3)), rng.standard_normal((1, 2, 4, 6))
    region = ops.ElementwiseRegion("sub(i0,i1)", prologue="resize_nearest_2x", prologue_input=1)
    np.testing.assert_array_equal(region(full, half), full - half.repeat(2, 2).repeat(2, 3))


def test_transform_region_chains_resizes():
    x = rng.standard_normal((1, 1, 2, 2))
    got = ops.TransformRegion("resize_nearest_2x(i0);resize_nearest_2x(s0)")(x)
    np.testing.assert_array_equal(got, np.kron(x, np.ones((1, 1, 4, 4))))


def test_batch_region_joins_slices():
    slices = [rng.standard_normal((1, 3)) for _ in range(4)]
    got = ops.BatchElementwiseRegion("exp(i0);mul(s0,i0)", 4)(*slices)
    stacked = np.concatenate(slices)
    np.testing.assert_allclose(got, np.exp(stacked) * stacked)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("", "is not a step"),
        ("frobnicate(i0)", "'frobnicate\\(i0\\)' is not a step; write steps like"),
        ("add(i0)", "binary takes 2 operands, step 0 has 1"),
        ("neg(s0)", "step 0 cannot read \\('step', 0\\)"),
        ("neg(x0)", "is not a step"),
        ([("binary", "gelu", ("input", 0), ("input", 1))], "is not a step; the kinds are"),
        ([], "at least one step"),
    ],
)
def test_wrong_chains_are_refused(steps, message):
    with pytest.raises(OpError, match=message):
        Chain.of(steps)


def test_errors_teach():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(OpError, match="reads 2 operands, got 1"):
        ops.ElementwiseRegion("add(i0,i1)")(x)
    with pytest.raises(OpError, match=r"input 1 must have 4 elements, as its modulus says, got f32\[2,3\]"):
        ops.ElementwiseRegion("add(i0,i1)", 0, (0, 4))(x, x)
    with pytest.raises(OpError, match="fewer than the mask"):
        ops.ElementwiseRegion("neg(i0)", 0b10)
    with pytest.raises(OpError, match="transforms change the shape"):
        ops.ElementwiseRegion("resize_nearest_2x(i0)")
    with pytest.raises(OpError, match="only transforms are steps here"):
        ops.TransformRegion("neg(i0)")
    with pytest.raises(OpError, match="a chain of one input"):
        ops.BatchElementwiseRegion("add(i0,i1)", 2)
    with pytest.raises(OpError, match="must be 0"):
        ops.BatchElementwiseRegion("neg(i0)", 2, 1)
    with pytest.raises(OpError, match="all slices need one type"):
        ops.BatchElementwiseRegion("neg(i0)", 2)(x, x[:1])
    with pytest.raises(OpError, match="one dtype for all"):
        ops.ElementwiseRegion("add(i0,i1)")(x, x.astype(np.float64))
