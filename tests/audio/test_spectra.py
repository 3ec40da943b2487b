"""Short-time transforms, mel features and cepstra against NumPy and SciPy."""

import math

import numpy as np
import pytest
import scipy.fft
import scipy.signal

import rlx
import rlx.numpy as rnp
from rlx import audio
from rlx.errors import DTypeError, OpError, ShapeError

RNG = np.random.default_rng(7)
NOISE = RNG.standard_normal((2, 3000)).astype("f4")


def spectra(x, n_fft, hop, window, center, mode="reflect"):
    """The definition, in f64."""
    x = np.asarray(x, np.float64)
    if center:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)], mode=mode)
    frames = np.lib.stride_tricks.sliding_window_view(x, n_fft, axis=-1)[..., ::hop, :]
    return np.swapaxes(np.fft.rfft(frames * window), -1, -2)


@pytest.mark.parametrize("kind", ["hann", "hamming", "blackman", "blackmanharris", "boxcar", ("kaiser", 8.6)])
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_windows_are_those_of_scipy(kind, length):
    for periodic in (True, False):
        wanted = scipy.signal.get_window(kind, length, fftbins=periodic)
        np.testing.assert_allclose(audio.window(kind, length, periodic), wanted, atol=1e-15)


def test_bad_windows_are_refused():
    with pytest.raises(OpError, match="'hat' is not one of 'hann'"):
        audio.window("hat", 4)
    with pytest.raises(ShapeError, match="needs 4 values, got an array \\[3\\]"):
        audio.window(np.ones(3), 4)
    with pytest.raises(ShapeError, match="at least one value"):
        audio.window("hann", 0)
    with pytest.raises(OpError, match="must be known while the program is built"):
        rlx.jit(lambda x, w: audio.stft(x, 8, window=w))(NOISE, np.ones(8, "f4"))


@pytest.mark.parametrize(("n_fft", "hop"), [(400, 160), (512, 128), (255, 100), (2, 1), (1, 1), (6, 10)])
@pytest.mark.parametrize("center", [True, False])
def test_stft(n_fft, hop, center):
    window = scipy.signal.get_window("hann", n_fft)
    wanted = spectra(NOISE, n_fft, hop, window, center)
    scale = abs(wanted).max() + 1e-6
    got = audio.stft(NOISE, n_fft, hop, center=center)
    assert got.shape == wanted.shape and got.dtype == np.complex64
    np.testing.assert_allclose(got, wanted, atol=1e-6 * scale)
    compiled = rlx.jit(lambda x: audio.stft(x, n_fft, hop, center=center))(NOISE)
    np.testing.assert_allclose(compiled, wanted, atol=2e-6 * scale)


def test_stft_is_that_of_scipy():
    window = scipy.signal.get_window("hann", 256)
    transform = scipy.signal.ShortTimeFFT(window, 64, 1.0, phase_shift=None)
    # SciPy's first slices reach over the beginning, which it fills with zeros.
    wanted = transform.stft(NOISE[0].astype("f8"))[:, 2 - transform.p_min :]
    got = np.asarray(audio.stft(NOISE[0], 256, 64))[:, 2:]
    np.testing.assert_allclose(got[:, :40], wanted[:, :40], atol=1e-4)


def test_short_windows_stand_in_the_middle():
    values = np.hanning(10)
    wanted = spectra(NOISE, 16, 4, np.pad(values, 3), True)
    np.testing.assert_allclose(audio.stft(NOISE, 16, 4, window=values), wanted, atol=1e-5)


def test_f64_stays_f64_and_f16_becomes_f32():
    assert audio.stft(NOISE.astype("f8"), 64).dtype == np.complex128
    assert audio.stft(NOISE.astype("f2"), 64).dtype == np.complex64


@pytest.mark.parametrize(("n_fft", "hop", "length"), [(64, 16, 3000), (64, 16, 2990), (63, 20, 3000), (64, 48, 2900)])
def test_istft_brings_the_signal_back(n_fft, hop, length):
    spectrum = audio.stft(NOISE, n_fft, hop)
    back = audio.istft(spectrum, hop, n_fft=n_fft, length=length)
    whole = (spectrum.shape[-1] - 1) * hop
    np.testing.assert_allclose(back[:, : min(whole, length)], NOISE[:, : min(whole, length)], atol=2e-6)
    assert back.shape == (2, length)
    compiled = rlx.jit(lambda s: audio.istft(s, hop, n_fft=n_fft, length=length))(spectrum)
    np.testing.assert_allclose(compiled, back, atol=2e-6)


