"""Convolution, pooling and their gradients as native kernels, against SciPy and the definitions."""

import numpy as np
import pytest
from scipy import signal

import rlx
import rlx.numpy as rnp
from rlx.ir.graph import Graph
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.machines import MACHINES
from rlx.ops.nn.convolution import Conv, ConvTranspose2d
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput, Conv2dBackwardWeight
from rlx.ops.nn.pooling import MaxPool2dBackward, Pool
from rlx.ops.reduction.window_reductions import ReduceWindow


def normal(*dims, seed=0, dtype="f4"):
    return np.random.default_rng(seed).normal(size=dims).astype(dtype)


def compiled(op, *shapes, device="cpu", dtype="f32"):
    graph = Graph("windows")
    graph.set_outputs([op(*(graph.input(f"x{i}", dims, dtype) for i, dims in enumerate(shapes)))])
    program = rlx.Session(device).compile(graph)
    if device == "cpu":
        assert "call" not in [k.kind for k in program._executable.lir.kernels], program.report
    return program


def run(program, *arrays):
    return np.asarray(program.run({f"x{i}": a for i, a in enumerate(arrays)})[0])


def check(op, *arrays, rtol=2e-6, dtype="f32", shapes=None):
    shapes = shapes or [a.shape for a in arrays]
    got, wanted = (run(compiled(op, *shapes, device=d, dtype=dtype), *arrays) for d in ("cpu", "reference"))
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    scale = np.abs(wanted.astype("f8"), where=np.isfinite(wanted), out=np.zeros(wanted.shape)).max(initial=1.0)
    np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=rtol, atol=rtol * scale)
    return got


def test_a_convolution_is_a_correlation():
    x, w = normal(3, 19, 23), normal(5, 3, 4, 3, seed=1)
    got = run(compiled(Conv((4, 3), (1, 1), (0, 0), (1, 1)), (1, *x.shape), w.shape), x[None], w)[0]
    for o in range(5):
        wanted = sum(signal.correlate(x[c].astype("f8"), w[o, c].astype("f8"), "valid") for c in range(3))
        np.testing.assert_allclose(got[o], wanted, rtol=1e-4, atol=1e-5)


# kernel, stride, padding, dilation, groups, x, output channels
SETTINGS = {
    "wide": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (2, 8, 17, 37), 16),
    "strided": ((5, 4), (2, 3), (2, 1), (1, 2), 1, (1, 3, 20, 41), 7),
    "grouped": ((3, 3), (1, 1), (1, 1), (1, 1), 3, (2, 9, 7, 7), 15),
    "depthwise": ((3, 3), (2, 2), (1, 1), (1, 1), 10, (1, 10, 9, 11), 10),
    # Rows of the result in whole blocks, with some left over, in blocks of their own sums, and in several strips.
    "depthwise_whole": ((7, 7), (1, 1), (3, 3), (1, 1), 3, (1, 3, 24, 24), 3),
    "depthwise_left": ((5, 5), (1, 1), (2, 2), (1, 1), 4, (2, 4, 13, 19), 4),
    "depthwise_tiny": ((5, 5), (1, 1), (2, 2), (1, 1), 6, (1, 6, 4, 4), 12),
    "depthwise_line": ((9,), (1,), (4,), (2,), 3, (2, 3, 50), 3),
    "depthwise_strips": ((3, 3), (1, 2), (1, 1), (1, 1), 2, (1, 2, 61, 1030), 2),
    "pointwise": ((1, 1), (1, 1), (0, 0), (1, 1), 1, (2, 6, 5, 33), 12),
    "one_pixel": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (1, 2, 1, 1), 3),
    "padding_beyond": ((2, 2), (1, 1), (4, 5), (1, 1), 1, (1, 1, 2, 3), 1),
    "line": ((7,), (2,), (3,), (2,), 2, (3, 4, 61), 6),
    "volume": ((2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1, (1, 2, 4, 6, 19), 5),
    "no_images": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (0, 2, 4, 4), 3),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_convolution_and_its_gradients(name):
    kernel, stride, padding, dilation, groups, dims, channels = SETTINGS[name]
    x, w = normal(*dims), normal(channels, dims[1] // groups, *kernel, seed=1)
    y = check(Conv(kernel, stride, padding, dilation, groups), x, w)
    dy = normal(*y.shape, seed=2)
    settings = (kernel, stride, padding, dilation, groups)
    check(Conv2dBackwardInput(*settings, x_shape=x.shape), dy, w)
    check(Conv2dBackwardWeight(*settings), x, dy)


@pytest.mark.parametrize("extra", [(0, 0), (1, 2)])
def test_transposed_convolution(extra):
    op = ConvTranspose2d((3, 4), (2, 3), (1, 2), (1, 1), extra, 2)
    check(op, normal(2, 4, 5, 18), normal(4, 3, 3, 4, seed=1))


@pytest.mark.parametrize("dtype, rtol", [("f64", 1e-13), ("f16", 1e-3), ("bf16", 1e-2)])
def test_other_floats(dtype, rtol):
    from rlx.ir.dtype import DType

    numpy = DType(dtype).numpy
    op = Conv((3, 3), (1, 1), (1, 1), (1, 1))
    check(op, normal(1, 4, 6, 21).astype(numpy), normal(5, 4, 3, 3, seed=1).astype(numpy), rtol=rtol, dtype=dtype)


def test_integers_wrap_in_the_type_of_the_result():
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 5, 20)).astype("i1")
    w = np.random.default_rng(1).integers(-128, 128, (3, 4, 3, 3)).astype("i1")
    for out in (None, "i32"):
        check(Conv((3, 3), (1, 1), (1, 1), (1, 1), out_dtype=out), x, w, dtype="i8")


