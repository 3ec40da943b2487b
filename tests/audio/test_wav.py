"""WAV files against SciPy's reader and writer, and files that are not what they claim to be."""

import struct
import warnings

import numpy as np
import pytest
import scipy.io.wavfile
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import audio
from rlx.audio.wav import _parsed
from rlx.errors import FormatError, OpError, ShapeError

RNG = np.random.default_rng(5)
SAMPLES = RNG.uniform(-1, 0.99, (2, 101)).astype("f4")
STEP = {"pcm8": 2**-7, "pcm16": 2**-15, "pcm24": 2**-23, "pcm32": 2**-31, "float32": 0, "float64": 0}


@pytest.mark.parametrize("encoding", STEP)
@pytest.mark.parametrize("channels", [1, 2])
def test_what_is_written_is_read(encoding, channels, tmp_path):
    path = tmp_path / "x.wav"
    audio.write_wav(path, SAMPLES[:channels], 22050, encoding)
    wave = audio.read_wav(path)
    assert wave.rate == 22050 and wave.samples.shape == (channels, 101) and wave.samples.dtype == np.float32
    assert abs(wave.samples - SAMPLES[:channels]).max() <= STEP[encoding] / 2 + 1e-7
    assert [p.name for p in tmp_path.iterdir()] == ["x.wav"]


@pytest.mark.parametrize("encoding", STEP)
def test_scipy_reads_what_is_written(encoding, tmp_path):
    audio.write_wav(tmp_path / "x.wav", SAMPLES, 8000, encoding)
    rate, found = scipy.io.wavfile.read(tmp_path / "x.wav")
    whole = found.astype("f8")
    if encoding == "pcm8":
        whole = (whole - 128) / 128
    elif found.dtype.kind == "i":
        # SciPy gives 24 bits as the high bytes of 32.
        whole = whole / 2.0 ** (8 * found.dtype.itemsize - 1)
    assert rate == 8000
    np.testing.assert_allclose(whole.T, audio.read_wav(tmp_path / "x.wav").samples, atol=1e-7)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4", "f8"])
def test_what_scipy_writes_is_read(dtype, tmp_path):
    scale = {"u1": 127, "i2": 2**15 - 1, "i4": 2**31 - 1, "f4": 1, "f8": 1}[dtype]
    values = (SAMPLES.T.astype("f8") * scale + (128 if dtype == "u1" else 0)).astype(dtype)
    scipy.io.wavfile.write(tmp_path / "x.wav", 48000, values)
    wave = audio.read_wav(tmp_path / "x.wav")
    assert wave.rate == 48000 and abs(wave.samples - SAMPLES).max() < (0.02 if dtype == "u1" else 1e-4)


def test_mono_seconds_and_limits(tmp_path):
    path = tmp_path / "x.wav"
    audio.write_wav(path, [[2.0, -2.0], [0.0, 0.0]], 2)
    wave = audio.read_wav(path)
    assert wave.seconds == 1.0
    np.testing.assert_allclose(wave.samples[0], [1 - 2**-15, -1])
    np.testing.assert_allclose(wave.mono, wave.samples.mean(0))
    audio.write_wav(path, np.zeros(0, "f4"), 8000)
    assert audio.read_wav(path).samples.shape == (1, 0)


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def fmt(code=1, channels=1, rate=8000, bits=16, block=None, extra=b""):
    block = channels * bits // 8 if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits) + extra)


def test_other_chunks_and_unknown_sizes_are_passed_over():
    data = np.array([0, 16384, -32768], "<i2").tobytes()
    odd = chunk(b"LIST", b"abc")
    assert _parsed(riff(odd, fmt(), odd, chunk(b"data", data)), "x").samples.tolist() == [[0.0, 0.5, -1.0]]
    endless = riff(fmt()) + b"data" + b"\xff" * 4 + data
    assert _parsed(endless, "x").samples.tolist() == [[0.0, 0.5, -1.0]]


def test_the_extensible_form():
    tail = bytes.fromhex("000000001000800000aa00389b71")
    extra = struct.pack("<HHIH", 22, 16, 4, 1) + tail
    data = chunk(b"data", np.array([8192], "<i2").tobytes())
    assert _parsed(riff(fmt(0xFFFE, extra=extra), data), "x").samples.tolist() == [[0.25]]
    with pytest.raises(FormatError, match="neither PCM nor float"):
        _parsed(riff(fmt(0xFFFE, extra=extra[:-1] + b"x"), data), "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a WAV file; convert it"),
        (b"RIFF1234AVI ", "not a WAV file"),
        (b"fLaC" + bytes(40), "this is a FLAC file"),
        (b"ID3" + bytes(40), "this is an MP3 file"),
        (b"RF64" + bytes(40), "a 64-bit WAV file"),
        (riff(), "there is no chunk 'data'"),
        (riff(fmt()), "there is no chunk 'data'"),
        (riff(chunk(b"data", b"12")), "before the chunk 'fmt '"),
        (riff(chunk(b"fmt ", b"12345678")), "has 8 bytes, it needs 16"),
        (riff(fmt(code=2, bits=4)), "format 2 with 4 bits is not supported"),
        (riff(fmt(bits=12)), "format 1 with 12 bits is not supported"),
        (riff(fmt(channels=0)), "0 channels at 8000 frames"),
        (riff(fmt(rate=0)), "at 0 frames per second"),
        (riff(fmt(block=3)), "has 2 bytes, not 3"),
        (riff(fmt(), chunk(b"data", b"123")), "3 bytes of data are not a whole number of frames of 2 bytes"),
        (riff(fmt()) + b"data" + struct.pack("<I", 2**31) + b"1234", "but only 4 are left"),
        (riff(b"fmt " + struct.pack("<I", 2**32 - 2)), "but only 0 are left"),
    ],
)
def test_broken_files_are_refused(data, message, tmp_path):
    path = tmp_path / "broken.wav"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        audio.read_wav(path)
    assert str(path) in str(caught.value)


@settings(max_examples=200)
@given(st.integers(0, 63), st.binary(min_size=1, max_size=4), st.integers(0, 80))
def test_damaged_files_are_read_or_refused(place, damage, length):
    whole = riff(chunk(b"LIST", b"abc"), fmt(channels=2), chunk(b"data", bytes(range(24))))
    damaged = (whole[:place] + damage + whole[place + len(damage) :])[:length]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            wave = _parsed(damaged, "x")
        except FormatError:
            return
    assert wave.samples.ndim == 2 and wave.rate > 0


def test_what_is_not_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.wav"
    audio.write_wav(path, SAMPLES, 8000)
    before = path.read_bytes()
    for samples, rate, encoding, error, message in [
        (SAMPLES, 8000, "mp3", OpError, "encoding must be one of pcm8"),
        (SAMPLES, 0, "pcm16", OpError, "rate must be a whole number"),
        (SAMPLES, 8000.5, "pcm16", OpError, "rate must be a whole number"),
        (SAMPLES[None], 8000, "pcm16", ShapeError, r"got \[1, 2, 101\]"),
        (np.float32(1), 8000, "pcm16", ShapeError, r"got \[\]"),
        (SAMPLES.astype("c8"), 8000, "pcm16", OpError, "real numbers"),
        (SAMPLES * np.nan, 8000, "pcm16", OpError, "must be finite"),
    ]:
        with pytest.raises(error, match=message):
            audio.write_wav(path, samples, rate, encoding)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
