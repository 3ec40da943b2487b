"""Elementwise functions of two and three operands: floats against NumPy, integers against Python's exact ones."""

import math
import operator

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError

BF16 = ml_dtypes.bfloat16
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.0, 1e-40, 6e4, -6e4, np.inf, -np.inf, np.nan])
LEFT, RIGHT = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64], ids=["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("add", np.add),
        ("sub", np.subtract),
        ("mul", np.multiply),
        ("div", np.divide),
        ("maximum", np.maximum),
        ("minimum", np.minimum),
        ("rem", np.fmod),
        ("copysign", np.copysign),
        ("nextafter", np.nextafter),
    ],
)
@np.errstate(all="ignore")
def test_floats_are_those_of_the_hardware(name, oracle, dtype):
    """Exact operations give the bits of NumPy's own arithmetic in that dtype."""
    a, b = LEFT.astype(dtype), RIGHT.astype(dtype)
    result = np.asarray(getattr(ops, name)(a, b))
    assert result.dtype == dtype
    # As f64, because assert_array_equal knows no NaN of bfloat16.
    np.testing.assert_array_equal(result.astype(np.float64), oracle(a, b).astype(np.float64))


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("pow_", np.power),
        ("atan2", np.arctan2),
        ("hypot", np.hypot),
        ("logaddexp", np.logaddexp),
        ("floordiv", np.floor_divide),
    ],
)
@np.errstate(all="ignore")
def test_functions_of_two_floats(name, oracle):
    for dtype in (np.float32, np.float64):
        a, b = LEFT.astype(dtype), RIGHT.astype(dtype)
        expected = oracle(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
        np.testing.assert_array_equal(np.asarray(getattr(ops, name)(a, b)), expected)


def test_floor_division_of_floats_is_pythons():
    a = [1.0, 7.5, -7.5, 7.5, -7.5, 0.3, 1e17, -1e-300, 5.0]
    b = [0.1, 2.0, 2.0, -2.0, -2.0, 0.1, 3.0, 5.0, math.inf]
    expected = [x // y for x, y in zip(a, b, strict=True)]
    assert np.asarray(ops.floordiv(np.array(a), np.array(b))).tolist() == expected


def test_mod_has_the_sign_of_the_divisor(both):
    for a, b in (
        (np.array([7, -7, 7, -7, 0, 6], np.int32), np.array([3, 3, -3, -3, 5, -3], np.int32)),
        (np.array([7.5, -7.5, 7.5, -7.5, 1.0]), np.array([2.0, 2.0, -2.0, -2.0, np.inf])),
        (np.array([7, 250], np.uint8), np.array([3, 100], np.uint8)),
    ):
        np.testing.assert_array_equal(both(ops.mod, a, b), a % b)


def wrap(value, info):
    """`value` modulo the width of an integer type."""
    span = info.max - info.min + 1
    return (int(value) - info.min) % span + info.min


def truncated(a, b):
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted_left(bits):
    return lambda a, b: a << b if 0 <= b < bits else 0


def shifted_right(bits):
    return lambda a, b: a >> b if 0 <= b < bits else -(a < 0)


def shifted_right_logical(bits):
    return lambda a, b: (a % 2**bits) >> b if 0 <= b < bits else 0


def integer_power(a, b):
    if b >= 0:
        return pow(a, b, 2**64)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def integer_oracles(bits):
    return {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "div": truncated,
        "rem": lambda a, b: 0 if b == 0 else int(math.copysign(1, a)) * (abs(a) % abs(b)),
        "floordiv": lambda a, b: 0 if b == 0 else a // b,
        "maximum": max,
        "minimum": min,
        "pow_": integer_power,
        "and_": operator.and_,
        "or_": operator.or_,
        "xor": operator.xor,
        "shift_left": shifted_left(bits),
        "shift_right": shifted_right(bits),
        "shift_right_logical": shifted_right_logical(bits),
    }


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("name", integer_oracles(8))
def test_integers_are_exact_and_wrap(name, dtype):
    info = np.iinfo(dtype)
    numbers = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 100]
    numbers += [-1, -2, -3, -7, -64] if info.min < 0 else []
    pairs = [(a, b) for a in numbers for b in numbers]
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    oracle = integer_oracles(info.bits)[name]
    expected = [wrap(oracle(x, y), info) for x, y in pairs]
    result = np.asarray(getattr(ops, name)(a, b))
    assert result.dtype == dtype
    assert result.tolist() == expected


def test_nextafter_steps_through_every_bfloat16():
    values = np.arange(0x7F80, dtype=np.uint16).view(BF16)
    up = np.asarray(ops.nextafter(values, np.array(np.inf, BF16)))
    assert up.view(np.uint16).tolist() == list(range(1, 0x7F81))
    down = np.asarray(ops.nextafter(-values, np.array(-np.inf, BF16)))
    assert down.view(np.uint16).tolist() == list(range(0x8001, 0xFF81))


@pytest.mark.parametrize("kind", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(kind):
    oracle = getattr(operator, kind)
    for dtype in (np.float16, BF16, np.float32, np.float64):
        a, b = LEFT.astype(dtype), RIGHT.astype(dtype)
        expected = [oracle(x, y) for x, y in zip(a.astype(float).tolist(), b.astype(float).tolist(), strict=True)]
        assert np.asarray(ops.compare(kind, a, b)).tolist() == expected
    big = np.array([2**63, 2**63 + 1, 0], np.uint64)
    assert np.asarray(ops.compare(kind, big, big[::-1])).tolist() == [
        oracle(x, y) for x, y in zip(big.tolist(), big[::-1].tolist(), strict=True)
    ]


def test_bools():
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert np.asarray(ops.and_(a, b)).tolist() == [False, False, False, True]
    assert np.asarray(ops.or_(a, b)).tolist() == [False, True, True, True]
    assert np.asarray(ops.xor(a, b)).tolist() == [False, True, True, False]
    assert np.asarray(ops.maximum(a, b)).tolist() == [False, True, True, True]
    assert np.asarray(ops.add(a, b)).tolist() == (a + b).tolist()
    assert np.asarray(ops.mul(a, b)).tolist() == (a * b).tolist()


def test_complex_arithmetic():
    a, b = np.array([1 + 2j, -3j]), np.array([2 - 1j, 0.5 + 0j])
    for name, oracle in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "truediv")):
        expected = [getattr(operator, oracle)(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_allclose(np.asarray(getattr(ops, name)(a, b)), expected, rtol=1e-15)


def test_broadcasting_and_promotion(both):
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3, 1), np.arange(4, dtype=np.float32)
    result = both(ops.add, a, b)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, a + b)
    assert ops.add(np.array([1], "i2"), 3).dtype == np.int16
    assert ops.mul(np.array([1], "f2"), 0.5).dtype == np.float16
    assert ops.add(np.array([1], "i2"), 0.5).dtype == np.float32


