"""Every kind of step: plain Python integers, NumPy, and the graph on the reference and the CPU engine agree."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from integer_programs import integer_oracle
from integer_programs.random_steps import KINDS, codes_for, random_program
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.quantized import Conv2d, Gru, Lstm, Multipliers, Program, Value, Weights

CASES = 10_000


def by_oracle(program, codes):
    values = [codes]
    for step in program.steps:
        kind = type(step).__name__.lower().replace("pool", "_pool")
        oracle = getattr(integer_oracle, kind)
        operands = program.operands(step)
        rows = [oracle(step, *operands, *(values[i][n] for i in step.inputs)) for n in range(len(codes))]
        values.append(np.array(rows).reshape(len(codes), *step.out.dims))
    return values[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_random_cases_against_python_integers(kind):
    rng = np.random.default_rng(sorted(KINDS).index(kind))
    compared, programs, distinct = 0, 0, set()
    while compared < CASES:
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 40 if kind == "argmax" else 2)
        got, wanted = program.run(codes), by_oracle(program, codes)
        assert got.tolist() == wanted.tolist(), program
        assert got.dtype == program.result.dtype.numpy
        compared, programs = compared + got.size, programs + 1
        distinct.update(got.reshape(-1).tolist())
    # Cases that all saturate would show nothing.
    assert programs > 20 and len(distinct) > (5 if kind == "argmax" else 200)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_random_programs_against_python_integers(kind):
    """Sizes, scales, zero points, limits and widths drawn anew each time."""
    rng = np.random.default_rng(1000 + sorted(KINDS).index(kind))
    for _ in range(CASES):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 1)
        assert program.run(codes).tolist() == by_oracle(program, codes).tolist(), program


@st.composite
def convolutions(draw):
    """An image, a convolution over it and codes: sizes, strides, paddings, groups, scales and zero points."""
    size = st.integers(1, 6)
    groups, inside, outside = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes, kernel, stride, dilation = (
        draw(st.tuples(*[s] * 2)) for s in (size, st.integers(1, 3), size, st.integers(1, 2))
    )
    padding = draw(st.tuples(*[st.tuples(*[st.integers(0, 4)] * 2)] * 2))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    # At least one window inside of the padded image.
    padding = tuple((a + max(r - n - a - b, 0), b) for n, (a, b), r in zip(sizes, padding, reach))
    places = [(n + a + b - r) // s + 1 for n, (a, b), r, s in zip(sizes, padding, reach, stride)]
    channels, zero = groups * outside, st.integers(-128, 127)
    x = Value("x", (*sizes, inside * groups), draw(st.floats(2**-10, 1.0, width=32)), draw(zero))
    out = Value("out", (*places, channels), draw(st.floats(2**-10, 1.0, width=32)), draw(zero))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits, fraction = draw(st.sampled_from([8, 4, 2])), draw(st.sampled_from([31, 15]))
    top = 2 ** (bits - 1) - 1
    codes = rng.integers(-top, top + 1, (channels, *kernel, inside)).astype("i1")
    scales = np.float32(draw(st.floats(2**-13, 4.0, width=32)) * rng.uniform(0.5, 1, channels))
    factors = np.float32(x.scale) * scales / np.float32(out.scale)
    bias = rng.integers(-5000, 5000, channels).astype("i4")
    low = draw(st.sampled_from([-128, out.zero_point]))
    step = Conv2d((0,), out, Weights(codes, scales, bits), bias, Multipliers.of(factors, fraction), low, 127)
    step = replace(step, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Program("conv", x, (0, 1, 2), (step,)), rng.integers(-128, 128, (2, *x.dims)).astype("i1")


@settings(max_examples=60)
@given(convolutions())
def test_convolutions_of_any_shape_stride_padding_and_scale(drawn):
    program, codes = drawn
    assert program.run(codes).tolist() == by_oracle(program, codes).tolist()


@pytest.mark.parametrize("device, count", [("reference", 12), ("cpu", 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_give_the_same_codes(kind, device, count):
    rng = np.random.default_rng(77)
    for _ in range(count):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 3)
        assert program.run(codes, device=device).tolist() == program.run(codes).tolist(), program


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_and_a_wrong_one(kind):
    program = random_program(kind, np.random.default_rng(5))
    empty = np.zeros((0, *program.input.dims), program.input.dtype.numpy)
    assert program.run(empty).shape == (0, *program.result.dims)
    with pytest.raises(Exception, match="takes codes"):
        program.run(np.zeros((2, *program.input.dims, 1), program.input.dtype.numpy))


@pytest.mark.parametrize("kind", KINDS)
def test_simulations_in_floats(kind):
    """Rounded as the program rounds, floats give its codes; rounded once, they are at most one code away."""
    rng = np.random.default_rng(78)
    for _ in range(12):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 3)
        wanted = program.run_all(codes)
        [exact] = interpret(program.simulation(exact=True), [codes])
        assert exact.tolist() == wanted[-1].tolist(), program
        once = interpret(program.simulation(every_value=True), [codes])
        # Sums of gates end at ±8, and states carry on what that changes: see the test below.
        is_near = len(program.steps) == 1 and program.result.dtype.size_bytes == 1 and kind not in ("gru", "lstm")
        if is_near:
            apart = np.abs(once[-1].astype(int) - wanted[-1].astype(int))
            narrow = any(getattr(s, "multipliers", None) and s.multipliers.fraction_bits == 15 for s in program.steps)
            assert apart.max(initial=0) <= (2 if narrow else 1), program


@pytest.mark.parametrize("made", [Gru, Lstm])
def test_states_are_near_those_of_floats(made):
    """Of weights as trained ones are, the sums of whose gates stay inside ±8."""
    rng = np.random.default_rng(3)
    weights = Weights.of(rng.uniform(-0.4, 0.4, (made.gates * 16, 16)))
    x = Value("x", (30, 1, made.gates * 16), 2.0**-12, 0, DType.I16)
    tables = (made.multipliers_for(weights), made.functions(), Multipliers.of(1.0))
    bias = rng.integers(-(2**16), 2**16, made.gates * 16).astype("i4")
    out = Value("state", (30, 1, 16), 2.0**-15, 0, DType.I16)
    program = Program("states", x, (0, 1, 2), (made((0,), out, weights, bias, *tables, -(2**15), 2**15 - 1, 30),))
    codes = x.encode(2 * rng.standard_normal((20, *x.dims)))
    [floats] = interpret(program.simulation(), [codes])
    got = program.run(codes)
    assert np.abs(got).max() > 2**14
    assert np.abs(got.astype(int) - floats.astype(int)).max() < 2**15 * 0.003
