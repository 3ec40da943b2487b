"""Convolutions as products over windows: the form says the same, and the code of its kernel. That it computes the right
thing on a GPU shows `gpu_suite.py --only rest`."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu import CpuBackend
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.batched_product import BatchedForm
from rlx.backends.cuda.hopper.pixel_form import PixelForm
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
    (16, 8, 3, 7, (1, 1), 1, 0, 1),
    (8, 16, 4, 6, (1, 1), 1, 0, 1),
    (3, 8, 14, 13, (7, 7), 2, 3, 1),
    (8, 8, 10, 11, (3, 3), (2, 3), (1, 0), 1),
    (8, 8, 9, 8, (2, 1), (3, 2), 0, 1),
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
@pytest.mark.parametrize("way", ["forward", "input", "weight"])
def test_the_form_says_the_same(settings, way):
    x, w, y, rest = shapes_of(settings)
    if way == "forward":
        graph = graph_of(lambda a, b: ops.conv(a, b, *rest), x, w)
    elif way == "input":
        graph = graph_of(lambda a, b: ops.conv2d_backward_input(a, b, x, *rest), y, w)
    else:
        graph = graph_of(lambda a, b: ops.conv2d_backward_weight(a, b, w[2:], *rest), x, y)
    form = window_products(graph)
    made = {n.op.mnemonic for n in form.nodes}
    if way == "weight" and w[0] % 8:
        assert form is graph
    elif w[2:] == (1, 1):
        assert made & {"matmul", "window_gradient", "pixel_matmul"} or form is graph
    else:
        assert ("window_gradient" if way == "weight" else "window_matmul") in made
    rng = np.random.default_rng(1)
    given = {n.op.key: rng.standard_normal(n.shape.static_dims).astype(np.float16) for n in graph.inputs}
    want = graph.nodes[-1].op.eval(*(a.astype(np.float64) for a in given.values()))
    (got,) = CpuBackend().compile(form, None).run(given, {})
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=2e-3, atol=4e-3)


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


class Code:
    """Code that is only counted."""

    def __call__(self, entry, what, make):
        return self

    def function(self, gpu):
        return self

    def allow_shared(self, size):
        pass


def only_form(function, *shapes):
    """The tensor-core form of the product of a program, and the names of its arguments."""
    lir = CompilePipeline.new("cuda").compile(graph_of(function, *shapes, dtype="bf16")).lir
    (kernel,) = (k for k in lir.kernels if k.kind in ("conv", "matmul"))
    made = make_kernel("conv", lir.as_graph(), kernel, SM_90A).kernel
    (form,), refusal = tensor_forms(made, SM_90A)
    assert not refusal
    form._load = Code()
    return form, [p.name for p in made.params]


def test_gradients_of_weights_are_sums_of_parts(fake, gpu, launched):
    x, dy = (32, 64, 56, 56), (32, 64, 56, 56)
    form, names = only_form(lambda x, dy: ops.conv2d_backward_weight(x, dy, (3, 3), 1, 1), x, dy)
    assert isinstance(form, PixelForm) and form.origin.rows == 9 * 64
    # Five tiles of 128 rows, cut so often that all multiprocessors have one.
    assert form.origin.parts == 26 and form.origin.op.run % 64 == 0
    assert form.launch([(i + 1) << 30 for i in range(len(names))], gpu.stream)
    assert launched[-1].blocks == 5 * 26 and fake.tensor_maps == [(2 << 30, (64, 32 * 56 * 56), 128, (64, 64))]
    ptx = form.ptx(64)
    # Both operands lie across K, and nobody stores what windows see.
    assert "p, 1, 1, 1, 1;" in ptx and "cp.async.cg.shared.global" in ptx and ".local" not in ptx


def test_gradients_of_weights_of_one_pixel_read_pictures_as_they_lie(fake, gpu, launched):
    x, dy = (32, 64, 28, 28), (32, 256, 28, 28)
    form, names = only_form(lambda x, dy: ops.conv2d_backward_weight(x, dy, (1, 1)), x, dy)
    assert isinstance(form, PixelForm) and not form.is_gathered
    # Thirteen pieces of 64 pixels in each picture, eight of which are a part.
    assert form.origin.op.run == 8 and form.origin.parts == 52
    assert form.launch([(i + 1) << 30 for i in range(len(names))], gpu.stream)
    first, second = fake.tensor_maps
    assert first[:2] == (1 << 30, (784, 64, 32)) and second[:2] == (2 << 30, (784, 256, 32))
    assert "cp.async.bulk.tensor.3d" in form.ptx(128) and "p, 1, 1, 0, 0;" in form.ptx(128)


@pytest.mark.parametrize("way", ["forward", "input"])
def test_windows_of_one_pixel_are_products_of_pictures(fake, gpu, launched, way):
    if way == "forward":
        form, names = only_form(ops.conv, (32, 64, 28, 28), (256, 64, 1, 1))
    else:
        form, names = only_form(
            lambda dy, w: ops.conv2d_backward_input(dy, w, (32, 64, 28, 28)), (32, 256, 28, 28), (256, 64, 1, 1)
        )
    assert isinstance(form, BatchedForm) and form.moves == (False, True)
    assert form.launch([(i + 1) << 30 for i in range(len(names))], gpu.stream)
    weights, pictures = fake.tensor_maps
    # One matrix of weights for all pictures; backward it is read across.
    assert weights[1] == (64, 256, 1) and weights[3] == ((64, 128, 1) if way == "forward" else (64, 64, 1))
    assert pictures[1][0] == 784 and pictures[1][2] == 32
    ptx = form.ptx(256)
    assert f"p, 1, 1, {int(way == 'input')}, 1;" in ptx and "cp.async.bulk.tensor.3d" in ptx and ".local" not in ptx
    # A tile of 64 rows is as much work for each group of warps, half of the columns.
    few = form.ptx(256, 64)
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in few and "m64n256k16" in ptx
    # Operands that do not begin at whole words are left to the loop kernel.
    assert not form.launch([((i + 1) << 30) + 2 for i in range(len(names))], gpu.stream)


@pytest.mark.targets
@pytest.mark.parametrize("columns", [64, 256])
def test_sums_of_gradients_stay_in_registers(columns, assembled):
    way = lambda x, dy: ops.conv2d_backward_weight(x, dy, (3, 3), 1, 1)  # noqa: E731
    shapes = ((8, 64, 14, 14), (8, 64, 14, 14)), ((8, 64, 8, 8), (64, 64, 1, 1))
    for form in (only_form(f, *s)[0] for f, s in zip((way, ops.conv), shapes)):
        said = assembled(form.ptx(columns) if columns == 64 or isinstance(form, PixelForm) else form.ptx(columns, 64))
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said and "(C75" not in said