def test_one_compile_serves_every_image_size():
    op = Conv((3, 3), (2, 1), (1, 1), (1, 1))
    shapes = [("N", 3, "H", "W"), (4, 3, 3, 3)]
    native, defined = (compiled(op, *shapes, device=d) for d in ("cpu", "reference"))
    w = normal(4, 3, 3, 3, seed=1)
    for dims in ((1, 3, 5, 5), (2, 3, 1, 40), (3, 3, 8, 2), (1, 3, 33, 17)):
        x = normal(*dims)
        np.testing.assert_allclose(run(native, x, w), run(defined, x, w), rtol=1e-5, atol=1e-5)


def test_one_compile_of_single_channels_serves_every_height():
    op = Conv((3, 3), (2, 1), (1, 1), (1, 1), 4)
    native, defined = (compiled(op, ("N", 4, "H", 18), (4, 1, 3, 3), device=d) for d in ("cpu", "reference"))
    w = normal(4, 1, 3, 3, seed=1)
    for height in (1, 2, 7, 8, 30):
        x = normal(2, 4, height, 18)
        np.testing.assert_allclose(run(native, x, w), run(defined, x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "min", "sum", "mean", "prod"])
def test_pooling(kind):
    check(Pool(kind, (3, 2), (2, 1), (1, 1)), normal(2, 3, 11, 37))
    check(Pool(kind, (4,), (3,), (2,)), normal(1, 2, 50))


def test_windows_over_any_axes():
    x = normal(5, 6, 7)
    check(ReduceWindow("sum", (2, 3, 1), (1, 2, 1), (1, 0, 0), (0, 2, 0), (2, 1, 1)), x)
    check(ReduceWindow("max", (1, 1, 3), (1, 1, 1), (0, 0, 0), (0, 0, 9), (1, 1, 2)), x)
    np.testing.assert_array_equal(
        check(ReduceWindow("any", (1, 1, 3), (1, 1, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)), x > 1, dtype="bool"),
        np.lib.stride_tricks.sliding_window_view(x > 1, 3, 2)[:, :, ::2].any(-1),
    )


def test_the_gradient_of_max_pooling_goes_to_the_first_largest():
    x = normal(2, 3, 9, 8).round()  # with ties
    x[0, 0, 2:5, 2:5] = -np.inf
    x[1, 2, 3, 3] = np.nan
    op = MaxPool2dBackward((3, 3), (2, 1), (1, 1))
    check(op, x, normal(2, 3, 5, 8, seed=1), rtol=1e-6)


@pytest.mark.parametrize("name", ["wide", "strided", "grouped", "line"])
def test_the_same_bits_for_any_number_of_threads(name):
    kernel, stride, padding, dilation, groups, dims, channels = SETTINGS[name]
    x, w = normal(*dims), normal(channels, dims[1] // groups, *kernel, seed=1)
    program = compiled(Conv(kernel, stride, padding, dilation, groups), x.shape, w.shape)
    with rlx.threads(1):
        alone = run(program, x, w)
    for count in (2, 3):
        with rlx.threads(count):
            np.testing.assert_array_equal(run(program, x, w), alone)


@pytest.mark.parametrize("target", ["avx512", "avx2", "generic", "neon", "riscv64"])
def test_kernels_for_any_vector_width_compute_the_same(target):
    """The interpreter, which checks every access, runs what is made for other machines."""
    x, w = normal(1, 2, 4, 9), normal(3, 2, 3, 2, seed=1)
    op = Conv((3, 2), (1, 2), (1, 0), (1, 1))
    program = compiled(op, x.shape, w.shape)
    lir = program._executable.lir
    [kernel] = lir.kernels
    made = make_kernel("conv", lir.as_graph(), kernel, MACHINES[target])
    y = np.zeros(lir.as_graph().shape(kernel.outputs[0]).static_dims, "f4")
    interpret(made.kernel, {"x0": x.reshape(-1), "x1": w.reshape(-1), "y0": y.reshape(-1)})
    np.testing.assert_allclose(y, run(program, x, w), rtol=1e-5, atol=1e-6)


def test_a_network_with_gradients_is_native():
    """Convolution, pooling, a dense layer and a loss, forward and backward, without the host."""

    def loss(params, x, labels):
        y = rlx.relu(rlx.conv(x, params["conv"], padding=1))
        y = rlx.pool(y, "max", (2, 2))
        logits = y.reshape((x.shape[0], -1)) @ params["dense"]
        return rnp.mean(rlx.softmax_cross_entropy_with_logits(logits, labels))

    params = {"conv": normal(4, 3, 3, 3), "dense": normal(4 * 5 * 6, 10, seed=1)}
    x, labels = normal(2, 3, 10, 12, seed=2), np.array([3, 7], "i4")
    native, defined = (rlx.jit(rlx.value_and_grad(loss), device=d)(params, x, labels) for d in ("cpu", "reference"))
    np.testing.assert_allclose(native[0], defined[0], rtol=1e-5)
    for name in params:
        np.testing.assert_allclose(native[1][name], defined[1][name], rtol=1e-4, atol=1e-5)