def test_istft_of_scipys_spectrum():
    options = {"nperseg": 128, "noverlap": 96, "window": "hamming", "scaling": "spectrum"}
    _, _, spectrum = scipy.signal.stft(NOISE, boundary=None, padded=False, **options)
    _, wanted = scipy.signal.istft(spectrum, boundary=False, **options)
    window = scipy.signal.get_window("hamming", 128)
    back = audio.istft((spectrum * window.sum()).astype("c8"), 32, window="hamming", center=False)
    np.testing.assert_allclose(back, wanted, atol=2e-6)


def test_what_spectra_refuse():
    with pytest.raises(ShapeError, match="reflecting 32 samples at each end needs more than 32 samples, got 20"):
        audio.stft(NOISE[:, :20], 64)
    with pytest.raises(ShapeError, match="n_fft=64 samples does not fit into 20"):
        audio.stft(NOISE[:, :20], 64, center=False)
    with pytest.raises(ShapeError, match="hop must be a whole number of at least 1, got -1"):
        audio.stft(NOISE, 64, -1)
    with pytest.raises(ShapeError, match="hop must be a whole number of at least 1, got 0"):
        audio.spectrogram(NOISE, 64, 0)
    with pytest.raises(ShapeError, match="length must not be negative, got -1"):
        audio.istft(audio.stft(NOISE, 64), length=-1)
    with pytest.raises(DTypeError, match="needs real samples, got c64"):
        audio.stft(NOISE.astype("c8"), 64)
    with pytest.raises(ShapeError, match="time on its last axis, got a scalar"):
        audio.stft(np.float32(1), 64)
    with pytest.raises(OpError, match="leaves samples uncovered"):
        audio.istft(audio.stft(NOISE, 64, 65), 65)
    with pytest.raises(ShapeError, match="n_fft=100 has 51 bins, got 33 in 188 frames"):
        audio.istft(audio.stft(NOISE, 64), n_fft=100)
    with pytest.raises(OpError, match="needs a complex spectrum"):
        audio.istft(np.ones((3, 4), "f4"))
    with pytest.raises(ShapeError, match="does not fit into 3"):
        audio.frame(np.ones(3, "f4"), 4, 1)


