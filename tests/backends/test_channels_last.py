"""Convolutions of pictures whose channels lie side by side: computed as they lie, and right."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from backends.op_kernel_checks import Program
from rlx import lax
from rlx.ops.lowered.window_products import ChannelWindows, WindowMatMul

LAST = ("NHWC", "HWIO", "NHWC")

# Picture, window with its channels, stride, padding of both sides, dilation, groups.
CASES = {
    "odd sizes": ((2, 10, 11, 5), (3, 3, 5, 7), (1, 1), (1, 1), (1, 1), 1),
    "whole vectors": ((1, 20, 70, 32), (3, 3, 32, 64), (1, 1), (1, 1), (1, 1), 1),
    "strides": ((2, 17, 70, 16), (5, 3, 16, 20), (2, 2), (0, 0), (1, 1), 1),
    "dilation, channels in steps": ((1, 9, 9, 300), (3, 3, 300, 130), (1, 1), (1, 2), (1, 2), 1),
    "few channels": ((1, 40, 9, 3), (7, 7, 3, 8), (2, 2), (3, 3), (1, 1), 1),
    "panels of equal width": ((2, 9, 20, 10), (3, 3, 10, 96), (1, 1), (1, 1), (1, 1), 1),
    "a panel that is not full": ((2, 9, 20, 10), (3, 3, 10, 72), (1, 1), (1, 1), (1, 1), 1),
    "one tap": ((3, 7, 9, 40), (1, 1, 40, 24), (1, 1), (0, 0), (1, 1), 1),
    "every channel": ((2, 15, 16, 70), (5, 5, 1, 70), (2, 1), (2, 2), (1, 1), 70),
    "every channel, more taps than are written out": ((1, 6, 14, 20), (1, 9, 1, 20), (1, 1), (0, 4), (1, 1), 20),
    "every channel, no place without an edge": ((1, 5, 3, 20), (3, 5, 1, 20), (1, 1), (1, 2), (1, 1), 20),
    "every channel, dilation": ((2, 12, 13, 8), (3, 3, 1, 8), (1, 1), (2, 2), (2, 2), 8),
}


def _conv(case):
    _, _, stride, padding, dilation, groups = CASES[case]
    pads = [(p, p) for p in padding]
    return lambda x, w: lax.conv_general_dilated(
        x, w, stride, pads, rhs_dilation=dilation, dimension_numbers=LAST, feature_group_count=groups
    )


def _by_numpy(case, x, w):
    _, (height, width, _, _), stride, padding, dilation, groups = CASES[case]
    around = np.pad(x.astype("f8"), ((0, 0), *((p, p) for p in padding), (0, 0)))
    reach = [(taps - 1) * d + 1 for taps, d in zip((height, width), dilation)]
    seen = np.lib.stride_tricks.sliding_window_view(around, reach, (1, 2))
    seen = seen[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]
    if groups > 1:
        return np.einsum("npqchw,hwc->npqc", seen, w[:, :, 0].astype("f8"))
    return np.einsum("npqchw,hwco->npqo", seen, w.astype("f8"))


def _arrays(case, dtype):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(dtype) for shape in CASES[case][:2]]


@pytest.mark.parametrize("case", CASES)
def test_pictures_are_convolved_as_they_lie(case):
    x, w = _arrays(case, "f4")
    compiled = rlx.jit(_conv(case)).lower(x, w).compile()
    assert not [row for row in compiled.report.kernels if row.kind == "map"], compiled.report
    wanted = _by_numpy(case, x, w)
    np.testing.assert_allclose(compiled(x, w), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("case", ["odd sizes", "strides", "one tap", "every channel, dilation"])
def test_f64_and_gradients(case):
    x, w = _arrays(case, "f8")
    conv = _conv(case)
    np.testing.assert_allclose(rlx.jit(conv)(x, w), _by_numpy(case, x, w), rtol=1e-12, atol=1e-11)
    direction = _arrays(case, "f8")
    gradients = rlx.jit(rlx.grad(lambda x, w: (conv(x, w) ** 2).sum(), (0, 1)))(x, w)
    along = sum(np.vdot(g, v) for g, v in zip(gradients, direction))
    step = 1e-6
    ends = [(_by_numpy(case, x + s * direction[0], w + s * direction[1]) ** 2).sum() for s in (step, -step)]
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


def test_lines_with_channels_last():
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((3, 50, 20)).astype("f4"), rng.standard_normal((3, 20, 9)).astype("f4")
    numbers = ("NHC", "HIO", "NHC")
    found = rlx.jit(lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=numbers))(x, w)
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (0, 0))), 3, 1)
    np.testing.assert_allclose(found, np.einsum("npch,hco->npo", seen, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [WindowMatMul, ChannelWindows])
def test_every_access_is_inside(op):
    """In the interpreter, and with every number of threads the same bits."""
    for case in op.samples():
        program = Program(case.op, *((t.dims, t.dtype) for t in case.shapes("f32")))
        arrays = case.arrays("f32")
        wanted = case.op.eval(*arrays)
        np.testing.assert_allclose(program(*arrays)[0], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(program.interpreted(*arrays)[0], wanted, rtol=1e-5, atol=1e-5)


# Taps of a line, stride and dilation: taps that no scratch holds side by side, and windows that see too much for it.
LONG = {"many taps": (50_000, 5000, 1), "far apart": (3, 1, 100_000), "few steps": (400, 7, 1)}


@pytest.mark.parametrize("case", LONG)
def test_windows_that_see_much(case):
    taps, stride, dilation = LONG[case]
    length = (taps - 1) * dilation + 1 + 9 * stride
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((1, length, 2)).astype("f4"), rng.standard_normal((taps, 2, 40)).astype("f4")

    def conv(x, w):
        return lax.conv_general_dilated(
            x, w, (stride,), "VALID", rhs_dilation=(dilation,), dimension_numbers=("NHC", "HIO", "NHC")
        )

    seen = np.stack([x[0, p * stride :][: (taps - 1) * dilation + 1 : dilation] for p in range(10)]).astype("f8")
    wanted = np.einsum("phc,hco->po", seen, w.astype("f8"))
    np.testing.assert_allclose(rlx.jit(conv)(x, w)[0], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
