"""Products with experts on the tensor cores: the route that a GPU makes, which products have the form, and its code.
That it computes the right thing is shown on a GPU (`gpu_suite.py --only rest`)."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.routed_form import RoutedForm
from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import expert_route
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Buffer, Space
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.expert_products import ExpertRoute

SM_90A = machine_named("sm_90a")


def kernels_of(function, *types):
    graph = rlx.Graph("experts")
    with building(graph):
        result = function(*(graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(types)))
    graph.set_outputs([result])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    return [make_kernel("k", lir.as_graph(), kernel, SM_90A) for kernel in lir.kernels if kernel.kind != "view"]


@pytest.mark.parametrize("experts", [1, 5])
@pytest.mark.parametrize("rows", [1, 7, 60])
def test_the_route_of_a_gpu(experts, rows, monkeypatch):
    # Fewer threads than on a GPU: the interpreter is slow.
    monkeypatch.setattr(expert_route, "THREADS", 8)
    ids = np.random.default_rng(rows).integers(-experts - 2, experts + 2, rows).astype(np.int32)
    if rows > 5:
        ids[:5] = experts // 2
    graph = rlx.Graph("route")
    graph.set_outputs([graph.append_node(ExpertRoute(experts), [graph.input("ids", (rows,), "i32")])])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    made = make_kernel("route", lir.as_graph(), lir.kernels[0], SM_90A).kernel
    assert made.thread_count == 8
    verify(made)
    found = np.full(2 * experts + rows, -7, np.int32)
    names = [p.name for p in made.params]
    interpret(made, {names[0]: ids, names[1]: found})
    np.testing.assert_array_equal(found, ExpertRoute(experts).eval(ids))


def routed(function, *types):
    (*_, product) = kernels_of(function, *types)
    return tensor_forms(product.kernel, SM_90A)


@pytest.mark.parametrize("columns", [256, 64])
def test_code(columns):
    types = ((("M", 200), "bf16"), ((5, 200, 136), "bf16"), (("M",), "i32"))
    (form,), refusal = routed(lambda x, w, ids: ops.grouped_matmul(x, w, ids), *types)
    assert isinstance(form, RoutedForm) and not refusal
    ptx = form.ptx(columns)
    assert f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16" in ptx and ".local" not in ptx
    assert "cp.async.bulk.tensor.3d" in ptx and "cp.async.mbarrier.arrive.noinc" in ptx
    assert "fence.proxy.async" in ptx and "cp.async.cg.shared.global" in ptx


@pytest.mark.parametrize(
    ("dtype", "depth", "reason"), [("f32", 64, "f32 @ f32"), ("bf16", 20, "rows of 20 elements")], ids=["f32", "depth"]
)
def test_others_keep_their_loop_kernel(dtype, depth, reason):
    types = (((64, depth), dtype), ((5, depth, 136), dtype), ((64,), "i32"))
    assert routed(lambda x, w, ids: ops.grouped_matmul(x, w, ids), *types) == ((), reason)


@pytest.mark.parametrize("dtype", ["f32", pytest.param("f64", marks=pytest.mark.targets)])
def test_tiles_by_expert(dtype):
    """What tensor cores do not take: no scratch on the stack of a thread, and the product of the definition."""
    experts, rows, depth, columns = 3, 9, 20, 10
    types = (((rows, depth), dtype), ((experts, depth, columns), dtype), ((rows,), "i32"))
    *_, made = kernels_of(lambda x, w, ids: ops.relu(ops.grouped_matmul(x, w, ids)), *types)
    kept = [a for a in made.kernel.arrays if a.space is Space.LOCAL]
    assert sum(a.size * a.dtype.size_bytes for a in kept) <= 512
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(DType.of(dtype).numpy) for s, _ in types[:2])
    ids = np.array([2, 0, 2, 2, 0, 0, 2, 2, 2], np.int32)
    found = np.full((rows, columns), np.nan, x.dtype)
    names = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
    given = dict(zip(names, (x, w, found, ExpertRoute(experts).eval(ids)), strict=True))
    verify(made.kernel)
    interpret(made.kernel, {name: array.reshape(-1) for name, array in given.items()})
    want = np.maximum(np.einsum("mk,mkn->mn", x.astype("f8"), w[ids].astype("f8")), 0)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