def test_where(both):
    condition = np.array([[True], [False]])
    a, b = np.arange(3, dtype=np.float32), np.array(-1.0, np.float32)
    np.testing.assert_array_equal(both(ops.where, condition, a, b), np.where(condition, a, b))
    np.testing.assert_array_equal(ops.where(np.array([2, 0]), 1, 2), [1, 2])


def test_clamp(both):
    x = np.array([-5.0, 0.3, 7.0, np.nan])
    np.testing.assert_array_equal(both(lambda v: ops.clamp(v, -1.0, 1.0), x), np.clip(x, -1, 1))
    big = np.array([0, 2**63, 2**64 - 1], np.uint64)
    assert np.asarray(ops.clamp(big, np.uint64(5), np.uint64(2**63 + 1))).tolist() == [5, 2**63, 2**63 + 1]


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda: ops.Binary("add")(np.ones(2, "f4"), np.ones(2, "f8")), "add: needs one dtype for all"),
        (lambda: ops.sub(True, False), "sub: needs float or integer or complex operands, got bool"),
        (lambda: ops.and_(np.ones(2), np.ones(2)), "and: needs integer or bool operands, got f64[2], f64[2]"),
        (lambda: ops.lt(np.ones(2, "c8"), np.ones(2, "c8")), "lt: needs comparable operands, got c64[2], c64[2]"),
        (lambda: ops.clamp(np.ones(2, "c8"), 0, 1), "clamp: needs ordered operands"),
    ],
)
def test_wrong_dtypes_are_named(build, wanted):
    with pytest.raises(OpError) as error:
        build()
    assert str(error.value).startswith(wanted)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(
        ShapeError, match=r"add: \[3\] and \[2\] do not broadcast|add: \[2\] and \[3\] do not broadcast"
    ):
        ops.add(np.ones(2), np.ones(3))
