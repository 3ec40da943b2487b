"""Convolutions by products and by planes: SciPy's correlations forward, the definitions backward, several targets."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_kernel_checks import Program
from scipy import signal

from rlx.ir.dtype import DType
from rlx.kernels.ir.loop_ir import For, walk
from rlx.kernels.machines import AVX2, AVX512, NEON, SSE2, host, runs_here
from rlx.ops.nn.convolution import Conv, ConvTranspose2d
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput, Conv2dBackwardWeight


def normal(*dims, seed=0, dtype="f4"):
    return np.random.default_rng(seed).normal(size=dims).astype(dtype)


def correlated(x, w, stride, padding, dilation, groups):
    """The convolution by SciPy: one correlation for each pair of channels, kernels with zeros between their taps."""
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), *((p, p) for p in padding)))
    sizes = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    wide = np.zeros((*w.shape[:2], *sizes))
    wide[(..., *(slice(None, None, d) for d in dilation))] = w
    each, per_group = w.shape[1], w.shape[0] // groups
    steps = tuple(slice(None, None, s) for s in stride)
    return np.array(
        [
            [
                sum(signal.correlate(image[o // per_group * each + c], wide[o, c], "valid") for c in range(each))[steps]
                for o in range(w.shape[0])
            ]
            for image in x
        ]
    )


def close(got, wanted, rtol):
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=1.0)
    np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=rtol, atol=rtol * scale)


def check(kernel, stride, padding, dilation, groups, dims, channels, dtype="f32", rtol=4e-6):
    numpy = DType(dtype).numpy
    x, w = normal(*dims).astype(numpy), normal(channels, dims[1] // groups, *kernel, seed=1).astype(numpy)
    attributes = (kernel, stride, padding, dilation, groups)
    forward = Conv(*attributes)
    wanted = correlated(x, w, *attributes[1:])
    (y,) = Program(forward, (x.shape, dtype), (w.shape, dtype))(x, w)
    close(y, wanted, rtol)
    dy = normal(*wanted.shape, seed=2).astype(numpy)
    for op, operands in (
        (Conv2dBackwardInput(*attributes, x_shape=x.shape), (dy, w)),
        (Conv2dBackwardWeight(*attributes), (x, dy)),
    ):
        program = Program(op, *((a.shape, dtype) for a in operands), kinds=["conv"])
        close(program(*operands)[0], op.eval(*operands), rtol)


# kernel, stride, padding, dilation, groups, x, output channels
CASES = {
    "several steps along the channels": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (1, 40, 9, 23), 70),
    "more rows than one block": ((1, 3), (1, 1), (0, 1), (1, 1), 1, (2, 9, 4, 21), 110),
    "few positions": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (2, 30, 5, 5), 20),
    "phases of a stride": ((3, 3), (2, 2), (1, 1), (1, 1), 1, (1, 8, 15, 18), 12),
    "phases without taps": ((2, 1), (3, 2), (0, 0), (1, 1), 1, (1, 4, 11, 14), 6),
    "phases of one channel": ((4, 4), (2, 2), (1, 1), (1, 1), 1, (2, 1, 14, 30), 9),
    "phases of two channels": ((3, 2), (2, 2), (1, 0), (1, 1), 1, (1, 2, 9, 20), 4),
    "a stride of three": ((5, 4), (3, 3), (2, 2), (1, 1), 1, (1, 5, 17, 40), 9),
    "dilation": ((3, 3), (1, 1), (2, 3), (2, 3), 1, (1, 6, 12, 19), 8),
    "dilation and stride": ((3, 3), (2, 2), (2, 2), (2, 2), 1, (1, 6, 12, 19), 8),
    "groups": ((3, 3), (1, 1), (1, 1), (1, 1), 4, (2, 16, 6, 17), 24),
    "windows of one element": ((1, 1), (1, 1), (0, 0), (1, 1), 1, (2, 70, 7, 7), 20),
    "a line": ((9,), (2,), (4,), (1,), 1, (2, 5, 130), 16),
    "a volume": ((2, 3, 3), (1, 2, 1), (1, 1, 1), (1, 1, 1), 1, (1, 4, 5, 6, 18), 8),
    "many taps": ((7, 7), (2, 2), (3, 3), (1, 1), 1, (1, 3, 30, 37), 10),
    "single channels": ((3, 3), (1, 1), (1, 1), (1, 1), 12, (2, 12, 9, 17), 12),
    "single channels, strided": ((3, 3), (2, 2), (1, 1), (1, 1), 8, (1, 8, 15, 35), 8),
    "single channels, wide kernel": ((5, 5), (1, 1), (2, 2), (1, 1), 6, (1, 6, 8, 40), 6),
    "single channels, dilated": ((3, 3), (1, 1), (2, 2), (2, 2), 5, (1, 5, 13, 21), 5),
    "single channels in strips": ((3, 3), (1, 1), (1, 1), (1, 1), 3, (1, 3, 420, 33), 3),
    "several of each channel": ((3, 3), (1, 1), (1, 1), (1, 1), 4, (1, 4, 7, 19), 12),
    "one channel for several": ((2, 3), (1, 1), (2, 1), (2, 1), 2, (1, 8, 2, 6), 2),
    "single channels of a line": ((4,), (2,), (1,), (1,), 7, (2, 7, 50), 7),
    "a first layer": ((7, 7), (2, 2), (3, 3), (1, 1), 1, (2, 3, 20, 33), 19),
    "a first layer in two parts": ((11, 11), (4, 4), (2, 2), (1, 1), 1, (1, 3, 31, 40), 96),
    "a first layer of wide rows": ((3, 5), (1, 1), (1, 2), (2, 1), 1, (1, 4, 9, 270), 33),
    "a first layer of groups": ((3, 3), (2, 1), (4, 1), (1, 1), 2, (2, 6, 12, 12), 48),
    "a first layer of a signal": ((10,), (5,), (0,), (1,), 1, (2, 1, 300), 40),
    "windows beside each other": ((4, 4), (4, 4), (0, 0), (1, 1), 1, (1, 1, 30, 30), 16),
    "rows that no window sees": ((2, 2), (2, 2), (0, 0), (1, 1), 5, (1, 5, 7, 9), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    check(*CASES[name])


@pytest.mark.parametrize(
    "name", ["several steps along the channels", "phases of a stride", "single channels, strided", "a first layer"]
)
def test_double_precision(name):
    check(*CASES[name], dtype="f64", rtol=1e-13)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 2))
    sizes = st.lists(st.integers(1, 3), min_size=rank, max_size=rank).map(tuple)
    kernel, stride, dilation = draw(sizes), draw(sizes), draw(sizes)
    padding = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank).map(tuple))
    groups = draw(st.sampled_from([1, 1, 2, 6]))
    inputs, outputs = groups * draw(st.integers(1, 4)), groups * draw(st.integers(1, 5))
    image = tuple(draw(st.integers(max(1, (k - 1) * d + 1 - 2 * p), 24)) for k, d, p in zip(kernel, dilation, padding))
    return kernel, stride, padding, dilation, groups, (draw(st.integers(1, 2)), inputs, *image), outputs


def test_a_size_of_one_between_zeros():
    """Its stride is 0, and what lies beside it was taken for it."""
    check((1,), (1,), (1,), (1,), 1, (1, 2, 1), 1)
    check((2, 2), (1, 1), (2, 1), (1, 1), 1, (1, 2, 1, 1), 2)


@settings(max_examples=10)
@given(convolutions())
def test_any_convolution(case):
    check(*case)


# What each kernel is: its op, and the dims of its operands.
KINDS = {
    "product": (Conv((3, 3), (1, 1), (1, 1), (1, 1)), (1, 5, 6, 7), (9, 5, 3, 3)),
    "strided product": (Conv((3, 2), (2, 2), (1, 0), (1, 1)), (1, 5, 6, 9), (4, 5, 3, 2)),
    "adjoint": (Conv2dBackwardInput((3, 3), (1, 1), (1, 1), (1, 1), x_shape=(1, 4, 9, 9)), (1, 6, 9, 9), (6, 4, 3, 3)),
    "phases": (ConvTranspose2d((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)), (1, 4, 4, 5), (4, 5, 3, 3)),
    "gradient of weights": (Conv2dBackwardWeight((3, 2), (1, 1), (1, 0), (1, 1)), (2, 3, 5, 8), (2, 7, 5, 7)),
    "gradient of first weights": (Conv2dBackwardWeight((3, 3), (2, 2), (1, 1), (1, 1)), (2, 3, 9, 8), (2, 17, 5, 4)),
    "single channels": (Conv((3, 3), (2, 2), (1, 1), (1, 1), 4), (1, 4, 7, 9), (4, 1, 3, 3)),
    "adjoint of single channels": (
        Conv2dBackwardInput((3, 3), (2, 2), (1, 1), (1, 1), 3, x_shape=(1, 3, 8, 10)),
        *((1, 3, 4, 5), (3, 1, 3, 3)),
    ),
    "gradient of single channels": (
        Conv2dBackwardWeight((3, 3), (1, 1), (1, 1), (1, 1), 3),
        (1, 3, 5, 9),
        (1, 3, 5, 9),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_target_and_the_interpreter_agree(kind):
    op, *dims = KINDS[kind]
    arrays = [normal(*d, seed=i) for i, d in enumerate(dims)]
    program = Program(op, *((d, "f32") for d in dims), kinds=["conv"])
    wanted = op.eval(*arrays)
    close(program(*arrays)[0], wanted, 4e-6)
    close(program.interpreted(*arrays)[0], wanted, 4e-6)
    for target in (AVX2, SSE2):
        assert runs_here(target) or host().name.startswith(("neon", "riscv"))
        if runs_here(target):
            close(program.ran_on(target, *arrays)[0], wanted, 4e-6)
    assert all(made.kernel.text for made in program.kernels(NEON))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_steps_back_to_an_image_divide_no_lanes(channels):
    """The last layer of a generator: which tap meets which element was asked of every lane, 25 times as long."""
    op = ConvTranspose2d((4, 4), (2, 2), (1, 1), (1, 1), (0, 0))
    [made] = Program(op, ((2, 8, 7, 7), "f32"), ((8, channels, 4, 4), "f32"), kinds=["conv"]).kernels(AVX2)
    assert not re.search(r"i64x\d+ = (div|rem)", str(made.kernel.text))


def test_what_no_window_sees_does_not_count():
    """The last row and column belong to no window; lanes beyond the last position read them all the same."""
    x, dy, w = normal(1, 2, 5, 7), normal(1, 2, 2, 3, seed=1), normal(2, 1, 2, 2, seed=2)
    x[:, :, -1], x[:, :, :, -1] = np.inf, np.nan
    attributes = ((2, 2), (2, 2), (0, 0), (1, 1))
    for groups, weights in ((2, w), (1, normal(2, 2, 2, 2))):
        backward = Program(Conv2dBackwardWeight(*attributes, groups), (x.shape, "f32"), (dy.shape, "f32"))
        assert np.isfinite(backward(x, dy)[0]).all()
        forward = Program(Conv(*attributes, groups), (x.shape, "f32"), (weights.shape, "f32"))
        assert np.isfinite(forward(x, weights)[0]).all()


@pytest.mark.parametrize("groups", [1, 4])
def test_sizes_that_only_the_run_knows(groups):
    op = Conv((3, 3), (1, 2), (1, 1), (1, 1), groups)
    program = Program(op, (("N", 4, "H", "W"), "f32"), ((8, 4 // groups, 3, 3), "f32"))
    gradient = Conv2dBackwardWeight((3, 3), (1, 2), (1, 1), (1, 1), groups)
    w = normal(8, 4 // groups, 3, 3, seed=1)
    for dims in ((1, 4, 5, 40), (2, 4, 3, 2), (0, 4, 4, 4)):
        x = normal(*dims)
        y = op.eval(x, w)
        close(program(x, w)[0], y, 4e-6)
    operands = ((("N", 4, "H", "2*V"), "f32"), (("N", 8, "H", "V"), "f32"))
    backward = Program(gradient, *operands)
    for n, h, v in ((1, 3, 9), (2, 6, 2), (0, 2, 2)):
        x, dy = normal(n, 4, h, 2 * v), normal(n, 8, h, v, seed=2)
        close(backward(x, dy)[0], gradient.eval(x, dy), 4e-6)


# Output channels and positions that leave every number of rows and of vectors for the last tile.
WIDTHS = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 130)


@pytest.mark.parametrize(("channels", "width"), [*zip(range(1, len(WIDTHS) + 1), WIDTHS)])
def test_there_is_code_for_the_tiles_that_blocks_of_known_sizes_meet(channels, width):
    check((1, 2), (1, 1), (0, 0), (1, 1), 1, (1, channels + 3, 1, width + 1), channels)


def tiles_of(channels, width):
    """How many register tiles the code of a convolution has."""
    op = Conv((1, 3), (1, 1), (0, 1), (1, 1), 1)
    program = Program(op, ((1, 4, 1, width), "f32"), ((channels, 4, 1, 3), "f32"), kinds=["conv"])
    [made] = program.kernels(AVX512)
    loops = [s for s in walk(made.kernel.body) if isinstance(s, For) and s.index.name.startswith("p")]
    return sum(bool(loop.carried) for loop in loops)


def test_a_convolution_of_known_sizes_has_no_code_for_tiles_that_it_does_not_meet():
    assert tiles_of(12, 64) == 1
    assert tiles_of(13, 64) == 2  # whole tiles of 6 rows, and one row
    assert tiles_of(13, "W") == 6  # these two with 1, 2 and 4 vectors
