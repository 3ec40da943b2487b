"""Sorts by digits on GPUs, in the interpreter with few threads: rows of a block, and the passes over long rows."""

import numpy as np
import pytest

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import radix_tiles, sort_blocks
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered import radix_passes
from rlx.ops.lowered.radix_passes import RadixCounts, RadixPlaces, digit_shifts, sort_keys
from rlx.ops.lowered.sort_order import SortOrder

SM_90A = machine_named("sm_90a")


def numbers(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(-9 if np.dtype(dtype).kind != "u" else 0, 9, shape) * (1 << 6 * rng.integers(0, 2))
    x = x.astype(dtype)
    if x.dtype.kind == "f":
        x[..., :6] = [np.nan, -np.inf, 0.0, np.nan, -0.0, np.inf]
    return x


def made(op, *arrays, kinds):
    graph = rlx.Graph("order")
    given = [graph.input(f"x{i}", x.shape, str(rlx.DType.of(x.dtype))) for i, x in enumerate(arrays)]
    result = graph.append_node(op, given)
    graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind in kinds)
    return make_kernel("order", lir.as_graph(), kernel, SM_90A).kernel


def check(op, *arrays, kinds=("sort", "radix"), seed=None):
    kernel = made(op, *arrays, kinds=kinds)
    verify(kernel)
    want = op.eval(*arrays)
    want = want if isinstance(want, tuple) else (want,)
    found = [np.full(w.size, 77, w.dtype) for w in want]
    given = [x.reshape(-1) for x in (*arrays, *found)]
    interpret(kernel, dict(zip((p.name for p in kernel.params), given, strict=True)), seed=seed)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a.reshape(b.shape), b)


@pytest.mark.parametrize(
    ("descending", "length", "dtype"), [(False, 50, "f4"), (True, 64, "f4"), (False, 67, "u1"), (True, 20, "i8")]
)
def test_rows_of_a_block(descending, length, dtype, monkeypatch):
    monkeypatch.setattr(sort_blocks, "SHORT", 8)
    monkeypatch.setattr(sort_blocks, "ITEMS", 2)
    check(SortOrder(descending), numbers((1, length), dtype), seed=3)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(radix_tiles, "THREADS", 32)
    monkeypatch.setattr(radix_passes, "TILE", 64)
    monkeypatch.setattr(radix_passes, "WIDE_TILE", 32)


@pytest.mark.parametrize(
    ("shift", "dtype", "length", "summed"),
    [(0, "i4", 100, False), (24, "f4", 64, True), (56, "i8", 33, False), (0, "u1", 65, True)],
)
def test_a_pass(small_tiles, shift, dtype, length, summed):
    rows = 1 + (dtype == "i8")
    x = numbers((rows, length), dtype)
    counts = RadixCounts(shift, summed=summed)
    check(counts, x)
    found = counts.eval(x)
    if summed:
        flat = found.reshape(rows, -1)
        found = (np.cumsum(flat, -1, dtype=np.int32) - flat).reshape(found.shape)
    check(RadixPlaces(shift, summed=summed), x, found)
    # A later pass: keys as they are, from other places.
    keys, order = sort_keys(x, False), np.flip(np.broadcast_to(np.arange(length, dtype=np.int32), x.shape), -1)
    check(RadixPlaces(shift, raw=False, summed=summed), keys, found, np.ascontiguousarray(order))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "bool"])
def test_passes_are_a_sort(dtype, descending):
    """What the ops mean, pass by pass, is the order."""
    x = numbers((3, 200), dtype) if dtype != "bool" else numbers((3, 200), "i4") > 0
    keys, order = x, ()
    for number, shift in enumerate(digit_shifts(rlx.DType.of(x.dtype))):
        settings = (shift, descending, number == 0)
        keys, found = RadixPlaces(*settings).eval(keys, RadixCounts(*settings).eval(keys), *order)
        order = (found,)
    np.testing.assert_array_equal(order[0], SortOrder(descending).eval(x)[0])


@pytest.mark.parametrize("shape", [(1, 5000), (2, 300_000), ("B", "N")])
def test_long_rows_are_passes(shape):
    graph = rlx.Graph("order")
    order = graph.append_node(SortOrder(), [graph.input("x", shape, "f32")])[0]
    graph.set_outputs([order])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    kinds = [k.kind for k in lir.kernels]
    assert kinds.count("radix") == 8
    assert ("running" in kinds) == (300_000 in shape)
    # Two of them become instructions, with votes instead of shuffles.
    for kernel in [k for k in lir.kernels if k.kind == "radix"][2:4]:
        text = compile_assembly(make_kernel("radix", lir.as_graph(), kernel, SM_90A).kernel, SM_90A)
    assert text.count("vote.sync.ballot.b32") == 8 * 8


def test_several_keys_are_passes_of_each(monkeypatch):
    graph = rlx.Graph("order")
    keys = [graph.input("x", (3, 400), "f32"), graph.input("y", (3, 400), "bf16")]
    graph.set_outputs(list(graph.append_node(SortOrder(), keys)))
    lir = CompilePipeline.new("cuda").compile(graph).lir
    assert [k.kind for k in lir.kernels].count("radix") == 2 * (2 + 4)
