"""Requantisation against plain Python integers, the numbers of the specification, and on the CPU engine."""

import numpy as np
import pytest

import rlx
from rlx.errors import OpError
from rlx.ops import Requantize, requantize
from rlx.quant.fixed_point import rdpot, scaled, split_multiplier, split_multipliers, srdhm

I32 = (-(2**31), 2**31 - 1)


def oracle(acc, m0, shift, zero, fraction_bits=31, low=-128, high=127):
    """The rules word by word, with Python's integers."""
    shift = max(-31, min(31, shift))
    if shift < 0:
        acc = max(I32[0], min(I32[1], acc * 2**-shift))
    product = acc * m0
    nudge = 2 ** (fraction_bits - 1) if product >= 0 else 1 - 2 ** (fraction_bits - 1)
    total = product + nudge
    x = abs(total) // 2**fraction_bits * (1 if total >= 0 else -1)
    x = max(I32[0], min(I32[1], x))
    if shift > 0:
        mask = 2**shift - 1
        x = (x >> shift) + ((x & mask) > (mask >> 1) + (x < 0))
    return max(low, min(high, x + zero))


@pytest.mark.parametrize(
    "multiplier, pair",
    [
        (0.5, (0x40000000, 0)),
        (0.25, (0x40000000, 1)),
        (0.0078125, (0x40000000, 6)),
        (0.1, (0x66666680, 3)),
        (0.3, (0x4CCCCD00, 1)),
        (0.99, (0x7EB85200, 0)),
    ],
)
def test_split_of_the_golden_vectors(multiplier, pair):
    assert split_multiplier(multiplier) == pair


@pytest.mark.parametrize("multiplier, pair", [(0.1, (26214, 3)), (0.3, (19661, 1)), (0.99, (32440, 0))])
def test_split_in_16_bits_of_the_golden_vectors(multiplier, pair):
    assert split_multiplier(multiplier, 15) == pair


def test_roundings_of_the_golden_vectors():
    assert srdhm([1, -1, 2, -2, 3, -3, 5, -5], 2**30).tolist() == [1, 0, 1, -1, 2, -1, 3, -2]
    assert rdpot([1, -1, 3, -3, 5, -5], 1).tolist() == [1, -1, 2, -2, 3, -3]
    assert rdpot([2, -2, 6, -6, 5, -5], 2).tolist() == [1, -1, 2, -2, 1, -1]


@pytest.mark.parametrize(
    "multiplier, sums, codes, fraction_bits",
    [
        (0.3, [1, -1, 5, 64, 192, 320], [1, -1, 2, 19, 58, 96], 31),
        (0.0078125, [63, 64, 191, 192], [1, 1, 2, 2], 31),
        (0.3, [-421], [-127], 31),
        (0.3, [-421], [-127], 15),
    ],
)
def test_codes_of_the_golden_vectors(multiplier, sums, codes, fraction_bits):
    m0, shift = split_multiplier(multiplier, fraction_bits)
    assert requantize(np.int32(sums), m0, shift, fraction_bits=fraction_bits).tolist() == codes


def cases(fraction_bits, count=12_000):
    """Sums and tables from the middle and from the ends of their ranges."""
    rng = np.random.default_rng(fraction_bits)
    magnitude = 2.0 ** rng.uniform(0, 31, count)
    acc = np.clip(np.rint(rng.choice([-1, 1], count) * magnitude), *I32).astype(np.int64)
    acc[:200] = rng.choice([I32[0], I32[0] + 1, -1, 0, 1, I32[1] - 1, I32[1]], 200)
    top = 2**fraction_bits
    m0 = rng.integers(top // 2, top, count)
    m0[:100] = rng.choice([top // 2, top - 1, 0, -(top)], 100)
    shift = rng.integers(-31, 32, count)
    shift[200:210] = [99, -99, 32, -32, 31, -31, 0, 0, 1, -1]
    return acc, m0, shift, rng.integers(-128, 128, count)


@pytest.mark.parametrize("fraction_bits", [31, 15])
@pytest.mark.parametrize(
    "dtype, low, high", [("i8", -128, 127), ("u8", 0, 255), ("i16", -(2**15), 2**15 - 1), ("i32", *I32)]
)
def test_random_cases_against_python_integers(fraction_bits, dtype, low, high):
    columns = cases(fraction_bits)
    expected = [oracle(*row, fraction_bits, low, high) for row in zip(*(c.tolist() for c in columns))]
    operands = [c.astype(np.int32) for c in columns]
    op = Requantize(0, dtype, fraction_bits)
    assert op.eval(*operands).tolist() == expected
    for device in ("cpu", "reference"):
        # The reference computes the decomposition here, the CPU engine its kernels.
        run = rlx.jit(op.decompose if device == "reference" else op, device=device)
        assert np.asarray(run(*operands)).tolist() == expected, device


def test_the_cpu_engine_computes_it_natively():
    graph = rlx.Graph("one_op")
    tables = [np.int32([2**30, 2**30 + 7, 3]), np.int32([3, 4, 5]), np.int32([0])]
    graph.set_outputs([requantize(graph.input("acc", ("B", 3), "i32"), *tables)])
    report = rlx.Session("cpu").compile(graph).report
    # One map for what follows from the tables alone, one for the sums.
    assert [row.kind for row in report.kernels] == ["map", "map"], report
    assert "host" not in str(report)


@pytest.mark.parametrize("fraction_bits", [31, 15])
def test_at_most_one_code_from_the_exact_product(fraction_bits):
    rng = np.random.default_rng(3)
    multipliers = 2.0 ** rng.uniform(-20, 3, 4000)
    sums = np.rint(rng.uniform(-120, 120, 4000) / multipliers)
    m0, shift = split_multipliers(multipliers, fraction_bits)
    codes = scaled(sums.astype(np.int64), m0, shift, fraction_bits)
    assert np.max(np.abs(codes - sums * np.float32(multipliers))) <= (1.0 if fraction_bits == 31 else 1.02)


@pytest.mark.parametrize("exponent", range(-40, 31))
def test_split_keeps_powers_of_two(exponent):
    m0, shift = split_multiplier(2.0**exponent)
    assert 0 <= m0 < 2**31 and -31 <= shift <= 31
    assert m0 * 2.0**-31 * 2.0**-shift == 2.0**exponent


@pytest.mark.parametrize("multiplier", [-0.1, float("nan"), float("inf"), 2.0**31])
def test_multipliers_that_cannot_be(multiplier):
    with pytest.raises(OpError, match=r"a multiplier must be in \[0, 2\^31\)"):
        split_multiplier(multiplier)


def test_refusals_say_what_is_wrong():
    sums, three = np.zeros((2, 3), np.int32), np.ones(3, np.int32)
    with pytest.raises(OpError, match=r"m0 must be i32\[1\] or i32\[3\] along axis -1"):
        requantize(sums, np.ones(2, np.int32), three)
    with pytest.raises(OpError, match=r"zero_point must be i32\[1\] or i32\[3\]"):
        requantize(sums, three, three, np.ones(3, np.int8))
    with pytest.raises(OpError, match="needs i32 sums operands"):
        requantize(sums.astype(np.int16), three, three)
    with pytest.raises(OpError, match="fraction_bits must be 31 or 15"):
        requantize(sums, three, three, fraction_bits=7)
    with pytest.raises(OpError, match="dtype must be one of i8, u8, i16, i32"):
        requantize(sums, three, three, dtype="f32")


def test_it_has_no_derivative_and_says_why():
    assert Requantize.vjp is Requantize.jvp
    assert "train with fake_quantize" in Requantize.jvp.reason
