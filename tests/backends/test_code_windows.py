"""Quantised convolutions multiply codes of 8 bits: whole numbers, exactly."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from backends.op_kernel_checks import Program
from rlx import ops
from rlx.compile.lower import picture_layout
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.machines import host
from rlx.onnx.quantized_rules import centred, dequantized, quantized
from rlx.ops.lowered.int8_products import Int8Panels
from rlx.ops.lowered.window_products import ChannelWindows, CodeWindows
from rlx.ops.nn.convolution import Conv

RNG = np.random.default_rng(12)
HAS_DOTS = bool(host().dot4_lanes)

# Picture, outputs, window, stride, groups, the type of its codes, their zero point.
CASES = {
    "every tap": ((2, 16, 11, 9), 40, 3, 1, 1, "u8", 131),
    "steps along the channels": ((1, 272, 7, 7), 64, 3, 2, 1, "u8", 0),
    "codes with signs": ((1, 24, 8, 10), 24, 5, 1, 1, "i8", -3),
    "three channels": ((1, 3, 20, 17), 16, 3, 2, 1, "u8", 114),
    "pixels": ((2, 20, 6, 7), 72, 1, 1, 1, "u8", 128),
    "every other pixel": ((1, 32, 9, 9), 16, 1, 2, 1, "u8", 5),
    "every channel": ((1, 40, 9, 14), 40, 3, 1, 40, "u8", 77),
    "a line": ((2, 32, 50), 48, 3, 2, 1, "u8", 9),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(picture_layout, "LEAST_PRODUCTS", 0)


def _exact(case, codes, w):
    shape, _, size, stride, groups, _, zero = CASES[case]
    rank = len(shape) - 2
    op = Conv((size,) * rank, (stride,) * rank, (size // 2,) * rank, (1,) * rank, groups)
    return op.eval(codes.astype("f8") - zero, w.astype("f8")).astype("i4")


def _given(case):
    shape, outputs, size, _, groups, kind, _ = CASES[case]
    limits = np.iinfo(DType.of(kind).numpy)
    codes = RNG.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
    w = RNG.integers(-127, 128, (outputs, shape[1] // groups, *(size,) * (len(shape) - 2))).astype("i1")
    return codes, w


def _compiled(case, build, w):
    shape, kind = CASES[case][0], CASES[case][5]
    graph = rlx.Graph("quantised")
    x, weight = graph.input("x", shape, kind), graph.param("w", w.shape, "i8")
    with building(graph):
        graph.set_outputs([build(x, weight)])
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_params({"w": w})
    return compiled


def _conv(case, x, w):
    _, _, size, stride, groups, _, _ = CASES[case]
    return ops.conv(x, w, stride, size // 2, groups=groups)


@pytest.mark.parametrize("case", CASES)
def test_between_quantize_and_dequantize(case):
    codes, w = _given(case)
    rank, zero = codes.ndim - 2, np.asarray(CASES[case][6], codes.dtype)
    scale, scales = np.float32(0.02), RNG.uniform(0.001, 0.01, (w.shape[0], *(1,) * (rank + 1))).astype("f4")
    bias = RNG.standard_normal((w.shape[0], *(1,) * rank)).astype("f4")

    def build(x, weight):
        y = _conv(case, dequantized(x, scale, zero), dequantized(weight, scales, None))
        return quantized(ops.relu(y + bias), np.float32(0.05), np.uint8(3), DType.U8)

    compiled = _compiled(case, build, w)
    kinds = {op for row in compiled.report.kernels for op in row.ops}
    if HAS_DOTS:
        assert kinds & {"code_windows", "int8_matmul", "channel_windows"}, compiled.report
    sums = _exact(case, codes, w).astype("f8") * (0.02 * scales.astype("f8").reshape(-1, *(1,) * rank))
    wanted = np.clip(np.rint(np.maximum(sums + bias, 0) / 0.05) + 3, 0, 255)
    for threads in (1, 2):
        with rlx.threads(threads):
            apart = np.abs(np.asarray(compiled.run(x=codes)[0]).astype("f8") - wanted)
        # A number half way between two codes may be rounded to either.
        assert apart.max() <= 1 and apart.mean() < 1e-3


@pytest.mark.parametrize("case", CASES)
def test_whole_numbers(case):
    codes, w = _given(case)
    zero = np.asarray(CASES[case][6], codes.dtype)
    compiled = _compiled(case, lambda x, weight: _conv(case, centred(x, zero), centred(weight, None)), w)
    np.testing.assert_array_equal(compiled.run(x=codes)[0], _exact(case, codes, w))


@pytest.mark.parametrize("padding", [(1, 1), (0, 2)])
def test_every_access_is_inside(padding):
    """In the interpreter, which checks each, for some columns more than a panel has and for fewer."""
    width = 2 * host().lanes(DType.I32)
    for outputs in (width, width - 3):
        panels, _ = Int8Panels(width).eval(RNG.standard_normal((9 * 12, outputs)).astype("f4"))
        op = CodeWindows((3, 3), (4, 5), (1, 1), padding, (1, 1), 8, outputs, 77)
        x = RNG.integers(0, 256, (2, 4, 5, 12)).astype("u1")
        program = Program(op, (x.shape, "u8"), (panels.shape, "i8"), kinds=["matmul"])
        np.testing.assert_array_equal(program(x, panels)[0], op.eval(x, panels))
        np.testing.assert_array_equal(program.interpreted(x, panels)[0], op.eval(x, panels))


def test_every_access_of_single_channels_is_inside():
    op = ChannelWindows((3, 3), (4, 5), (1, 1), (1, 1), (1, 1), 77)
    x, w = RNG.integers(0, 256, (2, 4, 5, 19)).astype("u1"), RNG.standard_normal((9, 19)).astype("f4")
    program = Program(op, (x.shape, "u8"), (w.shape, "f32"), kinds=["matmul"])
    np.testing.assert_allclose(program(x, w)[0], op.eval(x, w), rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(program.interpreted(x, w)[0], op.eval(x, w), rtol=1e-5, atol=1e-2)
