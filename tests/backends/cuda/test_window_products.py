"""Convolutions as products over windows: the form says the same, and the code of its kernel. That it computes the right
thing on a GPU shows `gpu_suite.py --only rest`."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu import CpuBackend
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.window_form import WindowForm
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower.window_products import window_products
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import machine_named

SM_90A = machine_named("sm_90a")
# Channels, filters, height, width, window, stride, padding, dilation.
SETTINGS = [
    (8, 5, 6, 7, (3, 3), 1, 1, 1),
    (3, 4, 9, 8, (3, 2), 2, 1, 1),
    (8, 9, 7, 7, (3, 3), (1, 2), (2, 1), 2),
    (16, 8, 5, 5, (1, 1), 2, 0, 1),
]


def graph_of(function, *shapes, dtype="f16"):
    graph = rlx.Graph("conv")
    with building(graph):
        graph.set_outputs([function(*(graph.input(f"x{i}", dims, dtype) for i, dims in enumerate(shapes)))])
    return graph


def shapes_of(settings):
    channels, filters, height, width, window, *rest = settings
    x, w = (2, channels, height, width), (filters, channels, *window)
    y = graph_of(lambda x, w: ops.conv(x, w, *rest), x, w).nodes[-1].shape.static_dims
    return x, w, y, rest


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("way", ["forward", "input"])
def test_the_form_says_the_same(settings, way):
    x, w, y, rest = shapes_of(settings)
    if way == "forward":
        graph = graph_of(lambda a, b: ops.conv(a, b, *rest), x, w)
    else:
        graph = graph_of(lambda a, b: ops.conv2d_backward_input(a, b, x, *rest), y, w)
    form = window_products(graph)
    assert "window_matmul" in [n.op.mnemonic for n in form.nodes]
    rng = np.random.default_rng(1)
    given = {n.op.key: rng.standard_normal(n.shape.static_dims).astype(np.float16) for n in graph.inputs}
    want = graph.nodes[-1].op.eval(*(a.astype(np.float64) for a in given.values()))
    (got,) = CpuBackend().compile(form, None).run(given, {})
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=2e-3, atol=2e-3)


def test_others_stay():
    groups = graph_of(lambda x, w: ops.conv(x, w, groups=2), (2, 8, 5, 5), (4, 4, 3, 3))
    wide = graph_of(lambda x, w: ops.conv(x, w), (2, 8, 5, 5), (4, 8, 3, 3), dtype="f32")
    lines = graph_of(lambda x, w: ops.conv(x, w), (2, 8, 5), (4, 8, 3))
    assert all(window_products(graph) is graph for graph in (groups, wide, lines))


@pytest.mark.parametrize("columns", [256, 64])
def test_code(columns):
    graph = graph_of(lambda x, w: ops.conv(x, w, 2, 3), (4, 3, 32, 32), (64, 3, 7, 7), dtype="bf16")
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind == "conv")
    (form,), refusal = tensor_forms(make_kernel("conv", lir.as_graph(), kernel, SM_90A).kernel, SM_90A)
    assert isinstance(form, WindowForm) and not refusal
    # Three channels are filled up to eight.
    assert form.origin.picture == (4, 32, 32, 8) and form.product.k == 49 * 8
    ptx = form.ptx(columns)
    assert f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16" in ptx and ".local" not in ptx
    assert "cp.async.cg.shared.global" in ptx and "fence.proxy.async" in ptx


def test_a_false_window_is_refused():
    from rlx.ops.lowered.window_products import WindowMatMul

    with pytest.raises(rlx.errors.OpError, match="stride must be two positive numbers"):
        WindowMatMul((3, 3), (5, 5), (0, 1), (1, 1), (1, 1))
    op = WindowMatMul((3, 3), (5, 5), (1, 1), (1, 1), (1, 1))
    with pytest.raises(rlx.errors.OpError, match="needs x"):
        op.infer(rlx.Shape((2, 5, 5, 8), DType.F16), rlx.Shape((4, 71), DType.F16))
