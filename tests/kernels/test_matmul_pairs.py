"""Products of bf16 in pairs: `dot2` on every machine, the kernel around it, and programs that come to it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, interpreted, ran_natively

import rlx
from rlx import ops
from rlx.backends.native.elf import undefined_symbols
from rlx.compile.compiler import CompilePipeline
from rlx.compile.weights.pack_floats import pack_weights, panels_below
from rlx.errors import DTypeError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product, panel_width
from rlx.kernels.cpu.matmul.pairs import has_pairs, pack_pairs, pair_matmul_kernel, pairs_as_they_lie
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, Let, ValueType, walk
from rlx.kernels.ir.operations import infer
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX2, AVX512, AVX512_BF16, CORTEX_M4, NEON, RISCV, SSE2, WASM, Machine, host, runs_here
from rlx.kernels.specs.expr import apply, operand

F32, BF16 = DType.F32, DType.BF16
LANES = (1, 2, 4, 8, 16)
MACHINES = [*NATIVE_TARGETS, *([AVX512_BF16] if runs_here(AVX512_BF16) else [])]
rng = np.random.default_rng(61)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(ml_dtypes.bfloat16)


def dot_kernel(lanes: int) -> Kernel:
    k = KernelBuilder("dots")
    total, a, b = k.pointer("total", F32), k.pointer("a", BF16), k.pointer("b", BF16)
    y = k.pointer("y", F32, write=True)
    sums = k.load(total, 0, lanes=lanes)
    k.store(y, 0, k.dot2(sums, k.load(a, 0, lanes=2 * lanes), k.load(b, 0, lanes=2 * lanes)))
    return k.build()


def everywhere(kernel: Kernel, args: dict[str, Any], name: str) -> list[np.ndarray]:
    """The array of that name after the interpreter, the legalised kernel and native code of every machine here."""
    found = [interpreted(kernel, args)]
    found += [interpreted(legalize(kernel, machine), args) for machine in MACHINES]
    found += [ran_natively(kernel, args, machine) for machine in MACHINES]
    return [after[name].astype(np.float64) for after in found]


@pytest.mark.parametrize("lanes", LANES)
def test_a_sum_of_two_products_rounds_twice(lanes: int):
    """Numbers of any size beside each other: each of two additions is off by half a unit of what it adds at most."""
    for _ in range(20):
        scale = 2.0 ** rng.integers(-30, 30, (3, 2 * lanes))
        a, b = ((rng.normal(size=2 * lanes) * s).astype(ml_dtypes.bfloat16) for s in scale[:2])
        total = (rng.normal(size=lanes) * scale[2][:lanes]).astype(np.float32)
        args = {"total": total, "a": a, "b": b, "y": np.zeros(lanes, np.float32)}
        products = (a.astype(np.float64) * b.astype(np.float64)).reshape(-1, 2)
        sizes = np.abs(total.astype(np.float64)) + np.abs(products).sum(1)
        for found in everywhere(dot_kernel(lanes), args, "y"):
            assert (np.abs(found - (total + products.sum(1))) <= 2 * 2.0**-24 * (1 + 2.0**-23) * sizes).all()


def test_small_whole_numbers_are_exact():
    lanes = 16
    a, b = (rng.integers(-128, 128, 2 * lanes).astype(ml_dtypes.bfloat16) for _ in range(2))
    total = rng.integers(-1000, 1000, lanes).astype(np.float32)
    args = {"total": total, "a": a, "b": b, "y": np.zeros(lanes, np.float32)}
    wanted = total + (a.astype(np.float64) * b.astype(np.float64)).reshape(-1, 2).sum(1)
    for found in everywhere(dot_kernel(lanes), args, "y"):
        np.testing.assert_array_equal(found, wanted)


def test_infinities_and_numbers_that_are_none():
    inf, nan = np.inf, np.nan
    a = np.array([inf, 1, inf, inf, nan, 0, 2, 3], ml_dtypes.bfloat16)
    b = np.array([1, 1, 1, -1, 1, 1, 4, 5], ml_dtypes.bfloat16)
    total = np.array([1, 1, 1, -inf], np.float32)
    args = {"total": total, "a": a, "b": b, "y": np.zeros(4, np.float32)}
    with np.errstate(invalid="ignore"):
        for found in everywhere(dot_kernel(4), args, "y"):
            np.testing.assert_array_equal(found, [inf, nan, nan, -inf])


def test_what_is_too_small_is_lost_at_most():
    """Below the smallest normal number an operand, a product or a sum may be 0: off by less than three of these."""
    tiny = 2.0**-126
    a = np.array([tiny / 4, 1, 2.0**-100, 1, 1, 1, tiny, tiny], ml_dtypes.bfloat16)
    b = np.array([1, tiny / 8, 2.0**-40, 0, tiny, -tiny / 2, 1, -0.75], ml_dtypes.bfloat16)
    args = {"total": np.zeros(4, np.float32), "a": a, "b": b, "y": np.ones(4, np.float32)}
    wanted = (a.astype(np.float64) * b.astype(np.float64)).reshape(-1, 2).sum(1)
    with np.errstate(under="ignore"):
        for found in everywhere(dot_kernel(4), args, "y"):
            assert (np.abs(found - wanted) < 3 * tiny).all()


@pytest.mark.parametrize(
    "machine", [AVX512_BF16, AVX512, AVX2, SSE2, NEON, RISCV, WASM, CORTEX_M4], ids=lambda t: t.name
)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_every_target_has_it(machine: Machine, lanes: int):
    legal = legalize(dot_kernel(lanes), machine)
    left = [s for s in walk(legal.body) if isinstance(s, Let) and s.op == "dot2"]
    assert len(left) == (lanes in machine.dot2_lanes)
    assert ("vdpbf16ps" in compile_assembly(dot_kernel(lanes), machine)) == bool(left)
    if machine.triple.startswith(("x86_64", "aarch64", "riscv64")):
        assert not undefined_symbols(compile_object(dot_kernel(lanes), machine))


def test_what_it_takes():
    wide = [ValueType(F32, 4), ValueType(BF16, 8), ValueType(BF16, 8)]
    assert infer("dot2", wide) == wide[0]
    for wrong in ([wide[0], wide[1]], [wide[0], ValueType(BF16, 4), wide[2]], [wide[0], wide[0], wide[2]]):
        with pytest.raises(DTypeError, match="dot2 takes f32xN, bf16x2N and bf16x2N, or i32xN"):
            infer("dot2", wrong)


def test_packing():
    b = normal(6, 37)
    packed = pack_pairs(b, 16)
    assert packed.shape == (3, 3, 16, 2)
    np.testing.assert_array_equal(packed.transpose(1, 3, 0, 2).reshape(6, 48)[:, :37], b)


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda t: t.name)
def test_products(machine: Machine, by_columns: bool):
    """Deep and shallow, few rows and many, with a bias; A beside other columns, or turned."""
    expr = apply("add", operand(0, F32), operand(1, F32))
    for n, k in ((136, 40), (64, 1900), (20, 2), (33, 0)):
        left = Matrix("a", BF16, 1, "m") if by_columns else Matrix("a", BF16, k + 3)
        epilogue = Epilogue((expr,), (Matrix("bias", F32, 0),))
        product = Product("m", n, k, left, Matrix("b", BF16, 0), Matrix("c", F32, n), epilogue)
        kernel = pair_matmul_kernel("pairs", machine, product)
        b, bias = normal(k, n), rng.normal(size=n).astype(np.float32)
        stored = pack_pairs(b, panel_width(machine, F32, n))
        for m in (1, 2, 5, 6, 51):
            a = normal(m, k)
            given = np.ascontiguousarray(a.T) if by_columns else np.pad(a, ((0, 0), (0, 3)))
            args = {"a": given, "b": stored, "c": np.full((m, n), np.nan, np.float32), "bias": bias, "m": m}
            found = ran_natively(kernel, args, machine)["c"]
            wide = [x.astype(np.float64) for x in (a, b)]
            unit = 2.0**-24 * (2 + np.sqrt(k))
            bound = unit * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(bias))
            assert (np.abs(found - (wide[0] @ wide[1] + bias)) <= bound).all()


def test_interpreter_and_native_code_agree():
    m, n, k = 5, 24, 10
    for machine in (AVX512_BF16, AVX2, NEON):
        product = Product(m, n, k, Matrix("a", BF16, k), Matrix("b", BF16, 0), Matrix("c", F32, n))
        kernel = pair_matmul_kernel("pairs", machine, product)
        stored = pack_pairs(normal(k, n), panel_width(machine, F32, n))
        args = {"a": normal(m, k), "b": stored, "c": np.zeros((m, n), np.float32)}
        first, *others = everywhere(kernel, args, "c")
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-5)


def linear(k: int, n: int, out: str) -> Graph:
    g = Graph("linear")
    x, w = g.input("x", ("B", "S", k), "bf16"), g.param("w", (n, k), "bf16")
    g.set_outputs([ops.relu(ops.matmul(x, ops.transpose(w, (1, 0)), out_dtype=out))])
    return g


def test_weights_in_pairs_mean_the_same():
    g = linear(40, 120, "bf16")
    packed = pack_weights(g, lambda dtype, n: 32, lambda dtype: dtype is BF16)
    (product,) = (node for node in packed.nodes if node.op.mnemonic == "matmul")
    views = {node.id for node in packed.nodes if node.op.mnemonic in ("transpose", "reshape", "narrow")}
    stored = next(node.id for node in packed.nodes if node.shape.dims == (4, 20, 32, 2))
    panels = panels_below(packed, product.inputs[1], views - {stored})
    assert panels is not None and panels == (stored, 32, True)
    w, x = normal(120, 40), normal(2, 3, 40)
    results = []
    for program in (g, packed):
        compiled = rlx.Session("reference").compile(program)
        compiled.set_param("w", w)
        results.append(np.asarray(compiled.run({"x": x})[0]).astype(np.float32))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("k", [96, 97])
def test_programs(k: int, out: str):
    """An odd depth has no pairs; results are the same for any number of threads."""
    g = linear(k, 192, out)
    result = CompilePipeline.new("cpu").compile(g)
    assert [kernel.kind for kernel in result.lir.kernels if kernel.kind != "view"] == ["matmul"]
    (weight,) = (n.shape.dims for n in result.lir.as_graph().params)
    assert len(weight) == (4 if k % 2 == 0 and has_pairs(host(), BF16) else 3)
    w, x = normal(192, k), normal(3, 50, k)
    results = []
    for count in (1, 2, 3):
        with rlx.threads(count):
            compiled = rlx.Session("cpu").compile(g)
            compiled.set_param("w", w)
            results.append(np.array(compiled.run({"x": x})[0]).astype(np.float64))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    wide = [v.astype(np.float64) for v in (x, w.T)]
    bound = 2.0**-24 * (2 + np.sqrt(k)) * (np.abs(wide[0]) @ np.abs(wide[1]))
    exact = np.maximum(wide[0] @ wide[1], 0)
    if out == "bf16":
        bound = bound * 1.01 + 2.0**-8 * 1.01 * exact
    assert (np.abs(results[0] - exact) <= bound).all()


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("batch, m, n, k", [(1, 37, 70, 50), (3, 12, 16, 130), (1, 200, 9, 34)])
def test_matrices_that_are_not_packed(turned: str, batch: int, m: int, n: int, k: int):
    """Panels of pairs are made as they are needed, from matrices that lie either way."""
    a, b = normal(batch, m, k), normal(batch, k, n)
    strides = [(m * k, 1, m) if "a" in turned else (m * k, k, 1), (k * n, 1, k) if "b" in turned else (k * n, n, 1)]
    views = [Matrix(x, BF16, r, c, s) for x, (s, r, c) in zip("ab", strides)]
    product = Product(m, n, k, *views, Matrix("c", F32, n, 1, m * n), None, batch)
    stored = [np.ascontiguousarray(x.swapaxes(1, 2) if name in turned else x) for x, name in ((a, "a"), (b, "b"))]
    args = {"a": stored[0], "b": stored[1], "c": np.full((batch, m, n), np.nan, np.float32)}
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    kernel = pair_matmul_kernel("pairs", AVX512_BF16, product, packed=False)
    found = [interpreted(kernel, args), *([ran_natively(kernel, args, AVX512_BF16)] if runs_here(AVX512_BF16) else [])]
    for after in found:
        np.testing.assert_allclose(after["c"].reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-4)


def test_programs_multiply_pairs_as_they_lie():
    """Both operands are values of the run, and sizes along K are even; an odd one takes the way of floats."""
    for k, pairs in ((64, True), (63, False)):
        product = Product(40, 20, k, Matrix("a", BF16, k), Matrix("b", BF16, 20), Matrix("c", BF16, 20))
        assert pairs_as_they_lie(AVX512_BF16, product) is pairs and not pairs_as_they_lie(AVX512, product)
    x, y = normal(40, 64), normal(64, 20)
    found = rlx.jit(lambda x, y: x @ y)(x, y)
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(np.asarray(found).astype(np.float64), wanted, rtol=2e-2, atol=2e-2)
