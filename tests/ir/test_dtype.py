"""Element types: facts from NumPy and ml_dtypes, and promotion as stated."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from rlx.errors import DTypeError
from rlx.ir.dtype import DType, Element, ElementSubtype, promote, scalar_constant_bytes


@pytest.mark.parametrize("dtype", list(DType))
def test_names_and_sizes(dtype):
    assert DType.of(dtype.value) is dtype
    assert DType.of(dtype.numpy) is dtype
    assert DType.of(dtype.numpy.type) is dtype
    assert dtype.size_bytes == dtype.numpy.itemsize
    assert str(dtype) == dtype.value
    classes = [dtype.is_float, dtype.is_complex, dtype.is_int, dtype is DType.BOOL]
    assert sum(classes) == 1


def test_accepted_spellings():
    assert DType.of("float32") is DType.of(np.float32) is DType.of("F32") is DType.F32
    assert DType.of(ml_dtypes.bfloat16) is DType.BF16
    assert [DType.of(t) for t in (bool, int, float, complex)] == [DType.BOOL, DType.I32, DType.F32, DType.C64]


@pytest.mark.parametrize("bad", ["f33", "", np.dtype("datetime64[s]"), object])
def test_unknown_dtypes_name_the_known_ones(bad):
    with pytest.raises(DTypeError, match=r"unknown dtype .*; use one of: bool i4"):
        DType.of(bad)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DType, DType)))
def test_promotion_is_symmetric_and_never_narrows(a, b):
    result = promote(a, b)
    assert result is promote(b, a)
    assert promote(result, a) is result
    if a is b:
        assert result is a


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("f16", "bf16", "f32"),
        ("i32", "f16", "f32"),
        ("i64", "f32", "f64"),
        ("i64", "f16", "f64"),
        ("i8", "f64", "f64"),
        ("bool", "u8", "u8"),
        ("u8", "i8", "i16"),
        ("u32", "i32", "i64"),
        ("u64", "i64", "i64"),
        ("f64", "c64", "c64"),
        ("f32", "f16", "f32"),
        ("f8e4m3", "bf16", "bf16"),
        ("f8e4m3", "f8e5m2", "f32"),
        ("i16", "bf16", "f32"),
    ],
)
def test_promotion_table(a, b, result):
    assert promote(DType.of(a), DType.of(b)) is DType.of(result)


def test_integer_promotion_holds_both_ranges():
    signed = [DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32]
    for a, b in itertools.product(signed, signed):
        got, wanted = np.iinfo(promote(a, b).numpy), (np.iinfo(a.numpy), np.iinfo(b.numpy))
        assert got.min <= min(w.min for w in wanted)
        assert got.max >= max(w.max for w in wanted)


def test_elements():
    assert Element.fp8_e4m3() == Element(DType.U8, ElementSubtype.FP8_E4M3, True)
    assert Element.fp8_e5m2().subtype is ElementSubtype.FP8_E5M2
    assert not Element.new("f32").is_saturating
    assert Element.new("i8").saturating().is_saturating


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_storage])
def test_scalar_bytes(dtype):
    data = scalar_constant_bytes(1.0, dtype)
    assert len(data) == dtype.size_bytes
    assert np.frombuffer(data, dtype.numpy)[0] == 1


@pytest.mark.parametrize(("value", "dtype"), [(1.5, "i8"), (300, "u8"), (float("nan"), "i32"), (-1, "u32")])
def test_scalars_that_do_not_fit_are_refused(value, dtype):
    with pytest.raises(DTypeError, match=rf"{value} is not representable as {dtype}"):
        scalar_constant_bytes(value, dtype)


@pytest.mark.parametrize("dtype", DType)
def test_facts_under_the_names_of_numpy(dtype):
    """`x.dtype.kind` and `itemsize` are the same for a tensor as for an array."""
    assert (dtype.kind, dtype.itemsize) == (dtype.numpy.kind, dtype.numpy.itemsize)
