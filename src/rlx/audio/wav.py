"""WAV files: `read_wav` and `write_wav`.

Read are PCM of 8, 16, 24 and 32 bits and floats of 32 and 64 bits, also in the extensible form. Samples are f32 between
-1 and 1. A file that is not what it claims to be is refused with a `FormatError` that says where.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, OpError, ShapeError

__all__ = ["Wave", "read_wav", "write_wav"]

F32 = npt.NDArray[np.float32]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# The rest of the identifiers in the extensible form; their first two bytes are the plain format.
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
# Written by programs that do not know the size yet, as into a pipe: the data goes on to the end of the file.
_UNKNOWN_SIZE = 0xFFFFFFFF
_LARGEST_FILE = 2**32 - 1
# How samples are written: name -> (format, bits).
_ENCODINGS = {"pcm8": (_PCM, 8), "pcm16": (_PCM, 16), "pcm24": (_PCM, 24), "pcm32": (_PCM, 32)}
_ENCODINGS |= {"float32": (_FLOAT, 32), "float64": (_FLOAT, 64)}


class Wave(NamedTuple):
    """A recording: samples f32[channels, frames] and how many frames there are in a second."""

    samples: F32
    rate: int

    @property
    def mono(self) -> F32:
        """The mean of the channels, f32[frames]."""
        return self.samples[0] if len(self.samples) == 1 else self.samples.mean(0, dtype=np.float32)

    @property
    def seconds(self) -> float:
        return self.samples.shape[1] / self.rate


class _Format(NamedTuple):
    code: int
    channels: int
    rate: int
    bits: int


def read_wav(path: str | os.PathLike[str]) -> Wave:
    """The samples of a WAV file.

    PCM of n bits is divided by 2^(n-1); 8 bits are stored without a sign.
    """
    file = Path(path)
    return _parsed(file.read_bytes(), str(file))


def _parsed(data: bytes, what: str) -> Wave:
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        kinds = {
            b"RIFX": "a big-endian WAV file",
            b"RF64": "a 64-bit WAV file",
            b"fLaC": "a FLAC file",
            b"OggS": "an Ogg file",
        }
        kind = kinds.get(data[:4], "an MP3 file" if data[:3] == b"ID3" else "not a WAV file")
        raise FormatError(f"{what}: this is {kind}; convert it to a WAV file, for example with ffmpeg")
    found: _Format | None = None
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        place += 8
        if name == b"data":
            if found is None:
                raise FormatError(f"{what}: the data begins at byte {place} before the chunk 'fmt ' that describes it")
            if size == _UNKNOWN_SIZE:
                size = len(data) - place
            return Wave(_samples(_chunk(data, place, size, "data", what), found, what), found.rate)
        if name == b"fmt ":
            found = _format(_chunk(data, place, size, "fmt ", what), what)
        # Chunks begin at even places.
        place += size + size % 2
    raise FormatError(f"{what}: there is no chunk 'data'; the file is cut off after {len(data)} bytes, or empty")


def _chunk(data: bytes, place: int, size: int, name: str, what: str) -> memoryview:
    if place + size > len(data):
        raise FormatError(
            f"{what}: the chunk {name!r} at byte {place} has {size} bytes, but only {len(data) - place} are left; "
            "the file is cut off"
        )
    return memoryview(data)[place : place + size]


def _format(chunk: memoryview, what: str) -> _Format:
    if len(chunk) < 16:
        raise FormatError(f"{what}: the chunk 'fmt ' has {len(chunk)} bytes, it needs 16")
    code, channels, rate, _, block, bits = struct.unpack("<HHIIHH", chunk[:16])
    if code == _EXTENSIBLE:
        if len(chunk) < 40 or bytes(chunk[26:40]) != _GUID_TAIL:
            raise FormatError(f"{what}: the extensible format is of a kind that is neither PCM nor float")
        code = int.from_bytes(chunk[24:26], "little")
    if (code, bits) not in _ENCODINGS.values():
        kinds = ", ".join(_ENCODINGS)
        raise FormatError(f"{what}: format {code} with {bits} bits is not supported; supported: {kinds}")
    if channels < 1 or rate < 1:
        raise FormatError(f"{what}: {channels} channels at {rate} frames per second are not a recording")
    if block != channels * bits // 8:
        raise FormatError(
            f"{what}: a frame of {channels} channels with {bits} bits has {channels * bits // 8} bytes, not {block}"
        )
    return _Format(code, channels, rate, bits)


def _samples(chunk: memoryview, found: _Format, what: str) -> F32:
    flat: npt.NDArray[Any]
    frame = found.channels * found.bits // 8
    if len(chunk) % frame:
        raise FormatError(f"{what}: {len(chunk)} bytes of data are not a whole number of frames of {frame} bytes")
    if found.code == _FLOAT:
        with np.errstate(over="ignore", invalid="ignore"):
            flat = np.frombuffer(chunk, f"<f{found.bits // 8}").astype(np.float32)
    elif found.bits == 8:
        flat = (np.frombuffer(chunk, np.uint8).astype(np.float32) - 128) / 128
    elif found.bits == 24:
        triples = np.frombuffer(chunk, np.uint8).reshape(-1, 3)
        words = np.zeros((len(triples), 4), np.uint8)
        # As the high bytes of a word, so that the sign is where it belongs.
        words[:, 1:] = triples
        flat = words.reshape(-1).view("<i4").astype(np.float32) / 2**31
    else:
        flat = np.frombuffer(chunk, f"<i{found.bits // 8}").astype(np.float32) / 2 ** (found.bits - 1)
    return np.ascontiguousarray(flat.reshape(-1, found.channels).T, np.float32)


def write_wav(path: str | os.PathLike[str], samples: Any, rate: int, encoding: str = "pcm16") -> None:
    """Write samples [frames] or [channels, frames] as "pcm8", "pcm16", "pcm24", "pcm32", "float32" or "float64".

    For PCM, values beyond -1 and 1 are cut off. The file appears when it is complete; an older one stays until then.
    """
    if encoding not in _ENCODINGS:
        raise OpError(f"write_wav: encoding must be one of {', '.join(_ENCODINGS)}, got {encoding!r}")
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 0 < rate < 2**32:
        raise OpError(f"write_wav: rate must be a whole number of frames per second, got {rate!r}")
    values = np.asarray(samples)
    if values.ndim not in (1, 2) or 0 in values.shape[:-1] or values.shape[:-1] > (2**16 - 1,):
        raise ShapeError(f"write_wav: needs samples [frames] or [channels, frames], got {list(values.shape)}")
    if values.dtype.kind not in "fiu":
        raise OpError(f"write_wav: needs real numbers between -1 and 1, got {values.dtype}")
    code, bits = _ENCODINGS[encoding]
    values = np.atleast_2d(values).astype(np.float64)
    if not np.isfinite(values).all():
        raise OpError("write_wav: samples must be finite, got NaN or infinity")
    data = _encoded(values.T, code, bits)
    header = _header(code, len(values), int(rate), bits, len(data))
    if len(header) + len(data) > _LARGEST_FILE:
        raise OpError(f"write_wav: {len(data)} bytes are more than a WAV file can hold; write several")
    _write_whole(Path(path), header + data + b"\0" * (len(data) % 2))


def _encoded(frames: npt.NDArray[np.float64], code: int, bits: int) -> bytes:
    if code == _FLOAT:
        with np.errstate(over="ignore"):
            return frames.astype(f"<f{bits // 8}").tobytes()
    scale = 2 ** (bits - 1)
    whole = np.clip(np.rint(frames * scale), -scale, scale - 1).astype(np.int64)
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    if bits == 24:
        return np.ascontiguousarray(whole.astype("<i4")).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def _header(code: int, channels: int, rate: int, bits: int, size: int) -> bytes:
    frame = channels * bits // 8
    fmt = struct.pack("<HHIIHH", code, channels, rate, min(rate * frame, 2**32 - 1), frame, bits)
    # Formats other than PCM have a size of further fields, and the number of frames in a chunk of its own.
    chunks = (
        [(b"fmt ", fmt)] if code == _PCM else [(b"fmt ", fmt + b"\0\0"), (b"fact", struct.pack("<I", size // frame))]
    )
    described = b"".join(name + struct.pack("<I", len(chunk)) + chunk for name, chunk in chunks)
    total = 4 + len(described) + 8 + size + size % 2
    return (
        b"RIFF"
        + struct.pack("<I", min(total, _LARGEST_FILE))
        + b"WAVE"
        + described
        + b"data"
        + struct.pack("<I", min(size, _LARGEST_FILE))
    )


def _write_whole(path: Path, data: bytes) -> None:
    """Through a file beside it, so that nobody sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
