"""f8 in kernels: loads, stores and conversions of both kinds, bit by bit."""

import numpy as np
import pytest
from kernel_runs import check_everywhere

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower.byte_products import byte_products
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.byte_products import ByteMatMul
from rlx.quant.nvfp4 import FP4_E2M1_LUT, fp8_e4m3_scale_to_f32

KINDS = [DType.F8E4M3, DType.F8E5M2]


def cast_kernel(source, to, lanes):
    k = KernelBuilder("convert")
    x, y = k.pointer("x", source), k.pointer("y", to, write=True)
    count = k.index("count")
    with k.parallel("i", count) as i:
        k.store(y, i * lanes, k.cast(k.load(x, i * lanes, lanes=lanes), to))
    return k.build()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_every_code_is_read(kind, lanes):
    codes = np.arange(256, dtype=np.uint8).view(kind.numpy)
    args = {"x": codes, "y": np.zeros(256, np.float32), "count": 256 // lanes}
    with np.errstate(invalid="ignore"):
        found = check_everywhere(cast_kernel(kind, DType.F32, lanes), args)
    np.testing.assert_array_equal(found["y"], codes.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_are_rounded_half_to_even(kind):
    codes = np.arange(256, dtype=np.uint8).view(kind.numpy).astype(np.float32)
    known = codes[np.isfinite(codes)]
    known.sort()
    between = (known[1:] + known[:-1]) / 2
    near = np.concatenate([np.nextafter(between, np.float32(side)) for side in (-np.inf, np.inf)])
    largest = known.max()
    rest = np.array(
        [0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 1e30, largest * 1.03, largest * 1.07, largest * 1.2]
    )
    drawn = np.random.default_rng(0).standard_normal(500) * np.exp(np.random.default_rng(1).uniform(-14, 8, 500))
    x = np.concatenate([known, between, near, rest, -rest, drawn]).astype(np.float32)
    x = np.resize(x, -(-len(x) // 4) * 4)
    args = {"x": x, "y": np.zeros(len(x), kind.numpy), "count": len(x) // 4}
    with np.errstate(all="ignore"):
        found = check_everywhere(cast_kernel(DType.F32, kind, 4), args)
        want = x.astype(kind.numpy)
    np.testing.assert_array_equal(found["y"].astype(np.float32), want.astype(np.float32))
    is_number = ~np.isnan(want.astype(np.float32))
    assert (np.signbit(found["y"].astype(np.float32)) == np.signbit(want.astype(np.float32)))[is_number].all()


def products(function, *types):
    graph = rlx.Graph("bytes")
    with building(graph):
        leaves = [graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(types)]
        graph.set_outputs([function(*leaves)])
    return [n.op.mnemonic for n in byte_products(graph).nodes if not n.is_leaf]


A, B = ((4, 32), "f8e4m3"), ((8, 32), "f8e5m2")


def test_casts_below_a_product_are_part_of_it():
    assert products(lambda a, b: a.astype("bf16") @ b.astype("bf16").T, A, B) == ["byte_matmul"]
    assert products(lambda a, b: a.astype("f32") @ b.T.astype("f32"), A, B) == ["byte_matmul"]


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda a, b: rlx.ops.matmul(a.astype("f32"), b.astype("f32").T, precision="highest"), (A, B)),
        (lambda a, b: a.astype("f32") @ b.astype("f32"), (A, ((32, 8), "f8e4m3"))),
        (lambda a, b: a.astype("f32") @ b.astype("f32").T, (((4, 20), "f8e4m3"), ((8, 20), "f8e4m3"))),
        (lambda a, b: a.astype("f32") @ b.T, (A, ((8, 32), "f32"))),
    ],
    ids=["exact sums", "columns", "rows of 20 bytes", "one side"],
)
def test_other_products_stay(function, types):
    assert "matmul" in products(function, *types)


def test_what_it_means():
    a, b = (np.random.default_rng(i).standard_normal((5, 16)).astype(kind.numpy) for i, kind in enumerate(KINDS))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(ByteMatMul("f32").eval(a, b), want, rtol=1e-6)


def test_four_bits_and_their_scales_are_exact_in_bf16():
    codes = FP4_E2M1_LUT[:, None] * fp8_e4m3_scale_to_f32(np.arange(256))
    np.testing.assert_array_equal(codes.astype(DType.BF16.numpy).astype(np.float32), codes)


@pytest.mark.parametrize(
    ("scheme", "sides"), [("fp8e4m3", [((24,), "f32")]), ("nvfp4", [((2, 24), "u8"), ((1,), "f32")])]
)
def test_stored_weights_meet_bf16_as_bf16(scheme, sides):
    x, w = ((5, 32), "bf16"), ((32 * 24 // (2 if scheme == "nvfp4" else 1),), "u8")
    graph = rlx.Graph("stored")
    with building(graph):
        leaves = [graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate((x, w, *sides))]
        graph.set_outputs([rlx.ops.dequant_matmul(*leaves, scheme=scheme, n=24)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (product,) = (k for k in lir.kernels if k.kind == "matmul")
    made = make_kernel("product", lir.as_graph(), product, machine_named("sm_90a")).kernel
    assert {m.dtype for m in (made.origin.product.a, *made.origin.product.bs)} == {DType.BF16}
