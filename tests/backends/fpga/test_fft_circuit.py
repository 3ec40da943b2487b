"""The Fourier transform in fixed point: near NumPy's within its bound, and the circuit bit for bit its definition."""

import shutil

import numpy as np
import pytest

import rlx
from rlx.backends.fpga.checking import call
from rlx.backends.fpga.fft import POINTS, FixedFft
from rlx.errors import RlxError

icarus = pytest.mark.skipif(not shutil.which("iverilog"), reason="needs iverilog (make tools)")
verilator = pytest.mark.skipif(not shutil.which("verilator"), reason="needs verilator (make tools)")


def signals(points, bits):
    """Noise, the largest numbers of all signs, a tone, an impulse."""
    rng = np.random.default_rng(points)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    noise, ends = rng.integers(low, high + 1, (2, points)), rng.choice([low, high], (2, points))
    tone = high * np.exp(2j * np.pi * 5 * np.arange(points) / points)
    impulse, nothing = high * np.eye(1, points, 3)[0], np.zeros(points)
    re = [noise[0], ends[0], np.full(points, low), tone.real, impulse]
    im = [noise[1], ends[1], np.full(points, low), tone.imag, nothing]
    return np.array(re).round().astype(np.int64), np.array(im).round().astype(np.int64)


@pytest.mark.parametrize("bits", [8, 12, 16, 18])
@pytest.mark.parametrize("points", POINTS)
def test_transforms_are_numpys_within_the_bound(points, bits):
    made = FixedFft(points, bits)
    re, im = signals(points, bits)
    got_re, got_im = made.run(re, im)
    exact = np.fft.fft(re + 1j * im, axis=1) / points
    assert np.abs(got_re + 1j * got_im - exact).max() <= made.error_bound < 2 * made.stages
    for part in (got_re, got_im):
        assert -(2**bits) <= part.min() and part.max() < 2**bits


@icarus
@pytest.mark.targets
@pytest.mark.parametrize("points, bits", [(64, 16), (128, 8), (256, 12)])
def test_the_circuit_gives_the_same_integers(points, bits, tmp_path):
    done = rlx.fpga.fft(points, tmp_path / "out", bits=bits, check="icarus")
    assert done.figures["checked"] == "2 frames agree in icarus"


@verilator
@pytest.mark.targets
def test_no_warnings_of_verilator(tmp_path):
    done = rlx.fpga.fft(1024, tmp_path / "out")
    sources = [f.name for f in done.files if f.suffix == ".v" and not f.name.endswith("_tb.v")]
    assert call(["verilator", "--lint-only", "-Wall", "--top-module", "fft1024_core", *sources], tmp_path / "out") == ""


def test_what_is_refused(tmp_path):
    with pytest.raises(RlxError, match="transforms have 64, 128, 256, 512, 1024 points, got 100"):
        rlx.fpga.fft(100, tmp_path / "out")
    with pytest.raises(RlxError, match="have 8 to 18 bits, got 24"):
        rlx.fpga.fft(64, tmp_path / "out", bits=24)
    with pytest.raises(RlxError, match="integers from -128 to 127"):
        FixedFft(64, 8).run(np.full((1, 64), 128), np.zeros((1, 64)))
    assert list(tmp_path.iterdir()) == []
