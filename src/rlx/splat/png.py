"""PNG pictures, read and written with zlib alone, and animated ones (APNG), which browsers show like GIFs.

pixels = read_png("view.png")                   # uint8 [height, width, 1..4]
write_png("view.png", pixels)
write_apng("orbit.png", frames, frames_per_second=20)
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, ShapeError
from rlx.formats.mapped_file import file_bytes, replace_file

U8 = npt.NDArray[np.uint8]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Pictures above this many pixels are refused before memory is taken for them.
MOST_PIXELS = 2**27
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGBA: (8, 16)}
_AVERAGE = 3


class _Header(NamedTuple):
    width: int
    height: int
    depth: int
    color: int

    @property
    def row_bytes(self) -> int:
        return (self.width * self.depth * _CHANNELS[self.color] + 7) // 8

    @property
    def pixel_bytes(self) -> int:
        return max(1, self.depth * _CHANNELS[self.color] // 8)


def read_png(path: str | os.PathLike[str]) -> U8:
    """The pixels [height, width, channels] of a PNG file: gray, gray and alpha, RGB or RGBA. 16 bits become 8."""
    place = Path(path)
    content = bytes(file_bytes(place))
    if not content.startswith(_SIGNATURE):
        _fail(place, "not a PNG file; convert other pictures to PNG first, for example with `magick in.jpg out.png`")
    header: _Header | None = None
    palette: U8 | None = None
    packed: list[bytes] = []
    for kind, data in _chunks(place, content):
        if kind == b"IHDR":
            header = _header(place, data)
        elif kind == b"PLTE":
            palette = np.frombuffer(data[: len(data) // 3 * 3], np.uint8).reshape(-1, 3)
        elif kind == b"IDAT":
            packed.append(data)
        elif kind == b"IEND":
            break
    if header is None or not packed:
        _fail(place, "the file has no picture in it (IHDR and IDAT are needed)")
    wanted = header.height * (1 + header.row_bytes)
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(b"".join(packed), wanted)
    except zlib.error as error:
        _fail(place, f"the pixels cannot be unpacked: {error}")
    if len(raw) != wanted:
        _fail(place, f"the pixels need {wanted} bytes, the file has {len(raw)}; it is cut off or damaged")
    rows = np.frombuffer(raw, np.uint8).reshape(header.height, 1 + header.row_bytes)
    return _pixels(place, header, _unfiltered(place, rows, header.pixel_bytes), palette)


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(f"{path}: {what}")


def _chunks(path: Path, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        if length > len(content) - at - 12:
            _fail(path, f"byte {at}: a chunk of {length} bytes goes past the end of the file")
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", content, at + 8 + length)
        if zlib.crc32(kind + data) != check:
            _fail(path, f"byte {at}: the check sum of chunk {kind!r} is wrong; the file is damaged")
        yield kind, data
        at += 12 + length


def _header(path: Path, data: bytes) -> _Header:
    if len(data) != 13:
        _fail(path, f"IHDR must have 13 bytes, got {len(data)}")
    width, height, depth, color, compression, filtering, interlace = struct.unpack(">IIBBBBB", data)
    if color not in _DEPTHS or depth not in _DEPTHS[color] or compression or filtering:
        _fail(path, f"color type {color} with {depth} bits is no PNG")
    if interlace:
        _fail(path, "interlaced pictures are not read; save it without interlacing")
    if not 0 < width * height <= MOST_PIXELS:
        _fail(path, f"{width}x{height} pixels are none, or more than {MOST_PIXELS}")
    return _Header(width, height, depth, color)


def _unfiltered(path: Path, rows: U8, step: int) -> U8:
    """Bytes without their prediction from the left, from above, from both, or by Paeth's choice."""
    kinds, raw = rows[:, 0], rows[:, 1:]
    if kinds.max(initial=0) > 4:
        _fail(path, f"a row has filter {kinds.max()}; PNG has 0 to 4")
    height, width = len(raw), -(-raw.shape[1] // step)
    cells = np.zeros((height, width, step), np.uint8)
    cells.reshape(height, -1)[:, : raw.shape[1]] = raw
    # One row and column of zeros before the first.
    done = np.zeros((height + 1, width + 1, step), np.int16)
    if kinds.max(initial=0) < _AVERAGE:
        for r, kind in enumerate(kinds):
            row = np.cumsum(cells[r], axis=0, dtype=np.uint8) if kind == 1 else cells[r]
            done[r + 1, 1:] = (row + done[r, 1:]) & 255 if kind == 2 else row
    else:
        _along_diagonals(cells, kinds, done)
    return done[1:, 1:].astype(np.uint8).reshape(height, -1)[:, : raw.shape[1]]


def _along_diagonals(cells: U8, kinds: U8, done: npt.NDArray[np.int16]) -> None:
    """Cells of one diagonal do not depend on each other, so that they are restored together."""
    height, width = cells.shape[:2]
    for diagonal in range(height + width - 1):
        rows = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        columns = diagonal - rows
        left, above, corner = done[rows + 1, columns], done[rows, columns + 1], done[rows, columns]
        kind = kinds[rows][:, None]
        estimate = left + above - corner
        apart = np.abs(estimate - left), np.abs(estimate - above), np.abs(estimate - corner)
        paeth = np.where(
            (apart[0] <= apart[1]) & (apart[0] <= apart[2]), left, np.where(apart[1] <= apart[2], above, corner)
        )
        predicted = np.select(
            [kind == 1, kind == 2, kind == 3, kind == 4], [left, above, (left + above) >> 1, paeth], 0
        )
        done[rows + 1, columns + 1] = (cells[rows, columns] + predicted) & 255


def _pixels(path: Path, header: _Header, rows: U8, palette: U8 | None) -> U8:
    channels = _CHANNELS[header.color]
    if header.depth == 16:
        rows = rows[:, ::2]
    elif header.depth < 8:
        bits = np.unpackbits(rows, axis=1).reshape(len(rows), -1, header.depth)[:, : header.width * channels]
        rows = (bits @ (1 << np.arange(header.depth)[::-1])).astype(np.uint8)
        if header.color == _GRAY:
            rows = rows * np.uint8(255 // ((1 << header.depth) - 1))
    if header.color == _PALETTE:
        if palette is None or rows.max(initial=0) >= len(palette):
            _fail(path, "a pixel has a color that the palette does not have")
        return palette[rows]
    return rows.reshape(header.height, header.width, channels)


def write_png(path: str | os.PathLike[str], pixels: U8) -> None:
    """Pixels uint8 [height, width] or [height, width, 1..4] to a file, which appears whole or not at all."""
    color, rows = _prepared(pixels)
    with replace_file(Path(path)) as file:
        file.write(_SIGNATURE + _header_chunk(rows, color) + _chunk(b"IDAT", _packed(rows)) + _chunk(b"IEND", b""))


def write_apng(path: str | os.PathLike[str], frames: Sequence[U8], frames_per_second: int = 20) -> None:
    """Frames of one size as an animation that repeats for ever."""
    if not frames or any(f.shape != frames[0].shape for f in frames):
        raise ShapeError("write_apng: at least one frame is needed, and all must have one size")
    color, first = _prepared(frames[0])
    height, width = first.shape[:2]
    sequence = 0
    with replace_file(Path(path)) as file:
        file.write(_SIGNATURE + _header_chunk(first, color) + _chunk(b"acTL", struct.pack(">II", len(frames), 0)))
        for number, frame in enumerate(frames):
            control = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, frames_per_second, 0, 0)
            file.write(_chunk(b"fcTL", control))
            sequence += 1
            data = _packed(_prepared(frame)[1])
            if number == 0:
                file.write(_chunk(b"IDAT", data))
            else:
                file.write(_chunk(b"fdAT", struct.pack(">I", sequence) + data))
                sequence += 1
        file.write(_chunk(b"IEND", b""))


def _prepared(pixels: U8) -> tuple[int, U8]:
    """The color type and the pixels [height, width, channels]."""
    rows = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if rows.dtype != np.uint8 or rows.ndim != 3 or not 1 <= rows.shape[2] <= 4 or rows.size == 0:
        raise ShapeError(f"a PNG needs uint8 [height, width, 1..4], got {pixels.dtype} {list(pixels.shape)}")
    return (_GRAY, _GRAY_ALPHA, _RGB, _RGBA)[rows.shape[2] - 1], rows


def _packed(rows: U8) -> bytes:
    """Every row as its difference to the row above (filter 2), which suits smooth pictures."""
    flat = rows.reshape(len(rows), -1)
    above = np.concatenate([np.zeros_like(flat[:1]), flat[:-1]])
    filtered = np.concatenate([np.full((len(rows), 1), 2, np.uint8), flat - above], axis=1)
    return zlib.compress(filtered.tobytes(), 6)


def _header_chunk(rows: U8, color: int) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], 8, color, 0, 0, 0))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
