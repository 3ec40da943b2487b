"""What is modulated comes back; filter banks against mixing, filtering and decimating by SciPy."""

import numpy as np
import pytest
import scipy.signal
import scipy.special

import rlx
import rlx.numpy as rnp
from rlx import rf
from rlx.errors import DTypeError, OpError, ShapeError

RNG = np.random.default_rng(8)
RATE = 250e3
TIME = np.arange(20000) / RATE
MESSAGE = (0.5 * np.sin(2 * np.pi * 1000 * TIME) + 0.3 * np.cos(2 * np.pi * 3100 * TIME)).astype("f4")
IQ = (RNG.standard_normal((2, 400)) + 1j * RNG.standard_normal((2, 400))).astype("c8")


def test_fm():
    """The modulated phase is the sum of the message, and demodulation gives the message back."""
    wave = np.asarray(rf.fm_modulate(MESSAGE, RATE, 75e3))
    np.testing.assert_allclose(wave, np.exp(2j * np.pi * 75e3 / RATE * np.cumsum(MESSAGE.astype("f8"))), atol=2e-3)
    strange = 0.01 * wave * np.exp(1j)
    got = rlx.jit(lambda x: rf.fm_demodulate(x, RATE, 75e3))(strange.astype("c8"))
    np.testing.assert_allclose(got, MESSAGE[1:], atol=1e-4)


def test_am_at_any_strength_and_phase():
    wave = np.asarray(rf.am_modulate(MESSAGE, 0.8)) * 7 * np.exp(2j)
    got = rlx.jit(lambda x: rf.am_demodulate(x, 0.8))(wave.astype("c8"))
    np.testing.assert_allclose(got, MESSAGE, atol=1e-5)


def test_mix_is_exact_late_and_early():
    got = rf.mix(np.ones(200000, "c8"), 12345.678, RATE)
    wanted = np.exp(2j * np.pi * 12345.678 * np.arange(200000) / RATE)
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_deemphasis_halves_the_power_at_its_corner():
    corner = 1 / (2 * np.pi * 50e-6)
    tone = np.sin(2 * np.pi * corner * TIME).astype("f4")
    passed = np.asarray(rf.deemphasis(tone, RATE))[5000:]
    np.testing.assert_allclose(np.mean(passed**2) / np.mean(tone[5000:] ** 2), 0.5, rtol=0.02)
    low = rf.deemphasis(np.ones(2000, "f4"), RATE)
    np.testing.assert_allclose(low[-1], 1.0, atol=1e-4)


def test_the_frequency_of_a_carrier_can_be_learnt():
    """The gradient through mixing and demodulation by a phase that is traced."""

    def loss(offset, x):
        turned = x * rnp.exp(1j * offset * np.arange(100, dtype="f4"))
        return rnp.mean(rf.fm_demodulate(turned, 2 * np.pi, 1.0) ** 2)

    wave = np.exp(0.3j * np.arange(100)).astype("c8")
    gradient = rlx.jit(rlx.grad(loss))(np.float32(0.0), wave)
    # The frequency is 0.3 + offset, so that the loss is its square.
    np.testing.assert_allclose(gradient, 0.6, rtol=1e-4)


@pytest.mark.parametrize("order", [4, 16, 64, 256])
def test_qam_comes_back(order):
    points = rf.qam_constellation(order)
    np.testing.assert_allclose(np.mean(abs(points) ** 2), 1.0)
    symbols = np.arange(order, dtype="i4")
    sent = np.asarray(rlx.jit(lambda s: rf.qam_modulate(s, order))(symbols))
    np.testing.assert_allclose(sent, points, atol=1e-6)
    step = abs(points[:, None] - points)[~np.eye(order, dtype=bool)].min()
    noise = 0.45 * step * np.exp(2j * np.pi * RNG.random(order))
    np.testing.assert_array_equal(rlx.jit(lambda p: rf.qam_demodulate(p, order))((sent + noise).astype("c8")), symbols)
    # Nearest by definition, also far outside of the square.
    far = (2 * RNG.standard_normal(200) + 2j * RNG.standard_normal(200)).astype("c8")
    np.testing.assert_array_equal(rf.qam_demodulate(far, order), abs(far[:, None] - points).argmin(-1))


