"""Bits, bitcast, predicates and logical functions against Python integers and NumPy."""

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError

rng = np.random.default_rng(3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_bit_counts_against_python(both, dtype):
    info = np.iinfo(dtype)
    x = np.concatenate([rng.integers(info.min, info.max, 50, dtype, endpoint=True), np.array([0, 1, info.max], dtype)])
    unsigned = [v % 2**info.bits for v in x.tolist()]
    assert both(ops.popcount, x).tolist() == [v.bit_count() for v in unsigned]
    assert both(ops.clz, x).tolist() == [info.bits - v.bit_length() for v in unsigned]
    assert both(ops.not_, x).tolist() == [~v % 2**info.bits if info.min == 0 else ~v for v in x.tolist()]


def test_not_of_bools(both):
    assert both(ops.not_, np.array([True, False])).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, np.complex64])
@pytest.mark.parametrize("to", ["u8", "u16", "i32", "u64"])
def test_bitcast_is_numpys_view(dtype, to):
    x = rng.standard_normal((2, 3, 8)).astype(dtype)
    target = {"u8": np.uint8, "u16": np.uint16, "i32": np.int32, "u64": np.uint64}[to]
    have, want = x.dtype.itemsize, np.dtype(target).itemsize
    if have < want:
        x = x.reshape(2, -1, want // have)
        expected = x.view(target)[..., 0]
    else:
        expected = x.view(target).reshape((*x.shape, have // want) if have > want else x.shape)
    result = np.asarray(ops.bitcast(x, to))
    assert result.dtype == target
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.asarray(ops.bitcast(result, x.dtype)).view(np.uint8), x.view(np.uint8))


def test_bitcast_of_a_scalar_and_of_strided_data():
    assert int(ops.bitcast(np.float32(1.0), "u32")) == 0x3F800000
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(ops.bitcast(x, "u16"), np.ascontiguousarray(x).view(np.uint16).reshape(4, 3, 2))


def test_bytes_hold_two_nibbles_low_first():
    packed = np.array([[0x21, 0xF8]], np.uint8)
    assert np.asarray(ops.bitcast(packed, "u4")).astype(int).tolist() == [[[1, 2], [8, 15]]]
    signed = np.asarray(ops.bitcast(packed, "i4"))
    assert signed.astype(int).tolist() == [[[1, 2], [-8, -1]]]
    np.testing.assert_array_equal(ops.bitcast(signed, "u8"), packed)
    floats = np.asarray(ops.bitcast(packed, "f4e2m1")).astype(float)
    assert floats.tolist() == [[[0.5, 1.0], [-0.0, -6.0]]]


@pytest.mark.parametrize(
    ("x", "to", "wanted"),
    [
        (np.ones(3, bool), "u8", "bitcast: bool has no defined bits"),
        (np.ones(3, "u1"), "bool", "bitcast: bool has no defined bits"),
        (
            np.ones((2, 3), "u1"),
            "f32",
            "bitcast: 4 elements make one f32, so the last axis needs that size; got u8[2,3]",
        ),
        (np.uint8(1), "f32", "bitcast: 4 elements make one f32"),
    ],
)
def test_bitcast_errors(x, to, wanted):
    with pytest.raises(OpError) as error:
        ops.bitcast(x, to)
    assert str(error.value).startswith(wanted)


VALUES = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, -np.nan, 5e-324])


@pytest.mark.parametrize("name", ["isfinite", "isnan", "isinf", "signbit"])
def test_predicates(both, name):
    for dtype in (np.float16, np.float32, np.float64):
        x = VALUES.astype(dtype)
        np.testing.assert_array_equal(both(getattr(ops, name), x), getattr(np, name)(x))
    integers = np.array([-3, 0, 7], np.int32)
    np.testing.assert_array_equal(both(getattr(ops, name), integers), getattr(np, name)(integers))
    assert np.asarray(getattr(ops, name)(np.array([True, False]))).dtype == bool


@pytest.mark.parametrize("name", ["isfinite", "isnan", "isinf"])
def test_predicates_of_complex(both, name):
    parts = np.array([1.0, np.inf, np.nan])
    z = np.empty((3, 3), np.complex128)
    z.real, z.imag = parts[:, None], parts
    np.testing.assert_array_equal(both(getattr(ops, name), z), getattr(np, name)(z))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_reads_nonzero_as_true(both, name):
    a, b = np.array([0.0, 0.0, -2.0, np.nan]), np.array([0, 3, 0, 1])
    np.testing.assert_array_equal(both(getattr(ops, name), a, b), getattr(np, name)(a, b))


def test_logical_not(both):
    x = np.array([0.0, -0.0, 0.5, np.nan])
    np.testing.assert_array_equal(both(ops.logical_not, x), np.logical_not(x))


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda: ops.popcount(np.ones(2)), "popcount: needs integer operands, got f64[2]"),
        (lambda: ops.clz(np.ones(2, bool)), "clz: needs integer operands, got bool[2]"),
        (lambda: ops.not_(np.ones(2, "f4")), "not: needs integer or bool operands, got f32[2]"),
        (lambda: ops.signbit(np.ones(2, "c8")), "signbit: needs float operands, got c64[2]"),
        (lambda: ops.Predicate("isnan")(np.ones(2, "i4")), "isnan: needs float or complex operands, got i32[2]"),
    ],
)
def test_wrong_dtypes_are_named(build, wanted):
    with pytest.raises(OpError) as error:
        build()
    assert str(error.value).startswith(wanted)