def test_spectrogram_powers():
    wanted = abs(spectra(NOISE, 64, 16, scipy.signal.get_window("hann", 64), True))
    np.testing.assert_allclose(audio.spectrogram(NOISE, 64), wanted**2, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(audio.spectrogram(NOISE, 64, power=1.0), wanted, rtol=1e-3, atol=1e-3)


def test_gradient_of_a_spectrogram_is_a_difference_quotient():
    x = NOISE[0, :200].astype("f8")
    weights = RNG.standard_normal((17, 26))

    def loss(x):
        return rnp.sum(rnp.log1p(audio.spectrogram(x, 32)) * weights)

    direction = RNG.standard_normal(200)
    step = 1e-5
    wanted = (float(loss(x + step * direction)) - float(loss(x - step * direction))) / (2 * step)
    got = np.asarray(rlx.jit(rlx.grad(loss))(x)) @ direction
    assert math.isclose(got, wanted, rel_tol=1e-6)


def test_silence_has_a_gradient_of_zero_and_nan_stays_nan():
    def loudness(x):
        return rnp.sum(audio.spectrogram(x, 64, power=1.0))

    slope = np.asarray(rlx.jit(rlx.grad(loudness))(np.zeros(400, "f4")))
    assert not slope.any() and np.isfinite(slope).all()
    assert np.isnan(loudness(np.full(400, np.nan, "f4")))


def test_vmap_is_a_loop():
    def features(x):
        return audio.mfcc(x, 8000, 5, 64, n_mels=10)

    batched = rlx.vmap(features)(NOISE)
    np.testing.assert_allclose(batched, np.stack([features(row) for row in NOISE]), atol=1e-4)


@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_mel_scales(scale):
    hz = np.array([0.0, 440.0, 999.0, 1000.0, 1001.0, 8000.0])
    np.testing.assert_allclose(audio.mel_to_hz(audio.hz_to_mel(hz, scale), scale), hz, atol=1e-9)
    if scale == "htk":
        # The scale is made so that 1000 Hz are 1000 mel.
        assert math.isclose(audio.hz_to_mel(1000.0, scale), 1000.0, rel_tol=1e-3)
    else:
        # 200/3 Hz for each mel below 1000 Hz; 6400 Hz lie 27 mel above.
        np.testing.assert_allclose(audio.hz_to_mel([200 / 3, 1000, 6400]), [1, 15, 42])


def test_mel_filters_are_triangles():
    filters = audio.mel_filters(16000, 400, 80).astype("f8")
    corners = audio.mel_to_hz(np.linspace(0, audio.hz_to_mel(8000.0), 82))
    bins = np.arange(201) * 40.0
    for m in range(80):
        wanted = np.interp(bins, corners[m : m + 3], [0.0, 2.0 / (corners[m + 2] - corners[m]), 0.0])
        np.testing.assert_allclose(filters[m], wanted, atol=1e-8)
    assert audio.mel_filters(16000, 400, 20, norm=None).max() <= 1.0


def test_what_mel_filters_refuse():
    with pytest.raises(OpError, match="low < high <= rate/2 = 4000"):
        audio.mel_filters(8000, 64, 10, high=5000)
    with pytest.raises(OpError, match="scale must be 'slaney' or 'htk', got 'bark'"):
        audio.mel_filters(8000, 64, 10, scale="bark")
    with pytest.raises(OpError, match="norm must be 'slaney' or None"):
        audio.mel_filters(8000, 64, 10, norm="l1")


def test_mfcc_step_by_step():
    power = abs(spectra(NOISE, 256, 64, scipy.signal.get_window("hann", 256), True)) ** 2
    mel = audio.mel_filters(8000, 256, 40).astype("f8") @ power
    db = 10 * np.log10(np.maximum(mel, 1e-10))
    db = np.maximum(db, db.max() - 80)
    wanted = scipy.fft.dct(db, axis=-2, norm="ortho")[:, :13]
    got = rlx.jit(lambda x: audio.mfcc(x, 8000, 13, 256, n_mels=40))(NOISE)
    np.testing.assert_allclose(got, wanted, atol=2e-3)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_dct_is_that_of_scipy(size):
    x = RNG.standard_normal((3, size))
    np.testing.assert_allclose(audio.dct(x), scipy.fft.dct(x, norm="ortho"), atol=1e-12)
    with pytest.raises(OpError, match="coefficients, got n=9"):
        audio.dct(x, 9)


def whisper_recipe(x, n_mels):
    """The published steps, in f64."""
    power = abs(spectra(x, 400, 160, scipy.signal.get_window("hann", 400), True))[..., :-1] ** 2
    mel = audio.mel_filters(16000, 400, n_mels).astype("f8") @ power
    v = np.log10(np.maximum(mel, 1e-10))
    return (np.maximum(v, v.max() - 8.0) + 4.0) / 4.0


@pytest.mark.parametrize("n_mels", [80, 128])
def test_whisper_log_mel_is_the_published_recipe(n_mels):
    time = np.arange(32000) / 16000
    # A tone in noise, then noise, then silence. Beside a tone without noise f32 itself has fewer digits than this.
    tone = 0.5 * np.sin(2 * np.pi * 440 * time) * (time < 1.0)
    x = (tone + 0.1 * RNG.standard_normal(32000) * (time < 1.5)).astype("f4")
    wanted = whisper_recipe(x, n_mels)
    got = rlx.jit(lambda x: audio.whisper_log_mel(x, n_mels))(x)
    assert got.shape == (n_mels, 200)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    np.testing.assert_allclose(audio.whisper_log_mel(x, n_mels), wanted, atol=1e-5)
    both = audio.whisper_log_mel(np.stack([x, 0 * x]), n_mels)
    np.testing.assert_allclose(both[0], wanted, atol=1e-5)
    assert np.all(np.asarray(both[1]) == np.float32(-1.5))
