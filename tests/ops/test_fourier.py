"""Fourier transforms against numpy.fft, numpy.convolve and scipy.signal."""

import numpy as np
import pytest
from scipy import signal

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.fft import bit_reverse
from rlx.ir.graph import Graph

rng = np.random.default_rng(17)
# numpy calls "backward" what scales the inverse; ours leaves it to the caller.
NUMPY_INVERSE = {"forward": "backward", "ortho": "ortho"}


def signals(*shape):
    return rng.standard_normal(shape)


def blocks(z):
    return np.concatenate([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 12, 17])
def test_fft_of_any_length(both, n):
    z = signals(2, n) + 1j * signals(2, n)
    np.testing.assert_allclose(both(ops.fft, z), np.fft.fft(z), atol=1e-12)
    np.testing.assert_allclose(both(ops.fft, blocks(z)), blocks(np.fft.fft(z)), atol=1e-12)
    np.testing.assert_allclose(both(lambda v: ops.fft(v, inverse=True), z), np.fft.ifft(z) * n, atol=1e-12)


def test_norms():
    z = signals(6) + 1j * signals(6)
    for norm, numpy_norm in NUMPY_INVERSE.items():
        inverse = ops.fft_norm(z, True, norm)
        np.testing.assert_allclose(inverse, np.fft.ifft(z, norm=numpy_norm), atol=1e-12)
        forward_norm = "ortho" if norm == "ortho" else "backward"
        np.testing.assert_allclose(ops.fft_norm(z, False, norm), np.fft.fft(z, norm=forward_norm), atol=1e-12)
    round_trip = ops.fft(ops.fft(z), inverse=True)
    np.testing.assert_allclose(round_trip, 6 * z, atol=1e-12)


def test_low_precision_is_rounded_once():
    x = signals(2, 8).astype(np.float16)
    exact = blocks(np.fft.fft(x[:, :4].astype(np.float64) + 1j * x[:, 4:].astype(np.float64)))
    result = np.asarray(ops.fft(x))
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, exact.astype(np.float16))


def test_any_axis_and_several_axes(both):
    z = signals(3, 4, 5) + 1j * signals(3, 4, 5)
    for axis in (0, 1, -1):
        np.testing.assert_allclose(both(lambda v, a=axis: ops.fft_axis(v, a), z), np.fft.fft(z, axis=axis), atol=1e-12)
    np.testing.assert_allclose(both(ops.fftn, z), np.fft.fftn(z), atol=1e-12)
    np.testing.assert_allclose(both(lambda v: ops.fftn(v, (0, -1)), z), np.fft.fftn(z, axes=(0, 2)), atol=1e-12)
    np.testing.assert_allclose(ops.ifftn(z, norm="forward"), np.fft.ifftn(z), atol=1e-12)
    x = signals(6, 3)
    real_axis = np.fft.fft(x[:3] + 1j * x[3:], axis=0)
    np.testing.assert_allclose(
        both(lambda v: ops.fft_axis(v, 0), x), np.concatenate([real_axis.real, real_axis.imag]), atol=1e-12
    )


@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 8])
def test_real_transforms(both, n, pad):
    x = signals(2, 3, n)
    points = 1 << (n - 1).bit_length() if pad else n
    re, im = both(lambda v: ops.rfft(v, pad=pad), x)
    expected = np.fft.rfft(x, points)
    np.testing.assert_allclose(np.asarray(re) + 1j * np.asarray(im), expected, atol=1e-12)
    back = both(lambda r, i: ops.irfft(r, i, n, "forward", pad), np.asarray(re), np.asarray(im))
    np.testing.assert_allclose(back, x, atol=1e-12)
    re, im = both(lambda v: ops.fft_real(v, pad=pad), x)
    np.testing.assert_allclose(np.asarray(re) + 1j * np.asarray(im), np.fft.fft(x, points), atol=1e-12)
    np.testing.assert_allclose(
        both(lambda r, i: ops.ifft_spectrum(r, i, "forward"), np.asarray(re), np.asarray(im))[..., :n], x, atol=1e-12
    )
    assert [np.asarray(v).tolist() for v in ops.fft_batch_real(x, pad=pad)] == [
        np.asarray(v).tolist() for v in (re, im)
    ]


