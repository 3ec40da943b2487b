"""Dtypes: promotion of arrays, weak Python scalars, default dtypes, and the questions about dtypes."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import DTypeError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph

_INTS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
# Pairs that NumPy widens and rlx does not: 32-bit integers with f32 stay in f32, complex likewise; and bf16.
_TABLE = {
    ("i32", "f32"): "f32",
    ("u32", "f32"): "f32",
    ("i64", "f32"): "f64",
    ("i32", "f16"): "f32",
    ("i8", "f16"): "f32",
    ("i8", "bf16"): "f32",
    ("i32", "f64"): "f64",
    ("bf16", "f16"): "f32",
    ("bf16", "f32"): "f32",
    ("f16", "f64"): "f64",
    ("f32", "c64"): "c64",
    ("bool", "i8"): "i8",
    ("bool", "bf16"): "bf16",
    ("f8e4m3", "bf16"): "bf16",
    ("u64", "i64"): "i64",
}


def zeros(dtype):
    return np.zeros(2, DType.of(dtype).numpy)


@pytest.mark.parametrize(("pair", "wanted"), list(_TABLE.items()), ids=str)
def test_table(pair, wanted):
    a, b = pair
    assert rnp.promote_types(a, b) is rnp.promote_types(b, a) is DType.of(wanted)
    assert rnp.result_type(zeros(a), b) is DType.of(wanted)
    if a != "f8e4m3" and "bool" not in pair:
        assert rnp.add(zeros(a), zeros(b)).dtype == DType.of(wanted).numpy


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(_INTS, 2)))
def test_integers_promote_as_in_numpy(a, b):
    wanted = np.promote_types(DType.of(a).numpy, DType.of(b).numpy)
    # NumPy has no integer for u64 with signed ones; rlx stays with i64.
    wanted = np.dtype("i8") if wanted.kind == "f" else wanted
    assert rnp.promote_types(a, b).numpy == wanted
    assert rnp.multiply(zeros(a), zeros(b)).dtype == wanted


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128"])
def test_python_scalars_are_weak(dtype):
    x = zeros(dtype)
    found = DType.of(dtype)
    assert rnp.add(x, 1).dtype == found.numpy
    assert rnp.maximum(x.real, True).dtype == x.real.dtype
    float_result = found if found.is_inexact else DType.F32
    assert rnp.multiply(x, 2.0).dtype == float_result.numpy
    assert rnp.add(x, 1j).dtype == found.complex.numpy
    graph = Graph("weak")
    tensor = graph.input("x", (2,), dtype)
    assert rnp.add(tensor, 1).dtype is found
    assert rnp.multiply(2.0, tensor).dtype is float_result


def test_numpy_scalars_are_strong():
    assert rnp.multiply(np.ones(2, np.float32), np.float64(2)).dtype == np.float64
    assert rnp.multiply(np.ones(2, np.float32), 2.0).dtype == np.float32


def test_scalars_alone_have_default_dtypes():
    assert rnp.add(1, 2).dtype == np.int32
    assert rnp.add(1, 2.0).dtype == np.float32
    assert rnp.exp(1).dtype == np.float32
    assert rnp.add(True, 1j).dtype == np.complex64
    assert rnp.asarray(3).dtype == np.int32
    assert rnp.asarray(2**40).dtype == np.int64
    assert rnp.asarray([1, 2**40]).dtype == np.int64
    assert rnp.asarray([1, 2.5]).dtype == np.float32
    assert rnp.asarray([True, False]).dtype == np.bool_
    assert rnp.asarray([]).dtype == np.float32
    assert rnp.asarray([np.float64(1), 2]).dtype == np.float64
    assert rnp.asarray([[1, 2], [3, 4j]]).dtype == np.complex64
    for made in (rnp.zeros(2), rnp.ones((1,)), rnp.linspace(0, 1, 3), rnp.eye(2), rnp.full(2, 0.5)):
        assert made.dtype == np.float32
    assert rnp.arange(3).dtype == np.int32


@pytest.mark.parametrize(
    ("dtype", "sum_dtype", "mean_dtype"),
    [
        ("bool", "i32", "f32"),
        ("i8", "i32", "f32"),
        ("u8", "u32", "f32"),
        ("i32", "i32", "f32"),
        ("i64", "i64", "f64"),
        ("u64", "u64", "f64"),
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "bf16"),
        ("c64", "c64", "c64"),
    ],
)
def test_reductions(dtype, sum_dtype, mean_dtype):
    x = zeros(dtype)
    for function in (rnp.sum, rnp.prod, rnp.cumsum):
        assert function(x).dtype == DType.of(sum_dtype).numpy
    assert rnp.mean(x).dtype == DType.of(mean_dtype).numpy
    assert rnp.max(x.real).dtype == x.real.dtype


def test_astype():
    x = np.array([1.7, -1.7, np.nan, 300.0], np.float32)
    assert rnp.astype(x, "int8").tolist() == [1, -1, 0, 127]
    assert rnp.astype(x, rnp.bfloat16).dtype == ml_dtypes.bfloat16
    assert rnp.astype(3, rnp.float64).dtype == np.float64


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
def test_can_cast_agrees_with_numpy(casting):
    names = ("bool", "int8", "int64", "uint8", "float32", "float64", "complex128")
    for a, b in itertools.product(names, names):
        if (a, b) != ("int64", "float32") and not (a == "int64" and b == "complex64"):
            assert rnp.can_cast(a, b, casting) == np.can_cast(a, b, casting), (a, b)


def test_isdtype_agrees_with_numpy():
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    for name, kind in itertools.product(("bool", "int8", "uint16", "float32", "complex64"), kinds):
        assert rnp.isdtype(name, kind) == np.isdtype(np.dtype(name), kind), (name, kind)
    assert rnp.isdtype("int8", ("bool", rnp.int8))
    with pytest.raises(DTypeError, match="one of bool, signed integer"):
        rnp.isdtype("int8", "integers")


def test_issubdtype_agrees_with_numpy():
    parents = (np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating)
    for name, parent in itertools.product(("bool", "int8", "uint16", "float32", "complex64"), parents):
        assert rnp.issubdtype(name, parent) == np.issubdtype(name, parent), (name, parent)
    assert rnp.issubdtype(rnp.bfloat16, rnp.floating)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_finfo_agrees_with_numpy(name):
    found, wanted = rnp.finfo(name), np.finfo(name)
    for field in ("bits", "eps", "max", "min", "smallest_normal", "tiny"):
        assert getattr(found, field) == getattr(wanted, field)
    assert rnp.finfo("complex64").dtype is DType.F32
    assert rnp.iinfo("int16") == (16, 32767, -32768, DType.I16)
    with pytest.raises(DTypeError, match="use iinfo"):
        rnp.finfo("int8")
    with pytest.raises(DTypeError, match="use finfo"):
        rnp.iinfo("float32")


def test_dtype_names_compare_with_numpy_dtypes():
    assert rnp.zeros(2).dtype == rnp.float32
    assert rnp.float32 == np.dtype("float32")
    assert np.zeros(2, rnp.int16).dtype == np.int16
    assert rnp.iscomplexobj(np.zeros(1, "c8")) and rnp.isrealobj(2.0)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int8", "uint16", "complex64", "bool_"])
def test_types_make_arrays(name):
    """`rnp.float32(0.1)` as NumPy's scalar types; of a traced value it is a cast."""
    made = getattr(rnp, name)([0.5, 2])
    wanted = np.asarray([0.5, 2]).astype(getattr(rnp, name).numpy)
    assert isinstance(made, rlx.Array)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(made), wanted)
    assert rlx.jit(lambda x: getattr(rnp, name)(x))(np.float32(1)).dtype == wanted.dtype
    assert getattr(rnp, name)(1).shape == ()


