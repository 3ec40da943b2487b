"""`rlx.default_float`: the type of floats that have none, for a while or for the process."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import DTypeError

MADE = {
    "zeros": lambda: rnp.zeros(2),
    "ones": lambda: rnp.ones(2),
    "full": lambda: rnp.full(2, 0.5),
    "eye": lambda: rnp.eye(2),
    "tri": lambda: rnp.tri(2),
    "asarray": lambda: rnp.asarray([0.5, 1.5]),
    "empty list": lambda: rnp.asarray([]),
    "scalar": lambda: rnp.asarray(0.1),
    "arange": lambda: rnp.arange(0.0, 1.0, 0.25),
    "linspace": lambda: rnp.linspace(0, 1, 3),
    "hanning": lambda: rnp.hanning(4),
    "fftfreq": lambda: rnp.fft.fftfreq(4),
    "exp of integers": lambda: rnp.exp(np.int32([1, 2])),
    "division of integers": lambda: rnp.asarray([1, 2]) / 4,
    "mean of integers": lambda: rnp.mean(np.int32([1, 2])),
    "integer and number": lambda: rnp.asarray([1, 2]) * 0.1,
    "uniform": lambda: rlx.random.uniform(rlx.random.key(0), (2,)),
    "normal": lambda: rlx.random.normal(rlx.random.key(0), (2,)),
    "initializer": lambda: rlx.nn.initializers.lecun_normal()(rlx.random.key(0), (2, 2)),
    "dtype=float": lambda: rnp.ones(2, float),
    "jit of a number": lambda: rlx.jit(lambda x: x * 2)(0.1),
    "made in a program": lambda: rlx.jit(lambda: rnp.zeros(2) + 0.1)(),
}


@pytest.mark.parametrize("what", MADE)
def test_what_has_no_type_of_its_own(what):
    assert MADE[what]().dtype == np.float32
    for dtype in (np.float64, np.float16):
        with rlx.default_float(dtype):
            assert MADE[what]().dtype == dtype
    assert MADE[what]().dtype == np.float32


def test_what_has_a_type_keeps_it():
    with rlx.default_float("f64"):
        assert (rnp.ones(2, "f32") * 0.5).dtype == np.float32
        assert rnp.sum(np.ones(2, "f2")).dtype == np.float16
        assert rnp.zeros(2, "i32").dtype == rnp.arange(3).dtype == np.int32
        assert rnp.asarray([1j]).dtype == np.complex128


def test_a_scan_beside_f64_data():
    """Without it, zeros(8) is an f32 carry that the first step turns into f64."""
    data = np.linspace(0, 1, 24).reshape(3, 8)

    def total(xs):
        return rlx.scan(lambda carry, x: (carry + x, None), rnp.zeros(8), xs)[0]

    with pytest.raises(rlx.RlxError):
        rlx.jit(total)(data)
    with rlx.default_float("f64"):
        np.testing.assert_allclose(rlx.jit(total)(data), data.sum(0), rtol=1e-15)


def test_functions_are_traced_again():
    f = rlx.jit(lambda x: x + rnp.asarray([0.1]))
    narrow = f(1.0)
    with rlx.default_float("f64"):
        wide = f(1.0)
    assert (narrow.dtype, wide.dtype, f(1.0).dtype) == (np.float32, np.float64, np.float32)
    assert wide.tolist() == [1.1]


def test_for_the_process_and_back():
    try:
        rlx.default_float("f64")
        assert rnp.zeros(1).dtype == np.float64 and rlx.DType.of(float) is rlx.DType.F64
        with rlx.default_float("bf16") as chosen:
            assert chosen is rlx.DType.BF16 is rlx.DType.of(float)
        assert rnp.zeros(1).dtype == np.float64
    finally:
        rlx.default_float("f32")
    assert rnp.zeros(1).dtype == np.float32


@pytest.mark.parametrize("wrong", ["i32", "c64", "f8e4m3"])
def test_only_floats_that_compute(wrong):
    with pytest.raises(DTypeError, match="bf16, f16, f32, f64"):
        rlx.default_float(wrong)
    assert rlx.DType.of(float) is rlx.DType.F32


@pytest.mark.parametrize(
    "kind", ["add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "hypot", "logaddexp"]
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_gradients_keep_their_types_whatever_the_default_is(kind, dtype):
    a, b = np.array([0.5, 1.5, 2.0], dtype), np.array([1.5, 0.5, 2.0], dtype)

    def loss(a, b):
        return rnp.sum(rlx.ops.binary(kind, a, b))

    wanted = rlx.grad(loss, (0, 1))(a, b)
    with rlx.default_float("f64"):
        found = rlx.grad(loss, (0, 1))(a, b)
        second = rlx.jacfwd(rlx.grad(loss))(a, b)
    assert [g.dtype for g in found] == [a.dtype, b.dtype]
    assert second.dtype == a.dtype
    for x, y in zip(found, wanted):
        np.testing.assert_array_equal(x, y)
