"""Filters, their design, and resampling against scipy.signal."""

import numpy as np
import pytest
import scipy.signal

import rlx
import rlx.numpy as rnp
from rlx import audio
from rlx.errors import OpError, ShapeError

RNG = np.random.default_rng(3)
NOISE = RNG.standard_normal((2, 1500)).astype("f4")
KINDS = [("low", 0.3), ("high", 0.3), ("bandpass", (0.2, 0.5)), ("bandstop", (0.2, 0.5))]


@pytest.mark.parametrize(
    ("taps", "up", "down"),
    [(101, 1, 1), (1, 1, 1), (5, 1, 1), (881, 16, 44), (61, 3, 1), (61, 1, 3), (21, 2, 3), (3, 7, 5), (700, 1, 2)],
)
def test_upfirdn(taps, up, down):
    h = RNG.standard_normal(taps).astype("f4")
    wanted = scipy.signal.upfirdn(h.astype("f8"), NOISE.astype("f8"), up, down)
    for function in (audio.upfirdn, rlx.jit(audio.upfirdn, static_argnums=(2, 3))):
        got = function(h, NOISE, up, down)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-6 * abs(wanted).max())


@pytest.mark.parametrize("samples", [1, 2, 31, 32, 33, 64, 65])
def test_every_length_is_filtered(samples):
    x, h = NOISE[0, :samples], RNG.standard_normal(9).astype("f4")
    np.testing.assert_allclose(audio.fir_filter(h, x), scipy.signal.lfilter(h, 1.0, x), atol=1e-5)
    np.testing.assert_allclose(audio.upfirdn(h, x, 3, 2), scipy.signal.upfirdn(h, x, 3, 2), atol=1e-5)


def test_complex_signals_and_taps():
    z = (NOISE[0] + 1j * NOISE[1]).astype("c8")
    h = RNG.standard_normal(31).astype("f4")
    turned = (h * np.exp(0.3j * np.arange(31))).astype("c8")
    for taps in (h, turned):
        wanted = scipy.signal.upfirdn(taps, z, 2, 3)
        np.testing.assert_allclose(audio.upfirdn(taps, z, 2, 3), wanted, atol=2e-5)
        np.testing.assert_allclose(rlx.jit(lambda h, z: audio.upfirdn(h, z, 2, 3))(taps, z), wanted, atol=2e-5)


@pytest.mark.parametrize(("up", "down"), [(160, 441), (441, 160), (1, 2), (2, 1), (3, 7), (10, 10), (2, 6)])
def test_resample_poly(up, down):
    wanted = scipy.signal.resample_poly(NOISE.astype("f8"), up, down, axis=-1)
    got = rlx.jit(lambda x: audio.resample_poly(x, up, down))(NOISE)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_a_tone_stays_a_tone():
    time = np.arange(44100) / 44100
    got = np.asarray(audio.resample(np.sin(2 * np.pi * 1000 * time).astype("f4"), 44100, 16000))
    wanted = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)
    np.testing.assert_allclose(got[200:-200], wanted[200:-200], atol=2e-3)


@pytest.mark.parametrize(("kind", "cutoff"), KINDS)
def test_firwin(kind, cutoff):
    name = {"low": "lowpass", "high": "highpass"}.get(kind, kind)
    for window in ("hamming", ("kaiser", 5.0)):
        wanted = scipy.signal.firwin(51, cutoff, pass_zero=name, window=window)
        np.testing.assert_allclose(audio.firwin(51, cutoff, kind=kind, window=window), wanted, atol=1e-14)
    scaled = tuple(100 * c for c in cutoff) if isinstance(cutoff, tuple) else 100 * cutoff
    np.testing.assert_allclose(audio.firwin(51, scaled, 200, kind), audio.firwin(51, cutoff, kind=kind), atol=1e-14)


@pytest.mark.parametrize(("kind", "cutoff"), KINDS)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
def test_butterworth(kind, cutoff, order):
    sections, wanted = audio.butter(order, cutoff, kind=kind), scipy.signal.butter(order, cutoff, kind, output="sos")
    angles = np.linspace(0.01, 3.13, 100)
    response, wanted_response = (scipy.signal.freqz_sos(s, angles)[1] for s in (sections, wanted))
    np.testing.assert_allclose(response, wanted_response, atol=1e-11)
    np.testing.assert_allclose(
        audio.sosfilt(sections, NOISE), scipy.signal.sosfilt(wanted, NOISE.astype("f8")), atol=2e-5
    )


@pytest.mark.parametrize("samples", [1, 63, 64, 65, 200])
@pytest.mark.parametrize(
    ("b", "a"), [([0.3, 0.2], [2.0, -1.2, 0.4]), ([1.0, 0.5, 0.25, 0.1], [1.0]), ([0.1], [1, -0.99])]
)
def test_lfilter_with_and_without_a_state(b, a, samples):
    x = NOISE[:, :samples]
    wide = x.astype("f8")
    np.testing.assert_allclose(audio.lfilter(b, a, x), scipy.signal.lfilter(b, a, wide), atol=1e-5)
    state = RNG.standard_normal((2, max(len(a), len(b)) - 1)).astype("f4")
    wanted, wanted_state = scipy.signal.lfilter(b, a, wide, zi=state.astype("f8"))
    y, after = audio.lfilter(b, a, x, state)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    np.testing.assert_allclose(after, wanted_state, atol=1e-5)


