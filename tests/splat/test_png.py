"""PNG files: round trips, and pictures whose rows are filtered in every way by a plain encoder here."""

import struct
import zlib

import numpy as np
import pytest

from rlx.errors import FormatError, ShapeError
from rlx.splat import read_png, write_apng, write_png


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encoded(rows, width, height, depth, color, step, filters, extra=b""):
    """Rows of bytes as a PNG; each is filtered byte by byte as the standard says."""
    out, above = b"", bytes(len(rows[0]))
    for number, row in enumerate(rows):
        kind = filters[number % len(filters)]
        out += bytes([kind])
        for i, value in enumerate(row):
            left, corner = (row[i - step], above[i - step]) if i >= step else (0, 0)
            up = above[i]
            p = left + up - corner
            paeth = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
            out += bytes([(value - (0, left, up, (left + up) // 2, paeth)[kind]) % 256])
        above = row
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    packed = zlib.compress(out)
    # The pixels in two parts, as encoders with small buffers write them.
    parts = chunk(b"IDAT", packed[:10]) + chunk(b"IDAT", packed[10:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + parts + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_round_trip(tmp_path, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, channels), dtype=np.uint8)
    write_png(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), pixels)


@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4), (1, 2)])
@pytest.mark.parametrize("color, channels", [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_all_filters(tmp_path, filters, color, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 6, channels), dtype=np.uint8)
    rows = [row.tobytes() for row in pixels]
    (tmp_path / "a.png").write_bytes(encoded(rows, 6, 9, 8, color, channels, filters))
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), pixels)


def test_sixteen_bits_few_bits_and_palettes(tmp_path):
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 65536, (4, 3, 3)).astype(">u2")
    (tmp_path / "a.png").write_bytes(encoded([r.tobytes() for r in wide], 3, 4, 16, 2, 6, (4,)))
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), (wide >> 8).astype(np.uint8))
    gray = rng.integers(0, 4, (4, 5))
    rows = [bytes([r[0] << 6 | r[1] << 4 | r[2] << 2 | r[3], r[4] << 6]) for r in gray.tolist()]
    (tmp_path / "b.png").write_bytes(encoded(rows, 5, 4, 2, 0, 1, (0,)))
    np.testing.assert_array_equal(read_png(tmp_path / "b.png")[..., 0], gray * 85)
    palette = rng.integers(0, 256, (4, 3), dtype=np.uint8)
    (tmp_path / "c.png").write_bytes(encoded(rows, 5, 4, 2, 3, 1, (0,), chunk(b"PLTE", palette.tobytes())))
    np.testing.assert_array_equal(read_png(tmp_path / "c.png"), palette[gray])


def test_animations_start_with_their_first_frame(tmp_path):
    frames = list(np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8))
    write_apng(tmp_path / "a.png", frames, 10)
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), frames[0])
    content = (tmp_path / "a.png").read_bytes()
    assert content.count(b"fcTL") == 3 and content.count(b"fdAT") == 2
    at = content.index(b"acTL")
    assert struct.unpack_from(">II", content, at + 4) == (3, 0)
    # Sequence numbers count all chunks of the animation.
    numbers, at = [], 8
    while at < len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        if kind in (b"fcTL", b"fdAT"):
            numbers.append(struct.unpack_from(">I", content, at + 8)[0])
        at += 12 + length
    assert numbers == [0, 1, 2, 3, 4]
    with pytest.raises(ShapeError, match="all must have one size"):
        write_apng(tmp_path / "b.png", [frames[0], frames[1][1:]])


def test_wrong_pictures_are_refused(tmp_path):
    path = tmp_path / "a.png"
    write_png(path, np.zeros((4, 4, 3), np.uint8))
    content = path.read_bytes()

    def refused(data, message):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            read_png(path)

    refused(b"\xff\xd8\xff jpeg", "not a PNG file; convert other pictures to PNG first")
    refused(content[:-20], "goes past the end|no picture in it")
    refused(content.replace(b"IDAT", b"IDAU"), "check sum of chunk b'IDAU' is wrong")
    huge = struct.pack(">IIBBBBB", 2**31, 2**31, 8, 2, 0, 0, 0)
    refused(content[:8] + chunk(b"IHDR", huge), "pixels are none, or more than")
    laced = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 1)
    refused(content[:8] + chunk(b"IHDR", laced), "interlaced pictures are not read")
    bomb = chunk(b"IDAT", zlib.compress(bytes(10**7)))
    small = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    path.write_bytes(content[:8] + chunk(b"IHDR", small) + bomb)
    assert read_png(path).shape == (4, 4, 3)
    with pytest.raises(ShapeError, match="needs uint8"):
        write_png(path, np.zeros((4, 4, 3)))
