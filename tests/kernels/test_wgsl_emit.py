"""The text of WGSL kernels, without a GPU: what it says where compilers would like to know better."""

from __future__ import annotations

import math

import pytest

from rlx.ir.dtype import DType
from rlx.kernels.emit.wgsl_emit import Bound, WgslKernel, open_kernel, scratch_words, table_words, wgsl_module
from rlx.kernels.emit.wgsl_text import Prelude
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import WGSL
from rlx.kernels.words.words import in_words

APART = (Bound(1), Bound(2))


def text_of(build, dtype=DType.F32, bounds=APART):
    k = KernelBuilder("kernel")
    x, y, n = k.pointer("x", dtype), k.pointer("y", dtype, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, build(k, k.load(x, i)))
    return wgsl_module([WgslKernel("k0", in_words(legalize(k.build(), WGSL)), bounds)])


@pytest.mark.parametrize(
    ("build", "kept"),
    [
        (lambda k, x: (x + 3.0) - 3.0, "| nothing) - 0x1.8p+1f"),
        (lambda k, x: x + 0.0, "+ bitcast<f32>(nothing)"),
        (lambda k, x: x * 0.0, "* bitcast<f32>(nothing)"),
        (lambda k, x: x - x, " - bitcast<f32>(bitcast<u32>("),
        (lambda k, x: k.select(~(x < 1.0), x, 0.5), "!= (nothing != 0u)"),
        (lambda k, x: x * 3.0 - x * 5.0, "| nothing) - v"),
        (lambda k, x: k.select(x < 1.0, x, 0.0), "select(bitcast<f32>(nothing), "),
        (lambda k, x: k.select(k.ne(x, 2.0), x, 0.5), "== 0x1p+1f) == (nothing != 0u)"),
    ],
    ids=["sum", "zero", "product", "difference", "not", "common factor", "chosen zero", "unequal"],
)
def test_operations_that_real_numbers_could_do_without(build, kept):
    text = text_of(build)
    assert kept in text
    assert "let nothing = bitcast<u32>(args[15].w);" in text


def test_ordinary_arithmetic_is_plain():
    assert "nothing" not in text_of(lambda k, x: k.fma(x, x, 2.0) / (x + 1.0))


def test_a_zero_that_stands_for_what_is_not_read_is_unknown():
    """A product with it is not 0 where the other factor is NaN."""
    k = KernelBuilder("masked")
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.load(x, i, mask=i < 5, other=0.0) * k.load(x, i))
    text = wgsl_module([WgslKernel("k0", in_words(legalize(k.build(), WGSL)), APART)])
    assert ": u32 = nothing;" in text or ": f32 = bitcast<f32>(nothing);" in text


def test_memory_that_is_bound_later():
    k = KernelBuilder("open")
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.U8, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.cast(k.load(x, i), DType.U8))
    prelude = Prelude()
    made = open_kernel(in_words(legalize(k.build(), WGSL)), prelude)
    assert made.calls == (("read",), ("and", "or")) and "fn main(" in made.text and "fn is_nan" in prelude.text
    assert "read0(" in made.text and "or1(" in made.text and "var<storage" not in made.text


def test_nan_and_infinity():
    text = text_of(lambda k, x: k.select(k.ne(x, x), math.inf, k.max(x, 0.5)))
    assert "is_nan(v" in text and "special(0)" in text and "max_f32(" in text
    # A constant expression with infinity in it is refused: it is made of bits at run time.
    assert "var<private> special_bits" in text


def test_parameters_in_one_buffer_share_a_binding():
    text = text_of(lambda k, x: x * 2.0, bounds=(Bound(1), Bound(1)))
    assert text.count("var<storage") == 1 and "w2" not in text


def test_memory_larger_than_a_binding():
    text = text_of(lambda k, x: x * 2.0, bounds=(Bound(1, 3, 1024), Bound(4)))
    assert text.count("var<storage") == 4
    assert "if (place < 2048) { return w2[place - 1024]; }" in text and "return w3[place - 2048];" in text


def test_bytes_are_stored_atomically():
    text = text_of(lambda k, x: x + 1, DType.U8)
    assert "a2: array<atomic<u32>>" in text and "atomicAnd(&a2[" in text and "atomicOr(&a2[" in text
    assert "w1: array<u32>" in text


def test_large_arrays_are_no_variables():
    k = KernelBuilder("arrays")
    y = k.pointer("y", DType.F32, write=True)
    small, large = k.local("small", DType.F32, 8), k.local("large", DType.F32, 500)
    table = k.table("numbers", DType.F32, [float(i) for i in range(100)])
    with k.parallel("i", 4) as i:
        k.store(small, i, 1.0)
        k.store(large, i, k.load(table, i))
        k.store(y, i, k.load(large, i) + k.load(small, i))
    kernel = in_words(legalize(k.build(), WGSL))
    assert scratch_words(kernel) == 500 and len(table_words(kernel)) == 100
    text = wgsl_module([WgslKernel("k0", kernel, (Bound(1), Bound(2), Bound(3)))])
    assert "array<f32, 8>" in text and "500>" not in text and "100>" not in text
    assert "let scratch = (i32(group.x + group.y * 32768u) * 1 + i32(thread)) * 500;" in text