def test_lfilter_with_traced_coefficients():
    b, a, state = np.array([0.3, 0.2], "f4"), np.array([2.0, -1.2, 0.4], "f4"), np.ones((2, 2), "f4")
    wanted, wanted_state = scipy.signal.lfilter(b, a, NOISE[:, :200].astype("f8"), zi=state.astype("f8"))
    y, after = rlx.jit(audio.lfilter)(b, a, NOISE[:, :200], state)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    np.testing.assert_allclose(after, wanted_state, atol=1e-5)


def test_nothing_filtered_is_nothing():
    assert audio.lfilter([1.0], [1.0, 0.5], np.zeros(0, "f4")).shape == (0,)
    y, state = audio.lfilter([1.0], [1.0, 0.5], np.zeros(0, "f4"), np.ones(1, "f4"))
    assert y.shape == (0,) and float(state[0]) == 1.0


def test_two_pieces_are_one_signal():
    b, a = scipy.signal.butter(3, 0.2)
    whole = np.asarray(audio.lfilter(b, a, NOISE))
    first, state = audio.lfilter(b, a, NOISE[:, :700], np.zeros((2, 3), "f4"))
    second, _ = audio.lfilter(b, a, NOISE[:, 700:], state)
    np.testing.assert_allclose(np.concatenate([first, second], -1), whole, atol=1e-5)


def test_coefficients_of_a_filter_can_be_learnt():
    """The gradient by traced coefficients and samples is a difference quotient."""
    b, a, x = np.array([0.2, 0.3]), np.array([1.0, -0.5, 0.2]), NOISE[0, :150].astype("f8")

    def loss(b, a, x):
        return rnp.sum(rnp.sin(audio.lfilter(b, a, x)))

    gradients = rlx.jit(rlx.grad(loss, argnums=(0, 1, 2)))(b, a, x)
    for argument, gradient in enumerate(gradients):
        direction = RNG.standard_normal(gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = [b, a, x]
            moved[argument] = moved[argument] + sign * 1e-6 * direction
            ends.append(float(np.sin(scipy.signal.lfilter(*moved)).sum()))
        np.testing.assert_allclose(np.sum(np.asarray(gradient) * direction), (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_gradients_of_fir_and_resampling_are_adjoints():
    h = RNG.standard_normal(21)
    x = NOISE[0, :100].astype("f8")
    y = audio.resample_poly(audio.fir_filter(h, x), 3, 2)
    ct = RNG.standard_normal(y.shape)
    back = rlx.grad(lambda x: rnp.sum(audio.resample_poly(audio.fir_filter(h, x), 3, 2) * ct))(x)
    # Linear in x, so that <ct, F(x)> = <Fᵀct, x>.
    np.testing.assert_allclose(np.sum(np.asarray(back) * x), np.sum(ct * np.asarray(y)), rtol=1e-10)


def test_vmap_is_a_loop():
    sections = audio.butter(3, 0.4)
    for f in (lambda x: audio.sosfilt(sections, x), lambda x: audio.resample_poly(x, 2, 3)):
        np.testing.assert_allclose(rlx.vmap(f)(NOISE), np.stack([f(row) for row in NOISE]), atol=1e-6)
    rows = RNG.standard_normal((2, 5)).astype("f4")
    each = rlx.vmap(audio.fir_filter)(rows, NOISE)
    np.testing.assert_allclose(each, np.stack([np.convolve(h, x)[:1500] for h, x in zip(rows, NOISE)]), atol=1e-5)


def test_what_filters_refuse():
    with pytest.raises(OpError, match=r"low needs one frequency between 0 and rate/2 = 1\.0 as cutoff, got 1\.5"):
        audio.firwin(5, 1.5)
    with pytest.raises(OpError, match="bandpass needs two rising frequencies"):
        audio.butter(2, (0.5, 0.2), kind="bandpass")
    with pytest.raises(OpError, match="kind must be one of low, high, bandpass, bandstop, got 'notch'"):
        audio.butter(2, 0.2, kind="notch")
    with pytest.raises(OpError, match="needs an odd number of taps, got 4"):
        audio.firwin(4, 0.5, kind="high")
    with pytest.raises(ShapeError, match="up must be a whole number of at least 1, got 0"):
        audio.resample_poly(NOISE, 0, 1)
    with pytest.raises(ShapeError, match=r"new_rate must be a whole number of at least 1, got 0\.5"):
        audio.resample(NOISE, 1, 0.5)
    with pytest.raises(ShapeError, match=r"needs taps \[n\], got \[2, 1500\]"):
        audio.upfirdn(NOISE, NOISE)
    with pytest.raises(OpError, match=r"a\[0\] must not be 0"):
        audio.lfilter([1.0], [0.0, 1.0], NOISE)
    with pytest.raises(ShapeError, match=r"zi must be \[2, 1\], one state for each row of x, got \[1\]"):
        audio.lfilter([1.0], [1.0, 0.5], NOISE, np.zeros(1, "f4"))
    with pytest.raises(ShapeError, match=r"needs sections \[n, 6\], got \[3\]"):
        audio.sosfilt(np.ones(3), NOISE)
    with pytest.raises(OpError, match="needs real samples"):
        audio.lfilter([1.0], [1.0, 0.5], NOISE.astype("c8"))
