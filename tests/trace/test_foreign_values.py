"""Where other libraries meet programs: NumPy's functions on traced values, values that leak, arrays through DLPack."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import BindingError, TraceError
from rlx.ir.foreign_arrays import from_dlpack, host_array, to_dlpack

X = np.float32([1, 2, 3])

ON_VALUES = {
    "sin": np.sin,
    "sum": np.sum,
    "mean": np.mean,
    "maximum": lambda x: np.maximum(x, 0),
    "isfinite": np.isfinite,
    "add": np.add.reduce,
    "dot": lambda x: np.dot(x, x),
    "where": lambda x: np.where(x > 0, x, 0),
    "concatenate": lambda x: np.concatenate([x, x]),
    "norm": lambda x: np.linalg.norm(x),
    "fft": np.fft.fft,
    "zeros_like": np.zeros_like,
    "sort": np.sort,
}


@pytest.mark.parametrize("name", ON_VALUES)
def test_numpy_functions_on_traced_values(name):
    with pytest.raises(TraceError, match=rf"has no value .* np\.{name}.*rlx\.numpy instead of numpy"):
        rlx.jit(ON_VALUES[name])(X)


def test_in_place_changes_of_numpy_arrays():
    def add(x):
        total = np.zeros(3, "f4")
        total += x
        return total

    with pytest.raises(TraceError, match=r"np\.add"):
        rlx.jit(add)(X)


@pytest.mark.parametrize(
    "fn",
    [
        *(lambda a, x: a + x, lambda a, x: a - x, lambda a, x: a * x, lambda a, x: a / x, lambda a, x: a // x),
        *(lambda a, x: a % x, lambda a, x: a**x, lambda a, x: a @ x, lambda a, x: a < x, lambda a, x: a <= x),
        *(lambda a, x: a > x, lambda a, x: a >= x, lambda a, x: a == x, lambda a, x: a != x),
        *(lambda a, x: divmod(a, x)[1], lambda a, x: x - a, lambda a, x: a[0] - x),
    ],
)
def test_operators_with_numpy_arrays_on_the_left(fn):
    a = np.float32([3, 2, 7])
    np.testing.assert_allclose(rlx.jit(lambda x: fn(a, x))(X), fn(a, X), rtol=1e-6)


def test_the_type_of_a_traced_value_is_known_to_numpy():
    seen = []
    rlx.jit(lambda x: (seen.append((np.shape(x), np.ndim(x), np.size(x))), x)[1])(X)
    assert seen == [((3,), 1, 3)]


@pytest.fixture
def leak():
    kept = []

    @rlx.jit
    def keeps(x):
        kept.append(x * 2)
        return x

    keeps(X)
    return kept[0]


@pytest.mark.parametrize(
    "use",
    [
        *(lambda v: v + 1, lambda v: np.sin(v), lambda v: rnp.sin(v), lambda v: rnp.sum(v), lambda v: v.sum()),
        *(lambda v: np.asarray(v), lambda v: bool(v), lambda v: v[0], lambda v: v.at[0].set(1.0), lambda v: X + v),
        *(lambda v: rlx.jit(lambda x: x + 1)(v), lambda v: rlx.grad(lambda x: x.sum())(v), lambda v: rlx.relu(v)),
        lambda v: rlx.jit(lambda x: x + v)(X),
    ],
)
def test_leaked_values_say_where_they_come_from(leak, use):
    with pytest.raises(TraceError, match=r"made at .*test_foreign_values.py:\d+ .*exists only there: return it"):
        use(leak)


class Foreign:
    """An array of a library that has DLPack and nothing else, as the standard demands."""

    def __init__(self, array):
        self.array, self.shape = rnp.asarray(array), array.shape
        self.dtype = self.array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float32, np.float16, np.int8, np.uint64, np.bool_, np.complex64),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ],
)
def test_dlpack_there_and_back(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = rnp.from_dlpack(Foreign(array))
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    np.testing.assert_array_equal(host_array(Foreign(array)).view("u1"), array.view("u1"))


def test_dlpack_shares_memory():
    array = np.ones(4, ml_dtypes.bfloat16)

    class Plain:
        def __dlpack__(self, **options):
            return to_dlpack(array, **options)

        def __dlpack_device__(self):
            return array.view("u2").__dlpack_device__()

    assert np.shares_memory(from_dlpack(Plain()), array)


def test_capsules_name_the_type_as_the_standard_numbers_it():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for dtype, code, bits in [("bf16", 4, 16), ("f8e4m3", 10, 8), ("f8e5m2", 12, 8), ("f32", 2, 32), ("i8", 0, 8)]:
        old = rnp.ones(3, dtype).__dlpack__()
        assert ctypes.string_at(get(old, b"dltensor") + 20, 2) == bytes([code, bits])
        new = rnp.ones(3, dtype).__dlpack__(max_version=(1, 0))
        assert ctypes.string_at(get(new, b"dltensor_versioned") + 52, 2) == bytes([code, bits])


def test_types_that_dlpack_has_not():
    with pytest.raises(BufferError, match="i4"):
        rnp.ones(3, "f32").astype("i4").__dlpack__()


def test_arrays_of_other_libraries_as_arguments():
    x = Foreign(np.asarray(X, ml_dtypes.bfloat16))
    assert rlx.jit(lambda v: v * 2)(x).tolist() == [2, 4, 6]
    assert rlx.grad(lambda v: (v * v).sum())(Foreign(X)).tolist() == [2, 4, 6]
    assert rlx.vmap(lambda v: v + 1)(Foreign(X)).tolist() == [2, 3, 4]
    assert rlx.jit(lambda v: v + x.array)(X).tolist() == [2, 4, 6]
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", (3,)) * g.param("w", (3,))])
    c = rlx.Session("cpu").compile(g)
    c.set_param("w", Foreign(X))
    assert c.run(x=Foreign(X))[0].tolist() == [1, 4, 9]


def test_arrays_that_cannot_be_read():
    class Elsewhere(Foreign):
        def __dlpack__(self, **options):
            raise BufferError("it lies on another device")

    with pytest.raises(BindingError, match="it lies on another device; bring it to the host"):
        rlx.jit(lambda v: v * 2)(Elsewhere(X))
