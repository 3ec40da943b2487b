"""Networks over pictures keep their channels last between convolutions, and give what they gave."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from backends.op_kernel_checks import Program
from rlx import ops
from rlx.compile.lower import picture_layout
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.kernels.machines import host
from rlx.ops.lowered.window_products import WindowProduct
from rlx.ops.nn.convolution import Conv, ConvTranspose2d

RNG = np.random.default_rng(11)


class Network:
    """A graph whose weights are params."""

    def __init__(self, *shape):
        self.graph, self.weights = rlx.Graph("network"), {}
        self.x = self.graph.input("x", shape)

    def weight(self, *shape):
        name = f"w{len(self.weights)}"
        self.weights[name] = (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype("f4")
        return self.graph.param(name, shape)

    def conv(self, x, outputs, size=3, stride=1, groups=1, **more):
        inner = x.shape[1] // groups
        kernel = (size,) * (x.ndim - 2)
        y = ops.conv(x, self.weight(outputs, inner, *kernel), stride, size // 2, groups=groups, **more)
        return ops.relu(y + self.weight(outputs, *(1,) * (x.ndim - 2)))

    def compiled(self, *outputs):
        self.graph.set_outputs(list(outputs))
        compiled = rlx.Session("cpu").compile(self.graph)
        compiled.set_params(self.weights)
        return compiled

    def check(self, compiled, x):
        for got, exact in zip(compiled.run(x=x), interpret(self.graph, {"x": x, **self.weights}), strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(exact).max()))


def _turns(compiled):
    """The kernels that only change the order of axes."""
    return [row for row in compiled.report.kernels if set(row.ops) == {"transpose"}]


def _kinds(compiled):
    return {op for row in compiled.report.kernels for op in row.ops}


def test_a_network_is_turned_at_its_ends_alone():
    n = Network(2, 3, 22, 18)
    a = n.conv(n.x, 32, 3, 2)
    b = n.conv(n.conv(a, 32, 3, groups=32), 48, 1)
    pooled = ops.reduce_window(b, "max", (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])
    gate = ops.sigmoid(n.conv(ops.reduce_mean(b, (2, 3), keepdims=True), 48, 1))
    c = n.conv(b * gate + b, 48)
    small = n.conv(pooled, 24, 5)
    up = ops.gather(ops.gather(small, np.repeat(np.arange(6), 2)[:11], axis=2), np.repeat(np.arange(5), 2)[:9], axis=3)
    joined = ops.concat([c, up], 1)
    groups = ops.transpose(ops.reshape(joined, (2, 8, 9, 11, 9)), (0, 2, 1, 3, 4))
    mixed = ops.narrow(ops.reshape(groups, (2, 72, 11, 9)), 1, 8, 64)
    d = n.conv(ops.pad(mixed, 0.5, low=(0, 0, 1, 0), high=(0, 0, 0, 2)), 64)
    e = ops.conv_transpose(d, n.weight(64, 16, 2, 2), 2)
    compiled = n.compiled(n.conv(e, 8), ops.reduce_mean(d, (2, 3)))
    kinds = _kinds(compiled)
    assert {"window_product", "channel_windows"} <= kinds and not kinds & {"conv", "conv_transpose2d"}, compiled.report
    assert len(_turns(compiled)) <= 2, compiled.report
    n.check(compiled, RNG.standard_normal((2, 3, 22, 18)).astype("f4"))


def test_an_open_batch_and_lines():
    n = Network("B", 16, 200)
    y = n.conv(n.conv(n.conv(n.x, 48, 5, 2), 48, 3, groups=48), 80, 3)
    compiled = n.compiled(ops.reduce_max(y, 2))
    assert "window_product" in _kinds(compiled), compiled.report
    for batch in (1, 3):
        n.check(compiled, RNG.standard_normal((batch, 16, 200)).astype("f4"))


def test_bias_residual_and_activation_are_part_of_the_product():
    n = Network(1, 64, 12, 12)
    a = n.conv(n.x, 64)
    b = ops.relu(ops.conv(a, n.weight(64, 64, 3, 3), 1, 1) + n.weight(64, 1, 1) + a)
    compiled = n.compiled(ops.reduce_mean(n.conv(b, 96), (2, 3)))
    products = [row.ops for row in compiled.report.kernels if "window_product" in row.ops]
    assert [sum(op == "add" for op in row) for row in products] == [1, 2, 1] and all("relu" in row for row in products)
    n.check(compiled, RNG.standard_normal((1, 64, 12, 12)).astype("f4"))


def test_what_is_turned_more_than_it_gains_stays():
    n = Network(1, 8, 40, 40)
    compiled = n.compiled(n.conv(n.x, 8))
    assert "conv" in _kinds(compiled) and not _turns(compiled), compiled.report


def test_gradients_of_weights_keep_channels_first():
    w = RNG.standard_normal((64, 64, 3, 3)).astype("f4")

    def loss(w, x):
        return (rlx.relu(ops.conv(rlx.relu(ops.conv(x, w, 1, 1)), w, 1, 1)) ** 2).sum()

    x = RNG.standard_normal((2, 64, 8, 8)).astype("f4")
    lowered = rlx.jit(rlx.grad(loss)).lower(w, x).compile()
    assert "window_product" not in {op for row in lowered.report.kernels for op in row.ops}


@pytest.mark.parametrize(
    ("window", "size", "stride", "dilation", "channels", "outputs"),
    [
        ((3, 3), (9, 70), 1, 1, 3, 20),
        ((7, 7), (20, 12), 2, 1, 3, 130),
        ((3, 5), (17, 17), 2, 1, 100, 33),
        ((3, 3), (11, 9), 1, 2, 70, 16),
        ((1, 9), (1, 150), 1, 3, 40, 48),
    ],
)
@pytest.mark.parametrize("groups", [False, True])
def test_windows_of_many_forms(monkeypatch, window, size, stride, dilation, channels, outputs, groups):
    monkeypatch.setattr(picture_layout, "LEAST_PRODUCTS", 0)
    if groups:
        outputs = channels
    n = Network(2, channels, *size)
    padding = tuple((k - 1) * dilation // 2 for k in window)
    w = n.weight(outputs, 1 if groups else channels, *window)
    compiled = n.compiled(ops.conv(n.x, w, stride, padding, dilation, groups=channels if groups else 1))
    assert ("channel_windows" if groups else "window_product") in _kinds(compiled)
    x = RNG.standard_normal((2, channels, *size)).astype("f4")
    op = Conv(window, (stride,) * 2, padding, (dilation,) * 2, channels if groups else 1)
    exact = op.eval(x.astype("f8"), n.weights["w0"].astype("f8"))
    for threads in (1, 2):
        with rlx.threads(threads):
            np.testing.assert_allclose(compiled.run(x=x)[0], exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_pixels_become_fields(monkeypatch):
    monkeypatch.setattr(picture_layout, "LEAST_PRODUCTS", 0)
    n = Network(2, 20, 5, 7)
    w = n.weight(20, 12, 2, 3)
    compiled = n.compiled(ops.conv_transpose(n.x, w, (2, 3)))
    assert "matmul" in _kinds(compiled)
    x = RNG.standard_normal((2, 20, 5, 7)).astype("f4")
    op = ConvTranspose2d((2, 3), (2, 3), (0, 0), (1, 1), (0, 0))
    np.testing.assert_allclose(
        compiled.run(x=x)[0], op.eval(x.astype("f8"), n.weights["w0"].astype("f8")), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("settings", [((3, 3), (1, 1), (1, 1), (1, 1), 3), ((3, 2), (2, 3), (1, 0), (1, 2), 2)])
def test_every_access_is_inside(settings):
    """In the interpreter, which checks each: weights of as many columns as a panel lie in it as they are."""
    window, stride, padding, dilation, together = settings
    columns = 2 * host().lanes(DType.F32)
    op = WindowProduct(window, (6, 4), stride, padding, dilation, together)
    x = RNG.standard_normal((2, 5 + 6 * (stride[0] - 1), 4 * stride[1], 5)).astype("f4")
    w = RNG.standard_normal((window[0] * window[1] * 5, columns)).astype("f4")
    program = Program(op, (x.shape, "f32"), (w.shape, "f32"), kinds=["matmul"])
    wanted = op.eval(x, w)
    np.testing.assert_allclose(program(x, w)[0], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(program.interpreted(x, w)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("channels", [3, 70, 160])
def test_pools_with_channels_last(kind, channels):
    op = ops.reduce_window

    def pool(x):
        return op(x, kind, (1, 3, 2, 1), (1, 2, 1, 1), [(0, 0), (1, 2), (0, 1), (0, 0)], (1, 1, 3, 1))

    x = RNG.standard_normal((2, 7, 9, channels)).astype("f4")
    program = Program(pool, (x.shape, "f32"), kinds=["pool"])
    wanted = np.asarray(pool(x))
    np.testing.assert_allclose(program(x)[0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(program.interpreted(x)[0], wanted, rtol=1e-5, atol=1e-6)
