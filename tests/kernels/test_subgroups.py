"""Subgroups as wide as the machine has them, dot products of bytes and f16, as kernels for WebGPU use them: interpreted
with several widths, before and after they are taken to words of 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.errors import BackendError, InternalError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.gpu.matmul import gpu_matmul_kernel
from rlx.kernels.gpu.matmul_codes import gpu_codes_kernel
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.groups import OWN_WIDTH, has_groups
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Kernel, Let, walk
from rlx.kernels.ir.subgroups import join_subgroups
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import SM_90A, WGSL, machine_named, wgsl_with
from rlx.kernels.words.words import in_words
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import pack_rows

F32 = DType.F32
WIDTHS = [4, 8, 32, 64]
SUBGROUPS, DOTS = wgsl_with(["subgroups"]), wgsl_with(["dot4"])


def joined(threads: int = 64) -> Kernel:
    k = GroupBuilder("joined")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    shared = [k.shared(name, F32, threads) for name in ("sums", "most", "least")]
    with k.parallel("block", 2) as block, k.threads("thread", threads) as thread:
        value = k.load(x, block * threads + thread)
        found = join_subgroups(k, ["add", "max", "min"], [value] * 3, shared)
        for number, result in enumerate(found):
            k.store(y, (block * threads + thread) * 3 + number, result)
    return k.build()


def in_words_as(kernel: Kernel, machine, args: dict) -> tuple[Kernel, dict]:
    """The kernel in words, with the arrays of `args` as words that begin at 0."""
    words = {n: a.reshape(-1).view(np.uint32) if isinstance(a, np.ndarray) else a for n, a in args.items()}
    starts = {f"{name}_at": 0 for name, array in args.items() if isinstance(array, np.ndarray)}
    return in_words(legalize(kernel, machine), machine=machine), {**words, **starts}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", [False, True])
def test_what_all_threads_have(width, words):
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    x[70] = np.nan
    args = {"x": x, "y": np.zeros((128, 3), np.float32)}
    kernel, given = (joined(), args) if not words else in_words_as(joined(), SUBGROUPS, args)
    interpret(kernel, given, subgroup_width=width)
    rows = x.reshape(2, 64)
    wanted = np.stack([rows.sum(1), rows.max(1), rows.min(1)], -1)
    np.testing.assert_allclose(args["y"].reshape(2, 64, 3), np.broadcast_to(wanted[:, None], (2, 64, 3)), rtol=1e-5)


def test_what_is_computed_of_a_sum_goes_where_the_sum_went():
    """The logarithm is taken apart while a kernel is copied: its steps belong to the copy."""
    k = GroupBuilder("log_sum")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    shared = [k.shared("sums", F32, 64)]
    with k.parallel("block", 1), k.threads("thread", 64) as thread:
        (total,) = join_subgroups(k, ["add"], [k.load(x, thread)], shared)
        k.store(y, thread, k.op("log", total))
    kernel = k.build()
    before = kernel.text
    args = {"x": np.arange(1, 65, dtype=np.float32), "y": np.zeros(64, np.float32)}
    legal = legalize(kernel, SUBGROUPS)
    verify(legal)
    verify(kernel)
    assert kernel.text == before
    interpret(legal, args, subgroup_width=8)
    np.testing.assert_allclose(args["y"], np.log(args["x"].sum()), rtol=1e-6)


def test_a_missing_barrier_is_found():
    """Memory that is used again while others still read it."""
    k = GroupBuilder("again")
    x, y, shared = k.pointer("x", F32), k.pointer("y", F32, write=True), k.shared("sums", F32, 64)
    with k.parallel("block", 1), k.threads("thread", 64) as thread:
        value = k.load(x, thread)
        for _ in range(2):
            (value,) = join_subgroups(k, ["add"], [value], [shared])
        k.store(y, thread, value)
    with pytest.raises(InternalError, match="sums"):
        interpret(k.build(), {"x": np.ones(64, np.float32), "y": np.zeros(64, np.float32)}, subgroup_width=8)


@pytest.mark.parametrize("width", [4, 32])
def test_a_product_of_one_row(width):
    n, k = 6, 300
    a, b, c = Matrix("a", F32, k), Matrix("b", F32, 1, k), Matrix("c", F32, n)
    kernel = gpu_matmul_kernel("product", Product(1, n, k, a, b, c), F32, WGSL.shared_bytes, 1, has_subgroups=True)
    assert has_groups(kernel)
    rng = np.random.default_rng(1)
    row, w = rng.standard_normal((1, k), np.float32), rng.standard_normal((n, k), np.float32)
    args = {"a": row, "b": w, "c": np.zeros((1, n), np.float32)}
    words, given = in_words_as(kernel, SUBGROUPS, args)
    interpret(words, given, subgroup_width=width)
    np.testing.assert_allclose(args["c"], row @ w.T, rtol=1e-4, atol=1e-4)


def test_a_row_times_codes_by_dot_products_of_bytes():
    """To the last bits: floats only add up the records."""
    name, n, k = "Q4_0", 16, 32
    rng = np.random.default_rng(2)
    block = FORMATS[name]
    stored = rng.integers(0, 256, (n * k // block.elements, block.bytes)).astype(np.uint8) & 0xBB
    weights = block.decode(stored).reshape(n, k).astype(np.float64)
    product = Product(1, n, k, Matrix("a", F32, k), Matrix("b", DType.U8, 0), Matrix("c", F32, n))
    kernel = gpu_codes_kernel("product", DOTS, PANEL_FORMATS[name], product)
    row = (rng.standard_normal((1, k)) * 2.0 ** rng.integers(-12, 1, k)).astype(np.float32)
    args = {"a": row, "b": pack_rows(PANEL_FORMATS[name], stored, n, k), "c": np.zeros((1, n), np.float32)}
    words, given = in_words_as(kernel, DOTS, args)
    assert any(isinstance(s, Let) and s.op == "dot4" for s in walk(words.body))
    interpret(words, given)
    size = np.abs(row.astype(np.float64)) @ np.abs(weights).T
    assert np.all(np.abs(args["c"] - row.astype(np.float64) @ weights.T) <= 8 * 2.0**-24 * size)


def test_f16_between_casts_stays_f16():
    k = GroupBuilder("half")
    x, y = k.pointer("x", DType.F16, align=4), k.pointer("y", DType.F16, write=True, align=4)
    with k.parallel("i", 8) as i:
        value = k.cast(k.load(x, i * 2, lanes=2, align=4), F32)
        k.store(y, i * 2, k.cast(value * value + 1.0, DType.F16), align=4)
    kernel = k.build()
    data = np.linspace(-3, 3, 16).astype(np.float16)
    for features in ([], ["f16"]):
        args = {"x": data, "y": np.zeros(16, np.float16)}
        words, given = in_words_as(kernel, wgsl_with(features), args)
        interpret(words, given)
        np.testing.assert_array_equal(args["y"], (data.astype(np.float32) ** 2 + 1).astype(np.float16))
        has_f16 = any(isinstance(s, Let) and s.result.dtype is DType.F16 for s in walk(words.body))
        assert has_f16 == bool(features)


def test_who_lacks_a_feature_says_so():
    with pytest.raises(BackendError, match="joined has roles, fragments, or asynchronous or exchanging threads"):
        in_words(joined())
    with pytest.raises(BackendError, match="joined has roles"):
        compile_assembly(joined(), SM_90A)
    k = GroupBuilder("unknown")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    with k.parallel("block", 1), k.threads("thread", 8) as thread:
        k.store(y, thread, k.exchange("lane", k.load(x, thread), 0, width=OWN_WIDTH))
    with pytest.raises(VerificationError, match="exchange lane needs a width that is known"):
        verify(k.build())
    verify(joined())
    with pytest.raises(BackendError, match=r"unknown machine 'wgsl\+f64'"):
        machine_named("wgsl+f64")
