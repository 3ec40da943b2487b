"""Power densities against SciPy, and the peaks of known signals."""

import numpy as np
import pytest
import scipy.signal

import rlx
import rlx.numpy as rnp
from rlx import rf
from rlx.errors import OpError, ShapeError

RNG = np.random.default_rng(4)
REAL = RNG.standard_normal((2, 1000)).astype("f4")
IQ = (RNG.standard_normal((2, 1000)) + 1j * RNG.standard_normal((2, 1000))).astype("c8")


@pytest.mark.parametrize(("n_fft", "hop"), [(256, 128), (100, 30), (63, 63)])
@pytest.mark.parametrize("detrend", [False, "constant"])
def test_welch_is_that_of_scipy(n_fft, hop, detrend):
    for x in (REAL, IQ):
        is_complex = x is IQ
        f, wanted = scipy.signal.welch(
            x, 48000, nperseg=n_fft, noverlap=n_fft - hop, detrend=detrend, return_onesided=not is_complex
        )
        if is_complex:
            f, wanted = np.fft.fftshift(f), np.fft.fftshift(wanted, axes=-1)
        np.testing.assert_allclose(rf.frequencies(n_fft, 48000, is_complex), f)
        got = rlx.jit(lambda x: rf.welch(x, 48000, n_fft, hop, detrend=bool(detrend)))(x)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6 * wanted.max())


def test_psd_is_a_periodogram():
    _, wanted = scipy.signal.periodogram(REAL.astype("f8"), 8000, detrend=False)
    np.testing.assert_allclose(rf.psd(REAL, 8000), wanted, rtol=1e-4, atol=1e-6 * wanted.max())
    # Parseval: the density sums to the power.
    power = np.sum(np.asarray(rf.psd(IQ, 8000)), -1) * 8000 / 1000
    np.testing.assert_allclose(power, np.mean(abs(IQ) ** 2, -1), rtol=1e-5)


def test_peaks_of_three_carriers():
    time = np.arange(20000) / 1e6
    wanted = [(-200e3, 1.0), (125e3, 0.5), (300e3, 0.25)]
    x = sum(a * np.exp(2j * np.pi * f * time) for f, a in wanted) + 0.01 * RNG.standard_normal(20000)
    found = rlx.jit(lambda x: rf.welch_peaks(x, 1e6, 3, 512))(x.astype("c8"))
    np.testing.assert_allclose(found.frequency, [f for f, _ in wanted], atol=1e6 / 512)
    assert list(np.argsort(-np.asarray(found.density))) == [0, 1, 2]
    both = rf.welch_peaks(np.stack([x, x.conj()]).astype("c8"), 1e6, 3, 512)
    np.testing.assert_allclose(both.frequency[1], -np.asarray(both.frequency[0]), atol=1e6 / 512)


def test_a_wide_station_is_one_peak():
    """FM fills a band; averaged over its width it has one peak, in the middle."""
    time = np.arange(100000) / 1e6
    sound = np.sin(2 * np.pi * 1000 * time) + 0.5 * np.sin(2 * np.pi * 2700 * time)
    station = rf.mix(rf.fm_modulate(0.6 * sound.astype("f4"), 1e6, 75e3), 180e3, 1e6)
    noise = 0.05 * (RNG.standard_normal(100000) + 1j * RNG.standard_normal(100000))
    found = rf.welch_peaks(np.asarray(station) + noise.astype("c8"), 1e6, 2, 1024, width=150e3)
    assert abs(float(found.frequency[0]) - 180e3) < 2e3
    # The second is noise, far weaker.
    assert float(found.density[1]) < 0.05 * float(found.density[0])


def test_missing_peaks_are_nan():
    constant = np.ones(64, "c8")
    found = rf.welch_peaks(constant, 1.0, 3, 16, window="boxcar")
    assert np.asarray(found.frequency)[0] == 0 and np.isnan(np.asarray(found.frequency)[1:]).all()


def test_waterfall_vmap_and_gradient():
    np.testing.assert_allclose(
        rf.waterfall(IQ, 1.0, 64), np.stack([rf.waterfall(row, 1.0, 64) for row in IQ]), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(rlx.vmap(lambda x: rf.welch(x, 1.0, 64))(IQ), rf.welch(IQ, 1.0, 64), rtol=1e-5)
    x = REAL[0, :80].astype("f8")

    def loss(x):
        return rnp.sum(rnp.log(rf.welch(x, 1.0, 16)))

    direction = RNG.standard_normal(80)
    wanted = (float(loss(x + 1e-6 * direction)) - float(loss(x - 1e-6 * direction))) / 2e-6
    np.testing.assert_allclose(np.asarray(rlx.grad(loss)(x)) @ direction, wanted, rtol=1e-5)


def test_what_densities_refuse():
    with pytest.raises(ShapeError, match="n_fft=2000 samples does not fit into 1000"):
        rf.welch(IQ, 1.0, 2000)
    with pytest.raises(OpError, match="rate must be positive, got 0"):
        rf.welch(IQ, 0)
    with pytest.raises(OpError, match=r"width must be between 0 and rate/2 = 0\.5 Hz, got 0\.5"):
        rf.welch_peaks(IQ, 1.0, 1, width=0.5)
    with pytest.raises(OpError, match="there are 16 bins, got count=17"):
        rf.welch_peaks(IQ, 1.0, 17, 16)