@pytest.mark.parametrize("order", [4, 16, 64])
def test_neighbours_differ_in_one_bit(order):
    points, bits = rf.qam_constellation(order), np.asarray(rf.qam_bits(np.arange(order), order))
    np.testing.assert_array_equal(bits @ (1 << np.arange(bits.shape[-1])[::-1]), np.arange(order))
    distance = abs(points[:, None] - points)
    step = distance[distance > 0].min()
    near = np.isclose(distance, step)
    assert near.sum() == 4 * (order - np.sqrt(order))
    assert np.all((bits[:, None] != bits).sum(-1)[near] == 1)


def test_soft_bits_are_log_likelihoods():
    points, bits = rf.qam_constellation(16), np.asarray(rf.qam_bits(np.arange(16), 16))
    received = (RNG.standard_normal(30) + 1j * RNG.standard_normal(30)).astype("c8")
    logs = -(abs(received[:, None] - points) ** 2) / 0.3
    wanted = np.stack(
        [
            scipy.special.logsumexp(logs[:, bits[:, b] == 0], axis=-1)
            - scipy.special.logsumexp(logs[:, bits[:, b] == 1], axis=-1)
            for b in range(4)
        ],
        -1,
    )
    np.testing.assert_allclose(rlx.jit(lambda p: rf.qam_soft_bits(p, 16, 0.3))(received), wanted, rtol=1e-4, atol=1e-4)
    gradient = rlx.grad(lambda s: rnp.sum(rf.qam_soft_bits(received * s, 16, 0.3)))(np.float32(1.0))
    assert np.isfinite(gradient)


@pytest.mark.parametrize(("channels", "taps"), [(4, None), (5, 23), (8, 8), (1, 3), (3, 1)])
def test_channelize_is_mixing_filtering_decimating(channels, taps):
    h = rf.channel_filter(channels) if taps is None else RNG.standard_normal(taps)
    n = np.arange(400)
    wanted = np.stack(
        [
            scipy.signal.lfilter(h, 1, IQ * np.exp(-2j * np.pi * c * n / channels))[:, ::channels][:, : 400 // channels]
            for c in range(channels)
        ],
        1,
    )
    for function in (rf.channelize, rlx.jit(rf.channelize, static_argnums=1)):
        got = function(IQ, channels) if taps is None else rf.channelize(IQ, channels, h)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_carriers_land_in_their_channels():
    channels, n = 16, np.arange(16000)
    x = np.exp(2j * np.pi * n * 3 / channels) + 0.1 * np.exp(-2j * np.pi * n * 5.2 / channels)
    power = np.mean(abs(np.asarray(rf.channelize(x.astype("c8"), channels))[:, 50:]) ** 2, -1)
    assert np.argmax(power) == 3
    np.testing.assert_allclose(power[[3, 11]], [1.0, 0.01], rtol=0.05)
    assert np.delete(power, [3, 11]).max() < 1e-5


def test_vmap_is_a_loop():
    np.testing.assert_allclose(rlx.vmap(lambda x: rf.channelize(x, 4))(IQ), rf.channelize(IQ, 4), atol=1e-6)
    np.testing.assert_allclose(
        rlx.vmap(lambda x: rf.fm_demodulate(x, 1.0, 1.0))(IQ), rf.fm_demodulate(IQ, 1.0, 1.0), atol=1e-6
    )


def test_what_radio_refuses():
    with pytest.raises(OpError, match="order must be 4, 16, 64, 256 or a higher power of 4, got 8"):
        rf.qam_modulate(np.arange(4), 8)
    with pytest.raises(DTypeError, match="needs whole numbers, got f32"):
        rf.qam_modulate(np.ones(3, "f4"), 4)
    with pytest.raises(OpError, match="deviation must be positive, got 0"):
        rf.fm_demodulate(IQ, 1.0, 0)
    with pytest.raises(OpError, match="500 channels need at least 500 samples, got 400"):
        rf.channelize(IQ, 500)
    with pytest.raises(ShapeError, match=r"needs taps \[n\], got \[0\]"):
        rf.channelize(IQ, 4, [])
