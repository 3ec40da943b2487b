"""Audio features: log-mel against its formula and finite differences, Welch's method against scipy."""

import numpy as np
import pytest
from scipy import signal

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.shape import Shape

rng = np.random.default_rng(23)


def spectra(frames):
    """Spectra of real frames in block layout."""
    z = np.fft.fft(frames)
    return np.concatenate([z.real, z.imag], axis=-1)


def whisper_features(frames, filters):
    """Log-mel features of time-domain frames, the maximum taken per frame."""
    power = np.abs(np.fft.rfft(frames)) ** 2
    decades = np.log10(np.clip(power @ filters.T, 1e-10, None))
    loudest = decades.max(axis=-1, keepdims=True)
    return (np.maximum(decades, loudest - 8.0) + 4.0) / 4.0


@pytest.mark.parametrize("n_fft", [8, 9])
def test_log_mel(both, n_fft):
    frames, filters = rng.standard_normal((2, 3, n_fft)), rng.uniform(0, 1, (4, n_fft // 2 + 1))
    filters[0] *= 1e-12
    result = both(ops.log_mel, spectra(frames), filters)
    expected = whisper_features(frames, filters)
    np.testing.assert_allclose(result, expected, atol=1e-12)
    # The silent band is cut off at 8 decades below the loudest.
    np.testing.assert_allclose(expected[..., 0], expected.max(axis=-1) - 2.0)


def test_log_mel_backward_is_the_derivative_above_the_cut_off(both):
    x, filters = spectra(rng.standard_normal((2, 6))), rng.uniform(0.2, 1, (3, 4))
    dy, direction = rng.standard_normal((2, 3)), rng.standard_normal(x.shape)
    gradient = np.asarray(both(ops.log_mel_backward, x, filters, dy))
    step = 1e-6
    up, down = (np.asarray(ops.log_mel(x + sign * step * direction, filters)) for sign in (1, -1))
    # No band is cut off here, so the cut-off does not move anything.
    assert np.sum((up - down) * dy) / (2 * step) == pytest.approx(np.sum(gradient * direction), rel=1e-6)


def test_log_mel_backward_is_zero_below_the_cut_off():
    x, filters = spectra(rng.standard_normal((1, 6))), np.array([[1.0, 1, 1, 1], [1e-12, 0, 0, 0], [0, 0, 0, 0]])
    for band in (1, 2):
        np.testing.assert_array_equal(ops.log_mel_backward(x, filters, np.eye(3)[band : band + 1]), np.zeros_like(x))
    # Bins above n_fft/2 are not read.
    gradient = np.asarray(ops.log_mel_backward(x, filters, np.eye(3)[:1]))
    np.testing.assert_array_equal(gradient[0, [4, 5, 10, 11]], 0)
    assert np.abs(gradient).max() > 0


def test_log_mel_sizes():
    assert ops.log_mel_meta(Shape((2, 3, 16)), Shape((4, 5))) == (6, 8, 5, 4)
    assert ops.log_mel_output_shape(Shape(("T", 16), "f16"), Shape((4, 5), "f16")) == Shape(("T", 4), "f16")


@pytest.mark.parametrize("n_fft", [16, 15])
def test_welch_peaks_are_scipys_welch(both, n_fft):
    x = rng.standard_normal((2, 3 * n_fft))
    result = np.asarray(both(lambda s: ops.welch_peaks(s, 4, 3), spectra(x.reshape(6, n_fft))))
    _, density = signal.welch(x, nperseg=n_fft, noverlap=0, window="boxcar", detrend=False)
    order = np.argsort(-density, axis=-1)[:, :4]
    np.testing.assert_array_equal(result[:, 0::2], order)
    np.testing.assert_allclose(result[:, 1::2], np.take_along_axis(density, order, axis=-1) * n_fft)


def test_welch_peaks_ties_and_clamping():
    result = np.asarray(ops.welch_peaks(np.ones((1, 12)), 99, 1))
    assert result.shape == (1, 8)
    np.testing.assert_array_equal(result[0, 0::2], [1, 2, 0, 3])
    np.testing.assert_array_equal(result[0, 1::2], [4, 4, 2, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.log_mel(np.zeros((2, 15)), np.zeros((3, 4))), "spectrum"),
        (lambda: ops.log_mel(np.zeros((2, 16)), np.zeros((3, 4))), r"must be \[n_mels, 5\]"),
        (lambda: ops.log_mel(np.zeros((2, 16)), np.zeros(5)), "filters"),
        (lambda: ops.log_mel_backward(np.zeros((2, 16)), np.zeros((3, 5)), np.zeros((2, 4))), "shape of the features"),
        (lambda: ops.WelchPeaks(0, 1), "at least 1"),
        (lambda: ops.welch_peaks(np.zeros((3, 8)), 1, 2), "not a multiple"),
        (lambda: ops.welch_peaks(np.zeros((2, 7)), 1, 2), "even number of columns"),
        (lambda: ops.welch_peaks(np.zeros(8), 1, 1), "rank 2"),
    ],
)
def test_errors(call, message):
    with pytest.raises((OpError, ShapeError), match=message):
        call()