def test_methods_of_arrays_that_lead_back_to_numpy_and_python():
    x = rnp.asarray([[0.0, 2.0], [3.0, 0.0]])
    assert x.item(1) == 2.0
    assert x.tolist() == [[0, 2], [3, 0]]
    assert x.view(np.ndarray).__class__ is np.ndarray
    assert x.view("uint32").dtype == np.uint32
    assert x.__array_namespace__() is rnp
    assert float(x.trace()) == 0
    np.testing.assert_array_equal(x.nonzero(), np.nonzero(np.asarray(x)))
    assert Graph("traced").input("x", (2,)).__array_namespace__() is rnp


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_a_choice_between_numbers_takes_the_type_of_what_it_meets(dtype):
    """JAX's rule: `where(mask, 1.0, 0.0)` is as weak as its branches, so that a mask does not widen bf16 to f32."""
    masked = rlx.jit(lambda x: rnp.where(x > 0, 1.0, 0.0) * x)
    x = rnp.asarray([1.0, -2.0], dtype)
    assert masked(x).dtype == x.dtype
    assert rlx.jit(lambda x: rnp.where(x > 0, 1, 0) + x.astype("i8"))(x).dtype == np.int8
    assert rlx.jit(lambda x: rnp.where(x > 0, 1.0, 0.0))(x).dtype == np.float32
    assert rlx.jit(lambda x: rnp.where(x > 0, 1.0, x.astype("f32")) * x)(x).dtype == (x + np.float32([0])).dtype


@pytest.mark.parametrize(
    "function",
    [
        lambda c: rnp.where(True, c, 2.0),
        lambda c: rnp.add(c, 2.0),
        lambda c: -rnp.sqrt(c),
        lambda c: rnp.maximum(c, 2),
        lambda c: rnp.clip(c, 0, 3),
        lambda c: rlx.exp(c),
    ],
)
def test_what_is_computed_of_numbers_alone_is_weak_eagerly_and_in_programs(function):
    x = rnp.ones(2, "bf16")
    eager, inside = function(1.0) * x, rlx.jit(lambda x: function(1.0) * x)(x)
    passed = rlx.jit(lambda s, x: s * x)(function(1.0), x)
    captured = function(1.0)
    assert {a.dtype for a in (eager, inside, passed, rlx.jit(lambda x: captured * x)(x))} == {x.dtype}
    assert function(1.0).dtype == np.float32
    # An array is strong, and so is what a weak number becomes with it.
    assert (function(rnp.ones(2)) * x).dtype == np.float32
    assert (rnp.reshape(function(1.0), (1,)) * x).dtype == np.float32