def test_irfft_of_any_spectrum_matches_numpy():
    for n in (5, 6):
        re, im = signals(4, n // 2 + 1), signals(4, n // 2 + 1)
        np.testing.assert_allclose(
            ops.irfft(re, im, n, "forward", pad=False), np.fft.irfft(re + 1j * im, n), atol=1e-12
        )


@pytest.mark.parametrize("pad", [True, False])
def test_stft_is_the_spectrum_of_each_frame(both, pad):
    x, window = signals(2, 23), np.hanning(6)
    result = both(lambda v: ops.stft(v, 6, 4, pad=pad, window=window), x)
    frames = np.lib.stride_tricks.sliding_window_view(x, 6, axis=-1)[:, ::4]
    expected = np.fft.rfft(frames * window, 8 if pad else 6).swapaxes(0, 1)
    np.testing.assert_allclose(result, blocks(expected), atol=1e-12)


@pytest.mark.parametrize("n_fft", [0, 13, 16, 64, 100])
def test_fft_convolution(both, n_fft):
    a, b = signals(3, 7), signals(3, 5)
    result = both(lambda a, b: ops.fft_conv1d(a, b, n_fft), a, b)
    np.testing.assert_allclose(result, [np.convolve(p, q) for p, q in zip(a, b)], atol=1e-12)


def test_power_spectrum_is_scipys_periodogram(both):
    x = signals(2, 10)
    result = both(lambda v: ops.psd_real(v, pad=False, n=10), x)
    _, expected = signal.periodogram(x, return_onesided=False, detrend=False)
    np.testing.assert_allclose(result, expected[:, :6], atol=1e-12)
    re, im = signals(4), signals(4)
    np.testing.assert_allclose(ops.psd(re, im), (re**2 + im**2) / 4)


def test_frequencies():
    for n in (1, 4, 7):
        np.testing.assert_array_equal(ops.fftfreq_tensor(n), np.fft.fftfreq(n))
        np.testing.assert_array_equal(ops.rfftfreq_tensor(n), np.fft.rfftfreq(n))


def test_padding_and_splitting(both):
    x = signals(2, 5)
    np.testing.assert_array_equal(both(ops.pad_last_axis_to_pow2, x), np.pad(x, ((0, 0), (0, 3))))
    halves = both(ops.split_spectrum, signals(2, 6))
    assert [np.asarray(h).shape for h in halves] == [(2, 3), (2, 3)]


def test_butterfly_stages_make_a_transform(both):
    n, h = 8, 4
    z = signals(2, n) + 1j * signals(2, n)
    order = [bit_reverse(i, 3) for i in range(n)]
    state = np.stack([z.real, z.imag], axis=-1)[:, order]
    ones, zeros = np.ones(h), np.zeros(h)
    for stage in range(3):
        sigma = 2**stage
        twiddle = np.exp(-1j * np.pi * (np.arange(h) % sigma) / sigma)
        state = np.asarray(
            both(
                lambda s, re, im, stage=stage: ops.fft_butterfly_stage(s, ones, zeros, re, im, stage, n),
                state,
                twiddle.real,
                twiddle.imag,
            )
        )
    np.testing.assert_allclose(state[..., 0] + 1j * state[..., 1], np.fft.fft(z), atol=1e-12)


def test_gates_copy_and_reversals_exchange():
    state = np.arange(8.0).reshape(1, 4, 2)
    one, zero = np.ones(2), np.zeros(2)
    run = ops.FftButterflyStage(1, 4)
    plain = np.asarray(run(state, one, zero, one, zero))
    np.testing.assert_array_equal(run(state, zero, zero, one, zero), state)
    np.testing.assert_array_equal(run(state, one, one, one, zero), plain[:, [2, 3, 0, 1]])


def test_symbolic_batch():
    graph = Graph()
    x = graph.input("x", ("B", 6), "f32")
    re, _ = ops.rfft(x)
    assert str(re.type) == "f32[B,5]"
    assert str(ops.stft(x, 4, 1).type) == "f32[3,B,6]"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.fft(np.zeros(5)), "its size is even"),
        (lambda: ops.fft(np.float64(1)), "needs an axis"),
        (lambda: ops.Fft(norm="sideways"), "norm='sideways' is not valid"),
        (lambda: ops.fftn(np.zeros((4, 4))), "need a complex operand"),
        (lambda: ops.fft_axis(np.zeros((4, 4)), 2), "axis 2 is out of range"),
        (lambda: ops.rfft(np.zeros(4, np.complex64)), "needs real operands"),
        (lambda: ops.irfft(np.zeros(3), np.zeros(3), 6), "need 5 bins, got 3 and 3"),
        (lambda: ops.split_spectrum(np.zeros(3)), "even last axis"),
        (lambda: ops.stft(np.zeros(3), 4, 1), "at least one frame"),
        (lambda: ops.fft_conv1d(np.zeros(0), np.zeros(1)), "at least one sample"),
        (lambda: ops.FftButterflyStage(3, 8), "no stage 3"),
        (lambda: ops.FftButterflyStage(0, 6), "power of two"),
        (lambda: ops.FftButterflyStage(0, 4)(np.zeros((3, 2)), *[np.zeros(2)] * 4), r"needs a state \[.., 4, 2\]"),
        (lambda: ops.FftButterflyStage(0, 4)(np.zeros((4, 2)), *[np.zeros(3)] * 4), "one value per butterfly"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()


def test_symbolic_axis_needs_a_size():
    x = Graph().input("x", ("N",), "f32")
    with pytest.raises(ShapeError, match="bind it first"):
        ops.rfft(x)
